// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "verify.h"

#include "arena.h"
#include "booklog.h"
#include "extent_set.h"
#include "slab.h"

#define WRONG(...) pm_fail(err, PM_DAMAGE, __VA_ARGS__)

// ---- extents and the page map ------------------------------------------------------------------------

struct tally {
    uint64_t pages[4], count[4]; // by state
    uint64_t slab_pages;
};

static int verify_extent(uint64_t page, uint32_t index, struct tally *sum, struct pm_error *err) {
    const struct pm_extent *e = &pm_extents[index];
    if (index >= pm_extent_top || e->page != page || e->pages == 0 ||
        e->state == PM_EXTENT_UNUSED || e->state > PM_EXTENT_RETAINED)
        return WRONG("page map: page %lu names extent %u, which does not start there",
                     (unsigned long)page, index);
    uint64_t last = page + e->pages - 1;
    if (last >= pm_heap.frontier >> PM_PAGE_SHIFT || pm_page_extent[last] != index)
        return WRONG("page map: extent %u at page %lu does not end at page %lu", index,
                     (unsigned long)page, (unsigned long)last);
    for (uint64_t inner = page + 1; inner < last; inner++)
        if (pm_page_extent[inner])
            return WRONG("page map: extent %u begins inside another, at page %lu",
                         pm_page_extent[inner], (unsigned long)inner);
    sum->pages[e->state] += e->pages;
    sum->count[e->state]++;
    sum->slab_pages += e->slab ? e->pages : 0;
    return PM_OK;
}

static int verify_extents(struct tally *sum, struct pm_error *err) {
    uint64_t end = pm_heap.frontier >> PM_PAGE_SHIFT;
    for (uint64_t page = 0; page < end; page += pm_extents[pm_page_extent[page]].pages) {
        int status = verify_extent(page, pm_page_extent[page], sum, err);
        if (status != PM_OK)
            return status;
    }
    if (pm_heap.persistent && pm_heap.data.size != pm_heap.frontier)
        return WRONG("extents end at %lu, the data file at %zu", (unsigned long)pm_heap.frontier,
                     pm_heap.data.size);
    if (sum->pages[PM_EXTENT_ACTIVE] != pm_active.pages ||
        sum->count[PM_EXTENT_ACTIVE] != pm_active.count || sum->slab_pages != pm_active.slab_pages)
        return WRONG("%lu pages in %lu extents are in use, the counters say %lu in %lu",
                     (unsigned long)sum->pages[PM_EXTENT_ACTIVE],
                     (unsigned long)sum->count[PM_EXTENT_ACTIVE], (unsigned long)pm_active.pages,
                     (unsigned long)pm_active.count);
    return PM_OK;
}

// ---- free sets ---------------------------------------------------------------------------------------

static int verify_set(const struct pm_free_set *set, enum pm_extent_state state,
                      const struct tally *sum, struct pm_error *err) {
    uint64_t pages = 0, count = 0;
    for (unsigned list = 0; list < PM_SIZE_LISTS; list++) {
        if ((set->head[list] != 0) != (set->some[list / 64] >> list % 64 & 1))
            return WRONG("free list %u: its bit is wrong", list);
        for (uint32_t i = set->head[list]; i; i = pm_extents[i].next) {
            if (pm_extents[i].state != state || ++count > sum->count[state])
                return WRONG("free list %u holds extent %u, which is not free", list, i);
            pages += pm_extents[i].pages;
        }
    }
    if (count != sum->count[state] || pages != sum->pages[state] || pages != set->pages)
        return WRONG("free lists hold %lu pages in %lu extents, the range %lu in %lu",
                     (unsigned long)pages, (unsigned long)count, (unsigned long)sum->pages[state],
                     (unsigned long)sum->count[state]);
    return PM_OK;
}

// ---- log ---------------------------------------------------------------------------------------------

static uint64_t entries_seen;

static int verify_entry(uint64_t entry, pm_log_pos pos, struct pm_error *err) {
    if (pos == pm_unfinished_resize)
        return PM_OK;
    uint64_t page = pm_entry_page(entry);
    uint32_t index = page < pm_heap.frontier >> PM_PAGE_SHIFT ? pm_page_extent[page] : 0;
    const struct pm_extent *e = &pm_extents[index];
    if (!index || e->state != PM_EXTENT_ACTIVE || e->page != page ||
        e->pages != pm_entry_pages(entry) || e->log != pos ||
        e->slab != (pm_entry_type(entry) == PM_ENTRY_SLAB))
        return WRONG("log: the entry at position %u (page %lu, %lu pages) is no extent in use", pos,
                     (unsigned long)page, (unsigned long)pm_entry_pages(entry));
    entries_seen++;
    return PM_OK;
}

static int verify_log(struct pm_error *err) {
    entries_seen = 0;
    int status = pm_log_each(verify_entry, err);
    if (status == PM_OK && entries_seen != pm_active.count)
        return WRONG("log: %lu entries stand for %lu extents in use", (unsigned long)entries_seen,
                     (unsigned long)pm_active.count);
    return status;
}

// ---- slabs and arenas --------------------------------------------------------------------------------

static int verify_tags(uint32_t slab, const struct pm_vslab *v, struct pm_error *err) {
    const struct pm_class *cls = &pm_classes[v->size_class];
    for (unsigned i = 0; i < cls->blocks; i++) {
        const char *block = pm_slab_start(slab) + (size_t)i * cls->size;
        unsigned tag = pm_tag[pm_granule(block)];
        bool is_free = v->free[i / 64] >> i % 64 & 1;
        // a block that is not free may be in a tcache, untagged
        if (tag && (is_free || tag != v->size_class))
            return WRONG("slab %u: block %u is %s but tagged %u", slab, i,
                         is_free ? "free" : "in use", tag);
    }
    return PM_OK;
}

static int verify_slab(uint32_t slab, uint32_t extent, bool swept, struct pm_error *err) {
    const struct pm_vslab *v = &pm_vslabs[slab];
    if (v->size_class == 0 || v->size_class > PM_CLASSES || v->extent != extent)
        return WRONG("slab %u: its volatile header is of class %u, extent %u", slab, v->size_class,
                     v->extent);
    if (pm_heap.persistent && pm_slab_media_class(slab) != v->size_class)
        return WRONG("slab %u: its header on media is of another class", slab);
    unsigned blocks = pm_classes[v->size_class].blocks, unused = 0;
    for (unsigned i = 0; i < pm_slab_words(v->size_class); i++)
        unused += (unsigned)__builtin_popcountll(v->free[i]);
    if (unused != v->free_count || unused > blocks ||
        (blocks % 64 && v->free[blocks / 64] >> blocks % 64))
        return WRONG("slab %u: %u free bits of %u blocks, the count says %u", slab, unused, blocks,
                     v->free_count);
    if (!swept)
        return PM_OK;
    if (v->listed != (v->free_count > 0))
        return WRONG("slab %u has %u free blocks and is %sin its arena's list", slab, unused,
                     v->listed ? "" : "not ");
    return v->stale_tags ? PM_OK : verify_tags(slab, v, err);
}

static int verify_bin(const struct pm_bin *bin, unsigned cls, uint16_t arena,
                      struct pm_error *err) {
    uint32_t previous = 0, empty = 0, listed = 0;
    for (uint32_t link = bin->list; link; previous = link, link = pm_vslabs[link - 1].next) {
        const struct pm_vslab *v = &pm_vslabs[link - 1];
        if (v->size_class != cls || v->arena != arena || v->prev != previous || !v->free_count ||
            ++listed > bin->slabs)
            return WRONG("arena %u, class %u: its list is broken at slab %u", arena,
                         pm_classes[cls].size, link - 1);
        empty += v->free_count == pm_classes[cls].blocks;
    }
    if (empty != bin->empty)
        return WRONG("arena %u, class %u: %u empty slabs, the count says %u", arena,
                     pm_classes[cls].size, empty, bin->empty);
    return PM_OK;
}

static int verify_arenas(struct pm_error *err) {
    int status = PM_OK;
    for (unsigned a = 0; a < pm_arena_count; a++)
        for (unsigned cls = 1; cls <= PM_CLASSES && status == PM_OK; cls++)
            status = verify_bin(&pm_arenas[a].bin[cls], cls, (uint16_t)a, err);
    return status;
}

static int verify_slabs(bool swept, struct pm_error *err) {
    int status = PM_OK;
    for (uint32_t i = 1; i < pm_extent_top && status == PM_OK; i++) {
        const struct pm_extent *e = &pm_extents[i];
        if (e->state == PM_EXTENT_ACTIVE && e->slab)
            status =
                verify_slab((uint32_t)(e->page << PM_PAGE_SHIFT >> PM_SLAB_SHIFT), i, swept, err);
    }
    return status == PM_OK && swept ? verify_arenas(err) : status;
}

int pm_verify(bool swept, struct pm_error *err) {
    struct tally sum = {0};
    int status = verify_extents(&sum, err);
    if (status == PM_OK)
        status = verify_set(&pm_reclaimed, PM_EXTENT_RECLAIMED, &sum, err);
    if (status == PM_OK)
        status = verify_set(&pm_retained, PM_EXTENT_RETAINED, &sum, err);
    if (status == PM_OK && pm_heap.persistent)
        status = verify_log(err);
    return status == PM_OK ? verify_slabs(swept, err) : status;
}
