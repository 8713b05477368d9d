// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "arena.h"

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

static void list_insert(struct pm_bin *bin, uint32_t slab) {
    struct pm_vslab *v = &pm_vslabs[slab];
    v->prev = 0;
    v->next = bin->list;
    if (v->next)
        pm_vslabs[v->next - 1].prev = slab + 1;
    bin->list = slab + 1;
    v->listed = 1;
}

static void list_remove(struct pm_bin *bin, uint32_t slab) {
    struct pm_vslab *v = &pm_vslabs[slab];
    *(v->prev ? &pm_vslabs[v->prev - 1].next : &bin->list) = v->next;
    if (v->next)
        pm_vslabs[v->next - 1].prev = v->prev;
    v->listed = 0;
}

static bool add_slab(struct pm_bin *bin, unsigned cls, uint16_t arena) {
    uint32_t slab = pm_slab_create(cls, arena);
    if (!slab)
        return false;
    list_insert(bin, slab - 1);
    bin->slabs++;
    bin->empty++;
    return true;
}

unsigned pm_arena_fill(struct pm_arena *arena, unsigned cls, void **blocks, unsigned want) {
    struct pm_bin *bin = &arena->bin[cls];
    unsigned got = 0;
    pm_lock(&bin->lock, PM_RANK_BIN);
    bin->fills++;
    while (got < want && (bin->list || (got == 0 && add_slab(bin, cls, arena->number)))) {
        uint32_t slab = bin->list - 1;
        struct pm_vslab *v = &pm_vslabs[slab];
        if (v->stale_tags)
            pm_slab_refresh_tags(slab);
        bin->empty -= v->free_count == pm_classes[cls].blocks;
        got += pm_slab_pop(slab, blocks + got, want - got);
        if (v->free_count == 0)
            list_remove(bin, slab);
    }
    pm_unlock(&bin->lock, PM_RANK_BIN);
    return got;
}

static void give_back(struct pm_bin *bin, unsigned cls, void *block) {
    uint32_t slab = pm_slab_of(block);
    struct pm_vslab *v = &pm_vslabs[slab];
    pm_slab_push(slab, block);
    if (!v->listed)
        list_insert(bin, slab);
    if (v->free_count < pm_classes[cls].blocks)
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

void pm_arena_flush(unsigned cls, void **blocks, unsigned count) {
    for (unsigned i = 0; i < count;) {
        // A block's slab cannot go away while the block is out of it, so its arena may be read unlocked.
        uint16_t number = pm_vslabs[pm_slab_of(blocks[i])].arena;
        struct pm_bin *bin = &pm_arenas[number].bin[cls];
        pm_lock(&bin->lock, PM_RANK_BIN);
        bin->flushes++;
        do
            give_back(bin, cls, blocks[i++]);
        while (i < count && pm_vslabs[pm_slab_of(blocks[i])].arena == number);
        pm_unlock(&bin->lock, PM_RANK_BIN);
    }
}

bool pm_arena_refresh(uint32_t slab) {
    const struct pm_vslab *v = &pm_vslabs[slab];
    unsigned cls = v->size_class;
    if (cls == 0 || cls > PM_CLASSES || v->arena >= pm_arena_count)
        return false;
    struct pm_bin *bin = &pm_arenas[v->arena].bin[cls];
    pm_lock(&bin->lock, PM_RANK_BIN);
    bool stale = v->stale_tags && v->size_class == cls;
    if (stale)
        pm_slab_refresh_tags(slab);
    pm_unlock(&bin->lock, PM_RANK_BIN);
    return stale;
}

void pm_arena_adopt(uint32_t slab) {
    struct pm_vslab *v = &pm_vslabs[slab];
    unsigned cls = v->size_class;
    v->arena = (uint16_t)(slab % pm_arena_count);
    v->stale_tags = 1;
    struct pm_bin *bin = &pm_arenas[v->arena].bin[cls];
    bin->slabs++;
    bin->empty += v->free_count == pm_classes[cls].blocks;
    if (v->free_count)
        list_insert(bin, slab);
}
