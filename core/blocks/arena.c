// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "arena.h"

#include "base/bits.h"
#include "base/cancel.h"
#include "base/nodes.h"
#include "base/os.h"
#include "base/own_memory.h"
#include "extent_cache.h"
#include "holes.h"
#include "kinds.h"
#include "media/open/shard_nodes.h"
#include "morph.h"
#include "pinned.h"
#include "reach.h"
#include "returns.h"
#include "types.h"

// ---- arenas of nodes ----------------------------------------------------------------------------
//
//   | node 0 ... | node 1 ... | ... | recovered slabs of node 0 | of node 1 | ...

static unsigned deal(unsigned cores) {
    unsigned next = 0;
    for (unsigned node = 0; node < pm_nodes.count; node++) {
        bool several = pm_nodes.count > 1 || pm_nodes.injected;
        unsigned own = several ? pm_nodes.cores_of[node] : cores;
        pm_arena_first_of[node] = (uint16_t)next;
        next += own ? own : 1;
    }
    pm_arena_first_of[pm_nodes.count] = (uint16_t)next;
    return next;
}

static void make_arena(unsigned number, unsigned node) {
    struct pm_arena *arena = &pm_arenas[number];
    arena->number = (uint16_t)number;
    arena->node = (uint16_t)node;
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++)
        pm_lock_init(&arena->bin[cls].lock, PM_RANK_BIN);
}

static void is_made(struct pm_arena *arena) {
    __atomic_store_n(&arena->made, true, __ATOMIC_RELEASE);
}

// One piece of memory has all arenas, their extent caches, and then this.
static size_t reach_offset(void) {
    return pm_arenas_at_most() * sizeof *pm_arenas +
           pm_arena_first_of[pm_nodes.count] * sizeof(struct pm_extent_cache);
}
static void *reach_memory(void) { return (char *)pm_arenas + reach_offset(); }

static void make_of_malloc(unsigned number, unsigned node) {
    make_arena(number, node);
    pm_reach_set_order(&pm_arenas[number], reach_memory());
    is_made(&pm_arenas[number]);
}

// The arena of a kind, if the one at its place is made.
static void make_of_kind(unsigned number, unsigned place, unsigned node) {
    struct pm_arena *arena = &pm_arenas[number];
    bool apart = pm_arena_is_apart(number);
    if (!pm_arena_is_made(&pm_arenas[place]) || pm_arena_is_made(arena))
        return;
    make_arena(number, node);
    arena->group = (uint16_t)(number - place);
    arena->others = pm_arenas[place].others;
    arena->near = apart ? 0 : pm_arenas[place].near;
    is_made(arena);
}

static void make_kinds(unsigned end) {
    for (unsigned i = pm_kinds_first_arena; i < end; i++) {
        bool apart = pm_arena_is_apart(i);
        unsigned node = apart ? (i - pm_held_arena(0)) % pm_nodes.count : 0,
                 place = apart ? pm_arena_first_of[node] : pm_arena_place(i);
        make_of_kind(i, place, apart ? node : pm_arenas[place].node);
    }
}

// A node's arenas are made when a thread of the node first needs one, or a recovered slab: that is
// when their memory is first written. pm_tcache_lock is held, or no other thread runs.
static void make_node(unsigned node) {
    struct pm_arena_numbers own = pm_arenas_of_node(node);
    if (pm_arena_is_made(&pm_arenas[own.first]))
        return;
    make_of_malloc(pm_arena_first_of[pm_nodes.count] + node, node);
    pm_extent_caches_begin(node);
    // The first one last: it tells that the others are made.
    for (unsigned i = own.end; i-- > own.first;)
        make_of_malloc(i, node);
    make_kinds(pm_arena_count);
}

bool pm_arenas_init(unsigned cores) {
    unsigned joined = deal(cores), all = joined + pm_nodes.count;
    pm_kinds_first_arena = (uint16_t)all;
    size_t arenas = pm_arenas_at_most() * sizeof *pm_arenas, lists = reach_offset();
    size_t reach = (pm_reach_bytes(all) + 63) & ~(size_t)63;
    pm_arenas = pm_own_reserve(lists + reach + pm_types_bytes());
    if (!pm_arenas)
        return false;
    pm_extent_caches_init((char *)pm_arenas + arenas, joined);
    pm_arena_count = all;
    for (unsigned node = 0; node < pm_nodes.count; node++)
        pm_extent_caches_of_node(node, pm_arena_first_of[node],
                                 pm_arena_first_of[node + 1] - pm_arena_first_of[node]);
    pm_types_init((char *)pm_arenas + lists + reach);
    if (pm_nodes.count == 1)
        make_node(0);
    return true;
}

// pm_tcache_lock, which a fork holds while it holds the locks of all bins, is held; or no other
// thread runs.
void pm_arenas_add_kinds(enum pm_kind kind) {
    unsigned end = pm_kind_arenas_end(kind);
    if (pm_arena_count >= end)
        return;
    make_kinds(end);
    // Release: who sees the count finds the arenas made.
    __atomic_store_n(&pm_arena_count, end, __ATOMIC_RELEASE);
}

static bool node_is_made(unsigned node) {
    return pm_arena_is_made(&pm_arenas[pm_arena_first_of[node]]);
}

// Takes pm_tcache_lock at the first call of a node.
static void need_node(unsigned node) {
    if (node_is_made(node))
        return;
    pm_lock(&pm_tcache_lock);
    make_node(node);
    pm_unlock(&pm_tcache_lock);
}

struct pm_arena *pm_arena_first(unsigned node) {
    need_node(node);
    return &pm_arenas[pm_arena_first_of[node]];
}

struct pm_arena *pm_arena_join(unsigned node) {
    make_node(node);
    // Relaxed: the counts only balance load, so a stale one does no harm.
    struct pm_arena *best = &pm_arenas[pm_arena_first_of[node]];
    uint32_t fewest = UINT32_MAX;
    for (unsigned i = pm_arena_first_of[node]; i < pm_arena_first_of[node + 1]; i++) {
        uint32_t threads = atomic_load_explicit(&pm_arenas[i].threads, memory_order_relaxed);
        if (threads < fewest) {
            fewest = threads;
            best = &pm_arenas[i];
        }
    }
    atomic_fetch_add_explicit(&best->threads, 1, memory_order_relaxed);
    return best;
}

void pm_arena_leave(struct pm_arena *arena) {
    atomic_fetch_sub_explicit(&arena->threads, 1, memory_order_relaxed);
}

// ---- filling ------------------------------------------------------------------------------------

// Whether blocks can be taken from a slab that stands in a list; gives no space to its holes.
static bool has_space(uint32_t slab) { return !pm_vslabs[slab].holes || pm_holes_spared(slab); }

// The medium is full. Returns the first slab (number + 1) of a list from which blocks can be taken
// without more space; 0: there is none.
static uint32_t find_space(uint32_t at) {
    while (at && !has_space(at - 1))
        at = pm_vslabs[at - 1].next;
    return at;
}

// Returns the slab (number + 1) to take blocks from, in a bin that has some. 0: its free blocks lie
// on holes, and the medium is full.
static uint32_t choose(const struct pm_bin *bin, unsigned want) {
    uint32_t at = bin->list ? bin->list : bin->sparse ? bin->sparse_last : bin->vacant;
    if (!pm_vslabs[at - 1].holes || pm_holes_ready(at - 1, want) || (at = find_space(bin->list)) ||
        (at = find_space(bin->sparse)))
        return at;
    return find_space(bin->vacant);
}

// Takes blocks from a slab that stands in the bin.
static void pop_from(struct pm_arena *arena, struct pm_bin *bin, uint32_t slab, void **blocks,
                     unsigned want, unsigned *got) {
    struct pm_vslab *v = &pm_vslabs[slab];
    if (v->untagged)
        pm_slab_write_tags(slab);
    if (v->listed == PM_LISTED_EMPTY) {
        pm_bin_move(arena, bin, slab, PM_LISTED_FREE);
        pm_bin_one_empty_less(bin);
    }
    if (v->free_count == 0)
        pm_return_sync(arena, bin, slab);
    *got += v->holes                     ? pm_holes_pop(slab, blocks + *got, want - *got)
            : pm_kind_is_pinned(v->kind) ? pm_pinned_pop(slab, blocks + *got, want - *got)
                                         : pm_slab_pop(slab, blocks + *got, want - *got);
    pm_bin_touch(arena, v);
    // A slab that stands in the list stays there while blocks are taken from it, however sparse it
    // is.
    enum pm_listed place = pm_bin_place(v);
    if (place != v->listed && (place == PM_LISTED_NOT || v->listed == PM_LISTED_SPARSE))
        pm_bin_move(arena, bin, slab, place);
}

// Takes blocks from one slab of a bin that has some. It may get none: then the slab was not what it
// seemed, and stands in no list any more. False: the medium is full.
static bool pop(struct pm_arena *arena, struct pm_bin *bin, void **blocks, unsigned want,
                unsigned *got) {
    uint32_t chosen = choose(bin, want - *got);
    if (chosen)
        pop_from(arena, bin, chosen - 1, blocks, want, got);
    return chosen;
}

static bool has_free(const struct pm_bin *bin) { return bin->list || bin->sparse || bin->vacant; }

// Remote frees are drained only when the bin is empty, because a drain brings many blocks at once.
static bool find_free(struct pm_arena *arena, struct pm_bin *bin) {
    if (!has_free(bin))
        pm_remote_drain(arena, bin);
    return has_free(bin);
}

// `far`: for a thread of another node.
static unsigned fill(struct pm_arena *arena, unsigned cls, void **blocks, unsigned want, bool far) {
    struct pm_bin *bin = &arena->bin[cls];
    enum pm_step step = PM_STEP_OWN;
    unsigned got = 0;
    pm_lock(&bin->lock);
    while (got < want) {
        if (!bin->list && !bin->sparse && got)
            break; // empty slabs stay as long as others have blocks
        if (!find_free(arena, bin) && (step = pm_reach_slab(arena, cls)) == PM_STEP_NONE)
            break;
        if (!pop(arena, bin, blocks, want, &got))
            break;
    }
    bin->fills++;
    if (far && got)
        step = PM_STEP_FAR;
    if (step != PM_STEP_OWN)
        bin->steps[step]++;
    pm_unlock(&bin->lock);
    return got;
}

// Takes free blocks of another arena's bin, where they stand. Waits for its lock, and holds no
// other.
static unsigned take_from(struct pm_arena *other, unsigned cls, void **blocks, unsigned want,
                          enum pm_step step) {
    struct pm_bin *bin = &other->bin[cls];
    unsigned got = 0;
    pm_lock(&bin->lock);
    if (find_free(other, bin)) {
        bin->fills++;
        bin->steps[step]++;
        while (got == 0 && has_free(bin) && pop(other, bin, blocks, want, &got)) {
        }
    }
    pm_unlock(&bin->lock);
    return got;
}

unsigned pm_arena_fill(struct pm_arena *arena, unsigned cls, void **blocks, unsigned want) {
    unsigned got = fill(arena, cls, blocks, want, false);
    for (unsigned turn = 0; got == 0 && turn < arena->near; turn++)
        got = take_from(&pm_arenas[arena->group + arena->others[turn]], cls, blocks, want,
                        PM_STEP_LEND);
    return got;
}

// First what is free in any bin, then what another node's arena can make.
void *pm_arena_far(const struct pm_arena *arena, unsigned cls) {
    void *block;
    for (unsigned turn = arena->near; turn + 1 < pm_kinds_first_arena; turn++) {
        struct pm_arena *other = &pm_arenas[arena->group + arena->others[turn]];
        if (pm_arena_is_made(other) && take_from(other, cls, &block, 1, PM_STEP_FAR))
            return block;
    }
    for (unsigned i = 1; i < pm_nodes.count; i++) {
        unsigned node = pm_node_near(arena->node, i);
        if (!pm_node_memory(node).bytes)
            continue;
        const struct pm_arena *first = pm_arena_first(node);
        if (fill(&pm_arenas[arena->group + first->number], cls, &block, 1, true))
            return block;
    }
    return NULL;
}

// ---- returning ----------------------------------------------------------------------------------

// Locks the bin that a slab is in and returns its `home`, 0: there is no such slab, and no lock is
// held. As long as a block of the slab is out, the slab cannot be destroyed. But it may morph or
// change its arena, and so change bins, until its bin is locked: so `home` is read again under the
// lock.
static uint32_t lock_bin_of(uint32_t slab) {
    uint32_t home;
    while (pm_home_class(home = pm_slab_home(&pm_vslabs[slab]))) {
        struct pm_bin *bin = &pm_arenas[pm_home_arena(home)].bin[pm_home_class(home)];
        pm_lock(&bin->lock);
        if (pm_slab_home(&pm_vslabs[slab]) == home)
            return home;
        pm_unlock(&bin->lock);
    }
    return 0;
}

void pm_arena_return(unsigned cls, void **blocks, unsigned count) {
    for (unsigned i = 0; i < count;) {
        uint32_t home = lock_bin_of(pm_slab_of(blocks[i]));
        struct pm_arena *arena = &pm_arenas[pm_home_arena(home)];
        struct pm_bin *bin = &arena->bin[pm_home_class(home)];
        bin->returns++;
        do
            i += pm_return_run(arena, bin, cls, blocks + i, count - i);
        while (i < count && pm_slab_home(&pm_vslabs[pm_slab_of(blocks[i])]) == home);
        pm_unlock(&bin->lock);
    }
}

// ---- what a collection beside the program frees -------------------------------------------------

// While the slab is untagged nobody has freed or got a block of it. Its tags need not be written.
static unsigned reclaim_untouched(struct pm_arena *arena, struct pm_bin *bin, uint32_t slab,
                                  const uint64_t *alive) {
    struct pm_vslab *v = &pm_vslabs[slab];
    uint64_t *free = pm_free_bits(v);
    unsigned words = pm_slab_words(v->size_class);
    for (unsigned w = 0; w < words; w++)
        free[w] = ~alive[w];
    pm_bits_trim(free, pm_classes[v->size_class].blocks);
    unsigned freed = pm_bits_count(free, words);
    v->free_count = (uint16_t)freed;
    v->quiet = 0;
    pm_bin_touch(arena, v);
    enum pm_listed place = pm_bin_place(v);
    pm_bin_move(arena, bin, slab, place);
    if (place == PM_LISTED_EMPTY) {
        bin->empty++;
        pm_bin_age(bin);
    }
    return freed;
}

static unsigned reclaim_word(struct pm_arena *arena, struct pm_bin *bin, unsigned cls, char *first,
                             uint64_t garbage) {
    void *blocks[64];
    unsigned count = 0, size = pm_classes[cls].size;
    for (; garbage; garbage &= garbage - 1) {
        char *block = first + (size_t)__builtin_ctzll(garbage) * size;
        if (*pm_tag_at(block) != cls) // it is none that was in use
            continue;
        *pm_tag_at(block) = PM_TAG_NONE;
        blocks[count++] = block;
    }
    for (unsigned i = 0; i < count;)
        i += pm_return_run(arena, bin, cls, blocks + i, count - i);
    return count;
}

// The last block of the last word may end the slab.
static unsigned reclaim_blocks(struct pm_arena *arena, struct pm_bin *bin, uint32_t slab,
                               unsigned cls, const uint64_t *alive) {
    unsigned freed = 0, blocks = pm_classes[cls].blocks;
    for (unsigned w = 0; w < pm_slab_words(cls); w++) {
        uint64_t garbage = ~alive[w];
        if (blocks - w * 64 < 64)
            garbage &= (1ull << (blocks - w * 64)) - 1;
        char *first = pm_slab_start(slab) + (size_t)w * 64 * pm_classes[cls].size;
        freed += garbage ? reclaim_word(arena, bin, cls, first, garbage) : 0;
    }
    return freed;
}

unsigned pm_arena_reclaim(uint32_t slab, unsigned cls, const uint64_t *alive) {
    const unsigned blocks = pm_classes[cls].blocks;
    if (pm_bits_count(alive, pm_slab_words(cls)) == blocks)
        return 0; // the slab may be gone
    uint32_t home = lock_bin_of(slab);
    if (!home)
        return 0;
    struct pm_arena *arena = &pm_arenas[pm_home_arena(home)];
    struct pm_bin *bin = &arena->bin[pm_home_class(home)];
    bin->returns++;
    unsigned freed = pm_vslabs[slab].untagged ? reclaim_untouched(arena, bin, slab, alive)
                                              : reclaim_blocks(arena, bin, slab, cls, alive);
    pm_unlock(&bin->lock);
    return freed;
}

// ---- blocks of a kind ---------------------------------------------------------------------------
//
// The tag of pinned blocks and of held slabs' does not say a class, so a free of one finds a stack
// of capacity 0. Caches of pinned blocks come before what is here (pinned_cache.h).

void *pm_arena_take_pinned(const struct pm_arena *place, enum pm_kind kind, unsigned cls) {
    struct pm_arena *arena = &pm_arenas[pm_kind_arena(kind, place->number)];
    void *p = NULL;
    if (!pm_arena_fill(arena, cls, &p, 1))
        p = pm_arena_far(arena, cls);
    if (p)
        *pm_tag_at(p) = PM_TAG_KIND;
    return p;
}

// A slab (number + 1) of the type with a free block; 0: memory is out.
static uint32_t find_typed(struct pm_arena *arena, unsigned cls, uint16_t type) {
    struct pm_bin *bin = &arena->bin[cls];
    uint32_t slab = pm_types_find(arena->number, cls, type);
    if (!slab && pm_remote_any(bin)) {
        pm_remote_drain(arena, bin);
        slab = pm_types_find(arena->number, cls, type);
    }
    if (slab)
        return slab;
    pm_arenas_age();
    slab = pm_slab_create_typed(cls, type, arena->number, arena->node);
    if (slab) {
        pm_bin_add_empty(bin, slab - 1);
        bin->steps[PM_STEP_GROW]++;
    }
    return slab;
}

static unsigned take_typed(struct pm_arena *arena, unsigned cls, uint16_t type, void **block) {
    struct pm_bin *bin = &arena->bin[cls];
    unsigned got = 0;
    pm_lock(&bin->lock);
    uint32_t slab = find_typed(arena, cls, type);
    if (slab)
        pop_from(arena, bin, slab - 1, block, 1, &got);
    bin->fills++;
    pm_unlock(&bin->lock);
    return got;
}

void *pm_arena_take_typed(struct pm_sort sort, unsigned cls) {
    unsigned mine = pm_node_mine();
    void *p = NULL;
    for (unsigned i = 0; i < pm_nodes.count; i++) {
        unsigned node = pm_node_near(mine, i);
        if (i && !pm_node_memory(node).bytes)
            continue;
        need_node(node);
        struct pm_arena *arena = &pm_arenas[pm_typed_arena((enum pm_kind)sort.kind, node)];
        if (take_typed(arena, cls, sort.type, &p)) {
            *pm_tag_at(p) = PM_TAG_KIND;
            return p;
        }
    }
    return NULL;
}

bool pm_arena_find(uint32_t slab, uint32_t offset, struct pm_slab_block *block) {
    if (pm_nested())
        return pm_slab_find(&pm_vslabs[slab], offset, block);
    struct pm_cancel held = pm_cancel_hold();
    uint32_t home = lock_bin_of(slab);
    bool good = home && pm_slab_find(&pm_vslabs[slab], offset, block);
    if (home)
        pm_unlock(&pm_arenas[pm_home_arena(home)].bin[pm_home_class(home)].lock);
    pm_cancel_release(held);
    return good;
}

// Looks at the tag under the bin's lock, so of two frees of a block one fails.
bool pm_arena_return_kind(void *p) {
    uint32_t slab = pm_slab_of(p), home = lock_bin_of(slab);
    if (!home)
        return false;
    struct pm_arena *arena = &pm_arenas[pm_home_arena(home)];
    struct pm_bin *bin = &arena->bin[pm_home_class(home)];
    uint32_t offset = (uint32_t)(pm_heap_offset(p) & (PM_SLAB_SIZE - 1));
    struct pm_slab_block block;
    bool good = *pm_tag_at(p) == PM_TAG_KIND && pm_slab_find(&pm_vslabs[slab], offset, &block);
    if (good) {
        *pm_tag_at(p) = PM_TAG_NONE;
        bin->returns++;
        if (pm_kind_is_pinned(pm_vslabs[slab].kind))
            pm_unpin(p); // before anybody can get it
        pm_return_run(arena, bin, block.cls, &p, 1);
    }
    pm_unlock(&bin->lock);
    return good;
}

// ---- recovery -----------------------------------------------------------------------------------

bool pm_arena_write_tags(uint32_t slab) {
    uint32_t home = lock_bin_of(slab);
    if (!home)
        return false;
    bool untagged = pm_vslabs[slab].untagged; // pm_morph() writes the tags, too
    if (untagged)
        pm_slab_write_tags(slab);
    pm_unlock(&pm_arenas[pm_home_arena(home)].bin[pm_home_class(home)].lock);
    return untagged;
}

unsigned pm_arena_stride(uint32_t slab) {
    struct pm_cancel held = pm_cancel_hold();
    uint32_t home = lock_bin_of(slab);
    unsigned stride = 0;
    if (home) {
        if (pm_vslabs[slab].untagged)
            pm_slab_write_tags(slab);
        stride = pm_slab_stride(&pm_vslabs[slab]);
        pm_unlock(&pm_arenas[pm_home_arena(home)].bin[pm_home_class(home)].lock);
    }
    pm_cancel_release(held);
    return stride;
}

void pm_arena_adopt(uint32_t slab) {
    struct pm_vslab *v = &pm_vslabs[slab];
    enum pm_kind kind = v->held ? PM_KIND_POINTER_FREE : (enum pm_kind)v->kind;
    unsigned node = pm_slab_node(slab);
    make_node(node);
    if (kind != PM_KIND_CONSERVATIVE)
        pm_arenas_add_kinds(kind);
    struct pm_arena *arena = v->held                  ? &pm_arenas[pm_held_arena(node)]
                             : pm_kind_is_typed(kind) ? &pm_arenas[pm_typed_arena(kind, node)]
                                                      : pm_arena_of_recovered(kind, node);
    struct pm_bin *bin = &arena->bin[v->size_class];
    pm_slab_set_home(v, arena->number, v->size_class);
    v->untagged = 1;
    bin->slabs++;
    bin->empty += pm_slab_is_empty(v);
    if (v->old_class) {
        bin->blocked += v->blocked;
        pm_bin_lodge(arena, v->old_class, v->old_live);
    }
    pm_bin_move(arena, bin, slab, pm_bin_place(v));
}
