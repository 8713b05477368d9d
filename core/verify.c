// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "verify.h"

#include "arena.h"
#include "booklog.h"
#include "extent_set.h"
#include "morph.h"
#include "morph_table.h"
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

static bool has(const uint64_t *bits, unsigned i) { return bits[i / 64] >> i % 64 & 1; }

static unsigned count_bits(const uint64_t *bits, unsigned cls) {
    unsigned count = 0;
    for (unsigned i = 0; i < pm_slab_words(cls); i++)
        count += (unsigned)__builtin_popcountll(bits[i]);
    return count;
}

// The blocks of one class in a slab; `unused` has a bit for each that may have no tag of it. Where there are two
// classes, a block of the other may begin at the same place.
static int verify_tags(uint32_t slab, unsigned size_class, bool alone, const uint64_t *unused,
                       struct pm_error *err) {
    const struct pm_class *cls = &pm_classes[size_class];
    for (unsigned i = 0; i < cls->blocks; i++) {
        const char *block = pm_slab_start(slab) + (size_t)i * cls->size;
        unsigned tag = pm_tag[pm_granule(block)];
        // a block that is not free may be in a tcache, untagged
        if (has(unused, i) ? tag && (alone || tag == size_class) : tag && tag != size_class)
            return WRONG("slab %u: block %u of %u bytes is %s but tagged %u", slab, i, cls->size,
                         has(unused, i) ? "free" : "in use", tag);
    }
    return PM_OK;
}

static int verify_all_tags(uint32_t slab, const struct pm_vslab *v, const uint64_t *blocked,
                           struct pm_error *err) {
    uint64_t unused[PM_BITMAP_WORDS];
    for (unsigned i = 0; i < pm_slab_words(v->size_class); i++)
        unused[i] = v->free[i] | blocked[i];
    int status = verify_tags(slab, v->size_class, !v->old_class, unused, err);
    if (status != PM_OK || !v->old_class)
        return status;
    for (unsigned i = 0; i < pm_slab_words(v->old_class); i++)
        unused[i] = ~pm_morph_live(v)[i];
    return verify_tags(slab, v->old_class, false, unused, err);
}

// The invariants of morph.h: live within listed, as on media; blocked and free exclude each other.
static int verify_morph(uint32_t slab, const struct pm_vslab *v, uint32_t line,
                        const uint64_t *blocked, struct pm_error *err) {
    uint64_t media[PM_BITMAP_WORDS];
    const uint64_t *live = pm_morph_live(v), *listed = pm_morph_listed(v);
    unsigned old = v->old_class;
    if (pm_heap.persistent) {
        int status = pm_index_read(line, slab, v->size_class, &old, media, err);
        if (status != PM_OK)
            return status;
        if (line != v->table || old != v->old_class)
            return WRONG("slab %u: its index table on media is another one", slab);
    }
    for (unsigned i = 0; i < pm_slab_words(old); i++)
        if (live[i] & ~listed[i] || (pm_heap.persistent && media[i] != listed[i]))
            return WRONG("slab %u: an old block in use is not in its index table", slab);
    if (count_bits(live, old) != v->old_live || count_bits(listed, old) != v->old_listed)
        return WRONG("slab %u: %u old blocks of %u listed, the counts say %u of %u", slab,
                     count_bits(live, old), count_bits(listed, old), v->old_live, v->old_listed);
    for (unsigned i = 0; i < pm_slab_words(v->size_class); i++)
        if (v->free[i] & blocked[i])
            return WRONG("slab %u: a free block lies on an old one", slab);
    return PM_OK;
}

static int verify_slab(uint32_t slab, uint32_t extent, bool swept, struct pm_error *err) {
    const struct pm_vslab *v = &pm_vslabs[slab];
    uint64_t blocked[PM_BITMAP_WORDS] = {0};
    uint32_t line = 0;
    if (v->size_class == 0 || v->size_class > PM_CLASSES || v->extent != extent)
        return WRONG("slab %u: its volatile header is of class %u, extent %u", slab, v->size_class,
                     v->extent);
    if (pm_heap.persistent &&
        (pm_slab_media_class(slab, &line) != v->size_class || (line != 0) != (v->old_class != 0)))
        return WRONG("slab %u: its header on media is of another class", slab);
    unsigned blocks = pm_classes[v->size_class].blocks;
    unsigned unused = count_bits(v->free, v->size_class);
    unsigned out = v->old_class ? pm_morph_blocked(v, blocked) : 0;
    if (unused != v->free_count || unused > blocks || out != v->blocked ||
        (blocks % 64 && v->free[blocks / 64] >> blocks % 64))
        return WRONG("slab %u: %u free bits and %u blocked of %u blocks, the counts say %u and %u",
                     slab, unused, out, blocks, v->free_count, v->blocked);
    int status = v->old_class ? verify_morph(slab, v, line, blocked, err) : PM_OK;
    if (!swept || status != PM_OK)
        return status;
    if ((v->listed != PM_LISTED_NOT) != (v->free_count > 0 || pm_morph_is_due(v)))
        return WRONG("slab %u has %u free blocks and is %sin its arena's list", slab, unused,
                     v->listed ? "" : "not ");
    return v->stale_tags ? PM_OK : verify_all_tags(slab, v, blocked, err);
}

// One list of a bin; adds to the counts.
static int verify_list(const struct pm_bin *bin, unsigned cls, uint16_t arena, bool sparse,
                       uint32_t *listed, uint32_t *empty, struct pm_error *err) {
    uint32_t previous = 0, link = sparse ? bin->sparse : bin->list;
    for (; link; previous = link, link = pm_vslabs[link - 1].next) {
        const struct pm_vslab *v = &pm_vslabs[link - 1];
        if (v->size_class != cls || v->arena != arena || v->prev != previous ||
            v->listed != (sparse ? PM_LISTED_SPARSE : PM_LISTED_FREE) ||
            (sparse && !pm_slab_is_sparse(v)) || ++*listed > bin->slabs)
            return WRONG("arena %u, class %u: its %s is broken at slab %u", arena,
                         pm_classes[cls].size, sparse ? "queue" : "list", link - 1);
        *empty += pm_slab_is_empty(v);
    }
    if (sparse && previous != bin->sparse_last)
        return WRONG("arena %u, class %u: its queue ends at the wrong slab", arena,
                     pm_classes[cls].size);
    return PM_OK;
}

static int verify_bin(const struct pm_bin *bin, unsigned cls, uint16_t arena,
                      struct pm_error *err) {
    uint32_t listed = 0, empty = 0;
    int status = verify_list(bin, cls, arena, false, &listed, &empty, err);
    if (status == PM_OK)
        status = verify_list(bin, cls, arena, true, &listed, &empty, err);
    if (status == PM_OK && empty != bin->empty)
        return WRONG("arena %u, class %u: %u empty slabs, the count says %u", arena,
                     pm_classes[cls].size, empty, bin->empty);
    return status;
}

struct slab_tally {
    uint64_t slabs, blocked, guests;
};

static int verify_arenas(const struct slab_tally *slabs, struct pm_error *err) {
    struct slab_tally bins = {0};
    for (unsigned a = 0; a < pm_arena_count; a++)
        for (unsigned cls = 1; cls <= PM_CLASSES; cls++) {
            const struct pm_bin *bin = &pm_arenas[a].bin[cls];
            int status = verify_bin(bin, cls, (uint16_t)a, err);
            if (status != PM_OK)
                return status;
            bins.slabs += bin->slabs;
            bins.blocked += bin->blocked;
            bins.guests += bin->guests;
        }
    if (bins.slabs != slabs->slabs || bins.blocked != slabs->blocked ||
        bins.guests != slabs->guests)
        return WRONG("arenas: %lu slabs, %lu blocked blocks, %lu old ones; there are %lu, %lu, %lu",
                     (unsigned long)bins.slabs, (unsigned long)bins.blocked,
                     (unsigned long)bins.guests, (unsigned long)slabs->slabs,
                     (unsigned long)slabs->blocked, (unsigned long)slabs->guests);
    return PM_OK;
}

static int verify_slabs(bool swept, struct pm_error *err) {
    struct slab_tally sum = {0};
    int status = PM_OK;
    for (uint32_t i = 1; i < pm_extent_top && status == PM_OK; i++) {
        const struct pm_extent *e = &pm_extents[i];
        if (e->state != PM_EXTENT_ACTIVE || !e->slab)
            continue;
        uint32_t slab = (uint32_t)(e->page << PM_PAGE_SHIFT >> PM_SLAB_SHIFT);
        const struct pm_vslab *v = &pm_vslabs[slab];
        status = verify_slab(slab, i, swept, err);
        sum.slabs++;
        sum.blocked += v->blocked;
        sum.guests += v->old_class ? v->old_live : 0;
    }
    return status == PM_OK && swept ? verify_arenas(&sum, err) : status;
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
