// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "links_media.h"

#include "blocks/link_table.h"
#include "blocks/population.h"
#include "live/collectable.h"
#include "media/heap.h"
#include "pages/pagemap.h"
#include "roots/root_words.h"

enum { LINK_VOLATILE, LINK_OURS, LINK_OLD };

#define GRANULE ((uint64_t)1 << PM_GRANULE_SHIFT) // every block starts on a multiple of it

static bool unsettled; // something was flushed, and not drained

static uint32_t number_of(const struct note *n) { return (uint32_t)(uintptr_t)n->data - 1; }

static void set_number(struct note *n, uint32_t number, uint32_t how) {
    n->data = (void *)((uintptr_t)number + 1);
    n->how = how;
}

static bool is_on_media(const struct note *n) {
    return n->how != LINK_VOLATILE && pm_heap_on_media();
}

// What media are to say of a link. False: nothing.
static bool describe(uintptr_t key, uintptr_t block, bool of_long, struct pm_link *link) {
    struct pm_root_word word;
    if (!pm_heap_on_media() || !pm_in_range((void *)block))
        return false;
    *link = (struct pm_link){.object = pm_heap_offset((void *)block) & ~(GRANULE - 1),
                             .is_long = of_long};
    if (pm_in_range((void *)key)) {
        link->at = pm_heap_offset((void *)key);
        return true;
    }
    link->in_root = pm_root_word_of((void *)key, &word);
    if (link->in_root) {
        link->at = word.at;
        link->root = word.root;
    }
    return link->in_root;
}

// ---- one link -----------------------------------------------------------------------------------

static void end_now(struct note *n) {
    pm_gc_link_forget(n);
    pm_gc_links_forgotten();
    n->how = LINK_VOLATILE;
}

bool pm_gc_link_write(struct note *n, bool of_long) {
    struct pm_link link;
    uint32_t number;
    bool stands = is_on_media(n);
    if (!describe(n->key, n->block, of_long, &link)) {
        if (stands)
            end_now(n);
        return true;
    }
    if (stands) {
        pm_links_set_object(number_of(n), link.object);
        n->how = LINK_OURS;
        return true;
    }
    if (!pm_links_add(&link, &number))
        return false;
    set_number(n, number, LINK_OURS);
    return true;
}

bool pm_gc_link_move(struct note *n, bool of_long, uintptr_t to) {
    struct pm_link link;
    uint32_t number = number_of(n);
    bool stands = is_on_media(n), stays = describe(to, n->block, of_long, &link);
    if (stands && !stays)
        end_now(n);
    if (stays && !(stands ? pm_links_move(&number, &link) : pm_links_add(&link, &number)))
        return false;
    if (stays)
        set_number(n, number, LINK_OURS);
    return true;
}

static uint64_t room_of(uintptr_t block) {
    struct pm_col_block found;
    if (pm_col_find((void *)block, &found))
        return found.size;
    unsigned cls = pm_in_range((void *)block) ? pm_vslabs[pm_slab_of((void *)block)].size_class : 0;
    return cls ? pm_classes[cls].size : GRANULE;
}

// The word of an old link may be another one's: see pm_links_names().
static bool is_ours(const struct note *n) {
    if (n->how != LINK_OLD || !pm_in_range((void *)n->key))
        return true;
    uint64_t word = pm_links_load_word(pm_heap_offset((void *)n->key));
    return pm_links_names(word, n->block, room_of(n->block));
}

void pm_gc_link_clear(const struct note *n) {
    uint64_t *word = (uint64_t *)n->key;
    if (!is_ours(n))
        return;
    if (!is_on_media(n)) {
        *word = 0;
        return;
    }
    pm_links_clear_word(word);
    unsettled = true;
}

void pm_gc_link_forget(const struct note *n) {
    if (!is_on_media(n))
        return;
    pm_links_erase(number_of(n));
    unsettled = true;
}

void pm_gc_links_forgotten(void) {
    if (unsettled)
        pm_links_settle();
    unsettled = false;
}

// ---- all links ----------------------------------------------------------------------------------

static void read_one(uint32_t number, const struct pm_link *link, void *arg) {
    struct notes *t = (struct notes *)arg + link->is_long;
    struct pm_root_word word = {link->root, link->at};
    void *at = link->in_root ? pm_root_word_address(word) : pm_heap_at(link->at);
    uint32_t i = at ? notes_find(t, (uintptr_t)at) : 0;
    bool ours = i != 0; // registered anew before its root was captured
    if (at && !i)
        i = notes_add(t, (uintptr_t)at);
    if (!i)
        return;
    set_number(&t->note[i], number, ours ? LINK_OURS : LINK_OLD);
    if (!ours)
        t->note[i].block = (uintptr_t)pm_heap_at(link->object);
}

static void forget_all(struct notes *t) {
    NOTES_EACH(i, t)
    if (t->note[i].how != LINK_VOLATILE)
        notes_remove(t, i);
}

// Where there is no room, a link is not on media, as before.
static void write_all(struct notes *t, bool of_long) {
    NOTES_EACH(i, t)
    if (t->note[i].how != LINK_OLD)
        pm_gc_link_write(&t->note[i], of_long);
}

void pm_gc_links_read(struct notes links[2]) {
    static uint64_t weeded = UINT64_MAX;
    static uint32_t epoch;
    uint32_t now = pm_heap_is_held() ? pm_heap_root_epoch() : epoch;
    if (weeded == pm_links_weeded && epoch == now)
        return;
    weeded = pm_links_weeded;
    epoch = now;
    for (unsigned of_long = 0; of_long < 2; of_long++)
        forget_all(&links[of_long]);
    pm_links_each(read_one, links);
    for (unsigned of_long = 0; of_long < 2; of_long++)
        write_all(&links[of_long], of_long);
}
