// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Disappearing links: words that become 0 when the block that they are about dies. A short link is
// cleared when only finalizers could still reach the block, a long one when nothing can. Links that
// lie on a heap are on media, too (links_media.h).
#include "links_media.h"

#include "base/fallback.h"
#include "boehm.h"
#include "live/trace.h"
#include "pages/pagemap.h"

static struct notes links[2]; // short, long

void pm_gc_links_load(void) { pm_gc_links_read(links); }

static int add(bool of_long, void **link, const void *block) {
    struct notes *t = &links[of_long];
    if (!block || (uintptr_t)link % sizeof *link)
        pm_gc_abort("a disappearing link needs an object, and lies on a multiple of 8 bytes");
    pm_gc_init();
    pm_gc_lock();
    pm_gc_links_load();
    uint32_t i = notes_find(t, (uintptr_t)link);
    int result = i ? GC_DUPLICATE : GC_DONE;
    if (!i)
        i = notes_add(t, (uintptr_t)link);
    if (i)
        t->note[i].block = (uintptr_t)block;
    if (i && !pm_gc_link_write(&t->note[i], of_long)) {
        notes_remove(t, i);
        i = 0;
    }
    pm_gc_unlock();
    return i ? result : GC_NO_MEMORY;
}

static int take(bool of_long, void **link) {
    struct notes *t = &links[of_long];
    pm_gc_init();
    pm_gc_lock();
    pm_gc_links_load();
    uint32_t i = notes_find(t, (uintptr_t)link);
    if (i) {
        pm_gc_link_forget(&t->note[i]);
        pm_gc_links_forgotten();
        notes_remove(t, i);
    }
    pm_gc_unlock();
    return i != 0;
}

static int move(bool of_long, void **link, void **to) {
    struct notes *t = &links[of_long];
    if ((uintptr_t)to % sizeof *to)
        pm_gc_abort("a disappearing link lies on a multiple of 8 bytes");
    pm_gc_init();
    pm_gc_lock();
    pm_gc_links_load();
    uint32_t i = notes_find(t, (uintptr_t)link);
    int result = i ? GC_DONE : GC_NOT_FOUND;
    if (i && link != to && notes_find(t, (uintptr_t)to))
        result = GC_DUPLICATE;
    else if (i && !pm_gc_link_move(&t->note[i], of_long, (uintptr_t)to))
        result = GC_NO_MEMORY;
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

// All words are 0, durably, before the first link is forgotten. So are words in dead blocks: their
// finalizers may still read them.
void pm_gc_links_clear(bool of_long) {
    struct notes *t = &links[of_long];
    NOTES_EACH(i, t)
    if (is_gone((void *)t->note[i].block))
        pm_gc_link_clear(&t->note[i]);
    pm_gc_links_forgotten();
    NOTES_EACH(i, t)
    if (is_gone((void *)t->note[i].block)) {
        pm_gc_link_forget(&t->note[i]);
        notes_remove(t, i);
    }
    pm_gc_links_forgotten();
}

// Links that lie in dead blocks.
void pm_gc_links_drop_dead(bool of_long) {
    struct notes *t = &links[of_long];
    NOTES_EACH(i, t)
    if (!pm_trace_is_alive((void *)t->note[i].key)) {
        pm_gc_link_forget(&t->note[i]);
        notes_remove(t, i);
    }
    pm_gc_links_forgotten();
}

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
