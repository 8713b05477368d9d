// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The simulated program: it keeps objects in tables that hang off roots, makes every store of its own durable
// at once, publishes an object only when it is filled, and takes its pointer away before it frees it.
#ifndef PMALLOC_TESTS_CRASH_PROGRAM_H
#define PMALLOC_TESTS_CRASH_PROGRAM_H

#include "object.h"

extern uint64_t program_random;
static inline uint64_t rnd(uint64_t below) { return draw(&program_random, below); }

// Opens the heap as the environment says, as a program does that starts.
void program_start(const char *roots, bool collect_crash);
// The table in root slot `slot`, made with `count` entries where there is none.
struct table *program_table(unsigned slot, uint64_t count);
struct table *program_new_table(uint64_t count);
void program_free_table(struct table *t);
void program_set_root(unsigned slot, struct table *t);
// A new object in entry `at`, in front of what is there; false when there is no memory.
bool program_put(struct table *t, uint64_t at, uint64_t size);
// Frees what is in entry `at`, with all it links to.
void program_drop(struct table *t, uint64_t at);
void program_drop_all(struct table *t);
// realloc() of the first object in entry `at`.
void program_resize(struct table *t, uint64_t at, uint64_t size);
// A step that puts or drops, so that about `want` entries are in use. Sizes are drawn from [from, to).
void program_step(struct table *t, uint64_t want, uint64_t from, uint64_t to);
void program_close(void);

#endif
