// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "media/backing/fixed.h"
#include "media/backing/volume.h"

static void sum_up(struct files *files, const struct pm_heap_file *f, struct file_space *space) {
    if (f->holds == PM_FILE_DATA) {
        files->heap_bytes += space->length;
        files->data_bytes += space->allocated;
    } else if (f->holds == PM_FILE_METADATA) {
        files->metadata_bytes += space->allocated;
    }
}

// The parts of a fixed medium have all their space for good. So we count how much was in use.
static void measure_parts(struct files *files) {
    for (size_t i = 0; i < PM_HEAP_FILES; i++) {
        const struct pm_heap_file *f = &pm_heap_files[i];
        struct file_space *space = &files->file[files->count];
        const struct pm_file *part = pm_heap_file(f);
        bool absent = f->holds == PM_FILE_PROGRAM && !part->size;
        if (f->holds == PM_FILE_NOTHING || !part->length || absent)
            continue;
        files->count++;
        memcpy(space->name, f->name, sizeof f->name);
        space->length = space->allocated = pm_heap_file(f)->size;
        sum_up(files, f, space);
    }
}

static int failed(const char *dir, const char *name, struct pm_error *err) {
    return pm_fail(err, PM_OPERATIONAL, "%.300s/%s: %s", dir, name, pm_strerror(errno));
}

int files_measure(int dir_fd, const char *dir, struct files *files, struct pm_error *err) {
    *files = (struct files){0};
    if (pm_fixed_is_open()) {
        measure_parts(files);
        return PM_OK;
    }
    for (size_t i = 0; i < PM_HEAP_FILES; i++) {
        const struct pm_heap_file *f = &pm_heap_files[i];
        struct stat st;
        if (f->holds == PM_FILE_NOTHING)
            continue;
        struct file_space *space = &files->file[files->count];
        bool there = pm_volume_find(dir_fd, f, space->name);
        if (!there && errno != ENOENT)
            return failed(dir, space->name, err);
        if (!there && (f->shard || f->holds == PM_FILE_PROGRAM))
            continue;
        files->count++;
        if (!there)
            continue;
        if (fstatat(dir_fd, space->name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
            if (errno == ENOENT) // a heap in use loses files at times
                continue;
            return failed(dir, space->name, err);
        }
        space->length = (uint64_t)st.st_size;
        space->allocated = (uint64_t)st.st_blocks * 512;
        sum_up(files, f, space);
    }
    return PM_OK;
}
