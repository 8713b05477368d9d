// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Calls on mapped memory. Calls that reach into the heap go to state/advice.h; all others go to the
// kernel, as in libc. syscall() has these calls by their numbers (raw_calls.c).
#include <errno.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bare_thread.h"
#include "export.h"
#include "media/outside.h"
#include "state/advice.h"

#define NR_MSEAL 462 // younger than the oldest headers that this is built with
#define FIXED 2      // MREMAP_FIXED
#define ERRORS 4096ul
#define ANONYMOUS 32 // MAP_ANONYMOUS

// Beside the headers' declarations, which differ between libcs.
void *pm_names_mmap(void *at, size_t len, int access, int flags, int fd,
                    long offset) __asm__("mmap");
void *pm_names_mmap64(void *at, size_t len, int access, int flags, int fd,
                      long offset) __asm__("mmap64");
int pm_names_munmap(void *at, size_t len) __asm__("munmap");
int pm_names_madvise(void *at, size_t len, int advice) __asm__("madvise");
int pm_names_mprotect(void *at, size_t len, int access) __asm__("mprotect");
int pm_names_pkey_mprotect(void *at, size_t len, int access, int key) __asm__("pkey_mprotect");
void *pm_names_mremap(void *from, size_t old, size_t len, int flags, void *to) __asm__("mremap");
int pm_names_mseal(void *at, size_t len, unsigned long flags) __asm__("mseal");

static long done(long result) {
    if ((unsigned long)result <= -ERRORS)
        return result;
    errno = (int)-result;
    return -1;
}

// Mappings outside of the heap are put on record (media/outside.h). Nothing can be read where there
// is no access.
static long note(long result, size_t len, int access, int flags, int fd) {
    if ((unsigned long)result <= -ERRORS && access && pm_heap_on_media() &&
        !pm_advice_ours((void *)result, len))
        pm_outside_map((void *)result, len, flags & ANONYMOUS ? -1 : fd);
    return result;
}

EXPORT void *pm_names_mmap(void *at, size_t len, int access, int flags, int fd, long offset) {
    return (void *)done(pm_advice_ours(at, len) ? pm_advice_mmap(at, len, access, flags, fd, offset)
                                                : note(pm_bare_call6(SYS_mmap, (long)at, (long)len,
                                                                     access, flags, fd, offset),
                                                       len, access, flags, fd));
}

EXPORT void *pm_names_mmap64(void *at, size_t len, int access, int flags, int fd, long offset) {
    return pm_names_mmap(at, len, access, flags, fd, offset);
}

EXPORT int pm_names_munmap(void *at, size_t len) {
    return (int)done(pm_advice_ours(at, len) ? pm_advice_munmap(at, len)
                                             : pm_bare_call(SYS_munmap, (long)at, (long)len, 0, 0));
}

EXPORT int pm_names_madvise(void *at, size_t len, int advice) {
    return (int)done(pm_advice_ours(at, len)
                         ? pm_advice_madvise(at, len, advice)
                         : pm_bare_call(SYS_madvise, (long)at, (long)len, advice, 0));
}

EXPORT int pm_names_mprotect(void *at, size_t len, int access) {
    return (int)done(pm_advice_ours(at, len)
                         ? pm_advice_mprotect(at, len, access, -1)
                         : pm_bare_call(SYS_mprotect, (long)at, (long)len, access, 0));
}

EXPORT int pm_names_pkey_mprotect(void *at, size_t len, int access, int key) {
    return (int)done(pm_advice_ours(at, len)
                         ? pm_advice_mprotect(at, len, access, key)
                         : pm_bare_call(key < 0 ? SYS_mprotect : SYS_pkey_mprotect, (long)at,
                                        (long)len, access, key));
}

// The last argument is given with MREMAP_FIXED and MREMAP_DONTUNMAP alone.
EXPORT void *pm_names_mremap(void *from, size_t old, size_t len, int flags, void *to) {
    bool ours = pm_advice_ours(from, old) || (flags & FIXED && pm_advice_ours(to, len));
    return (void *)done(
        ours ? pm_advice_mremap(from, old, len, flags, to)
             : pm_bare_call6(SYS_mremap, (long)from, (long)old, (long)len, flags, (long)to, 0));
}

EXPORT int pm_names_mseal(void *at, size_t len, unsigned long flags) {
    return (int)done(pm_advice_ours(at, len)
                         ? pm_advice_mseal(at, len, flags)
                         : pm_bare_call(NR_MSEAL, (long)at, (long)len, (long)flags, 0));
}
