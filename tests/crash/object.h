// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The data of the simulated program: objects, and tables of pointers to them. The bytes of an
// object follow from its number, so a reader can tell whether it is whole. No word of a pattern
// looks like an address of the heap, so what is reachable is known exactly.
#ifndef PMALLOC_TESTS_CRASH_OBJECT_H
#define PMALLOC_TESTS_CRASH_OBJECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "preload/pmalloc.h"
#include "world.h"

#define OBJECT_MAGIC 0xf00d0b1ec7000001ull
#define TABLE_MAGIC 0xf00d07ab1e000001ull
#define OBJECT_MIN 32u

struct object {
    uint64_t magic; // OBJECT_MAGIC ^ id << 1
    uint64_t id;
    uint64_t size; // bytes that the program asked for
    struct object *link;
    uint64_t body[];
};

struct table {
    uint64_t magic;
    uint64_t count;
    struct object *entry[];
};

// A variable that the program names in PMALLOC_ROOTS. It is alone on its pages, because whole pages
// are captured.
struct captured {
    struct table *table;
    uint64_t value;
    uint64_t word[PUBLISHED]; // what the publish scenarios store
    char pad[4080 - 8 * PUBLISHED];
};
extern struct captured crash_root_a, crash_root_b;

// What a word of a publish holds: in the heap, in the captured variable or, above those, a slot.
static inline uint64_t published_value(const struct published *p) {
    if (p->at)
        return *p->at;
    return p->word < PUBLISHED ? crash_root_a.word[p->word]
                               : (uint64_t)(uintptr_t)pmalloc_get_root(p->word - PUBLISHED);
}

static inline uint64_t object_word(uint64_t id, uint64_t at) {
    return mix64(id * 0x10001 + at) | 0x8000000000000001ull;
}

// A long object has the pattern only in its first words, in one word per 64 KiB, and in its last
// word.
static inline uint64_t object_next(uint64_t at, uint64_t words) {
    uint64_t next = at + 1;
    if (next > 64 && next < words)
        next = (next + 8191) / 8192 * 8192;
    return at + 1 < words && next >= words ? words - 1 : next;
}

// The type of an object that a publish makes (PMALLOC_TYPE); others have none.
static inline unsigned object_type(uint64_t size) { return (unsigned)(size % 3); }

static inline void object_fill(struct object *o, uint64_t id, uint64_t size) {
    uint64_t words = (size - sizeof *o) / 8;
    o->magic = OBJECT_MAGIC ^ id << 1;
    o->id = id;
    o->size = size;
    o->link = NULL;
    for (uint64_t at = 0; at < words; at = object_next(at, words))
        o->body[at] = object_word(id, at);
}

// NULL when the object is whole, else what is wrong with it.
static inline const char *object_wrong(const struct object *o) {
    if (o->magic != (OBJECT_MAGIC ^ o->id << 1))
        return "its head is gone";
    if (o->size < sizeof *o)
        return "its size is wrong";
    uint64_t words = (o->size - sizeof *o) / 8;
    for (uint64_t at = 0; at < words; at = object_next(at, words))
        if (o->body[at] != object_word(o->id, at))
            return "its bytes are not what the program wrote";
    return NULL;
}

#endif
