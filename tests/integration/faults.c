// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A library that is preloaded before the library under test. It counts the system calls that named
// objects make, per call site, and fails one of them.
//
//   FAULT_OBJECTS=NAME[:NAME]   the objects whose calls count: the last part of the file's name
//   FAULT_LOG=FILE              a line per call: its number at this call site, the function, the
//                               call site, and the error or 0
//   FAULT_SITE=S FAULT_AT=N     the N-th call at site S fails
//   FAULT_ERRNO=E               with error E; -1: half of a read or write is done
//   FAULT_KEEP=1                so do all later calls of the same function; 2: all later calls
//
// It catches calls through the GOT, which is how the library and the tools call libc. What the
// library calls without libc (preload/names/inner.c) it leads here by a jump. It works with plain
// system calls where it can, because it runs before libc is ready. It leaves futexes alone.
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "raw_call.h"

enum { SHORT = -1 };

// ---- settings, from the environment as the kernel gave it ---------------------------------------

static struct {
    char text[65536]; // variables, each ended by NUL
    const char *objects;
    int log;
    unsigned long site;
    long at, error;
    long keep;
} set;
static atomic_flag lock = ATOMIC_FLAG_INIT;
static atomic_bool ready;

static void acquire(void) {
    while (atomic_flag_test_and_set_explicit(&lock, memory_order_acquire)) {
    }
}
static void release(void) { atomic_flag_clear_explicit(&lock, memory_order_release); }

static size_t slurp(const char *path, char *out, size_t size) {
    long fd = raw(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC, 0, 0, 0), got;
    size_t have = 0;
    while (fd >= 0 && have < size - 1 &&
           (got = raw(SYS_read, fd, (long)(out + have), (long)(size - 1 - have), 0, 0, 0)) > 0)
        have += (size_t)got;
    raw(SYS_close, fd, 0, 0, 0, 0, 0);
    out[have] = '\0';
    return have;
}

static const char *variable(size_t have, const char *name) {
    size_t length = strlen(name);
    for (const char *at = set.text; at < set.text + have; at += strlen(at) + 1)
        if (strncmp(at, name, length) == 0 && at[length] == '=')
            return at + length + 1;
    return "";
}

static void get_ready(void) {
    size_t have = slurp("/proc/self/environ", set.text, sizeof set.text);
    set.objects = variable(have, "FAULT_OBJECTS");
    set.site = strtoul(variable(have, "FAULT_SITE"), NULL, 16);
    set.at = atol(variable(have, "FAULT_AT"));
    set.error = atol(variable(have, "FAULT_ERRNO"));
    set.keep = atol(variable(have, "FAULT_KEEP"));
    set.log = (int)raw(SYS_openat, AT_FDCWD, (long)variable(have, "FAULT_LOG"),
                       O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600, 0, 0);
    // A high number: the program may close or replace the low ones.
    long high = raw(SYS_fcntl, set.log, F_DUPFD_CLOEXEC, 900, 0, 0, 0);
    if (set.log >= 0 && high >= 0) {
        raw(SYS_close, set.log, 0, 0, 0, 0, 0);
        set.log = (int)high;
    }
}

// ---- the library's own calls --------------------------------------------------------------------

static void jump(uintptr_t from, uintptr_t to) {
    unsigned char code[] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0}; // mov to, %rax; jmp
    uintptr_t page = from & ~4095ul;
    memcpy(code + 2, &to, sizeof to);
    raw(SYS_mprotect, (long)page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC, 0, 0, 0);
    memcpy((void *)from, code, sizeof code);
    raw(SYS_mprotect, (long)page, 8192, PROT_READ | PROT_EXEC, 0, 0, 0);
}

// The library's functions of these names become jumps to ours.
static void lead_here(const char *file, uintptr_t base) {
    static const struct {
        const char *name;
        uintptr_t to;
    } inner[] = {
        {"__wrap_pwrite", (uintptr_t)pwrite},       {"__wrap_read", (uintptr_t)read},
        {"__wrap_mmap", (uintptr_t)mmap},           {"__wrap_munmap", (uintptr_t)munmap},
        {"__wrap_madvise", (uintptr_t)madvise},     {"__wrap_mprotect", (uintptr_t)mprotect},
        {"__wrap_mremap", (uintptr_t)mremap},       {"__wrap_fsync", (uintptr_t)fsync},
        {"__wrap_fdatasync", (uintptr_t)fdatasync}, {"__wrap_syncfs", (uintptr_t)syncfs},
        {"__wrap_msync", (uintptr_t)msync},         {"__wrap_getrandom", (uintptr_t)getrandom}};
    const char *head = (const char *)base;
    const Elf64_Ehdr *elf = (const void *)head;
    const Elf64_Shdr *part = (const void *)(file + elf->e_shoff);
    for (unsigned i = 0; i < elf->e_shnum; i++) {
        if (part[i].sh_type != SHT_SYMTAB)
            continue;
        const Elf64_Sym *symbol = (const void *)(file + part[i].sh_offset);
        const char *names = file + part[part[i].sh_link].sh_offset;
        for (unsigned n = 0; n < part[i].sh_size / sizeof *symbol; n++)
            for (unsigned k = 0; k < sizeof inner / sizeof inner[0]; k++)
                if (strcmp(names + symbol[n].st_name, inner[k].name) == 0)
                    jump(base + symbol[n].st_value, inner[k].to);
    }
}

// `line` is the first one of the library in /proc/self/maps, which is where its file begins.
static void catch_inner_calls(const char *line) {
    char path[4096];
    struct stat facts;
    sscanf(line, "%*s %*s %*s %*s %*s %4095[^\n]", path);
    long fd = raw(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC, 0, 0, 0);
    if (raw(SYS_fstat, fd, (long)&facts, 0, 0, 0, 0) != 0)
        return;
    const char *file = (const char *)raw(SYS_mmap, 0, facts.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    raw(SYS_close, fd, 0, 0, 0, 0, 0);
    lead_here(file, strtoul(line, NULL, 16));
    raw(SYS_munmap, (long)file, facts.st_size, 0, 0, 0, 0);
}

// ---- whose call is it ---------------------------------------------------------------------------

static struct object {
    uintptr_t from, to, base; // the object's code; an address minus base is the address in its file
    bool counts;
} seen[64];
static unsigned seen_count;

// Whether the list names the file of this line of /proc/self/maps.
static bool named(const char *line) {
    size_t end = strcspn(line, "\n"), start = end;
    while (start > 0 && line[start - 1] != '/')
        start--;
    for (const char *at = set.objects; *at; at += strcspn(at, ":"), at += *at == ':')
        if (strcspn(at, ":") == end - start && strncmp(at, line + start, end - start) == 0)
            return true;
    return false;
}

static char maps[262144];

static void find_library(void) {
    slurp("/proc/self/maps", maps, sizeof maps);
    for (char *line = maps; *line; line += strcspn(line, "\n"), line += *line == '\n')
        if (named(line) && strstr(line, "libpmalloc")) {
            catch_inner_calls(line);
            return;
        }
}

static const struct object *object_of(uintptr_t pc) {
    for (unsigned i = 0; i < seen_count; i++)
        if (pc >= seen[i].from && pc < seen[i].to)
            return &seen[i];
    slurp("/proc/self/maps", maps, sizeof maps);
    for (char *line = maps; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        char *rest;
        uintptr_t from = strtoull(line, &rest, 16), to = strtoull(rest + 1, &rest, 16);
        if (pc < from || pc >= to || seen_count == sizeof seen / sizeof seen[0])
            continue;
        uintptr_t offset = strtoull(rest + 6, &rest, 16);
        seen[seen_count] = (struct object){from, to, from - offset, named(rest)};
        return &seen[seen_count++];
    }
    return NULL;
}

static struct {
    unsigned long site;
    long calls;
} counts[1024];

// Counts a call and returns its number at the site.
static long count(unsigned long site) {
    unsigned i = 0;
    while (counts[i].site && counts[i].site != site && i < sizeof counts / sizeof counts[0] - 1)
        i++;
    counts[i].site = site;
    return ++counts[i].calls;
}

static const char *kept;

// The error with which this call has to fail, or 0.
static long fault(const char *function, void *site) {
    long error = 0;
    acquire();
    if (!atomic_load(&ready)) {
        get_ready();
        find_library();
        atomic_store(&ready, true);
    }
    const struct object *o = object_of((uintptr_t)site);
    if (o && o->counts) {
        unsigned long at = (uintptr_t)site - o->base - 1;
        long number = count(at);
        bool now = at == set.site && number == set.at;
        if (now)
            kept = function;
        if (now || (kept && set.keep == 1 && strcmp(kept, function) == 0) ||
            (kept && set.keep == 2))
            error = set.error;
        char line[128];
        int length = snprintf(line, sizeof line, "%ld %s %lx %ld\n", number, function, at, error);
        if (set.log >= 0)
            raw(SYS_write, set.log, (long)line, length, 0, 0, 0);
    }
    release();
    return error;
}

#define SITE __builtin_return_address(0)
#define FAIL_OR(function, value)                                                                   \
    long error = fault(function, SITE);                                                            \
    if (error > 0) {                                                                               \
        errno = (int)error;                                                                        \
        return value;                                                                              \
    }
#define CALL1(type, name, t1)                                                                      \
    type name(t1 a) {                                                                              \
        FAIL_OR(#name, -1)                                                                         \
        return (type)done(raw(SYS_##name, (long)a, 0, 0, 0, 0, 0));                                \
    }
#define CALL2(type, name, t1, t2)                                                                  \
    type name(t1 a, t2 b) {                                                                        \
        FAIL_OR(#name, -1)                                                                         \
        return (type)done(raw(SYS_##name, (long)a, (long)b, 0, 0, 0, 0));                          \
    }
#define CALL3(type, name, t1, t2, t3)                                                              \
    type name(t1 a, t2 b, t3 c) {                                                                  \
        FAIL_OR(#name, -1)                                                                         \
        return (type)done(raw(SYS_##name, (long)a, (long)b, (long)c, 0, 0, 0));                    \
    }
#define CALL4(type, name, t1, t2, t3, t4)                                                          \
    type name(t1 a, t2 b, t3 c, t4 d) {                                                            \
        FAIL_OR(#name, -1)                                                                         \
        return (type)done(raw(SYS_##name, (long)a, (long)b, (long)c, (long)d, 0, 0));              \
    }
#define CALL5(type, name, t1, t2, t3, t4, t5)                                                      \
    type name(t1 a, t2 b, t3 c, t4 d, t5 e) {                                                      \
        FAIL_OR(#name, -1)                                                                         \
        return (type)done(raw(SYS_##name, (long)a, (long)b, (long)c, (long)d, (long)e, 0));        \
    }
#define CALL6(type, name, t1, t2, t3, t4, t5, t6)                                                  \
    type name(t1 a, t2 b, t3 c, t4 d, t5 e, t6 f) {                                                \
        FAIL_OR(#name, -1)                                                                         \
        return (type)done(raw(SYS_##name, (long)a, (long)b, (long)c, (long)d, (long)e, (long)f));  \
    }
#define REMOTE(name)                                                                               \
    ssize_t name(pid_t pid, const struct iovec *local, unsigned long locals,                       \
                 const struct iovec *remote, unsigned long remotes, unsigned long flags) {         \
        FAIL_OR(#name, -1)                                                                         \
        return done(raw(SYS_##name, pid, (long)local, (long)locals, (long)remote, (long)remotes,   \
                        (long)flags));                                                             \
    }
// A read or write can also do half of what was asked.
#define TRANSFER(name, number, buffer)                                                             \
    ssize_t name(int fd, buffer data, size_t length) {                                             \
        FAIL_OR(#name, -1)                                                                         \
        length = error == SHORT && length > 1 ? length / 2 : length;                               \
        return done(raw(number, fd, (long)data, (long)length, 0, 0, 0));                           \
    }
#define TRANSFER_AT(name, number, buffer)                                                          \
    ssize_t name(int fd, buffer data, size_t length, off_t at) {                                   \
        FAIL_OR(#name, -1)                                                                         \
        length = error == SHORT && length > 1 ? length / 2 : length;                               \
        return done(raw(number, fd, (long)data, (long)length, at, 0, 0));                          \
    }

CALL2(int, flock, int, int)
CALL2(int, mkdir, const char *, mode_t)
CALL1(int, rmdir, const char *)
CALL2(int, rename, const char *, const char *)
REMOTE(process_vm_readv)
REMOTE(process_vm_writev)
CALL4(int, renameat, int, const char *, int, const char *)
CALL5(int, linkat, int, const char *, int, const char *, int)
CALL3(int, unlinkat, int, const char *, int)
CALL2(int, ftruncate, int, off_t)
CALL4(int, fallocate, int, int, off_t, off_t)
CALL2(int, munmap, void *, size_t)
CALL3(int, madvise, void *, size_t, int)
CALL3(int, mprotect, void *, size_t, int)
CALL3(int, msync, void *, size_t, int)
CALL1(int, fsync, int)
CALL1(int, fdatasync, int)
CALL6(ssize_t, copy_file_range, int, off64_t *, int, off64_t *, size_t, unsigned)
CALL1(int, syncfs, int)
CALL3(off_t, lseek, int, off_t, int)
CALL2(int, fstatfs, int, struct statfs *)
CALL3(ssize_t, getrandom, void *, size_t, unsigned)
CALL2(int, access, const char *, int)
CALL3(ssize_t, readlink, const char *, char *, size_t)
CALL4(ssize_t, readlinkat, int, const char *, char *, size_t)
CALL3(int, symlinkat, const char *, int, const char *)
CALL4(int, faccessat, int, const char *, int, int)
CALL1(int, personality, unsigned long)
TRANSFER(read, SYS_read, void *)
TRANSFER_AT(pread, SYS_pread64, void *)
TRANSFER_AT(pwrite, SYS_pwrite64, const void *)

// The library can still print messages where every call fails.
ssize_t write(int fd, const void *data, size_t length) {
    long error = fault("write", SITE);
    if (error > 0 && !(fd == STDERR_FILENO && set.keep == 2)) {
        errno = (int)error;
        return -1;
    }
    length = error == SHORT && length > 1 ? length / 2 : length;
    return done(raw(SYS_write, fd, (long)data, (long)length, 0, 0, 0));
}

// close() gives the descriptor back even when it reports an error.
int close(int fd) {
    long result = raw(SYS_close, fd, 0, 0, 0, 0, 0);
    FAIL_OR("close", -1)
    return (int)done(result);
}

static mode_t mode_of(int flags, va_list args) {
    return flags & (O_CREAT | O_TMPFILE) ? (mode_t)va_arg(args, int) : 0;
}

int open(const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    mode_t mode = mode_of(flags, args);
    va_end(args);
    FAIL_OR(flags & O_CREAT ? "open+creat" : "open", -1)
    return (int)done(raw(SYS_openat, AT_FDCWD, (long)path, flags, mode, 0, 0));
}

int openat(int dir, const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    mode_t mode = mode_of(flags, args);
    va_end(args);
    FAIL_OR(flags & O_CREAT ? "openat+creat" : "openat", -1)
    return (int)done(raw(SYS_openat, dir, (long)path, flags, mode, 0, 0));
}

int pipe2(int ends[2], int flags) {
    FAIL_OR("pipe2", -1)
    return (int)done(raw(SYS_pipe2, (long)ends, flags, 0, 0, 0, 0));
}

int fstat(int fd, struct stat *st) {
    FAIL_OR("fstat", -1)
    return (int)done(raw(SYS_fstat, fd, (long)st, 0, 0, 0, 0));
}
int stat(const char *restrict path, struct stat *restrict st) {
    FAIL_OR("stat", -1)
    return (int)done(raw(SYS_stat, (long)path, (long)st, 0, 0, 0, 0));
}
int lstat(const char *restrict path, struct stat *restrict st) {
    FAIL_OR("lstat", -1)
    return (int)done(raw(SYS_lstat, (long)path, (long)st, 0, 0, 0, 0));
}
int fstatat(int dir, const char *restrict path, struct stat *restrict st, int flags) {
    FAIL_OR("fstatat", -1)
    return (int)done(raw(SYS_newfstatat, dir, (long)path, (long)st, flags, 0, 0));
}

void *mmap(void *at, size_t length, int prot, int flags, int fd, off_t offset) {
    FAIL_OR(fd < 0 ? "mmap" : "mmap+file", (void *)-1)
    return (void *)done(raw(SYS_mmap, (long)at, (long)length, prot, flags, fd, offset));
}

void *mremap(void *at, size_t old, size_t length, int flags, ...) {
    va_list args;
    va_start(args, flags);
    void *to = flags & 2 ? va_arg(args, void *) : NULL;
    va_end(args);
    FAIL_OR("mremap", (void *)-1)
    return (void *)done(raw(SYS_mremap, (long)at, (long)old, (long)length, flags, (long)to, 0));
}

int fcntl(int fd, int command, ...) {
    va_list args;
    va_start(args, command);
    long argument = va_arg(args, long);
    va_end(args);
    FAIL_OR("fcntl", -1)
    return (int)done(raw(SYS_fcntl, fd, command, argument, 0, 0, 0));
}

long syscall(long number, ...) {
    long a[6];
    RAW_ARGUMENTS(a, number);
    if (number == SYS_getdents64) {
        FAIL_OR("getdents64", -1)
    }
    return done(raw(number, a[0], a[1], a[2], a[3], a[4], a[5]));
}

// ---- calls that are more than a system call -----------------------------------------------------

#define REAL(name) ((__typeof(&name))(uintptr_t)dlsym(RTLD_NEXT, #name))

int fstatvfs(int fd, struct statvfs *out) {
    FAIL_OR("fstatvfs", -1)
    return REAL(fstatvfs)(fd, out);
}

int statvfs(const char *restrict path, struct statvfs *restrict out) {
    FAIL_OR("statvfs", -1)
    return REAL(statvfs)(path, out);
}

int pthread_create(pthread_t *id, const pthread_attr_t *attr, void *(*fn)(void *), void *arg) {
    long error = fault("pthread_create", SITE);
    return error > 0 ? (int)error : REAL(pthread_create)(id, attr, fn, arg);
}

int __pthread_key_create(pthread_key_t *key, void (*fn)(void *)) {
    long error = fault("__pthread_key_create", SITE);
    return error > 0 ? (int)error : REAL(__pthread_key_create)(key, fn);
}

pid_t fork(void) {
    FAIL_OR("fork", -1)
    return REAL(fork)();
}

pid_t waitpid(pid_t pid, int *status, int options) {
    FAIL_OR("waitpid", -1)
    return REAL(waitpid)(pid, status, options);
}
