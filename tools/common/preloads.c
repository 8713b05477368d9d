// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "preloads.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#define LIBRARY "libpmalloc_preload.so"
// Its folder also has libgc.so.1 and libgccpp.so.1, which are links to it.
#define GC_LIBRARY "pmalloc-libgc/libpmalloc_gc.so"

int preloads_folder(char self[PATH_MAX], struct pm_error *err) {
    ssize_t length = readlink("/proc/self/exe", self, PATH_MAX - 1);
    if (length > 0)
        self[length] = '\0';
    else if (errno != ENOENT || !realpath((const char *)getauxval(AT_EXECFN), self)) // no /proc
        return pm_fail(err, PM_OPERATIONAL,
                       "cannot find out where pmalloc-run is: /proc/self/exe: %s", strerror(errno));
    *(strrchr(self, '/') + 1) = '\0';
    return PM_OK;
}

const char *preloads_find(bool gc, struct pm_error *err) {
    static const char *const places[] = {"", "../lib/", "../lib64/", "../lib/x86_64-linux-gnu/"};
    static char path[PATH_MAX + 64];
    const char *library = gc ? GC_LIBRARY : LIBRARY;
    char self[PATH_MAX];
    if (preloads_folder(self, err) != PM_OK)
        return NULL;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        snprintf(path, sizeof path, "%s%s%s", self, places[i], library);
        if (access(path, R_OK) == 0)
            return path;
    }
    pm_fail(err, PM_OPERATIONAL,
            "%s is neither in %.300s nor in ../lib beside it; build or install it", library, self);
    return NULL;
}

static bool in_list(const char *list, const char *path) {
    size_t length = strlen(path);
    for (const char *at = list; *at; at += strspn(at, ": ")) {
        size_t word = strcspn(at, ": ");
        if (word == length && memcmp(at, path, length) == 0)
            return true;
        at += word;
    }
    return false;
}

static int put_before(const char *name, int length, const char *first, struct pm_error *err) {
    const char *others = getenv(name);
    char *list;
    if (asprintf(&list, "%.*s%s%s", length, first, others && *others ? ":" : "",
                 others ? others : "") < 0 ||
        setenv(name, list, 1) != 0)
        return pm_fail(err, PM_OPERATIONAL, "out of memory");
    free(list);
    return PM_OK;
}

int preloads_stand_in(const char *path, struct pm_error *err) {
    return put_before("LD_LIBRARY_PATH", (int)(strrchr(path, '/') - path), path, err);
}

int preloads_add(const char *path, struct pm_error *err) {
    const char *others = getenv("LD_PRELOAD");
    if (strpbrk(path, ": "))
        return pm_fail(err, PM_OPERATIONAL,
                       "%.300s: LD_PRELOAD cannot name a path with a blank or colon in it; move it",
                       path);
    if (others && in_list(others, path))
        return PM_OK;
    return put_before("LD_PRELOAD", (int)strlen(path), path, err);
}
