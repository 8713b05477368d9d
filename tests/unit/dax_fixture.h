// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Pretends that the heap lies on a DAX file system. The heap lies on tmpfs, and the wrapped calls
// below answer as Linux does on ext4 with -o dax. The Makefile wraps mmap, fstatfs, fstatvfs and
// fallocate in the programs that include this.
#ifndef PMALLOC_TESTS_UNIT_DAX_FIXTURE_H
#define PMALLOC_TESTS_UNIT_DAX_FIXTURE_H

#include <linux/falloc.h>
#include <linux/mman.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>

#include "heap_fixture.h"

#ifndef MAP_SYNC
#define MAP_SYNC 0x80000
#endif

// The flags that MAP_SHARED_VALIDATE accepts (LEGACY_MAP_MASK in Linux's mman.h). It refuses all
// others but MAP_SYNC.
#define KNOWN_FLAGS                                                                                \
    (MAP_SHARED | MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS | MAP_DENYWRITE | MAP_EXECUTABLE |       \
     MAP_GROWSDOWN | MAP_LOCKED | MAP_NORESERVE | MAP_POPULATE | MAP_NONBLOCK | MAP_STACK |        \
     MAP_HUGETLB | MAP_32BIT)

static bool no_dax;                       // pretends nothing: the file system is shown as it is
static const char *refused_name = "none"; // a file without DAX, or a directory of such files
static bool pages_pass; // a mapping of one page gets MAP_SYNC all the same, as a probe does
static struct { uintptr_t from, to; } granted[64];
static unsigned granted_count;

static void path_of(int fd, char path[256]) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, 255);
    path[len > 0 ? len : 0] = '\0';
}

static bool is_dax(int fd) {
    char path[256];
    path_of(fd, path);
    const char *name = strrchr(path, '/');
    return !no_dax && name && strncmp(path, fixture_root, strlen(fixture_root)) == 0 &&
           strcmp(name + 1, refused_name) != 0 && !strstr(path, refused_name);
}

void *__real_mmap(void *at, size_t len, int prot, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t len, int prot, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t len, int prot, int flags, int fd, off_t offset) {
    bool sync = (flags & MAP_TYPE) == MAP_SHARED_VALIDATE && flags & MAP_SYNC;
    if ((flags & MAP_TYPE) == MAP_SHARED_VALIDATE) {
        if (flags & ~(KNOWN_FLAGS | MAP_SYNC) ||
            (sync && !is_dax(fd) && !(pages_pass && len == PM_PAGE_SIZE))) {
            errno = EOPNOTSUPP;
            return MAP_FAILED;
        }
        flags = (flags & ~(MAP_TYPE | MAP_SYNC)) | MAP_SHARED;
    }
    void *map = __real_mmap(at, len, prot, flags, fd, offset);
    if (map != MAP_FAILED && sync && granted_count < 64) {
        granted[granted_count].from = (uintptr_t)map;
        granted[granted_count++].to = (uintptr_t)map + len;
    }
    return map;
}

int __real_fstatfs(int fd, struct statfs *fs);
int __wrap_fstatfs(int fd, struct statfs *fs);
int __wrap_fstatfs(int fd, struct statfs *fs) {
    int status = __real_fstatfs(fd, fs);
    if (!no_dax)
        fs->f_type = 0xef53; // ext4
    return status;
}

static bool disk_full; // fstatvfs reports no free space
int __real_fstatvfs(int fd, struct statvfs *fs);
int __wrap_fstatvfs(int fd, struct statvfs *fs);
int __wrap_fstatvfs(int fd, struct statvfs *fs) {
    int status = __real_fstatvfs(fd, fs);
    if (disk_full)
        fs->f_bavail = 0;
    return status;
}

// Calls of fallocate on heap.0: allocating (`asked`) and punching. `whole` counts calls for whole
// units of 2 MiB, `parts` all others.
static struct dax_calls { unsigned whole, parts; } asked, punched;
static uint64_t too_long = UINT64_MAX; // an allocation of this length or more fails with ENOSPC
int __real_fallocate(int fd, int mode, off_t offset, off_t len);
int __wrap_fallocate(int fd, int mode, off_t offset, off_t len);
int __wrap_fallocate(int fd, int mode, off_t offset, off_t len) {
    const uint64_t unit = (uint64_t)2 << 20;
    bool punch = mode & FALLOC_FL_PUNCH_HOLE;
    if (!punch && (uint64_t)len >= too_long) {
        errno = ENOSPC;
        return -1;
    }
    if (fd == pm_heap.shard[0].data.fd) {
        struct dax_calls *calls = punch ? &punched : &asked;
        bool whole = (uint64_t)offset % unit == 0 && (uint64_t)len % unit == 0;
        *(whole ? &calls->whole : &calls->parts) += 1;
    }
    return __real_fallocate(fd, mode, offset, len);
}

#endif
