// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program that is linked with libpmalloc and names no heap. Its arguments are done in turn:
//
//   found          counts the list that hangs at root slot 0
//   add N          puts N entries before the list
//   root publish pinned path     gives the heap its name: by a root, a root in a publish, a pinned
//                  block, or a question
//   close          closes every descriptor but the first three
//   thread         makes a thread that does nothing
//   threads        allocates from four threads until the end
//   fork           a child counts the list and adds to its own copy
//   fail N   die N     from now on the Nth call that changes names fails or is the last one
//   wait           until a line comes
//   kill
//   errno          what errno was after the last root
//   handler        sets a root in a signal handler that interrupts the allocator
//   user           becomes another user
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nameless_calls.h"
#include "preload/pmalloc.h"

// ---- what it does -------------------------------------------------------------------------------

struct entry {
    struct entry *next;
    uint64_t number, check;
    char more[200];
};

static struct entry *head;

static uint64_t count(void) {
    uint64_t n = 0;
    for (const struct entry *e = head; e; e = e->next, n++)
        if (e->check != ~e->number || (e->next && e->next->number + 1 != e->number)) {
            printf("entry %lu is wrong\n", (unsigned long)e->number);
            exit(1);
        }
    return n;
}

static void add(int n) {
    for (; n > 0; n--) {
        struct entry *e = malloc(sizeof *e);
        if (!e) {
            printf("no memory for %d\n", n);
            exit(1);
        }
        e->next = head;
        e->number = head ? head->number + 1 : 0;
        e->check = ~e->number;
        head = e;
    }
}

static int left; // in errno by the last root

static int set_root(void) {
    errno = E2BIG;
    int said = pmalloc_set_root(0, head);
    left = errno;
    return said;
}

static void on_signal(int number) {
    (void)number;
    printf("handler %d\n", set_root());
}

static void be_interrupted(void) {
    signal(SIGUSR1, on_signal);
    interrupt_at = 1;
    void *volatile block = malloc(4 << 20);
    free(block);
    if (interrupt_at)
        printf("no handler ran\n");
}

static void *rest(void *arg) {
    pause();
    return arg;
}

static void *work(void *arg) {
    for (size_t i = 0;; i++) {
        size_t size = 100 + i % 20000;
        char *p = malloc(size);
        if (!p)
            abort();
        memset(p, 1, size);
        if (i % 4)
            free(p);
        if (i > 20000)
            return arg;
    }
}

static void in_child(void) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        uint64_t before = count();
        add(50000);
        _exit(count() == before + 50000 ? 0 : 1);
    }
    waitpid(child, &status, 0);
    printf("child %d\n", status);
}

static void publish(void) {
    pmalloc_op op[1] = {0};
    int said = pmalloc_store_root(&op[0], 0, head);
    printf("publish %d\n", said ? said : pmalloc_publish(op, 1));
}

static const char *act(const char *what, const char *more) {
    pthread_t thread;
    char line[8];
    if (strcmp(what, "found") == 0) {
        head = pmalloc_get_root(0);
        printf("found %lu, persistent %d\n", (unsigned long)count(), pmalloc_is_persistent());
    } else if (strcmp(what, "add") == 0) {
        add(atoi(more));
        return more;
    } else if (strcmp(what, "root") == 0) {
        printf("root %d\n", set_root());
    } else if (strcmp(what, "publish") == 0) {
        publish();
    } else if (strcmp(what, "pinned") == 0) {
        printf("pinned %d\n", pmalloc_alloc(100, 0, PMALLOC_PINNED) != NULL);
    } else if (strcmp(what, "path") == 0) {
        printf("path %s\n", pmalloc_heap_path());
    } else if (strcmp(what, "close") == 0) {
        for (int fd = 3; fd < 70000; fd++)
            syscall(SYS_close, fd); // close() spares what is the library's
    } else if (strcmp(what, "thread") == 0) {
        pthread_create(&thread, NULL, rest, NULL);
    } else if (strcmp(what, "threads") == 0) {
        for (int i = 0; i < 4; i++)
            pthread_create(&thread, NULL, work, NULL);
    } else if (strcmp(what, "fork") == 0) {
        in_child();
    } else if (strcmp(what, "fail") == 0) {
        fail_at = atoi(more);
        return more;
    } else if (strcmp(what, "die") == 0) {
        die_at = atoi(more);
        return more;
    } else if (strcmp(what, "wait") == 0) {
        printf("waiting\n");
        if (!fgets(line, sizeof line, stdin))
            exit(1);
    } else if (strcmp(what, "errno") == 0) {
        printf("errno %d\n", left);
    } else if (strcmp(what, "handler") == 0) {
        be_interrupted();
    } else if (strcmp(what, "user") == 0) {
        printf("user %d\n", seteuid(65534));
    } else if (strcmp(what, "kill") == 0) {
        raise(SIGKILL);
    }
    return NULL;
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++)
        if (act(argv[i], argv[i + 1]))
            i++;
    printf("end %lu\n", (unsigned long)count());
    return 0;
}
