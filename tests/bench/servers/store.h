// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Where serve.c keeps its keys and values. One of store_*.c is linked. Only one thread at a time
// calls these; each exits with a line where the store fails.
#ifndef STORE_H
#define STORE_H

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#define KEY_MOST 64u
#define VALUE_MOST 8192u

// `folder`: where a store on a disk has its files.
void store_open(const char *folder);
void store_set(const char *key, const char *value, size_t len);
// Copies the value to `to`, of VALUE_MOST bytes, and returns its length; 0: there is none.
size_t store_get(const char *key, char *to);
// What was set is durable afterwards, where that is the store's own work.
void store_commit(void);

static inline _Noreturn void store_fails(const char *what, const char *why) {
    fprintf(stderr, "serve: %s: %s\n", what, why ? why : "failed");
    exit(1);
}

#endif
