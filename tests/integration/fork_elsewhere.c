// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Makes children past the C library of the program. Neither process sees what the other stores.
//
//   fork_elsewhere HOW END [late]
//                            HOW: space (fork of a C library in another namespace), path (the same,
//                            named by a path), instruction (the system call itself)
//                            END: _exit, exit, idle (it stores nothing, and calls exit)
//                            late: another thread has allocated the block
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define TIMES 4
#define BYTES ((size_t)64 << 10)

long root[512] __attribute__((aligned(4096))); // alone in its page
static char *block, *stored = "a";             // `stored` lies in a page that may be captured

static pid_t by_instruction(void) {
    long pid;
    register long child_tid __asm__("r10") = 0;
    register long tls __asm__("r8") = 0;
    __asm__ volatile("syscall"
                     : "=a"(pid)
                     : "a"((long)SYS_clone), "D"((long)SIGCHLD), "S"(0L), "d"(0L), "r"(child_tid),
                       "r"(tls)
                     : "rcx", "r11", "memory");
    return (pid_t)pid;
}

typedef pid_t fork_fn(void);

static fork_fn *fork_of_space(bool path) {
    struct link_map *map = NULL;
    fork_fn *made;
    void *here = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
    if (!here || dlinfo(here, RTLD_DI_LINKMAP, &map) != 0)
        exit(77);
    void *space = dlmopen(LM_ID_NEWLM, path ? map->l_name : "libc.so.6", RTLD_NOW);
    if (!space) {
        fprintf(stderr, "%s\n", dlerror());
        exit(3);
    }
    *(void **)&made = dlsym(space, "fork");
    return made;
}

static bool all_are(char value) {
    bool good = true;
    for (size_t i = 0; i < BYTES; i++)
        good &= block[i] == value;
    return good && *stored == value;
}

static void set_all(char *value) {
    memset(block, *value, BYTES);
    stored = value;
}

static int child(void) {
    bool good = all_are('a');
    set_all("c");
    for (size_t size = 100; size < 4 << 20; size *= 8)
        free(memset(malloc(size), 7, size));
    return good && all_are('c') ? 4 : 5;
}

static void *allocate(void *arg) {
    block = malloc(BYTES);
    return arg;
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "", *end = argc > 2 ? argv[2] : "";
    fork_fn *made =
        strcmp(how, "instruction") == 0 ? by_instruction : fork_of_space(strcmp(how, "path") == 0);
    pthread_t thread;
    if (argc > 3 &&
        (pthread_create(&thread, NULL, allocate, NULL) != 0 || pthread_join(thread, NULL) != 0))
        return 3;
    if (argc <= 3)
        allocate(NULL);
    set_all("a");
    for (int i = 0; i < TIMES; i++) {
        int status = -1;
        pid_t pid = made();
        if (pid == 0) {
            int result = strcmp(end, "idle") == 0 ? 4 : child();
            if (strcmp(end, "_exit") == 0)
                _exit(result);
            exit(result);
        }
        if (waitpid(pid, &status, 0) != pid || status != 4 << 8 || !all_are('a')) {
            fprintf(stderr, "child %d: wait status %x; the block has %c\n", i, (unsigned)status,
                    *block);
            return 1;
        }
    }
    free(malloc(3 << 20));
    puts("right");
    return 0;
}
