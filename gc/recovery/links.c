// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "links.h"

#include <errno.h>

#include "base/bits.h"
#include "blocks/link_table.h"
#include "blocks/population.h"
#include "mark_index.h"
#include "pages/extent.h"
#include "roots/root_words.h"

struct block {
    uint64_t start, size;
    bool alive;
};

static bool in_slab(uint64_t offset, bool held, struct block *b) {
    uint32_t slab = (uint32_t)(offset >> PM_SLAB_SHIFT);
    struct pm_slab_block found;
    if (!pm_slab_find(&pm_vslabs[slab], (uint32_t)(offset & (PM_SLAB_SIZE - 1)), &found))
        return false;
    b->size = pm_classes[found.cls].size;
    b->start = (offset & ~(uint64_t)(PM_SLAB_SIZE - 1)) + found.index * b->size;
    b->alive = (held && !pm_vslabs[slab].held) || pm_bit(found.bits, found.index);
    return true;
}

// Where the bitmaps of a clean close stand in for marking, every large block is in use. Only the
// first page of an extent names it.
static bool in_extent(uint64_t offset, struct block *b) {
    uint64_t page = offset >> PM_PAGE_SHIFT, first = pm_shard_at(offset)->offset >> PM_PAGE_SHIFT;
    while (page > first && !*pm_page_extent(page))
        page--;
    const struct pm_extent *e = &pm_extents[*pm_page_extent(page)];
    b->start = e->page << PM_PAGE_SHIFT;
    b->size = pm_extent_bytes(e);
    b->alive = true;
    return e->state == PM_EXTENT_ACTIVE && offset - b->start < b->size;
}

static bool in_large(uint64_t offset, struct block *b) {
    if (!pm_marks.kind)
        return in_extent(offset, b);
    uint32_t kind = pm_marks.kind[offset >> PM_SLAB_SHIFT];
    for (uint32_t i = kind - PM_STRIPE_LARGE; kind >= PM_STRIPE_LARGE && i < pm_marks.larges; i++) {
        const struct pm_large *l = &pm_marks.large[i];
        b->start = l->page << PM_PAGE_SHIFT;
        b->size = (uint64_t)l->pages << PM_PAGE_SHIFT;
        b->alive = l->marked;
        if (offset < b->start + b->size)
            return offset >= b->start;
    }
    return false;
}

// The block around an offset; where there is none, nothing is alive. If only what is held can die,
// all else is alive.
static struct block find_block(uint64_t offset, bool held) {
    struct block b = {offset & ~15ull, 16, held};
    const struct pm_shard *s = pm_shard_at(offset);
    if (offset - s->offset >= s->frontier)
        return (struct block){offset & ~15ull, 16, false};
    bool found = pm_vslabs[offset >> PM_SLAB_SHIFT].size_class ? in_slab(offset, held, &b)
                                                               : in_large(offset, &b);
    return found ? b : (struct block){offset & ~15ull, 16, held};
}

// ---- words --------------------------------------------------------------------------------------

static struct pm_root_word root_word(const struct pm_link *link) {
    return (struct pm_root_word){link->root, link->at};
}

static bool word_is_alive(const struct pm_link *link, bool held) {
    return link->in_root ? pm_root_word_exists(root_word(link)) : find_block(link->at, held).alive;
}

struct weeding {
    struct pm_links_found *found;
    bool write, held;
    int error; // an errno
};

static bool load(const struct pm_link *link, uint64_t *word) {
    if (link->in_root)
        return pm_root_word_load(root_word(link), word);
    *word = pm_links_load_word(link->at);
    return true;
}

static bool store_zero(const struct pm_link *link) {
    if (link->in_root)
        return pm_root_word_store(root_word(link), 0);
    pm_links_clear_word(pm_heap_at(link->at));
    return true;
}

static void clear_word(struct weeding *w, const struct pm_link *link) {
    struct block object = find_block(link->object, w->held);
    uint64_t word;
    bool good = load(link, &word);
    bool names = good && pm_links_names(word, pm_base + object.start, object.size);
    if (names && w->write)
        good = store_zero(link);
    if (!good)
        w->error = errno;
    else if (names || !word)
        w->found->cleared++;
    else
        w->found->foreign++;
}

static void clear(uint32_t number, const struct pm_link *link, void *arg) {
    struct weeding *w = arg;
    (void)number;
    if (!word_is_alive(link, w->held))
        w->found->lost++;
    else if (find_block(link->object, w->held).alive)
        return;
    else
        clear_word(w, link);
}

static void erase(uint32_t number, const struct pm_link *link, void *arg) {
    struct weeding *w = arg;
    if (word_is_alive(link, w->held) && find_block(link->object, w->held).alive)
        return;
    pm_links_erase(number);
    pm_links_weeded++;
}

int pm_links_weed(bool write, bool held, struct pm_links_found *found, struct pm_error *err) {
    struct weeding w = {.found = found, .write = write, .held = held};
    found->registered = pm_links_count();
    found->cleared = found->lost = found->foreign = 0;
    pm_links_each(clear, &w);
    if (w.error)
        return pm_fail(err, PM_OPERATIONAL, "%s/roots: cannot clear links: %s", pm_heap.dir,
                       pm_strerror(w.error));
    if (!write || found->cleared + found->lost + found->foreign == 0)
        return PM_OK;
    pm_links_settle(); // the words are durable before their links go
    pm_links_each(erase, &w);
    pm_links_settle();
    if (found->foreign)
        pm_say("%s: %lu disappearing links of dead objects hold neither their address nor its "
               "complement; the words were left as they are, and the links are gone",
               pm_heap.dir, (unsigned long)found->foreign);
    return PM_OK;
}
