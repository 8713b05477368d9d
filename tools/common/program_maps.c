// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "program_maps.h"

#include <stdio.h>
#include <string.h>

bool program_maps_each(pid_t pid, void each(const struct program_map *m, void *arg), void *arg) {
    char path[32], line[4096 + 256], rights[5];
    unsigned long start, end, offset;
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *in = fopen(path, "re");
    if (!in)
        return false;
    while (fgets(line, sizeof line, in)) {
        int name = 0;
        if (sscanf(line, "%lx-%lx %4s %lx %*x:%*x %*u %n", &start, &end, rights, &offset, &name) <
            4)
            continue;
        line[strcspn(line, "\n")] = '\0';
        struct program_map m = {
            start, end, offset, rights[1] == 'w', rights[3] == 'p', name ? line + name : ""};
        each(&m, arg);
    }
    fclose(in);
    return true;
}
