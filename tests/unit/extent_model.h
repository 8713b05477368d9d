// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// A model of the extents: those that are active, each with a stamp in its first and its last word;
// and checks of the extents that tile the range.
#ifndef PMALLOC_TESTS_UNIT_EXTENT_MODEL_H
#define PMALLOC_TESTS_UNIT_EXTENT_MODEL_H

#include "heap_fixture.h"

#define MODEL 400

struct held {
    uint32_t index;
    uint32_t pages;
    uint64_t page;
    uint64_t stamp;
    bool slab;
};
static struct held held[MODEL]; // page and stamp of each; unused where index is 0
static uint64_t held_pages;

static inline uint64_t *page_word(uint64_t page) { return pm_heap_at(page << PM_PAGE_SHIFT); }

static inline void stamp_ends(struct held *h) {
    static uint64_t stamp = 1;
    h->stamp = stamp++ << 20 | 0xabcde;
    page_word(h->page)[0] = h->stamp;
    page_word(h->page + h->pages)[-1] = h->stamp;
}

static inline bool is_stamp(uint64_t word) { return (word & 0xfffff) == 0xabcde; }

static inline bool reads_zero(uint64_t page, uint64_t pages) {
    for (uint64_t i = page; i < page + pages; i++)
        if (page_word(i)[0] || page_word(i)[3] || page_word(i)[511])
            return false;
    return true;
}

static inline void model_take(struct held *h, uint64_t pages, uint64_t align, bool slab) {
    uint32_t index = pm_extent_take(pages, align);
    *h = (struct held){0}; // a test that has failed goes on
    CHECK(index != 0);
    if (!index)
        return;
    const struct pm_extent *e = &pm_extents[index];
    CHECK_EQ(e->pages, pages);
    CHECK_EQ(e->page % align, 0);
    CHECK_EQ(e->state, PM_EXTENT_ACTIVE);
    CHECK(e->page + pages <= pm_heap.shard[0].frontier >> PM_PAGE_SHIFT);
    if (e->zero)
        CHECK(reads_zero(e->page, pages));
    CHECK(pm_extent_publish(index, slab));
    *h = (struct held){.index = index, .pages = (uint32_t)pages, .page = e->page, .slab = slab};
    stamp_ends(h);
    held_pages += pages;
}

static inline void check_stamp(const struct held *h) {
    CHECK_EQ(page_word(h->page)[0], h->stamp);
    CHECK_EQ(page_word(h->page + h->pages)[-1], h->stamp);
    CHECK_EQ(pm_extents[h->index].page, h->page);
    CHECK_EQ(pm_extents[h->index].pages, h->pages);
}

static inline void model_release(struct held *h) {
    check_stamp(h);
    uint8_t *tag = pm_tag_of_page(h->page);
    CHECK_EQ(*tag, h->slab ? PM_TAG_NONE : PM_TAG_EXTENT);
    if (h->slab) {
        pm_extent_release(h->index);
    } else {
        CHECK_EQ(pm_extent_find(page_word(h->page)), h->index);
        CHECK(pm_extent_free_block(page_word(h->page)));
        CHECK_EQ(pm_extent_find(page_word(h->page)), 0);
        CHECK(!pm_extent_free_block(page_word(h->page)));
    }
    held_pages -= h->pages;
    h->index = 0;
}

static inline void model_resize(struct held *h, uint64_t pages) {
    check_stamp(h);
    bool good = pm_extent_resize(h->index, pages);
    if (pages <= h->pages)
        CHECK(good);
    if (!good) {
        check_stamp(h);
        return;
    }
    CHECK_EQ(page_word(h->page)[0], h->stamp);
    if (pages >= h->pages)
        CHECK_EQ(page_word(h->page + h->pages)[-1], h->stamp);
    held_pages = held_pages - h->pages + pages;
    h->pages = (uint32_t)pages;
    stamp_ends(h);
    check_stamp(h);
}

static inline uint64_t random_pages(void) {
    switch (rnd(10)) {
    case 0:
        return 512 + rnd(700); // huge
    case 1:
        return 64 + rnd(448);
    default:
        return 1 + rnd(40);
    }
}

static inline void model_step_at(struct held *h) {
    if (!h->index) {
        static const uint64_t aligns[] = {1, 1, 1, 2, 16, 512};
        if (rnd(3) == 0)
            model_take(h, 16, 16, true);
        else
            model_take(h, random_pages(), aligns[rnd(6)], false);
    } else if (rnd(3) || h->slab) {
        model_release(h);
    } else {
        model_resize(h, rnd(2) ? random_pages() : h->pages + rnd(64));
    }
}

static inline void model_step(void) { model_step_at(&held[rnd(MODEL)]); }

// Extents tile the range without gaps. The page map names only the first and last pages of extents.
// Free neighbours in the same state are one extent. The statistics are right.
static inline void check_partition(void) {
    uint64_t end = pm_heap.shard[0].frontier >> PM_PAGE_SHIFT, active = 0, active_pages = 0,
             slab_pages = 0;
    uint64_t free_pages[4] = {0}, backed = 0;
    unsigned before = PM_EXTENT_ACTIVE, bad_inside = 0;
    for (uint64_t page = 0; page < end;) {
        uint32_t index = *pm_page_extent(page);
        const struct pm_extent *e = &pm_extents[index];
        CHECK(index && e->page == page && e->pages);
        if (!index || e->page != page || !e->pages)
            return;
        CHECK_EQ(*pm_page_extent(page + e->pages - 1), index);
        for (uint64_t inside = page + 1; inside + 1 < page + e->pages; inside++)
            bad_inside += *pm_page_extent(inside) != 0;
        CHECK(e->state >= PM_EXTENT_ACTIVE && e->state <= PM_EXTENT_RETAINED);
        CHECK(e->state == PM_EXTENT_ACTIVE || e->state != before);
        before = e->state;
        active += e->state == PM_EXTENT_ACTIVE;
        active_pages += e->state == PM_EXTENT_ACTIVE ? e->pages : 0;
        slab_pages += e->state == PM_EXTENT_ACTIVE && e->slab ? e->pages : 0;
        free_pages[e->state] += e->pages;
        backed += e->backed ? e->pages : 0;
        page += e->pages;
    }
    CHECK_EQ(bad_inside, 0);
    struct pm_extent_stats s = pm_extent_stats();
    CHECK_EQ(s.active, active);
    CHECK_EQ(s.active_pages, active_pages);
    CHECK_EQ(s.slab_pages, slab_pages);
    CHECK_EQ(s.reclaimed_pages, free_pages[PM_EXTENT_RECLAIMED]);
    CHECK_EQ(s.retained_pages, free_pages[PM_EXTENT_RETAINED]);
    if (!pm_heap_on_media())
        return;
    CHECK_EQ(pm_log_stats(&pm_heap.shard[0]).live, active);
    CHECK(backed << PM_PAGE_SHIFT <= fixture_blocks());
}

// Exactly the extents of the model are active, at their places, with both stamps.
static inline void check_held(void) {
    uint64_t count = 0;
    for (unsigned i = 0; i < MODEL; i++) {
        if (!held[i].index)
            continue;
        count++;
        CHECK_EQ(*pm_page_extent(held[i].page), held[i].index);
        CHECK_EQ(pm_extents[held[i].index].slab, held[i].slab);
        check_stamp(&held[i]);
    }
    CHECK_EQ(pm_extent_stats().active, count);
    CHECK_EQ(pm_extent_stats().active_pages, held_pages);
}

static inline void model_run(int steps) {
    for (int i = 0; i < steps && !check_failures; i++) {
        model_step();
        if (i % 64 == 0) {
            check_partition();
            check_held();
        }
    }
    check_partition();
    check_held();
}

static inline void model_release_all(void) {
    for (unsigned i = 0; i < MODEL; i++)
        if (held[i].index)
            model_release(&held[i]);
}

#endif
