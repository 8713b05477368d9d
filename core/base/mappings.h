// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What the kernel says is mapped in this process.
#ifndef PM_MAPPINGS_H
#define PM_MAPPINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

// Who opens the list, reads it and closes it. At first this thread does, in the program's table of
// descriptors (proc.h sets another).
struct pm_mappings_door {
    int (*open)(const char *path, int flags); // below /proc
    ssize_t (*read)(int fd, void *to, size_t size);
    void (*close)(int fd);
};
extern const struct pm_mappings_door *pm_mappings_door;

// Calls `fn` for each mapping that overlaps [from, to), by rising address, with its part there and
// PROT_*. False: the kernel does not say; `fn` may have been called.
typedef void pm_mapping_fn(uint64_t from, uint64_t to, int access, void *arg);
bool pm_mappings_each(uint64_t from, uint64_t to, pm_mapping_fn *fn, void *arg);

#endif
