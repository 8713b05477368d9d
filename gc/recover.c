// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "recover.h"

#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "arena.h"
#include "bitmaps.h"
#include "booklog.h"
#include "clean.h"
#include "extent.h"
#include "mark.h"
#include "morph.h"
#include "options.h"
#include "os.h"
#include "persist.h"
#include "program.h"
#include "roots.h"
#include "slab.h"

void (*pm_recover_progress)(const char *stage, uint64_t done, uint64_t total);

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

bool pm_offline_was_clean(void) { return pm_heap.super->state.state == PM_STATE_CLEAN; }

// ---- steps 2 and 3: log and headers ------------------------------------------------------------------

static int adopt_slabs(struct pm_error *err) {
    int status = PM_OK;
    for (uint32_t i = 1; i < pm_extent_top && status == PM_OK; i++) {
        const struct pm_extent *e = &pm_extents[i];
        if (e->state == PM_EXTENT_ACTIVE && e->slab)
            status = pm_slab_adopt((uint32_t)(e->page << PM_PAGE_SHIFT >> PM_SLAB_SHIFT), i, err);
    }
    return status;
}

static int check_clean(struct pm_error *err) {
    const struct pm_clean *clean = &pm_heap.super->state.clean;
    int status = pm_clean_check(err);
    uint32_t crc;
    if (status != PM_OK || !clean->images_known)
        return status;
    if (!pm_roots_images_crc(&crc, err))
        return err->status;
    if (crc != clean->images_crc)
        return pm_fail(err, PM_DAMAGE,
                       "%s/roots: the captured roots are not what the clean close left",
                       pm_heap.dir);
    return PM_OK;
}

// What a killed process stored last may be in the caches alone, and marking goes by what it sees there: a block that
// only a pointer still on media reaches must not be reused before that pointer's end is durable.
static int write_back_data(struct pm_error *err) {
    if (pm_offline_was_clean() || pm_durability == PM_DURABLE_NONE ||
        pm_durability == PM_DURABLE_CACHE)
        return PM_OK;
    if (!pm_file_ready(&pm_heap.data) || fsync(pm_heap.data.fd) != 0 ||
        !pm_file_ready(&pm_heap.roots) || fsync(pm_heap.roots.fd) != 0)
        return pm_fail(err, PM_OPERATIONAL, "%s: data cannot be written back: %s", pm_heap.dir,
                       strerror(errno));
    return PM_OK;
}

// Everything is read and checked before the first byte is written.
static int rebuild(bool write, struct pm_error *err) {
    if (!pm_roots_table(err))
        return err->status;
    int status = pm_extent_cover(err);
    if (status == PM_OK)
        status = pm_log_load(pm_extent_adopt, err);
    if (status == PM_OK)
        status = adopt_slabs(err);
    if (status == PM_OK)
        status = pm_extent_check(err);
    if (status == PM_OK && pm_offline_was_clean())
        status = check_clean(err);
    if (status != PM_OK)
        return status;
    if (write) {
        status = write_back_data(err);
        if (status != PM_OK)
            return status;
        if (!pm_offline_was_clean())
            pm_slab_settle();
        pm_heap_dirty();
        pm_log_activate();
    }
    return pm_extent_fill_gaps(write, err);
}

// ---- step 4: what is alive ---------------------------------------------------------------------------

static int mark(unsigned markers, struct pm_recovery *r, struct pm_error *err) {
    double start = seconds_now();
    int status = pm_mark_begin(markers, err);
    if (status != PM_OK)
        return status;
    status = pm_roots_each(pm_mark_root, NULL, err);
    if (status == PM_OK)
        r->overflows = pm_mark_run();
    pm_mark_end();
    r->marked = true;
    r->mark_seconds = seconds_now() - start;
    return status;
}

// The bits of the blocks that a bitmap record speaks of; NULL when the slab is not as the record says.
static uint64_t *marks_of(uint32_t slab, unsigned cls) {
    struct pm_vslab *v = &pm_vslabs[slab];
    if (cls & PM_BITMAP_OLD)
        return v->size_class && v->old_class == (cls & ~PM_BITMAP_OLD) ? pm_morph_live(v) : NULL;
    return v->size_class == cls ? v->free : NULL;
}

static void trust_slab(uint32_t slab, unsigned cls, const uint64_t *words, void *covered) {
    uint64_t *marks = marks_of(slab, cls);
    if (!marks)
        return;
    memcpy(marks, words, pm_slab_words(cls & ~PM_BITMAP_OLD) * sizeof *words);
    ++*(uint64_t *)covered;
}

// Bitmap records that the heap needs: one a slab, two where it holds blocks of two classes.
static uint64_t records_wanted(void) {
    uint64_t count = 0;
    for (uint32_t i = 1; i < pm_extent_top; i++) {
        const struct pm_extent *e = &pm_extents[i];
        if (e->state == PM_EXTENT_ACTIVE && e->slab)
            count += pm_vslabs[e->page << PM_PAGE_SHIFT >> PM_SLAB_SHIFT].old_class ? 2 : 1;
    }
    return count;
}

// After a clean close the bitmaps can stand in for marking. False: they do not cover the heap.
static bool trust_bitmaps(void) {
    uint64_t covered = 0;
    if (!pm_bitmaps_read(trust_slab, &covered) || covered != records_wanted())
        return false;
    for (uint32_t i = 1; i < pm_extent_top; i++)
        if (pm_extents[i].state == PM_EXTENT_ACTIVE && !pm_extents[i].slab)
            pm_extents[i].marked = 1;
    return true;
}

// Small blocks that were allocated at the clean close and are not marked.
static void count_leaks(uint32_t slab, unsigned cls, const uint64_t *words, void *arg) {
    struct pm_recovery *r = arg;
    const uint64_t *marks = marks_of(slab, cls);
    if (!marks)
        return;
    uint64_t leaked = 0;
    cls &= ~PM_BITMAP_OLD;
    for (unsigned i = 0; i < pm_slab_words(cls); i++)
        leaked += (uint64_t)__builtin_popcountll(words[i] & ~marks[i]);
    r->leaked_objects += leaked;
    r->leaked_bytes += leaked * pm_classes[cls].size;
}

// ---- step 5: sweep -----------------------------------------------------------------------------------

// Turns a slab's marks into its free bitmap; returns how many blocks are alive.
static unsigned invert_marks(struct pm_vslab *v) {
    unsigned cls = v->size_class, words = pm_slab_words(cls), blocks = pm_classes[cls].blocks;
    unsigned live = 0;
    for (unsigned i = 0; i < words; i++) {
        live += (unsigned)__builtin_popcountll(v->free[i]);
        v->free[i] = ~v->free[i];
    }
    if (blocks % 64)
        v->free[words - 1] &= (1ull << blocks % 64) - 1;
    v->free_count = (uint16_t)(blocks - live);
    return live;
}

// A slab of two classes; one of one where no old block is left.
static unsigned sweep_morphed(uint32_t slab, bool write, struct pm_recovery *r) {
    struct pm_vslab *v = &pm_vslabs[slab];
    pm_morph_swept(v);
    unsigned live = pm_classes[v->size_class].blocks - v->free_count - v->blocked;
    r->live_objects += live + v->old_live;
    r->live_bytes +=
        live * pm_classes[v->size_class].size + v->old_live * pm_classes[v->old_class].size;
    live += v->old_live;
    r->morphing += v->old_live != 0;
    if (write)
        pm_morph_sync(slab);
    return live;
}

static unsigned sweep_plain(uint32_t slab, struct pm_recovery *r) {
    struct pm_vslab *v = &pm_vslabs[slab];
    unsigned live = invert_marks(v);
    r->live_objects += live;
    r->live_bytes += live * pm_classes[v->size_class].size;
    return live;
}

static void sweep_slab(uint32_t slab, bool write, struct pm_recovery *r) {
    bool morphed = pm_vslabs[slab].old_class != 0;
    unsigned live = morphed ? sweep_morphed(slab, write, r) : sweep_plain(slab, r);
    if (live == 0) {
        r->reclaimed_bytes += PM_SLAB_SIZE;
        if (write)
            pm_slab_destroy(slab);
        return;
    }
    r->slabs++;
    if (write)
        pm_arena_adopt(slab);
}

static void sweep_extent(uint32_t index, bool write, struct pm_recovery *r) {
    struct pm_extent *e = &pm_extents[index];
    uint64_t bytes = pm_extent_bytes(e);
    if (!e->marked) {
        r->leaked_objects++;
        r->leaked_bytes += bytes;
        r->reclaimed_bytes += bytes;
        if (write)
            pm_extent_release(index);
        return;
    }
    e->marked = 0;
    r->extents++;
    r->live_objects++;
    r->live_bytes += bytes;
    pm_tag[pm_granule(pm_extent_address(e))] = PM_TAG_EXTENT;
}

static void sweep(bool write, struct pm_recovery *r) {
    uint32_t top = pm_extent_top; // releasing adds headers; what is added is free
    for (uint32_t i = 1; i < top; i++) {
        const struct pm_extent *e = &pm_extents[i];
        if (e->state != PM_EXTENT_ACTIVE)
            continue;
        if (e->slab)
            sweep_slab((uint32_t)(e->page << PM_PAGE_SHIFT >> PM_SLAB_SHIFT), write, r);
        else
            sweep_extent(i, write, r);
        if (pm_recover_progress && i % 4096 == 0)
            pm_recover_progress("sweep", i, top);
    }
    if (write)
        pm_extent_purge(true);
}

// ---- the whole ---------------------------------------------------------------------------------------

int pm_recover(bool write, unsigned markers, struct pm_recovery *r, struct pm_error *err) {
    double start = seconds_now();
    memset(r, 0, sizeof *r);
    r->was_clean = pm_offline_was_clean();
    r->roots = pm_heap_root_count();
    r->markers = markers ? markers : pm_os_cores();
    int status = rebuild(write, err);
    if (status != PM_OK)
        return status;
    bool trusted = r->was_clean && pm_options.collect.number == PM_COLLECT_CRASH && trust_bitmaps();
    if (!trusted) {
        status = mark(markers, r, err);
        if (status != PM_OK)
            return status;
        r->leaks_exact = r->was_clean && pm_bitmaps_read(count_leaks, r);
    }
    sweep(write, r);
    r->seconds = seconds_now() - start;
    return PM_OK;
}

// ---- offline -----------------------------------------------------------------------------------------

int pm_offline_open(const char *dir, enum pm_open_mode mode, struct pm_error *err) {
    if (!pm_heap_choose_range() || !pm_pagemap_init() || !pm_extent_init() || !pm_slab_init() ||
        !pm_arenas_init(pm_os_cores()))
        return pm_fail(err, PM_OPERATIONAL, "no address space for the allocator's tables");
    int status = pm_heap_open(dir, mode, false, err);
    if (status != PM_OK)
        return status;
    status = pm_heap_map(err);
    if (status != PM_OK)
        pm_heap_release();
    return status;
}

bool pm_offline_finish(void) {
    struct pm_error ignored;
    uint32_t crc;
    if (!pm_bitmaps_write() || !pm_roots_images_crc(&crc, &ignored))
        return false;
    pm_clean_vouch(pm_heap.frontier, &crc);
    return pm_heap_clean();
}

// ---- core's hook -------------------------------------------------------------------------------------

static int recover_here(bool write, struct pm_recovery *result, struct pm_error *err) {
    pm_program_watch();
    return pm_recover(write, (unsigned)pm_options.markers.number, result, err);
}

const struct pm_collector pm_collector = {
    .prepare = pm_roots_prepare,
    .recover = recover_here,
    .capture = pm_roots_capture,
    .captured = pm_roots_captured,
    .privatise = pm_roots_privatise,
    .rejoin = pm_roots_rejoin,
    .images_crc = pm_roots_images_crc,
    .remap = pm_roots_remap,
    .guard = pm_roots_guard,
};
