// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "removed.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "heap_copy.h"
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

bool pm_removed(bool all) {
    if (!has_names() || pm_fixed_is_open())
        return false;
    bool removed = is_removed(&pm_heap.super_file);
    for (size_t i = 0; i < pm_heap_file_count() && all && !removed; i++)
        removed = pm_heap_holds(&pm_heap_files[i]) && is_removed(pm_heap_file(&pm_heap_files[i]));
    return removed;
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
        pm_refuse("%s", err->text); // some roots are another heap's
    bool named = pm_heap_copy_take_place(err) == PM_OK;
    pm_say("the files of the heap were removed while the program used it; all of it has been "
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
