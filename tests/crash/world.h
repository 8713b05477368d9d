// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What the processes of a simulation share: the state of the media and of the caches over it. Processes of the
// simulated program come and go (killed, closed, after a power failure); the world stays.
//
//   media   what has certainly reached the media
//   now     what a load would see: media and every pending store
//   line    the pending stores of a cache line, in the order in which they were made
#ifndef PMALLOC_TESTS_CRASH_WORLD_H
#define PMALLOC_TESTS_CRASH_WORLD_H

#include <stdbool.h>
#include <stdint.h>

// The files of a heap directory. The first ones are metadata and have a shadow; heap.0 is the program's data.
enum {
    F_SUPER,
    F_SLABS,
    F_LOG,
    F_ROOTS,
    F_BITMAPS,
    F_NEW,
    F_MORPH,
    SHADOWS,
    F_DATA = SHADOWS,
    FILES
};
extern const char *const file_names[FILES];

#define WORD 8u
#define LINE_WORDS 8u
#define SHADOW_BYTES (512u << 10)
#define SHADOW_WORDS (SHADOW_BYTES / WORD)
#define SHADOW_LINES (SHADOW_WORDS / LINE_WORDS)

#define POOL 65536u
#define DIRTY_MAX 16384u
#define PATCHES 32768u
#define SEEN (1u << 20)
#define SITES 1024u
#define FAILURES 4u
#define THREADS 8u
#define MUTANT_PCS 64u
#define PROGRAM_SLOTS 4u
#define CAPTURED 2u

struct store {
    uint32_t next; // of its line; pool index, 0 is none
    uint32_t word; // of its file
    uint64_t value;
    bool ordered; // after a compiler barrier: everything before it in the line comes first
};

struct line {
    uint32_t first, last; // pending stores
    uint32_t count;
    uint32_t place; // in world.dirty, + 1
    uint64_t gone;  // stores made durable so far; numbers the pending ones
    bool tainted;   // dirty for longer than it would be without the mutant
    uint64_t group; // of the last store, see media_store()
};

struct shadow {
    bool exists;
    uint64_t size;
    uint64_t media[SHADOW_WORDS], now[SHADOW_WORDS];
    struct line line[SHADOW_LINES];
};

struct line_ref {
    uint32_t file, line;
};

struct patch {
    uint32_t file, word;
    uint64_t value;
};

// A place in the source that flushes, drains, or otherwise makes a point at which the power may fail.
enum site_kind { SITE_FLUSH, SITE_DRAIN, SITE_FILE_OP, SITE_DATA, SITE_STORE };
struct site {
    uint64_t pc;
    uint32_t kind;
    uint64_t hits, images;
    uint64_t first; // point of the first visit
    uint64_t dirty; // hits while stores waited to become durable
};

// What the program knows of its data at this moment: the checker holds the recovered heap against it.
struct expect {
    uint64_t slot[PROGRAM_SLOTS][2];             // acceptable values, old and new
    uint64_t captured[CAPTURED];                 // value in the captured variable
    bool may_have[CAPTURED], may_lack[CAPTURED]; // its registration
    // Inside realloc(), by thread: this object may be gone, for the program cannot know yet.
    uint64_t limbo[THREADS];
    uint64_t allocated; // objects the program has not freed, reachable or not
    bool spoilt;        // by the scenario: only an opening for writing can do without the log
    bool made;          // the heap was made: it must open
    bool closed;        // pm_runtime_exit() returned: the heap is clean
    bool collect_crash; // PMALLOC_COLLECT=crash
};

struct request {
    uint64_t image;      // running number
    uint32_t operations; // random ones that the heap has to serve afterwards
    bool reopen;         // then close cleanly, open and check again
    bool look;           // first look read-only, as pmalloc-recover --check does
    uint32_t patch_count;
    struct patch patch[PATCHES];
    char text[512]; // the answer, when it is no
};

struct failure {
    uint64_t point, index;
    char text[512];
};

enum mutation { MUTATE_NONE, MUTATE_DROP_FLUSH, MUTATE_DROP_DRAIN, MUTATE_LATE_FLUSH };

struct world {
    char root[128]; // heap and image directories of this run lie here
    struct shadow shadow[SHADOWS];
    struct store pool[POOL];
    uint32_t pool_free;
    struct line_ref dirty[DIRTY_MAX];
    uint32_t dirty_count;
    uint64_t media_hash, data_version;
    uint64_t data_size;
    bool data_exists;

    uint64_t seen[SEEN];
    uint64_t points, images, distinct, fences, stores, mutated, reopened, looked, operations;
    uint64_t max_line_stores, max_dirty;
    struct site site[SITES];
    uint32_t site_count;
    struct expect expect;
    struct request request;
    struct failure failure[FAILURES];
    uint32_t failures;

    // settings of the run
    uint64_t seed, quota, limit, max_images;
    uint64_t replay_point, replay_index; // UINT64_MAX: none
    bool eadr, taking;                   // images are taken in this phase
    enum mutation mutation;
    uint64_t mutant_pc[MUTANT_PCS];
    uint32_t mutant_count;
    uint32_t tainted; // lines
    // The failure that ends this phase: at hit `fail_hit` of site `fail_site`; by power failure or kill.
    uint32_t fail_site;
    uint64_t fail_hit;
    bool fail_power;
    bool fail_dirty; // only visits while stores wait to become durable count
};

extern struct world *world;

static inline uint64_t mix64(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

// One stream of random numbers; splitmix64.
static inline uint64_t draw(uint64_t *state, uint64_t below) {
    *state += 0x9e3779b97f4a7c15ull;
    return mix64(*state) % below;
}

#endif
