// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "numbers.h"

#include <stdbool.h>
#include <stdlib.h>

// The place of a key, or the free one where it would go.
static size_t place_of(const struct numbers *n, uint64_t key) {
    size_t at = (size_t)((key * 0x9e3779b97f4a7c15ull) >> 20) & (n->room - 1);
    while (n->key[at] && n->key[at] != key)
        at = (at + 1) & (n->room - 1);
    return at;
}

uint32_t numbers_get(const struct numbers *n, uint64_t key) {
    size_t at = n->room ? place_of(n, key) : 0;
    return n->room && n->key[at] ? n->value[at] : 0;
}

static bool grow(struct numbers *n) {
    size_t room = n->room ? 2 * n->room : 256;
    struct numbers more = {calloc(room, sizeof *more.key), calloc(room, sizeof *more.value), room,
                           n->count};
    if (!more.key || !more.value) {
        free(more.key);
        free(more.value);
        return false;
    }
    for (size_t i = 0; i < n->room; i++)
        if (n->key[i]) {
            size_t at = place_of(&more, n->key[i]);
            more.key[at] = n->key[i];
            more.value[at] = n->value[i];
        }
    free(n->key);
    free(n->value);
    *n = more;
    return true;
}

uint32_t *numbers_put(struct numbers *n, uint64_t key) {
    if (4 * n->count >= 3 * n->room && !grow(n))
        return NULL;
    size_t at = place_of(n, key);
    n->count += !n->key[at];
    n->key[at] = key;
    return &n->value[at];
}
