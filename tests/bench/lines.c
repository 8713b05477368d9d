// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "lines.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/kinds.h"
#include "blocks/tcache.h"
#include "pages/extent.h"

enum { LINE = 64, TABLE_BITS = 21, SETS = LINES_THREADS / 64, NOBODY = 0xffff };

struct line {
    uint64_t number; // address / LINE; 0: this place is free
    uint64_t sharers[SETS];
    uint16_t writer;      // the last one
    uint16_t lock_holder; // the last one, of the lock in this line
};

struct lines_counts lines_counts[LINES_OPERATIONS];

static struct line *table;
static uint64_t used;
static uintptr_t own_low, own_high;
static unsigned per_node;
static bool active;
static uint16_t me;
static struct lines_counts *now;
static enum lines_place place[8]; // of the locks held; place[0]: none is
static unsigned depth;

static void fail(const char *what) {
    fprintf(stderr, "contention: %s\n", what);
    abort();
}

static bool far(unsigned thread) { return thread / per_node != me / per_node; }

// ---- lines --------------------------------------------------------------------------------------

// Lines that are neighbours are so in the table: they are often used one after the other.
#define TOGETHER 64u

static struct line *line_at(uintptr_t address) {
    uint64_t number = address / LINE, mask = (1u << TABLE_BITS) - 1;
    uint64_t group = number / TOGETHER * 0x9e3779b97f4a7c15u >> (64 - TABLE_BITS);
    uint64_t at = (group & ~(uint64_t)(TOGETHER - 1)) | number % TOGETHER;
    while (table[at].number && table[at].number != number)
        at = (at + TOGETHER) & mask;
    struct line *line = &table[at];
    if (!line->number) {
        if (++used > mask / 4 * 3)
            fail("more lines than the table takes: raise TABLE_BITS in tests/bench/lines.c");
        *line = (struct line){.number = number, .writer = NOBODY, .lock_holder = NOBODY};
    }
    return line;
}

static void count_moved(bool from_far) {
    now->moved[place[depth]]++;
    now->moved_far[place[depth]] += from_far;
}

static void read_line(struct line *line) {
    uint64_t *mine = &line->sharers[me / 64], bit = 1ull << me % 64;
    if (!(*mine & bit) && line->writer != NOBODY && line->writer != me)
        count_moved(far(line->writer));
    *mine |= bit;
}

// Whether another thread holds the line; *some_far: one on another node does.
static bool held_by_others(const struct line *line, bool *some_far) {
    bool others = false;
    for (unsigned set = 0; set < SETS; set++)
        for (uint64_t bits = line->sharers[set]; bits; bits &= bits - 1) {
            unsigned thread = set * 64 + (unsigned)__builtin_ctzll(bits);
            others |= thread != me;
            *some_far |= far(thread);
        }
    return others;
}

static void write_line(struct line *line) {
    bool some_far = false;
    if (line->writer == me && held_by_others(line, &some_far)) {
        count_moved(some_far);
    } else if (line->writer != me) {
        if (held_by_others(line, &some_far))
            count_moved(some_far);
        if (line->writer != NOBODY) {
            now->writes++;
            now->writes_far += far(line->writer);
        }
    }
    memset(line->sharers, 0, sizeof line->sharers);
    line->sharers[me / 64] = 1ull << me % 64;
    line->writer = me;
}

static void touch(uintptr_t at, size_t n, void each(struct line *)) {
    if (!active || !n || (at >= own_low && at < own_high) || pm_in_range((void *)at))
        return;
    active = false; // what is called here may itself be wrapped
    for (uintptr_t end = (at + n - 1) | (LINE - 1); at <= end; at += LINE)
        each(line_at(at));
    active = true;
}

static void on_read(const volatile void *p, size_t n) { touch((uintptr_t)p, n, read_line); }
static void on_write(const volatile void *p, size_t n) { touch((uintptr_t)p, n, write_line); }

// ---- locks --------------------------------------------------------------------------------------

// pm_lock is the only one in core/ whose word goes from 0 to 1 while pm_locks_held is above 0.
static void on_lock(const volatile void *word) {
    if (!active || !pm_locks_held)
        return;
    const char *at = (const char *)(uintptr_t)word, *arenas = (const char *)pm_arenas;
    const char *shards = (const char *)pm_heap.shard;
    enum lines_place kind = LINES_IN_BIN;
    if (at >= shards && at < shards + sizeof pm_heap.shard) {
        now->extent++;
        kind = LINES_IN_EXTENT;
    } else if (at < arenas || at >= (const char *)(pm_arenas + pm_arena_count)) {
        now->rest++;
    } else if (pm_arena_place((unsigned)((size_t)(at - arenas) / sizeof *pm_arenas)) ==
               pm_tcache->arena->number) {
        now->own++;
    } else {
        now->other++;
    }
    struct line *line = line_at((uintptr_t)word);
    if (line->lock_holder != me && line->lock_holder != NOBODY) {
        now->handed++;
        now->handed_far += far(line->lock_holder);
    }
    line->lock_holder = me;
    if (++depth == sizeof place / sizeof *place)
        fail("too many locks at once");
    place[depth] = kind;
}

static void on_unlock(void) {
    if (active && depth)
        depth--;
}

// ---- the interface ------------------------------------------------------------------------------

void lines_begin(unsigned threads, unsigned nodes) {
    pthread_attr_t attr;
    void *low = NULL;
    size_t size = 0;
    if (pthread_getattr_np(pthread_self(), &attr) != 0 ||
        pthread_attr_getstack(&attr, &low, &size) != 0)
        fail("this thread's stack cannot be found");
    pthread_attr_destroy(&attr);
    own_low = (uintptr_t)low;
    own_high = own_low + size;
    per_node = (threads + nodes - 1) / nodes;
    table = calloc(1u << TABLE_BITS, sizeof *table);
    if (!table)
        fail("no memory for the table of lines");
}

void lines_enter(unsigned thread, enum lines_operation operation) {
    me = (uint16_t)thread;
    now = &lines_counts[operation];
    now->operations++;
    depth = 0;
    place[0] = LINES_UNLOCKED;
    active = true;
}

void lines_leave(void) { active = false; }

void lines_zero(void) { memset(lines_counts, 0, sizeof lines_counts); }

void lines_drain(void) {
    if (active)
        now->drains++;
}

// ---- what the compiler calls --------------------------------------------------------------------

static void before_load(const volatile void *p, size_t n) { on_read(p, n); }
static void before_atomic(const volatile void *p, size_t n) { on_write(p, n); }
static void on_cas(const volatile void *p, unsigned bits, uint64_t from, uint64_t to) {
    if (bits == 32 && from == 0 && to == 1)
        on_lock(p);
}
static void on_exchange(const volatile void *p, unsigned bits, uint64_t to) {
    (void)p;
    if (bits == 32 && to == 0)
        on_unlock();
}
static void on_enter(void) {}
static void on_leave(void) {}
static void on_fence(void) {}

#include "tests/crash/compiler_calls.h"
