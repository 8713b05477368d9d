// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc.h: each block of the heap once, while other threads allocate and free.
//
// The walk goes by address, extent by extent. It asks for each extent when it comes there, under
// the extent lock, and calls `fn` without it. Meanwhile extents before and behind that place may be
// freed, merged, cut and handed out; a block that stays allocated stays where it is, and with it
// its extent. So the next extent begins where this one ended, or that place now lies inside of one
// that is younger than the walk, or whose block has been seen.
//
// In a slab the tags tell each block that is handed out, and no other. They need no lock.
#include <errno.h>

#include "base/cancel.h"
#include "blocks/arena.h"
#include "entry.h"
#include "export.h"
#include "media/heap.h"
#include "pages/extent.h"
#include "pmalloc.h"
#include "start.h"
#include "walk.h"

#define ANY_TYPE PMALLOC_TYPES

struct walk {
    unsigned type;
    pmalloc_walk_fn *fn;
    void *arg;
};

// What lies at a place of the heap.
struct piece {
    uint64_t from, to; // bytes; from == to: nothing that a block may begin in
    bool slab;
};

unsigned pm_flags_of(const struct pm_found *found) {
    return (pm_kind_has_pointers(found->kind) ? 0 : PMALLOC_POINTER_FREE) |
           (pm_kind_is_pinned(found->kind) ? PMALLOC_PINNED : 0) | PMALLOC_TYPE(found->type);
}

static int give(const struct walk *w, char *p) {
    if (__atomic_load_n(pm_tag_at(p), __ATOMIC_RELAXED) == PM_TAG_NONE)
        return 0;
    struct pm_found found = pm_find(p);
    if (found.what == PM_NOTHING || (w->type != ANY_TYPE && w->type != found.type))
        return 0;
    return w->fn(p, found.size, pm_flags_of(&found), w->arg);
}

static int walk_slab(const struct walk *w, const struct piece *piece) {
    uint32_t slab = (uint32_t)(piece->from >> PM_SLAB_SHIFT);
    struct pm_vslab *v = &pm_vslabs[slab];
    int answer = 0;
    // A slab that has blocks all the time keeps its type.
    if (w->type != ANY_TYPE && w->type != __atomic_load_n(&v->type, __ATOMIC_RELAXED))
        return 0;
    // If the slab morphs from now on, the blocks that it has now stay at this distance.
    unsigned stride = pm_arena_stride(slab);
    for (uint64_t at = piece->from; stride && at < piece->to && answer == 0; at += stride)
        answer = give(w, pm_heap_at(at));
    return answer;
}

// The extent lock is held. `at` is less than the frontier. Pages inside of an extent have no entry
// in the page map; how far such a run may be looked through at once is bounded, for others wait.
#define PAGES_AT_ONCE 65536u

static struct piece piece_at(uint64_t at, uint64_t end) {
    uint64_t page = at >> PM_PAGE_SHIFT, last = page + PAGES_AT_ONCE;
    uint32_t index = 0;
    last = last < end >> PM_PAGE_SHIFT ? last : end >> PM_PAGE_SHIFT;
    while (page < last && !(index = *pm_page_extent(page)))
        page++;
    if (!index)
        return (struct piece){last << PM_PAGE_SHIFT, last << PM_PAGE_SHIFT, false};
    const struct pm_extent *e = &pm_extents[index];
    uint64_t from = e->page << PM_PAGE_SHIFT, to = from + pm_extent_bytes(e);
    if (e->state != PM_EXTENT_ACTIVE || from < at)
        from = to;
    return (struct piece){from, to, e->slab};
}

static bool next_piece(struct pm_shard *s, uint64_t at, struct piece *piece) {
    struct pm_cancel held = pm_cancel_hold();
    pm_lock(&s->lock);
    uint64_t end = s->offset + s->frontier;
    bool more = at < end;
    if (more)
        *piece = piece_at(at, end);
    pm_unlock(&s->lock);
    pm_cancel_release(held);
    return more;
}

static int walk_shard(const struct walk *w, struct pm_shard *s) {
    struct piece piece = {0};
    int answer = 0;
    for (uint64_t at = s->offset; answer == 0 && next_piece(s, at, &piece); at = piece.to)
        if (piece.slab && piece.from < piece.to)
            answer = walk_slab(w, &piece);
        else if (piece.from < piece.to)
            answer = give(w, pm_heap_at(piece.from));
    return answer;
}

static int walk(const struct walk *w) {
    int answer = 0;
    pm_process_ask();
    if (pm_nested()) {
        errno = EDEADLK;
        return -1;
    }
    if (!pm_phase_serves()) // pmalloc_open() comes later
        return 0;
    for (unsigned i = 0; answer == 0 && i < pm_heap.shards; i++)
        answer = walk_shard(w, &pm_heap.shard[i]);
    return answer;
}

EXPORT int pmalloc_walk(pmalloc_walk_fn *fn, void *arg) {
    return walk(&(struct walk){ANY_TYPE, fn, arg});
}

EXPORT int pmalloc_walk_type(unsigned type, pmalloc_walk_fn *fn, void *arg) {
    if (type >= PMALLOC_TYPES) {
        errno = EINVAL;
        return -1;
    }
    return walk(&(struct walk){type, fn, arg});
}
