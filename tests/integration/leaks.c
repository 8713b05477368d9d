// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Blocks that are reached in one way each, by the first argument, and blocks that nothing reaches:
// LOST of 112 bytes, 3 of 20,000 and 2 of 300,000. The block that is reached in the way under test
// has 5,000 bytes, and is the only one of this size. With "stay" as the last argument the program
// then says a line, and ends when it is told something.
#include <dlfcn.h>
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

#define LOST 7
#define KEPT 5000

void *volatile global;
static __thread void *volatile local;
static pthread_barrier_t ready;

__attribute__((noinline)) static void lose(int count, size_t size) {
    for (int i = 0; i < count; i++) {
        char *volatile p = malloc(size);
        memset(p, 1, size);
        p = NULL;
    }
}

// Overwrites what returned functions have left on the stack.
__attribute__((noinline)) static void clear_stack(void) {
    volatile char old[16384];
    for (size_t i = 0; i < sizeof old; i++)
        old[i] = 0;
}

// ---- other threads ------------------------------------------------------------------------------

// These three never return, and leave the pointer in the one place, nothing in the red zone.
#define CLEAR_RED_ZONE                                                                             \
    "leaq -128(%%rsp), %%rdi\n\tmovl $16, %%ecx\n\txorl %%eax, %%eax\n\trep stosq\n\t"

static void in_register(void *p) {
    __asm__ volatile("movq %0, %%r12\n\t" CLEAR_RED_ZONE "xorl %k0, %k0\n1:\tpause\n\tjmp 1b"
                     :
                     : "b"(p)
                     : "r12", "rdi", "rcx", "rax", "memory");
}

static void in_vector(void *p) {
    __asm__ volatile("movq %0, %%xmm9\n\t" CLEAR_RED_ZONE "xorl %k0, %k0\n1:\tpause\n\tjmp 1b"
                     :
                     : "b"(p)
                     : "xmm9", "rdi", "rcx", "rax", "memory");
}

// In a register that calls preserve, while the thread sleeps in one.
static void in_sleep(void *p) {
    __asm__ volatile("movq %0, %%r15\n\txorl %k0, %k0\n\tandq $-16, %%rsp\n"
                     "1:\tmovl $1000, %%edi\n\tcall sleep@PLT\n\tjmp 1b"
                     :
                     : "b"(p)
                     : "r15", "rdi", "memory");
}

static void in_red_zone(void *p) {
    __asm__ volatile(CLEAR_RED_ZONE "movq %0, -120(%%rsp)\n\txorl %k0, %k0\n1:\tpause\n\tjmp 1b"
                     :
                     : "b"(p)
                     : "rdi", "rcx", "rax", "memory");
}

static void in_tls(void *p) {
    local = p;
    p = NULL;
    for (;;)
        pause();
}

static void in_key(void *p) {
    pthread_key_t key;
    pthread_key_create(&key, NULL);
    pthread_setspecific(key, p);
    p = NULL;
    for (;;)
        pause();
}

static void in_handler(int number) {
    (void)number;
    char *volatile p = malloc(KEPT);
    pthread_barrier_wait(&ready);
    for (;;)
        pause();
    free(p);
}

// A handler on an alternate stack, which only the kernel knows.
static void on_altstack(void *p) {
    stack_t stack = {.ss_sp = malloc(65536), .ss_size = 65536};
    struct sigaction action = {.sa_handler = in_handler, .sa_flags = SA_ONSTACK};
    free(p);
    p = NULL;
    sigaltstack(&stack, NULL);
    stack.ss_sp = NULL;
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
}

static void (*how)(void *);

static void *thread(void *unused) {
    (void)unused;
    if (how != on_altstack)
        pthread_barrier_wait(&ready);
    how(malloc(KEPT));
    return NULL;
}

static void in_thread(void (*function)(void *)) {
    pthread_t id;
    how = function;
    pthread_barrier_init(&ready, NULL, 2);
    pthread_create(&id, NULL, thread, NULL);
    pthread_barrier_wait(&ready);
    usleep(20000); // until it is where it stays; on its way it has the pointer, too
}

// ---- this thread --------------------------------------------------------------------------------

static ucontext_t coroutine, back;

static void run_coroutine(void) {
    char *volatile p = malloc(KEPT);
    swapcontext(&coroutine, &back);
    free(p);
}

static void in_coroutine(void) {
    getcontext(&coroutine);
    coroutine.uc_stack.ss_size = 65536;
    coroutine.uc_stack.ss_sp = malloc(65536);
    coroutine.uc_link = &back;
    makecontext(&coroutine, run_coroutine, 0);
    swapcontext(&back, &coroutine);
}

static void in_library(const char *path) {
    void *library = dlopen(path, RTLD_NOW);
    void **data = dlsym(library, "kept_data");
    void **(*tls)(void) = (void **(*)(void))(uintptr_t)dlsym(library, "kept_tls");
    if (strstr(path, "tls"))
        *tls() = malloc(KEPT);
    else
        *data = malloc(KEPT);
}

// Says a line, and ends when it is told something.
static void stay_on(void) {
    char byte = '\n';
    if (write(STDOUT_FILENO, &byte, 1) == 1 && read(STDIN_FILENO, &byte, 1) < 0)
        perror("read");
}

static void keep(const char *way, const char *library) {
    if (strcmp(way, "global") == 0) {
        global = malloc(KEPT);
    } else if (strcmp(way, "interior") == 0) {
        global = (char *)malloc(KEPT) + KEPT - 1;
    } else if (strcmp(way, "chain") == 0) {
        void **at = malloc(32);
        global = at;
        for (int i = 0; i < 100000; i++)
            at = *at = calloc(1, 32);
        *at = malloc(KEPT);
    } else if (strcmp(way, "large") == 0) {
        void **large = malloc(64 << 20);
        global = large;
        large[(60 << 20) / sizeof *large] = malloc(KEPT);
    } else if (strcmp(way, "mapped") == 0 || strcmp(way, "shared") == 0) {
        int kind = *way == 'm' ? MAP_PRIVATE : MAP_SHARED;
        void **map = mmap(NULL, 65536, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0);
        map[1000] = malloc(KEPT);
        if (kind == MAP_PRIVATE)
            mprotect(map, 65536, PROT_READ);
    } else if (strcmp(way, "tls") == 0) {
        local = malloc(KEPT);
    } else if (strcmp(way, "coroutine") == 0) {
        in_coroutine();
    } else if (strncmp(way, "library", 7) == 0) {
        in_library(library);
    } else if (strcmp(way, "lost") == 0) {
        lose(1, KEPT);
    } else if (strcmp(way, "freed") == 0) {
        free(malloc(KEPT)); // lies in a thread cache
    }
}

static void (*const of_thread[])(void *) = {in_register, in_vector, in_sleep,   in_red_zone,
                                            in_tls,      in_key,    on_altstack};
static const char *const names[] = {"register",   "vector",     "sleep",          "red-zone",
                                    "thread-tls", "thread-key", "alternate-stack"};

int main(int argc, char **argv) {
    const char *way = argc > 1 ? argv[1] : "global";
    bool stay = argc > 1 && strcmp(argv[argc - 1], "stay") == 0;
    if (stay)
        free(global = malloc(1 << 20)); // a program that has asked for little has no heap yet
    if (strcmp(way, "child") == 0) {
        pid_t child = fork();
        if (child)
            return waitpid(child, NULL, 0) < 0;
    }
    lose(LOST, 112);
    lose(3, 20000);
    lose(2, 300000);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(way, names[i]) == 0)
            in_thread(of_thread[i]);
    keep(way, argc > 2 ? argv[2] : NULL);
    clear_stack();
    if (strcmp(way, "killed") == 0)
        kill(getpid(), SIGKILL);
    fflush(stdout);
    if (stay)
        stay_on();
    exit(0);
}
