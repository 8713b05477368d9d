// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "returns.h"

#include "base/bits.h"
#include "base/lazy_table.h"
#include "base/nodes.h"
#include "media/log/dealloc.h"
#include "media/open/shard_nodes.h"
#include "media/persist.h"
#include "morph.h"
#include "pinned.h"
#include "population.h"

// ---- under the bin's lock -----------------------------------------------------------------------

#define GROUP 32u  // slabs that are synced at once ...
#define TRIED 128u // ... of those that stand first in the list

static uint32_t blocked_in(const uint32_t *slab, unsigned count) {
    uint32_t sum = 0;
    for (unsigned i = 0; i < count; i++)
        sum += pm_vslabs[slab[i]].blocked;
    return sum;
}

static unsigned add_others(const struct pm_bin *bin, uint32_t *slab) {
    unsigned count = 1, tries = TRIED;
    for (uint32_t at = bin->list; at && count < GROUP && tries--; at = pm_vslabs[at - 1].next)
        if (at - 1 != slab[0] && pm_morph_may_sync(&pm_vslabs[at - 1]) &&
            pm_shard_of_slab(at - 1) == pm_shard_of_slab(slab[0]))
            slab[count++] = at - 1;
    return count;
}

// A slab of the list may have no free block even now, or be entirely free.
static void place_anew(struct pm_arena *arena, struct pm_bin *bin, uint32_t slab) {
    enum pm_listed place = pm_bin_place(&pm_vslabs[slab]);
    if (place == PM_LISTED_NOT || place == PM_LISTED_EMPTY)
        pm_bin_move(arena, bin, slab, place);
    bin->empty += place == PM_LISTED_EMPTY;
}

void pm_return_sync(struct pm_arena *arena, struct pm_bin *bin, uint32_t slab) {
    uint32_t group[GROUP] = {slab};
    if (!pm_morph_may_sync(&pm_vslabs[slab]))
        return;
    unsigned count = pm_persist_waits() ? add_others(bin, group) : 1;
    uint32_t before = blocked_in(group, count);
    pm_morph_sync_all(group, count);
    bin->blocked -= before - blocked_in(group, count);
    for (unsigned i = 1; i < count; i++)
        place_anew(arena, bin, group[i]);
}

// Whether the last old block is gone, and with it the slab's last use. Where a flush waits, a slab
// in use ends its morph when it needs blocks.
static bool ends_morph(const struct pm_vslab *v) {
    return v->old_class && v->old_live == 0 &&
           (!pm_persist_waits() || v->free_count + v->blocked == pm_classes[v->size_class].blocks);
}

static void push_old(struct pm_arena *arena, uint32_t slab, const void *block) {
    struct pm_vslab *v = &pm_vslabs[slab];
    pm_bin_lodge(arena, v->old_class, 0u - 1);
    pm_morph_free(slab, block);
}

unsigned pm_return_run(struct pm_arena *arena, struct pm_bin *bin, unsigned cls, void **blocks,
                       unsigned count) {
    uint32_t slab = pm_slab_of(blocks[0]);
    struct pm_vslab *v = &pm_vslabs[slab];
    unsigned given = 1;
    if (v->size_class == cls) {
        given = pm_slab_push_run(slab, blocks, count);
        // The usual case: the slab stands in the list and is neither sparse nor empty.
        if (v->listed == PM_LISTED_FREE && v->free_count < pm_quiet_below[cls])
            return given;
    } else {
        push_old(arena, slab, blocks[0]);
    }
    if (ends_morph(v))
        pm_return_sync(arena, bin, slab);
    pm_bin_touch(arena, v);
    enum pm_listed place = pm_bin_place(v);
    if (place != v->listed)
        pm_bin_move(arena, bin, slab, place);
    if (place == PM_LISTED_EMPTY) {
        bin->empty++;
        pm_bin_age(bin);
    }
    return given;
}

// ---- remote sets --------------------------------------------------------------------------------

struct pm_remote {
    _Atomic uint64_t bits[PM_BITMAP_WORDS]; // by granule of the slab
    _Atomic uint32_t queued;                // 1: the slab is in a bin's queue, or on its way there
    uint32_t next;                          // in the queue: slab number + 1; of who set `queued`
} __attribute__((aligned(64)));

static struct pm_remote *remotes;
static struct pm_range_table table = {.element = sizeof *remotes, .shift = PM_SLAB_SHIFT};

bool pm_remote_init(void) {
    if (pm_nodes.count == 1)
        return true;
    bool good = pm_range_table_reserve(&table, pm_range) && pm_dealloc_init();
    remotes = (struct pm_remote *)(void *)table.table[0].map;
    return good;
}

// Into the queue of the slab's bin, which may change at any time; see the head of returns.h. False:
// there is no slab.
static bool push(uint32_t slab) {
    uint32_t home = pm_slab_home(&pm_vslabs[slab]);
    if (!pm_home_class(home))
        return false;
    struct pm_bin *bin = &pm_arenas[pm_home_arena(home)].bin[pm_home_class(home)];
    uint32_t first = atomic_load_explicit(&bin->remote, memory_order_relaxed);
    do
        remotes[slab].next = first;
    while (!atomic_compare_exchange_weak_explicit(&bin->remote, &first, slab + 1,
                                                  memory_order_release, memory_order_relaxed));
    return true;
}

// Puts a slab whose `queued` this thread has set into the queue of its bin. A drain may have taken
// its last block before that, and the slab may be gone. A slab that is made there meanwhile may
// have found it queued.
static void enqueue(uint32_t slab) {
    while (!push(slab)) {
        atomic_store(&remotes[slab].queued, 0);
        if (!pm_home_class(pm_slab_home(&pm_vslabs[slab])) ||
            atomic_exchange(&remotes[slab].queued, 1))
            return;
    }
}

static void need_queued(uint32_t slab) {
    struct pm_remote *r = &remotes[slab];
    if (!atomic_load(&r->queued) && !atomic_exchange(&r->queued, 1))
        enqueue(slab);
}

void pm_remote_free(const void *p) {
    uint32_t slab = pm_slab_of(p);
    unsigned granule = (unsigned)(pm_heap_offset(p) & (PM_SLAB_SIZE - 1)) >> PM_GRANULE_SHIFT;
    atomic_fetch_or(&remotes[slab].bits[granule / 64], 1ull << granule % 64);
    need_queued(slab);
}

void pm_remote_free_pinned(const void *p, unsigned node) {
    struct pm_pin pin = pm_pin_of(p);
    unsigned shard = (unsigned)(pm_node_memory(node).offset >> PM_SHARD_SHIFT);
    pm_dealloc_add(shard, &(struct pm_dealloc){pin.place, pin.mask, p}, pm_remote_free);
    need_queued(pm_slab_of(p));
}

static unsigned class_at(uint32_t slab, const void *block) {
    struct pm_slab_block found;
    uint32_t offset = (uint32_t)(pm_heap_offset(block) & (PM_SLAB_SIZE - 1));
    pm_slab_find(&pm_vslabs[slab], offset, &found);
    return found.cls;
}

// Returns the blocks of one word of the set. One population's blocks return as runs.
static void return_word(struct pm_arena *arena, struct pm_bin *bin, uint32_t slab, unsigned word,
                        uint64_t bits) {
    char *start = pm_slab_start(slab) + ((size_t)word * 64 << PM_GRANULE_SHIFT);
    const struct pm_vslab *v = &pm_vslabs[slab];
    void *blocks[64];
    unsigned count = 0;
    for (; bits; bits &= bits - 1)
        blocks[count++] = start + ((size_t)__builtin_ctzll(bits) << PM_GRANULE_SHIFT);
    bin->remote_returns += count;
    for (unsigned i = 0; i < count;)
        i += v->old_class ? pm_return_run(arena, bin, class_at(slab, blocks[i]), blocks + i, 1)
                          : pm_return_run(arena, bin, v->size_class, blocks + i, count - i);
}

// A slab of pinned blocks may be queued for blocks that are in deallocation logs. Those that are
// there when `queued` is cleared would not queue it again, so the logs are looked at after that.
// They are synced before it, too, while that queues nothing.
static void leave_queue(uint32_t slab) {
    bool pinned = pm_kind_is_pinned(pm_vslabs[slab].kind);
    if (pinned)
        pm_dealloc_sync(pm_slab_node(slab), pm_remote_free);
    atomic_store(&remotes[slab].queued, 0);
    if (pinned)
        pm_dealloc_sync(pm_slab_node(slab), pm_remote_free);
}

// All bits are taken before the first block returns: the last one may end the slab.
static void drain_slab(struct pm_arena *arena, struct pm_bin *bin, uint32_t slab) {
    struct pm_remote *r = &remotes[slab];
    uint64_t bits[PM_BITMAP_WORDS];
    leave_queue(slab);
    for (unsigned w = 0; w < PM_BITMAP_WORDS; w++)
        bits[w] = atomic_load(&r->bits[w]) ? atomic_exchange(&r->bits[w], 0) : 0;
    for (unsigned w = 0; w < PM_BITMAP_WORDS; w++)
        if (bits[w])
            return_word(arena, bin, slab, w, bits[w]);
}

bool pm_remote_drain(struct pm_arena *arena, struct pm_bin *bin) {
    if (!pm_remote_any(bin))
        return false;
    uint32_t at = atomic_exchange_explicit(&bin->remote, 0, memory_order_acquire);
    bool passed_on = false;
    for (uint32_t next; at; at = next) {
        uint32_t home = pm_slab_home(&pm_vslabs[at - 1]);
        next = remotes[at - 1].next;
        if (&pm_arenas[pm_home_arena(home)].bin[pm_home_class(home)] == bin) {
            drain_slab(arena, bin, at - 1);
        } else {
            enqueue(at - 1);
            passed_on = true;
        }
    }
    return passed_on;
}

static bool drain_each(void) {
    bool passed_on = false;
    for (unsigned i = 0; i < pm_arena_count; i++)
        for (unsigned cls = 1; cls <= PM_CLASSES; cls++) {
            struct pm_bin *bin = &pm_arenas[i].bin[cls];
            if (!pm_remote_any(bin))
                continue;
            pm_lock(&bin->lock);
            passed_on |= pm_remote_drain(&pm_arenas[i], bin);
            pm_unlock(&bin->lock);
        }
    return passed_on;
}

void pm_remote_drain_all(void) {
    while (drain_each())
        continue;
}

static bool holds_blocks(const struct pm_remote *r) {
    uint64_t any = 0;
    for (unsigned w = 0; w < PM_BITMAP_WORDS; w++)
        any |= atomic_load_explicit(&r->bits[w], memory_order_relaxed);
    return any != 0;
}

static void queue_anew(uint32_t slab) {
    struct pm_remote *r = &remotes[slab];
    bool queued = holds_blocks(r);
    atomic_store_explicit(&r->queued, queued, memory_order_relaxed);
    if (queued)
        enqueue(slab);
}

// Another thread may have marked a slab as queued and not pushed it yet: nobody would push it
// again. And fork copied the memory page by page, so the links of a queue may not fit each other.
// So all queues are made anew, from the bits.
void pm_remote_orphans(void) {
    if (pm_nodes.count == 1)
        return;
    pm_dealloc_sync_all(pm_remote_free);
    for (unsigned i = 0; i < pm_arena_count; i++)
        for (unsigned cls = 1; cls <= PM_CLASSES; cls++)
            if (pm_remote_any(&pm_arenas[i].bin[cls]))
                atomic_store_explicit(&pm_arenas[i].bin[cls].remote, 0, memory_order_relaxed);
    for (unsigned i = 0; i < pm_heap.shards; i++) {
        const struct pm_shard *s = &pm_heap.shard[i];
        uint64_t end = (s->offset + s->frontier) >> PM_SLAB_SHIFT;
        for (uint64_t slab = s->offset >> PM_SLAB_SHIFT; slab < end; slab++)
            queue_anew((uint32_t)slab);
    }
}
