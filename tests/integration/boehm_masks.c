// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program that keeps its objects by a sixteenth of their addresses, and says so to the collector:
//
//   boehm_masks make     makes them, collects, and kills itself
//   boehm_masks look     says how many are there
//   boehm_masks odd      asks for a mask that is not one row of bits
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <gc/gc.h>

// Younger than the headers, and than Debian's libgc.
static void (*set_mask)(GC_word mask);
static void (*set_shift)(unsigned shift);
static unsigned (*get_shift)(void);

static void find_all(void) {
    *(void **)&set_mask = dlsym(RTLD_DEFAULT, "GC_set_pointer_mask");
    *(void **)&set_shift = dlsym(RTLD_DEFAULT, "GC_set_pointer_shift");
    *(void **)&get_shift = dlsym(RTLD_DEFAULT, "GC_get_pointer_shift");
}

enum { COUNT = 1000, SIZE = 80, SHIFT = 4 };
GC_word **kept; // the root

static void make(void) {
    kept = GC_MALLOC(COUNT * sizeof *kept);
    for (GC_word i = 0; i < COUNT; i++) {
        GC_word *object = GC_MALLOC(SIZE);
        object[0] = i;
        kept[i] = (GC_word *)((uintptr_t)object >> SHIFT);
    }
}

static int found(void) {
    int count = 0;
    for (GC_word i = 0; kept && i < COUNT; i++) {
        const GC_word *object = (const GC_word *)((uintptr_t)kept[i] << SHIFT);
        count += object[0] == i;
    }
    return count;
}

static void overwrite(void) {
    for (int i = 0; i < 4 * COUNT; i++)
        memset(GC_MALLOC(SIZE), 0xa5, SIZE);
}

int main(int argc, char **argv) {
    int odd = argc == 2 && strcmp(argv[1], "odd") == 0;
    find_all();
    set_mask(odd ? 0xff00ff : ~(GC_word)0);
    set_shift(odd ? 0 : SHIFT);
    GC_INIT();
    if (argc == 2 && strcmp(argv[1], "make") == 0) {
        make();
        GC_gcollect();
        overwrite();
        printf("%d\n", found());
        fflush(stdout);
        raise(SIGKILL);
    }
    overwrite();
    printf("%d %u\n", found(), get_shift());
    return 0;
}
