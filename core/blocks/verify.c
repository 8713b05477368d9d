// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "verify.h"

#include "arena.h"
#include "base/bits.h"
#include "extent_cache.h"
#include "holes.h"
#include "kinds.h"
#include "media/backing/backing.h"
#include "media/log/log.h"
#include "morph.h"
#include "morph_media.h"
#include "pages/extent_adopt.h"
#include "pages/extent_entry.h"
#include "pages/extent_take.h"
#include "pages/free_extents.h"
#include "pinned.h"
#include "types.h"

#define WRONG(...) pm_fail(err, PM_DAMAGE, __VA_ARGS__)

// ---- extents and the page map -------------------------------------------------------------------

struct tally {
    uint64_t pages[5], count[5]; // by state
    uint64_t slab_pages;
};

static bool is_header(uint32_t index) {
    return index >> PM_INDEX_SHIFT < pm_heap.shards &&
           index - pm_index_first(pm_shard_of_extent(index)) < pm_extents_of(index)->top;
}

static int verify_extent(uint64_t page, uint32_t index, struct tally *sum, struct pm_error *err) {
    const struct pm_extent *e = &pm_extents[index];
    if (!is_header(index) || index >> PM_INDEX_SHIFT != page / PM_SHARD_PAGES || e->page != page ||
        e->pages == 0 || e->state == PM_EXTENT_UNUSED || e->state > PM_EXTENT_BARRED)
        return WRONG("page map: page %lu names extent %u, which does not start there",
                     (unsigned long)page, index);
    uint64_t last = page + e->pages - 1;
    if (last >= pm_shard_end(pm_shard_of_page(page)) || *pm_page_extent(last) != index)
        return WRONG("page map: extent %u at page %lu does not end at page %lu", index,
                     (unsigned long)page, (unsigned long)last);
    for (uint64_t inner = page + 1; inner < last; inner++)
        if (*pm_page_extent(inner))
            return WRONG("page map: extent %u begins inside another, at page %lu",
                         *pm_page_extent(inner), (unsigned long)inner);
    sum->pages[e->state] += e->pages;
    sum->count[e->state]++;
    sum->slab_pages += e->slab ? e->pages : 0;
    return PM_OK;
}

static int verify_extents(const struct pm_shard *s, struct tally *sum, struct pm_error *err) {
    const struct pm_active *active = &s->extents->active;
    uint64_t end = pm_shard_end(s);
    for (uint64_t page = s->offset >> PM_PAGE_SHIFT; page < end;
         page += pm_extents[*pm_page_extent(page)].pages) {
        int status = verify_extent(page, *pm_page_extent(page), sum, err);
        if (status != PM_OK)
            return status;
    }
    if (pm_heap_length_is_frontier() && s->data.size != s->frontier)
        return WRONG("extents end at %lu, the data file at %zu", (unsigned long)s->frontier,
                     s->data.size);
    if (sum->pages[PM_EXTENT_ACTIVE] != active->pages ||
        sum->count[PM_EXTENT_ACTIVE] != active->count || sum->slab_pages != active->slab_pages)
        return WRONG("%lu pages in %lu extents are in use, the counters say %lu in %lu",
                     (unsigned long)sum->pages[PM_EXTENT_ACTIVE],
                     (unsigned long)sum->count[PM_EXTENT_ACTIVE], (unsigned long)active->pages,
                     (unsigned long)active->count);
    return PM_OK;
}

// ---- free sets ----------------------------------------------------------------------------------

struct free_sum {
    enum pm_extent_state state;
    uint64_t most, pages, count;
};

// A list of a set, with its bit.
static int verify_free(struct pm_free_set *set, uint32_t *head, bool some, struct free_sum *found,
                       struct pm_error *err) {
    if ((*head != 0) != some)
        return WRONG("a free list: its bit is wrong");
    for (uint32_t i = *head; i; i = pm_extents[i].next) {
        if (pm_extents[i].state != found->state || ++found->count > found->most)
            return WRONG("a free list holds extent %u, which is not free", i);
        if (pm_free_head(set, &pm_extents[i]) != head)
            return WRONG("extent %u is in another free list than its own", i);
        found->pages += pm_extents[i].pages;
    }
    return PM_OK;
}

static int verify_set(struct pm_free_set *set, enum pm_extent_state state, const struct tally *sum,
                      struct pm_error *err) {
    struct free_sum found = {.state = state, .most = sum->count[state]};
    int status = PM_OK;
    for (unsigned list = 0; list < PM_SIZE_LISTS && status == PM_OK; list++)
        status =
            verify_free(set, &set->head[list], set->some[list / 64] >> list % 64 & 1, &found, err);
    for (unsigned i = 0; i < PM_CROOKED_LISTS && status == PM_OK; i++)
        status = verify_free(set, &set->crooked[i], set->some_crooked >> (PM_CROOKED_FIRST + i) & 1,
                             &found, err);
    if (status != PM_OK)
        return status;
    if (found.count != found.most || found.pages != sum->pages[state] || found.pages != set->pages)
        return WRONG("free lists hold %lu pages in %lu extents, the range %lu in %lu",
                     (unsigned long)found.pages, (unsigned long)found.count,
                     (unsigned long)sum->pages[state], (unsigned long)sum->count[state]);
    return PM_OK;
}

// ---- log ----------------------------------------------------------------------------------------

static uint64_t entries_seen;

static int verify_entry(struct pm_shard *s, uint64_t entry, pm_log_pos pos, struct pm_error *err) {
    if (pos == s->extents->unfinished_resize)
        return PM_OK;
    uint64_t page = pm_extent_entry_page(s, entry);
    uint32_t index = page < pm_shard_end(s) ? *pm_page_extent(page) : 0;
    const struct pm_extent *e = &pm_extents[index];
    if (!index || e->state != PM_EXTENT_ACTIVE || e->page != page ||
        e->pages != pm_entry_length(entry) || e->log != pos || e->slab != pm_entry_is_slab(entry) ||
        e->kind != pm_entry_kind(entry))
        return WRONG("log: the entry at position %u (page %lu, %lu pages) is no extent in use", pos,
                     (unsigned long)page, (unsigned long)pm_entry_length(entry));
    entries_seen++;
    return PM_OK;
}

static int verify_log(struct pm_shard *s, struct pm_error *err) {
    const struct pm_active *active = &s->extents->active;
    entries_seen = 0;
    int status = pm_log_each(s, verify_entry, err);
    if (status == PM_OK && entries_seen != active->count)
        return WRONG("log: %lu entries stand for %lu extents in use", (unsigned long)entries_seen,
                     (unsigned long)active->count);
    return status;
}

// ---- extent caches, and what stands -------------------------------------------------------------

// The lists have exactly the cached extents, each once and with its length.
struct listed {
    uint64_t count, cached;
    struct pm_error *err;
};

static bool verify_cached(uint32_t index, unsigned list, void *arg) {
    struct listed *sum = arg;
    const struct pm_extent *e = &pm_extents[index];
    if (is_header(index) && pm_extent_is_cached(e) && pm_size_list(e->pages) == list &&
        ++sum->count <= sum->cached)
        return true;
    struct pm_error *err = sum->err;
    WRONG("extent cache: list %u has extent %u, which is not cached or stands there twice", list,
          index);
    return false;
}

static int verify_standing(const struct pm_shard *s, struct listed *sum, struct pm_error *err) {
    const struct pm_shard_extents *x = s->extents;
    for (uint32_t i = 0; i < x->standing_count; i++) {
        uint32_t index = x->standing[i];
        const struct pm_extent *e = &pm_extents[index];
        if (!is_header(index) || !e->stands || !pm_extent_is_cached(e) ||
            ++sum->count > sum->cached)
            return WRONG("extents: %u is said to stand, and does not, or twice", index);
    }
    return PM_OK;
}

static int verify_caches(struct pm_error *err) {
    struct listed sum = {.cached = pm_extent_stats().cached, .err = err};
    if (!pm_extent_cache_each(verify_cached, &sum))
        return err->status;
    for (unsigned i = 0; i < pm_heap.shards; i++)
        if (verify_standing(&pm_heap.shard[i], &sum, err) != PM_OK)
            return err->status;
    if (sum.count != sum.cached && !pm_extent_cache_lost)
        return WRONG("extent caches: %lu extents are cached, the lists have %lu",
                     (unsigned long)sum.cached, (unsigned long)sum.count);
    return PM_OK;
}

// ---- slabs and arenas ---------------------------------------------------------------------------

static unsigned count_bits(const uint64_t *bits, unsigned cls) {
    return pm_bits_count(bits, pm_slab_words(cls));
}

// A block that is not free may be in a thread cache; its tag is 0 then. With two populations
// (`alone` is false) a free block may have a tag: a block of the other population begins at the
// same place.
static int verify_tags(uint32_t slab, const struct pm_population *p, bool alone,
                       struct pm_error *err) {
    const struct pm_class *cls = &pm_classes[p->cls];
    uint64_t used[PM_BITMAP_WORDS];
    pm_population_used(&pm_vslabs[slab], p, used);
    for (unsigned i = 0; i < cls->blocks; i++) {
        unsigned tag = *pm_tag_at(pm_slab_start(slab) + (size_t)i * cls->size);
        bool in_use = pm_bit(used, i);
        unsigned own = pm_slab_tag(&pm_vslabs[slab], p->cls);
        if (in_use ? tag && tag != own : tag && (alone || (tag == own && own != PM_TAG_KIND)))
            return WRONG("slab %u: block %u of %u bytes is %s but tagged %u", slab, i, cls->size,
                         in_use ? "in use" : "free", tag);
    }
    return PM_OK;
}

// Checks the old blocks (population.h): every live one is listed, the list is the one on media, and
// no blocked block is free.
static int verify_old(uint32_t slab, unsigned old, uint32_t line, const uint64_t *blocked,
                      struct pm_error *err) {
    const struct pm_vslab *v = &pm_vslabs[slab];
    const uint64_t *live = pm_old_live(v), *listed = pm_old_listed(v);
    uint64_t media[PM_BITMAP_WORDS];
    if (pm_heap_on_media()) {
        unsigned there;
        int status = pm_morph_media_read(line, slab, v->size_class, &there, media, err);
        if (status != PM_OK)
            return status;
        if (line != v->media_line || there != old)
            return WRONG("slab %u: its index table on media is another one", slab);
    }
    for (unsigned i = 0; i < pm_slab_words(old); i++)
        if (live[i] & ~listed[i] || (pm_heap_on_media() && media[i] != listed[i]))
            return WRONG("slab %u: an old block in use is not in its index table", slab);
    if (count_bits(live, old) != v->old_live || count_bits(listed, old) != v->old_listed)
        return WRONG("slab %u: %u old blocks of %u listed, the counts say %u of %u", slab,
                     count_bits(live, old), count_bits(listed, old), v->old_live, v->old_listed);
    for (unsigned i = 0; i < pm_slab_words(v->size_class); i++)
        if (pm_free_bits(v)[i] & blocked[i])
            return WRONG("slab %u: a free block lies on an old one", slab);
    return PM_OK;
}

// A punched page is a hole, has no block in use, and is counted.
static int verify_holes(uint32_t slab, struct pm_error *err) {
    const struct pm_vslab *v = &pm_vslabs[slab];
    unsigned counted = pm_extents[v->extent].holes;
    if ((v->holes && !pm_holes_possible(v)) || v->punched & ~v->holes ||
        (v->punched && v->punched & pm_holes_used(v)) ||
        (unsigned)__builtin_popcount(v->punched) != counted)
        return WRONG("slab %u of class %u: pages %x are holes, %x were punched, %u are counted",
                     slab, v->size_class, v->holes, v->punched, counted);
    return PM_OK;
}

// A block that is in use and has no bit is reserved.
static int verify_pinned(uint32_t slab, uint32_t line, struct pm_error *err) {
    const struct pm_vslab *v = &pm_vslabs[slab];
    uint64_t pinned[PM_BITMAP_WORDS];
    if (line != v->media_line)
        return WRONG("slab %u: its pinned blocks on media are at another line", slab);
    pm_pinned_used(slab, pinned);
    for (unsigned i = 0; i < pm_slab_words(v->size_class); i++)
        if (pinned[i] & pm_free_bits(v)[i])
            return WRONG("slab %u: a pinned block is free", slab);
    return PM_OK;
}

static int verify_slab(uint32_t slab, uint32_t extent, bool swept, struct pm_error *err) {
    const struct pm_vslab *v = &pm_vslabs[slab];
    uint64_t blocked[PM_BITMAP_WORDS];
    uint32_t line = 0;
    if (v->size_class == 0 || v->size_class > PM_CLASSES || v->extent != extent ||
        pm_kind_is_typed(v->kind) != (v->type != 0) ||
        (swept && !v->held && v->kind != pm_kind_of_arena(v->arena)))
        return WRONG("slab %u: its volatile header is of class %u, extent %u", slab, v->size_class,
                     v->extent);
    struct pm_population population[2];
    unsigned count = pm_slab_populations(v, population);
    if (pm_heap_on_media() && (pm_slab_media_class(slab, &line) != v->size_class ||
                               (line != 0) != (count == 2 || pm_kind_is_pinned(v->kind))))
        return WRONG("slab %u: its header on media is of another class", slab);
    unsigned blocks = pm_classes[v->size_class].blocks;
    unsigned unused = count_bits(pm_free_bits(v), v->size_class);
    unsigned out = pm_population_blocked(v, blocked);
    if (unused != v->free_count || unused > blocks || out != v->blocked ||
        (blocks % 64 && pm_free_bits(v)[blocks / 64] >> blocks % 64))
        return WRONG("slab %u: %u free bits and %u blocked of %u blocks, the counts say %u and %u",
                     slab, unused, out, blocks, v->free_count, v->blocked);
    int status = count == 2 ? verify_old(slab, population[1].cls, line, blocked, err) : PM_OK;
    if (status == PM_OK && pm_kind_is_pinned(v->kind) && pm_heap_on_media())
        status = verify_pinned(slab, line, err);
    if (status == PM_OK)
        status = verify_holes(slab, err);
    if (!swept || status != PM_OK)
        return status;
    if ((v->listed != PM_LISTED_NOT) != (v->free_count > 0 || pm_morph_is_due(v)))
        return WRONG("slab %u has %u free blocks and is %sin its arena's list", slab, unused,
                     v->listed ? "" : "not ");
    if (v->type && v->listed != PM_LISTED_NOT && !v->held && !pm_types_has(slab))
        return WRONG("slab %u is not in the chain of its type %u", slab, v->type);
    for (unsigned i = 0; i < count && !v->untagged && status == PM_OK; i++)
        status = verify_tags(slab, &population[i], count == 1, err);
    return status;
}

// Checks one list of a bin and adds up its slabs in *listed.
static int verify_list(const struct pm_bin *bin, unsigned cls, uint16_t arena, enum pm_listed place,
                       uint32_t *listed, struct pm_error *err) {
    bool sparse = place == PM_LISTED_SPARSE, vacant = place == PM_LISTED_EMPTY;
    uint32_t previous = 0, link = sparse ? bin->sparse : vacant ? bin->vacant : bin->list;
    for (; link; previous = link, link = pm_vslabs[link - 1].next) {
        const struct pm_vslab *v = &pm_vslabs[link - 1];
        if (v->size_class != cls || v->arena != arena || v->prev != previous ||
            v->listed != place || (sparse && !pm_slab_is_sparse(v)) ||
            vacant != pm_slab_is_empty(v) || ++*listed > bin->slabs)
            return WRONG("arena %u, class %u: its %s is broken at slab %u", arena,
                         pm_classes[cls].size,
                         sparse   ? "queue"
                         : vacant ? "list of empty slabs"
                                  : "list",
                         link - 1);
    }
    if (sparse && previous != bin->sparse_last)
        return WRONG("arena %u, class %u: its queue ends at the wrong slab", arena,
                     pm_classes[cls].size);
    return PM_OK;
}

static int verify_bin(const struct pm_bin *bin, unsigned cls, uint16_t arena,
                      struct pm_error *err) {
    uint32_t listed = 0;
    int status = verify_list(bin, cls, arena, PM_LISTED_FREE, &listed, err);
    if (status == PM_OK)
        status = verify_list(bin, cls, arena, PM_LISTED_SPARSE, &listed, err);
    uint32_t others = listed;
    if (status == PM_OK)
        status = verify_list(bin, cls, arena, PM_LISTED_EMPTY, &listed, err);
    if (status == PM_OK && listed - others != bin->empty)
        return WRONG("arena %u, class %u: %u empty slabs, the count says %u", arena,
                     pm_classes[cls].size, listed - others, bin->empty);
    return status;
}

struct slab_tally {
    uint64_t slabs, blocked, lodged_elsewhere;
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
            bins.lodged_elsewhere += bin->lodged_elsewhere;
        }
    if (bins.slabs != slabs->slabs || bins.blocked != slabs->blocked ||
        bins.lodged_elsewhere != slabs->lodged_elsewhere)
        return WRONG("arenas: %lu slabs, %lu blocked blocks, %lu old ones; there are %lu, %lu, %lu",
                     (unsigned long)bins.slabs, (unsigned long)bins.blocked,
                     (unsigned long)bins.lodged_elsewhere, (unsigned long)slabs->slabs,
                     (unsigned long)slabs->blocked, (unsigned long)slabs->lodged_elsewhere);
    return PM_OK;
}

static int verify_slabs(bool swept, struct pm_error *err) {
    struct slab_tally sum = {0};
    int status = PM_OK;
    for (uint32_t i = 0; status == PM_OK && (i = pm_extent_next_active(i)) != 0;) {
        const struct pm_extent *e = &pm_extents[i];
        if (!e->slab)
            continue;
        uint32_t slab = pm_extent_slab(e);
        const struct pm_vslab *v = &pm_vslabs[slab];
        status = verify_slab(slab, i, swept, err);
        sum.slabs++;
        sum.blocked += v->blocked;
        sum.lodged_elsewhere += v->old_live;
    }
    return status == PM_OK && swept ? verify_arenas(&sum, err) : status;
}

static int verify_shard(struct pm_shard *s, struct pm_error *err) {
    struct pm_shard_extents *x = s->extents;
    struct tally sum = {0};
    int status = verify_extents(s, &sum, err);
    if (status == PM_OK)
        status = verify_set(&x->reclaimed, PM_EXTENT_RECLAIMED, &sum, err);
    if (status == PM_OK)
        status = verify_set(&x->retained, PM_EXTENT_RETAINED, &sum, err);
    return status == PM_OK && pm_heap_on_media() ? verify_log(s, err) : status;
}

int pm_verify(bool swept, struct pm_error *err) {
    int status = PM_OK;
    for (unsigned i = 0; i < pm_heap.shards && status == PM_OK; i++)
        status = verify_shard(&pm_heap.shard[i], err);
    if (status == PM_OK && swept)
        status = verify_caches(err);
    return status == PM_OK ? verify_slabs(swept, err) : status;
}
