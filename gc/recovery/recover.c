// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "recover.h"

#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/lock.h"
#include "base/nodes.h"
#include "base/options.h"
#include "blocks/arena.h"
#include "blocks/bitmaps.h"
#include "blocks/holes.h"
#include "blocks/morph.h"
#include "blocks/pinned.h"
#include "clear_typed.h"
#include "disguise.h"
#include "kept.h"
#include "mark.h"
#include "mark_index.h"
#include "marking/forms.h"
#include "media/backing/file.h"
#include "media/commit/doubt.h"
#include "media/feature.h"
#include "media/log/dealloc.h"
#include "media/log/lanes.h"
#include "media/log/log.h"
#include "media/open/close_record.h"
#include "media/open/heap_open.h"
#include "media/open/shard_make.h"
#include "media/outside.h"
#include "media/persist.h"
#include "pages/extent_adopt.h"
#include "pages/extent_take.h"
#include "pages/frontier.h"
#include "recovered.h"
#include "roots/objects_record.h"
#include "roots/program.h"
#include "roots/root_table.h"
#include "transient.h"
#include "typed_words.h"
#include "way.h"
#include "workers.h"

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// ---- steps 2 to 4: log, headers, gaps -----------------------------------------------------------

static int adopt_slab(uint32_t slab, uint32_t extent, struct pm_error *err) {
    int status = pm_slab_adopt(slab, extent, err);
    if (status != PM_OK)
        return status;
    return pm_kind_is_pinned(pm_vslabs[slab].kind) ? pm_pinned_adopt(slab, err)
                                                   : pm_morph_adopt(slab, err);
}

static int adopt_slabs(const struct pm_shard *s, struct pm_error *err) {
    int status = PM_OK;
    for (uint32_t i = pm_index_first(s);
         status == PM_OK && (i = pm_extent_next_active_in(s, i)) != 0;)
        if (pm_extents[i].slab)
            status = adopt_slab(pm_extent_slab(&pm_extents[i]), i, err);
        else if (pm_kind_has_header(pm_extents[i].kind))
            status = pm_pinned_adopt_large(&pm_extents[i], err);
    return status;
}

static int check_clean(struct pm_error *err) {
    const struct pm_clean *clean = &pm_heap.super->state.clean;
    int status = pm_close_record_check(err);
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

// The last stores of a killed process may be in the processor's caches only. Marking sees them
// there. A block may then look free although a pointer on media still reaches it, because the store
// that overwrote the pointer is not durable. If such a block were used again, a power failure would
// bring the pointer back. So the data is made durable first. A heap without roots has no such
// pointer.
int pm_write_back_data(bool unfinished, struct pm_error *err) {
    bool reachable = pm_heap_has_roots() || unfinished;
    if (pm_durability == PM_DURABLE_NONE || pm_durability == PM_DURABLE_CACHE)
        return PM_OK;
    if (!pm_doubt_is_raised() && (pm_heap_is_clean() || !reachable))
        return PM_OK;
    return pm_doubt_settle(err);
}

// Where a shard is mostly slabs, all their vslabs are touched.
static void touch_vslabs(const struct pm_shard *s) {
    uint64_t first = s->offset >> PM_SLAB_SHIFT, count = s->data.size >> PM_SLAB_SHIFT;
    uint64_t slabs = s->extents->active.slab_pages / (PM_SLAB_SIZE / PM_PAGE_SIZE);
    if (slabs > count / 2)
        pm_table_touch(&pm_vslabs[first], &pm_vslabs[first + count]);
}

// The work of one shard. Nothing that it reads or writes is another shard's.
static void load_shard(unsigned shard, bool caller, void *errors) {
    struct pm_shard *s = &pm_heap.shard[shard];
    struct pm_error *err = (struct pm_error *)errors + shard;
    if (!caller)
        pm_node_stay(s->node);
    err->status = pm_log_load(s, NULL, err);
    if (err->status != PM_OK)
        return;
    pm_extent_expect(s);
    err->status = pm_log_each(s, pm_extent_adopt, err);
    if (err->status != PM_OK)
        return;
    touch_vslabs(s);
    err->status = adopt_slabs(s, err);
}

static int load_shards(unsigned threads, struct pm_error *err) {
    static struct pm_error errors[PM_SHARDS];
    pm_workers_run(threads, pm_heap.shards, load_shard, errors);
    for (unsigned i = 0; i < pm_heap.shards; i++)
        if (errors[i].status != PM_OK) {
            *err = errors[i];
            return err->status;
        }
    return PM_OK;
}

// Whether this start collects nothing. A heap without roots is emptied by any start.
static bool may_keep(const struct pm_recover_options *options) {
    return options->write && pm_options.collect.number >= PM_COLLECT_LATER && pm_heap_has_roots() &&
           (pm_options.collect.number == PM_COLLECT_API || !pm_kept_too_much(options->beside));
}

// A clean heap has an unfinished publish only if a signal handler that had interrupted it called
// exit().
static int check_lanes(const struct pm_root_table *table, const struct pm_recover_options *options,
                       struct pm_recovery *r, struct pm_error *err) {
    int status = pm_lanes_check(table->area_offset, table->area_length, &r->unfinished, err);
    if (status == PM_OK && options->borrow && r->unfinished)
        return pm_fail(err, PM_OPERATIONAL,
                       "%.200s was killed within a publish, and to finish that changes it: copy it "
                       "(`cp -a --sparse=always %.200s COPY`), run `pmalloc-recover --copy COPY`, "
                       "and name the copy",
                       pm_heap.dir, pm_heap.dir);
    return status;
}

// The first stores.
static int begin(const struct pm_recovery *r, struct pm_error *err) {
    bool unfinished = r->unfinished != 0;
    // Data that are not collected need not be durable; but metadata that is in doubt must become
    // so.
    bool may_wait = r->uncollected && !unfinished && !pm_doubt_is_raised();
    int status = may_wait ? PM_OK : pm_write_back_data(unfinished, err);
    if (status != PM_OK)
        return status;
    pm_heap.changed = true;
    if (!pm_heap_is_clean()) {
        pm_feature_flush_inherited();
        pm_slab_flush_inherited();
        if (!pm_heap.created)
            pm_shards_tidy();
    }
    pm_forms_record();
    pm_heap_dirty();
    for (unsigned i = 0; i < pm_heap.shards; i++)
        pm_log_activate(&pm_heap.shard[i]);
    status = pm_lanes_finish(err);
    if (status == PM_OK)
        pm_dealloc_finish();
    return status;
}

// Steps 2 to 4. Everything is read and checked before the first byte is written.
static int rebuild(const struct pm_recover_options *options, struct pm_recovery *r,
                   struct pm_error *err) {
    const struct pm_root_table *table = pm_roots_table(err);
    if (!table)
        return err->status;
    int status = pm_extent_cover(err);
    if (status == PM_OK)
        status = load_shards(r->markers, err);
    if (status == PM_OK)
        status = pm_extent_check(err);
    if (status == PM_OK && pm_heap_is_clean())
        status = check_clean(err);
    if (status == PM_OK)
        status = check_lanes(table, options, r, err);
    if (status == PM_OK)
        status = pm_dealloc_check(err);
    if (status == PM_OK)
        status = pm_record_check(!pm_record_was_read(), err);
    if (status == PM_OK)
        status = pm_typed_words_check(err);
    if (status == PM_OK && options->check)
        return PM_OK;
    r->uncollected = options->borrow || may_keep(options);
    if (status == PM_OK && options->write)
        status = begin(r, err);
    if (status != PM_OK)
        return status;
    return options->borrow ? pm_extent_bar_gaps(err) : pm_extent_fill_gaps(options->write, err);
}

// ---- step 5: what is alive ----------------------------------------------------------------------

// An unfinished publish of a heap that is only looked at: its blocks are alive, beside those that
// it will make unreachable.
static void mark_lane(const struct pm_lane_store *store, uint32_t count, void *unused) {
    (void)unused;
    for (uint32_t i = 0; i < count; i++) {
        bool slot = store[i].where >> PM_PLACE_SHIFT == PM_PLACE_SLOT;
        uint64_t word = slot ? store[i].value & PM_SLOT_MAX : store[i].value;
        pm_mark_root(&(struct pm_root_bytes){&word, sizeof word, 0, true}, NULL);
    }
}

// Where nobody has settled which words are pointers, blocks that look as if others named them are
// kept, for this start.
static int keep_disguised(struct pm_recovery *r, struct pm_error *err) {
    static char way[400];
    struct pm_disguise found;
    uint64_t bytes, all_blocks, all_bytes;
    if (pm_forms_settled() || !pm_disguise_look(&found))
        return PM_OK;
    uint64_t blocks = pm_disguise_marked(&bytes);
    unsigned without = pm_forms;
    pm_forms |= found.form;
    pm_mark_again();
    int status = pm_roots_each(pm_mark_root, NULL, err);
    r->overflows += pm_mark_run();
    all_blocks = pm_disguise_marked(&all_bytes);
    r->disguised.form = found.form;
    r->disguised.blocks = all_blocks - blocks;
    r->disguised.bytes = all_bytes - bytes;
    pm_way_find_text(found.holder, found.at, way, sizeof way);
    r->disguised.way = way;
    pm_forms_say_disguised(found.form, without, r->disguised.blocks, r->disguised.bytes,
                           pm_marks.base + found.holder, found.holder_size, found.at,
                           r->disguised.way);
    return status;
}

static int mark(const struct pm_mark_options *how, struct pm_recovery *r, struct pm_error *err) {
    double start = seconds_now();
    struct pm_mark_options chosen = *how;
    if (!pm_heap_has_roots())
        chosen.markers = 1; // there is nothing to mark
    pm_holes_find(false);
    int status = pm_mark_begin(&chosen, err);
    if (status != PM_OK)
        return status;
    status = pm_roots_each(pm_mark_root, NULL, err);
    pm_lanes_each(mark_lane, NULL);
    if (status == PM_OK) {
        r->overflows = pm_mark_run();
        status = keep_disguised(r, err);
    }
    if (status == PM_OK && r->roots && !(r->was_clean && pm_outside_looked()))
        r->out = pm_out_look(err);
    pm_mark_end();
    r->marked = true;
    r->mark_seconds = seconds_now() - start;
    return status;
}

static void trust_population(const struct pm_population *p, const uint64_t *words, void *covered) {
    memcpy(p->bits, words, pm_slab_words(p->cls) * sizeof *words);
    ++*(uint64_t *)covered;
}

static uint64_t count_populations(bool clear) {
    struct pm_population population[2];
    uint64_t count = 0;
    for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;)
        if (pm_extents[i].slab) {
            struct pm_vslab *v = &pm_vslabs[pm_extent_slab(&pm_extents[i])];
            count += pm_slab_populations(v, population);
            if (clear && !v->old_class)
                memset(pm_free_bits(v), 0, sizeof(uint64_t) * pm_slab_words(v->size_class));
        }
    return count;
}

// Takes the bits of the last clean close instead of marking. False: the bitmaps do not have every
// population of the heap.
static bool trust_bitmaps(void) {
    uint64_t covered = 0;
    if (!pm_bitmaps_read(trust_population, &covered) || covered != count_populations(false)) {
        count_populations(true);
        return false;
    }
    return true;
}

// Counts small blocks that were allocated at the clean close and are not marked.
static void count_leaks(const struct pm_population *p, const uint64_t *words, void *arg) {
    struct pm_recovery *r = arg;
    uint64_t leaked = 0;
    for (unsigned w = 0; w < pm_slab_words(p->cls); w++)
        leaked += (uint64_t)__builtin_popcountll(words[w] & ~p->bits[w]);
    r->leaked_objects += leaked;
    r->leaked_bytes += leaked * pm_classes[p->cls].size;
}

// ---- step 6: sweep ------------------------------------------------------------------------------

// Shards are swept side by side, and what they have goes into the bins of one arena.
static struct pm_lock bins = PM_LOCK(PM_RANK_BIN);

static void adopt_live(uint32_t slab) {
    pm_lock(&bins);
    pm_arena_adopt(slab);
    pm_unlock(&bins);
}

static void sweep_slab(uint32_t slab, const struct pm_recover_options *options,
                       struct pm_recovery *r) {
    struct pm_population population[2];
    unsigned live = 0;
    pm_slab_prefetch(slab);
    bool pinned = pm_kind_is_pinned(pm_vslabs[slab].kind);
    if (pinned) // media say it, whatever else has been marked or kept
        pm_pinned_used(slab, pm_free_bits(&pm_vslabs[slab]));
    (r->uncollected && !pinned ? pm_slab_kept : pm_slab_swept)(&pm_vslabs[slab]);
    if (!options->asked_for_holes) // to ask the file system takes longer than all else here
        pm_holes_suppose(slab);
    unsigned count = pm_slab_populations(&pm_vslabs[slab], population);
    for (unsigned i = 0; i < count; i++) {
        live += population[i].used;
        r->live_bytes += (uint64_t)population[i].used * pm_classes[population[i].cls].size;
        r->morphing += population[i].old && population[i].used;
    }
    r->live_objects += live;
    if (options->write)
        pm_morph_sync(slab);
    if (live == 0) {
        r->reclaimed_bytes += PM_SLAB_SIZE;
        r->reclaimed_slabs++;
        if (options->write)
            pm_slab_forget(slab);
        return;
    }
    r->slabs++;
    r->vacant_bytes +=
        (uint64_t)pm_vslabs[slab].free_count * pm_classes[pm_vslabs[slab].size_class].size;
    pm_vslabs[slab].held = options->hold && !pinned;
    if (options->write || options->borrow)
        adopt_live(slab);
}

// Without marking every large block is taken for in use. Media say which pinned ones are.
static void sweep_extent(uint32_t index, bool write, bool hold, struct pm_recovery *r) {
    struct pm_extent *e = &pm_extents[index];
    uint64_t bytes = pm_extent_bytes(e);
    bool pinned = pm_kind_is_pinned(e->kind);
    bool used = pinned ? pm_pinned_large_is_used(e) : !r->marked || e->marked;
    if (!used) {
        r->leaked_objects++;
        r->leaked_bytes += bytes;
        r->reclaimed_bytes += bytes;
        r->reclaimed_extents++;
        if (write)
            pm_extent_forget(index);
        return;
    }
    e->marked = 0;
    e->held = hold && !pinned;
    r->extents++;
    r->live_objects++;
    r->live_bytes += bytes;
    *pm_tag_at(pm_extent_address(e)) = pm_extent_tag(e);
}

#define INDEX_MASK ((1u << PM_INDEX_SHIFT) - 1)

struct sweeping {
    const struct pm_recover_options *options;
    struct pm_recovery found[PM_SHARDS];
};

static void sweep_shard(unsigned shard, bool caller, void *arg) {
    struct sweeping *sweeping = arg;
    const struct pm_recover_options *options = sweeping->options;
    pm_progress *progress = caller ? options->mark.progress : NULL;
    struct pm_shard *s = &pm_heap.shard[shard];
    struct pm_recovery *r = &sweeping->found[shard];
    if (!caller)
        pm_node_stay(s->node);
    for (uint32_t i = pm_index_first(s); (i = pm_extent_next_active_in(s, i)) != 0;) {
        const struct pm_extent *e = &pm_extents[i];
        if (e->slab)
            sweep_slab(pm_extent_slab(e), options, r);
        else
            sweep_extent(i, options->write, options->hold, r);
        if (progress && i % 4096 == 0)
            progress("sweep", i & INDEX_MASK, s->extents->top);
    }
    if (options->write && r->reclaimed_bytes)
        pm_extent_forgotten(s);
}

static void add(struct pm_recovery *r, const struct pm_recovery *found) {
    r->live_objects += found->live_objects;
    r->live_bytes += found->live_bytes;
    r->leaked_objects += found->leaked_objects;
    r->leaked_bytes += found->leaked_bytes;
    r->reclaimed_bytes += found->reclaimed_bytes;
    r->reclaimed_slabs += found->reclaimed_slabs;
    r->reclaimed_extents += found->reclaimed_extents;
    r->vacant_bytes += found->vacant_bytes;
    r->slabs += found->slabs;
    r->extents += found->extents;
    r->morphing += found->morphing;
}

static void sweep(const struct pm_recover_options *options, struct pm_recovery *r) {
    static struct sweeping sweeping;
    sweeping = (struct sweeping){.options = options};
    for (unsigned i = 0; i < pm_heap.shards; i++)
        sweeping.found[i] =
            (struct pm_recovery){.marked = r->marked, .uncollected = r->uncollected};
    pm_workers_run(r->markers, pm_heap.shards, sweep_shard, &sweeping);
    for (unsigned i = 0; i < pm_heap.shards; i++)
        add(r, &sweeping.found[i]);
    if (!options->write)
        return;
    if (!r->uncollected) // else nothing was freed, and the start does not wait for the file system
        pm_extent_purge_some();
    for (unsigned i = 0; i < pm_heap.shards; i++)
        r->kept_bytes += pm_heap.shard[i].extents->reclaimed.pages << PM_PAGE_SHIFT;
}

// ---- the whole ----------------------------------------------------------------------------------

// Whether the bitmaps of a clean close have said what is live. Under PMALLOC_COLLECT=later they do
// so unless this start must collect, or garbage of an earlier one is to be collected beside the
// program.
static bool trusts(struct pm_recovery *r, bool beside) {
    bool may = pm_options.collect.number == PM_COLLECT_CRASH || r->uncollected;
    if (!r->was_clean || !may || (beside && pm_kept_garbage()) || !trust_bitmaps())
        return false;
    r->uncollected = false;
    return true;
}

static int find_live(const struct pm_recover_options *options, struct pm_recovery *r,
                     struct pm_error *err) {
    if (r->uncollected)
        return PM_OK; // small blocks are as pm_slab_adopt() has left them: all in use
    int status = mark(&options->mark, r, err);
    if (status == PM_OK)
        r->leaks_exact = r->was_clean && pm_bitmaps_read(count_leaks, r);
    return status;
}

#define SMALL ((uint64_t)4 << 20) // heaps with less are made and emptied by the way

// If a root is missing, or pointers have a form that is not looked for, this is what it looks like.
// A program that has freed much and was killed looks the same.
static void compare_with_last(struct pm_recovery *r, bool write) {
    uint64_t before = pm_kept_live();
    if (r->roots && before > SMALL && r->live_bytes < before / 2)
        r->reached_before = before;
    if (write)
        pm_kept_live_record(r->live_bytes);
}

static void put_on_record(const struct pm_recovery *r) {
    pm_recovered_keep((struct pm_recovered){.took_us = (uint64_t)(r->seconds * 1e6),
                                            .live_bytes = r->marked ? r->live_bytes : 0,
                                            .freed_bytes = r->reclaimed_bytes,
                                            .freed_extents = (uint32_t)r->reclaimed_extents,
                                            .freed_slabs = (uint32_t)r->reclaimed_slabs,
                                            .kept_all = r->uncollected});
}

int pm_recover(const struct pm_recover_options *options, struct pm_recovery *r,
               struct pm_error *err) {
    double start = seconds_now();
    memset(r, 0, sizeof *r);
    r->was_clean = pm_heap_is_clean();
    r->roots = pm_heap_root_count();
    r->markers = options->mark.markers ? options->mark.markers : pm_nodes_cores();
    int status = pm_forms_choose(err);
    if (status == PM_OK)
        status = rebuild(options, r, err);
    if (status != PM_OK || options->check)
        return status;
    bool looks = options->mark.stray && options->mark.stray->found; // at each live word
    bool clears = pm_transient_wanted() && !options->borrow && !looks;
    bool typed = pm_typed_words_any();
    if (clears || typed)
        pm_holes_find(false);
    if (typed && options->write)
        r->declared = pm_clear_typed();
    if (options->borrow || looks || !trusts(r, options->beside))
        status = find_live(options, r, err);
    if (status != PM_OK)
        return status;
    // Also where the bitmaps of a clean close have said what is live.
    struct pm_recover_options held = *options;
    held.hold = options->write && pm_options.collect.number == PM_COLLECT_API && !r->marked;
    held.asked_for_holes = r->marked || clears || typed;
    sweep(&held, r);
    if (clears)
        r->cleared = pm_transient_clear(r->markers, options->write);
    if (options->write && (r->marked || pm_options.collect.number >= PM_COLLECT_LATER))
        pm_kept_record(r->marked        ? PM_KEPT_COLLECTED
                       : r->uncollected ? PM_KEPT_ALL
                                        : PM_KEPT_TRUSTED);
    if (r->marked)
        compare_with_last(r, options->write);
    r->seconds = seconds_now() - start;
    if (options->write && !r->was_clean && !pm_heap.created)
        put_on_record(r);
    return PM_OK;
}
