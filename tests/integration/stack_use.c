// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// How much stack a call takes. Each step runs on a stack of its own that is painted before; then
// the lowest byte that has changed tells. Linked with -z now: to bind a name takes stack, too.
//
//   stack_use measure     a line for each kind of step, with the most that one of its kind took
//   stack_use exit BYTES  exit() on a stack of that size; nobody may touch the page below it
//   stack_use alone heap|root
//                         the same by the program's only thread, whose smallest stack lies there
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

enum { STACK = 64 << 10, PAINT = 0xa5, BLOCKS = 3000, PAGE = 4096 };

void *keep;

static unsigned char *stack;
static ucontext_t here;
static void (*running)(long);
static long argument;

static void on_it(void) { running(argument); }

static void prepare_stack(ucontext_t *there, unsigned char *at, size_t size) {
    if (getcontext(there) != 0)
        exit(4);
    there->uc_stack.ss_sp = at;
    there->uc_stack.ss_size = size;
    there->uc_link = &here;
    makecontext(there, on_it, 0);
}

static size_t used(void) {
    const uint64_t paint = PAINT * 0x0101010101010101ull, *word = (const void *)stack;
    size_t at = 0;
    while (at < STACK / sizeof paint && word[at] == paint)
        at++;
    return STACK - at * sizeof paint;
}

static size_t takes(void (*step)(long), long with) {
    ucontext_t there;
    size_t last = used();
    memset(stack + STACK - last, PAINT, last);
    running = step;
    argument = with;
    prepare_stack(&there, stack, STACK);
    if (swapcontext(&here, &there) != 0)
        exit(4);
    return used();
}

// ---- the steps ----------------------------------------------------------------------------------

static void *block[BLOCKS];
static size_t length[BLOCKS];
static int ends[2];
static bool child_is_small; // the last child's report
static long child_used;

static void allocates(long i) { block[i] = malloc(length[i]); }
static void clears(long i) { block[i] = calloc(1, length[i]); }
static void aligns(long i) { block[i] = memalign(4096, length[i]); }
static void frees(long i) {
    free(block[i]);
    block[i] = NULL;
}
static void grows(long i) { block[i] = realloc(block[i], length[i] += length[i] / 2 + 100); }
static void asks(long i) { length[i] = malloc_usable_size(block[i]); }
static void trims(long i) { (void)i, malloc_trim(0); }
static void forks(long i) {
    long report = 0;
    pid_t child = fork();
    if (child == 0) {
        report = (long)used();
        (void)!write(ends[1], &report, sizeof report);
        _exit(0);
    }
    (void)i;
    (void)!read(ends[0], &child_used, sizeof child_used);
    child_is_small = waitpid(child, NULL, 0) == child;
}
static void writes(long i) { (void)!write(ends[1], &i, sizeof i); }
static void reads(long i) { (void)!read(ends[0], &i, sizeof i); }
static int (*commit)(void);
static void commits(long i) { (void)i, commit(); }
static void *ends_at_once(void *p) { return p; }
static void starts_thread(long i) {
    pthread_t thread;
    (void)i;
    if (pthread_create(&thread, NULL, ends_at_once, NULL) == 0)
        pthread_join(thread, NULL);
}
static void ignores(int number) { (void)number; }
static void handles(long i) { (void)i, signal(SIGUSR1, ignores); }
static void protects(long i) {
    char *from = (char *)(((uintptr_t)block[i] + PAGE - 1) & -(uintptr_t)PAGE);
    mprotect(from, PAGE, PROT_READ);
    mprotect(from, PAGE, PROT_READ | PROT_WRITE);
    madvise(from, PAGE, MADV_DONTNEED);
}

// ---- measuring ----------------------------------------------------------------------------------

static size_t most;

static void note(size_t bytes) { most = bytes > most ? bytes : most; }

static void tell(const char *what) {
    printf("%s %zu\n", what, most);
    most = 0;
}

static size_t some_length(unsigned *seed) {
    static const size_t lengths[] = {16, 100, 300, 1000, 3000, 9000, 20000, 100000, 700000};
    return lengths[(unsigned)rand_r(seed) % 9] + (unsigned)rand_r(seed) % 16;
}

static void measure_blocks(void) {
    static void (*const makes[])(long) = {allocates, clears, aligns};
    unsigned seed = 1;
    for (long round = 0; round < 4 * BLOCKS; round++) {
        long i = rand_r(&seed) % BLOCKS;
        if (block[i]) {
            note(takes(frees, i));
        } else {
            length[i] = some_length(&seed);
            note(takes(makes[rand_r(&seed) % 3], i));
        }
    }
    for (long i = 0; i < BLOCKS; i += 2)
        note(takes(frees, i));
    note(takes(trims, 0));
    tell("blocks");
    for (size_t size = 1 << 20; size < (size_t)64 << 20; size *= 3) {
        length[0] = size;
        note(takes(allocates, 0));
        note(takes(asks, 0));
        note(takes(protects, 0));
        note(takes(frees, 0));
    }
    length[0] = 100;
    note(takes(allocates, 0));
    for (int i = 0; i < 20; i++)
        note(takes(grows, 0));
    tell("large");
}

static int measure(void) {
    *(void **)&commit = dlsym(RTLD_DEFAULT, "pmalloc_commit");
    if (pipe(ends) != 0)
        return 4;
    measure_blocks();
    for (int i = 0; i < 3; i++) {
        note(takes(forks, 0));
        note((size_t)child_used);
    }
    tell("fork");
    if (!child_is_small)
        return 3;
    for (int i = 0; i < 5; i++) {
        keep = block[1];
        note(takes(writes, 1));
        note(takes(reads, 1));
        if (commit)
            note(takes(commits, 0));
    }
    tell("commit");
    note(takes(handles, 0));
    for (int i = 0; i < 3; i++)
        note(takes(starts_thread, 0));
    tell("thread");
    return 0;
}

static void leaves(long status) { exit((int)status); }

static int leave_on(size_t size) {
    ucontext_t there;
    unsigned char *at = mmap(NULL, PAGE + size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || mprotect(at + PAGE, size, PROT_READ | PROT_WRITE) != 0)
        return 4;
    running = leaves;
    argument = 7;
    prepare_stack(&there, at + PAGE, size);
    setcontext(&there);
    return 4;
}

// ---- the only thread ----------------------------------------------------------------------------

char *kept;
static char in_root[STACK] __attribute__((aligned(4096)));
static pthread_t first;

static void *ends_alone(void *p) {
    pthread_join(first, NULL);
    exit(7);
    return p;
}

static int leave_alone(char *at, size_t size) {
    pthread_t thread;
    pthread_attr_t attr;
    kept = at;
    first = pthread_self();
    for (long i = 0; i < BLOCKS; i++) {
        block[i] = malloc(100 + (size_t)i);
        if (i % 3)
            free(block[i]);
    }
    if (pthread_attr_init(&attr) != 0 || pthread_attr_setstack(&attr, at, size) != 0 ||
        pthread_create(&thread, &attr, ends_alone, NULL) != 0)
        return 4;
    pthread_exit(NULL);
}

int main(int argc, char **argv) {
    stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED || argc < 2)
        return 4;
    setvbuf(stdout, NULL, _IOLBF, 0);
    memset(stack, PAINT, STACK);
    keep = malloc(100000);
    if (strcmp(argv[1], "alone") == 0)
        return leave_alone(strcmp(argv[2], "root") == 0 ? in_root : memalign(PAGE, STACK),
                           (size_t)sysconf(_SC_THREAD_STACK_MIN));
    return strcmp(argv[1], "exit") == 0 ? leave_on((size_t)atol(argv[2])) : measure();
}
