// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "choice.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "heap.h"
#include "options.h"
#include "os.h"

#define DEFAULT_HEAPS 10000
#define DEFAULT_ROOM ((uint64_t)256 << 20)
#define SELF_TRIES 5000 // milliseconds
#define GONE_TRIES 500

static int program_name(char *name, size_t size, struct pm_error *err) {
    if (pm_os_program_name(name, size))
        return PM_OK;
    return pm_fail(err, PM_OPERATIONAL,
                   "cannot find out this program's name: /proc/self/exe: %s; unset PMALLOC_PROGRAM "
                   "and set PMALLOC_HEAP",
                   strerror(errno));
}

int pm_left_out(bool *out, struct pm_error *err) {
    char name[256];
    *out = pm_options.backing.number == PM_BACKING_VOLATILE;
    if (*out || !pm_options.program.text[0])
        return PM_OK;
    int status = program_name(name, sizeof name, err);
    *out = status == PM_OK && fnmatch(pm_options.program.text, name, 0) != 0;
    return status;
}

static void explain_left_out(struct pm_choice *choice) {
    char name[256] = "";
    if (pm_options.backing.number == PM_BACKING_VOLATILE)
        snprintf(choice->why, sizeof choice->why, "PMALLOC_BACKING=volatile");
    else if (pm_os_program_name(name, sizeof name))
        snprintf(choice->why, sizeof choice->why, "PMALLOC_PROGRAM=%.200s does not match %s",
                 pm_options.program.text, name);
}

// What was captured of roots is in their file; without any it is empty.
static bool keeps_something(const struct pm_choice *choice) {
    char path[sizeof choice->own + 8];
    struct stat st;
    snprintf(path, sizeof path, "%s/roots", choice->own);
    return choice->own[0] && lstat(path, &st) == 0 && st.st_size > 0;
}

bool pm_choose_volatile(struct pm_choice *choice, const struct pm_error *err) {
    if (err->status != PM_OPERATIONAL || pm_heap.persistent || !choice->default_heap ||
        pm_options.roots.text[0])
        return false;
    choice->without_heap = true;
    snprintf(choice->why, sizeof choice->why, "%s", err->text);
    if (!pm_options.verbose.number && keeps_something(choice))
        pm_say("%s; running on volatile memory", err->text);
    return true;
}

// The holder is this very process, before it executed itself, or has ended: a child that it started has its
// descriptors until its own exec has got to closing them. Or another start looks whether a dead owner's heap can go.
static int wait_for_exec(const char *dir, int tries, struct pm_error *err) {
    const struct timespec tick = {.tv_nsec = 1000000};
    int status = PM_OPERATIONAL;
    for (; tries > 0 && status != PM_OK; tries--) {
        nanosleep(&tick, NULL);
        status = pm_heap_open(dir, PM_OPEN_CREATE, false, err);
        if (status != PM_OK && !pm_heap.busy)
            return status;
    }
    return status;
}

static int open_named(const char *dir, struct pm_choice *choice, struct pm_error *err) {
    int status = pm_heap_open(dir, PM_OPEN_CREATE, false, err);
    if (status == PM_OK || !pm_heap.busy)
        return status;
    bool lives = pm_heap.busy_start == pm_os_start_time(pm_heap.busy_pid);
    if (!lives || pm_heap.busy_pid == getpid()) {
        status = wait_for_exec(dir, lives ? SELF_TRIES : GONE_TRIES, err);
        if (status == PM_OK || !pm_heap.busy || lives)
            return status;
    }
    // A descendant of the owner inherited the environment; it runs on volatile memory, quietly.
    if (pm_os_is_ancestor(pm_heap.busy_pid, pm_heap.busy_start)) {
        choice->without_heap = true;
        snprintf(choice->why, sizeof choice->why,
                 "%.300s is in use by process %d, from which this one descends", dir,
                 (int)pm_heap.busy_pid);
        return PM_OK;
    }
    bool wait = pm_options.busy.number == PM_BUSY_WAIT;
    return wait ? pm_heap_open(dir, PM_OPEN_CREATE, true, err) : status;
}

// Fills `dir` with the directory of this user's default heaps, opens it, and makes it where it is missing.
static int default_parent(char *dir, size_t size, int *fd, struct pm_error *err) {
    unsigned user = geteuid();
    snprintf(dir, size, "/dev/shm/pmalloc-%u", user);
    *fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (*fd < 0 && errno == ENOENT) {
        if (mkdir(dir, 0700) != 0 && errno != EEXIST)
            return pm_fail(err, PM_OPERATIONAL, "%s: cannot make the default heaps' directory: %s",
                           dir, strerror(errno));
        *fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    }
    if (*fd < 0 && errno != ENOTDIR && errno != ELOOP)
        return pm_fail(err, PM_OPERATIONAL, "%s: cannot open the default heaps' directory: %s", dir,
                       strerror(errno));
    struct stat st;
    if (*fd >= 0 && fstat(*fd, &st) == 0 && st.st_uid == user && !(st.st_mode & 022))
        return PM_OK;
    if (*fd >= 0)
        close(*fd);
    return pm_fail(err, PM_OPERATIONAL,
                   "%s is not a directory of user %u alone; remove it or set PMALLOC_HEAP", dir,
                   user);
}

// PROGRAM, or PROGRAM.2, .3, ... while those are busy. A damaged one may hold somebody's data, so it is left as it is;
// it must not keep every program of that name from running.
static int open_spare(char *dir, size_t room, const char *name, struct pm_error *err) {
    char *end = dir + strlen(dir);
    for (unsigned n = 1; n <= DEFAULT_HEAPS; n++) {
        if (n > 1)
            snprintf(end, room, ".%u", n);
        int status = pm_heap_open(dir, PM_OPEN_CREATE, false, err);
        if (status == PM_DAMAGE)
            pm_say("%s; left as it is, taking the next default heap", err->text);
        else if (status == PM_OK || !pm_heap.busy)
            return status;
    }
    return pm_fail(err, PM_OPERATIONAL, "all default heaps of %s are busy", name);
}

// A small /dev/shm, as containers have it, is soon full, and the program would be out of memory for a heap that
// nothing can reach afterwards.
static bool little_room(const char *dir) {
    struct statvfs fs;
    return statvfs(dir, &fs) == 0 && fs.f_blocks != 0 &&
           (uint64_t)fs.f_bavail * fs.f_frsize < DEFAULT_ROOM;
}

static int open_default(struct pm_choice *choice, struct pm_error *err) {
    char name[256], *dir = choice->own;
    int fd, status = program_name(name, sizeof name, err);
    if (status == PM_OK)
        status = default_parent(dir, sizeof choice->own, &fd, err);
    if (status != PM_OK)
        return status;
    pm_choice_tidy(fd, dir, name);
    close(fd);
    size_t len = strlen(dir);
    bool small = little_room(dir);
    len += (size_t)snprintf(dir + len, sizeof choice->own - len, "/%s", name);
    if (small && !pm_options.roots.text[0] && access(dir, F_OK) != 0) {
        choice->without_heap = true;
        snprintf(choice->why, sizeof choice->why,
                 "%.300s would be short of room; set PMALLOC_HEAP to have a heap elsewhere", dir);
        return PM_OK;
    }
    // Who names roots wants his data, not a fresh heap beside it.
    if (pm_options.roots.text[0])
        return open_named(dir, choice, err);
    return open_spare(dir, sizeof choice->own - len, name, err);
}

int pm_choose_heap(struct pm_choice *choice, struct pm_error *err) {
    *choice = (struct pm_choice){0};
    int status = pm_left_out(&choice->without_heap, err);
    if (choice->without_heap)
        explain_left_out(choice);
    if (status != PM_OK || choice->without_heap)
        return status;
    if (pm_options.heap.text[0])
        return open_named(pm_options.heap.text, choice, err);
    choice->default_heap = true;
    return open_default(choice, err);
}
