// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program under PMALLOC_COMMIT=100ms that changes so much that its commits write most of it in
// rounds, while it runs. It is cut off, and its heap must hold exactly one instant of all its
// threads. Its root is `state`.
//
//     storm run SEED     says "instant ..." of what it finds, then works for ever. Now and then it
//                        makes a commit itself, the first one when all pages were stored to, and
//                        says "commit ..." after that. After each line it reads a byte, which says
//                        that the line was heard
//     storm check SEED   says "instant ..." only
//
// The lines are those of instants.c. Operation N of a thread stores to one of its pages, the next
// one in a ring: half of the threads store N there, the others bring the page to what it was before
// the last time. Then it notes how far it has seen the other threads. So from the number of its
// last operation follows what all its pages hold, to the byte, but for one operation that is under
// way. A page that a round has taken, and that is stored to again before the instant, must be taken
// once more.
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "instant_lines.h"

enum { THREADS = 4, PAGES = 512, WORDS = 512 };

struct row {
    uint64_t done;
    uint64_t seen[THREADS];
    uint64_t (*page)[WORDS];
};

struct state {
    uint64_t commits;
    struct row row[THREADS];
};

struct state *state;

static void await_heard(void) {
    char byte;
    if (read(STDIN_FILENO, &byte, 1) < 0)
        _exit(1);
}

static bool toggles(unsigned thread) { return thread % 2; }

static uint64_t page_of(uint64_t n) { return n % PAGES; }

// ---- work ---------------------------------------------------------------------------------------

static void make_state(void) {
    struct state *s = must(calloc(1, sizeof *s));
    for (unsigned t = 0; t < THREADS; t++)
        s->row[t].page = must(calloc(PAGES, sizeof s->row[t].page[0]));
    __atomic_store_n(&state, s, __ATOMIC_RELEASE);
}

// The stores are made in this order.
static void operate(unsigned thread, uint64_t n) {
    struct row *row = &state->row[thread];
    volatile uint64_t *word = &row->page[page_of(n)][page_of(n) % WORDS];
    *word = toggles(thread) ? !*word : n;
    for (unsigned t = 0; t < THREADS; t++)
        row->seen[t] = __atomic_load_n(&state->row[t].done, __ATOMIC_SEQ_CST);
    __atomic_store_n(&row->done, n, __ATOMIC_SEQ_CST);
}

static void *work(void *arg) {
    unsigned thread = (unsigned)(uintptr_t)arg;
    for (uint64_t n = state->row[thread].done + 1;; n++)
        if (operate(thread, n), n % 16 == 0)
            usleep(1000);
    return NULL;
}

static void read_done(uint64_t done[THREADS]) {
    for (unsigned t = 0; t < THREADS; t++)
        done[t] = __atomic_load_n(&state->row[t].done, __ATOMIC_SEQ_CST);
}

static void await_turns(void) {
    uint64_t begun[THREADS];
    read_done(begun);
    for (unsigned t = 0; t < THREADS; t++)
        while (__atomic_load_n(&state->row[t].done, __ATOMIC_SEQ_CST) - begun[t] < PAGES)
            usleep(1000);
}

static void commit_for_ever(unsigned seed) {
    uint64_t b[THREADS], a[THREADS];
    for (await_turns();; usleep((useconds_t)rand_r(&seed) % 1000000)) {
        uint64_t n = state->commits + 1;
        __atomic_store_n(&state->commits, n, __ATOMIC_SEQ_CST);
        do
            read_done(b);
        while (!commit());
        read_done(a);
        say("commit %lu %lu %lu %lu %lu %lu %lu %lu %lu\n", (unsigned long)n, (unsigned long)b[0],
            (unsigned long)b[1], (unsigned long)b[2], (unsigned long)b[3], (unsigned long)a[0],
            (unsigned long)a[1], (unsigned long)a[2], (unsigned long)a[3]);
        await_heard();
    }
}

// ---- the check ----------------------------------------------------------------------------------

// How often a page has had its turn.
static uint64_t turns_of(uint64_t page, uint64_t done) {
    return (done + PAGES - (page ? page : PAGES)) / PAGES;
}

static uint64_t word_after(unsigned thread, uint64_t page, uint64_t done) {
    uint64_t turns = turns_of(page, done);
    if (toggles(thread))
        return turns % 2;
    return turns ? (turns - 1) * PAGES + (page ? page : PAGES) : 0;
}

static bool is_made(unsigned thread, uint64_t n) {
    uint64_t page = page_of(n);
    return state->row[thread].page[page][page % WORDS] == word_after(thread, page, n);
}

static bool page_is_right(unsigned thread, uint64_t page) {
    const struct row *row = &state->row[thread];
    uint64_t wants = word_after(thread, page, row->done), next = row->done + 1;
    bool under_way = page == page_of(next) && is_made(thread, next);
    for (uint64_t i = 0; i < WORDS; i++) {
        uint64_t has = row->page[page][i];
        if (i == page % WORDS ? has != wants && !under_way : has != 0) {
            say("wrong: thread %u, %lu operations, page %lu, word %lu: %lu\n", thread,
                (unsigned long)row->done, (unsigned long)page, (unsigned long)i,
                (unsigned long)has);
            return false;
        }
    }
    return true;
}

static bool row_is_right(unsigned thread) {
    const struct row *row = &state->row[thread];
    for (uint64_t page = 0; page < PAGES; page++)
        if (!page_is_right(thread, page))
            return false;
    for (unsigned t = 0; t < THREADS; t++)
        if (row->seen[t] > state->row[t].done) {
            say("wrong: thread %u has seen operation %lu of thread %u, which is at %lu\n", thread,
                (unsigned long)row->seen[t], t, (unsigned long)state->row[t].done);
            return false;
        }
    return true;
}

static bool check(void) {
    uint64_t done[THREADS] = {0};
    for (unsigned t = 0; state && t < THREADS; t++)
        if (!row_is_right(t))
            return false;
    if (state)
        read_done(done);
    say("instant %lu %lu %lu %lu %lu\n", state ? (unsigned long)state->commits : 0,
        (unsigned long)done[0], (unsigned long)done[1], (unsigned long)done[2],
        (unsigned long)done[3]);
    return true;
}

// Such an operation is not made twice.
static void end_what_was_under_way(void) {
    for (unsigned t = 0; t < THREADS; t++)
        state->row[t].done += is_made(t, state->row[t].done + 1);
}

int main(int argc, char **argv) {
    bool runs = argc == 3 && strcmp(argv[1], "run") == 0;
    if (argc != 3 || (!runs && strcmp(argv[1], "check") != 0)) {
        fprintf(stderr, "usage: storm run|check SEED\n");
        return EXIT_USAGE;
    }
    if (!check())
        return EXIT_WRONG;
    if (!runs)
        return 0;
    await_heard();
    if (!pmalloc_commit) {
        fprintf(stderr, "storm: run it under libpmalloc_preload.so\n");
        return EXIT_USAGE;
    }
    if (!state)
        make_state();
    end_what_was_under_way();
    for (uintptr_t t = 0; t < THREADS; t++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, (void *)t) != 0)
            return 1;
    }
    commit_for_ever((unsigned)strtoul(argv[2], NULL, 10));
}
