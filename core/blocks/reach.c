// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "reach.h"

#include "ahead.h"
#include "base/nodes.h"
#include "base/options.h"
#include "media/feature.h"
#include "morph.h"
#include "returns.h"

#define BINS_TRIED 4   // bins of one arena searched for a slab to morph, before a new slab is made
#define ARENAS_TRIED 4 // other arenas searched for one
#define SLABS_TRIED 8  // slabs looked at in each bin
#define SKIP_MAX 7     // the most new slabs between two looks for a slab to morph

// ---- the order of arenas ------------------------------------------------------------------------

struct pm_arena *pm_arena_of_recovered(enum pm_kind kind, unsigned node) {
    return &pm_arenas[pm_kind_arena(kind, pm_kinds_first_arena - pm_nodes.count + node)];
}

bool pm_arena_recovers(const struct pm_arena *arena) {
    return pm_arena_is_apart(arena->number) ||
           pm_arena_place(arena->number) >= pm_kinds_first_arena - pm_nodes.count;
}

uint32_t pm_arena_threads(const struct pm_arena *arena) {
    return pm_arena_is_apart(arena->number)
               ? 0
               : atomic_load_explicit(&pm_arenas[pm_arena_place(arena->number)].threads,
                                      memory_order_relaxed);
}

static unsigned add_joined(struct pm_arena *own, unsigned n, struct pm_arena_numbers of) {
    for (unsigned i = of.first; i < of.end; i++)
        own->others[n++] = (uint16_t)i;
    return n;
}

// Each arena begins with its neighbour, so that not all ask the same one first.
static unsigned add_near(struct pm_arena *own) {
    struct pm_arena_numbers of = pm_arenas_of_node(own->node);
    if (pm_arena_recovers(own))
        return add_joined(own, 0, of);
    unsigned n = 0;
    own->others[n++] = (uint16_t)(pm_kinds_first_arena - pm_nodes.count + own->node);
    n = add_joined(own, n, (struct pm_arena_numbers){own->number + 1u, of.end});
    return add_joined(own, n, (struct pm_arena_numbers){of.first, own->number});
}

size_t pm_reach_bytes(unsigned arenas) { return (size_t)arenas * arenas * sizeof(uint16_t); }

void pm_reach_set_order(struct pm_arena *own, void *memory) {
    unsigned joined = pm_kinds_first_arena - pm_nodes.count, n;
    own->others = (uint16_t *)memory + (size_t)own->number * pm_kinds_first_arena;
    own->near = (uint16_t)(n = add_near(own));
    for (unsigned turn = 1; turn < pm_nodes.count; turn++)
        own->others[n++] = (uint16_t)(joined + pm_node_near(own->node, turn));
    for (unsigned turn = 1; turn < pm_nodes.count; turn++)
        n = add_joined(own, n, pm_arenas_of_node(pm_node_near(own->node, turn)));
}

// The arena of the node that `own` asks at its turn, from 0; NULL after the last.
static struct pm_arena *other_arena(const struct pm_arena *own, unsigned turn) {
    return turn < own->near ? &pm_arenas[own->group + own->others[turn]] : NULL;
}

// Whether all slabs of an arena may be taken, because no thread has joined it.
static bool unused(const struct pm_arena *arena) { return pm_arena_threads(arena) == 0; }

// ---- slabs of the class -------------------------------------------------------------------------

// Returns the slab (number + 1) that the bin can give away, 0: none. The owner takes blocks from
// the first of the list, then from the last of the queue.
static uint32_t spare_slab(const struct pm_arena *arena, const struct pm_bin *bin) {
    if (unused(arena))
        return bin->list ? bin->list : bin->sparse ? bin->sparse_last : bin->vacant;
    if (bin->sparse && (bin->list || bin->sparse != bin->sparse_last))
        return bin->sparse;
    if (bin->vacant && (bin->list || bin->sparse || bin->empty > 1))
        return bin->vacant;
    return bin->list ? pm_vslabs[bin->list - 1].next : 0;
}

// Called without the bin's lock, as a hint.
static bool has_slabs(const struct pm_bin *bin) {
    return __atomic_load_n(&bin->list, __ATOMIC_RELAXED) ||
           __atomic_load_n(&bin->sparse, __ATOMIC_RELAXED) ||
           __atomic_load_n(&bin->vacant, __ATOMIC_RELAXED) || pm_remote_any(bin);
}

static bool take_slab(struct pm_arena *own, unsigned cls, struct pm_arena *other) {
    struct pm_bin *from = &other->bin[cls];
    if (!has_slabs(from) || !pm_trylock_raw(&from->lock))
        return false;
    uint32_t slab = spare_slab(other, from);
    if (!slab && pm_remote_any(from)) {
        pm_remote_drain(other, from);
        slab = spare_slab(other, from);
    }
    if (slab)
        pm_bin_transfer(other, own, slab - 1);
    pm_unlock_raw(&from->lock);
    return slab != 0;
}

static enum pm_step take_from_others(struct pm_arena *own, unsigned cls) {
    struct pm_arena *other;
    for (unsigned turn = 0; (other = other_arena(own, turn)) != NULL; turn++)
        if (take_slab(own, cls, other))
            return PM_STEP_NODE;
    return PM_STEP_NONE;
}

// ---- slabs of other classes ---------------------------------------------------------------------

static bool may_morph(void) { return pm_options.morph.number != 0; }

// Whether the bin can give a sparse slab to another bin: it keeps its last slab with free blocks,
// unless `all` is set. Called without the bin's lock, as a hint, and then again with it.
static bool can_spare(const struct pm_bin *bin, bool all) {
    uint32_t head = __atomic_load_n(&bin->sparse, __ATOMIC_RELAXED);
    return head && (all || __atomic_load_n(&bin->list, __ATOMIC_RELAXED) ||
                    head != __atomic_load_n(&bin->sparse_last, __ATOMIC_RELAXED));
}

// Returns the class whose queue begins with the slab that was queued the longest ago; 0: none.
// Takes no lock: a wrong choice costs one look in vain.
static unsigned oldest_queue(struct pm_arena *arena, uint64_t tried, bool all) {
    uint32_t now = atomic_load_explicit(&arena->clock, memory_order_relaxed), most = 0;
    unsigned best = 0;
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++) {
        struct pm_bin *bin = &arena->bin[cls];
        if (tried >> cls & 1 || !can_spare(bin, all))
            continue;
        uint32_t head = __atomic_load_n(&bin->sparse, __ATOMIC_RELAXED);
        uint32_t queued =
            head ? __atomic_load_n(&pm_vslabs[head - 1].queued, __ATOMIC_RELAXED) : now;
        if (!best || now - queued > most) {
            best = cls;
            most = now - queued;
        }
    }
    return best;
}

// Morphs a sparse slab of class `old` of arena `from` into one of class `cls` of arena `to`. Both
// bins are locked. The queue is an LRU list with second chance: a slab that was used after it was
// queued goes to the end.
static bool morph_from(struct pm_arena *from, unsigned old, struct pm_arena *to, unsigned cls,
                       bool all) {
    struct pm_bin *source = &from->bin[old], *target = &to->bin[cls];
    for (unsigned i = 1; i <= SLABS_TRIED && can_spare(source, all); i++) {
        uint32_t slab = source->sparse - 1;
        struct pm_vslab *v = &pm_vslabs[slab];
        // A difference of 1 is ignored: when several blocks return at once and the first makes the
        // slab sparse, the others still raise `used` by 1.
        bool was_used = (int32_t)(v->used - v->queued) > 1;
        if ((was_used && i < SLABS_TRIED) || !pm_morph(slab, to->number, cls)) {
            pm_bin_move(from, source, slab, PM_LISTED_SPARSE);
            continue;
        }
        pm_bin_remove(source, slab);
        source->slabs--;
        pm_bin_lodge(to, old, v->old_live);
        target->slabs++;
        target->blocked += v->blocked;
        pm_bin_touch(to, v);
        pm_bin_insert(target, slab, PM_LISTED_FREE);
        return true;
    }
    return false;
}

// Adds a slab to the bin of `cls`, whose lock is held, by morphing one of arena `from`.
// *not_worth_it becomes true if a bin was searched and none of its sparse slabs would do. Another
// bin's lock is only tried, one at a time, so two bins can never deadlock.
static bool add_morphed(struct pm_arena *from, struct pm_arena *to, unsigned cls, bool all,
                        bool *not_worth_it) {
    uint64_t tried = from == to ? 1ull << cls : 0;
    for (unsigned i = 0; (all || i < BINS_TRIED) && may_morph(); i++) {
        unsigned old = oldest_queue(from, tried, all);
        if (!old)
            return false;
        tried |= 1ull << old;
        if (old == cls || !pm_trylock_raw(&from->bin[old].lock))
            continue;
        bool found = morph_from(from, old, to, cls, all);
        pm_unlock_raw(&from->bin[old].lock);
        if (found)
            return true;
        *not_worth_it = true;
    }
    return false;
}

// Slabs made ahead are not morphed one by one: a group of new slabs costs as many flushes.
static bool can_spare_empty(const struct pm_bin *bin, bool all) {
    uint32_t empty = __atomic_load_n(&bin->empty, __ATOMIC_RELAXED);
    if (!all && empty <= __atomic_load_n(&bin->want, __ATOMIC_RELAXED))
        return false;
    return __atomic_load_n(&bin->vacant, __ATOMIC_RELAXED) &&
           (all || empty > 1 || __atomic_load_n(&bin->list, __ATOMIC_RELAXED) ||
            __atomic_load_n(&bin->sparse, __ATOMIC_RELAXED));
}

static void move_empty(struct pm_bin *source, struct pm_arena *to, uint32_t slab, unsigned cls) {
    pm_bin_take_empty(source, slab);
    if (!may_morph() || !pm_morph(slab, to->number, cls)) {
        pm_slab_destroy(slab);
        return;
    }
    pm_bin_touch(to, &pm_vslabs[slab]);
    pm_bin_add_empty(&to->bin[cls], slab);
}

// Takes an empty slab of another class. Where slabs do not morph, one of those that can be spared
// is destroyed, so that its pages serve the slab that is made next. Other bins' locks are only
// tried, one at a time.
static bool add_empty(struct pm_arena *from, struct pm_arena *to, unsigned cls, bool all) {
    struct pm_bin *target = &to->bin[cls];
    for (unsigned old = 1; old <= PM_CLASSES && (may_morph() || !all); old++) {
        struct pm_bin *source = &from->bin[old];
        if (old == cls || !can_spare_empty(source, all) || !pm_trylock_raw(&source->lock))
            continue;
        uint32_t slab = can_spare_empty(source, all) ? source->vacant : 0;
        if (slab)
            move_empty(source, to, slab - 1, cls);
        pm_unlock_raw(&source->lock);
        if (slab)
            return target->vacant;
    }
    return false;
}

static enum pm_step morph_others(struct pm_arena *own, unsigned cls, bool all, bool *not_worth_it) {
    struct pm_arena *other;
    for (unsigned turn = 0; (other = other_arena(own, turn)) != NULL; turn++) {
        bool every = all || unused(other);
        if (!all && turn > ARENAS_TRIED)
            break;
        if (add_empty(other, own, cls, every) || add_morphed(other, own, cls, every, not_worth_it))
            return PM_STEP_MORPH_OTHER;
    }
    return PM_STEP_NONE;
}

// A look that finds nothing worth it costs as much as a morph. So each such look makes the next one
// rarer: after 1, 3, then SKIP_MAX new slabs.
static enum pm_step look_for_morph(struct pm_arena *own, unsigned cls) {
    struct pm_bin *bin = &own->bin[cls];
    if (bin->skipped < bin->skip) {
        bin->skipped++;
        return PM_STEP_NONE;
    }
    bool not_worth_it = false;
    enum pm_step step = add_morphed(own, own, cls, false, &not_worth_it)
                            ? PM_STEP_MORPH
                            : morph_others(own, cls, false, &not_worth_it);
    bin->skip = step != PM_STEP_NONE || !not_worth_it ? 0
                : bin->skip < SKIP_MAX                ? (uint16_t)(2 * bin->skip + 1)
                                                      : SKIP_MAX;
    bin->skipped = 0;
    return step;
}

// ---- all of it ----------------------------------------------------------------------------------

static bool grow(struct pm_arena *own, unsigned cls) {
    pm_arenas_age();
    if (pm_makes_ahead() && pm_kind_of_arena(own->number) == PM_KIND_CONSERVATIVE)
        return pm_ahead_slabs(own, cls);
    uint32_t slab = own->bin[cls].slabs ? pm_slab_create(cls, own->number, own->node)
                                        : pm_slab_create_bare(cls, own->number, own->node);
    if (!slab)
        return false;
    pm_bin_add_empty(&own->bin[cls], slab - 1);
    return true;
}

enum pm_step pm_reach_slab(struct pm_arena *own, unsigned cls) {
    bool not_worth_it;
    if (add_empty(own, own, cls, false))
        return PM_STEP_MORPH;
    enum pm_step step = take_from_others(own, cls);
    if (step == PM_STEP_NONE)
        step = look_for_morph(own, cls);
    if (step != PM_STEP_NONE)
        return step;
    if (grow(own, cls))
        return PM_STEP_GROW;
    if (add_empty(own, own, cls, true) || add_morphed(own, own, cls, true, &not_worth_it))
        return PM_STEP_MORPH;
    return morph_others(own, cls, true, &not_worth_it);
}
