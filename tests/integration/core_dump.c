// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// core_dump HOW MEGABYTES allocates blocks of all sizes with known contents. Then HOW decides:
//
//   abort   the process dumps core
//   child   a forked child changes every block and dumps core
//   wait    the process prints a line, and ends when its standard input ends
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct item {
    long id;
    struct item *next;
    char text[];
};
struct item *first, *last;

static void label(struct item *item, const char *what) {
    snprintf(item->text, 40, "%s %ld", what, item->id);
}

static struct item *add(size_t size) {
    struct item *item = malloc(size);
    if (!item)
        exit(3);
    memset(item, 'x', size);
    item->id = last ? last->id + 1 : 0;
    item->next = NULL;
    label(item, "item");
    *(last ? &last->next : &first) = item;
    return last = item;
}

int main(int argc, char **argv) {
    static const size_t sizes[] = {64, 1000, 20000, 300000};
    size_t bytes = argc > 2 ? (size_t)atoi(argv[2]) << 20 : 0;
    for (size_t i = 0, done = 0; done < bytes; done += sizes[i++ % 4])
        add(sizes[i % 4]);
    add(64);
    if (argc > 1 && strcmp(argv[1], "wait") == 0) {
        printf("%ld\n", last->id);
        fflush(stdout);
        return getchar() == EOF ? 0 : 1;
    }
    if (argc > 1 && strcmp(argv[1], "child") == 0) {
        if (fork() != 0) {
            wait(NULL);
            return first->text[0] == 'i' && last->text[0] == 'i' ? 0 : 4;
        }
        for (struct item *item = first; item; item = item->next)
            label(item, "child's");
    }
    abort();
}
