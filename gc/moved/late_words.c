// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "late_words.h"

#include <link.h>
#include <string.h>

#include "blocks/arena.h"
#include "blocks/population.h"
#include "blocks/slab.h"
#include "media/backing/backing.h"
#include "media/heap.h"
#include "media/persist.h"
#include "pages/extent.h"
#include "rebased.h"
#include "roots/loaded_object.h"
#include "roots/objects_record.h"
#include "roots/root_table.h"
#include "verdict.h"

// A record is written anew if it has so many places that no word leads to any more. It has room for
// PM_OBJECTS_MOST, and programs at random places add some at each start.
#define LEFT_MOST 64u

static const struct pm_range_of_words *range;
static unsigned ranges;
static struct pm_late_words *found;

// ---- blocks of the dynamic linker ---------------------------------------------------------------

// glibc has a block for each object, made in this run, with addresses that are not within it: its
// end, and a table whose first entries do not exist. Another library may have lain there.
#define LINKERS 1024u

static struct { uintptr_t from, to; } linkers[LINKERS];
static unsigned linkers_count;

#ifdef __GLIBC__
// As r_version 2 has it.
struct name_space {
    struct r_debug is;
    const struct name_space *next;
};

static void note_linkers(const void *at) {
    if ((uintptr_t)at - pm_base < pm_range && linkers_count < LINKERS)
        linkers[linkers_count++].from = (uintptr_t)at;
}

// As a debugger finds it. By its name, _r_debug, the loader would be another library that this one
// needs, with versions of its own.
static const struct name_space *name_spaces(const struct pm_object *program) {
    for (size_t i = 0; i < program->phnum; i++) {
        const ElfW(Dyn) *dyn = (const void *)(program->base + program->phdr[i].p_vaddr);
        for (; program->phdr[i].p_type == PT_DYNAMIC && dyn->d_tag != DT_NULL; dyn++)
            if (dyn->d_tag == DT_DEBUG)
                return (const struct name_space *)dyn->d_un.d_ptr;
    }
    return NULL;
}

// The list does not change meanwhile.
static int find_linkers(const struct pm_object *first, void *unused) {
    (void)unused;
    const struct name_space *n = name_spaces(first);
    for (bool more = true; more && n; n = more ? n->next : NULL) {
        for (const struct link_map *l = n->is.r_map; l; l = l->l_next)
            note_linkers(l);
        more = n->is.r_version > 1;
    }
    return 1;
}
#else // musl's is no block of ours
static int find_linkers(const struct pm_object *first, void *unused) {
    (void)first, (void)unused;
    return 1;
}
#endif

static void find_linkers_blocks(void) {
    linkers_count = 0;
    pm_object_each(find_linkers, NULL);
    for (unsigned i = 0; i < linkers_count; i++) {
        uint64_t offset = linkers[i].from - pm_base, in_slab = offset & (PM_SLAB_SIZE - 1);
        struct pm_slab_block block;
        bool known = pm_arena_find((uint32_t)(offset >> PM_SLAB_SHIFT), (uint32_t)in_slab, &block);
        linkers[i].to = linkers[i].from + (known ? pm_classes[block.cls].size : 0);
    }
}

static bool is_linkers(const void *at) {
    for (unsigned i = 0; i < linkers_count; i++)
        if ((uintptr_t)at >= linkers[i].from && (uintptr_t)at < linkers[i].to)
            return true;
    return false;
}

// ---- words --------------------------------------------------------------------------------------

static void look_at(uint64_t *word) {
    uint64_t value = __atomic_load_n(word, __ATOMIC_RELAXED);
    struct pm_matched to;
    unsigned i = 0;
    while (i < ranges && value - range[i].start >= range[i].end - range[i].start)
        i++;
    if (i == ranges || is_linkers(word))
        return;
    enum pm_verdict verdict = pm_verdict_of(value, &to, found->why);
    found->unsure +=
        verdict == PM_VERDICT_UNSURE || verdict == PM_VERDICT_STALE || verdict == PM_VERDICT_COPIED;
    if (verdict != PM_VERDICT_CHANGES ||
        !__atomic_compare_exchange_n(word, &value, to.at, false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED))
        return;
    found->changed++;
    pm_flush(word, sizeof *word);
}

static void look_at_bytes(char *at, uint64_t len) {
    uint64_t skip = -(uint64_t)(uintptr_t)at & 7;
    for (uint64_t *word = (uint64_t *)(void *)(at + skip); skip + 8 <= len; skip += 8)
        look_at(word++);
}

static void look_at_root(const void *at, uint64_t len, const char *name, void *unused) {
    (void)name, (void)unused;
    look_at_bytes((char *)(uintptr_t)at, len);
}

// Without the holes, which would get space.
static void look_at_extent(const struct pm_extent *e, struct pm_written *known) {
    uint64_t at = pm_heap_offset(pm_extent_address(e)), end = at + pm_extent_bytes(e);
    unsigned kind = e->slab ? pm_vslabs[pm_extent_slab(e)].kind : e->kind;
    for (uint64_t len;
         pm_kind_has_pointers(kind) && at < end && (len = pm_heap_next_data(known, &at, end)) != 0;
         at += len)
        look_at_bytes(pm_heap_at(at), len);
}

static void look_at_shard(struct pm_shard *s) {
    struct pm_written known = {0};
    pm_lock(&s->lock);
    for (uint32_t i = pm_index_first(s); (i = pm_extent_next_active_in(s, i)) != 0;)
        look_at_extent(&pm_extents[i], &known);
    pm_unlock(&s->lock);
}

void pm_late_words(struct pm_late_words *done) {
    *done = (struct pm_late_words){0};
    found = done;
    ranges = pm_verdicts_begin_late(&range);
    find_linkers_blocks();
    for (unsigned i = 0; i < pm_heap.shards && ranges; i++)
        look_at_shard(&pm_heap.shard[i]);
    if (ranges)
        pm_roots_each_captured(look_at_root, NULL);
    pm_drain();
    if (done->changed)
        pm_rebased_count(&pm_heap.super->state, done->changed, pm_verdicts_other_build());
    if (done->changed || (pm_verdicts_left() >= LEFT_MOST && !done->unsure))
        pm_record_renew(pm_verdicts_kept());
}
