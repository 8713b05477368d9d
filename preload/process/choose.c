// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "choose.h"
#include "choose_name.h"
#include "choose_tidy.h"
#include "descent.h"
#include "imports.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/options.h"
#include "base/os.h"
#include "media/backing/volume.h"
#include "media/commit/doubt.h"
#include "media/heap.h"
#include "media/heap_files.h"
#include "media/open/heap_dir.h"
#include "media/open/heap_open.h"
#include "media/open/heap_patient.h"
#include "roots/program.h"

#define DEFAULT_ROOM ((uint64_t)256 << 20)
#define SELF_TRIES 5000 // milliseconds
#define GONE_TRIES 500

int pm_left_out(bool *out, struct pm_error *err) {
    char name[256];
    *out = pm_options.backing.number == PM_BACKING_VOLATILE;
    if (*out || !pm_options.program.text[0])
        return PM_OK;
    int status = pm_choose_program(name, sizeof name, err);
    *out = status == PM_OK && fnmatch(pm_options.program.text, name, 0) != 0;
    return status;
}

// The process runs on volatile memory, for this reason.
__attribute__((format(printf, 2, 3))) static void go_without(struct pm_chosen *chosen,
                                                             const char *format, ...) {
    static char why[512];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    chosen->without_heap = true;
    chosen->why = why;
}

static void explain_left_out(struct pm_chosen *chosen) {
    char name[256] = "";
    if (pm_options.backing.number == PM_BACKING_VOLATILE)
        chosen->why = "PMALLOC_BACKING=volatile";
    else if (pm_os_program_name(name, sizeof name))
        go_without(chosen, "PMALLOC_PROGRAM=%.200s does not match %s", pm_options.program.text,
                   name);
}

// Whether the heap has captured roots: without any, its file `roots` is empty.
static bool keeps_something(const char *dir) {
    char path[PM_CHOSEN_NAME + 8];
    struct stat st;
    snprintf(path, sizeof path, "%s/roots", dir);
    return *dir && lstat(path, &st) == 0 && st.st_size > 0;
}

// A default heap cannot be used. If it has data, the user hears of it unasked.
static void miss(struct pm_chosen *chosen, const char *dir, const char *why) {
    go_without(chosen, "%s", why);
    if (!pm_options.verbose.number && keeps_something(dir))
        pm_event(PM_EV_ON_VOLATILE_MEMORY, "%s; running on volatile memory", why);
}

bool pm_choose_volatile(struct pm_chosen *chosen, const struct pm_error *err) {
    if (err->status != PM_OPERATIONAL || pm_heap_on_media() || !chosen->default_heap ||
        pm_options.roots.text[0])
        return false;
    miss(chosen, chosen->own, err->text);
    return true;
}

// Waits while the heap is busy only for a moment, in one of three cases. The owner is this process
// itself, before it executed this program: a child that it started has the descriptors until the
// child executes a program, too. Or the owner has ended, and such a child of it is left. Or another
// start is looking at the heap, because it removes the default heaps of dead programs.
static int wait_for_exec(const char *dir, enum pm_open_mode mode, int tries, struct pm_error *err) {
    const struct timespec tick = {.tv_nsec = 1000000};
    int status = PM_OPERATIONAL;
    for (; tries > 0 && status != PM_OK; tries--) {
        nanosleep(&tick, NULL);
        status = pm_heap_open(dir, mode, false, err);
        if (status != PM_OK && !pm_is_busy(err))
            return status;
    }
    return status;
}

static bool lives(const struct pm_holder *owner) {
    return owner->start == pm_os_start_time(owner->pid);
}

// Whether a program from which this one descends has had the heap, and has a private copy of it
// since its first fork (PMALLOC_FORK=follow). Under `private` that program still owns the heap.
static bool descends_from_copy(const char *dir) {
    const char *data = pm_heap_files[PM_ROW_data].name;
    char path[PATH_MAX];
    struct stat st;
    if (pm_options.fork.number != PM_FORK_FOLLOW)
        return false;
    snprintf(path, sizeof path, "%.*s/%s", (int)pm_volume_first(dir), dir, data);
    return stat(path, &st) == 0 && pm_os_ancestor_maps(data, st.st_ino);
}

// A child of a program has inherited the settings, and executes another program: that one runs on
// volatile memory, silently.
static void descend(const char *dir, struct pm_chosen *chosen) {
    go_without(chosen, "%.300s is the heap of a program from which this one descends", dir);
}

// The directory of another user, or below one.
static bool is_anothers(const char *dir) {
    char path[PATH_MAX];
    struct stat st;
    snprintf(path, sizeof path, "%.*s", (int)pm_volume_first(dir), dir);
    return stat(path, &st) == 0 ? st.st_uid != geteuid() : errno == EACCES;
}

static int open_or_descend(const char *dir, enum pm_open_mode mode, struct pm_chosen *chosen,
                           struct pm_error *err) {
    int status = pm_heap_open_patient(dir, mode, err);
    if (status == PM_OPERATIONAL &&
        (pm_is_busy(err) ? pm_descends_from_hidden_owner(dir, &err->holder)
                         : is_anothers(dir) && pm_descends_from_owner(dir))) {
        descend(dir, chosen);
        return PM_OK;
    }
    if (status == PM_OK || !pm_is_busy(err))
        return status;
    bool there = lives(&err->holder);
    if (!there || err->holder.pid == getpid()) {
        status = wait_for_exec(dir, mode, there ? SELF_TRIES : GONE_TRIES, err);
        if (status == PM_OK || !pm_is_busy(err) || there)
            return status;
    }
    // A descendant of the owner has inherited the settings. It runs on volatile memory, silently.
    if (pm_os_is_ancestor(err->holder.pid, err->holder.start)) {
        go_without(chosen, "%.300s is in use by process %d, from which this one descends", dir,
                   (int)err->holder.pid);
        return PM_OK;
    }
    if (descends_from_copy(dir) || pm_descends_from_owner(dir)) {
        descend(dir, chosen);
        return PM_OK;
    }
    bool wait = pm_options.busy.number == PM_BUSY_WAIT;
    return wait ? pm_heap_open(dir, mode, true, err) : status;
}

static int open_named(const char *dir, enum pm_open_mode mode, struct pm_chosen *chosen,
                      struct pm_error *err) {
    int status = open_or_descend(dir, mode, chosen, err);
    // Under `follow` the child has taken the heap before it has executed this program.
    if (status != PM_OK || chosen->without_heap || mode != PM_OPEN_CREATE || pm_heap.created ||
        !pm_heap_has_roots() || pm_program_is_known() || !descends_from_copy(dir))
        return status;
    pm_heap_release();
    descend(dir, chosen);
    return PM_OK;
}

// PMALLOC_OPEN=private. A program that a borrower starts has inherited the settings. If it is the
// heap's own program, it borrows the heap, too. Else it runs on volatile memory, silently.
static int open_borrowed(struct pm_chosen *chosen, struct pm_error *err) {
    const char *dir = pm_options.heap.text;
    if (!dir[0])
        return pm_fail(err, PM_USAGE,
                       "PMALLOC_OPEN=private: no heap is named; set PMALLOC_HEAP to a heap that "
                       "exists");
    int status = open_named(dir, PM_OPEN_READONLY, chosen, err);
    if (status != PM_OK || chosen->without_heap)
        return status;
    if (!pm_program_is_known() &&
        pm_os_ancestor_maps(pm_heap.super_file.name, pm_heap.super_file.ino)) {
        pm_heap_release();
        go_without(chosen, "a process from which this one descends has %.300s open privately", dir);
        return PM_OK;
    }
    pm_doubt_say();
    return PM_OK;
}

// ---- without a heap -----------------------------------------------------------------------------

static int is_ours(struct dl_phdr_info *object, size_t size, void *unused) {
    const char *slash = strrchr(object->dlpi_name, '/');
    (void)size, (void)unused;
    return strncmp(slash ? slash + 1 : object->dlpi_name, "libpmalloc.so", 13) == 0;
}

static bool names_something(void) {
    return pm_options.heap.text[0] || pm_options.roots.text[0] || pm_options.commit.text[0] ||
           pm_options.commit_dir.text[0] || pm_options.open.number == PM_OPEN_PRIVATE;
}

// A heap that may get a root, but that nothing asks for: it has no name until it has a root
// (choose_name.h). A forked child that takes over the heap or copies it needs the name.
static bool may_be_nameless(const struct pm_chosen *chosen) {
    return !names_something() && chosen->linked && pm_options.fork.number == PM_FORK_PRIVATE;
}

// Only "no such file" says that a heap is missing. Whatever else fails, opening it says why.
static bool is_there(const char *dir) { return access(dir, F_OK) == 0 || errno != ENOENT; }

// A default heap that is there may have roots. A user who has none at all shall not pay for the
// program's name: that costs more than all else here, as /proc makes a directory for the process. A
// directory without directories has two links, its name and its `.`; on some file systems all have
// one.
static bool has_default_heap(void) {
    char name[256], dir[512];
    struct stat st;
    pm_choose_path(dir, sizeof dir, NULL);
    if (stat(dir, &st) != 0)
        return errno != ENOENT; // opening it says why
    if (st.st_nlink == 2 || !pm_os_program_name(name, sizeof name))
        return false;
    pm_choose_path(dir, sizeof dir, name);
    return is_there(dir);
}

// Each start of most programs comes here. So this text is composed of nothing.
static void start_without(struct pm_chosen *chosen) {
    chosen->without_heap = true;
    chosen->why =
        "neither PMALLOC_HEAP nor PMALLOC_ROOTS is set, so no later run could find a heap";
}

static void wait_for_call(struct pm_chosen *chosen) {
    chosen->without_heap = chosen->by_call = true;
    chosen->why = "the program opens its heap by pmalloc_open(), and has not done so";
}

int pm_choose_none(struct pm_chosen *chosen, bool by_call, struct pm_error *err) {
    *chosen = (struct pm_chosen){.why = ""};
    chosen->linked = dl_iterate_phdr(is_ours, NULL) != 0;
    int status = pm_left_out(&chosen->left_out, err);
    chosen->without_heap = chosen->left_out;
    if (chosen->left_out)
        explain_left_out(chosen);
    else if (status == PM_OK && !names_something() &&
             (by_call || (chosen->linked && pm_imports("pmalloc_open"))))
        wait_for_call(chosen);
    else if (status == PM_OK && !names_something() && !chosen->linked && !has_default_heap())
        start_without(chosen);
    return status;
}

// ---- a default heap -----------------------------------------------------------------------------

// A small /dev/shm, as in containers, is soon full. Then the program would run out of memory for
// the sake of a heap that nothing can reach later.
static bool little_room(const char *dir) {
    struct statvfs fs;
    return statvfs(dir, &fs) == 0 && fs.f_blocks != 0 &&
           (uint64_t)fs.f_bavail * fs.f_frsize < DEFAULT_ROOM;
}

// On the file system that can give it its name, and not if its directory could not be used then.
static bool open_nameless(const struct pm_chosen *chosen, struct pm_error *err) {
    char parent[64];
    int fd;
    if (!may_be_nameless(chosen) ||
        pm_choose_parent(parent, sizeof parent, false, &fd, err) != PM_OK)
        return false;
    if (fd >= 0)
        close(fd);
    return pm_heap_open_nameless(fd >= 0 ? parent : DEFAULTS_IN, chosen->own, err) == PM_OK;
}

// There is no default heap. Where unnamed files cannot be made, one has a name at once.
static int open_missing(struct pm_chosen *chosen, struct pm_error *err) {
    if (!names_something() && !chosen->linked) {
        start_without(chosen);
        return PM_OK;
    }
    if (open_nameless(chosen, err))
        return PM_OK;
    return pm_heap_open(chosen->own, PM_OPEN_CREATE, false, err);
}

static int open_there(struct pm_chosen *chosen, struct pm_error *err) {
    const char *dir = chosen->own;
    // It may have roots. So if its owner is just ending, wait for that.
    int status = pm_heap_open_patient(dir, PM_OPEN_CREATE, err);
    if (status != PM_OK && pm_is_busy(err) && !lives(&err->holder))
        status = wait_for_exec(dir, PM_OPEN_CREATE, GONE_TRIES, err);
    if (status != PM_OK || pm_heap.created || pm_heap_has_roots())
        return status;
    // The owner was killed. Without roots nothing can reach what it has left.
    pm_heap_remove();
    pm_heap_release();
    return open_missing(chosen, err);
}

// The heap PROGRAM is there and cannot be used, which the error says, and the next one is missing.
// Descendants of the heap's owner have inherited its settings, so they hear nothing.
static int open_beside(struct pm_chosen *chosen, const char *name, const struct pm_error *first,
                       bool heard, struct pm_error *err) {
    char dir[PM_CHOSEN_NAME];
    if (names_something() || chosen->linked)
        return open_missing(chosen, err);
    pm_choose_path(dir, sizeof dir, name);
    if (heard)
        go_without(chosen, "%s", first->text);
    else
        miss(chosen, dir, first->text);
    return PM_OK;
}

// Opens the heap PROGRAM or, while heaps are busy, PROGRAM.2, .3, and so on. A heap that is
// damaged, or another build's, may have somebody's data, so it is left as it is. It must not keep
// programs of that name from running, so the next one is tried.
static int open_spare(struct pm_chosen *chosen, const char *name, struct pm_error *err) {
    char *dir = chosen->own, *end = dir + strlen(dir);
    bool keep = !names_something(); // a heap that is missing is not made, at least not there
    bool heard = false;
    struct pm_error first;
    for (unsigned n = 1; n <= DEFAULT_HEAPS; n++) {
        if (n > 1)
            snprintf(end, sizeof chosen->own - (size_t)(end - dir), ".%u", n);
        // Another start may make the missing heap at the same time. Then it is busy, too.
        int status = !keep || is_there(dir) ? open_there(chosen, err)
                     : n == 1               ? open_missing(chosen, err)
                                            : open_beside(chosen, name, &first, heard, err);
        bool strange = status == PM_DAMAGE || (status != PM_OK && err->why == PM_WHY_FOREIGN);
        if (strange)
            pm_event(PM_EV_DEFAULT_HEAP_PASSED, "%s; left as it is, taking the next default heap",
                     err->text);
        else if (status == PM_OK || !pm_is_busy(err))
            return status;
        if (n == 1) {
            first = *err;
            heard = strange || pm_os_is_ancestor(err->holder.pid, err->holder.start);
        }
    }
    return pm_fail(err, PM_OPERATIONAL, "all default heaps of %s are busy; set PMALLOC_HEAP", name);
}

static int open_default(struct pm_chosen *chosen, struct pm_error *err) {
    char name[256], parent[64], *dir = chosen->own;
    int fd, status = pm_choose_program(name, sizeof name, err);
    if (status == PM_OK && strchr(name, ':'))
        status = pm_fail(err, PM_OPERATIONAL,
                         "%.200s has a colon in its name, which would separate two directories of "
                         "its heap; set PMALLOC_HEAP",
                         name);
    if (status == PM_OK)
        pm_choose_path(dir, sizeof chosen->own, name);
    // Even the directory of the default heaps waits for a root.
    if (status == PM_OK && !is_there(dir) && !little_room(DEFAULTS_IN) &&
        open_nameless(chosen, err))
        return PM_OK;
    if (status == PM_OK)
        status = pm_choose_parent(parent, sizeof parent, true, &fd, err);
    if (status != PM_OK)
        return status;
    pm_choose_tidy(fd, parent, name);
    close(fd);
    if (little_room(parent) && !pm_options.roots.text[0] && !is_there(dir)) {
        go_without(chosen,
                   "%.300s would have too little room; set PMALLOC_HEAP to use a heap elsewhere",
                   dir);
        return PM_OK;
    }
    // With roots the program wants its data, not a new heap beside them.
    if (pm_options.roots.text[0])
        return open_named(dir, PM_OPEN_CREATE, chosen, err);
    return open_spare(chosen, name, err);
}

int pm_choose_heap(struct pm_chosen *chosen, struct pm_error *err) {
    if (pm_options.open.number == PM_OPEN_PRIVATE)
        return open_borrowed(chosen, err);
    if (pm_options.heap.text[0])
        return open_named(pm_options.heap.text, PM_OPEN_CREATE, chosen, err);
    chosen->default_heap = true;
    return open_default(chosen, err);
}

int pm_choose_called(const char *dir, bool existing, struct pm_error *err) {
    struct pm_chosen chosen = {0};
    int status = open_named(dir, existing ? PM_OPEN_EXISTING : PM_OPEN_CREATE, &chosen, err);
    return chosen.without_heap ? pm_fail(err, PM_OPERATIONAL, "%s", chosen.why) : status;
}
