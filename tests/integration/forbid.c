// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program in a sandbox: a seccomp filter (BPF) under which system calls fail, or kill.
//
//   forbid WHEN HOW CALLS ROUNDS
//   WHEN    start: the filter is there before the program starts (it executes itself, with
//           FORBID_PRELOAD as its LD_PRELOAD, if that is set);
//           later: it is set in the middle of the program's work
//   HOW     EPERM, ENOSYS, EACCES: the error that the calls fail with; kill: they end the process
//   CALLS   names with commas; with a "+" before them, all other calls are forbidden
//
// It prints "ok REFUSED", the number of requests that got NULL. Every block is checked before it is
// freed, and now and then before that.
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CALL(name)                                                                                 \
    { #name, SYS_##name }
static const struct {
    const char *name;
    int number;
} calls[] = {CALL(access),
             CALL(arch_prctl),
             CALL(brk),
             CALL(clock_gettime),
             CALL(clock_nanosleep),
             CALL(clone),
             CALL(clone3),
             CALL(close),
             CALL(dup),
             CALL(exit),
             CALL(exit_group),
             CALL(faccessat),
             CALL(fadvise64),
             CALL(fallocate),
             CALL(fcntl),
             CALL(fdatasync),
             CALL(flock),
             CALL(fstat),
             CALL(fstatfs),
             CALL(fsync),
             CALL(ftruncate),
             CALL(futex),
             CALL(getcpu),
             CALL(getcwd),
             CALL(getdents64),
             CALL(geteuid),
             CALL(getpid),
             CALL(getppid),
             CALL(getrandom),
             CALL(gettid),
             CALL(getuid),
             CALL(ioctl),
             CALL(kill),
             CALL(lseek),
             CALL(lstat),
             CALL(madvise),
             CALL(mbind),
             CALL(membarrier),
             CALL(mkdir),
             CALL(mkdirat),
             CALL(mlock),
             CALL(mmap),
             CALL(mprotect),
             CALL(mremap),
             CALL(msync),
             CALL(munlockall),
             CALL(munmap),
             CALL(nanosleep),
             CALL(newfstatat),
             CALL(openat),
             CALL(personality),
             CALL(pipe2),
             CALL(poll),
             CALL(prctl),
             CALL(pread64),
             CALL(preadv),
             CALL(prlimit64),
             CALL(pwrite64),
             CALL(read),
             CALL(readlink),
             CALL(readlinkat),
             CALL(rename),
             CALL(renameat),
             CALL(rseq),
             CALL(rt_sigaction),
             CALL(rt_sigprocmask),
             CALL(rt_sigreturn),
             CALL(rt_tgsigqueueinfo),
             CALL(sched_getaffinity),
             CALL(sched_yield),
             CALL(set_robust_list),
             CALL(set_tid_address),
             CALL(sigaltstack),
             CALL(stat),
             CALL(statfs),
             CALL(statx),
             CALL(syncfs),
             CALL(sysinfo),
             CALL(tgkill),
             CALL(uname),
             CALL(unlinkat),
             CALL(wait4),
             CALL(write)};
#define CALLS (sizeof calls / sizeof calls[0])

static int number_of(const char *name, size_t length) {
    for (size_t i = 0; i < CALLS; i++)
        if (strlen(calls[i].name) == length && memcmp(calls[i].name, name, length) == 0)
            return calls[i].number;
    fprintf(stderr, "forbid: %.*s is not in the table\n", (int)length, name);
    exit(2);
}

static uint32_t verdict(const char *how) {
    return !strcmp(how, "kill")     ? SECCOMP_RET_KILL_PROCESS
           : !strcmp(how, "EPERM")  ? SECCOMP_RET_ERRNO | EPERM
           : !strcmp(how, "EACCES") ? SECCOMP_RET_ERRNO | EACCES
                                    : SECCOMP_RET_ERRNO | ENOSYS;
}

static void forbid(const char *how, const char *list) {
    struct sock_filter code[CALLS * 2 + 4];
    unsigned short n = 0;
    int only = *list == '+';
    uint32_t no = verdict(how), named = only ? SECCOMP_RET_ALLOW : no;
    code[n++] =
        (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (const char *at = list + only; *at; at += strcspn(at, ","), at += *at == ',') {
        uint32_t number = (uint32_t)number_of(at, strcspn(at, ","));
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, named);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, only ? no : SECCOMP_RET_ALLOW);
    struct sock_fprog program = {n, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        perror("forbid: seccomp");
        exit(3);
    }
}

// ---- the work -----------------------------------------------------------------------------------

enum { KEPT = 600 };
struct block {
    size_t size;
    unsigned char fill[];
};
struct block *kept[KEPT]; // may be a root
static long refused;

static void check(struct block *b, int i) {
    for (size_t k = 0; k < b->size; k += 61)
        if (b->fill[k] != (unsigned char)i) {
            fprintf(stderr, "forbid: block %d is not what it was\n", i);
            _exit(1);
        }
}

static void work(long rounds) {
    static uint64_t r = 1;
    for (long round = 0; round < rounds; round++) {
        r = r * 6364136223846793005u + 1442695040888963407u;
        int i = (int)(r >> 40) % KEPT, kind = (int)(r >> 33 & 63);
        size_t size = kind == 0 ? (size_t)3 << 20 : kind < 6 ? 100000 + (r >> 50) : (r >> 52);
        if (kept[i]) {
            check(kept[i], i);
            free(kept[i]);
        }
        kept[i] = malloc(sizeof **kept + size);
        refused += !kept[i];
        if (!kept[i])
            continue;
        kept[i]->size = size;
        memset(kept[i]->fill, i, size);
    }
}

static void *beside(void *rounds) {
    void *mine[64] = {0};
    for (long i = 0; i < (long)(intptr_t)rounds; i++) {
        free(mine[i % 64]);
        mine[i % 64] = malloc((size_t)(i * 37 % 9000));
    }
    for (int i = 0; i < 64; i++)
        free(mine[i]);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 5)
        return 2;
    long rounds = atol(argv[4]);
    if (strcmp(argv[1], "start") == 0) {
        argv[1] = "started";
        if (getenv("FORBID_PRELOAD"))
            setenv("LD_PRELOAD", getenv("FORBID_PRELOAD"), 1);
        forbid(argv[2], argv[3]);
        execv("/proc/self/exe", argv);
        return 4;
    }
    pthread_t thread;
    long before = strcmp(argv[1], "later") == 0 ? rounds / 10 : 0;
    if (pthread_create(&thread, NULL, beside, (void *)(intptr_t)(rounds * 4)) != 0)
        return 5;
    work(before);
    if (before) {
        pthread_join(thread, NULL);
        forbid(argv[2], argv[3]);
    }
    work(rounds);
    if (!before)
        pthread_join(thread, NULL);
    for (int i = 0; i < KEPT; i++)
        if (kept[i])
            check(kept[i], i);
    char line[40];
    int length = snprintf(line, sizeof line, "ok %ld\n", refused);
    if (write(1, line, (size_t)length) != length)
        return 6;
    fflush(NULL);
    _exit(0);
}
