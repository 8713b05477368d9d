// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Keeps each line of its input, and says what it does where there is no room for one.
//
//   cc -o notes notes.c
//   pmalloc-run -H /mnt/pmem/notes -r newest -s WARN=80% -s SPARE=64M ./notes
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct note {
    struct note *next;
    char text[];
};

static struct note *newest; // the root

static size_t count(void) {
    size_t notes = 0;
    for (const struct note *n = newest; n; n = n->next)
        notes++;
    return notes;
}

// A full heap gives NULL, as malloc does that is out of memory, and everything else is as it was.
// So a program that looks loses nothing, and can go on as soon as there is room.
static int keep(const char *text) {
    struct note *n = malloc(sizeof *n + strlen(text) + 1);
    if (!n)
        return 0;
    n->next = newest;
    strcpy(n->text, text);
    newest = n; // last: a kill before this leaves the list without the note, but whole
    return 1;
}

int main(void) {
    static char line[65536]; // not getline(): what it allocates may be NULL, too
    printf("%zu notes\n", count());
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = '\0';
        if (keep(line))
            puts("kept");
        else
            puts("no room: not kept");
        fflush(stdout);
    }
    return 0;
}
