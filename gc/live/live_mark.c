// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "live_mark.h"

#include <errno.h>
#include <stdbool.h>
#include <sys/mman.h>

#include "base/os.h"
#include "blocks/arena.h"
#include "blocks/population.h"
#include "large_index.h"
#include "media/heap_space.h"
#include "media/own_pages.h"
#include "pages/extent.h"

#ifndef LIVE_STACK // tests make it small, so that it overflows
#define LIVE_STACK 65536u
#endif
#define MARK 0x80u
_Static_assert(PM_TAGS <= MARK, "the top bit of a tag is free");
#define PIECE ((uint64_t)1 << 20) // longer extents are scanned where they hold data

struct range {
    uint64_t offset, len; // from pm_base
};

static uint64_t base, frontier; // copies of pm_base and of the end of the last shard
static struct range *stack;
static uint32_t depth;
static bool overflowed; // marked blocks were not pushed: all marked blocks are scanned once more

// ---- marks --------------------------------------------------------------------------------------

static uint8_t *tag_of(uint64_t offset) {
    return &pm_tag[pm_tag_index(offset >> PM_GRANULE_SHIFT)];
}

static void push(uint64_t offset, uint64_t len) {
    if (depth < LIVE_STACK)
        stack[depth++] = (struct range){offset, len};
    else
        overflowed = true;
}

// Marks the block that begins at `offset`, if it is in use and has no mark.
static void reach(uint64_t offset, uint64_t len) {
    uint8_t *tag = tag_of(offset);
    if (*tag == PM_TAG_NONE || *tag & MARK)
        return;
    *tag |= MARK;
    push(offset, len);
}

static void consider_slab(uint32_t slab, uint32_t offset) {
    const struct pm_vslab *v = &pm_vslabs[slab];
    struct pm_slab_block block;
    if (!pm_slab_find(v, offset, &block))
        return;
    uint32_t size = pm_classes[block.cls].size;
    reach(((uint64_t)slab << PM_SLAB_SHIFT) + (uint64_t)block.index * size, size);
}

static inline void consider(uint64_t word) {
    uint64_t offset = word - base;
    if (offset >= frontier)
        return;
    uint32_t stripe = (uint32_t)(offset >> PM_SLAB_SHIFT), large;
    if (pm_vslabs[stripe].size_class)
        consider_slab(stripe, (uint32_t)(offset & (PM_SLAB_SIZE - 1)));
    else if ((large = pm_large_index_find(offset)) != 0)
        reach(pm_extents[large].page << PM_PAGE_SHIFT, pm_extent_bytes(&pm_extents[large]));
}

// ---- scanning -----------------------------------------------------------------------------------

static void scan_words(const void *bytes, uint64_t len) {
    const uint64_t *word = bytes, *end = word + len / sizeof *word;
    for (; word < end; word++)
        consider(__atomic_load_n(word, __ATOMIC_RELAXED));
}

static void scan_own(char *at, size_t len, void *unused) {
    (void)unused;
    scan_words(at, len);
}

// A large block may be mostly memory that was never stored to. Reading it would take memory.
static void scan_large(struct range r) {
    struct pm_written known = {0, 0};
    uint64_t at = r.offset, end = r.offset + r.len, len;
    if (pm_heap_state() == PM_HEAP_VOLATILE) {
        pm_own_pages(pm_heap_at(at), r.len, scan_own, NULL);
        return;
    }
    for (; at < end && (len = pm_heap_next_data(&known, &at, end)) != 0; at += len)
        scan_words(pm_heap_at(at), len);
}

static void scan(struct range r) {
    if (r.len > PIECE)
        scan_large(r);
    else
        scan_words(pm_heap_at(r.offset), r.len);
}

static void work_off(void) {
    while (depth)
        scan(stack[--depth]);
}

// ---- all blocks in use --------------------------------------------------------------------------

typedef void each_fn(uint64_t offset, uint64_t len, void *arg);

static void each_in_slab(uint32_t slab, each_fn *each, void *arg) {
    uint64_t from = (uint64_t)slab << PM_SLAB_SHIFT;
    const struct pm_vslab *v = &pm_vslabs[slab];
    unsigned stride = pm_slab_stride(v);
    for (uint64_t at = from; at < from + PM_SLAB_SIZE; at += stride) {
        unsigned cls = *tag_of(at) & ~MARK;
        struct pm_slab_block block; // the tag of a kind is no class
        if (cls == PM_TAG_KIND)
            cls = pm_slab_find(v, (uint32_t)(at - from), &block) ? block.cls : 0;
        if (cls)
            each(at, pm_classes[cls].size, arg);
    }
}

static void each_in_use(each_fn *each, void *arg) {
    for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;) {
        const struct pm_extent *e = &pm_extents[i];
        if (e->slab)
            each_in_slab(pm_extent_slab(e), each, arg);
        else if (*tag_of(e->page << PM_PAGE_SHIFT))
            each(e->page << PM_PAGE_SHIFT, pm_extent_bytes(e), arg);
    }
}

static void scan_marked(uint64_t offset, uint64_t len, void *unused) {
    (void)unused;
    if (!(*tag_of(offset) & MARK))
        return;
    scan((struct range){offset, len});
    work_off();
}

struct unreached {
    pm_live_fn *each;
    void *arg;
    struct pm_live_sum sum;
};

static void clear_mark(uint64_t offset, uint64_t len, void *arg) {
    struct unreached *u = arg;
    uint8_t *tag = tag_of(offset);
    u->sum.blocks++;
    u->sum.bytes += len;
    if (*tag & MARK)
        *tag &= (uint8_t)~MARK;
    else
        u->each(pm_heap_at(offset), len, u->arg);
}

// ---- begin, mark, end ---------------------------------------------------------------------------

// Pinned blocks are in use whatever reaches them.
static void reach_pinned(uint64_t offset, uint64_t len, void *unused) {
    const struct pm_vslab *v = &pm_vslabs[offset >> PM_SLAB_SHIFT];
    uint32_t extent = v->size_class ? 0 : pm_page_extent[offset >> PM_PAGE_SHIFT];
    (void)unused;
    if (pm_kind_is_pinned(extent ? pm_extents[extent].kind : v->size_class ? v->kind : 0))
        reach(offset, len);
}

int pm_live_begin(struct pm_error *err) {
    base = pm_base;
    frontier = pm_shard_end(&pm_heap.shard[pm_heap.shards - 1]) << PM_PAGE_SHIFT;
    depth = 0;
    overflowed = false;
    stack = pm_os_reserve(LIVE_STACK * sizeof *stack);
    if (!stack || !pm_large_index_make(frontier)) {
        int error = errno;
        pm_live_end();
        return pm_fail(err, PM_OPERATIONAL, "no memory to mark with: %s", pm_strerror(error));
    }
    for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;)
        if (pm_extents[i].slab && pm_vslabs[pm_extent_slab(&pm_extents[i])].untagged)
            pm_arena_write_tags(pm_extent_slab(&pm_extents[i]));
    each_in_use(reach_pinned, NULL);
    return PM_OK;
}

void pm_live_root(const void *from, size_t len) {
    uint64_t skip = -(uint64_t)(uintptr_t)from & 7;
    if (len > skip)
        scan_words((const char *)from + skip, len - skip);
}

// Marks are only ever set, so this ends.
void pm_live_mark(void) {
    work_off();
    while (overflowed) {
        overflowed = false;
        each_in_use(scan_marked, NULL);
    }
}

struct pm_live_sum pm_live_unreached(pm_live_fn *each, void *arg) {
    struct unreached u = {.each = each, .arg = arg};
    each_in_use(clear_mark, &u);
    return u.sum;
}

void pm_live_end(void) {
    pm_large_index_drop();
    if (stack)
        munmap(stack, LIVE_STACK * sizeof *stack);
    stack = NULL;
}
