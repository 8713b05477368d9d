// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The memory that all processes of a simulation share: the state of the media, and of the caches
// above them. Processes of the simulated program come and go; the world stays.
//
//   media   what has certainly reached the media
//   now     what a load would see: media and every pending store
//   line    the pending stores of a cache line, in the order in which they were made
#ifndef PMALLOC_TESTS_CRASH_WORLD_H
#define PMALLOC_TESTS_CRASH_WORLD_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "media/heap_files.h"

// The files of a heap directory. The first SHADOWS are metadata, and the simulator keeps a shadow
// of them. heap.0 and heap.1 hold the program's data. Beside them lie the fixed media, if there are
// any: their first bytes, all but heap.N, have a shadow.
#define MEDIA 2u // fixed media of a heap, at most
enum {
    F_SUPER,
    F_SLABS,
    F_LOG,
    F_ROOTS,
    F_BITMAPS,
    F_NEW,
    F_MORPH,
    F_SLABS_1,
    F_LOG_1,
    F_BITMAPS_1,
    F_MORPH_1,
    F_MEDIUM,
    F_MEDIUM_1,
    SHADOWS,
    F_DATA = SHADOWS,
    F_DATA_1,
    FILES
};
_Static_assert(
    FILES - MEDIA == PM_FIRST_FILES - 9 + PM_SHARD_FILES - 1,
    "of two shards all names but heap.N.new, which stand for nothing, the journal, and the "
    "record of loaded objects, the table of types, the reserve and the limit, which no store of "
    "the heap needs");
#define DATA_FILES (FILES - SHADOWS)

// The rows of shard 1 follow those of every heap, in the order of those of shard 0.
#define ROW_1(member) (PM_FIRST_FILES + PM_ROW_##member - PM_ROW_data)

static inline const char *file_name(unsigned file) {
    static const unsigned char row[FILES] = {
        [F_SUPER] = PM_ROW_super_file, [F_SLABS] = PM_ROW_slabs,       [F_LOG] = PM_ROW_log,
        [F_ROOTS] = PM_ROW_roots,      [F_BITMAPS] = PM_ROW_bitmaps,   [F_NEW] = PM_ROW_new_super,
        [F_MORPH] = PM_ROW_morph,      [F_DATA] = PM_ROW_data,         [F_SLABS_1] = ROW_1(slabs),
        [F_LOG_1] = ROW_1(log),        [F_BITMAPS_1] = ROW_1(bitmaps), [F_MORPH_1] = ROW_1(morph),
        [F_DATA_1] = ROW_1(data),
    };
    return file == F_MEDIUM     ? "medium"
           : file == F_MEDIUM_1 ? "medium.1"
                                : pm_heap_files[row[file]].name;
}

static inline bool is_medium(unsigned file) { return file == F_MEDIUM || file == F_MEDIUM_1; }

#define WORD 8u
#define LINE_WORDS 8u
#define SHADOW_BYTES (3u << 20)
#define MEDIUM_BYTES (32ull << 20) // of a fixed medium
#define MEDIUM_HEAD (2u << 20)     // of which before heap.0
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
#define PUBLISHED 16u

struct store {
    uint32_t next; // the next store of the line: index into the pool, 0: none
    uint32_t word; // number of the word in its file
    uint64_t value;
    bool ordered; // it comes after a compiler barrier, so after every earlier store of the line
};

struct line {
    uint32_t first, last; // pending stores
    uint32_t count;
    uint32_t place; // its index in world.dirty, plus 1; 0: not dirty
    uint64_t gone;  // stores that have left the line; the first pending one has this number
    bool tainted;   // dirty for longer than it would be without the mutant
    uint64_t group; // the group of the last store, see media_store()
};

struct shadow {
    bool exists;
    uint64_t size; // of a fixed medium: the part that has a shadow
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

// A place in the source at which the power may fail, because it flushes, drains, or changes a file
// or the program's data.
enum site_kind { SITE_FLUSH, SITE_DRAIN, SITE_FILE_OP, SITE_DATA, SITE_STORE };
struct site {
    uint64_t pc;
    uint32_t kind;
    uint64_t hits, images;
    uint64_t first;   // the point (world.points) of the first visit
    uint64_t dirty;   // hits while stores waited to become durable
    uint64_t tainted; // hits at which a mutant may have changed what is durable
};

// What the program knows of its data at this moment. The checker compares the recovered heap with
// it.
struct expect {
    uint64_t slot[PROGRAM_SLOTS][2]; // the slot holds the old or the new value
    uint64_t captured[CAPTURED];     // value of the captured variable
    // The root may be registered; the root may be unregistered.
    bool may_have[CAPTURED], may_lack[CAPTURED];
    // The object that each thread is passing to realloc(). It may be freed already, and the program
    // cannot know yet.
    uint64_t limbo[THREADS];
    // What each thread publishes, or has published last: the heap has all of it or, while `during`,
    // none of it. A store goes to a word of crash_root_a, or to the address.
    struct publish {
        bool during;
        uint32_t early; // of the first stores: these may be made before the others
        uint32_t count;
        struct published {
            uint32_t word;
            uint64_t *at; // in the heap; NULL: see published_value()
            uint64_t old, fresh;
        } store[PUBLISHED];
    } publish[THREADS];
    uint64_t allocated; // objects the program has not freed, reachable or not
    uint64_t loose;     // pinned objects that may be alive although nothing reaches them
    bool made;          // the heap is complete, so it must open
    bool closed;        // pm_process_end() has returned, so the heap is clean
    uint64_t file;      // which file its superblock is: its inode number, but for 1
    enum collect { COLLECT_ALWAYS, COLLECT_CRASH, COLLECT_LATER } collect; // PMALLOC_COLLECT
};

static inline const char *collect_text(enum collect collect) {
    return collect == COLLECT_CRASH ? "crash" : collect == COLLECT_LATER ? "later" : "always";
}

struct request {
    uint64_t image;      // running number
    uint32_t operations; // random operations on the heap after recovery
    bool reopen;         // after these close the heap, open it and check again
    bool look;           // before all else open it read-only, as pmalloc-recover --check does
    uint32_t patch_count;
    struct patch patch[PATCHES];
    char text[512]; // why the image failed
};

struct failure {
    uint64_t point, index;
    char text[512];
};

enum mutation {
    MUTATE_NONE,
    MUTATE_DROP_FLUSH,
    MUTATE_DROP_DRAIN,
    MUTATE_LATE_FLUSH,
    MUTATE_DROP_RENAME
};

struct world {
    char root[128]; // heap and image directories of this run lie here
    struct shadow shadow[SHADOWS];
    struct store pool[POOL];
    uint32_t pool_free;
    struct line_ref dirty[DIRTY_MAX];
    uint32_t dirty_count;
    uint64_t media_hash, data_version;
    uint64_t data_size[DATA_FILES];
    bool data_exists[DATA_FILES];
    uint64_t medium_bytes[MEDIA]; // of each fixed medium
    uint64_t medium_shadow;       // how many of these have a shadow

    uint64_t seen[SEEN];
    uint64_t points, images, distinct, fences, stores, mutated, reopened, looked, operations;
    uint64_t max_line_stores, max_dirty;
    struct site site[SITES];
    uint32_t site_count;
    struct expect expect;
    struct request request;
    struct failure failure[FAILURES];
    uint32_t failures;

    // The settings of the run.
    uint64_t seed, quota, limit, max_images;
    uint64_t replay_point, replay_index; // UINT64_MAX: none
    // two: the heap has two shards; fixed: it lies on a fixed medium, with both: on two of them;
    // taking: this phase takes images
    bool eadr, plain, two, fixed, taking;
    enum mutation mutation;
    uint64_t mutant_pc[MUTANT_PCS];
    uint32_t mutant_count;
    bool mutant_second; // it leaves out only what concerns the second medium
    uint32_t tainted;   // number of tainted lines
    // How this phase ends: at visit `fail_hit` of place `fail_site`, by power failure or by a kill.
    uint32_t fail_site;
    uint64_t fail_hit;
    bool fail_power;
    bool fail_dirty; // count only visits while stores wait to become durable
};

extern struct world *world;

// The fixed media that the heap has.
static inline unsigned media_count(void) { return !world->fixed ? 0 : world->two ? MEDIA : 1; }

// The path of one of them below this folder of the run.
static inline void medium_path(char *path, size_t len, const char *folder, unsigned i) {
    snprintf(path, len, "%s/%s/%s", world->root, folder, file_name(F_MEDIUM + i));
}

// PMALLOC_HEAP of a heap below this folder of the run.
#define HEAP_PATH 384u
static inline void heap_path(char path[HEAP_PATH], const char *folder) {
    snprintf(path, HEAP_PATH, "%s/%s", world->root, folder);
    for (unsigned i = 0; i < media_count(); i++) {
        size_t at = i ? strlen(path) : 0;
        medium_path(path + at + (i > 0), HEAP_PATH - at - 1, folder, i);
        if (i)
            path[at] = ':';
    }
}

static inline uint64_t mix64(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

// Random numbers below `below`, by splitmix64.
static inline uint64_t draw(uint64_t *state, uint64_t below) {
    *state += 0x9e3779b97f4a7c15ull;
    return mix64(*state) % below;
}

#endif
