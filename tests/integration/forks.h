// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What the cases of `forks` share. Every case keeps a list of blocks, and knows what each page of
// each block must hold. The globals `blocks` and `generation` are the roots. A failed check ends
// the process and prints its line.
#ifndef PMALLOC_TESTS_INTEGRATION_FORKS_H
#define PMALLOC_TESTS_INTEGRATION_FORKS_H

#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: process %d: %s does not hold (errno %d)\n", __FILE__,          \
                    __LINE__, (int)getpid(), #condition, errno);                                   \
            fflush(stderr);                                                                        \
            _exit(3);                                                                              \
        }                                                                                          \
    } while (0)
#define PAGE 4096
#define MIB ((size_t)1 << 20)

struct block {
    struct block *next;
    size_t size;
    long tag; // names the process that filled it
};

extern struct block *blocks;
extern long generation;
extern const char *argument; // FILE of the command line

void fill(struct block *b, long tag);
void check_block(const struct block *b, long tag);
void add(size_t size, long tag);
void build(size_t megabytes, long tag);
unsigned check_all(long tag);
void fill_all(long tag);
void churn(long tag);
int ended(pid_t pid);
pid_t forked(void);
void await(int fd);
void tell(int fd);

// A thread that allocates and frees until `enough` is set.
extern volatile int enough;
void *allocate(void *arg);

// forks_copying.c: parent and child go on with the same blocks
void isolation(size_t megabytes);
void orphan(size_t megabytes);
void stopped(size_t megabytes);
void traced(size_t megabytes);
void closing(size_t megabytes);
void deep(size_t megabytes);
void hasty(size_t megabytes);
void broad(size_t megabytes);
void threads(size_t megabytes);
void sparse(size_t megabytes);
void signals(size_t megabytes);
void cancelled(size_t megabytes);
void protect(size_t megabytes);

// forks_refused.c: the kernel refuses something
void no_descriptors(size_t megabytes);
void no_process(size_t megabytes);
void no_copier(size_t megabytes);
void data_limit(size_t megabytes);
void namespaces(size_t megabytes);

// forks_clone.c: children that execute at once, or that fork() did not make
void exec(size_t megabytes);
void bare(size_t megabytes);
void cloned(size_t megabytes);

// forks_daemons.c: children that live on with heaps of their own
void copies(size_t megabytes);
void daemon_single(size_t megabytes);
void daemon_awaited(size_t megabytes);
void daemon_double(size_t megabytes);
void daemon_libc(size_t megabytes);
void daemon_closing(size_t megabytes);
void daemon_threads(size_t megabytes);
void daemon_growing(size_t megabytes);

#endif
