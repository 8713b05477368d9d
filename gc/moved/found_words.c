// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "found_words.h"

#include <stdatomic.h>

#include "base/os.h"
#include "base/own_memory.h"
#include "media/heap.h"
#include "media/log/lanes.h"
#include "recovery/recover.h"
#include "roots/root_media.h"
#include "roots/root_table.h"

#define MOST ((size_t)1 << 28)

static const struct pm_range_of_words *wanted;
static unsigned wanted_count;
static uint64_t *list;
static uint64_t room;
static _Atomic uint64_t count; // more than `room`: some were not noted

static bool is_wanted(uint64_t value) {
    for (unsigned i = 0; i < wanted_count; i++)
        if (value - wanted[i].start < wanted[i].end - wanted[i].start)
            return true;
    return false;
}

static void note(uint64_t where) {
    uint64_t at = atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
    if (at < room)
        list[at] = where;
}

// By several markers at once. Words of roots come here, too, in another mapping than ours.
static void note_word(const uint64_t *word) {
    if (is_wanted(*word) && (uintptr_t)word - pm_base < pm_range)
        note((uintptr_t)word);
}

static void sift(uint64_t at, uint64_t end) {
    for (uint64_t child; (child = 2 * at + 1) < end; at = child) {
        child += child + 1 < end && list[child] < list[child + 1];
        if (list[at] >= list[child])
            return;
        uint64_t t = list[at];
        list[at] = list[child];
        list[child] = t;
    }
}

// A block that was scanned twice has its words twice.
static uint64_t sort_and_thin(uint64_t n) {
    for (uint64_t i = n / 2; i--;)
        sift(i, n);
    for (uint64_t last = n; last-- > 1;) {
        uint64_t t = list[0];
        list[0] = list[last];
        list[last] = t;
        sift(0, last);
    }
    uint64_t kept = 0;
    for (uint64_t i = 0; i < n; i++)
        if (!kept || list[i] != list[kept - 1])
            list[kept++] = list[i];
    return kept;
}

static void look_at_root(const struct pm_root *root, struct pm_found_words *f) {
    uint64_t from = (root->image + 7) & ~7ull;
    if (root->kind == PM_ROOT_OBJECT || pm_root_is_dropped(root))
        return;
    for (uint64_t at = from; at + 8 <= root->image + root->length; at += 8)
        if (is_wanted(*pm_word_at(f, at | PM_WORD_IN_ROOT)))
            note(at | PM_WORD_IN_ROOT);
}

static void look_at_lane(const struct pm_lane_store *store, uint32_t stores, void *found) {
    for (uint32_t i = 0; i < stores; i++)
        *(bool *)found |= is_wanted(store[i].value & PM_SLOT_MAX);
}

static int look_at_roots(struct pm_found_words *f, struct pm_error *err) {
    const struct pm_root_table *t = pm_roots_table(err);
    if (!t)
        return err->status;
    f->images = pm_roots_images(t);
    f->images_at = t->area_offset;
    if (t->area_length && !f->images)
        return pm_roots_unmapped(err);
    for (uint32_t i = 0; i < t->count; i++)
        look_at_root(&t->root[i], f);
    for (unsigned i = 0; i < PM_ROOT_SLOTS; i++)
        f->elsewhere |= is_wanted(pm_heap_slot(i));
    pm_lanes_each(look_at_lane, &f->elsewhere);
    return PM_OK;
}

int pm_words_find(const struct pm_range_of_words *range, unsigned ranges, struct pm_found_words *f,
                  struct pm_error *err) {
    struct pm_recovery ignored;
    struct pm_stray stray = {.found = note_word};
    struct pm_recover_options how = {.mark = {.stray = &stray}};
    *f = (struct pm_found_words){0};
    wanted = range;
    wanted_count = ranges;
    room = pm_own_room(sizeof *list, MOST);
    list = pm_os_reserve(room * sizeof *list);
    if (!list)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s: no memory to look for words that lead into the "
                       "program; see `ulimit -v`",
                       pm_heap.dir);
    int status = pm_recover(&how, &ignored, err);
    if (status == PM_OK)
        status = look_at_roots(f, err);
    if (status == PM_OK && count > room)
        status = pm_fail(err, PM_OPERATIONAL,
                         "%s: %lu words lead into the program, and there is "
                         "no memory to note them; see `ulimit -v`",
                         pm_heap.dir, (unsigned long)count);
    f->where = list;
    f->count = status == PM_OK ? sort_and_thin(count) : 0;
    return status;
}
