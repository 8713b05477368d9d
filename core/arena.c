// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "arena.h"

#include "morph.h"
#include "os.h"

struct pm_arena *pm_arenas;
unsigned pm_arena_count;

bool pm_arenas_init(unsigned cores) {
    pm_arenas = pm_os_reserve(cores * sizeof *pm_arenas);
    if (!pm_arenas)
        return false;
    pm_arena_count = cores;
    for (unsigned i = 0; i < cores; i++)
        pm_arenas[i].number = (uint16_t)i;
    return true;
}

struct pm_arena *pm_arena_join(void) {
    // Relaxed: the counts only balance load, a stale one does no harm.
    struct pm_arena *best = &pm_arenas[0];
    uint32_t fewest = UINT32_MAX;
    for (unsigned i = 0; i < pm_arena_count; i++) {
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

// ---- lists -------------------------------------------------------------------------------------------
//
// A slab that has something to give stands in the list or, while it is sparse, in the queue. Blocks are taken from the
// list first, so that sparse slabs run empty; the queue's head is where other classes look for one to morph.

static void list_insert(struct pm_bin *bin, uint32_t slab) {
    struct pm_vslab *v = &pm_vslabs[slab];
    v->prev = 0;
    v->next = bin->list;
    if (v->next)
        pm_vslabs[v->next - 1].prev = slab + 1;
    bin->list = slab + 1;
    v->listed = PM_LISTED_FREE;
}

static void queue_append(struct pm_arena *arena, struct pm_bin *bin, uint32_t slab) {
    struct pm_vslab *v = &pm_vslabs[slab];
    v->next = 0;
    v->prev = bin->sparse_last;
    v->queued = atomic_fetch_add_explicit(&arena->clock, 1, memory_order_relaxed);
    v->listed = PM_LISTED_SPARSE;
    if (v->prev)
        pm_vslabs[v->prev - 1].next = slab + 1;
    else // read without the lock by those who look for a slab
        __atomic_store_n(&bin->sparse, slab + 1, __ATOMIC_RELAXED);
    bin->sparse_last = slab + 1;
}

static void list_remove(struct pm_bin *bin, uint32_t slab) {
    struct pm_vslab *v = &pm_vslabs[slab];
    bool sparse = v->listed == PM_LISTED_SPARSE;
    if (v->prev)
        pm_vslabs[v->prev - 1].next = v->next;
    else
        __atomic_store_n(sparse ? &bin->sparse : &bin->list, v->next, __ATOMIC_RELAXED);
    if (v->next)
        pm_vslabs[v->next - 1].prev = v->prev;
    else if (sparse)
        bin->sparse_last = v->prev;
    v->listed = PM_LISTED_NOT;
}

static void touch(struct pm_arena *arena, struct pm_vslab *v) {
    v->used = atomic_load_explicit(&arena->clock, memory_order_relaxed);
}

static enum pm_listed place_of(const struct pm_vslab *v) {
    if (v->free_count == 0 && !pm_morph_is_due(v))
        return PM_LISTED_NOT;
    return pm_slab_is_sparse(v) ? PM_LISTED_SPARSE : PM_LISTED_FREE;
}

static void move_to(struct pm_arena *arena, struct pm_bin *bin, uint32_t slab,
                    enum pm_listed place) {
    if (pm_vslabs[slab].listed != PM_LISTED_NOT)
        list_remove(bin, slab);
    if (place == PM_LISTED_FREE)
        list_insert(bin, slab);
    else if (place == PM_LISTED_SPARSE)
        queue_append(arena, bin, slab);
}

// ---- where slabs come from ---------------------------------------------------------------------------

#define BINS_TRIED 4 // for a slab to morph, before a new one is made
#define SLABS_TRIED 8
#define WAIT_MAX 7 // slabs made without a look at others, where these give too little

// A bin keeps its last slab with free blocks. The first look is without the lock.
static bool can_spare(const struct pm_bin *bin) {
    uint32_t head = __atomic_load_n(&bin->sparse, __ATOMIC_RELAXED);
    return head && (__atomic_load_n(&bin->list, __ATOMIC_RELAXED) ||
                    head != __atomic_load_n(&bin->sparse_last, __ATOMIC_RELAXED));
}

// The class whose queue begins with the slab longest unused; 0: none. Without locks: a wrong choice costs little.
static unsigned oldest_queue(struct pm_arena *arena, uint64_t tried) {
    uint32_t now = atomic_load_explicit(&arena->clock, memory_order_relaxed), most = 0;
    unsigned best = 0;
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++) {
        struct pm_bin *bin = &arena->bin[cls];
        if (tried >> cls & 1 || !can_spare(bin))
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

// Moves a sparse slab of class `old` to `cls`. The queue is an LRU list with second chance: what was used since it was
// queued goes to its end.
static bool morph_from(struct pm_arena *arena, unsigned old, unsigned cls) {
    struct pm_bin *from = &arena->bin[old], *to = &arena->bin[cls];
    for (unsigned i = 1; i <= SLABS_TRIED && can_spare(from); i++) {
        uint32_t slab = from->sparse - 1;
        struct pm_vslab *v = &pm_vslabs[slab];
        bool was_empty = pm_slab_is_empty(v);
        // Right after it was queued, the rest of the same flush came.
        bool was_used = (int32_t)(v->used - v->queued) > 1;
        if ((was_used && i < SLABS_TRIED) || !pm_morph(slab, cls)) {
            move_to(arena, from, slab, PM_LISTED_SPARSE);
            continue;
        }
        list_remove(from, slab);
        from->slabs--;
        from->empty -= was_empty;
        atomic_fetch_add_explicit(&from->guests, v->old_live, memory_order_relaxed);
        to->slabs++;
        to->blocked += v->blocked;
        to->empty += pm_slab_is_empty(v);
        list_insert(to, slab);
        return true;
    }
    return false;
}

// *vain: there were sparse slabs, but not worth it. The bin's lock is held; of those of other bins one at a time is tried, so that nobody waits in a circle.
static bool add_morphed(struct pm_arena *arena, unsigned cls, bool *vain) {
    uint64_t tried = 1ull << cls;
    for (unsigned i = 0; i < BINS_TRIED && pm_heap_morphs(); i++) {
        unsigned old = oldest_queue(arena, tried);
        if (!old)
            return false;
        tried |= 1ull << old;
        if (!pm_trylock_raw(&arena->bin[old].lock))
            continue;
        bool found = morph_from(arena, old, cls);
        pm_unlock_raw(&arena->bin[old].lock);
        if (found)
            return true;
        *vain = true;
    }
    return false;
}

// A vain look costs as much as a morph; where one follows another, they become rare.
static bool look_for_morph(struct pm_arena *arena, struct pm_bin *bin, unsigned cls) {
    if (bin->waited < bin->wait) {
        bin->waited++;
        return false;
    }
    bool vain = false, found = add_morphed(arena, cls, &vain);
    bin->wait = found || !vain         ? 0
                : bin->wait < WAIT_MAX ? (uint16_t)(2 * bin->wait + 1)
                                       : WAIT_MAX;
    bin->waited = 0;
    return found;
}

static bool add_slab(struct pm_arena *arena, struct pm_bin *bin, unsigned cls) {
    if (look_for_morph(arena, bin, cls))
        return true;
    uint32_t slab = pm_slab_create(cls, arena->number);
    if (!slab)
        return false;
    list_insert(bin, slab - 1);
    bin->slabs++;
    bin->empty++;
    return true;
}

// ---- filling -----------------------------------------------------------------------------------------

static void sync_table(struct pm_bin *bin, uint32_t slab) {
    struct pm_vslab *v = &pm_vslabs[slab];
    uint16_t before = v->blocked;
    pm_morph_sync(slab);
    bin->blocked -= (uint32_t)(before - v->blocked);
}

static unsigned pop(struct pm_arena *arena, struct pm_bin *bin, void **blocks, unsigned want) {
    uint32_t slab = (bin->list ? bin->list : bin->sparse_last) - 1;
    struct pm_vslab *v = &pm_vslabs[slab];
    if (v->stale_tags)
        pm_slab_refresh_tags(slab);
    bin->empty -= pm_slab_is_empty(v);
    if (v->free_count == 0)
        sync_table(bin, slab);
    unsigned got = pm_slab_pop(slab, blocks, want);
    touch(arena, v);
    // A slab that is being filled stays in the list, however sparse.
    enum pm_listed place = place_of(v);
    if (place != v->listed && (place == PM_LISTED_NOT || v->listed == PM_LISTED_SPARSE))
        move_to(arena, bin, slab, place);
    return got;
}

unsigned pm_arena_fill(struct pm_arena *arena, unsigned cls, void **blocks, unsigned want) {
    struct pm_bin *bin = &arena->bin[cls];
    unsigned got = 0;
    pm_lock(&bin->lock, PM_RANK_BIN);
    bin->fills++;
    while (got < want && (bin->list || bin->sparse || (got == 0 && add_slab(arena, bin, cls))))
        got += pop(arena, bin, blocks + got, want - got);
    pm_unlock(&bin->lock, PM_RANK_BIN);
    return got;
}

// ---- giving back -------------------------------------------------------------------------------------

static void push_old(struct pm_arena *arena, struct pm_bin *bin, uint32_t slab, const void *block) {
    struct pm_vslab *v = &pm_vslabs[slab];
    atomic_fetch_sub_explicit(&arena->bin[v->old_class].guests, 1, memory_order_relaxed);
    pm_morph_free(slab, block);
    if (v->old_live == 0)
        sync_table(bin, slab);
}

static void give_back(struct pm_arena *arena, struct pm_bin *bin, unsigned cls, void *block) {
    uint32_t slab = pm_slab_of(block);
    struct pm_vslab *v = &pm_vslabs[slab];
    if (v->size_class == cls) {
        pm_slab_push(slab, block);
        // Nothing else to do in most cases: it stands in the list, and fuller than sparse.
        if (v->listed == PM_LISTED_FREE && v->free_count < pm_quiet_below[cls])
            return;
    } else {
        push_old(arena, bin, slab, block);
    }
    touch(arena, v);
    enum pm_listed place = place_of(v);
    if (place != v->listed)
        move_to(arena, bin, slab, place);
    if (!pm_slab_is_empty(v))
        return;
    if (bin->empty == 0) {
        bin->empty =
            1; // keep one, so that a program at the edge does not make and drop slabs by turns
        return;
    }
    list_remove(bin, slab);
    bin->slabs--;
    pm_slab_destroy(slab);
}

// The bin that a block's slab is in, locked. A slab cannot go away while the block is out of it, and keeps its arena, but
// it may morph until its bin is locked.
static struct pm_bin *lock_bin_of(const void *block) {
    const struct pm_vslab *v = &pm_vslabs[pm_slab_of(block)];
    for (;;) {
        unsigned cls = __atomic_load_n(&v->size_class, __ATOMIC_RELAXED);
        struct pm_bin *bin = &pm_arenas[v->arena].bin[cls];
        pm_lock(&bin->lock, PM_RANK_BIN);
        if (__atomic_load_n(&v->size_class, __ATOMIC_RELAXED) == cls)
            return bin;
        pm_unlock(&bin->lock, PM_RANK_BIN);
    }
}

static bool is_in(const void *block, const struct pm_arena *arena, unsigned cls) {
    const struct pm_vslab *v = &pm_vslabs[pm_slab_of(block)];
    return v->arena == arena->number && __atomic_load_n(&v->size_class, __ATOMIC_RELAXED) == cls;
}

void pm_arena_flush(unsigned cls, void **blocks, unsigned count) {
    for (unsigned i = 0; i < count;) {
        struct pm_bin *bin = lock_bin_of(blocks[i]);
        struct pm_arena *arena = &pm_arenas[pm_vslabs[pm_slab_of(blocks[i])].arena];
        unsigned in = (unsigned)(bin - arena->bin);
        bin->flushes++;
        do
            give_back(arena, bin, cls, blocks[i++]);
        while (i < count && is_in(blocks[i], arena, in));
        pm_unlock(&bin->lock, PM_RANK_BIN);
    }
}

bool pm_arena_refresh(uint32_t slab) {
    const struct pm_vslab *v = &pm_vslabs[slab];
    unsigned cls = __atomic_load_n(&v->size_class, __ATOMIC_RELAXED);
    if (cls == 0 || cls > PM_CLASSES || v->arena >= pm_arena_count)
        return false;
    struct pm_bin *bin = &pm_arenas[v->arena].bin[cls];
    pm_lock(&bin->lock, PM_RANK_BIN);
    // One that morphed meanwhile has had its tags made true.
    bool stale = v->stale_tags && v->size_class == cls;
    if (stale)
        pm_slab_refresh_tags(slab);
    pm_unlock(&bin->lock, PM_RANK_BIN);
    return stale;
}

void pm_arena_adopt(uint32_t slab) {
    struct pm_vslab *v = &pm_vslabs[slab];
    v->arena = (uint16_t)(slab % pm_arena_count);
    v->stale_tags = 1;
    struct pm_arena *arena = &pm_arenas[v->arena];
    struct pm_bin *bin = &arena->bin[v->size_class];
    bin->slabs++;
    bin->empty += pm_slab_is_empty(v);
    if (v->old_class) {
        bin->blocked += v->blocked;
        arena->bin[v->old_class].guests += v->old_live;
    }
    move_to(arena, bin, slab, place_of(v));
}
