// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Big tables from calloc of which little is used, for test_sparse.py.
//
//   sparse make MB         makes and frees tables; keeps the last one, and kills itself
//   sparse child MB        a forked child does that, after tables of its parent
//   sparse look MB         what the kept table has
//
// For each table a line: bytes that are not zero, and what it cost to get it, in words that are the
// same for all sizes.
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 4
#define PIECE ((size_t)1 << 20)
#define FAR ((size_t)1 << 20) // between two bytes that a table keeps

char *table; // the root
static size_t len;

static long faults(void) {
    struct rusage use;
    getrusage(RUSAGE_THREAD, &use); // PMAlloc's own thread makes commits meanwhile
    return use.ru_minflt;
}

static long resident(void) {
    long size = 0, pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%ld %ld", &size, &pages) != 2)
        exit(3);
    fclose(f);
    return pages;
}

// Three pieces that each table stores to as a whole: at the start, amid, and at the end.
static char *piece(unsigned i) { return table + i * ((len - PIECE) / 2 + 4091 * (i == 1)); }

static size_t not_zero(void) {
    size_t found = 0;
    for (unsigned i = 0; i < 3; i++)
        for (size_t at = 0; at < PIECE; at++)
            found += piece(i)[at] != 0;
    return found;
}

static void get_table(void) {
    long before = faults(), had = resident();
    table = calloc(1, len);
    if (!table)
        exit(4);
    long took = faults() - before, more = resident() - had;
    printf("dirty %zu", not_zero());
    printf(" faults %s pages %s\n", took < 300 ? "few" : "many", more < 300 ? "few" : "many");
    fflush(stdout);
}

static void fill(void) {
    for (unsigned i = 0; i < 3; i++)
        memset(piece(i), 0xa5, PIECE);
}

static void keep(void) {
    for (size_t at = FAR / 2; at < len; at += FAR)
        table[at] = (char)(at / FAR + 1);
}

static void rounds(void) {
    for (int i = 0; i < ROUNDS; i++) {
        get_table();
        fill();
        free(table);
    }
    get_table();
    keep();
}

static void look(void) {
    size_t right = 0, wrong = 0;
    if (!table) {
        puts("no table");
        return;
    }
    for (size_t at = 0; at < len; at++) {
        char expected = at % FAR == FAR / 2 ? (char)(at / FAR + 1) : 0;
        right += expected && table[at] == expected;
        wrong += table[at] != expected;
    }
    printf("right %zu wrong %zu\n", right, wrong);
}

static void child(void) {
    rounds();
    free(table);
    fflush(stdout);
    if (fork() == 0) {
        rounds();
        look();
        fflush(stdout);
        _exit(0);
    }
    int status;
    if (wait(&status) < 0 || status != 0)
        printf("status %d\n", status);
    get_table();
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    len = (size_t)atoi(argv[2]) << 20;
    if (strcmp(argv[1], "make") == 0) {
        rounds();
        puts("made");
        fflush(stdout);
        kill(getpid(), SIGKILL);
    } else if (strcmp(argv[1], "child") == 0) {
        child();
    } else {
        look();
    }
    return 0;
}
