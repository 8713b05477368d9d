// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// uthash: a handle inside each item, and pointers to the handles.
#include <uthash.h>

#include "container.h"

struct item {
    char name[32];
    size_t value;
    UT_hash_handle by_name;
};
struct item *store;

static void fill(size_t n) {
    for (size_t i = 0; i < n; i++) {
        struct item *item = calloc(1, sizeof *item);
        snprintf(item->name, sizeof item->name, "name-%zu", i);
        item->value = i;
        HASH_ADD(by_name, store, name, (unsigned)strlen(item->name), item);
    }
}

static int check(size_t n) {
    for (size_t i = 0; i < n; i++) {
        char name[32];
        struct item *item;
        snprintf(name, sizeof name, "name-%zu", i);
        HASH_FIND(by_name, store, name, (unsigned)strlen(name), item);
        if (!item || item->value != i)
            return 0;
    }
    return HASH_CNT(by_name, store) == n;
}
