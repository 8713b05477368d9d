// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A seeded scheduler: one thread runs at a time and hands over at instrumented points (function
// entries, atomics, flushes, drains), so that an interleaving can be repeated.
#ifndef PMALLOC_TESTS_CRASH_SCHEDULE_H
#define PMALLOC_TESTS_CRASH_SCHEDULE_H

unsigned schedule_self(void);
void schedule_point(void); // may hand over
void schedule_yield(void); // hands over
// Starts a thread. It runs when the scheduler chooses it.
void schedule_start(void (*fn)(void *arg), void *arg);
// Runs the other threads until they and their destructors have ended.
void schedule_join(void);

#endif
