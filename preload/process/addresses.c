// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "addresses.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/library.h"
#include "base/options.h"
#include "base/os.h"
#include "base/own_limit.h"
#include "media/format.h"
#include "roots/program.h"

// A process that executes itself has this bit in its personality(2), so that it does so once. The
// kernel keeps bits that mean nothing to it. A variable in the environment could not be taken out
// again without a trace: /proc has it, and libc finds the auxiliary vector behind the list.
#define AGAIN 0x10000000ul
#define ASKS 0xfffffffful
// More than the kernel accepts.
#define ARGUMENTS ((size_t)8 << 20)

static enum pm_addresses how;
static unsigned long before; // the personality, without what is ours
static const char *why = ""; // they are random
static const char *remedy;
static bool may_be_kept;

static void random_since(const char *reason, const char *advice) {
    how = PM_ADDRESSES_RANDOM;
    why = reason;
    remedy = advice;
}

static void random_since_forbidden(void) {
    random_since("random: personality(2) is forbidden",
                 "allow personality(2), so that they are kept");
}

// Valgrind chooses addresses itself, the same each time; and what a program executes is not under
// it any more. These instructions do nothing, and it takes them for a question.
static bool in_valgrind(void) {
    const uint64_t question[6] = {0x1001};
    uint64_t answer = 0;
    __asm__ volatile("rolq $3, %%rdi; rolq $13, %%rdi; rolq $61, %%rdi; rolq $51, %%rdi\n\t"
                     "xchgq %%rbx, %%rbx"
                     : "+d"(answer)
                     : "a"(question)
                     : "cc", "memory");
    return answer != 0;
}

static void look(void) {
    if (pm_options.randomize.number) {
        random_since("as they are: PMALLOC_RANDOMIZE=1",
                     "unset PMALLOC_RANDOMIZE, so that they are kept");
        return;
    }
    long now = syscall(SYS_personality, ASKS);
    before = (unsigned long)now & ASKS & ~AGAIN;
    remedy = "its run had other addresses, or other libraries; make the heap anew, or go back to "
             "those";
    how = PM_ADDRESSES_FIXED;
    if (now == -1) {
        random_since_forbidden();
    } else if ((unsigned long)now & AGAIN) {
        bool off = before & ADDR_NO_RANDOMIZE;
        before &= ~(unsigned long)ADDR_NO_RANDOMIZE;
        syscall(SYS_personality, before);
        how = PM_ADDRESSES_AGAIN;
        if (!off) // a program with the set-user-ID bit that root starts
            random_since("random: the kernel randomises this program in any case",
                         "run a copy of it that has no set-user-ID bit");
    } else if (!(before & ADDR_NO_RANDOMIZE) && !in_valgrind() && !pm_library_is_program()) {
        random_since("random: pmalloc_open() came too late to keep them",
                     "start it with pmalloc-run, which keeps the addresses the same");
        may_be_kept = true;
    }
}

void pm_addresses_begin(bool again) {
    int saved = errno;
    look();
    may_be_kept &= again;
    pm_program_note_addresses(how, remedy);
    errno = saved;
}

bool pm_addresses_may_be_kept(void) { return may_be_kept; }

const char *pm_addresses_text(void) {
    return how == PM_ADDRESSES_AGAIN   ? "kept: executed again without randomisation"
           : how == PM_ADDRESSES_FIXED ? "kept: randomisation was off"
                                       : why;
}

// ---- the same program once more -----------------------------------------------------------------

// The arguments as the kernel has them. An explicit `ld.so PROGRAM` has moved its own on.
static char **read_arguments(size_t *count) {
    char *text = pm_os_reserve(ARGUMENTS), **list;
    int fd = text ? open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC) : -1;
    size_t have = 0;
    ssize_t got = fd >= 0 ? 1 : 0;
    while (got > 0 && have < ARGUMENTS && (got = read(fd, text + have, ARGUMENTS - have)) > 0)
        have += (size_t)got;
    if (fd >= 0)
        close(fd);
    *count = 0;
    for (size_t at = 0; at < have; at++)
        *count += text[at] == '\0';
    list = fd >= 0 && got == 0 ? pm_os_reserve((*count + 1) * sizeof *list) : NULL;
    for (size_t i = 0; list && i < *count; i++, text += strlen(text) + 1)
        list[i] = text;
    return list;
}

static bool is_file(const char *path, const struct stat *file) {
    struct stat st;
    return stat(path, &st) == 0 && st.st_dev == file->st_dev && st.st_ino == file->st_ino;
}

static bool is_script(const char *path) {
    char start[2] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool yes = fd >= 0 && read(fd, start, 2) == 2 && start[0] == '#' && start[1] == '!';
    if (fd >= 0)
        close(fd);
    return yes;
}

// Of a script: [interpreter, option, script, argument, ...]. The kernel puts the first ones there
// once more, so they go; what stands in the place of the script is dropped by the kernel.
static char **behind_interpreter(char **argv, const char *script) {
    for (char **at = argv; *at; at++)
        if (at > argv && strcmp(*at, script) == 0)
            return at;
    return NULL;
}

// The path that was executed, if it still leads to this program: the kernel names the process
// after it, and the program sees it as AT_EXECFN.
static const char *find_path(char ***argv) {
    static char link[PATH_MAX];
    struct stat exe;
    const char *path = (const char *)getauxval(AT_EXECFN), *first = **argv;
    if (stat("/proc/self/exe", &exe) != 0)
        return NULL;
    if (path && is_file(path, &exe))
        return path;
    char **rest = path && is_script(path) ? behind_interpreter(*argv, path) : NULL;
    if (rest) {
        *argv = rest;
        return path;
    }
    if (first && strchr(first, '/') && is_file(first, &exe)) // an explicit ld.so
        return first;
    ssize_t length = readlink("/proc/self/exe", link, sizeof link - 1);
    link[length > 0 ? length : 0] = '\0';
    return is_file(link, &exe) ? link : "/proc/self/exe";
}

static void execute(void) {
    size_t count;
    char **argv = read_arguments(&count);
    char *const *env = pm_os_environ();
    const char *path = argv && env ? find_path(&argv) : NULL;
    if (!path)
        return;
    bool limited = pm_own_limits_give_up(true);
    syscall(SYS_execve, path, argv, env);
    if (limited)
        pm_own_limits_give_up(false);
}

void pm_addresses_keep(void) {
    int saved = errno;
    may_be_kept = false;
    random_since_forbidden();
    if (syscall(SYS_personality, before | ADDR_NO_RANDOMIZE | AGAIN) != -1) {
        execute();
        syscall(SYS_personality, before);
        random_since("random: the program cannot be executed again",
                     "mount /proc, and allow the program to execute itself, so that they are kept");
    }
    pm_program_note_addresses(how, remedy);
    errno = saved;
}
