// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Stops a program at its N-th sync or read of some files, until the disk has been made to fail.
//
//     turn sync|read N PREFIX COMMAND...    runs it
//     turn sync|read N PREFIX PID           of one that runs: returns when it is watched
//
// Files count whose paths begin with PREFIX. The pipes TURN_TO and TURN_FROM lead to who makes the
// disk fail. They get a line, and answer with one:
//
//     now       the call is about to be made
//     over      it has been made
//     kind K    before that, or for each such call if N is 0: its name, and what follows PREFIX;
//               no answer
//     end K     the program has ended, after K such calls; no answer
//
// The process that watches is no child of the program, and the program has the process of this one.
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATH = 4096, MOST_OPEN = 256, EXIT_USAGE = 2 };

static const char *prefix;
static bool reads;
static long wanted, count;
static pid_t hit; // the thread that makes the N-th call now
static int to, from;
static char named[2 * PATH]; // the file of the call that was looked at last

static void fail(const char *what) {
    perror(what);
    _exit(99);
}

// ---- which calls count --------------------------------------------------------------------------

static bool ours(const char *path) {
    bool is = strncmp(path, prefix, strlen(prefix)) == 0;
    if (is)
        snprintf(named, sizeof named, "%s", path + strlen(prefix));
    return is;
}

static bool descriptor(pid_t pid, int fd, char path[PATH]) {
    char link[64];
    if (fd == AT_FDCWD)
        snprintf(link, sizeof link, "/proc/%d/cwd", pid);
    else
        snprintf(link, sizeof link, "/proc/%d/fd/%d", pid, fd);
    ssize_t len = readlink(link, path, PATH - 1);
    path[len > 0 ? len : 0] = '\0';
    return len > 0;
}

static bool of_descriptor(pid_t pid, uint64_t fd) {
    char path[PATH];
    return descriptor(pid, (int)fd, path) && ours(path);
}

static bool of_name(pid_t pid, uint64_t dir, uint64_t name) {
    char path[2 * PATH] = "", at[PATH] = "";
    struct iovec here = {at, 256}, there = {(void *)(uintptr_t)name, 256};
    if (syscall(SYS_process_vm_readv, pid, &here, 1, &there, 1, 0L) <= 0) {
        there.iov_len = 4096 - name % 4096; // the next page may not be there
        syscall(SYS_process_vm_readv, pid, &here, 1, &there, 1, 0L);
    }
    at[PATH - 1] = '\0';
    if (at[0] == '/' || !descriptor(pid, (int)dir, path))
        return ours(at);
    strcat(strcat(path, "/"), at);
    return ours(path);
}

static bool of_address(pid_t pid, uint64_t address) {
    char name[64], line[PATH + 256];
    bool found = false;
    snprintf(name, sizeof name, "/proc/%d/maps", pid);
    FILE *maps = fopen(name, "r");
    while (maps && !found && fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        int path = 0;
        if (sscanf(line, "%lx-%lx %*s %*s %*s %*s %n", &start, &end, &path) == 2 && path)
            found = address >= start && address < end && ours(line + path);
    }
    if (maps)
        fclose(maps);
    return found;
}

static bool is_sync(pid_t pid, uint64_t call, const uint64_t *a) {
    switch (call) {
    case SYS_fsync:
    case SYS_fdatasync:
    case SYS_syncfs:
        return of_descriptor(pid, a[0]);
    case SYS_msync:
        return of_address(pid, a[0]);
    default:
        return false;
    }
}

static bool is_read(pid_t pid, uint64_t call, const uint64_t *a) {
    switch (call) {
    case SYS_pread64:
    case SYS_read:
    case SYS_getdents64:
    case SYS_lseek:
        return of_descriptor(pid, a[0]);
    case SYS_mmap:
        return (int)a[4] >= 0 && of_descriptor(pid, a[4]);
    case SYS_newfstatat: // of an open file it reads nothing
        return !(a[3] & AT_EMPTY_PATH) && of_name(pid, a[0], a[1]);
    case SYS_openat:
        return of_name(pid, a[0], a[1]);
    default:
        return false;
    }
}

// ---- the watch ----------------------------------------------------------------------------------

static void tell(const char *line) {
    char answer;
    if (write(to, line, strlen(line)) < 0)
        fail("turn: TURN_TO");
    while (strchr("no", line[0]) && read(from, &answer, 1) == 1 && answer != '\n') {
    }
}

static const char *name_of(uint64_t call) {
    static const struct {
        uint64_t call;
        const char *name;
    } names[] = {{SYS_pread64, "pread"},       {SYS_read, "read"},    {SYS_lseek, "lseek"},
                 {SYS_getdents64, "getdents"}, {SYS_mmap, "mmap"},    {SYS_openat, "openat"},
                 {SYS_newfstatat, "fstatat"},  {SYS_fsync, "fsync"},  {SYS_msync, "msync"},
                 {SYS_fdatasync, "fdatasync"}, {SYS_syncfs, "syncfs"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].call == call)
            return names[i].name;
    return "call";
}

static void tell_kind(uint64_t call) {
    char line[sizeof named + 32];
    named[strcspn(named, "\n")] = '\0'; // of a mapping
    snprintf(line, sizeof line, "kind %s %s\n", name_of(call), named[0] ? named : "/");
    tell(line);
}

static void at_call(pid_t pid) {
    struct __ptrace_syscall_info info;
    if (ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, &info) <= 0)
        return;
    if (info.op == PTRACE_SYSCALL_INFO_ENTRY) {
        bool counts = reads ? is_read(pid, info.entry.nr, (const uint64_t *)info.entry.args)
                            : is_sync(pid, info.entry.nr, (const uint64_t *)info.entry.args);
        if (counts && (wanted == 0 || count + 1 == wanted))
            tell_kind(info.entry.nr);
        if (counts && ++count == wanted) {
            hit = pid;
            tell("now\n");
        }
    } else if (pid == hit) {
        hit = 0;
        tell("over\n");
    }
}

static bool stops(int number) {
    return number == SIGSTOP || number == SIGTSTP || number == SIGTTIN || number == SIGTTOU;
}

static _Noreturn void watch(void) {
    int status;
    char line[64];
    for (pid_t pid; (pid = waitpid(-1, &status, __WALL)) > 0;) {
        if (!WIFSTOPPED(status))
            continue;
        int number = WSTOPSIG(status), event = status >> 16;
        if (number == (SIGTRAP | 0x80)) {
            at_call(pid);
            number = 0;
        }
        if (event == PTRACE_EVENT_STOP && stops(number))
            ptrace(PTRACE_LISTEN, pid, 0, 0);
        else
            ptrace(PTRACE_SYSCALL, pid, 0, event ? 0 : number);
    }
    snprintf(line, sizeof line, "end %ld\n", count);
    tell(line);
    _exit(0);
}

static void seize(pid_t pid) {
    if (ptrace(PTRACE_SEIZE, pid, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE) != 0 ||
        ptrace(PTRACE_INTERRUPT, pid, 0, 0) != 0)
        fail("turn: cannot watch the program");
}

static void seize_threads(pid_t pid) {
    char name[64];
    snprintf(name, sizeof name, "ls /proc/%d/task", pid);
    FILE *tasks = popen(name, "r");
    for (int task; tasks && fscanf(tasks, "%d", &task) == 1;)
        seize(task);
    if (tasks)
        pclose(tasks);
}

int main(int argc, char **argv) {
    int ready[2];
    char byte;
    if (argc < 5 || !getenv("TURN_TO") || !getenv("TURN_FROM") || pipe(ready) != 0) {
        fprintf(stderr, "usage: TURN_TO=PIPE TURN_FROM=PIPE turn sync|read N PREFIX COMMAND...\n");
        return EXIT_USAGE;
    }
    reads = strcmp(argv[1], "read") == 0;
    wanted = atol(argv[2]);
    prefix = argv[3];
    pid_t pid = atoi(argv[4]), self = getpid(), child = fork();
    if (child == 0 && fork() == 0) {
        to = open(getenv("TURN_TO"), O_RDWR);
        from = open(getenv("TURN_FROM"), O_RDWR);
        if (to < 0 || from < 0)
            fail("turn: the pipes");
        if (pid)
            seize_threads(pid);
        else
            seize(self);
        for (int fd = 0; fd < MOST_OPEN; fd++) // who is at the other end waits for the program's
            if (fd != to && fd != from)
                close(fd);
        watch();
    }
    if (child == 0)
        _exit(0);
    waitpid(child, NULL, 0);
    close(ready[1]);
    if (read(ready[0], &byte, 1) != 0 || pid) // until the other one has closed it
        return !pid;
    close(ready[0]);
    unsetenv("TURN_TO");
    unsetenv("TURN_FROM");
    if (getenv("TURN_PRELOAD"))
        setenv("LD_PRELOAD", getenv("TURN_PRELOAD"), 1);
    execvp(argv[4], argv + 4);
    fail(argv[4]);
}
