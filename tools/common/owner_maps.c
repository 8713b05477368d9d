// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "owner_maps.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "base/os.h"
#include "base/os_file.h"
#include "media/heap.h"

// Some file systems show other device numbers in the maps than in stat(2). There the name decides.
static bool is_row(const struct source_file *f, size_t row, dev_t dev, uint64_t inode,
                   const char *path) {
    if (f->fd < 0 || inode != f->ino)
        return false;
    const char *name = strrchr(path, '/');
    return dev == f->dev || (name && strcmp(name + 1, pm_heap_files[row].name) == 0);
}

static bool add(struct owner_maps *m, const struct owner_map *map) {
    if (m->count == m->room) {
        size_t room = m->room ? m->room * 2 : 64;
        struct owner_map *more = realloc(m->map, room * sizeof *more);
        if (!more)
            return false;
        m->map = more;
        m->room = room;
    }
    m->map[m->count++] = *map;
    return true;
}

static bool take_line(struct owner_maps *m, char *line, const struct source *s) {
    unsigned long start, end, offset, inode;
    unsigned major_number, minor_number;
    char rights[5];
    int path = 0;
    if (sscanf(line, "%lx-%lx %4s %lx %x:%x %lu %n", &start, &end, rights, &offset, &major_number,
               &minor_number, &inode, &path) < 7 ||
        !inode || !path)
        return true;
    line[strcspn(line, "\n")] = '\0';
    for (size_t row = 0; row < PM_HEAP_FILES; row++) {
        if (!is_row(&s->file[row], row, makedev(major_number, minor_number), inode, line + path))
            continue;
        m->super |= row == PM_ROW_super_file;
        struct owner_map map = {start, end, offset, row, rights[3] == 's'};
        return add(m, &map);
    }
    return true;
}

bool owner_maps_read(struct owner_maps *m, pid_t pid, const struct source *s) {
    char path[32], line[4096 + 256];
    bool good = true;
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *in = fopen(path, "re");
    m->count = 0;
    m->super = false;
    if (!in)
        return false;
    while (good && fgets(line, sizeof line, in))
        good = take_line(m, line, s);
    if (!good)
        errno = ENOMEM;
    fclose(in);
    return good;
}

static bool has_it(const struct source *s, struct owner_maps *m, pid_t pid) {
    return pid > 0 && owner_maps_read(m, pid, s) && m->super;
}

pid_t owner_find(const struct source *s, struct owner_maps *m) {
    const struct pm_state *state = &pm_heap.super->state;
    const struct source_file *super = &s->file[PM_ROW_super_file];
    pid_t pid = (pid_t)state->owner_pid;
    if (state->owner_start == pm_os_start_time(pid) && has_it(s, m, pid))
        return pid;
    pid = pm_os_who_has_open(super->dev, super->ino);
    return has_it(s, m, pid) ? pid : 0;
}
