// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "replaced.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/options.h"
#include "base/os.h"
#include "blocks/alloc.h"
#include "blocks/population.h"
#include "media/heap.h"
#include "pages/extent.h"
#include "roots/root_table.h"
#include "roots/spec.h"

enum {
    ROOTS = 16,
    WAITS = 64, // looked at, and then no more until the end
    BEGIN = 8,  // words of a block that are compared
    STEPS = 1 << 15,
    SCANNED = 1 << 17, // words of one block that are looked at
};

struct noted {
    const uint64_t *root;
    uint64_t words;
    uint64_t target;
    uint64_t begin[BEGIN];
    char name[PM_SPEC_TEXT_LEN];
};

bool pm_replaced_awaited;
static struct noted noted[ROOTS];
static unsigned count;
static unsigned waits_left;

// ---- blocks -------------------------------------------------------------------------------------

struct block {
    uint64_t start; // an address
    uint64_t size;
};

static bool in_slab(uint64_t offset, struct block *b) {
    uint32_t slab = (uint32_t)(offset >> PM_SLAB_SHIFT);
    struct pm_slab_block found;
    if (!pm_slab_find(&pm_vslabs[slab], (uint32_t)(offset & (PM_SLAB_SIZE - 1)), &found))
        return false;
    b->size = pm_classes[found.cls].size;
    b->start = pm_base + (offset & ~(uint64_t)(PM_SLAB_SIZE - 1)) + found.index * b->size;
    return pm_find_tag((void *)(uintptr_t)b->start) != PM_TAG_NONE;
}

// Only the first and the last page of an extent name it.
static bool in_extent(uint64_t offset, struct block *b) {
    uint64_t page = offset >> PM_PAGE_SHIFT, first = pm_shard_at(offset)->offset >> PM_PAGE_SHIFT;
    for (unsigned steps = 0; page > first && !*pm_page_extent(page); page--)
        if (++steps > STEPS)
            return false;
    const struct pm_extent *e = &pm_extents[*pm_page_extent(page)];
    b->size = pm_extent_bytes(e);
    b->start = pm_base + (e->page << PM_PAGE_SHIFT);
    return e->state == PM_EXTENT_ACTIVE && pm_base + offset - b->start < b->size;
}

// The allocated block around an address. A word may have a tag in its upper 16 bits.
static bool find_block(uint64_t word, struct block *b) {
    uint64_t offset = (word & ((1ull << 48) - 1)) - pm_base;
    if (offset >= pm_range)
        return false;
    const struct pm_shard *s = pm_shard_at(offset);
    if (offset - s->offset >= s->frontier)
        return false;
    return pm_vslabs[offset >> PM_SLAB_SHIFT].size_class ? in_slab(offset, b)
                                                         : in_extent(offset, b);
}

// ---- a walk -------------------------------------------------------------------------------------

// The blocks that were reached, in the order in which that happened, and a table of their places.
struct walk {
    uint64_t start[STEPS], size[STEPS];
    uint32_t slot[4 * STEPS]; // number + 1
    unsigned reached;
    bool broken; // too much to walk through
};

static bool visit(struct walk *w, const struct block *b) {
    uint32_t at = (uint32_t)((b->start >> 4) * 0x9e3779b1u) % (4 * STEPS);
    for (; w->slot[at]; at = (at + 1) % (4 * STEPS))
        if (w->start[w->slot[at] - 1] == b->start)
            return false;
    if (w->reached == STEPS) {
        w->broken = true;
        return false;
    }
    w->start[w->reached] = b->start;
    w->size[w->reached] = b->size;
    w->slot[at] = ++w->reached;
    return true;
}

static void visit_words(struct walk *w, const uint64_t *word, uint64_t words) {
    struct block b;
    w->broken |= words > SCANNED;
    for (uint64_t i = 0; i < words && !w->broken; i++)
        if (find_block(__atomic_load_n(&word[i], __ATOMIC_RELAXED), &b))
            visit(w, &b);
}

static void walk_from(struct walk *w, unsigned next) {
    for (; next < w->reached && !w->broken; next++)
        visit_words(w, (const uint64_t *)(uintptr_t)w->start[next],
                    w->size[next] / sizeof(uint64_t));
}

static void visit_root(const void *at, uint64_t len, const char *name, void *w) {
    (void)name;
    visit_words(w, at, len / sizeof(uint64_t));
}

static void visit_slots(struct walk *w) {
    for (unsigned i = 0; i < PM_ROOT_SLOTS; i++) {
        uint64_t word = pm_heap_slot(i);
        visit_words(w, &word, 1);
    }
}

// ---- the check ----------------------------------------------------------------------------------

static bool holds_still(const struct noted *n) {
    for (uint64_t i = 0; i < n->words; i++)
        if (__atomic_load_n(&n->root[i], __ATOMIC_RELAXED) == n->target)
            return true;
    return false;
}

static bool is_left_behind(const struct noted *n, struct block *b) {
    uint64_t here = n->target & ((1ull << 48) - 1);
    return find_block(n->target, b) && here - b->start + sizeof n->begin <= b->size &&
           memcmp((const void *)(uintptr_t)here, n->begin, sizeof n->begin) == 0;
}

// What the root led to, and no root does now.
static void say(const struct noted *n, struct walk *w, unsigned before) {
    uint64_t bytes = 0;
    walk_from(w, before);
    unsigned lost = w->reached - before;
    for (unsigned i = before; i < w->reached; i++)
        bytes += w->size[i];
    pm_event(
        PM_EV_ROOT_REPLACED,
        "root %.100s led to %s%u object%s of %lu bytes at the start; the program has replaced its "
        "value, and no root reaches them now: the next start frees them. Let the program keep what "
        "it finds there, or name a variable that main does not set up anew (`pmalloc-run --roots "
        "PROGRAM` lists them); PMALLOC_ROOTLESS=quiet if that is meant so",
        n->name, w->broken ? "more than " : "", lost, lost == 1 ? "" : "s", (unsigned long)bytes);
}

// False: nothing is wrong, or it cannot be told.
static bool look_closer(const struct noted *n) {
    struct block b;
    struct walk *w = is_left_behind(n, &b) ? pm_os_reserve(sizeof *w) : NULL;
    if (!w)
        return false;
    pm_roots_each_captured(visit_root, w);
    visit_slots(w);
    walk_from(w, 0);
    unsigned before = w->reached;
    bool lost = !w->broken && visit(w, &b);
    if (lost)
        say(n, w, before);
    munmap(w, sizeof *w);
    return lost;
}

static void look(void) {
    if (pm_nested() || !pm_heap_on_media() || pm_heap.super->state.owner_pid != (uint64_t)getpid())
        return;
    int saved = errno;
    struct pm_cancel held = pm_cancel_hold();
    for (unsigned i = 0; i < count; i++)
        if (!holds_still(&noted[i]) && look_closer(&noted[i]))
            noted[i--] = noted[--count]; // once
    pm_cancel_release(held);
    errno = saved;
}

static void note(const void *at, uint64_t len, const char *name, void *unused) {
    struct block b;
    (void)unused;
    struct noted *n = &noted[count];
    *n = (struct noted){.root = at, .words = len / sizeof(uint64_t)};
    if ((uintptr_t)at % sizeof(uint64_t) != 0 || n->words > SCANNED)
        return;
    for (uint64_t i = 0; i < n->words && count < ROOTS; i++) {
        uint64_t here = n->root[i] & ((1ull << 48) - 1);
        if (!find_block(n->root[i], &b) || here - b.start + sizeof n->begin > b.size)
            continue;
        n->target = n->root[i];
        memcpy(n->begin, (const void *)(uintptr_t)here, sizeof n->begin);
        strncat(n->name, name, sizeof n->name - 1);
        count++;
        return;
    }
}

void pm_replaced_note(void) {
    if (pm_options.rootless.number == PM_ROOTLESS_QUIET)
        return;
    pm_roots_each_captured(note, NULL);
    waits_left = WAITS;
    pm_replaced_awaited = count != 0;
}

void pm_replaced_check(void) {
    static _Atomic bool looking;
    if (!pm_replaced_awaited || atomic_exchange(&looking, true))
        return;
    look();
    pm_replaced_awaited = count != 0 && --waits_left != 0;
    atomic_store(&looking, false);
}

void pm_replaced_end(void) {
    if (count)
        look();
    count = 0;
}
