// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "medium.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/options.h"
#include "image.h"
#include "media.h"
#include "media/backing/fixed_format.h"
#include "media/fixed/fixed_make.h"
#include "record.h"
#include "recovery/offline.h"

static char paths[MEDIA][192];

static void done(int status, const struct pm_error *err) {
    if (status == PM_OK)
        return;
    fprintf(stderr, "crash: %s\n", err->text);
    _exit(4);
}

// From here on so many bytes of each medium have a shadow.
static void set_shadow(uint64_t bytes) {
    for (unsigned file = F_MEDIUM; file < F_MEDIUM + MEDIA; file++)
        if (bytes < world->shadow[file].size)
            media_punch(file, bytes, world->shadow[file].size);
    world->medium_shadow = bytes;
    record_rescan();
}

static void begin(void) {
    for (unsigned i = 0; i < MEDIA; i++)
        medium_path(paths[i], sizeof paths[i], "heap", i);
    set_shadow(SHADOW_BYTES);
    pm_options_default();
}

static void end(void) {
    image_point(SITE_DATA, 0);
    set_shadow(MEDIUM_HEAD);
}

// An interruption may leave a file without its space, which nobody can use.
static bool usable(const char *path) {
    struct stat st;
    if (stat(path, &st) != 0)
        return false;
    if ((uint64_t)st.st_size >= MEDIUM_BYTES)
        return true;
    unlink(path);
    record_rescan();
    return false;
}

static void make(bool copy) {
    struct pm_fixed_made made[MEDIA];
    struct pm_error err;
    const char *const where[MEDIA] = {paths[0], paths[1]};
    struct pm_fixed_wish wish = {.size = MEDIUM_BYTES, .copy = copy};
    for (unsigned i = 0; i < media_count(); i++)
        wish.force |= usable(paths[i]);
    done(pm_fixed_make(where, media_count(), &wish, made, &err), &err);
}

static bool holds_heap(void) {
    uint64_t magic = 0;
    int fd = open(paths[0], O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool good = pread(fd, &magic, sizeof magic, 0) == sizeof magic && magic == PM_LAYOUT_MAGIC;
    close(fd);
    return good;
}

void medium_need(void) {
    begin();
    if (!holds_heap())
        make(false);
    end();
}

void medium_make_anew(void) {
    begin();
    make(false);
    end();
}

void medium_copy(void) {
    char dir[192];
    struct pm_error err;
    begin();
    snprintf(dir, sizeof dir, "%s/heap", world->root);
    done(pm_offline_open(dir, PM_OPEN_READONLY, &err), &err);
    make(true);
    end();
}

void medium_grow(uint64_t bytes, bool force) {
    struct pm_fixed_made made;
    struct pm_error err;
    begin();
    for (unsigned i = 0; i < media_count(); i++) {
        int fd = open(paths[i], O_RDWR | O_CLOEXEC);
        if (fd < 0 || fallocate(fd, 0, 0, (off_t)bytes) != 0) // a copy of a medium may have holes
            _exit(4);
        close(fd);
        done(pm_fixed_grow(paths[i], bytes, force, &made, &err), &err);
    }
    end();
}
