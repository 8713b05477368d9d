// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "removed.h"

#include <linux/magic.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/os_file.h"
#include "heap_copy.h"
#include "media/backing/dir_held.h"
#include "media/backing/fixed.h"
#include "media/heap.h"
#include "roots/root_table.h"

_Atomic(const char *) pm_removed_misses;

// Without a name from the start, by choice.
static bool has_names(void) { return pm_heap_on_media() && !pm_heap.nameless; }

// A descriptor that the program has closed tells nothing.
static bool is_removed(const struct pm_file *file) {
    struct stat st;
    return fstat(file->fd, &st) == 0 && st.st_dev == file->dev && st.st_ino == file->ino &&
           st.st_nlink == 0;
}

// The times of the heap's directory at the last look at all files, and whether a later change would
// show in them: a removed name changes them, by the ticks of the kernel's clock.
static struct {
    struct timespec changed;
    bool known;
    bool asked; // whether the file system of `dev` keeps such times
    bool keeps;
    dev_t dev;
} directory;
#define TICKS_NS 50000000

static int64_t in_ns(struct timespec t) { return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec; }

// A file system that keeps no such times would never show a removal. It is asked at the first
// commit, before the program can forbid that by a filter.
static bool keeps_times(const struct stat *st) {
    if (!directory.asked) {
        uint64_t type = pm_os_fs_type(pm_heap.dir_fd);
        directory.keeps = type == EXT4_SUPER_MAGIC || type == XFS_SUPER_MAGIC ||
                          type == TMPFS_MAGIC || type == BTRFS_SUPER_MAGIC;
        directory.dev = st->st_dev;
        directory.asked = true;
    }
    return directory.keeps && directory.dev == st->st_dev;
}

// Whether no name has gone from the directory since the last look. Other volumes have directories
// of their own.
static bool is_untouched(struct stat *st) {
    bool seen = pm_heap.volumes == 1 && pm_dir_stat(st) && keeps_times(st);
    directory.known &= seen && in_ns(st->st_ctim) == in_ns(directory.changed);
    if (!seen)
        st->st_ctim = (struct timespec){0};
    return directory.known;
}

static void note_untouched(const struct stat *st) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    directory.changed = st->st_ctim;
    directory.known = st->st_ctim.tv_sec && in_ns(now) - in_ns(st->st_ctim) > TICKS_NS;
}

static bool any_is_removed(void) {
    struct stat st;
    if (is_untouched(&st))
        return false;
    bool removed = is_removed(&pm_heap.super_file);
    for (size_t i = 0; i < pm_heap_file_count() && !removed; i++)
        removed = pm_heap_holds(&pm_heap_files[i]) && is_removed(pm_heap_file(&pm_heap_files[i]));
    if (!removed)
        note_untouched(&st);
    return removed;
}

bool pm_removed(bool all) {
    if (!has_names() || pm_fixed_is_open())
        return false;
    return all ? any_is_removed() : is_removed(&pm_heap.super_file);
}

// The directory of the default heaps goes with them.
static void make_parent(void) {
    char parent[sizeof pm_heap.dir];
    strcpy(parent, pm_heap.dir);
    char *slash = strrchr(parent, '/');
    if (slash && slash != parent) {
        *slash = '\0';
        mkdir(parent, 0700);
    }
}

int pm_removed_mend(struct pm_error *err) {
    const char *misses = atomic_load_explicit(&pm_removed_misses, memory_order_relaxed);
    if (misses)
        return pm_fail(err, PM_OPERATIONAL, "a seccomp filter forbids %s", misses);
    make_parent();
    if (pm_heap_copy_make(err) != PM_OK)
        return err->status;
    if (pm_roots_remap(err) != PM_OK)
        pm_refuse(pm_event_of(err), "%s", err->text); // some roots are another heap's
    bool named = pm_heap_copy_take_place(err) == PM_OK;
    pm_event(PM_EV_HEAP_REWRITTEN,
             "the files of the heap were removed while the program used it; all of it has been "
             "written again, %s %s",
             named ? "to" : "but", named ? pm_heap.dir : err->text);
    return PM_OK;
}

// ---- the line at the start ----------------------------------------------------------------------

#define SYSTEM_USERS 1000u // below this number, usually

static bool lies_in(const char *dir, const char *parent) {
    return strncmp(dir, parent, strlen(parent)) == 0;
}

const char *pm_removed_by(const char *dir) {
    if (access("/run/systemd/system", F_OK) != 0)
        return NULL;
    if (lies_in(dir, "/dev/shm/") && geteuid() >= SYSTEM_USERS)
        return "systemd-logind removes it at this user's last logout unless RemoveIPC=no";
    if (lies_in(dir, "/tmp/") || lies_in(dir, "/var/tmp/"))
        return "systemd-tmpfiles may remove it by age while no program uses it (tmpfiles.d)";
    return NULL;
}
