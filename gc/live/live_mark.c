// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "live_mark.h"

#include <errno.h>
#include <sys/mman.h>

#include "base/os.h"
#include "helpers.h"
#include "scan.h"

#ifndef LIVE_STACK // tests make these small
#define LIVE_STACK 32768u
#define LIVE_POOL (1u << 20)
#define ALONE PM_SCAN_ALONE
#endif
#define MARK 0x80u
_Static_assert(PM_TAGS <= MARK, "the top bit of a tag is free");

static struct pm_crew crew;
static void *memory; // the crew's
static size_t memory_bytes;
static _Atomic bool overflowed; // ranges were not pushed: all marked blocks are scanned once more

// ---- marks --------------------------------------------------------------------------------------

static uint8_t *tag_of(uint64_t offset) {
    return &pm_tag[pm_tag_index(offset >> PM_GRANULE_SHIFT)];
}

// Marks the block that begins at `offset`, if it is in use and has no mark. Two markers that come
// at once store the same, and both scan the block.
static void reach(struct pm_marker *m, uint64_t offset, uint64_t len) {
    uint8_t *at = tag_of(offset), tag = __atomic_load_n(at, __ATOMIC_RELAXED);
    if (tag == PM_TAG_NONE || tag & MARK)
        return;
    __atomic_store_n(at, tag | MARK, __ATOMIC_RELAXED);
    while (!pm_crew_push(m, offset, len))
        if (!pm_crew_give(m)) {
            atomic_store_explicit(&overflowed, true, memory_order_relaxed);
            return;
        }
}

static inline void found(struct pm_marker *m, uint64_t offset, uint64_t len) {
    pm_scan_found(m, tag_of(offset), offset, len, reach);
}

// ---- scanning -----------------------------------------------------------------------------------

static void scan_words(struct pm_marker *m, const void *bytes, uint64_t len) {
    pm_scan_words(m, bytes, len, found);
}

static void scan(struct pm_marker *m, struct pm_range r) {
    if (r.len > PM_STEP)
        pm_scan_long(m, r.offset, r.len, scan_words);
    else
        pm_scan_words(m, pm_heap_at(r.offset), r.len & ~(uint64_t)PM_WRITTEN, found); // inline
}

static void work_off(struct pm_marker *m) {
    do
        pm_crew_work_off(m, (const char *)pm_scan.base, scan);
    while (m->scanned < m->pause_at && pm_scan_rest(m, reach));
}

// ---- all blocks in use --------------------------------------------------------------------------

typedef void each_fn(uint64_t offset, uint64_t len, void *arg);

static void each_in_slab(uint32_t slab, each_fn *each, void *arg) {
    uint64_t from = (uint64_t)slab << PM_SLAB_SHIFT;
    const struct pm_vslab *v = &pm_vslabs[slab];
    unsigned stride = pm_slab_stride(v);
    for (uint64_t at = from; at < from + PM_SLAB_SIZE; at += stride) {
        unsigned tag = *tag_of(at) & ~MARK, cls = pm_tag_class(tag);
        struct pm_slab_block block;
        if (tag == PM_TAG_KIND)
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
    if (crew.marker->count == crew.room)
        pm_scan_run(&crew, ALONE);
    pm_crew_push(crew.marker, offset, len);
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
    uint32_t extent = v->size_class ? 0 : *pm_page_extent(offset >> PM_PAGE_SHIFT);
    (void)unused;
    if (pm_kind_is_pinned(extent ? pm_extents[extent].kind : v->size_class ? v->kind : 0))
        reach(crew.marker, offset, len);
}

int pm_live_begin(unsigned markers, struct pm_error *err) {
    markers = pm_helpers_markers(markers);
    overflowed = false;
    memory_bytes = pm_crew_bytes(markers, LIVE_STACK, LIVE_POOL);
    memory = pm_os_reserve(memory_bytes);
    if (!memory)
        return pm_fail(err, PM_OPERATIONAL, "no memory to mark with: %s", pm_strerror(errno));
    crew = (struct pm_crew){.work = work_off};
    pm_crew_make(&crew, memory, markers, LIVE_STACK, LIVE_POOL);
    int status = pm_scan_begin(err);
    if (status != PM_OK)
        pm_live_end();
    else
        each_in_use(reach_pinned, NULL);
    return status;
}

void pm_live_root(const void *from, size_t len) {
    uint64_t skip = -(uint64_t)(uintptr_t)from & 7;
    if (len > skip)
        scan_words(crew.marker, (const char *)from + skip, len - skip);
}

// Marks are only ever set, so this ends.
void pm_live_mark(void) {
    pm_scan_run(&crew, ALONE);
    while (atomic_exchange_explicit(&overflowed, false, memory_order_relaxed)) {
        each_in_use(scan_marked, NULL);
        pm_scan_run(&crew, ALONE);
    }
}

bool pm_live_is_reached(const void *block) { return *tag_of(pm_heap_offset(block)) & MARK; }

struct pm_live_sum pm_live_unreached(pm_live_fn *each, void *arg) {
    struct unreached u = {.each = each, .arg = arg};
    each_in_use(clear_mark, &u);
    return u.sum;
}

void pm_live_end(void) {
    pm_scan_end();
    if (memory)
        munmap(memory, memory_bytes);
    memory = NULL;
}
