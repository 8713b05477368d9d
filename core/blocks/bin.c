// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "bin.h"

#include "base/options.h"
#include "base/os.h"
#include "media/persist.h"
#include "morph.h"
#include "pages/extent_take.h"
#include "types.h"

struct pm_arena *pm_arenas;
unsigned pm_arena_count;
uint16_t pm_arena_first_of[PM_NODES_MAX + 1];
struct pm_lock pm_tcache_lock = PM_LOCK(PM_RANK_THREADS);

// ---- lists --------------------------------------------------------------------------------------
//
// A slab with free blocks stands in its bin's list or, while it is sparse, in the bin's queue.
// Blocks are taken from the list first, so that sparse slabs run empty. Other classes look for a
// slab to morph at the head of the queue.

static uint32_t *head_of(struct pm_bin *bin, enum pm_listed place) {
    return place == PM_LISTED_SPARSE ? &bin->sparse
           : place == PM_LISTED_FREE ? &bin->list
                                     : &bin->vacant;
}

// Heads are stored atomically: other bins read them without this bin's lock.
void pm_bin_insert(struct pm_bin *bin, uint32_t slab, enum pm_listed place) {
    struct pm_vslab *v = &pm_vslabs[slab];
    uint32_t *head = head_of(bin, place);
    v->prev = 0;
    v->next = *head;
    if (v->next)
        pm_vslabs[v->next - 1].prev = slab + 1;
    __atomic_store_n(head, slab + 1, __ATOMIC_RELAXED);
    v->listed = (uint8_t)place;
    if (v->type)
        pm_types_link(slab);
}

static void queue_append(struct pm_arena *arena, struct pm_bin *bin, uint32_t slab) {
    struct pm_vslab *v = &pm_vslabs[slab];
    v->next = 0;
    v->prev = bin->sparse_last;
    v->queued = atomic_fetch_add_explicit(&arena->clock, 1, memory_order_relaxed);
    v->listed = PM_LISTED_SPARSE;
    if (v->prev)
        pm_vslabs[v->prev - 1].next = slab + 1;
    else
        __atomic_store_n(&bin->sparse, slab + 1, __ATOMIC_RELAXED);
    bin->sparse_last = slab + 1;
}

void pm_bin_remove(struct pm_bin *bin, uint32_t slab) {
    struct pm_vslab *v = &pm_vslabs[slab];
    enum pm_listed place = (enum pm_listed)v->listed;
    if (v->prev)
        pm_vslabs[v->prev - 1].next = v->next;
    else
        __atomic_store_n(head_of(bin, place), v->next, __ATOMIC_RELAXED);
    if (v->next)
        pm_vslabs[v->next - 1].prev = v->prev;
    else if (place == PM_LISTED_SPARSE)
        bin->sparse_last = v->prev;
    v->listed = PM_LISTED_NOT;
    if (v->type)
        pm_types_unlink(slab);
}

enum pm_listed pm_bin_place(const struct pm_vslab *v) {
    if (v->free_count == 0 && !pm_morph_is_due(v))
        return PM_LISTED_NOT;
    if (pm_slab_is_empty(v))
        return PM_LISTED_EMPTY;
    return pm_slab_is_sparse(v) ? PM_LISTED_SPARSE : PM_LISTED_FREE;
}

void pm_bin_move(struct pm_arena *arena, struct pm_bin *bin, uint32_t slab, enum pm_listed place) {
    if (pm_vslabs[slab].listed != PM_LISTED_NOT)
        pm_bin_remove(bin, slab);
    if (place == PM_LISTED_SPARSE)
        queue_append(arena, bin, slab);
    else if (place != PM_LISTED_NOT)
        pm_bin_insert(bin, slab, place);
}

void pm_bin_transfer(struct pm_arena *from, struct pm_arena *to, uint32_t slab) {
    struct pm_vslab *v = &pm_vslabs[slab];
    unsigned cls = v->size_class;
    struct pm_bin *source = &from->bin[cls], *target = &to->bin[cls];
    enum pm_listed place = v->listed == PM_LISTED_EMPTY ? PM_LISTED_EMPTY : PM_LISTED_FREE;
    pm_bin_remove(source, slab);
    source->slabs--;
    target->slabs++;
    if (place == PM_LISTED_EMPTY) {
        pm_bin_one_empty_less(source);
        target->empty++;
    }
    if (v->old_class) {
        source->blocked -= v->blocked;
        target->blocked += v->blocked;
        pm_bin_lodge(from, v->old_class, 0u - v->old_live);
        pm_bin_lodge(to, v->old_class, v->old_live);
    }
    pm_slab_set_home(v, to->number, cls);
    pm_bin_touch(to, v);
    pm_bin_insert(target, slab, place);
}

// ---- empty slabs --------------------------------------------------------------------------------
//
// A bin keeps its empty slabs for a while: one that frees a batch of blocks allocates the next one
// soon, and a slab costs two fences and 64 KiB of zeroes to make. The slabs that stayed empty all
// through an interval were not needed in it, and go. The last one stays until the bin was not used
// at all for the decay time: else a program that allocates and frees one block in turn could make
// and destroy a slab each time.
//
// While a bin is not used, others look at it in turn (pm_arenas_age): whoever makes a slab or an
// extent.

#define INTERVALS 4 // of the decay time

void pm_bin_one_empty_less(struct pm_bin *bin) {
    bin->empty--;
    if (bin->idle > bin->empty)
        bin->idle = bin->empty;
}

void pm_bin_add_empty(struct pm_bin *bin, uint32_t slab) {
    pm_bin_insert(bin, slab, PM_LISTED_EMPTY);
    bin->slabs++;
    bin->empty++;
}

void pm_bin_take_empty(struct pm_bin *bin, uint32_t slab) {
    pm_bin_remove(bin, slab);
    bin->slabs--;
    pm_bin_one_empty_less(bin);
}

// Where a flush waits, the entries of all end with one.
static void destroy_empty(struct pm_bin *bin, uint32_t keep) {
    uint32_t chain = 0;
    while (bin->empty > keep) {
        uint32_t slab = bin->vacant - 1;
        pm_bin_take_empty(bin, slab);
        __atomic_store_n(&bin->want, 0, __ATOMIC_RELAXED);
        if (pm_persist_waits() && !pm_kind_is_pinned(pm_vslabs[slab].kind))
            pm_slab_leave(slab, &chain);
        else
            pm_slab_destroy(slab);
    }
    pm_extent_release_all(chain);
}

// How many empty slabs stay at least. Without decay looks are not spaced in time.
static uint32_t keep_one(struct pm_bin *bin, uint64_t interval) {
    uint64_t uses = bin->fills + bin->returns;
    bin->unused = uses == bin->uses ? bin->unused + 1 : 0;
    bin->uses = uses;
    return !interval || bin->unused < INTERVALS;
}

void pm_bin_age(struct pm_bin *bin) {
    uint64_t interval = pm_options.decay_ms.number / INTERVALS, now = interval ? pm_os_now_ms() : 0;
    if (!bin->empty || now - bin->looked_ms < interval)
        return;
    uint32_t idle = interval ? bin->idle : bin->empty, keep = keep_one(bin, interval);
    destroy_empty(bin, idle < bin->empty ? bin->empty - idle : keep);
    bin->idle = bin->empty;
    bin->looked_ms = now;
}

void pm_arenas_age(void) {
    // Relaxed: any order of bins will do.
    static _Atomic uint32_t turn;
    uint32_t at = atomic_fetch_add_explicit(&turn, 1, memory_order_relaxed);
    struct pm_bin *bin = &pm_arenas[at / PM_CLASSES % pm_arena_count].bin[at % PM_CLASSES + 1];
    if (__atomic_load_n(&bin->vacant, __ATOMIC_RELAXED) && pm_trylock_raw(&bin->lock)) {
        pm_bin_age(bin);
        pm_unlock_raw(&bin->lock);
    }
}

uint64_t pm_arenas_drop_empty(void) {
    uint64_t dropped = 0;
    for (unsigned i = 0; i < pm_arena_count; i++)
        for (unsigned cls = 1; cls <= PM_CLASSES; cls++) {
            struct pm_bin *bin = &pm_arenas[i].bin[cls];
            if (!__atomic_load_n(&bin->vacant, __ATOMIC_RELAXED))
                continue;
            pm_lock(&bin->lock);
            dropped += bin->empty;
            destroy_empty(bin, 0);
            pm_unlock(&bin->lock);
        }
    return dropped;
}
