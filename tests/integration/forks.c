// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Programs that fork, as ordinary ones do: `forks CASE [MEGABYTES]`. All of them keep a list of blocks whose pages hold
// what they are expected to; the globals `blocks` and `generation` are the roots. A failed check ends the process
// with its line.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "forks.c:%d: %d: %s (errno %d)\n", __LINE__, (int)getpid(),            \
                    #condition, errno);                                                            \
            fflush(stderr);                                                                        \
            _exit(3);                                                                              \
        }                                                                                          \
    } while (0)
#define PAGE 4096
#define MIB ((size_t)1 << 20)

struct block {
    struct block *next;
    size_t size;
    long tag; // whose it is
};

struct block *blocks;
long generation;

// ---- blocks --------------------------------------------------------------------------------------------

static long mark_of(const struct block *b, size_t at) { return b->tag * 1000003 + (long)at; }

static void fill(struct block *b, long tag) {
    b->tag = tag;
    for (size_t at = PAGE; at + sizeof(long) <= b->size; at += PAGE)
        *(long *)((char *)b + at) = mark_of(b, at);
}

static void check_block(const struct block *b, long tag) {
    CHECK(b->tag == tag);
    for (size_t at = PAGE; at + sizeof(long) <= b->size; at += PAGE)
        CHECK(*(const long *)((const char *)b + at) == mark_of(b, at));
}

static void add(size_t size, long tag) {
    struct block *b = malloc(size);
    CHECK(b);
    *b = (struct block){.next = blocks, .size = size};
    fill(b, tag);
    blocks = b;
}

// Sizes of every kind: small, of a slab, large, huge.
static void build(size_t megabytes, long tag) {
    static const size_t sizes[] = {64, 200, 3000, 10000, 40000, 150000, 1500000, 5000000};
    size_t total = 0;
    for (unsigned i = 0; total < megabytes * MIB; i++) {
        size_t size = sizes[i % (sizeof sizes / sizeof sizes[0])];
        size = size > megabytes * MIB - total && size > 10000 ? 10000 : size;
        add(size, tag);
        total += size;
    }
    generation = tag;
}

static unsigned check_all(long tag) {
    unsigned count = 0;
    for (const struct block *b = blocks; b; b = b->next, count++)
        check_block(b, tag);
    CHECK(generation == tag);
    return count;
}

static void fill_all(long tag) {
    for (struct block *b = blocks; b; b = b->next)
        fill(b, tag);
    generation = tag;
}

// Frees every second one, resizes others, gives space back, and takes as much again.
static void churn(long tag) {
    unsigned i = 0;
    size_t freed = 0;
    for (struct block **at = &blocks; *at; i++) {
        struct block *b = *at;
        if (i % 2) {
            freed += b->size;
            *at = b->next;
            free(b);
            continue;
        }
        if (i % 8 == 0 && b->size > 3000) {
            b = realloc(b, b->size + b->size / 2);
            CHECK(b);
            *at = b;
            b->size += b->size / 2;
            fill(b, tag);
        }
        at = &b->next;
    }
    malloc_trim(0);
    while (freed > 5000) {
        size_t size = freed > 300000 ? 250000 : 5000;
        add(size, tag);
        freed -= size;
    }
    for (int round = 0; round < 3; round++) {
        char *p = calloc(1, 3000000);
        for (size_t at = 0; at < 3000000; at += 100)
            CHECK(p[at] == 0);
        memset(p, 1, 3000000);
        free(p);
    }
}

static int ended(pid_t pid) {
    int status;
    while (waitpid(pid, &status, 0) < 0)
        CHECK(errno == EINTR);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static pid_t forked(void) {
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    return pid;
}

// One byte from the other process.
static void await(int fd) {
    char byte;
    CHECK(read(fd, &byte, 1) == 1);
}
static void tell(int fd) { CHECK(write(fd, "", 1) == 1); }

// ---- cases -----------------------------------------------------------------------------------------------

// Both go on with the same blocks, at once.
static void isolation(size_t megabytes) {
    build(megabytes, 1);
    pid_t pid = forked();
    long mine = pid ? 2 : 3;
    for (int round = 0; round < 3; round++) {
        check_all(round ? mine : 1);
        fill_all(mine);
        churn(mine);
        check_all(mine);
    }
    if (!pid)
        _exit(0);
    CHECK(ended(pid) == 0);
    check_all(2);
}

// The same, and the parent is killed while the child still runs.
static void orphan(size_t megabytes) {
    int fd[2];
    CHECK(pipe(fd) == 0);
    build(megabytes, 1);
    pid_t pid = forked();
    if (pid) {
        fill_all(2);
        churn(2);
        check_all(2);
        tell(fd[1]);
        kill(getpid(), SIGKILL);
    }
    await(fd[0]);
    check_all(1);
    puts("orphan"); // the test opens the heap meanwhile
    fflush(stdout);
    int byte = getchar();
    check_all(1);
    fill_all(3);
    churn(3);
    check_all(3);
    printf("whole %d\n", byte != EOF);
}

static void stopped(size_t megabytes) {
    build(megabytes, 1);
    pid_t pid = forked();
    if (!pid) {
        raise(SIGSTOP);
        check_all(1);
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
    fill_all(2);
    churn(2);
    kill(pid, SIGCONT);
    CHECK(ended(pid) == 0);
    check_all(2);
}

static void traced(size_t megabytes) {
    build(megabytes, 1);
    pid_t pid = forked();
    if (!pid) {
        CHECK(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
        raise(SIGSTOP);
        check_all(1);
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status));
    fill_all(2);
    churn(2);
    CHECK(ptrace(PTRACE_CONT, pid, NULL, NULL) == 0);
    CHECK(ended(pid) == 0);
    check_all(2);
}

// As daemons do: everything is closed, ours too.
static void closing(size_t megabytes) {
    int fd[2];
    CHECK(pipe(fd) == 0);
    build(megabytes, 1);
    pid_t pid = forked();
    if (!pid) {
        for (int i = 3; i < 1024; i++)
            if (i != fd[0])
                close(i);
        await(fd[0]);
        check_all(1);
        churn(1);
        check_all(1);
        pid_t grandchild = forked();
        fill_all(grandchild ? 4 : 5);
        check_all(grandchild ? 4 : 5);
        _exit(grandchild ? ended(grandchild) : 0);
    }
    fill_all(2);
    churn(2);
    tell(fd[1]);
    CHECK(ended(pid) == 0);
    check_all(2);
}

// A chain of forks, each without a pause.
static void deep(size_t megabytes) {
    build(megabytes, 1);
    for (long depth = 1; depth < 12; depth++) {
        pid_t pid = forked();
        if (pid) {
            fill_all(100 + depth);
            int status = ended(pid);
            check_all(100 + depth);
            if (depth > 1)
                _exit(status);
            CHECK(status == 0);
            fill_all(2);
            return;
        }
        check_all(depth);
        fill_all(depth + 1);
    }
    _exit(0);
}

// The child forks before its own memory can have been copied.
static void hasty(size_t megabytes) {
    int fd[2];
    CHECK(pipe(fd) == 0);
    build(megabytes, 1);
    pid_t pid = forked();
    if (!pid) {
        pid_t grandchild = fork();
        await(fd[0]);
        check_all(1);
        fill_all(grandchild ? 3 : 4);
        _exit(grandchild ? ended(grandchild) : 0);
    }
    fill_all(2);
    churn(2);
    tell(fd[1]);
    tell(fd[1]);
    CHECK(ended(pid) == 0);
    check_all(2);
}

static void broad(size_t megabytes) {
    pid_t child[16];
    build(megabytes, 1);
    for (int i = 0; i < 16; i++) {
        fill_all(10 + i);
        child[i] = forked();
        if (!child[i]) {
            usleep(20000); // while others come and go
            check_all(10 + i);
            fill_all(100 + i);
            churn(100 + i);
            pid_t pid = forked();
            if (!pid)
                churn(100 + i);
            check_all(100 + i);
            _exit(pid ? ended(pid) : 0);
        }
    }
    fill_all(2);
    for (int i = 0; i < 16; i++)
        CHECK(ended(child[i]) == 0);
    check_all(2);
}

static volatile int enough;

static void *allocate(void *arg) {
    enum { SLOTS = 200 };
    unsigned seed = (unsigned)(uintptr_t)arg;
    unsigned char *slot[SLOTS] = {0};
    size_t size[SLOTS] = {0};
    while (!enough) {
        unsigned i = (unsigned)rand_r(&seed) % SLOTS;
        if (slot[i]) {
            CHECK(slot[i][0] == (unsigned char)i && slot[i][size[i] - 1] == (unsigned char)i);
            free(slot[i]);
        }
        size[i] = 1 + (unsigned)rand_r(&seed) % (i % 10 ? 2000 : 300000);
        slot[i] = malloc(size[i]);
        CHECK(slot[i]);
        memset(slot[i], (int)i, size[i]);
    }
    return NULL;
}

static void threads(size_t megabytes) {
    pthread_t thread[3];
    build(megabytes, 1);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&thread[i], NULL, allocate, (void *)(uintptr_t)(i + 1)) == 0);
    for (long i = 0; i < 40; i++) {
        fill_all(10 + i);
        pid_t pid = forked();
        if (!pid) {
            check_all(10 + i);
            fill_all(1000);
            for (int round = 0; round < 100; round++)
                free(malloc((size_t)round * 1000));
            churn(1000);
            check_all(1000);
            pid_t grandchild = forked();
            if (!grandchild)
                fill_all(1001);
            check_all(grandchild ? 1000 : 1001);
            _exit(grandchild ? ended(grandchild) : 0);
        }
        fill_all(2);
        CHECK(ended(pid) == 0);
        check_all(2);
    }
    enough = 1;
    for (int i = 0; i < 3; i++)
        pthread_join(thread[i], NULL);
}

// A gigabyte that is hardly touched: holes stay holes in the child, whatever the parent does with them.
static void sparse(size_t megabytes) {
    const size_t size = 1024 * MIB, step = 3 * MIB;
    (void)megabytes;
    int fd[2];
    CHECK(pipe(fd) == 0);
    char *huge = malloc(size), *zeroes = calloc(64, MIB), *freed = malloc(8 * MIB);
    CHECK(huge && zeroes && freed);
    memset(freed, 9, 8 * MIB);
    free(freed);
    for (size_t at = 0; at < size; at += step)
        huge[at] = 7;
    pid_t pid = forked();
    if (!pid) {
        await(fd[0]);
        for (size_t at = 0; at < size; at += PAGE)
            CHECK(huge[at] == (at % step == 0 ? 7 : 0));
        for (size_t at = 0; at < 64 * MIB; at += PAGE)
            CHECK(zeroes[at] == 0);
        memset(huge, 5, 50 * MIB);
        free(huge);
        free(zeroes);
        malloc_trim(0);
        for (int i = 0; i < 10; i++) {
            char *p = calloc(30, MIB);
            for (size_t at = 0; at < 30 * MIB; at += PAGE)
                CHECK(p[at] == 0);
            memset(p, 6, 30 * MIB);
            free(p);
        }
        _exit(0);
    }
    for (size_t at = 0; at < size; at += step / 3)
        huge[at + PAGE] = 8;
    memset(zeroes, 8, 64 * MIB);
    free(huge);
    free(zeroes);
    malloc_trim(0); // the file is cut shorter, or would be
    char *again = malloc(300 * MIB);
    memset(again, 8, 300 * MIB);
    tell(fd[1]);
    CHECK(ended(pid) == 0);
    for (size_t at = 0; at < 300 * MIB; at += PAGE)
        CHECK(again[at] == 8);
}

// Page faults of a child that executes at once.
static void exec(size_t megabytes) {
    struct rusage usage;
    build(megabytes, 1);
    for (int i = 0; i < 1000; i++) {
        pid_t pid = fork();
        if (!pid) {
            execl("/bin/true", "true", (char *)NULL);
            _exit(127);
        }
        CHECK(ended(pid) == 0);
    }
    getrusage(RUSAGE_CHILDREN, &usage);
    printf("%ld\n", usage.ru_minflt / 1000);
    check_all(1);
}

static void no_descriptors(size_t megabytes) {
    build(megabytes, 1);
    fflush(NULL);
    while (dup(STDERR_FILENO) >= 0) {
    }
    CHECK(errno == EMFILE);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (!pid) {
        usleep(100000);
        check_all(1);
        _exit(0);
    }
    fill_all(2);
    churn(2);
    CHECK(ended(pid) == 0);
    check_all(2);
}

// clone() fails: the parent's handler runs without a child.
static void no_process(size_t megabytes) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof code[0], code};
    build(megabytes, 1);
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    for (int i = 0; i < 100; i++) {
        errno = 0;
        CHECK(fork() == -1 && errno == EAGAIN);
    }
    fill_all(2);
    churn(2);
    check_all(2);
}

// The copier's clone() is refused after the fork's own.
static void no_copier(size_t megabytes) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof code[0], code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    isolation(megabytes);
}

static void data_limit(size_t megabytes) {
    struct rlimit limit = {64 * MIB, 64 * MIB};
    build(megabytes, 1);
    CHECK(setrlimit(RLIMIT_DATA, &limit) == 0);
    pid_t pid = forked();
    if (!pid)
        _exit(0);
    printf("child %d\n", ended(pid));
    fill_all(2);
    check_all(2);
}

// Children that skip the handlers do not reach the heap, or they would write it.
static void bare(size_t megabytes) {
    build(megabytes, 1);
    struct block *first = blocks;
    for (int i = 0; i < 4; i++) {
        pid_t pid = i % 2 ? (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL) : _Fork();
        if (!pid) {
            *(i / 2 ? &generation : &first->tag) = 9;
            _exit(0);
        }
        CHECK(ended(pid) == 128 + SIGSEGV);
    }
    check_all(1);
    pid_t pid = forked(); // and those that do not, do
    if (!pid) {
        fill_all(3);
        _exit(0);
    }
    CHECK(ended(pid) == 0);
    check_all(1);
    fill_all(2);
}

// What needs a process of one thread, at once.
static void namespaces(size_t megabytes) {
    build(megabytes, 1);
    pid_t pid = forked();
    if (!pid) {
        if (unshare(CLONE_NEWUSER) != 0)
            _exit(errno == EINVAL ? 1 : 77);
        check_all(1);
        _exit(0);
    }
    int status = ended(pid);
    CHECK(status == 0 || status == 77);
    fill_all(2);
}

// Signals that come all the time, and a handler that looks at the heap.
static volatile long ticks;
static void tick(int number) {
    (void)number;
    ticks += generation > 0;
}

static void signals(size_t megabytes) {
    struct itimerval often = {{0, 200}, {0, 200}};
    build(megabytes, 1);
    signal(SIGALRM, tick);
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; i < 20; i++) {
        pid_t pid = fork();
        if (pid < 0) {
            CHECK(errno == EINTR || errno == EAGAIN);
            continue;
        }
        if (!pid) {
            setitimer(ITIMER_REAL, &often, NULL); // not inherited
            long before = ticks;
            check_all(1);
            fill_all(3);
            while (ticks < before + 2) {
            }
            check_all(3);
            _exit(0);
        }
        CHECK(ended(pid) == 0);
    }
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    check_all(1);
    fill_all(2);
}

// Parts of the heap that the child makes unwritable while they are copied.
static void protect(size_t megabytes) {
    int fd[2];
    CHECK(pipe(fd) == 0);
    build(megabytes, 1);
    pid_t pid = forked();
    if (!pid) {
        size_t parts = 0;
        for (struct block *b = blocks; b; b = b->next)
            if (b->size >= 100000) {
                uintptr_t at = ((uintptr_t)b + 2 * PAGE) & ~(uintptr_t)(PAGE - 1);
                CHECK(mprotect((void *)at, 4 * PAGE, parts++ % 2 ? PROT_READ : PROT_NONE) == 0);
            }
        await(fd[0]);
        for (struct block *b = blocks; b; b = b->next)
            if (b->size >= 100000) {
                uintptr_t at = ((uintptr_t)b + 2 * PAGE) & ~(uintptr_t)(PAGE - 1);
                CHECK(mprotect((void *)at, 4 * PAGE, PROT_READ | PROT_WRITE) == 0);
            }
        check_all(1);
        _exit(0);
    }
    fill_all(2);
    churn(2);
    tell(fd[1]);
    CHECK(ended(pid) == 0);
    check_all(2);
}

static void check(size_t expected) {
    unsigned count = check_all((long)expected);
    CHECK(count > 0);
    printf("%u blocks of %ld\n", count, generation);
}

// ---- persistent children ---------------------------------------------------------------------------------

// What stays behind in which heap is the test's to see: the parent's blocks are 2, those of its children 3, theirs 4.
static void copies(size_t megabytes) {
    build(megabytes, 1);
    for (int i = 0; i < 2; i++) {
        pid_t pid = forked();
        if (!pid) {
            check_all(1);
            fill_all(3);
            churn(3);
            pid_t grandchild = forked();
            if (!grandchild) {
                check_all(3);
                fill_all(4);
                churn(4);
                check_all(4);
                printf("4 %d\n", (int)getpid());
                fflush(stdout);
                kill(getpid(), SIGKILL);
            }
            CHECK(ended(grandchild) == 128 + SIGKILL);
            check_all(3);
            printf("3 %d\n", (int)getpid());
            fflush(stdout);
            if (i)
                kill(getpid(), SIGKILL);
            exit(0);
        }
        int status = ended(pid);
        CHECK(status == (i ? 128 + SIGKILL : 0));
        check_all(1);
    }
    fill_all(2);
    churn(2);
    check_all(2);
    kill(getpid(), SIGKILL);
}

static void last_words(void) { printf("%d ends\n", (int)getpid()); }

// Goes on as a daemon, after `forks_left` more forks; says its process id where the test looks for it.
static void serve(const char *file) {
    check_all(1);
    fill_all(5);
    churn(5);
    for (int i = 0; i < 3; i++) { // workers, which end and do not end
        pid_t worker = forked();
        if (!worker) {
            check_all(5);
            fill_all(6);
            churn(6);
            check_all(6);
            if (i == 2)
                for (;;)
                    pause();
            exit(0);
        }
        if (i < 2)
            CHECK(ended(worker) == 0);
        else
            kill(worker, SIGKILL);
        check_all(5);
    }
    churn(5);
    check_all(5);
    char name[600];
    snprintf(name, sizeof name, "%s.new", file);
    FILE *out = fopen(name, "w");
    CHECK(out && fprintf(out, "%d\n", (int)getpid()) > 0 && fclose(out) == 0);
    CHECK(rename(name, file) == 0);
}

static volatile int told_to_end;
static void end(int number) {
    (void)number;
    told_to_end = 1;
}

static int closes_all;

static void become_daemon(const char *file, int forks, int parent_waits) {
    atexit(last_words);
    int fd[2];
    CHECK(pipe(fd) == 0);
    for (int i = 0; i < forks; i++) {
        pid_t pid = forked();
        if (pid) {
            free(malloc(100000)); // whatever it does, it does for itself
            if (i == 0) {
                fill_all(8);
                churn(8);
                check_all(8);
            }
            if (parent_waits)
                await(fd[0]);
            exit(0);
        }
        setsid();
        for (int d = 3; closes_all && d < 1024; d++)
            if (d != fd[0] && d != fd[1])
                close(d);
        check_all(1);
    }
    signal(SIGTERM, end);
    serve(file);
    tell(fd[1]);
    freopen("/dev/null", "w", stdout);
    while (!told_to_end)
        pause();
    exit(0);
}

static const char *argument;

static void daemon_single(size_t megabytes) {
    build(megabytes, 1);
    become_daemon(argument, 1, 0);
}
// Parents that end only when the daemon says that it is ready.
static void daemon_awaited(size_t megabytes) {
    build(megabytes, 1);
    become_daemon(argument, 1, 1);
}
static void daemon_double(size_t megabytes) {
    build(megabytes, 1);
    become_daemon(argument, 2, 0);
}
static void daemon_closing(size_t megabytes) {
    closes_all = 1;
    daemon_double(megabytes);
}
static void daemon_libc(size_t megabytes) {
    build(megabytes, 1);
    CHECK(daemon(1, 1) == 0);
    serve(argument);
    signal(SIGTERM, end);
    while (!told_to_end)
        pause();
}
static void daemon_threads(size_t megabytes) {
    pthread_t thread;
    build(megabytes, 1);
    CHECK(pthread_create(&thread, NULL, allocate, (void *)1) == 0);
    usleep(2000);
    become_daemon(argument, 1, 0);
}

static const struct {
    const char *name;
    void (*run)(size_t megabytes);
} cases[] = {
#define CASE(name)                                                                                 \
    { #name, name }
    CASE(isolation),   CASE(orphan),         CASE(stopped),        CASE(traced),
    CASE(closing),     CASE(deep),           CASE(hasty),          CASE(broad),
    CASE(threads),     CASE(sparse),         CASE(exec),           CASE(no_descriptors),
    CASE(no_process),  CASE(no_copier),      CASE(data_limit),     CASE(bare),
    CASE(namespaces),  CASE(signals),        CASE(protect),        CASE(copies),
    CASE(check),       CASE(daemon_single),  CASE(daemon_awaited), CASE(daemon_double),
    CASE(daemon_libc), CASE(daemon_closing), CASE(daemon_threads),
};

int main(int argc, char **argv) {
    size_t megabytes = argc > 2 ? (size_t)atoi(argv[2]) : 4;
    argument = argc > 3 ? argv[3] : "";
    for (size_t i = 0; argc > 1 && i < sizeof cases / sizeof cases[0]; i++)
        if (strcmp(cases[i].name, argv[1]) == 0) {
            if (strcmp(argv[1], "check") != 0)
                blocks = NULL;
            cases[i].run(megabytes);
            return 0;
        }
    fprintf(stderr, "usage: forks CASE [MEGABYTES [FILE]]\n");
    return 2;
}
