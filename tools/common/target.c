// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "target.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

int target_refuse(int status, char *why, size_t size, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(why, size, format, args);
    va_end(args);
    return status;
}

// ---- where it is --------------------------------------------------------------------------------

// Returns 0 if the file can be executed, else the errno value that says why not.
static int executable(const char *path) {
    struct stat st;
    if (stat(path, &st) != 0)
        return errno;
    if (!S_ISREG(st.st_mode))
        return EACCES;
    return access(path, X_OK) == 0 ? 0 : errno;
}

// Searches as execvp(3) does: a name without a slash is searched in PATH. A file that cannot be
// executed does not end the search.
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

// ---- what it is ---------------------------------------------------------------------------------

// The dynamic linker ignores preloaded libraries in programs with special rights, and the library
// ignores its settings there. Returns which rights this program has; NULL: none.
static const char *privilege(int fd) {
    struct stat st;
    if (fstat(fd, &st) != 0)
        return "cannot be looked at, and may have special rights";
    if (st.st_mode & S_ISUID)
        return "is set-user-ID";
    if ((st.st_mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP))
        return "is set-group-ID";
    return fgetxattr(fd, "security.capability", NULL, 0) > 0 ? "has file capabilities" : NULL;
}

// pread(), repeated when a signal interrupted it.
static ssize_t read_at(int fd, void *out, size_t size, off_t at) {
    ssize_t got;
    do
        got = pread(fd, out, size, at);
    while (got < 0 && errno == EINTR);
    return got;
}

static int check_kind(const char *path, const char *head, char *why, size_t size) {
    ElfW(Ehdr) ehdr;
    memcpy(&ehdr, head, sizeof ehdr);
    if (ehdr.e_machine == EM_X86_64 && ehdr.e_ident[EI_CLASS] == ELFCLASS64)
        return target_check_elf(path, why, size);
    return target_refuse(TARGET_CANNOT_RUN, why, size,
                         "%.300s is %s; the heap can be preloaded into 64-bit x86 programs only",
                         path,
                         ehdr.e_machine == EM_X86_64 || ehdr.e_machine == EM_386
                             ? "a 32-bit program"
                             : "a program for another processor");
}

// Reads a script's interpreter from its first line. A text file that names none is run by the
// shell.
static void script_interpreter(const char *head, char *out, size_t size) {
    const char *from = head[0] == '#' && head[1] == '!' ? head + 2 : "/bin/sh";
    from += strspn(from, " \t");
    snprintf(out, size, "%.*s", (int)strcspn(from, " \t\r\n"), from);
}

// Finds, in a script's first line, the program that env starts: the first word after env that is
// neither an option nor an assignment.
static void env_program(const char *head, char *out, size_t size) {
    const char *at = head + 2 + strspn(head + 2, " \t");
    for (at += strcspn(at, " \t\r\n");; at += strcspn(at, " \t\r\n")) {
        at += strspn(at, " \t");
        size_t length = strcspn(at, " \t\r\n");
        if (length == 0 || (*at != '-' && !memchr(at, '=', length))) {
            snprintf(out, size, "%.*s", (int)length, at);
            return;
        }
    }
}

static bool changes_user(const char *path) {
    static const char *const names[] = {"sudo", "su", "doas", "pkexec"};
    const char *slash = strrchr(path, '/');
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(slash ? slash + 1 : path, names[i]) == 0)
            return true;
    return false;
}

// Checks an open file. Returns 0, with the interpreter if it is a script; or the status, with the
// reason.
static int inspect_open(int fd, const char *path, struct target *out, char *why, size_t size) {
    char head[256] = "";
    ssize_t got = read_at(fd, head, sizeof head - 1, 0);
    const char *what = privilege(fd);
    out->interpreter[0] = out->env_program[0] = '\0';
    if (got < 0)
        return target_refuse(TARGET_CANNOT_RUN, why, size, "%.300s: %s", path, strerror(errno));
    if (what && changes_user(path))
        return target_refuse(TARGET_CANNOT_RUN, why, size,
                             "%.300s %s, so it keeps the heap from what it starts; write it first: "
                             "`%s ... pmalloc-run ... PROGRAM`",
                             path, what, strrchr(path, '/') ? strrchr(path, '/') + 1 : path);
    if (what)
        return target_refuse(TARGET_CANNOT_RUN, why, size,
                             "%.300s %s; the system keeps preloaded libraries and their settings "
                             "out of such programs: run a copy without it",
                             path, what);
    if (got >= (ssize_t)sizeof(ElfW(Ehdr)) && memcmp(head, ELFMAG, SELFMAG) == 0)
        return check_kind(path, head, why, size);
    if (memchr(head, '\0', (size_t)got))
        return target_refuse(TARGET_CANNOT_RUN, why, size,
                             "%.300s is neither an ELF program nor a script", path);
    script_interpreter(head, out->interpreter, sizeof out->interpreter);
    const char *name = strrchr(out->interpreter, '/');
    if (strcmp(name ? name + 1 : out->interpreter, "env") == 0)
        env_program(head, out->env_program, sizeof out->env_program);
    return 0;
}

static int inspect(const char *path, struct target *out, char *why, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    out->interpreter[0] = out->env_program[0] = '\0';
    if (fd < 0) // it can be executed but not read, so it cannot be checked: let the kernel try
        return 0;
    int status = inspect_open(fd, path, out, why, size);
    close(fd);
    return status;
}

// Checks the program that env starts.
static int follow_env(struct target *t, char *why, size_t size) {
    char path[sizeof t->path], real[PATH_MAX];
    struct target ignored;
    int reason = locate(t->env_program, path, sizeof path);
    if (reason != 0)
        return target_refuse(TARGET_CANNOT_RUN, why, size, "%.300s: its interpreter %s: %s",
                             t->path, t->env_program, strerror(reason));
    const char *slash = realpath(path, real) ? strrchr(real, '/') : NULL;
    snprintf(t->env_program, sizeof t->env_program, "%s", slash ? slash + 1 : t->env_program);
    return inspect(path, &ignored, why, size);
}

static int not_found(const char *name, int reason, char *why, size_t size) {
    bool missing = reason == ENOENT || reason == ENOTDIR;
    if (!missing || strchr(name, '/'))
        return target_refuse(missing ? TARGET_NOT_FOUND : TARGET_CANNOT_RUN, why, size,
                             "%.300s: %s", name, strerror(reason));
    if (access(name, F_OK) == 0)
        return target_refuse(TARGET_NOT_FOUND, why, size,
                             "%.200s is not in PATH; is ./%.200s meant?", name, name);
    return target_refuse(TARGET_NOT_FOUND, why, size, "%.200s: no such program in PATH", name);
}

int target_find(const char *name, struct target *out, char *why, size_t size) {
    memset(out, 0, sizeof *out);
    if (!*name)
        return target_refuse(TARGET_NOT_FOUND, why, size, "the program's name is empty");
    int reason = locate(name, out->path, sizeof out->path);
    if (reason != 0)
        return not_found(name, reason, why, size);
    int status = inspect(out->path, out, why, size);
    struct target next = *out;
    // An interpreter may be a script itself. The kernel follows five of them, and so does this.
    for (int depth = 0; status == 0 && *next.interpreter && depth < 5; depth++) {
        char at[sizeof next.interpreter];
        memcpy(at, next.interpreter, sizeof at);
        if (executable(at) != 0)
            return target_refuse(TARGET_CANNOT_RUN, why, size, "%.300s: its interpreter %s: %s",
                                 name, at, strerror(executable(at)));
        status = inspect(at, &next, why, size);
    }
    return status == 0 && *out->env_program ? follow_env(out, why, size) : status;
}
