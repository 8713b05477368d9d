// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "choose_name.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/os.h"
#include "media/heap.h"
#include "media/open/heap_dir.h"
#include "state/phase.h"

int pm_choose_program(char *name, size_t size, struct pm_error *err) {
    if (pm_os_program_name(name, size))
        return PM_OK;
    return pm_fail(err, PM_OPERATIONAL,
                   "cannot find out this program's name: /proc/self/exe: %s; unset PMALLOC_PROGRAM "
                   "and set PMALLOC_HEAP",
                   pm_strerror(errno));
}

static char *append(char *at, const char *end, const char *text) {
    while (*text && at < end)
        *at++ = *text++;
    *at = '\0';
    return at;
}

// Not snprintf(): each start comes here, and in most small programs nothing else would touch that
// part of libc.
void pm_choose_path(char *dir, size_t size, const char *name) {
    char user[12], *digit = user + sizeof user - 1;
    const char *end = dir + size - 1;
    *digit = '\0';
    unsigned left = geteuid();
    do
        *--digit = (char)('0' + left % 10);
    while ((left /= 10) != 0);
    char *at = append(append(dir, end, DEFAULTS_IN "/pmalloc-"), end, digit);
    if (name)
        append(append(at, end, "/"), end, name);
}

int pm_choose_parent(char *dir, size_t size, bool make, int *fd, struct pm_error *err) {
    unsigned user = geteuid();
    pm_choose_path(dir, size, NULL);
    *fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (*fd < 0 && errno == ENOENT) {
        if (!make)
            return PM_OK;
        if (mkdir(dir, 0700) != 0 && errno != EEXIST)
            return pm_fail(err, PM_OPERATIONAL,
                           "%s: cannot make the default heaps' directory: %s; set PMALLOC_HEAP",
                           dir, pm_strerror(errno));
        *fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    }
    if (*fd < 0 && errno != ENOTDIR && errno != ELOOP)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s: cannot open the default heaps' directory: %s; set PMALLOC_HEAP", dir,
                       pm_strerror(errno));
    struct stat st = {0};
    bool known = *fd >= 0 && fstat(*fd, &st) == 0;
    if (known && st.st_uid == user && !(st.st_mode & 022))
        return PM_OK;
    int error = errno;
    if (*fd >= 0)
        close(*fd);
    errno = error;
    if (*fd >= 0 && !known)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s: cannot look at the default heaps' directory: %s; set PMALLOC_HEAP", dir,
                       pm_strerror(error));
    errno = EACCES;
    return pm_fail(err, PM_OPERATIONAL,
                   "%s is not a directory of user %u alone; remove it or set PMALLOC_HEAP", dir,
                   user);
}

// The files belong to the user at the start, so another one could not open them later.
static bool is_still_user(void) {
    char dir[64];
    pm_choose_path(dir, sizeof dir, "");
    if (strncmp(pm_heap.dir, dir, strlen(dir)) == 0)
        return true;
    errno = EPERM;
    return false;
}

// As at a start, a heap that is busy or damaged is left as it is, and the next name is taken.
static int name_heap(struct pm_error *err) {
    char name[256], parent[64], dir[512];
    int fd, status = pm_choose_program(name, sizeof name, err);
    if (status == PM_OK && !is_still_user())
        status = pm_fail(err, PM_OPERATIONAL,
                         "the program has become user %u since its start; set a root before that, "
                         "or PMALLOC_HEAP",
                         (unsigned)geteuid());
    if (status == PM_OK)
        status = pm_choose_parent(parent, sizeof parent, true, &fd, err);
    if (status != PM_OK)
        return status;
    close(fd);
    pm_choose_path(dir, sizeof dir, name);
    char *end = dir + strlen(dir);
    for (unsigned n = 1; n <= DEFAULT_HEAPS; n++) {
        if (n > 1)
            snprintf(end, sizeof dir - (size_t)(end - dir), ".%u", n);
        status = pm_dir_name(dir, err);
        if (status == PM_OK || !(pm_is_busy(err) || status == PM_DAMAGE))
            return status;
    }
    return status;
}

bool pm_choose_name(const char *call) {
    struct pm_error err;
    int saved = errno;
    if (!pm_heap.nameless || !pm_heap_on_media())
        return true;
    if (pm_nested()) {
        errno = EDEADLK;
        return false;
    }
    struct pm_cancel held = pm_cancel_hold();
    pm_lock(&pm_process_lock);
    errno = 0;
    int status = pm_heap.nameless && pm_heap_on_media() ? name_heap(&err) : PM_OK;
    int error = errno ? errno : EIO;
    pm_unlock(&pm_process_lock);
    pm_cancel_release(held);
    errno = status == PM_OK ? saved : error;
    if (status == PM_OK)
        return true;
    pm_event(PM_EV_HEAP_UNNAMED, "%s: the heap gets no name, so no later run could find it: %s",
             call, err.text);
    return false;
}
