// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "notes.h"

#include <stddef.h>
#include <sys/mman.h>

#include "base/geometry.h"
#include "base/os.h"
#include "base/own_memory.h"

#define LOG2_MIN 8u
#define NOTES_MAX ((size_t)1 << 27)

static bool reserve(struct notes *t) {
    if (!t->room)
        t->room = (uint32_t)pm_own_room(sizeof *t->note, NOTES_MAX);
    if (!t->note)
        t->note = pm_own_reserve(t->room * sizeof *t->note);
    if (!t->bucket)
        t->bucket = pm_own_reserve(t->room * sizeof *t->bucket);
    if (!t->note || !t->bucket)
        return false;
    if (!t->log2) {
        t->log2 = LOG2_MIN;
        t->top = 1;
    }
    return true;
}

static uint32_t *bucket_of(const struct notes *t, uintptr_t key) {
    uint64_t hash = (key >> 3) * 0x9e3779b97f4a7c15ull;
    return &t->bucket[((size_t)1 << t->log2) + (hash >> (64 - t->log2))];
}

static void link(struct notes *t, uint32_t i) {
    uint32_t *bucket = bucket_of(t, t->note[i].key);
    t->note[i].next = *bucket;
    *bucket = i;
}

static void unlink(struct notes *t, uint32_t i) {
    uint32_t *at = bucket_of(t, t->note[i].key);
    while (*at != i)
        at = &t->note[*at].next;
    *at = t->note[i].next;
}

// The buckets of each size have a place of their own, so the old ones are given back.
static void grow(struct notes *t) {
    char *old = (char *)&t->bucket[(size_t)1 << t->log2];
    size_t bytes = ((size_t)1 << t->log2) * sizeof *t->bucket;
    t->log2++;
    NOTES_EACH(i, t)
    link(t, i);
    if (bytes >= PM_PAGE_SIZE)
        pm_os_advise(old, bytes, MADV_DONTNEED);
}

uint32_t notes_find(const struct notes *t, uintptr_t key) {
    uint32_t i = t->log2 ? *bucket_of(t, key) : 0;
    while (i && t->note[i].key != key)
        i = t->note[i].next;
    return i;
}

uint32_t notes_add(struct notes *t, uintptr_t key) {
    if (!reserve(t))
        return 0;
    // Those of twice as many would end at four times as many.
    if (t->count >= 1u << t->log2 && 4u << t->log2 <= t->room)
        grow(t);
    uint32_t i = t->spare;
    if (i)
        t->spare = t->note[i].next;
    else if (t->top < t->room)
        i = t->top++;
    else
        return 0;
    t->note[i] = (struct note){.key = key};
    link(t, i);
    t->count++;
    return i;
}

void notes_remove(struct notes *t, uint32_t i) {
    unlink(t, i);
    t->note[i] = (struct note){.next = t->spare};
    t->spare = i;
    t->count--;
}

void notes_rekey(struct notes *t, uint32_t i, uintptr_t key) {
    unlink(t, i);
    t->note[i].key = key;
    link(t, i);
}
