// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc.h: what programs that cooperate call.
#include <errno.h>
#include <stdint.h>

#include "base/cancel.h"
#include "blocks/alloc.h"
#include "blocks/arena.h"
#include "commits.h"
#include "export.h"
#include "media/heap.h"
#include "media/persist.h"
#include "pages/extent.h"
#include "pmalloc.h"
#include "start.h"
#include "version.h"

EXPORT int pmalloc_set_root(unsigned slot, void *p) {
    pm_process_start();
    if (slot >= PM_ROOT_SLOTS || (uintptr_t)p > PM_SLOT_MAX) {
        errno = EINVAL;
        return -1;
    }
    // On a plain file the commit calls msync(), a cancellation point. The lock makes the end of the
    // program wait: after the end no slot changes (end.c).
    struct pm_cancel held = pm_cancel_hold();
    pm_lock(&pm_process_lock);
    bool open = pm_heap_on_media();
    if (open)
        pm_commit_u64(&pm_heap.super->slots.slot[slot], pm_slot_word(slot, (uint64_t)(uintptr_t)p));
    else if (pm_heap_state() == PM_HEAP_BORROWED) { // in the private copy of the superblock
        __atomic_store_n(&pm_heap.super->slots.slot[slot],
                         pm_slot_word(slot, (uint64_t)(uintptr_t)p), __ATOMIC_RELEASE);
        open = true;
    }
    pm_unlock(&pm_process_lock);
    pm_cancel_release(held);
    if (open)
        return 0;
    errno = ENOTSUP;
    return -1;
}

EXPORT void *pmalloc_get_root(unsigned slot) {
    pm_process_start();
    bool there = pm_heap_is_held() || pm_heap_state() == PM_HEAP_BORROWED; // also after the end
    if (slot >= PM_ROOT_SLOTS || !there)
        return NULL;
    return (void *)(uintptr_t)pm_heap_slot(slot);
}

EXPORT int pmalloc_is_persistent(void) {
    pm_process_start();
    return pm_heap_on_media();
}

EXPORT const char *pmalloc_heap_path(void) {
    pm_process_start();
    return pm_heap_on_media() ? pm_heap.dir : "";
}

EXPORT uint64_t pmalloc_generation(void) {
    pm_process_start();
    return pm_process_generation();
}

// The tags tell each allocated block, and no other.
static int each_in(char *at, const char *end, int (*fn)(void *, size_t, void *), void *arg) {
    int answer = 0;
    for (; at < end && answer == 0; at += 1u << PM_GRANULE_SHIFT) {
        unsigned tag = __atomic_load_n(&pm_tag[pm_granule(at)], __ATOMIC_RELAXED);
        if (pm_tag_is_class(tag))
            answer = fn(at, pm_classes[tag].size, arg);
    }
    return answer;
}

EXPORT int pmalloc_each_block(int (*fn)(void *p, size_t size, void *arg), void *arg) {
    int answer = 0;
    pm_process_start();
    for (uint32_t i = 0; answer == 0 && (i = pm_extent_next_active(i)) != 0;) {
        const struct pm_extent *e = &pm_extents[i];
        char *at = pm_extent_address(e);
        size_t bytes = pm_extent_bytes(e);
        if (e->slab)
            pm_arena_write_tags(pm_slab_of(at));
        if (e->slab)
            answer = each_in(at, at + bytes, fn, arg);
        else if (pm_alloc_tag(at) == PM_TAG_EXTENT)
            answer = fn(at, bytes, arg);
    }
    return answer;
}

EXPORT int pmalloc_commit(void) {
    pm_process_start();
    int error = pm_commits_make();
    if (!error)
        return 0;
    errno = error;
    return -1;
}

EXPORT const char *pmalloc_version(void) { return PM_VERSION; }
