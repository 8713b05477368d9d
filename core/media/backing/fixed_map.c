// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "fixed_map.h"

#include <sys/mman.h>

#include "file.h"

void *pm_medium_map(int fd, void *at, size_t len, int prot, uint64_t offset) {
    static struct pm_file all = {.name = "layout"}; // its name stays (pm_persist_refused)
    all.fd = fd;
    return pm_file_map(&all, at, len, prot, at ? MAP_FIXED : 0, offset);
}
