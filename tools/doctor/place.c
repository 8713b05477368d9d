// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "place.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/options.h"
#include "lines.h"
#include "media/backing/volume.h"
#include "media/open/heap_dir.h"
#include "tools/common/figures.h"
#include "tools/common/medium.h"

// A new heap takes 4 MiB, and a program that grows takes more at once.
#define LITTLE ((uint64_t)64 << 20)

// The directory that the heap's own is made in.
static void parent_of(const char *path, char out[PATH_MAX]) {
    snprintf(out, PATH_MAX, "%s", path);
    char *slash = strrchr(out, '/');
    if (!slash)
        strcpy(out, ".");
    else
        slash[slash == out] = '\0';
}

static void put_space(const struct statvfs *st) {
    char free[32], all[32];
    uint64_t left = (uint64_t)st->f_bavail * st->f_frsize;
    line_go_on("%s of %s free%s", figure_bytes(left, free),
               figure_bytes((uint64_t)st->f_blocks * st->f_frsize, all),
               left >= LITTLE ? ""
                              : ": little; once it is full, malloc returns NULL (in a container, "
                                "/dev/shm has 64 MB unless --shm-size says more)");
}

static void put_guarantee(const struct medium *m) {
    bool memory = strcmp(m->type, "tmpfs") == 0 || strcmp(m->type, "ramfs") == 0;
    if (pm_options.commit.text && *pm_options.commit.text)
        line("guarantee", "commit mode: after a kill%s it is as of the last commit",
             memory ? "" : " or a power failure");
    else
        line("guarantee", "%s", pm_persist_guarantee(m->durability));
    if (memory)
        line_go_on("this is memory: a reboot takes it away; a directory on a disk or a DAX mount "
                   "(-H DIR) survives one");
}

static bool refuse(const char *heap, const char *format, const char *why) {
    line("heap", "%s cannot be it:", heap);
    line_go_on(format, why);
    return false;
}

static bool holds_others(const char *path, char stranger[NAME_MAX + 1]) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    bool others = fd >= 0 && pm_dir_stranger(fd, stranger);
    if (fd >= 0)
        close(fd);
    return others;
}

bool place_heap(const char *heap) {
    char first[PATH_MAX], folder[PATH_MAX], stranger[NAME_MAX + 1];
    struct medium medium;
    struct pm_error err;
    struct statvfs st;
    snprintf(first, sizeof first, "%.*s", (int)pm_volume_first(heap), heap);
    bool exists = access(first, F_OK) == 0;
    if (!exists && errno != ENOENT)
        return refuse(first, "%s", strerror(errno));
    snprintf(folder, sizeof folder, "%s", first);
    if (!exists)
        parent_of(first, folder);
    if (!exists && access(folder, F_OK) != 0)
        return refuse(first, "%s is not there either; make that", folder);
    if (access(folder, W_OK) != 0)
        return refuse(first, "no file can be made there: %s", strerror(errno));
    if (medium_find(folder, &medium, &err) != PM_OK)
        return refuse(first, "%s", err.text);
    if (exists && holds_others(first, stranger))
        return refuse(first,
                      "it holds '%s', which is none of a heap's files: name an empty or new "
                      "directory",
                      stranger);
    line("heap", "%s: %s", first,
         !exists        ? "is new"
         : medium.heap  ? "is a heap; `pmalloc-info` shows what is in it"
         : medium.fixed ? "has no heap; `pmalloc-recover --make` lays one out"
                        : "is empty");
    if (statvfs(folder, &st) == 0 && !medium.fixed)
        put_space(&st);
    put_guarantee(&medium);
    return exists && medium.fixed ? medium.heap : true;
}

void place_addresses(bool fixed) {
    int now = personality(0xffffffff);
    bool off = now >= 0 && personality((unsigned long)now | ADDR_NO_RANDOMIZE) >= 0;
    if (pm_options.randomize.number)
        line("addresses", "random at each start (PMALLOC_RANDOMIZE=1): words of the heap that lead "
                          "into the program are changed then");
    else if (off)
        line("addresses", "stay: it is started without address randomisation");
    else
        line("addresses",
             "change at each start, since this system does not let a program switch "
             "randomisation off (%s): words of the heap that lead into the program "
             "are changed then",
             strerror(errno));
    if (fixed)
        line_go_on("the program itself is linked to one address, so another build of it can be "
                   "taken by exact symbols only");
    if (off)
        personality((unsigned long)now);
}

static void put_limit(int resource, const char *option, const char *means) {
    struct rlimit limit;
    char text[32];
    if (getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        line("limits", "`ulimit %s` is %s: %s", option, figure_bytes(limit.rlim_cur, text), means);
}

static int overcommit(void) {
    int mode = 0;
    FILE *f = fopen("/proc/sys/vm/overcommit_memory", "re");
    if (f && fscanf(f, "%d", &mode) != 1)
        mode = 0;
    if (f)
        fclose(f);
    return mode;
}

void place_limits(void) {
    put_limit(RLIMIT_AS, "-v", "the heap's addresses count");
    put_limit(RLIMIT_DATA, "-d", "private mappings of commit mode count");
    put_limit(RLIMIT_FSIZE, "-f", "no file of the heap becomes larger");
    if (access("/proc/self/maps", R_OK) != 0)
        line("limits", "/proc is not mounted: a commit compares the whole heap, and no other tool "
                       "sees who has it");
    if (overcommit() == 2)
        line("limits", "vm.overcommit_memory is 2: private mappings of commit mode count as used");
}
