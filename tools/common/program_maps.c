// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "program_maps.h"

#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>

bool program_maps_each(pid_t pid, void each(const struct program_map *m, void *arg), void *arg) {
    char path[32], line[4096 + 256], rights[5];
    unsigned long start, end, offset, inode;
    unsigned major_number, minor_number;
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *in = fopen(path, "re");
    if (!in)
        return false;
    while (fgets(line, sizeof line, in)) {
        int name = 0;
        if (sscanf(line, "%lx-%lx %4s %lx %x:%x %lu %n", &start, &end, rights, &offset,
                   &major_number, &minor_number, &inode, &name) < 7)
            continue;
        line[strcspn(line, "\n")] = '\0';
        struct program_map m = {.start = start,
                                .end = end,
                                .offset = offset,
                                .writable = rights[1] == 'w',
                                .executable = rights[2] == 'x',
                                .private = rights[3] == 'p',
                                .dev = makedev(major_number, minor_number),
                                .inode = inode,
                                .name = name ? line + name : ""};
        each(&m, arg);
    }
    fclose(in);
    return true;
}
