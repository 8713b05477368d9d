// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc.h: what programs that cooperate call.
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "base/cancel.h"
#include "base/decay.h"
#include "base/nodes.h"
#include "base/options.h"
#include "blocks/alloc.h"
#include "blocks/arena.h"
#include "blocks/population.h"
#include "blocks/tcache.h"
#include "by_call.h"
#include "choose_name.h"
#include "commit/commits.h"
#include "commit/late.h"
#include "entry.h"
#include "export.h"
#include "media/heap.h"
#include "media/open/shard_nodes.h"
#include "media/persist.h"
#include "moved.h"
#include "named_close.h"
#include "open.h"
#include "pages/extent.h"
#include "pmalloc.h"
#include "recovery/collect.h"
#include "recovery/typed_words.h"
#include "start.h"
#include "threads/sections.h"
#include "version.h"

EXPORT int pmalloc_set_root(unsigned slot, void *p) {
    pm_process_ask();
    if (slot >= PM_ROOT_SLOTS || (uintptr_t)p > PM_SLOT_MAX) {
        errno = EINVAL;
        return -1;
    }
    if (p && !pm_choose_name("pmalloc_set_root"))
        return -1;
    if (p)
        pm_moved_note_first();
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
    pm_process_ask();
    bool there = pm_heap_is_held() || pm_heap_state() == PM_HEAP_BORROWED; // also after the end
    if (slot >= PM_ROOT_SLOTS || !there)
        return NULL;
    return (void *)(uintptr_t)pm_heap_slot(slot);
}

EXPORT int pmalloc_transient(unsigned type, size_t offset, int on) {
    pm_process_ask();
    bool known = type && type < PMALLOC_TYPES && offset % 8 == 0 && offset < PM_TYPED_BYTES;
    if (!known || pm_nested()) {
        errno = known ? EDEADLK : EINVAL;
        return -1;
    }
    struct pm_cancel held = pm_cancel_hold();
    pm_lock(&pm_process_lock);
    bool open = pm_heap_on_media();
    bool set = open && pm_typed_word_set((uint16_t)type, offset, on);
    pm_unlock(&pm_process_lock);
    pm_cancel_release(held);
    if (set)
        return 0;
    errno = open ? ENOMEM : ENOTSUP;
    return -1;
}

EXPORT int pmalloc_moved(void) {
    pm_process_ask();
    return pm_moved_was();
}

EXPORT int pmalloc_is_persistent(void) {
    pm_process_ask();
    return pm_heap_on_media();
}

EXPORT const char *pmalloc_heap_path(void) {
    pm_process_ask();
    return pm_heap_on_media() && pm_choose_name("pmalloc_heap_path") ? pm_heap.dir : "";
}

EXPORT uint64_t pmalloc_generation(void) {
    pm_process_ask();
    return pm_process_generation();
}

EXPORT int pmalloc_commit(void) {
    pm_process_ask();
    int error = pm_commits_make();
    if (!error)
        return 0;
    errno = error;
    return -1;
}

EXPORT int pmalloc_restore(void) {
    pm_process_ask();
    int error = pm_nested() ? EDEADLK : pm_late_call();
    if (!error)
        return 0;
    errno = error;
    return -1;
}

EXPORT int pmalloc_migrate(void) {
    pm_process_ask();
    struct pm_tcache *t = pm_tcache, *now = t;
    if (pm_nested()) {
        errno = EDEADLK;
        return -1;
    }
    if (t == &pm_no_tcache || pm_nodes.count == 1)
        return 0;
    struct pm_cancel held = pm_cancel_hold();
    pm_tcache_answer(t);
    unsigned node = pm_node_mine();
    bool moved = node != t->node;
    if (moved)
        now = pm_tcache_move(t, node);
    pm_cancel_release(held);
    if (moved && now == t) {
        errno = ENOMEM;
        return -1;
    }
    return moved;
}

// No lock has an address here. The caller's names the section.
EXPORT void pmalloc_begin(void) {
    if (pm_sections_counted())
        pm_section_begin(pm_section_before(pm_gate()), __builtin_return_address(0));
}

EXPORT void pmalloc_end(void) {
    if (pm_sections_counted())
        pm_section_end(pm_gate());
}

EXPORT void pmalloc_set_free_callback(int (*taker)(void *p)) {
    pm_process_ask();
    pm_frees_watch(taker);
}

EXPORT void pmalloc_free_now(void *p) { pm_free_now(p); }

EXPORT int pmalloc_collect(void) {
    struct pm_mark_options how = {.markers = (unsigned)pm_options.markers.number};
    struct pm_recovery found;
    struct pm_error err;
    pm_process_ask();
    if (pm_options.collect.number != PM_COLLECT_API || !pm_heap_on_media() ||
        pm_heap_is_journaled()) {
        errno = ENOTSUP;
        return -1;
    }
    if (pm_nested()) {
        errno = EDEADLK;
        return -1;
    }
    struct pm_cancel held = pm_cancel_hold();
    if (pm_collect_watcher)
        pm_collect_watcher->begin();
    pm_lock(&pm_age_lock);
    int status = pm_collect(&how, &found, &err);
    pm_unlock(&pm_age_lock);
    if (pm_collect_watcher)
        pm_collect_watcher->end();
    pm_cancel_release(held);
    if (status == PM_OK)
        return 0;
    pm_event(PM_EV_COLLECT_FAILED, "pmalloc_collect: %s; nothing was freed", err.text);
    errno = ENOMEM;
    return -1;
}

// errno is what the last call that failed has left, or says what kind of failure it is.
static int why(const struct pm_error *err) {
    return pm_is_busy(err) || errno == EBUSY ? EBUSY
           : err->why == PM_WHY_FOREIGN      ? ENOTSUP
           : err->status == PM_DAMAGE        ? EIO
           : err->status == PM_USAGE         ? EINVAL
           : errno == ENODATA                ? ENOTDIR // a file that has no heap
           : errno                           ? errno
                                             : EIO;
}

static int refused(int error, const char *text) {
    pm_event(PM_EV_OPEN_FAILED, "pmalloc_open: %s", text);
    errno = error;
    return -1;
}

EXPORT int pmalloc_open(const char *path, unsigned flags) {
    struct pm_error err;
    if (!path || !path[0])
        return refused(EINVAL, "no heap is named");
    if (strlen(path) >= sizeof pm_heap.dir)
        return refused(ENAMETOOLONG, "the name of the heap is too long");
    if (flags & ~PMALLOC_EXISTING)
        return refused(EINVAL, "unknown flags");
    if (pm_nested())
        return refused(EDEADLK, "not in a signal handler that interrupts the allocator");
    int saved = errno;
    struct pm_cancel held = pm_cancel_hold();
    errno = 0;
    int status = pm_process_open(path, flags & PMALLOC_EXISTING, &err);
    int error = status == PM_OK ? 0 : why(&err);
    pm_cancel_release(held);
    if (status != PM_OK)
        return refused(error, err.text);
    errno = saved;
    return 0;
}

EXPORT int pmalloc_close(void) {
    if (pm_nested()) {
        errno = EDEADLK;
        return -1;
    }
    struct pm_cancel held = pm_cancel_hold();
    bool good = pm_process_close();
    pm_cancel_release(held);
    return good ? 0 : -1;
}

EXPORT const char *pmalloc_version(void) { return PM_VERSION; }
