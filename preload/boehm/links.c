// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Disappearing links: words that become 0 when the block that they are about dies. A short link is
// cleared when only finalizers could still reach the block, a long one when nothing can. A link
// ends with its process.
#include "base/fallback.h"
#include "boehm.h"
#include "live/trace.h"
#include "notes.h"
#include "pages/pagemap.h"
#include "recovery/collect.h"

static struct notes links[2]; // short, long

static int add(bool of_long, void **link, const void *block) {
    struct notes *t = &links[of_long];
    if (!block || (uintptr_t)link % sizeof *link)
        pm_gc_abort("a disappearing link needs an object, and lies on a multiple of 8 bytes");
    pm_gc_init();
    pm_gc_lock();
    uint32_t i = notes_find(t, (uintptr_t)link);
    int result = i ? GC_DUPLICATE : GC_DONE;
    if (!i)
        i = notes_add(t, (uintptr_t)link);
    if (i)
        t->note[i].block = (uintptr_t)block;
    pm_gc_unlock();
    return i ? result : GC_NO_MEMORY;
}

static int take(bool of_long, void **link) {
    struct notes *t = &links[of_long];
    pm_gc_lock();
    uint32_t i = notes_find(t, (uintptr_t)link);
    if (i)
        notes_remove(t, i);
    pm_gc_unlock();
    return i != 0;
}

static int move(bool of_long, void **link, void **to) {
    struct notes *t = &links[of_long];
    if ((uintptr_t)to % sizeof *to)
        pm_gc_abort("a disappearing link lies on a multiple of 8 bytes");
    pm_gc_lock();
    uint32_t i = notes_find(t, (uintptr_t)link);
    int result = i ? GC_DONE : GC_NOT_FOUND;
    if (i && link != to && notes_find(t, (uintptr_t)to))
        result = GC_DUPLICATE;
    else if (i)
        notes_rekey(t, i, (uintptr_t)to);
    pm_gc_unlock();
    return result;
}

// ---- with the world held ------------------------------------------------------------------------

// Also what the program has freed itself.
static bool is_gone(const void *p) {
    return !pm_trace_is_alive(p) || (pm_granule(p) < PM_GRANULES && !*pm_tag_at(p));
}

// Words in dead blocks become 0, too: their finalizers may still read them.
void pm_gc_links_clear(bool of_long) {
    struct notes *t = &links[of_long];
    NOTES_EACH(i, t)
    if (is_gone((void *)t->note[i].block)) {
        *(void **)t->note[i].key = NULL;
        notes_remove(t, i);
    }
}

// Links that lie in dead blocks.
void pm_gc_links_drop_dead(bool of_long) {
    struct notes *t = &links[of_long];
    NOTES_EACH(i, t)
    if (!pm_trace_is_alive((void *)t->note[i].key))
        notes_remove(t, i);
}

// ---- pmalloc_collect() --------------------------------------------------------------------------

// It frees what earlier runs have left. No finalizer runs for that, so short links and long ones
// fare alike.
static void clear_old(bool (*is_alive)(const void *p)) {
    for (unsigned of_long = 0; of_long < 2; of_long++) {
        struct notes *t = &links[of_long];
        NOTES_EACH(i, t) {
            bool lies = is_alive((void *)t->note[i].key);
            bool dies = !is_alive((void *)t->note[i].block);
            if (lies && dies)
                *(void **)t->note[i].key = NULL;
            if (!lies || dies)
                notes_remove(t, i);
        }
    }
}

static const struct pm_collect_watcher watcher = {pm_gc_lock, clear_old, pm_gc_unlock};

__attribute__((constructor)) static void watch(void) { pm_collect_watcher = &watcher; }

// ---- names --------------------------------------------------------------------------------------

EXPORT int GC_register_disappearing_link(void **link) {
    struct pm_col_block b;
    if (pm_col_find(link, &b))
        return add(false, link, b.base);
    if (!pm_fallback_owns(link)) // what lies there never dies
        pm_gc_abort("GC_register_disappearing_link(): the link lies in no block");
    return GC_DONE;
}
EXPORT int GC_general_register_disappearing_link(void **link, const void *block) {
    return add(false, link, block);
}
EXPORT int GC_unregister_disappearing_link(void **link) { return take(false, link); }
EXPORT int GC_move_disappearing_link(void **link, void **to) { return move(false, link, to); }
EXPORT int GC_register_long_link(void **link, const void *block) { return add(true, link, block); }
EXPORT int GC_unregister_long_link(void **link) { return take(true, link); }
EXPORT int GC_move_long_link(void **link, void **to) { return move(true, link, to); }
