// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Of test_commit_crash: the system calls of the library, noted in the model of the page cache.
// Before each of them the power may fail; and some fail.
#ifndef PMALLOC_TESTS_UNIT_COMMIT_CALLS_H
#define PMALLOC_TESTS_UNIT_COMMIT_CALLS_H

#include "commit_images.h"

#include <linux/magic.h>
#include <sys/syscall.h>

#include "tests/integration/raw_call.h"

static bool watching;       // calls are noted
static bool taking;         // images are taken
static bool first_syncs;    // commit mode begins
static bool committing;     // the next sync of the journal makes the commit count
static bool late_journal;   // LATE_SYNC_JOURNAL
static unsigned late_files; // LATE_SYNC_FILES: a bit for each
static int fail_in = -1;    // the call after so many fails, as on a full disk
static bool lose_next;      // the next sync of a file but the journal fails, once
static bool catching_up;    // the commit before is brought into the files

static unsigned thin = 4; // the power fails at one call of so many

// Before each call that changes files.
static void cut(void) {
    if (!taking || rnd(thin))
        return;
    watching = false;
    for (unsigned n = rnd(2) ? 1 : 3; n; n--) {
        check_image(image_of(&worlds[0]));
        if (rnd(4) == 0)
            check_image(inherited_from(&worlds[0]));
    }
    if (rnd(100) == 0)
        go_on_with(image_of(&worlds[0]));
    watching = true;
}

// ---- the calls of the library -------------------------------------------------------------------

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);
int __real_fdatasync(int fd);
ssize_t __wrap_pwrite(int fd, const void *from, size_t len, off_t at);
int __wrap_fdatasync(int fd);
int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __real_ftruncate(int fd, off_t length);
int __wrap_ftruncate(int fd, off_t length);
int __real_fallocate(int fd, int mode, off_t at, off_t len);
int __wrap_fallocate(int fd, int mode, off_t at, off_t len);

static ino_t inodes[FILES];

static void note_inodes(void) {
    struct stat st;
    char path[160];
    for (unsigned i = 0; i < FILES; i++) {
        snprintf(path, sizeof path, "%s/%s", fixture_dir, file_name[i]);
        inodes[i] = stat(path, &st) == 0 ? st.st_ino : 0;
    }
}

// -1: none of the heap's.
static int file_of(int fd) {
    struct stat st;
    if (!watching || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return -1;
    for (unsigned tries = 0; tries < 2; tries++, note_inodes())
        for (unsigned i = 0; i < FILES; i++)
            if (inodes[i] == st.st_ino)
                return (int)i;
    return -1;
}

static bool fails(void) {
    if (fail_in < 0 || fail_in-- > 0)
        return false;
    errno = ENOSPC;
    return true;
}

// The file, as the model does not know it yet: it was changed through a shared mapping.
static void note_file(unsigned i) {
    static unsigned char bytes[PM_PAGE_SIZE];
    char path[160];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", fixture_dir, file_name[i]);
    int fd = open(path, O_RDONLY);
    uint64_t size = fd >= 0 && fstat(fd, &st) == 0 ? (uint64_t)st.st_size : 0;
    cache_set_length(&worlds[0], i, size);
    for (uint64_t at = 0; at < size; at += PM_PAGE_SIZE) {
        memset(bytes, 0, sizeof bytes);
        MUST(pread(fd, bytes, sizeof bytes, (off_t)at) > 0);
        if (memcmp(bytes, page_now(&worlds[0], i, at / PM_PAGE_SIZE), sizeof bytes) != 0)
            memcpy(next_version(&worlds[0], i, at / PM_PAGE_SIZE), bytes, sizeof bytes);
    }
    if (fd >= 0)
        close(fd);
}

static void sync_late_files(void) {
    for (unsigned i = 1; i < FILES; i++)
        if (late_files & (1u << i))
            cache_sync(&worlds[0], i);
    late_files = 0;
}

static void note_sync(unsigned file) {
    struct world *w = &worlds[0];
    if (file == PM_JOURNAL_SELF) {
        bool counts = committing && !has_ended(w);
        sync_late_files();
        if (counts && shared->mutant == LATE_SYNC_JOURNAL)
            late_journal = true;
        else if (counts ? shared->mutant != NO_SYNC_JOURNAL
                        : shared->mutant != NO_END_SYNC || w->file[file].size == 0)
            cache_sync(w, file);
        if (counts) {
            committing = false;
            shared->counts = true;
        }
        if (counts || w->file[file].size == 0)
            shared->failed = false;
        return;
    }
    if (first_syncs)
        note_file(file);
    if (is_left_out(file) || (first_syncs && shared->mutant == NO_FIRST_SYNC))
        return;
    if (shared->mutant == LATE_SYNC_FILES && !first_syncs) {
        late_files |= 1u << file;
        return;
    }
    cache_sync(w, file);
    if (late_journal)
        cache_sync(w, PM_JOURNAL_SELF);
    late_journal = false;
}

static int sync_call(int fd) {
    int file = file_of(fd);
    if (!watching || (file < 0 && fd != pm_heap.dir_fd))
        return 0;
    cut();
    bool loses = lose_next && !first_syncs && file > 0 && rnd(3) == 0, fail = fails();
    if (loses || (fail && file >= 0 && rnd(2))) {
        cache_lose(&worlds[0], (unsigned)file);
        lose_next = false;
        errno = EIO;
        shared->lost++;
    }
    if (loses || fail)
        return -1;
    if (file >= 0)
        note_sync((unsigned)file);
    else if (shared->mutant != NO_NAME_SYNC)
        worlds[0].name_durable = true;
    return 0;
}

static char *map_of(unsigned file);
static uint64_t length_of(unsigned file);

// What the program sees of a page of a file. The number of applied commits (a single word) is not
// the program's.
static const unsigned char *seen_page(int file, uint64_t at) {
    static unsigned char page[PM_PAGE_SIZE];
    const char *map = pm_heap_is_journaled() && file > 0 && at < length_of((unsigned)file)
                          ? map_of((unsigned)file)
                          : NULL;
    return map ? memcpy(page, map + (at & ~(PM_PAGE_SIZE - 1)), sizeof page) : NULL;
}

// Nothing that is written to a file changes the memory of the program.
static void check_seen(int file, uint64_t at, const unsigned char *before) {
    unsigned char was[PM_PAGE_SIZE];
    if (!before)
        return;
    memcpy(was, before, sizeof was);
    const unsigned char *is = seen_page(file, at);
    bool state = file == PM_JOURNAL_SUPER &&
                 at / PM_PAGE_SIZE == offsetof(struct pm_super_file, state) / PM_PAGE_SIZE;
    bool same = !is || (state ? is_state_page(is, was) : memcmp(is, was, sizeof was) == 0);
    shared->wrong += !same;
}

// By a mutant.
static bool is_forgotten(int file, const void *from, size_t len, uint64_t at) {
    bool ends = file == PM_JOURNAL_SELF && at == 0 && len == PM_JOURNAL_SECTOR &&
                memcmp(from, zero_page, PM_JOURNAL_SECTOR) == 0;
    return (shared->mutant == NO_END && ends) ||
           (shared->mutant == LEFT_BEHIND && catching_up && file == PM_JOURNAL_DATA);
}

static long write_call(int fd, const void *from, size_t len, uint64_t at) {
    int file = file_of(fd);
    const unsigned char *before = watching ? seen_page(file, at) : NULL;
    if (watching && file >= 0) {
        cut();
        if (fails()) { // as write() may: a part has been written
            len = (len / 2) & ~(size_t)(SECTOR - 1);
            if (len && __real_syscall(SYS_pwrite64, fd, from, len, at) == (long)len)
                cache_write(&worlds[0], (unsigned)file, from, len, at);
            errno = ENOSPC;
            return -1;
        }
        if (!is_forgotten(file, from, len, at))
            cache_write(&worlds[0], (unsigned)file, from, len, at);
    }
    long written = __real_syscall(SYS_pwrite64, fd, from, len, at);
    check_seen(file, at, before);
    return written;
}

static long space_call(int fd, int mode, uint64_t at, uint64_t len) {
    int file = file_of(fd);
    if (watching && file >= 0) {
        struct cached_file *f = &worlds[0].file[file];
        cut();
        if (fails())
            return -1;
        if (mode & FALLOC_FL_PUNCH_HOLE && at < f->size)
            cache_write(&worlds[0], (unsigned)file, NULL, at + len < f->size ? len : f->size - at,
                        at);
        else if (!(mode & FALLOC_FL_KEEP_SIZE) && f->size < at + len)
            f->size = at + len;
    }
    return __real_syscall(SYS_fallocate, fd, mode, at, len);
}

static long length_call(int fd, uint64_t bytes) {
    int file = file_of(fd);
    if (watching && file >= 0) {
        cut();
        if (fails())
            return -1;
        cache_set_length(&worlds[0], (unsigned)file, bytes);
    }
    return __real_syscall(SYS_ftruncate, fd, bytes);
}

// Six arguments are taken, however few there are: what else lies on the caller's stack.
__attribute__((no_sanitize("address"))) long __wrap_syscall(long number, ...) {
    long a[6];
    RAW_ARGUMENTS(a, number);
    switch (number) {
    case SYS_pwrite64:
        return write_call((int)a[0], (const void *)a[1], (size_t)a[2], (uint64_t)a[3]);
    case SYS_fallocate:
        return space_call((int)a[0], (int)a[1], (uint64_t)a[2], (uint64_t)a[3]);
    case SYS_ftruncate:
        return length_call((int)a[0], (uint64_t)a[1]);
    case SYS_fdatasync:
    case SYS_fsync:
        return sync_call((int)a[0]);
    }
    return __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
ssize_t __wrap_pwrite(int fd, const void *from, size_t len, off_t at) {
    return write_call(fd, from, len, (uint64_t)at);
}
int __wrap_fdatasync(int fd) { return sync_call(fd); }
int __wrap_fsync(int fd) { return sync_call(fd); }
int __wrap_ftruncate(int fd, off_t length) { return (int)length_call(fd, (uint64_t)length); }
int __wrap_fallocate(int fd, int mode, off_t at, off_t len) {
    return (int)space_call(fd, mode, (uint64_t)at, (uint64_t)len);
}

// The journal lies in memory, and stands for one on a disk: there an opening makes it durable.
uint64_t __real_pm_os_fs_type(int fd);
uint64_t __wrap_pm_os_fs_type(int fd);
uint64_t __wrap_pm_os_fs_type(int fd) {
    struct stat st;
    bool journal = fstat(fd, &st) == 0 && st.st_ino == inodes[PM_JOURNAL_SELF];
    return journal ? EXT4_SUPER_MAGIC : __real_pm_os_fs_type(fd);
}

// Each run of a seed is the same: the identity of the heap, and what the library does by time, too.
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now) {
    (void)clock;
    shared->clock += rnd(8) ? rnd(10000) : rnd(4) ? rnd(1000000) : rnd(300000000);
    uint64_t ns = 1700000000000000000 + shared->clock;
    *now = (struct timespec){(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    return 0;
}
ssize_t __wrap_getrandom(void *to, size_t len, unsigned flags);
ssize_t __wrap_getrandom(void *to, size_t len, unsigned flags) {
    (void)flags;
    for (size_t i = 0; i < len; i++)
        ((unsigned char *)to)[i] = (unsigned char)rnd(256);
    return (ssize_t)len;
}

// Opening has done with the journal. From here on files change in other ways, too.
int __real_unlinkat(int dir, const char *name, int flags);
int __wrap_unlinkat(int dir, const char *name, int flags);
int __wrap_unlinkat(int dir, const char *name, int flags) {
    if (watching && strcmp(name, "journal") == 0)
        watching = taking = false;
    return __real_unlinkat(dir, name, flags);
}

#endif
