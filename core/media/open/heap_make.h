// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Making the files of a heap: in a directory, or without names.
//
// A heap without names (pm_heap.nameless) is for a program that may come to have a root, but has
// none yet. Its files are unnamed ones (O_TMPFILE), so the kernel frees them with the process,
// however that ends. pm_dir_name() gives them their names, in a directory of their file system.
#ifndef PM_HEAP_MAKE_H
#define PM_HEAP_MAKE_H

#include <limits.h>
#include <stdbool.h>

#include "media/heap.h"

// What a directory has that has no superblock.
struct pm_dir_names {
    char stranger[NAME_MAX + 1]; // the first one that is not a heap's
    unsigned shards;             // that have a name there: the first ones, or more
    bool volumes;                // a name of one is there
    bool backup;                 // a name of one is there
};

// Makes a heap in pm_heap's directory, which is locked. A remnant with the files of `names` may lie
// there.
int pm_make_files(const struct pm_dir_names *names, struct pm_error *err);

// Opens the files of a new heap without names, on the file system of the directory `where`.
// Messages call it `what`, the directory that it may get. On failure none is open.
int pm_make_nameless(const char *where, const char *what, struct pm_error *err);
// Makes a file of the heap, empty but for a log's header: in pm_heap's directory, or without a name
// and open. With `sync` it is durable. False, with errno.
bool pm_make_file(const struct pm_heap_file *f, bool sync);
// Links the files of such a heap into pm_heap's directory, which is locked and empty. Called with
// the lock of shard 0: so no shard comes meanwhile.
int pm_make_names(struct pm_error *err);

// Fails with errno's text about `what` in pm_heap's directory.
int pm_make_reason(struct pm_error *err, const char *what);

#endif
