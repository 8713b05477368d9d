// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A table in memory, as a program has it that knows nothing of media. Its root is `table`.
#include <stdint.h>
#include <string.h>

#include "store.h"

enum { BUCKETS = 1 << 16 };

struct entry {
    struct entry *next;
    size_t len;
    char *value;
    char key[];
};

struct entry **table; // the root

void store_open(const char *folder) {
    (void)folder;
    if (!table && !(table = calloc(BUCKETS, sizeof(struct entry *))))
        store_fails("table", "no memory");
}

static struct entry **find(const char *key) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (const char *c = key; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
    struct entry **at = &table[(hash ^ hash >> 32) % BUCKETS];
    while (*at && strcmp((*at)->key, key) != 0)
        at = &(*at)->next;
    return at;
}

void store_set(const char *key, const char *value, size_t len) {
    struct entry **at = find(key), *e = *at;
    size_t room = strlen(key) + 1;
    char *copy = malloc(len);
    if (!copy || (!e && !(e = calloc(1, sizeof *e + room))))
        store_fails("table", "no memory");
    memcpy(copy, value, len);
    free(e->value);
    e->value = copy;
    e->len = len;
    if (!*at) {
        memcpy(e->key, key, room);
        *at = e;
    }
}

size_t store_get(const char *key, char *to) {
    const struct entry *e = *find(key);
    if (e)
        memcpy(to, e->value, e->len);
    return e ? e->len : 0;
}

void store_commit(void) {}
