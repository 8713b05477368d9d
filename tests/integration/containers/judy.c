// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Judy's arrays: the kind of a node beside or in the pointer to it.
#include <Judy.h>

#include "container.h"

struct {
    Pvoid_t words, text;
} store;

static size_t key(size_t i) { return i * 0x9e3779b97f4a7c15u; }

static void fill(size_t n) {
    for (size_t i = 0; i < n; i++) {
        char name[32];
        Word_t *value;
        size_t *p = malloc(sizeof *p);
        *p = i;
        JLI(value, store.words, i % 3 ? key(i) : i);
        *value = (Word_t)p;
        snprintf(name, sizeof name, "name-%zu", i);
        JSLI(value, store.text, (const uint8_t *)name);
        *value = i;
    }
}

static int check(size_t n) {
    Word_t count = 0;
    JLC(count, store.words, 0, -1);
    for (size_t i = 0; i < n; i++) {
        char name[32];
        Word_t *value;
        JLG(value, store.words, i % 3 ? key(i) : i);
        if (!value || *(size_t *)*value != i)
            return 0;
        snprintf(name, sizeof name, "name-%zu", i);
        JSLG(value, store.text, (const uint8_t *)name);
        if (!value || *value != i)
            return 0;
    }
    return count == n;
}
