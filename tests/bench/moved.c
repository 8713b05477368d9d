// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// moved OBJECTS: as many objects of 64 bytes, each with a word that leads to one of four functions.
// Another run calls the function of every thousandth. `-DANOTHER` is another build, in which the
// functions lie elsewhere. Prints what it found, and ends at once.
#include <stdio.h>
#include <stdlib.h>

struct object {
    struct object *next;
    int (*call)(int);
    long number;
    char rest[40];
};

struct object *newest; // the root

#ifdef ANOTHER
__attribute__((used)) int first(int x) { return 7 * x; }
#endif
int add(int x) { return x + 1; }
int subtract(int x) { return x - 1; }
#ifdef ANOTHER
__attribute__((used)) int second(int x) { return first(x) + first(2 * x); }
#endif
int twice(int x) { return 2 * x; }
int negate(int x) { return -x; }

static int (*const calls[])(int) = {add, subtract, twice, negate};

static int expected(long number) {
    const int of[] = {11, 9, 20, -10};
    return of[number % 4];
}

int main(int argc, char **argv) {
    long objects = argc > 1 ? atol(argv[1]) : 1000, found = 0, wrong = 0;
    const char *what = newest ? "found" : "made";
    for (long i = 0; !(what[0] == 'f') && i < objects; i++) {
        struct object *o = malloc(sizeof *o);
        if (!o)
            return 1;
        *o = (struct object){.next = newest, .call = calls[i % 4], .number = i};
        newest = o;
    }
    printf("%s\n", what);
    fflush(stdout);
    for (const struct object *o = newest; o; o = o->next)
        if (found++ % 1000 == 0)
            wrong += o->call(10) != expected(o->number);
    printf("%ld objects, %ld wrong\n", found, wrong);
    return found != objects || wrong;
}
