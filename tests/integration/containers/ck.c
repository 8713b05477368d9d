// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Concurrency Kit's hash set and stack. Its hash set keeps pointers to the functions for memory, so
// both runs need the same addresses.
#include <ck_hs.h>
#include <ck_stack.h>

#include "container.h"

struct item {
    size_t value;
    ck_stack_entry_t next;
};
CK_STACK_CONTAINER(struct item, next, item_of)

struct {
    ck_hs_t set;
    ck_stack_t stack;
} *store;

static void *get(size_t size) { return malloc(size); }
static void *resize(void *p, size_t old, size_t size, bool defer) {
    (void)old, (void)defer;
    return realloc(p, size);
}
static void give(void *p, size_t size, bool defer) {
    (void)size, (void)defer;
    free(p);
}
static struct ck_malloc memory = {.malloc = get, .realloc = resize, .free = give};

static unsigned long hash_of(const void *object, unsigned long seed) {
    return (*(const size_t *)object + seed) * 0x9e3779b97f4a7c15u >> 16;
}
static bool same(const void *a, const void *b) { return *(const size_t *)a == *(const size_t *)b; }

static void fill(size_t n) {
    store = calloc(1, sizeof *store);
    ck_stack_init(&store->stack);
    if (!ck_hs_init(&store->set, CK_HS_MODE_SPMC | CK_HS_MODE_OBJECT, hash_of, same, &memory, 64,
                    1))
        abort();
    for (size_t i = 0; i < n; i++) {
        struct item *item = calloc(1, sizeof *item);
        item->value = i;
        ck_hs_put(&store->set, CK_HS_HASH(&store->set, hash_of, &item->value), &item->value);
        item = calloc(1, sizeof *item);
        item->value = i;
        ck_stack_push_upmc(&store->stack, &item->next);
    }
}

static int check(size_t n) {
    size_t i = n;
    ck_stack_entry_t *entry;
    CK_STACK_FOREACH(&store->stack, entry)
    if (i == 0 || item_of(entry)->value != --i)
        return 0;
    for (; i < n; i++)
        if (!ck_hs_get(&store->set, CK_HS_HASH(&store->set, hash_of, &i), &i))
            return 0;
    return ck_hs_count(&store->set) == n;
}
