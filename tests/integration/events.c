// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// A program that the library has something to say about. What it does, one word after the other:
//   free[=N]      frees a block twice, N times: bad-free, under PMALLOC_CHECK=report
//   full          asks for more than there is room, until malloc fails
//   close         closes all descriptors but 0 to 2; range: the same by close_range
//   take=FILE     has the file at the number of each descriptor above 100
//   sizes         takes blocks of many sizes
//   none          closes 0 to 2, too
//   root=DIR      chroot; folder=DIR: chdir; user=N: setuid
//   small         files may not grow (RLIMIT_FSIZE)
//   filter        a seccomp filter ends it for clone, execve, fstat and rt_sigprocmask
//   fork          a child does the rest, and this process waits for it
//   exec          executes itself with the rest
//   lowest        a thread opens and closes from here on, and counts on the lowest number
//   ignore        ignores SIGTERM and blocks SIGUSR1
//   pause=MS      sleeps
//   until=FILE    frees a block twice, again and again, until the file is there
//   kill          ends by SIGKILL
// It prints what waits of it have seen, how often SIGCHLD came, and what the thread has found.
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// Beside the header's declaration, which older ones lack.
int close_range(unsigned from, unsigned to, int flags) __attribute__((weak));

static volatile sig_atomic_t ended;
static _Atomic int rounds, wrong;

static void on_child(int number) {
    (void)number;
    ended++;
}

static void free_twice(int n) {
    for (int i = 0; i < n; i++) {
        char *volatile block = malloc(100);
        free(block);
        free(block);
    }
}

static void fill(void) {
    static char *volatile last;
    size_t step = 1 << 20;
    while ((last = malloc(step)))
        memset(last, 1, step);
}

static void close_all(int from, int by_range) {
    if (by_range && close_range && close_range((unsigned)from, ~0u, 0) == 0)
        return;
    struct rlimit most;
    getrlimit(RLIMIT_NOFILE, &most);
    int end = most.rlim_max < 2048 ? (int)most.rlim_max : 2048;
    for (int fd = from; fd < end; fd++)
        syscall(SYS_close, fd); // close() spares what is the library's
}

static void take_numbers(const char *path) {
    int file = open(path, O_WRONLY | O_CREAT, 0600);
    for (int fd = 100; fd < 2048; fd++)
        if (fcntl(fd, F_GETFD) >= 0)
            dup2(file, fd);
}

static void take_sizes(void) {
    for (size_t size = 16; size < 16384; size += size / 4)
        if (!malloc(size))
            exit(3);
}

static void limit_files(void) {
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_FSIZE, &none);
}

#define END(call)                                                                                  \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), BPF_STMT(BPF_RET | BPF_K, 0x80000000u)
static void filter(void) {
    struct sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
                                 END(clone),
                                 END(execve),
                                 END(fstat),
                                 END(rt_sigprocmask),
                                 BPF_STMT(BPF_RET | BPF_K, 0x7fff0000u)};
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, 2, &program))
        exit(3);
}

static void *count_on_lowest(void *unused) {
    int lowest = open("/dev/null", O_RDONLY);
    close(lowest);
    for (;; rounds++) {
        int fd = open("/dev/null", O_RDONLY);
        if (fd != lowest)
            wrong++;
        close(fd);
    }
    return unused;
}

static void begin_thread(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, count_on_lowest, NULL))
        exit(3);
    while (rounds < 100)
        sched_yield();
}

static void ignore(void) {
    sigset_t one;
    signal(SIGTERM, SIG_IGN);
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    sigprocmask(SIG_BLOCK, &one, NULL);
}

static void rest(long ms) {
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

static void free_until(const char *path) {
    for (; access(path, F_OK) != 0; rest(10))
        free_twice(1);
}

static void report(void) {
    int seen = waitpid(-1, NULL, 0), error = errno, rest_of = rounds;
    while (rounds && rounds < rest_of + 1000)
        sched_yield();
    printf("waited %d %s, signals %d, wrong numbers %d\n", seen,
           error == ECHILD ? "no child" : "another", (int)ended, (int)wrong);
    fflush(stdout);
}

// Returns whether another process does the rest.
static int is_done_by_another(char **argv, const char *word) {
    if (strcmp(word, "exec") == 0) {
        argv[-1] = (char *)(uintptr_t) "/proc/self/exe";
        execv(argv[-1], argv - 1);
        exit(3);
    }
    if (strcmp(word, "fork") != 0)
        return 0;
    fflush(stdout);
    pid_t child = fork();
    if (child)
        waitpid(child, NULL, 0);
    return child != 0;
}

int main(int argc, char **argv) {
    signal(SIGCHLD, on_child);
    for (int i = 1; i < argc; i++) {
        char *word = argv[i], *value = strchr(word, '=');
        int number = value ? atoi(value + 1) : 1;
        if (is_done_by_another(argv + i + 1, word))
            return 0;
        if (strncmp(word, "free", 4) == 0)
            free_twice(number);
        else if (strcmp(word, "full") == 0)
            fill();
        else if (strcmp(word, "close") == 0 || strcmp(word, "range") == 0)
            close_all(3, word[0] == 'r');
        else if (strcmp(word, "none") == 0)
            close_all(0, 0);
        else if (strncmp(word, "root=", 5) == 0 && (chroot(value + 1) || chdir("/")))
            return 3;
        else if (strncmp(word, "folder=", 7) == 0 && chdir(value + 1))
            return 3;
        else if (strncmp(word, "user=", 5) == 0 && setuid((uid_t)number))
            return 3;
        else if (strncmp(word, "take=", 5) == 0)
            take_numbers(value + 1);
        else if (strcmp(word, "sizes") == 0)
            take_sizes();
        else if (strcmp(word, "small") == 0)
            limit_files();
        else if (strcmp(word, "filter") == 0)
            filter();
        else if (strcmp(word, "lowest") == 0)
            begin_thread();
        else if (strcmp(word, "ignore") == 0)
            ignore();
        else if (strncmp(word, "until=", 6) == 0)
            free_until(value + 1);
        else if (strncmp(word, "pause=", 6) == 0)
            rest(number);
        else if (strcmp(word, "kill") == 0)
            raise(SIGKILL);
    }
    report();
    return 0;
}
