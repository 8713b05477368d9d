// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "trace.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/os.h"
#include "base/own_memory.h"
#include "blocks/arena.h"
#include "blocks/population.h"
#include "large_index.h"
#include "media/heap_space.h"
#include "media/own_pages.h"
#include "pages/extent.h"

#ifndef COLLECT_STACK // tests make it small, so that it overflows
#define COLLECT_STACK ((size_t)1 << 26)
#endif
#define PIECE ((uint64_t)1 << 20) // longer ranges are scanned where they hold data
#define AHEAD 8u                  // blocks that are fetched ahead
#define BYTES_HIGH 0x8080808080808080ull

struct grey {
    uint64_t offset, size; // of a marked block, from pm_base
};

pm_trace_proc *pm_trace_procs[PM_TRACE_PROCS];

static uint64_t base, frontier; // copies of pm_base and of the end of the last shard
static struct grey *stack;
static size_t depth;
static bool overflowed; // marked blocks were not pushed: all marked blocks are scanned once more
static uint64_t self, self_size; // pointers into this block do not count

// ---- marks --------------------------------------------------------------------------------------

static inline void mark(uint64_t offset, uint64_t size) {
    uint8_t *byte = pm_col_of(offset);
    if (!(*byte & PM_COL_MORTAL) || *byte & PM_COL_MARK)
        return;
    *byte |= PM_COL_MARK;
    const struct pm_col_kind *kind = &pm_col_kinds[*byte & PM_COL_KIND];
    if (!kind->descriptor && !kind->add_size)
        return;
    if (depth == COLLECT_STACK) {
        overflowed = true;
        return;
    }
    stack[depth++] = (struct grey){offset, size};
}

static inline void consider_slab(const struct pm_vslab *v, uint64_t slab, uint32_t offset) {
    unsigned cls = v->size_class;
    if (__builtin_expect(!v->old_class, 1)) {
        unsigned i = pm_block_index(cls, offset);
        if (i < pm_classes[cls].blocks)
            mark(slab + (uint64_t)i * pm_classes[cls].size, pm_classes[cls].size);
        return;
    }
    struct pm_slab_block b;
    if (pm_slab_find(v, offset, &b))
        mark(slab + (uint64_t)b.index * pm_classes[b.cls].size, pm_classes[b.cls].size);
}

static inline void consider(uint64_t word) {
    uint64_t offset = word - base;
    if (__builtin_expect(offset >= frontier, 1) || offset - self < self_size)
        return;
    const struct pm_vslab *v = &pm_vslabs[offset >> PM_SLAB_SHIFT];
    uint32_t in_slab = (uint32_t)(offset & (PM_SLAB_SIZE - 1));
    if (v->size_class) {
        consider_slab(v, offset - in_slab, in_slab);
        return;
    }
    uint32_t i = pm_large_index_find(offset);
    if (i)
        mark(pm_extents[i].page << PM_PAGE_SHIFT, pm_extent_bytes(&pm_extents[i]));
}

// ---- scanning -----------------------------------------------------------------------------------

static void scan_words(const void *bytes, uint64_t len) {
    const uint64_t *word = bytes, *end = word + len / sizeof *word;
    for (; word < end; word++)
        consider(__atomic_load_n(word, __ATOMIC_RELAXED));
}

static void scan_own(char *at, size_t len, void *unused) {
    (void)unused;
    scan_words(at, len);
}

// A large block may be mostly memory that was never stored to. Reading it would take memory.
static void scan_large(uint64_t at, uint64_t len) {
    struct pm_written known = {0, 0};
    uint64_t end = at + len;
    if (pm_heap_state() == PM_HEAP_VOLATILE) {
        pm_own_pages(pm_heap_at(at), len & ~(PM_PAGE_SIZE - 1), scan_own, NULL);
        uint64_t rest = len & (PM_PAGE_SIZE - 1);
        scan_words(pm_heap_at(end - rest), rest);
        return;
    }
    for (; at < end && (len = pm_heap_next_data(&known, &at, end)) != 0; at += len)
        scan_words(pm_heap_at(at), len);
}

static inline void scan_bytes(uint64_t offset, uint64_t len) {
    if (__builtin_expect(len > PIECE, 0))
        scan_large(offset, len);
    else
        scan_words(pm_heap_at(offset), len);
}

static void scan_bitmap(uint64_t offset, uint64_t size, uint64_t bits) {
    const uint64_t *word = pm_heap_at(offset);
    for (bits &= ~3ull; bits && size >= sizeof *word; bits <<= 1, word++, size -= sizeof *word)
        if (bits >> 63)
            consider(__atomic_load_n(word, __ATOMIC_RELAXED));
}

// What a type's table says of a block that is just being filled: nothing yet.
static uint64_t descriptor_in(uint64_t offset, uint64_t descriptor) {
    const char *block = pm_heap_at(offset);
    uint64_t found = 0;
    if ((int64_t)descriptor >= 0) {
        memcpy(&found, block + (descriptor & ~3ull), sizeof found);
        return found;
    }
    const char *type;
    memcpy(&type, block, sizeof type);
    if (type)
        memcpy(&found, type - (int64_t)(descriptor - PM_TRACE_PER_OBJECT + PM_TRACE_INDIRECT_BIAS),
               sizeof found);
    return found;
}

static void scan_as(uint64_t offset, uint64_t size, uint64_t descriptor) {
    if ((descriptor & 3) == PM_TRACE_PER_OBJECT)
        descriptor = descriptor_in(offset, descriptor);
    unsigned proc = (unsigned)(descriptor >> 2) % PM_TRACE_PROCS;
    switch (descriptor & 3) {
    case PM_TRACE_LENGTH:
        scan_bytes(offset, descriptor < size ? descriptor : size);
        break;
    case PM_TRACE_BITMAP:
        scan_bitmap(offset, size, descriptor);
        break;
    case PM_TRACE_PROC:
        if (pm_trace_procs[proc])
            pm_trace_procs[proc](pm_heap_at(offset), stack, stack + 1, descriptor >> 8);
        break;
    default: // a descriptor that leads to another one: none does
        scan_bytes(offset, size);
    }
}

static void scan_block(uint64_t offset, uint64_t size) {
    uint8_t byte = *pm_col_of(offset);
    const struct pm_col_kind *kind = &pm_col_kinds[byte & PM_COL_KIND];
    if (byte & PM_COL_OWNED)
        scan_as(offset, size, kind->descriptor + (kind->add_size ? size : 0));
    else
        scan_bytes(offset, size);
}

// A few blocks wait in a ring, so that each has time to come from memory.
static void work_off(void) {
    struct grey ring[AHEAD];
    unsigned first = 0, waiting = 0;
    while (depth || waiting) {
        for (; waiting < AHEAD && depth; waiting++) {
            struct grey g = stack[--depth];
            __builtin_prefetch((const void *)(base + g.offset));
            ring[(first + waiting) % AHEAD] = g;
        }
        struct grey g = ring[first];
        first = (first + 1) % AHEAD;
        waiting--;
        scan_block(g.offset, g.size);
    }
}

// ---- all blocks ---------------------------------------------------------------------------------

typedef void each_fn(uint64_t offset, uint64_t size);

static uint64_t load(const uint8_t *at) {
    uint64_t eight;
    memcpy(&eight, at, sizeof eight);
    return eight;
}

// The high bit of each byte that is not 0.
static inline uint64_t not_zero(uint64_t x) { return ((x & ~BYTES_HIGH) + ~BYTES_HIGH) | x; }

// Of eight blocks that may start in a row, the high bit of each byte that counts: those that have a
// mark, or the roots, which are all blocks in use that are not mortal.
static inline uint64_t marked_of(uint64_t tags, uint64_t bytes) {
    (void)tags;
    return bytes & BYTES_HIGH;
}
static inline uint64_t roots_of(uint64_t tags, uint64_t bytes) {
    return not_zero(tags) & ~(bytes << 2) & BYTES_HIGH; // PM_COL_MORTAL is bit 5
}
_Static_assert(PM_COL_MARK == 0x80 && PM_COL_MORTAL << 2 == 0x80, "see above");

typedef uint64_t of_fn(uint64_t tags, uint64_t bytes);

static inline void each_in_run(uint64_t first, of_fn *of, each_fn *each) {
    for (uint64_t i = first; i < first + PM_TAG_RUN; i += 8) {
        for (uint64_t found = of(load(&pm_tag[i]), load(&pm_col[i])); found; found &= found - 1) {
            uint64_t at = pm_tag_granule(i + (uint64_t)__builtin_ctzll(found) / 8)
                          << PM_GRANULE_SHIFT;
            struct pm_slab_block b;
            if (pm_slab_find(&pm_vslabs[at >> PM_SLAB_SHIFT], (uint32_t)(at % PM_SLAB_SIZE), &b))
                each(at, pm_classes[b.cls].size);
        }
    }
}

static inline void each_in_slab(uint64_t slab, of_fn *of, each_fn *each) {
    unsigned rows = pm_slab_stride(&pm_vslabs[slab]) >> PM_GRANULE_SHIFT;
    for (unsigned row = 0; row < PM_TAG_ROWS; row += rows)
        each_in_run(pm_tag_run(slab, row), of, each);
}

static inline void each_block(of_fn *of, each_fn *each) {
    for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;) {
        const struct pm_extent *e = &pm_extents[i];
        if (e->slab)
            each_in_slab(pm_extent_slab(e), of, each);
        else if (of(*pm_tag_of_page(e->page), *pm_col_of(e->page << PM_PAGE_SHIFT)))
            each(e->page << PM_PAGE_SHIFT, pm_extent_bytes(e));
    }
}

static void scan_root(uint64_t offset, uint64_t size) {
    const struct pm_vslab *v = &pm_vslabs[offset >> PM_SLAB_SHIFT];
    enum pm_kind kind = v->size_class ? (enum pm_kind)v->kind
                                      : (enum pm_kind)pm_extents[pm_large_index_find(offset)].kind;
    if (!*pm_col_of(offset) && kind == PM_KIND_POINTER_FREE)
        return;
    scan_block(offset, size);
    work_off();
}

void pm_trace_explicit(void) { each_block(roots_of, scan_root); }

static void scan_again(uint64_t offset, uint64_t size) {
    scan_block(offset, size);
    work_off();
}

// ---- begin, mark, end ---------------------------------------------------------------------------

int pm_trace_begin(struct pm_error *err) {
    base = pm_base;
    frontier = pm_shard_end(&pm_heap.shard[pm_heap.shards - 1]) << PM_PAGE_SHIFT;
    depth = 0;
    overflowed = false;
    if (!stack)
        stack = pm_own_reserve(COLLECT_STACK * sizeof *stack);
    if (!stack || !pm_large_index_make(frontier))
        return pm_fail(err, PM_OPERATIONAL, "no memory to mark with: %s", pm_strerror(errno));
    for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;)
        if (pm_extents[i].slab && pm_vslabs[pm_extent_slab(&pm_extents[i])].untagged)
            pm_arena_write_tags(pm_extent_slab(&pm_extents[i]));
    return PM_OK;
}

void pm_trace_range(const void *from, size_t len) {
    uint64_t skip = -(uint64_t)(uintptr_t)from & 7;
    if (len > skip)
        scan_words((const char *)from + skip, len - skip);
    work_off();
}

void pm_trace_pointer(const void *p) { consider((uintptr_t)p); }

void pm_trace_children(const void *block, bool not_itself) {
    struct pm_col_block b;
    if (!pm_col_find(block, &b))
        return;
    uint64_t offset = pm_heap_offset(b.base);
    self = not_itself ? offset : 0;
    self_size = not_itself ? b.size : 0;
    scan_block(offset, b.size);
    self_size = 0;
    work_off();
}

void pm_trace_only(const void *p) {
    struct pm_col_block b;
    if (pm_col_find(p, &b) && b.byte & PM_COL_MORTAL)
        *pm_col_of(pm_heap_offset(b.base)) |= PM_COL_MARK;
}

// Marks are only ever set, so this ends.
void pm_trace_all(void) {
    work_off();
    while (overflowed) {
        overflowed = false;
        each_block(marked_of, scan_again);
    }
}

bool pm_trace_is_alive(const void *p) {
    struct pm_col_block b;
    return !pm_col_find(p, &b) || !(b.byte & PM_COL_MORTAL) || b.byte & PM_COL_MARK;
}

void pm_trace_end(void) { pm_large_index_drop(); }
