// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "view.h"

#include <stdatomic.h>

#define VIEWS 8

static struct view {
    _Atomic uintptr_t from; // 0: free
    size_t len;
    const char *name;
    bool path;
    uint64_t at;
} views[VIEWS];
static _Atomic unsigned next_view;

void pm_view_forget(const void *map) {
    for (unsigned i = 0; i < VIEWS; i++)
        if (atomic_load_explicit(&views[i].from, memory_order_relaxed) == (uintptr_t)map)
            atomic_store_explicit(&views[i].from, 0, memory_order_relaxed);
}

void pm_view_note(const void *map, size_t len, const char *name, bool path, uint64_t at) {
    pm_view_forget(map);
    unsigned slot = atomic_fetch_add_explicit(&next_view, 1, memory_order_relaxed);
    struct view *v = &views[slot % VIEWS];
    for (unsigned i = 0; i < VIEWS && atomic_load_explicit(&v->from, memory_order_relaxed); i++)
        v = &views[++slot % VIEWS];
    atomic_store_explicit(&v->from, 0, memory_order_relaxed);
    v->len = len;
    v->name = name;
    v->path = path;
    v->at = at;
    atomic_store_explicit(&v->from, (uintptr_t)map, memory_order_release);
}

bool pm_view_find(const void *address, const char **name, bool *path, uint64_t *at) {
    for (unsigned i = 0; i < VIEWS; i++) {
        const struct view *v = &views[i];
        uintptr_t from = atomic_load_explicit(&v->from, memory_order_acquire);
        if (!from || (uintptr_t)address - from >= v->len)
            continue;
        *name = v->name;
        *path = v->path;
        *at = v->at + ((uintptr_t)address - from);
        return true;
    }
    return false;
}
