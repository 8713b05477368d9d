// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "owner_maps.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/os.h"
#include "base/os_file.h"
#include "media/backing/fixed.h"
#include "media/heap.h"
#include "tools/common/program_maps.h"

// Some file systems show other device numbers in the maps than in stat(2). There the name decides.
static bool is_row(const struct source_file *f, size_t row, dev_t dev, uint64_t inode,
                   const char *path) {
    if (f->fd < 0 || inode != f->ino)
        return false;
    const char *name = strrchr(path, '/'), *wanted = pm_heap_files[row].name;
    if (f->room)
        wanted = strrchr(pm_medium_of(pm_heap_file(&pm_heap_files[row]))->path, '/') + 1;
    return dev == f->dev || (name && strcmp(name + 1, wanted) == 0);
}

// Leaves of a mapping of a fixed medium what shows the part. False: it shows nothing of it.
static bool clip_to_part(const struct source_file *f, struct owner_map *map) {
    uint64_t last = map->offset + (map->end - map->start);
    uint64_t from = map->offset > f->at ? map->offset : f->at;
    uint64_t to = f->at + f->room < last ? f->at + f->room : last;
    if (from >= to)
        return false;
    map->end = map->start + (to - map->offset);
    map->start += from - map->offset;
    map->offset = from - f->at;
    return true;
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

struct reading {
    struct owner_maps *maps;
    const struct source *source;
    bool failed;
};

// A mapping of a fixed medium may show several parts.
static void take(const struct program_map *m, void *arg) {
    struct reading *r = arg;
    for (size_t row = 0; m->inode && !r->failed && row < PM_HEAP_FILES; row++) {
        const struct source_file *f = &r->source->file[row];
        struct owner_map map = {m->start, m->end, m->offset, row, !m->private};
        if (!is_row(f, row, m->dev, m->inode, m->name) || (f->room && !clip_to_part(f, &map)))
            continue;
        r->maps->super |= row == PM_ROW_super_file;
        r->failed = !add(r->maps, &map);
        if (!f->room)
            return;
    }
}

bool owner_maps_read(struct owner_maps *m, pid_t pid, const struct source *s) {
    struct reading r = {m, s, false};
    m->count = 0;
    m->super = false;
    if (!program_maps_each(pid, take, &r))
        return false;
    if (r.failed)
        errno = ENOMEM;
    return !r.failed;
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
