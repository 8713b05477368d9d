// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program under PMALLOC_COMMIT that is cut off or killed: each heap must hold exactly one instant
// of all its threads. Its root is `state`.
//
//     instants run SEED      says "instant ..." of what it finds, then works for ever, and says
//                            "commit ..." after each commit that it makes
//     instants answer SEED   makes no commit itself, and says "said ..." after each operation
//     instants guard SEED    the same, and each thread looks after each operation whether its pages
//                            and objects hold what it has stored there
//     instants wait SEED     as `answer`, and each thread waits after each operation. No operation
//                            may be half done in what it finds
//     instants sections SEED     as `answer`, and each operation is a critical section, which
//                                another one overlaps. None may be half done in what it finds
//     instants sectionsrun SEED  the same, as `run`
//     instants check SEED    says "instant ..." only; `checkwait` as `wait` does
//
//     instant COMMITS DONE...           the heap has so many commits, and so many operations of
//                                       each thread
//     commit COMMITS BEFORE... AFTER... how many operations there were before and after it
//     said THREAD DONE                  this operation of this thread was done
//
// Operation N of a thread replaces an object, fills a page with N, and notes how far it has seen
// the other threads. All of it follows from SEED, the thread and N. So from the number of a
// thread's last operation follows what all its objects and pages hold, to the byte, but for one
// operation that is under way. No thread may have seen another one further than it is.
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "instant_lines.h"

enum { THREADS = 3, SLOTS = 64, PAGES = 48, WORDS = 512, PAIRS = 4 };

struct object {
    uint64_t serial, words;
    uint64_t word[];
};

struct row {
    uint64_t done;
    uint64_t seen[THREADS];
    struct object *slot[SLOTS];
    uint64_t (*page)[WORDS];
};

// Of all threads: its numbers differ in a section only.
struct pair {
    pthread_mutex_t lock;
    volatile uint64_t a, b;
};

struct state {
    uint64_t commits;
    struct row *row[THREADS];
    pthread_mutex_t lock[THREADS];
    struct pair pair[PAIRS];
};

struct state *state;

static uint64_t seed;
static bool whole; // no operation may be half done
static bool locks; // each is a critical section
static bool guards;

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t dice(unsigned thread, uint64_t n) { return mix(seed ^ mix(n * THREADS + thread)); }

static bool deletes(unsigned thread, uint64_t n) { return dice(thread, n) % 8 == 0; }

// Most objects are small. One in 16 is a large block, one in 128 has an extent of its own.
static uint64_t words_of(unsigned thread, uint64_t n) {
    uint64_t r = dice(thread, n) >> 8, pick = r % 128, size = r >> 8;
    uint64_t bytes = pick == 0   ? (2u << 20) + size % (1u << 20)
                     : pick <= 8 ? (16u << 10) + size % (100u << 10)
                                 : 16 + size % 2000;
    return bytes / 8;
}

static uint64_t word_of(uint64_t n, uint64_t i) { return (n * 0x9e3779b97f4a7c15u + i) | 1; }

// ---- work ---------------------------------------------------------------------------------------

static void make_state(void) {
    struct state *s = must(calloc(1, sizeof *s));
    for (unsigned t = 0; t < THREADS; t++) {
        s->row[t] = must(calloc(1, sizeof *s->row[t]));
        s->row[t]->page = must(calloc(PAGES, sizeof s->row[t]->page[0]));
    }
    __atomic_store_n(&state, s, __ATOMIC_RELEASE);
}

static struct object *make_object(unsigned thread, uint64_t n) {
    if (deletes(thread, n))
        return NULL;
    uint64_t words = words_of(thread, n);
    struct object *o = must(malloc(sizeof *o + words * 8));
    o->serial = n;
    o->words = words;
    for (uint64_t i = 0; i < words; i++)
        o->word[i] = word_of(n, i);
    return o;
}

// An operation takes its time, so that a commit in its midst is likely if it is possible.
static void linger(void) {
    struct timespec begun, now;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - begun.tv_sec) * 1000000000 + now.tv_nsec - begun.tv_nsec < 3000000);
}

static void change_pair(struct pair *p) {
    p->a++;
    for (volatile unsigned i = 0; i < 20000; i++) {
    }
    p->b++;
}

static void operate(unsigned thread, uint64_t n) {
    struct row *row = state->row[thread];
    struct object *old = row->slot[n % SLOTS], *fresh = make_object(thread, n);
    __atomic_store_n(&row->slot[n % SLOTS], fresh, __ATOMIC_RELEASE);
    volatile uint64_t *page = row->page[n % PAGES];
    for (unsigned i = 0; i < WORDS; i++) { // in this order
        if (whole && i == WORDS / 2)
            linger();
        page[i] = n;
    }
    for (unsigned t = 0; t < THREADS; t++)
        row->seen[t] = __atomic_load_n(&state->row[t]->done, __ATOMIC_SEQ_CST);
    __atomic_store_n(&row->done, n, __ATOMIC_SEQ_CST);
    free(old);
}

// The sections overlap, and threads meet in those of a pair.
static void operate_locked(unsigned thread, uint64_t n) {
    struct pair *pair = &state->pair[dice(thread, n) % PAIRS];
    if (locks)
        pthread_mutex_lock(&state->lock[thread]);
    operate(thread, n);
    if (!locks)
        return;
    pthread_mutex_lock(&pair->lock);
    pthread_mutex_unlock(&state->lock[thread]);
    change_pair(pair);
    pthread_mutex_unlock(&pair->lock);
}

static void *work(void *arg) {
    unsigned thread = (unsigned)(uintptr_t)arg;
    for (uint64_t n = state->row[thread]->done + 1;; n++)
        if (operate_locked(thread, n), n % 16 == 0)
            usleep((useconds_t)(dice(thread, n) % 4000));
    return NULL;
}

static void look(unsigned thread, uint64_t n);

static void *answer(void *arg) {
    unsigned thread = (unsigned)(uintptr_t)arg;
    for (uint64_t n = state->row[thread]->done + 1;; n++) {
        operate_locked(thread, n);
        say("said %u %lu\n", thread, (unsigned long)n);
        if (guards)
            look(thread, n);
        poll(NULL, 0, (int)(dice(thread, n) % (whole ? 30 : 5)));
    }
    return NULL;
}

static void read_done(uint64_t done[THREADS]) {
    for (unsigned t = 0; t < THREADS; t++)
        done[t] = __atomic_load_n(&state->row[t]->done, __ATOMIC_SEQ_CST);
}

static void commit_for_ever(void) {
    uint64_t before[THREADS], after[THREADS];
    for (uint64_t n = state->commits + 1;; n++) {
        usleep((useconds_t)(mix(n ^ seed) % 8000));
        state->commits = n;
        do
            read_done(before);
        while (!commit());
        read_done(after);
        say("commit %lu %lu %lu %lu %lu %lu %lu\n", (unsigned long)n, (unsigned long)before[0],
            (unsigned long)before[1], (unsigned long)before[2], (unsigned long)after[0],
            (unsigned long)after[1], (unsigned long)after[2]);
    }
}

// ---- the check ----------------------------------------------------------------------------------

// The operation that last touched place `at` of `places`; 0 if none has.
static uint64_t last_of(uint64_t done, uint64_t places, uint64_t at) {
    uint64_t back = (done % places + places - at) % places;
    return back > done ? 0 : done - back;
}

static bool object_is(const struct object *o, unsigned thread, uint64_t n) {
    if (n == 0 || deletes(thread, n))
        return !o;
    if (!o || o->serial != n || o->words != words_of(thread, n))
        return false;
    for (uint64_t i = 0; i < o->words; i++)
        if (o->word[i] != word_of(n, i))
            return false;
    return true;
}

// A page of operation n; or, where operation `next` is filling it, the first words are of that.
static bool page_is(const uint64_t *page, uint64_t n, uint64_t next) {
    unsigned i = 0;
    while (next && i < WORDS && page[i] == next)
        i++;
    while (i < WORDS && page[i] == n)
        i++;
    return i == WORDS;
}

// What the thread's own memory must hold after operation `n`, which nothing in the heap says.
static void look(unsigned thread, uint64_t n) {
    const struct row *row = __atomic_load_n(&state->row[thread], __ATOMIC_ACQUIRE);
    for (unsigned p = 0; p < PAGES; p++)
        if (!page_is(row->page[p], last_of(n, PAGES, p), 0)) {
            say("wrong: memory has changed: thread %u, %lu operations, page %u holds %lu\n", thread,
                (unsigned long)n, p, (unsigned long)row->page[p][0]);
            _exit(EXIT_WRONG);
        }
    for (unsigned s = 0; s < SLOTS; s++)
        if (!object_is(row->slot[s], thread, last_of(n, SLOTS, s))) {
            say("wrong: memory has changed: thread %u, %lu operations, slot %u\n", thread,
                (unsigned long)n, s);
            _exit(EXIT_WRONG);
        }
}

static bool row_is_right(unsigned thread) {
    const struct row *row = state->row[thread];
    uint64_t done = row->done, next = done + 1;
    for (unsigned s = 0; s < SLOTS; s++) {
        bool right = object_is(row->slot[s], thread, last_of(done, SLOTS, s)) ||
                     (!whole && next % SLOTS == s && object_is(row->slot[s], thread, next));
        if (!right) {
            say("wrong: thread %u, %lu operations, slot %u\n", thread, (unsigned long)done, s);
            return false;
        }
    }
    for (unsigned p = 0; p < PAGES; p++) {
        bool filling =
            !whole && next % PAGES == p && object_is(row->slot[next % SLOTS], thread, next);
        if (!page_is(row->page[p], last_of(done, PAGES, p), filling ? next : 0)) {
            say("wrong: thread %u, %lu operations, page %u\n", thread, (unsigned long)done, p);
            return false;
        }
    }
    for (unsigned t = 0; t < THREADS; t++)
        if (row->seen[t] > state->row[t]->done) {
            say("wrong: thread %u has seen operation %lu of thread %u, which is at %lu\n", thread,
                (unsigned long)row->seen[t], t, (unsigned long)state->row[t]->done);
            return false;
        }
    return true;
}

static bool pairs_are_right(void) {
    for (unsigned i = 0; i < PAIRS; i++) {
        const struct pair *p = &state->pair[i];
        if (p->a != p->b) {
            say("wrong: pair %u has %lu and %lu\n", i, (unsigned long)p->a, (unsigned long)p->b);
            return false;
        }
    }
    return true;
}

static bool check(void) {
    for (unsigned t = 0; state && t < THREADS; t++)
        if (!row_is_right(t))
            return false;
    if (state && !pairs_are_right())
        return false;
    if (state)
        say("instant %lu %lu %lu %lu\n", (unsigned long)state->commits,
            (unsigned long)state->row[0]->done, (unsigned long)state->row[1]->done,
            (unsigned long)state->row[2]->done);
    else
        say("instant 0 0 0 0\n");
    return true;
}

static int usage(void) {
    fprintf(stderr,
            "usage: instants run|answer|guard|wait|sections|sectionsrun|check|checkwait SEED\n");
    return EXIT_USAGE;
}

static bool is(const char *mode, const char *name) { return strcmp(mode, name) == 0; }

int main(int argc, char **argv) {
    if (argc != 3)
        return usage();
    const char *mode = argv[1];
    bool commits = is(mode, "run") || is(mode, "sectionsrun"),
         checks = strncmp(mode, "check", 5) == 0;
    locks = is(mode, "sections") || is(mode, "sectionsrun");
    whole = locks || is(mode, "wait") || is(mode, "checkwait");
    guards = is(mode, "guard");
    if (!commits && !whole && !guards && !is(mode, "answer") && !is(mode, "check"))
        return usage();
    seed = strtoull(argv[2], NULL, 10);
    if (!check())
        return EXIT_WRONG;
    if (checks)
        return 0;
    if (!pmalloc_commit) {
        fprintf(stderr, "instants: run it under libpmalloc_preload.so\n");
        return EXIT_USAGE;
    }
    if (!state)
        make_state();
    for (uintptr_t t = 0; t < THREADS; t++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, commits ? work : answer, (void *)t) != 0)
            return 1;
    }
    if (commits)
        commit_for_ever();
    for (;;)
        pause();
}
