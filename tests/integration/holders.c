// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Variables that have data. usage: holders [wait [guard]]. Stops after it has said "ready"; a line
// from standard input lets it go on: it checks its list, and says how long that is. `guard`: there
// is a page amid its variables that nobody may read.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NODES 1000
#define ROWS 64
#define TAG (0x5aull << 56)

struct node {
    struct node *next;
    char rest[192];
};

extern char **environ;
extern struct node *library_head;
extern int pmalloc_set_root(unsigned slot, void *p) __attribute__((weak));

struct {
    long count;
    double weight;
    struct node *list, *again;
} store;
char **table;
struct node *alias, *middle;
uintptr_t tagged;
struct {
    char guard[4096], *behind;
} guarded __attribute__((aligned(4096)));
char *no_block = (char *)&store;

static struct node *make_list(unsigned count) {
    struct node *first = NULL;
    while (count-- > 0) {
        struct node *n = calloc(1, sizeof *n);
        n->next = first;
        first = n;
    }
    return first;
}

// As setenv() leaves it where the block was in use before.
static void old_pointer_behind_environment(void) {
    enum { WORDS = 500 };
    char **array = malloc(WORDS * sizeof *array);
    unsigned count = 0;
    for (; count + 2 < WORDS && environ[count]; count++)
        array[count] = environ[count];
    memset(array + count, 0, (WORDS - count) * sizeof *array);
    struct node *late = middle;
    while (late->next && count++ < WORDS)
        late = late->next;
    array[WORDS - 1] = (char *)late;
    environ = array;
}

int main(int argc, char **argv) {
    struct node *n;
    unsigned count = 0;
    store.list = make_list(NODES);
    store.again = store.list;
    alias = store.list->next;
    for (middle = alias; ++count < NODES / 2;)
        middle = middle->next;
    old_pointer_behind_environment();
    middle = (struct node *)(void *)((char *)middle + 40); // somewhere in it
    table = calloc(ROWS, sizeof *table);
    for (unsigned i = 0; i < ROWS; i++)
        memset(table[i] = malloc(500), (int)i, 500);
    library_head = make_list(300);
    tagged = (uintptr_t)malloc(100) | TAG;
    if (pmalloc_set_root)
        pmalloc_set_root(7, make_list(20));
    guarded.behind = malloc(700);
    if (argc > 2 && mprotect(guarded.guard, sizeof guarded.guard, PROT_NONE) != 0)
        return 1;
    dprintf(STDOUT_FILENO, "ready\n"); // no stdio: its buffers' pointers would change meanwhile
    if (argc > 1 && strcmp(argv[1], "wait") == 0)
        for (char c; read(STDIN_FILENO, &c, 1) == 1 && c == '\n';) {
            for (count = 0, n = store.list; n; n = n->next)
                count++;
            dprintf(STDOUT_FILENO, "%u\n", count);
        }
    return 0;
}
