// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The simulated program. It keeps objects in tables that the roots name. Each of its own stores is
// durable at once. It publishes an object after filling it, and removes the pointer before it frees
// the object.
#ifndef PMALLOC_TESTS_CRASH_PROGRAM_H
#define PMALLOC_TESTS_CRASH_PROGRAM_H

#include "object.h"

extern uint64_t program_random;
static inline uint64_t rnd(uint64_t below) { return draw(&program_random, below); }

// What the program's constructors do, after the heap is open and before main; NULL: nothing.
extern void (*program_constructors)(void);
// Starts, the checker's too, run under PMALLOC_COLLECT=later.
extern bool program_later;
// Opens the heap as a program does when it starts. `roots` becomes PMALLOC_ROOTS.
void program_start(const char *roots, bool collect_crash);
// The table in root slot `slot`. Where there is none, makes one with `count` entries.
struct table *program_table(unsigned slot, uint64_t count);
struct table *program_new_table(uint64_t count);
void program_free_table(struct table *t);
void program_set_root(unsigned slot, struct table *t);
// Puts a new object into entry `at`; it links to the object that was there. False: there is no
// memory.
bool program_put(struct table *t, uint64_t at, uint64_t size);
// Frees the object in entry `at` and all objects that it links to.
void program_drop(struct table *t, uint64_t at);
void program_drop_all(struct table *t);
// realloc() of the first object in entry `at`.
void program_resize(struct table *t, uint64_t at, uint64_t size);
// Puts or drops an object at random, so that about `want` entries stay in use. Sizes are drawn from
// [from, to).
void program_step(struct table *t, uint64_t want, uint64_t from, uint64_t to);
void program_steps(struct table *t, unsigned count, uint64_t want, uint64_t from, uint64_t to);
// Puts objects of about one size, or drops objects, until `want` entries are in use. Now and then
// the thread cache returns its blocks, so that they become free in their slabs. There must be
// memory for all.
void program_fill_to(struct table *t, uint64_t want, uint64_t size);
void program_close(void);
// The program has found what must not be.
void program_broken(const char *what);

#endif
