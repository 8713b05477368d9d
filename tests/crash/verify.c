// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "verify.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/options.h"
#include "blocks/population.h"
#include "blocks/verify.h"
#include "media/backing/fixed_format.h"
#include "media/fixed/fixed_make.h"
#include "media/log/log.h"
#include "pages/extent_take.h"
#include "preload/pmalloc.h"
#include "process/before_main.h"
#include "process/entry.h"
#include "process/open.h"
#include "process/start.h"
#include "recovery/offline.h"
#include "recovery/recover.h"
#include "roots/parts.h"
#include "roots/root_table.h"

struct captured crash_root_a __attribute__((aligned(4096)));
struct captured crash_root_b __attribute__((aligned(4096)));

static char *answer;
static size_t answer_len;

__attribute__((format(printf, 1, 2))) static void bad(const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (!answer[0])
        vsnprintf(answer, answer_len, format, args);
    va_end(args);
    _exit(1);
}

// ---- what is reachable --------------------------------------------------------------------------

#define REACHED 8192
static struct reached { uint64_t start, end; } reached[REACHED];
static unsigned reached_count;

// Finds the block at `offset` of the heap in a slab. True when it is allocated.
static bool slab_block(const struct pm_vslab *v, uint64_t offset, struct reached *found) {
    struct pm_slab_block b;
    if (!pm_slab_find(v, (uint32_t)(offset % PM_SLAB_SIZE), &b))
        return false;
    uint64_t start = pm_base + offset / PM_SLAB_SIZE * PM_SLAB_SIZE, size = pm_classes[b.cls].size;
    *found = (struct reached){start + b.index * size, start + (b.index + 1) * size};
    return (b.bits[b.index / 64] >> b.index % 64 & 1) == b.old;
}

static bool below_frontier(uint64_t offset) {
    const struct pm_shard *s = pm_shard_at(offset);
    return offset - s->offset < s->frontier;
}

static bool is_allocated(const void *p) {
    if (!pm_in_range(p) || !below_frontier(pm_heap_offset(p)) || (uintptr_t)p % 16)
        return false;
    const struct pm_vslab *v = &pm_vslabs[pm_slab_of(p)];
    if (v->size_class) {
        struct reached block;
        return slab_block(v, pm_heap_offset(p), &block) && block.start == (uintptr_t)p;
    }
    uint32_t index = *pm_page_extent(pm_heap_offset(p) >> PM_PAGE_SHIFT);
    const struct pm_extent *e = &pm_extents[index];
    return index && e->state == PM_EXTENT_ACTIVE && !e->slab && pm_extent_address(e) == p;
}

static void reach(const void *p, uint64_t size, const char *what) {
    if (!is_allocated(p))
        bad("%s at %p is reachable but not allocated", what, p);
    size_t usable = pm_usable_size((void *)(uintptr_t)p);
    if (usable < size)
        bad("%s at %p has %zu bytes, the program asked for %lu", what, p, usable,
            (unsigned long)size);
    if (reached_count == REACHED)
        bad("too many objects for the checker");
    reached[reached_count++] = (struct reached){(uintptr_t)p, (uintptr_t)p + usable};
}

// Whether the object was in realloc() and is gone already. It stays gone, even when another object
// takes its memory.
static bool gone_in_limbo(const struct object *o) {
    static bool gone[THREADS];
    for (unsigned i = 0; i < THREADS; i++)
        if (world->expect.limbo[i] == (uintptr_t)o) {
            gone[i] |= !is_allocated(o);
            return gone[i];
        }
    return false;
}

static void reach_objects(const struct object *o) {
    for (; o; o = o->link) {
        if (gone_in_limbo(o))
            return;
        reach(o, sizeof *o, "object");
        if (object_wrong(o))
            bad("object at %p: %s", (const void *)o, object_wrong(o));
        reached_count--;
        reach(o, o->size, "object");
    }
}

static void reach_table(const struct table *t) {
    if (!t)
        return;
    reach(t, sizeof *t, "table");
    if (t->magic != TABLE_MAGIC)
        bad("table at %p is gone", (const void *)t);
    for (uint64_t i = 0; i < t->count; i++)
        reach_objects(t->entry[i]);
}

static int by_start(const void *a, const void *b) {
    const struct reached *x = a, *y = b;
    return x->start < y->start ? -1 : x->start > y->start;
}

static void no_overlap(void) {
    qsort(reached, reached_count, sizeof reached[0], by_start);
    for (unsigned i = 1; i < reached_count; i++)
        if (reached[i].start < reached[i - 1].end)
            bad("two live objects overlap at %lx", (unsigned long)reached[i].start);
}

// ---- roots --------------------------------------------------------------------------------------

static bool has_root(const char *name) {
    const struct pm_root_table *t = &pm_heap.super->roots[pm_heap.super->state.root_epoch & 1];
    for (uint32_t i = 0; i < t->count; i++)
        if (strcmp(t->root[i].name, name) == 0)
            return true;
    return false;
}

static void restore_late(void) {
    struct pm_error err;
    if (pm_parts_when() && pm_roots_capture_late(&err) != PM_OK)
        bad("late roots: %s", err.text);
}

static void reach_captured(unsigned which, const char *name, const struct captured *c) {
    const struct expect *e = &world->expect;
    bool has = has_root(name);
    if (has ? !e->may_have[which] : !e->may_lack[which] && e->may_have[which])
        bad("root %s is %sregistered", name, has ? "" : "not ");
    if (!has)
        return;
    if (c->value != e->captured[which])
        bad("root %s holds %lu, the program stored %lu", name, (unsigned long)c->value,
            (unsigned long)e->captured[which]);
    reach_table(c->table);
}

// All of a publish is there, or none of it: `all` and `none` say which it may be.
static void check_published(const struct publish *p) {
    bool all = true, none = p->during;
    for (uint32_t i = 0; i < p->count; i++) {
        const struct published *s = &p->store[i];
        uint64_t value = published_value(s);
        all &= value == s->fresh;
        none &= value == s->old || (i < p->early && value == s->fresh);
        if (!all && !none)
            bad("store %u of %u of a publish holds %lx: %lx before, %lx after%s", i, p->count,
                (unsigned long)value, (unsigned long)s->old, (unsigned long)s->fresh,
                p->during ? "" : ", and the publish had returned");
    }
}

static void reach_all(void) {
    reached_count = 0;
    for (unsigned i = 0; i < THREADS; i++)
        check_published(&world->expect.publish[i]);
    for (unsigned slot = 0; slot < PROGRAM_SLOTS; slot++) {
        struct table *t = pmalloc_get_root(slot);
        const uint64_t *may = world->expect.slot[slot];
        if ((uintptr_t)t != may[0] && (uintptr_t)t != may[1])
            bad("root slot %u holds %p, which the program did not store", slot, (void *)t);
        reach_table(t);
    }
    reach_captured(0, "crash_root_a", &crash_root_a);
    reach_captured(1, "crash_root_b", &crash_root_b);
    no_overlap();
}

// ---- the allocator's books ----------------------------------------------------------------------

static void check_books(void) {
    struct pm_error err;
    if (pm_verify(true, &err) != PM_OK)
        bad("%s", err.text);
    if (pm_log_stats_sum().live != pm_extent_stats().active)
        bad("the logs have %lu extents, the heap %lu", (unsigned long)pm_log_stats_sum().live,
            (unsigned long)pm_extent_stats().active);
    for (unsigned i = 0; i < pm_heap.shards; i++) {
        const struct pm_file *data = &pm_heap.shard[i].data;
        if (pm_heap.shard[i].frontier != data->size ||
            (!world->fixed && lseek(data->fd, 0, SEEK_END) != (off_t)data->size))
            bad("%s is not as long as its shard", data->name);
    }
}

// Finds the allocated block that contains an address.
static bool block_at(uint64_t at, struct reached *block) {
    if (!pm_in_range((void *)(uintptr_t)at) || !below_frontier(at - pm_base))
        return false;
    const struct pm_vslab *v = &pm_vslabs[pm_slab_of((void *)(uintptr_t)at)];
    if (v->size_class)
        return slab_block(v, at - pm_base, block);
    uint64_t page = (at - pm_base) >> PM_PAGE_SHIFT;
    while (page && !*pm_page_extent(page))
        page--;
    const struct pm_extent *e = &pm_extents[*pm_page_extent(page)];
    uint64_t start = (uintptr_t)pm_extent_address(e);
    *block = (struct reached){start, start + pm_extent_bytes(e)};
    return at < block->end && is_allocated((void *)(uintptr_t)start);
}

// One past the end of a block names it, if nothing begins there.
static bool block_named(uint64_t word, struct reached *block) {
    return block_at(word, block) || (block_at(word - 1, block) && block->end == word);
}

static void add_block(uint64_t word) {
    struct reached block;
    if (!block_named(word, &block))
        return;
    for (unsigned i = 0; i < reached_count; i++)
        if (reached[i].start == block.start)
            return;
    if (reached_count < REACHED)
        reached[reached_count++] = block;
}

// Marking is conservative: bytes that an earlier process left in reused memory may look like
// pointers. Adds the blocks that only such words keep alive.
static void reach_leavings(void) {
    for (unsigned i = 0; i < reached_count; i++)
        for (uint64_t at = reached[i].start; at < reached[i].end; at += 8)
            add_block(*(const uint64_t *)(uintptr_t)at);
}

static bool is_reached(const void *p) {
    for (unsigned i = 0; i < reached_count; i++)
        if (reached[i].start == (uintptr_t)p)
            return true;
    return false;
}

static void check_type(const struct object *o, unsigned type) {
    if (type && !object_wrong(o) && type != object_type(o->size))
        bad("object at %p has type %u, and was made with %u", (void *)o, type,
            object_type(o->size));
}

static int add_loose(void *p, size_t size, unsigned flags, void *count) {
    (void)size;
    if (is_reached(p))
        check_type(p, PMALLOC_TYPE_OF(flags));
    if (!(flags & PMALLOC_PINNED) || is_reached(p))
        return 0;
    if (++*(uint64_t *)count > world->expect.loose)
        bad("pinned object at %p is allocated, and no entry has it", p);
    add_block((uintptr_t)p);
    return 0;
}

// Pinned blocks are alive although nothing reaches them. The program knows of those that it had not
// entered yet, or had not freed yet. Whatever their bytes look like, the collector scans them.
static void reach_loose(void) {
    uint64_t count = 0;
    pmalloc_walk(add_loose, &count);
}

static void check_live(void) {
    const struct pm_recovery *r = pm_process_recovery();
    if (world->expect.closed && pm_heap_has_roots() && !r->was_clean)
        bad("the heap was closed, but is not clean");
    if (!pm_heap_has_roots()) {
        if (pm_extent_stats().active)
            bad("a heap without roots is not empty");
        return;
    }
    if (r->uncollected) { // everything that the log and the slabs may hold is kept
        if (r->live_objects < reached_count)
            bad("%lu objects are kept, %u are reachable", (unsigned long)r->live_objects,
                reached_count);
        return;
    }
    uint64_t want = r->marked ? reached_count : world->expect.allocated;
    if (r->marked && r->live_objects > want) {
        reach_loose();
        reach_leavings();
        want = reached_count;
    }
    if (r->live_objects != want)
        bad("%lu objects are allocated after recovery, %lu should be",
            (unsigned long)r->live_objects, (unsigned long)want);
}

// ---- the heap at work ---------------------------------------------------------------------------

#define HELD 96
static struct object *held[HELD];
static uint64_t held_id;

// Few operations keep to cheap sizes; many operations (`all`) draw any size.
static uint64_t some_size(uint64_t *random, bool all) {
    switch (draw(random, 16)) {
    case 0:
        return OBJECT_MIN + draw(random, all ? 3u << 20 : 40000);
    case 1:
    case 2:
        return OBJECT_MIN + draw(random, all ? 100000 : 16384);
    case 3:
    case 4:
    case 5:
        return OBJECT_MIN + draw(random, all ? 16384 : 3000);
    default:
        return OBJECT_MIN + draw(random, 600);
    }
}

static void give_back(unsigned i) {
    if (held[i] && object_wrong(held[i]))
        bad("a new object at %p: %s", (void *)held[i], object_wrong(held[i]));
    pm_free(held[i]);
    held[i] = NULL;
}

// A fixed medium does not become larger.
static bool is_full(uint64_t size) {
    bool full = world->fixed;
    for (unsigned i = 0; i < pm_heap.shards; i++)
        full = full && pm_heap.shard[i].frontier + size + (4u << 20) > pm_heap.shard[i].limit;
    return full;
}

static void get(unsigned i, uint64_t size, bool zeroed) {
    struct object *o = held[i]  ? pm_realloc(held[i], size)
                       : zeroed ? pm_calloc(1, size)
                                : pm_malloc(size);
    if (!o && !is_full(size))
        bad("%s of %lu bytes failed", held[i] ? "realloc" : "malloc", (unsigned long)size);
    if (!o)
        return;
    for (uint64_t at = 0; !held[i] && zeroed && at < size; at++)
        if (((const char *)o)[at])
            bad("calloc of %lu bytes: byte %lu is not zero", (unsigned long)size,
                (unsigned long)at);
    object_fill(o, held[i] ? held[i]->id : ++held_id, size);
    held[i] = o;
}

static void work(uint32_t operations) {
    uint64_t random = world->seed ^ world->request.image;
    bool all = operations >= 500;
    uint64_t few[3]; // the sizes of a short run: each size needs a slab of its own
    for (unsigned i = 0; i < 3; i++)
        few[i] = some_size(&random, all);
    while (operations--) {
        unsigned i = (unsigned)draw(&random, HELD);
        uint64_t size = all ? some_size(&random, all) : few[draw(&random, 3)];
        if (held[i] && draw(&random, 4) != 0)
            give_back(i);
        else
            get(i, size, draw(&random, 4) == 0);
    }
    for (unsigned i = 0; i < HELD; i++) {
        if (!held[i])
            continue;
        uint64_t from = (uintptr_t)held[i];
        for (unsigned j = 0; j < reached_count; j++)
            if (from < reached[j].end && from + pm_usable_size(held[i]) > reached[j].start)
                bad("a new object at %lx overlaps one of the program's", (unsigned long)from);
    }
}

// The magic of the first medium comes last: so with it the others hold theirs.
static bool holds_heap(void) {
    uint64_t magic = 0;
    char path[192];
    medium_path(path, sizeof path, "image", 0);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool good = fd >= 0 && pread(fd, &magic, sizeof magic, 0) == sizeof magic;
    if (fd >= 0)
        close(fd);
    return good && magic == PM_LAYOUT_MAGIC;
}

// A medium may hold nothing until the tool has ended. Then it can be made again.
static bool is_no_heap(void) {
    struct pm_fixed_made made[MEDIA];
    struct pm_error err;
    char text[MEDIA][192];
    const char *path[MEDIA];
    const struct pm_fixed_wish wish = {.force = true};
    if (!world->fixed || holds_heap())
        return false;
    if (world->expect.made)
        bad("the medium holds no heap");
    world->request.reopen = false; // a name that is missing would become a directory
    for (unsigned i = 0; i < media_count(); i++) {
        medium_path(text[i], sizeof text[i], "image", i);
        path[i] = text[i];
        if (world->medium_bytes[i] < MEDIUM_BYTES)
            return true;
    }
    pm_options_default();
    if (pm_fixed_make(path, media_count(), &wish, made, &err) != PM_OK)
        bad("%s", err.text);
    pm_process_start();
    work(world->request.operations);
    check_books();
    return true;
}

static void open_image(void) {
    pm_process_start();
    if (has_root("crash_root_a") || has_root("crash_root_b")) {
        pm_process_before_main();
        restore_late();
    }
}

int verify_image(char *text, size_t len) {
    answer = text, answer_len = len;
    if (is_no_heap())
        return 0;
    open_image();
    reach_all();
    check_live();
    check_books();
    work(world->request.operations);
    reach_all(); // the program's objects have not changed
    for (unsigned i = 0; i < HELD; i++)
        give_back(i);
    check_books();
    if (world->request.reopen)
        pm_process_end();
    return 0;
}

int verify_again(char *text, size_t len) {
    answer = text, answer_len = len;
    open_image();
    if (pm_heap_has_roots() && !pm_process_recovery()->was_clean)
        bad("the heap was closed but is not clean");
    reach_all();
    if (pm_heap_has_roots() && pm_process_recovery()->live_objects < reached_count)
        bad("after a clean close %lu objects are allocated, %u are reachable",
            (unsigned long)pm_process_recovery()->live_objects, reached_count);
    check_books();
    return 0;
}

int verify_look(char *text, size_t len) {
    struct pm_error err;
    struct pm_recovery r;
    answer = text, answer_len = len;
    if (!world->expect.made && (world->fixed ? !holds_heap() : !world->shadow[F_SUPER].exists))
        return 0;
    pm_options_default();
    if (pm_offline_open(getenv("PMALLOC_HEAP"), PM_OPEN_READONLY, &err) != PM_OK ||
        pm_recover(&(struct pm_recover_options){.mark.markers = 1}, &r, &err) != PM_OK)
        bad("%s", err.text);
    return 0;
}
