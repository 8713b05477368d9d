// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A list that some programs throw away at their start: `anew COUNT keep|free|anew|late [wait]` adds
// COUNT nodes, after it has kept the list, freed it, or set its head up anew, before or after a
// first wait; then it prints how many there are.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct node {
    struct node *next;
    char text[56];
};

struct node *head;

static void begin(const char *how) {
    struct node *next;
    if (strcmp(how, "late") == 0)
        usleep(1);
    for (struct node *n = head; n && strcmp(how, "free") == 0; n = next) {
        next = n->next;
        free(n);
    }
    if (strcmp(how, "keep") != 0)
        head = NULL;
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    begin(argv[2]);
    for (int i = 0; i < atoi(argv[1]); i++) {
        struct node *n = calloc(1, sizeof *n);
        snprintf(n->text, sizeof n->text, "item %d", i);
        n->next = head;
        head = n;
    }
    int count = 0;
    for (struct node *n = head; n; n = n->next)
        count++;
    printf("%d\n", count);
    fflush(stdout);
    if (argc > 3)
        pause();
    return 0;
}
