// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Counts visits by name. Each visit changes two words and may add a block: after a kill at any
// instant all of that is there, or none.
//
//   cc visits.c $(pkg-config --cflags --libs libpmalloc) -o visits
//   PMALLOC_HEAP=$HOME/visits-heap ./visits Ada
#include <pmalloc.h>

#include <stdio.h>
#include <string.h>

struct visitor {
    struct visitor *next;
    uint64_t visits;
    char name[48];
};

struct book {
    struct visitor *first;
    uint64_t visits; // of all
};

// What root slot 0 reaches survives the process.
static struct book *open_book(void) {
    struct book *book = pmalloc_get_root(0);
    if (book)
        return book;
    pmalloc_op op[2];
    book = pmalloc_reserve(&op[0], sizeof *book, 0, PMALLOC_ZERO);
    if (!book || pmalloc_store_root(&op[1], 0, book) != 0 || pmalloc_publish(op, 2) != 0)
        return NULL;
    return book;
}

static int visit(struct book *book, const char *name) {
    pmalloc_op op[3] = {0}; // an element of zeroes does nothing
    struct visitor *v = book->first;
    while (v && strcmp(v->name, name) != 0)
        v = v->next;
    if (v) {
        pmalloc_store(&op[0], &v->visits, v->visits + 1);
    } else {
        v = pmalloc_reserve(&op[0], sizeof *v, 0, PMALLOC_ZERO);
        if (!v)
            return -1;
        // Nothing reaches the block before the publish, so it is filled by ordinary stores.
        v->next = book->first;
        v->visits = 1;
        strncpy(v->name, name, sizeof v->name - 1);
        pmalloc_store(&op[1], &book->first, (uintptr_t)v);
    }
    pmalloc_store(&op[2], &book->visits, book->visits + 1);
    return pmalloc_publish(op, 3);
}

int main(int argc, char **argv) {
    struct book *book = open_book();
    if (!book || (argc > 1 && visit(book, argv[1]) != 0)) {
        perror("visits");
        return 1;
    }
    for (struct visitor *v = book->first; v; v = v->next)
        printf("%s %lu\n", v->name, (unsigned long)v->visits);
    printf("%lu in all\n", (unsigned long)book->visits);
    return 0;
}
