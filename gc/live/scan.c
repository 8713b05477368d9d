// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "scan.h"

#include <errno.h>

#include "blocks/arena.h"
#include "helpers.h"
#include "marking/behind.h"
#include "media/backing/marks.h"
#include "media/own_pages.h"

#define PIECE ((uint64_t)1 << 20) // of longer ranges it is asked which parts have data

struct pm_scan pm_scan;

// ---- marks --------------------------------------------------------------------------------------

bool pm_scan_rest(struct pm_marker *m, pm_found_fn *marks) {
    bool any = false;
    for (unsigned i = 0; i < PM_CREW_FRESH; i++) {
        struct pm_range r = m->fresh[i];
        m->fresh[i].len = 0;
        any |= r.len != 0;
        if (r.len)
            marks(m, r.offset, r.len);
    }
    return any;
}

// ---- words --------------------------------------------------------------------------------------

bool pm_scan_tagged(uint64_t word, struct pm_range *block) {
    uint64_t offset = pm_untagged(word) - pm_scan.base;
    return pm_forms & PM_FORM_TAGGED && offset < pm_scan.frontier &&
           pm_scan_around(offset, block) && offset - block->offset < PM_LOW_TAGS;
}

bool pm_scan_ends(uint64_t offset, struct pm_range *block) {
    return offset && pm_may_be_end(offset) && pm_scan_around(offset - 1, block);
}

struct forms {
    struct pm_marker *m;
    pm_found_fn *found;
};

static void consider_address(void *arg, uint64_t address) {
    const struct forms *f = arg;
    if (!(address >> PM_TAG_SHIFT))
        pm_scan_word(f->m, address, f->found);
}

static struct pm_behind behind;

static bool is_of_class(uint64_t offset, unsigned cls) {
    const struct pm_vslab *v = &pm_vslabs[offset >> PM_SLAB_SHIFT];
    struct pm_range block;
    return v->size_class && pm_scan_in_slab(v, offset, &block) && block.len == pm_classes[cls].size;
}

static void consider_before(void *arg, uint64_t address) {
    pm_behind_each(&behind, address, is_of_class, arg, consider_address);
}

void pm_scan_forms(struct pm_marker *m, const void *bytes, uint64_t len, pm_found_fn *found) {
    struct forms f = {m, found};
    pm_forms_each(bytes, len, (uintptr_t)bytes, pm_scan.base, &f, consider_address,
                  consider_before);
}

// ---- long ranges --------------------------------------------------------------------------------

struct written {
    struct pm_marker *m;
    pm_words_fn *words;
    bool whole;
};

static void found_written(char *at, size_t len, void *arg) {
    const struct written *w = arg;
    if (w->whole || len <= PM_STEP || !pm_crew_push(w->m, pm_heap_offset(at), len | PM_WRITTEN))
        w->words(w->m, at, len);
}

// Reading memory that was never stored to would take memory.
static void each_written(struct written *w, uint64_t at, uint64_t len) {
    uint64_t end = at + len;
    if (pm_heap_state() == PM_HEAP_VOLATILE) {
        pm_own_pages(pm_heap_at(at), len & ~(PM_PAGE_SIZE - 1), found_written, w);
        uint64_t rest = len & (PM_PAGE_SIZE - 1);
        w->words(w->m, pm_heap_at(end - rest), rest);
        return;
    }
    for (; at < end && (len = pm_heap_next_data(&w->m->known, &at, end)) != 0; at += len)
        found_written(pm_heap_at(at), len, w);
}

void pm_scan_long(struct pm_marker *m, uint64_t offset, uint64_t len, pm_words_fn *words) {
    bool written = (len & PM_WRITTEN) == PM_WRITTEN;
    len &= ~(uint64_t)PM_WRITTEN;
    if (written || len <= PIECE) {
        uint64_t step =
            len > PM_STEP && pm_crew_push(m, offset + PM_STEP, (len - PM_STEP) | PM_WRITTEN)
                ? PM_STEP
                : len;
        words(m, pm_heap_at(offset), step + (step < len ? PM_FORMS_OVERLAP : 0));
        return;
    }
    struct written w = {m, words, false};
    uint64_t piece = pm_crew_push(m, offset + PIECE, (len - PIECE) | PM_WORDS) ? PIECE : len;
    each_written(&w, offset, piece);
    if (piece < len && pm_forms & PM_FORM_UNALIGNED)
        words(m, pm_heap_at(offset + piece - PM_FORMS_OVERLAP), 2 * (uint64_t)PM_FORMS_OVERLAP);
}

void pm_scan_whole(struct pm_marker *m, uint64_t offset, uint64_t len, pm_words_fn *words) {
    if (len > PIECE)
        each_written(&(struct written){m, words, true}, offset, len);
    else
        words(m, pm_heap_at(offset), len);
}

// ---- the crew -----------------------------------------------------------------------------------

static struct pm_crew *led;

static void follow(unsigned number) { pm_crew_follow(led, number); }

static bool start(unsigned number) { return pm_helper_start(number, follow); }

// Making a thread takes less than scanning some ten thousand words. But its end is awaited, and
// where all cores are busy it begins late.
void pm_scan_run(struct pm_crew *c, uint64_t alone) {
    struct pm_marker *m = c->marker;
    m->pause_at = m->scanned + alone;
    c->work(m);
    bool done = m->scanned < m->pause_at && !c->pooled;
    m->pause_at = UINT64_MAX;
    if (done)
        return;
    led = c;
    c->start = start;
    c->join = pm_helper_join;
    pm_crew_run(c);
}

// ---- begin and end ------------------------------------------------------------------------------

int pm_scan_begin(struct pm_error *err) {
    pm_scan.base = pm_base;
    pm_scan.frontier = pm_shard_end(&pm_heap.shard[pm_heap.shards - 1]) << PM_PAGE_SHIFT;
    pm_scan.high = pm_high_halves(pm_base, pm_scan.frontier + 1, pm_forms & PM_FORM_TAGGED);
    if (!pm_large_index_make(pm_scan.frontier) || !pm_behind_make(&behind)) {
        pm_fail(err, PM_OPERATIONAL, "no memory to mark with: %s", pm_strerror(errno));
        pm_scan_end();
        return PM_OPERATIONAL;
    }
    for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;)
        if (pm_extents[i].slab && pm_vslabs[pm_extent_slab(&pm_extents[i])].untagged)
            pm_arena_write_tags(pm_extent_slab(&pm_extents[i]));
    pm_marks_open();
    return PM_OK;
}

void pm_scan_end(void) {
    pm_marks_close();
    pm_large_index_drop();
    pm_behind_drop(&behind);
}
