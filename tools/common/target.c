// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "target.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

__attribute__((format(printf, 4, 5))) static int refuse(int status, char *why, size_t size,
                                                        const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(why, size, format, args);
    va_end(args);
    return status;
}

// ---- where it is -------------------------------------------------------------------------------------

// 0 when the file can be executed, else why not.
static int executable(const char *path) {
    struct stat st;
    if (stat(path, &st) != 0)
        return errno;
    if (!S_ISREG(st.st_mode))
        return EACCES;
    return access(path, X_OK) == 0 ? 0 : errno;
}

// As execvp(3): a name without a slash is looked for in PATH, and one that is there but cannot be executed
// does not end the search.
static int locate(const char *name, char *path, size_t size) {
    if (strchr(name, '/')) {
        snprintf(path, size, "%s", name);
        return executable(path);
    }
    const char *at = getenv("PATH");
    int reason = ENOENT;
    for (at = at ? at : "/bin:/usr/bin";; at++) {
        size_t length = strcspn(at, ":");
        int n = snprintf(path, size, "%.*s%s%s", (int)length, at, length ? "/" : "", name);
        int found = n < (int)size ? executable(path) : ENAMETOOLONG;
        if (found == 0)
            return 0;
        if (found != ENOENT && found != ENOTDIR)
            reason = found;
        at += length;
        if (!*at)
            return reason;
    }
}

// ---- what it is --------------------------------------------------------------------------------------

// The dynamic linker drops preloaded libraries, and the library its settings, in such programs.
static bool is_privileged(int fd) {
    struct stat st;
    if (fstat(fd, &st) == 0 &&
        ((st.st_mode & S_ISUID) || (st.st_mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP)))
        return true;
    return fgetxattr(fd, "security.capability", NULL, 0) > 0;
}

// pread() that goes on after a signal.
static ssize_t read_at(int fd, void *out, size_t size, off_t at) {
    ssize_t got;
    do
        got = pread(fd, out, size, at);
    while (got < 0 && errno == EINTR);
    return got;
}

// 1 or 0; -1 with errno where it cannot be read.
static int has_interpreter(int fd, const ElfW(Ehdr) * ehdr) {
    for (unsigned i = 0; i < ehdr->e_phnum; i++) {
        ElfW(Phdr) phdr;
        off_t at = (off_t)(ehdr->e_phoff + (uint64_t)i * ehdr->e_phentsize);
        ssize_t got = read_at(fd, &phdr, sizeof phdr, at);
        if (got != (ssize_t)sizeof phdr) // short: not what its header says
            return got < 0 ? -1 : 0;
        if (phdr.p_type == PT_INTERP)
            return 1;
    }
    return 0;
}

static int check_elf(int fd, const char *path, char *why, size_t size) {
    ElfW(Ehdr) ehdr;
    ssize_t got = read_at(fd, &ehdr, sizeof ehdr, 0);
    if (got < 0)
        return refuse(TARGET_CANNOT_RUN, why, size, "%.300s: %s", path, strerror(errno));
    if (got != (ssize_t)sizeof ehdr || ehdr.e_ident[EI_CLASS] != ELFCLASS64 ||
        ehdr.e_machine != EM_X86_64)
        return refuse(TARGET_CANNOT_RUN, why, size,
                      "%.300s is not a 64-bit x86 program; the heap cannot be preloaded into it",
                      path);
    int dynamic = has_interpreter(fd, &ehdr);
    if (dynamic < 0)
        return refuse(TARGET_CANNOT_RUN, why, size, "%.300s: %s", path, strerror(errno));
    if (!dynamic)
        return refuse(TARGET_CANNOT_RUN, why, size,
                      "%.300s is statically linked; the heap cannot be preloaded into it", path);
    return 0;
}

// The interpreter of a script, from its first line; a text file without one goes to the shell.
static void script_interpreter(const char *head, char *out, size_t size) {
    const char *from = head[0] == '#' && head[1] == '!' ? head + 2 : "/bin/sh";
    from += strspn(from, " \t");
    snprintf(out, size, "%.*s", (int)strcspn(from, " \t\r\n"), from);
}

static int inspect(const char *path, char *interpreter, size_t length, char *why, size_t size) {
    char head[256] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) // executable, but not readable: the kernel may know more
        return 0;
    int status = 0;
    if (read_at(fd, head, sizeof head - 1, 0) < 0)
        status = refuse(TARGET_CANNOT_RUN, why, size, "%.300s: %s", path, strerror(errno));
    else if (is_privileged(fd))
        status =
            refuse(TARGET_CANNOT_RUN, why, size,
                   "%.300s is set-user-ID or has file capabilities; such programs ignore preloaded "
                   "libraries",
                   path);
    else if (memcmp(head, ELFMAG, SELFMAG) == 0)
        status = check_elf(fd, path, why, size);
    else
        script_interpreter(head, interpreter, length);
    close(fd);
    return status;
}

int target_find(const char *name, struct target *out, char *why, size_t size) {
    memset(out, 0, sizeof *out);
    if (!*name)
        return refuse(TARGET_NOT_FOUND, why, size, "the program's name is empty");
    int reason = locate(name, out->path, sizeof out->path);
    if (reason != 0)
        return refuse(reason == ENOENT || reason == ENOTDIR ? TARGET_NOT_FOUND : TARGET_CANNOT_RUN,
                      why, size, "%.300s: %s", name, strerror(reason));
    int status = inspect(out->path, out->interpreter, sizeof out->interpreter, why, size);
    char next[256] = "";
    // The kernel follows interpreters that are scripts themselves, five deep; so does what they run on.
    char at[256];
    memcpy(at, out->interpreter, sizeof at);
    for (int depth = 0; status == 0 && *at && depth < 5; depth++) {
        if (executable(at) != 0)
            return refuse(TARGET_CANNOT_RUN, why, size, "%.300s: its interpreter %s: %s", name, at,
                          strerror(executable(at)));
        next[0] = '\0';
        status = inspect(at, next, sizeof next, why, size);
        memcpy(at, next, sizeof at);
    }
    return status;
}
