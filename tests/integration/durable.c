// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// PMALLOC_COMMIT=output and files: descriptors 1 and 2 that are files, and calls that make a file
// durable. The root `value` is what a kill must find.
//
//   durable WAY FILE     sets the value to 1, says something in this way, and kills itself
//   durable check        prints the value
//   durable lines N M    says N lines of 8 bytes by stdio, which writes M bytes at a time
//   durable answers      what each call returns and leaves in errno
//   durable cancel CALL  a thread is cancelled in this call; then another thread makes it
//   durable handler      a signal handler makes files durable all the time
//   durable log FILE SEEN  counts, appends the count to FILE, makes it durable, and stores in the
//                        mapping of SEEN which count is; for ever
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

uint64_t value;

static void need(int good, const char *what) {
    if (!good) {
        fprintf(stderr, "%s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static int file(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND, 0600);
    need(fd >= 0, path);
    return fd;
}

// ---- descriptors 1 and 2 ------------------------------------------------------------------------

static void to_stdout(const char *path) {
    need(dup2(file(path), STDOUT_FILENO) >= 0, path);
    need(write(STDOUT_FILENO, "said\n", 5) == 5, path);
}
static void to_stderr(const char *path) {
    need(dup2(file(path), STDERR_FILENO) >= 0, path);
    fputs("said\n", stderr);
}
static void by_printf(const char *path) {
    need(dup2(file(path), STDOUT_FILENO) >= 0, path);
    need(printf("said\n") == 5 && fflush(stdout) == 0, path);
}
static void by_freopen(const char *path) {
    need(freopen(path, "w", stdout) != NULL, path);
    need(puts("said") >= 0 && fflush(stdout) == 0, path);
}
static void by_number(const char *path) {
    need(dup2(file(path), STDOUT_FILENO) >= 0, path);
    need(syscall(SYS_write, STDOUT_FILENO, "said\n", 5) == 5, path);
}
static void by_pwrite(const char *path) {
    need(dup2(file(path), STDOUT_FILENO) >= 0, path);
    need(pwrite(STDOUT_FILENO, "said\n", 5, 0) == 5, path);
}
static void by_dprintf(const char *path) {
    need(dup2(file(path), STDERR_FILENO) >= 0, path);
    need(dprintf(STDERR_FILENO, "said\n") == 5, path);
}
static void not_flushed(const char *path) {
    need(dup2(file(path), STDOUT_FILENO) >= 0, path);
    need(printf("said\n") == 5, path);
}
static void by_another(const char *path) { need(write(file(path), "said\n", 5) == 5, path); }
static void to_null(const char *path) {
    need(dup2(open("/dev/null", O_WRONLY | O_SYNC), STDOUT_FILENO) >= 0, path);
    by_another(path);
    need(write(STDOUT_FILENO, "said\n", 5) == 5, path);
}
static void then_fsync(const char *path) {
    int fd = file(path);
    need(write(fd, "said\n", 5) == 5 && fsync(fd) == 0, path);
}
// A new file gets its name, and the directory is made durable.
static void then_rename(const char *path) {
    char name[4096], *end;
    snprintf(name, sizeof name, "%s.new", path);
    need(write(file(name), "said\n", 5) == 5 && rename(name, path) == 0, name);
    if ((end = strrchr(name, '/')) != NULL)
        *end = '\0';
    need(fsync(open(name, O_RDONLY | O_DIRECTORY)) == 0, name);
}
static void no_directory(const char *path) {
    char name[4096];
    snprintf(name, sizeof name, "%s.new", path);
    need(write(file(name), "said\n", 5) == 5 && rename(name, path) == 0, name);
}

static const struct way {
    const char *name;
    void (*go)(const char *path);
} ways[] = {{"stdout", to_stdout},         {"stderr", to_stderr},   {"printf", by_printf},
            {"freopen", by_freopen},       {"number", by_number},   {"pwrite", by_pwrite},
            {"dprintf", by_dprintf},       {"fsync", then_fsync},   {"rename", then_rename},
            {"not_flushed", not_flushed},  {"another", by_another}, {"null", to_null},
            {"no_directory", no_directory}};

static int say(const char *name, const char *path) {
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (strcmp(ways[i].name, name) == 0) {
            value = 1;
            ways[i].go(path);
            raise(SIGKILL);
        }
    return 64;
}

static int lines(unsigned long count, unsigned long bytes) {
    need(setvbuf(stdout, malloc(bytes), _IOFBF, bytes) == 0, "setvbuf");
    for (unsigned long i = 0; i < count; i++) {
        value++;
        need(printf("%7lu\n", i) == 8, "printf");
    }
    need(fflush(stdout) == 0, "fflush");
    return 0;
}

// ---- what a call returns ------------------------------------------------------------------------

static void tell(const char *name, long result) {
    printf("%s: %ld, %s\n", name, result, strerror(errno));
    value++;
    errno = EXDEV;
}

static void *page;
static int ends[2];
static char *bytes = "bytes";

static int answers(void) {
    struct iovec v = {bytes, 5};
    int fd = fileno(tmpfile());
    page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    need(ftruncate(fd, 8192) == 0 && pipe(ends) == 0 && page != MAP_FAILED, "a file");
    errno = EXDEV;
    tell("fsync", fsync(fd));
    tell("fsync of a pipe", fsync(ends[1]));
    tell("fsync of nothing", fsync(-1));
    tell("fdatasync", fdatasync(fd));
    tell("fdatasync of a pipe", fdatasync(ends[0]));
    tell("syncfs", syncfs(fd));
    tell("syncfs of nothing", syncfs(-1));
    tell("msync", msync(page, 8192, MS_SYNC));
    tell("msync, crooked", msync((char *)page + 1, 4096, MS_SYNC));
    tell("msync, both", msync(page, 4096, MS_SYNC | MS_ASYNC));
    tell("msync of nothing", msync((void *)4096, 4096, MS_SYNC));
    tell("msync of a block", msync((void *)((uintptr_t)malloc(20000) & ~4095ul), 4096, MS_SYNC));
    tell("range", sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WAIT_AFTER));
    tell("range of a pipe", sync_file_range(ends[1], 0, 0, SYNC_FILE_RANGE_WAIT_AFTER));
    tell("range, wrong", sync_file_range(fd, 0, 0, 64));
    tell("write", pwritev2(fd, &v, 1, 0, RWF_DSYNC));
    tell("write, wrong", pwritev2(fd, &v, 1, 0, RWF_DSYNC | 1 << 30));
    tell("number", syscall(SYS_fsync, ends[1]));
    tell("range by number", syscall(SYS_sync_file_range, fd, 0, 4096, 7));
    sync();
    tell("sync", 0);
    return 0;
}

// ---- cancellation -------------------------------------------------------------------------------

static const char *call;
static atomic_int back;
static void *make_call(void *cancelled) {
    int fd = fileno(tmpfile());
    if (cancelled)
        pthread_cancel(pthread_self());
    if (strcmp(call, "fsync") == 0)
        fsync(fd);
    else if (strcmp(call, "fdatasync") == 0)
        fdatasync(fd);
    else if (strcmp(call, "msync") == 0)
        msync(page, 4096, MS_SYNC);
    back++;
    return NULL;
}

static int cancel(void) {
    pthread_t thread;
    void *result;
    page = mmap(NULL, 4096, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    need(page != MAP_FAILED && pthread_create(&thread, NULL, make_call, "cancelled") == 0, call);
    need(pthread_join(thread, &result) == 0, call);
    printf("%s, back %d\n", result == PTHREAD_CANCELED ? "cancelled" : "not", back);
    value++;
    need(pthread_create(&thread, NULL, make_call, NULL) == 0, call);
    need(pthread_join(thread, &result) == 0, call);
    printf("%s, back %d\n", result == PTHREAD_CANCELED ? "cancelled" : "not", back);
    return 0;
}

// ---- signal handlers ----------------------------------------------------------------------------

static volatile int handler_file;
static _Atomic unsigned long handled;
static void sync_in_handler(int number) {
    (void)number;
    need(write(handler_file, "x", 1) == 1 && fsync(handler_file) == 0, "handler");
    handled++;
}

static int handler(void) {
    struct itimerval often = {{0, 500}, {0, 500}};
    struct sigaction action = {.sa_handler = sync_in_handler, .sa_flags = SA_RESTART};
    int fd = fileno(tmpfile());
    handler_file = fileno(tmpfile());
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    for (unsigned long i = 0; i < 300 || handled < 100; i++) {
        for (unsigned n = 0; n < 200; n++)
            free(malloc(n * 50));
        value++;
        need(fdatasync(fd) == 0, "fdatasync");
    }
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, 0}}, NULL);
    puts("fine");
    return 0;
}

// ---- a log --------------------------------------------------------------------------------------

static void keep_log(const char *path, const char *seen_by_others) {
    int fd = file(path), seen_fd = file(seen_by_others);
    need(ftruncate(seen_fd, sizeof(uint64_t)) == 0, seen_by_others);
    _Atomic uint64_t *seen = mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, seen_fd, 0);
    for (;;) {
        value++;
        char *line;
        int length = asprintf(&line, "%lu\n", (unsigned long)value);
        need(write(fd, line, (size_t)length) == length && fsync(fd) == 0, path);
        free(line);
        *seen = value;
    }
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "check") == 0)
        return printf("%lu\n", (unsigned long)value) < 0;
    if (strcmp(what, "lines") == 0 && argc == 4)
        return lines(strtoul(argv[2], NULL, 10), strtoul(argv[3], NULL, 10));
    if (strcmp(what, "answers") == 0)
        return answers();
    if (strcmp(what, "handler") == 0)
        return handler();
    if (strcmp(what, "cancel") == 0 && argc == 3) {
        call = argv[2];
        return cancel();
    }
    if (strcmp(what, "log") == 0 && argc == 4)
        keep_log(argv[2], argv[3]);
    return argc == 3 ? say(what, argv[2]) : 64;
}
