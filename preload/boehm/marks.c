// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What collections have found (gc_mark.h): of one block, and of all. Between collections the marks
// are those of the last one. Callers hold the lock, and then no sweep runs.
#include <stdio.h>
#include <sys/mman.h>

#include "base/message.h"
#include "base/os.h"
#include "blocks/arena.h"
#include "blocks/population.h"
#include "boehm.h"
#include "live/trace.h"
#include "pages/extent.h"
#include "process/world.h"

EXPORT int GC_is_marked(const void *p) { return pm_trace_is_alive(p); }
EXPORT void GC_set_mark_bit(const void *p) { pm_trace_only(p); }
EXPORT void GC_clear_mark_bit(const void *p) { pm_trace_unmark(p); }

// ---- lists of blocks, made while the world is held ----------------------------------------------

struct place {
    uint64_t offset, size; // in the heap: no address, which would keep the block alive
};

// Lock: pm_gc_lock.
static struct list {
    struct place *place; // NULL: they are only counted
    size_t count, room;
} list;

static void note(uint64_t offset, uint64_t size) {
    if (list.place && list.count < list.room)
        list.place[list.count] = (struct place){offset, size};
    list.count++;
}

typedef void walk_fn(const void *arg);
struct walk {
    walk_fn *walk;
    const void *arg;
};

// Nothing changes between the two walks.
static int walk_twice(void *arg, struct pm_error *err) {
    const struct walk *w = arg;
    list = (struct list){0};
    w->walk(w->arg);
    if (!list.count)
        return PM_OK;
    size_t room = list.count;
    list.place = pm_os_reserve(room * sizeof *list.place);
    if (!list.place)
        return pm_fail(err, PM_OPERATIONAL, "no memory for a list of %zu objects", room);
    list.room = room;
    list.count = 0;
    w->walk(w->arg);
    return PM_OK;
}

static bool make_list(const char *name, walk_fn *walk, const void *arg) {
    struct pm_error err = {0};
    struct walk w = {walk, arg};
    if (pm_world_hold(walk_twice, &w, &err) == PM_OK)
        return true;
    pm_event(PM_EV_GC_WARNING, "GC warning: %s: %s; nothing is listed", name, err.text);
    return false;
}

static void drop_list(void) {
    if (list.place)
        munmap(list.place, list.room * sizeof *list.place);
    list = (struct list){0};
}

// ---- the blocks that are reached ----------------------------------------------------------------

static void walk_reached(const void *unused) {
    (void)unused;
    pm_trace_each_reached(note);
}

// The callback runs while the world does, as with libgc. A block that another thread would free
// meanwhile stays: pm_gc_listing has pm_gc_free() wait for the lock.
static void call_for_each(void (*proc)(void *, size_t, void *), void *data) {
    for (size_t i = 0; i < list.room; i++) {
        void *block = pm_heap_at(list.place[i].offset);
        if (pm_col_at(block) & PM_COL_OWNED) // the callback has freed none of the others
            proc(block, list.place[i].size, data);
    }
}

EXPORT void GC_enumerate_reachable_objects_inner(void (*proc)(void *, size_t, void *), void *data) {
    pm_gc_init();
    pm_gc_lock();
    struct list outer = list; // the callback of another call
    atomic_fetch_add_explicit(&pm_gc_listing, 1, memory_order_relaxed);
    if (make_list("GC_enumerate_reachable_objects_inner", walk_reached, NULL))
        call_for_each(proc, data);
    drop_list();
    atomic_fetch_sub_explicit(&pm_gc_listing, 1, memory_order_relaxed);
    list = outer;
    pm_gc_unlock();
}

// ---- free blocks --------------------------------------------------------------------------------

struct wanted {
    unsigned cls;
    bool pointer_free; // in slabs of their own
};

// A tag stands where a block is that is handed out.
static void walk_free_in(uint32_t slab) {
    const struct pm_vslab *v = &pm_vslabs[slab];
    const struct pm_class *c = &pm_classes[v->size_class];
    if (v->untagged)
        pm_arena_write_tags(slab);
    for (unsigned i = 0; i < c->blocks; i++) {
        uint64_t offset = ((uint64_t)slab << PM_SLAB_SHIFT) + (uint64_t)i * c->size;
        if (*pm_tag_at(pm_heap_at(offset)) == PM_TAG_NONE)
            note(offset, c->size);
    }
}

static void walk_free(const void *arg) {
    const struct wanted *w = arg;
    for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;) {
        const struct pm_extent *e = &pm_extents[i];
        const struct pm_vslab *v = e->slab ? &pm_vslabs[pm_extent_slab(e)] : NULL;
        if (v && v->size_class == w->cls && !v->old_class &&
            (v->kind == PM_KIND_POINTER_FREE) == w->pointer_free)
            walk_free_in(pm_extent_slab(e));
    }
}

// For people with a debugger. Kinds share free blocks here, but for those without pointers on
// media.
EXPORT void GC_print_free_list(int kind, size_t granules) {
    size_t size = granules * 16;
    pm_gc_init();
    if (kind < 0 || kind >= (int)PM_COL_KINDS || !granules || size > PM_SMALL_MAX)
        return;
    const struct pm_col_kind *k = &pm_col_kinds[kind];
    struct wanted w = {pm_size_to_class(size),
                       !k->descriptor && !k->add_size && pm_heap_on_media()};
    pm_gc_lock();
    if (make_list("GC_print_free_list", walk_free, &w))
        for (size_t i = 0; i < list.room; i++) {
            char *block = pm_heap_at(list.place[i].offset);
            uint64_t slab = list.place[i].offset & ~(uint64_t)(PM_SLAB_SIZE - 1);
            printf("Free object in heap block %p [%zu]: %p\n", pm_heap_at(slab), i, (void *)block);
        }
    drop_list();
    pm_gc_unlock();
}
