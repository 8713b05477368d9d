// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The files of a heap: what each is, in one table.
#ifndef PM_HEAP_FILES_H
#define PM_HEAP_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format.h"

#define PM_FILE_NAME 32 // volume.7/heap.15.new

struct pm_file {
    char name[PM_FILE_NAME]; // seen from the heap's directory (volume.h); no pointer: those cost
                             // each start a relocation
    int fd; // high, close-on-exec; may have been closed by the program (see pm_file_ready)
    uint64_t dev, ino;
    size_t size;  // of the file
    char *map;    // NULL until mapped
    size_t reach; // bytes mapped, beyond the end of the file
    // A part of a fixed medium (fixed.h) shares its descriptor with the other parts:
    uint64_t at;      // its first byte there; 0: it is a file of its own
    uint64_t room;    // how long it can become
    uint64_t *length; // the word on media that has its length; NULL: it is a file of its own
};

// What a file holds: pmalloc-info counts its space there.
enum pm_file_holds {
    PM_FILE_METADATA,
    PM_FILE_DATA,
    PM_FILE_ROOTS,
    PM_FILE_PROGRAM, // what the program is, whatever is in the heap
    // Nothing of the heap: the name exists only while another file is made, replaced or committed
    // to; or what it stands for is the device's (spare.h, own_limit.h).
    PM_FILE_NOTHING,
};

// Every name that may stand in a heap's directory, once. All code that makes, opens, copies, counts
// or removes the files of a heap goes by this table, so a new file is one line here.
//
//   member    the file's struct pm_file in pm_heap, or in a shard of it (shard.h)
//   held      the file is open while the heap is, and a heap copy has it, too
//   empty     the file is made with the heap or shard, with length 0 (booklog.N: with a header)
//   feature   only a heap with this feature has the file (incompat); 0: every heap
//   share     range / share bytes are mapped, beyond the file's end; 0: the code that uses the file
//             maps what it needs
//
// The superblock is made under the name superblock.new, and gets its own name when all other files
// are there. A removal first gives it that name again, and unlinks that name last. A name that ends
// in a number belongs to that shard.
//
// X(member, name, holds, held, empty, feature, share), and the same after the shard's number
#define PM_SHARD_FILE_TABLE(X, n)                                                                  \
    X(n, data, "heap." #n, PM_FILE_DATA, true, true, 0, 0)                                         \
    X(n, slabs, "slabs." #n, PM_FILE_METADATA, true, true, 0, 1024)                                \
    X(n, log, "booklog." #n, PM_FILE_METADATA, true, true, 0, 1024)                                \
    X(n, bitmaps, "bitmaps." #n, PM_FILE_METADATA, false, false, 0, 0)                             \
    X(n, morph, "morph." #n, PM_FILE_METADATA, true, true, 0, 256)                                 \
    X(n, new_data, "heap." #n ".new", PM_FILE_NOTHING, false, false, 0, 0)

#define PM_HEAP_FILE_TABLE(X, SHARD)                                                               \
    X(super_file, "superblock", PM_FILE_METADATA, true, false, 0, 0)                               \
    X(roots, "roots", PM_FILE_ROOTS, true, true, 0, 0)                                             \
    PM_SHARD_FILE_TABLE(SHARD, 0)                                                                  \
    X(new_super, "superblock.new", PM_FILE_NOTHING, false, false, 0, 0)                            \
    X(journal, "journal", PM_FILE_NOTHING, false, false, PM_INCOMPAT_JOURNAL, 0)                   \
    X(objects, "objects.a", PM_FILE_PROGRAM, false, false, 0, 0)                                   \
    X(other_objects, "objects.b", PM_FILE_PROGRAM, false, false, 0, 0)                             \
    X(types, "types", PM_FILE_PROGRAM, false, false, 0, 0)                                         \
    X(new_types, "types.new", PM_FILE_NOTHING, false, false, 0, 0)                                 \
    X(spare, "spare", PM_FILE_NOTHING, false, false, 0, 0)                                         \
    X(own_limit, "limit", PM_FILE_NOTHING, false, false, 0, 0)                                     \
    X(new_limit, "limit.new", PM_FILE_NOTHING, false, false, 0, 0)

// The files of the other shards follow the files of every heap.
#define PM_MORE_FILES_TABLE(SHARD)                                                                 \
    PM_SHARD_FILE_TABLE(SHARD, 1)                                                                  \
    PM_SHARD_FILE_TABLE(SHARD, 2)                                                                  \
    PM_SHARD_FILE_TABLE(SHARD, 3)                                                                  \
    PM_SHARD_FILE_TABLE(SHARD, 4)                                                                  \
    PM_SHARD_FILE_TABLE(SHARD, 5)                                                                  \
    PM_SHARD_FILE_TABLE(SHARD, 6)                                                                  \
    PM_SHARD_FILE_TABLE(SHARD, 7)                                                                  \
    PM_SHARD_FILE_TABLE(SHARD, 8)                                                                  \
    PM_SHARD_FILE_TABLE(SHARD, 9)                                                                  \
    PM_SHARD_FILE_TABLE(SHARD, 10)                                                                 \
    PM_SHARD_FILE_TABLE(SHARD, 11)                                                                 \
    PM_SHARD_FILE_TABLE(SHARD, 12)                                                                 \
    PM_SHARD_FILE_TABLE(SHARD, 13)                                                                 \
    PM_SHARD_FILE_TABLE(SHARD, 14)                                                                 \
    PM_SHARD_FILE_TABLE(SHARD, 15)
_Static_assert(PM_SLAB_SIZE / sizeof(struct pm_slab_header) == 1024, "the share of slabs.0");

// Its rows: PM_ROW_super_file, ...
#define NUMBER(member, ...) PM_ROW_##member,
#define NUMBER_OF_SHARD(n, member, ...) PM_ROW_##member,
enum { PM_HEAP_FILE_TABLE(NUMBER, NUMBER_OF_SHARD) PM_FIRST_FILES };
#undef NUMBER
#undef NUMBER_OF_SHARD
#define ONE(...) +1
enum { PM_SHARD_FILES = 0 PM_SHARD_FILE_TABLE(ONE, 0) };
#undef ONE
// The rows of all shards; pm_heap_file_count() are the rows of the shards that there are.
#define PM_HEAP_FILES (PM_FIRST_FILES + PM_SHARD_FILES * ((size_t)PM_SHARDS - 1))

// No pointers: they would cost each start of a program a page, for the loader to relocate them.
struct pm_heap_file {
    char name[16];
    uint32_t at; // see pm_heap_file()
    enum pm_file_holds holds;
    bool held, empty;
    uint32_t feature, share;
    unsigned shard; // 0 also for files of the whole heap
};
extern const struct pm_heap_file pm_heap_files[PM_HEAP_FILES];

#endif
