// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "mark.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/bits.h"
#include "base/nodes.h"
#include "base/os.h"
#include "blocks/holes.h"
#include "blocks/population.h"
#include "mark_index.h"
#include "marking/behind.h"
#include "marking/crew.h"
#include "marking/forms.h"
#include "media/backing/backing.h"
#include "media/backing/snapshot.h"
#include "pages/extent.h"
#include "workers.h"

// The protocol of gc/marking/crew.h. Here a mark is a bit. One marker alone sets it with a plain
// store. Several markers use fetch-or; the one that sets the bit pushes, so every object is pushed
// once. If a stack is full, the range is dropped and its stripe is noted. At the end, the marked
// objects of noted stripes are scanned again, until no stripe is noted. Marks are only ever set, so
// this ends.

#ifndef PM_MARK_STACK // tests make it small, so that it overflows
#define PM_MARK_STACK 32768u
#endif
#define POOL 8192u
#define PIECE ((uint64_t)256 << 10) // longer ranges are scanned in pieces, holes left out
#define PROGRESS ((uint64_t)64 << 20)

static struct pm_crew crew;
static struct pm_worker worker[PM_CREW_MAX];
static pm_progress *progress;
static uint64_t reported; // how much of what the first marker scanned
static _Atomic bool overflowed;
static void *memory; // the crew's
static size_t memory_bytes;

// ---- pushing ------------------------------------------------------------------------------------

static void push(struct pm_marker *m, uint64_t offset, uint64_t len) {
    if (__builtin_expect(pm_crew_push(m, offset, len), 1))
        return;
    __atomic_store_n(&pm_marks.noted[offset >> PM_SLAB_SHIFT], 1, __ATOMIC_RELAXED);
    atomic_store_explicit(&overflowed, true, memory_order_relaxed);
}

// Sets a mark. Returns whether this call set it.
static bool set_bit(uint64_t *word, uint64_t bit) {
    if (__atomic_load_n(word, __ATOMIC_RELAXED) & bit)
        return false;
    if (!crew.parallel) {
        *word |= bit;
        return true;
    }
    return !(__atomic_fetch_or(word, bit, __ATOMIC_RELAXED) & bit);
}

static bool set_large_mark(struct pm_large *l) {
    return !__atomic_load_n(&l->marked, __ATOMIC_RELAXED) &&
           !__atomic_exchange_n(&l->marked, 1, __ATOMIC_RELAXED);
}

static inline void consider(struct pm_marker *m, uint64_t word);

// A word that leads into the heap, but to no block there. If it is one past the end of a block, it
// keeps that one.
__attribute__((noinline)) static void consider_end(struct pm_marker *m, uint64_t offset) {
    if (offset && pm_may_be_end(offset))
        consider(m, pm_marks.base + offset - 1);
}

static void consider_mixed(struct pm_marker *m, uint64_t offset) {
    const struct pm_vslab *v = &pm_vslabs[offset >> PM_SLAB_SHIFT];
    struct pm_slab_block block;
    if (!pm_slab_find(v, (uint32_t)(offset & (PM_SLAB_SIZE - 1)), &block)) {
        consider_end(m, offset);
        return;
    }
    if (!set_bit(&block.bits[block.index / 64], 1ull << block.index % 64) ||
        !pm_kind_has_pointers(v->kind))
        return;
    uint32_t size = pm_classes[block.cls].size;
    push(m, (offset & ~(uint64_t)(PM_SLAB_SIZE - 1)) + (uint64_t)block.index * size, size);
}

static void consider_large(struct pm_marker *m, uint64_t offset) {
    struct pm_large *l = pm_mark_large_at(offset);
    if (!l)
        consider_end(m, offset);
    else if (!l->pinned && set_large_mark(l) && !l->pointer_free)
        push(m, l->page << PM_PAGE_SHIFT, (uint64_t)l->pages << PM_PAGE_SHIFT);
}

__attribute__((noinline)) static void consider_other(struct pm_marker *m, uint64_t offset,
                                                     uint32_t kind) {
    if (kind == PM_STRIPE_MIXED)
        consider_mixed(m, offset);
    else if (!kind && pm_vslabs[offset >> PM_SLAB_SHIFT].size_class)
        return; // pinned, and free of pointers: nothing to mark, but blocks begin there
    else if (!kind)
        consider_end(m, offset);
    else if (kind != PM_STRIPE_PINNED) // what is pinned is marked, or free
        consider_large(m, offset);
}

// How far into its block the byte is; UINT64_MAX: it lies in none. A slab that is treated as one
// large block (mark_index.h) does not say where its blocks begin.
static uint64_t depth_of(uint64_t offset) {
    uint32_t slab = (uint32_t)(offset >> PM_SLAB_SHIFT), kind = pm_marks.kind[slab];
    uint32_t in_slab = (uint32_t)(offset & (PM_SLAB_SIZE - 1));
    struct pm_slab_block block;
    if (kind - 1 < PM_CLASSES)
        return in_slab - pm_block_index(kind, in_slab) * pm_classes[kind].size;
    if (kind == PM_STRIPE_MIXED)
        return pm_slab_find(&pm_vslabs[slab], in_slab, &block)
                   ? in_slab - block.index * pm_classes[block.cls].size
                   : UINT64_MAX;
    const struct pm_large *l = kind >= PM_STRIPE_LARGE ? pm_mark_large_at(offset) : NULL;
    return !l ? UINT64_MAX : l->mixed ? 0 : offset - (l->page << PM_PAGE_SHIFT);
}

// A word with something else in its upper bits must name the start of a block (forms.h).
__attribute__((noinline)) static void consider_tagged(struct pm_marker *m, uint64_t word) {
    uint64_t address = pm_untagged(word), offset = address - pm_marks.base;
    if (pm_forms & PM_FORM_TAGGED && offset < pm_marks.frontier && depth_of(offset) < PM_LOW_TAGS)
        consider(m, address);
}

static inline void consider(struct pm_marker *m, uint64_t word) {
    uint64_t offset = word - pm_marks.base;
    if (offset >= pm_marks.frontier) {
        if (word >> PM_TAG_SHIFT)
            consider_tagged(m, word);
        else if (offset == pm_marks.frontier)
            consider_end(m, offset);
        return;
    }
    uint32_t slab = (uint32_t)(offset >> PM_SLAB_SHIFT), kind = pm_marks.kind[slab];
    if (kind - 1 >= PM_CLASSES) {
        consider_other(m, offset, kind);
        return;
    }
    const struct pm_class *cls = &pm_classes[kind];
    uint32_t index = (uint32_t)((offset & (PM_SLAB_SIZE - 1)) * cls->reciprocal >> 32);
    if (__builtin_expect(index >= cls->blocks, 0))
        consider_end(m, offset);
    else if (set_bit(&pm_mark_bits(slab, kind)[index / 64], 1ull << index % 64)) {
        uint64_t block = ((uint64_t)slab << PM_SLAB_SHIFT) + (uint64_t)index * cls->size;
        __builtin_prefetch(pm_marks.bytes + block); // while the rest of its finder is scanned
        push(m, block, cls->size);
    }
}

// Stray words are counted rarely, and forms that cost time are looked for rarely. So each of both
// goes over an object once more, before marking does, and marking is not slowed down.
static bool slow;
static struct pm_stray *stray; // NULL: nothing is counted
static uint64_t moved;         // from where bytes are read to where the program has them

static void consider_address(void *marker, uint64_t address) {
    if (!(address >> PM_TAG_SHIFT))
        consider(marker, address);
}

static struct pm_behind behind;

static bool is_of_class(uint64_t offset, unsigned cls) {
    uint32_t slab = (uint32_t)(offset >> PM_SLAB_SHIFT), kind = pm_marks.kind[slab];
    struct pm_slab_block block;
    return kind == cls ||
           (kind == PM_STRIPE_MIXED &&
            pm_slab_find(&pm_vslabs[slab], (uint32_t)(offset & (PM_SLAB_SIZE - 1)), &block) &&
            block.cls == cls);
}

static void consider_before(void *marker, uint64_t address) {
    pm_behind_each(&behind, address, is_of_class, marker, consider_address);
}

__attribute__((noinline)) static void scan_slowly(struct pm_marker *m, const void *bytes,
                                                  uint64_t len) {
    const uint64_t *word = bytes;
    if (stray)
        pm_stray_count(stray, word, word + len / sizeof *word);
    if (pm_forms & PM_FORMS_COSTLY)
        pm_forms_each(bytes, len, (uintptr_t)bytes + moved, pm_marks.base, m, consider_address,
                      consider_before);
}

static void scan_words(struct pm_marker *m, const void *bytes, uint64_t len) {
    const uint64_t *word = bytes, *end = word + len / sizeof *word;
    const struct pm_high_halves high = pm_marks.high;
    if (__builtin_expect(slow, 0))
        scan_slowly(m, bytes, len);
    for (; end - word >= 4; word += 4)
        for (unsigned near = pm_words_near(word, high); near; near &= near - 1)
            consider(m, word[__builtin_ctz(near)]);
    for (; word < end; word++)
        consider(m, *word);
    m->scanned += len;
}

// A snapshot notes a page that it cannot read, and the collection ends.
static inline void scan_heap(struct pm_marker *m, uint64_t offset, uint64_t len) {
    const char *bytes = pm_marks.bytes + offset;
    if (__builtin_expect(!pm_marks.beside, 1) || pm_snapshot_load(bytes, len))
        scan_words(m, bytes, len);
}

static uint64_t next_data(struct pm_marker *m, uint64_t *offset, uint64_t end) {
    return pm_marks.beside ? pm_snapshot_next_data(&m->known, offset, end)
                           : pm_heap_next_data(&m->known, offset, end);
}

// Scans the first piece of a long range and pushes the rest. Skips what was never written, because
// reading a hole would fill it with memory.
static void scan_piece(struct pm_marker *m, uint64_t offset, uint64_t len) {
    uint64_t end = offset + len;
    uint64_t data_len = next_data(m, &offset, end);
    if (data_len == 0)
        return;
    uint64_t piece = data_len < PIECE ? data_len : PIECE;
    if (offset + piece < end)
        push(m, offset + piece, end - offset - piece);
    scan_heap(m, offset, piece + (piece < data_len ? PM_FORMS_OVERLAP : 0));
}

// Scans a block in a slab with holes, page by page, and does not read the holes.
__attribute__((noinline)) static void scan_pages(struct pm_marker *m, struct pm_range r,
                                                 uint16_t holes) {
    for (uint64_t at = r.offset, end = r.offset + r.len, to; at < end; at = to) {
        to = (at | (PM_PAGE_SIZE - 1)) + 1;
        to = to < end ? to : end;
        unsigned page = (unsigned)((at & (PM_SLAB_SIZE - 1)) >> PM_PAGE_SHIFT);
        bool overlaps = to < end && !(holes >> (page + 1) & 1);
        if (!(holes >> page & 1))
            scan_heap(m, at, to - at + (overlaps ? PM_FORMS_OVERLAP : 0));
    }
}

// The holes of the slab that a range lies in.
static uint16_t holes_around(struct pm_range r) {
    uint32_t slab = (uint32_t)(r.offset >> PM_SLAB_SHIFT), kind = pm_marks.kind[slab];
    return kind - 1 < PM_STRIPE_MIXED ? pm_mark_holes(slab) : 0;
}

static void scan(struct pm_marker *m, struct pm_range r);

static void scan_population(struct pm_marker *m, uint32_t slab, unsigned cls,
                            const uint64_t *bits) {
    uint32_t size = pm_classes[cls].size;
    for (unsigned i = 0; i < pm_classes[cls].blocks; i++)
        if (pm_bit(bits, i))
            scan(m,
                 (struct pm_range){((uint64_t)slab << PM_SLAB_SHIFT) + (uint64_t)i * size, size});
}

// All pinned blocks of a slab are one range.
static void scan_pinned(struct pm_marker *m, uint64_t offset) {
    uint32_t slab = (uint32_t)(offset >> PM_SLAB_SHIFT), cls = pm_vslabs[slab].size_class;
    scan_population(m, slab, cls, pm_mark_bits(slab, cls));
}

static void scan(struct pm_marker *m, struct pm_range r) {
    uint16_t holes;
    if (r.len > PIECE)
        scan_piece(m, r.offset, r.len);
    else if (r.len == PM_SLAB_SIZE && pm_marks.kind[r.offset >> PM_SLAB_SHIFT] == PM_STRIPE_PINNED)
        scan_pinned(m, r.offset);
    else if (pm_holes_found && (r.len >= PM_HOLES_FROM || pm_extent_may_be_bare(r.offset)) &&
             (holes = holes_around(r)) != 0)
        scan_pages(m, r, holes);
    else
        scan_heap(m, r.offset, r.len);
}

// ---- the markers --------------------------------------------------------------------------------

static void report(struct pm_marker *m) {
    reported = m->scanned;
    if (progress)
        progress("mark", m->scanned * crew.markers, pm_marks.frontier);
}

static void scan_and_report(struct pm_marker *m, struct pm_range r) {
    scan(m, r);
    if (m == crew.marker && m->scanned - reported > PROGRESS)
        report(m);
}

static void work_off(struct pm_marker *m) { pm_crew_work_off(m, pm_marks.bytes, scan_and_report); }

static void *run_marker(void *arg) {
    unsigned number = (unsigned)((struct pm_marker *)arg - crew.marker);
    pm_node_stay(number);
    pm_crew_follow(&crew, number);
    return NULL;
}

static bool start_marker(unsigned number) {
    return pm_worker_start(&worker[number], run_marker, &crew.marker[number]);
}

static void join_marker(unsigned number) { pm_worker_join(&worker[number]); }

// ---- overflow -----------------------------------------------------------------------------------

static void rescan_mixed(struct pm_marker *m, uint32_t slab) {
    struct pm_population population[2];
    unsigned count = pm_slab_populations(&pm_vslabs[slab], population);
    for (unsigned i = 0; i < count && pm_kind_has_pointers(pm_vslabs[slab].kind); i++)
        scan_population(m, slab, population[i].cls, population[i].bits);
}

// The dropped range may be a piece of a block that reaches to its end. So the block is scanned
// again from this stripe to its end.
static void rescan_large(struct pm_marker *m, uint64_t stripe, uint32_t number) {
    uint64_t from = stripe << PM_SLAB_SHIFT, to = from + PM_SLAB_SIZE;
    for (; number < pm_marks.larges; number++) {
        const struct pm_large *l = &pm_marks.large[number];
        uint64_t start = l->page << PM_PAGE_SHIFT, end = (l->page + l->pages) << PM_PAGE_SHIFT;
        if (start >= to)
            return;
        uint64_t at = start > from ? start : from;
        for (uint64_t len;
             l->marked && !l->pointer_free && at < end && (len = next_data(m, &at, end)) != 0;
             at += len)
            scan_heap(m, at, len);
    }
}

static uint64_t next_noted; // no stripe before it is noted, but those that were noted since

// Scans the marked objects of the next noted stripe. False: there is none.
static bool rescan(struct pm_marker *m) {
    while (next_noted < pm_marks.stripes && !pm_marks.noted[next_noted])
        next_noted++;
    if (next_noted >= pm_marks.stripes)
        return false;
    uint64_t stripe = next_noted++;
    pm_marks.noted[stripe] = 0;
    uint32_t slab = (uint32_t)stripe, kind = pm_marks.kind[stripe];
    if (kind >= PM_STRIPE_LARGE)
        rescan_large(m, stripe, kind - PM_STRIPE_LARGE);
    else if (kind == PM_STRIPE_MIXED)
        rescan_mixed(m, slab);
    else if (kind == PM_STRIPE_PINNED)
        scan_pinned(m, stripe << PM_SLAB_SHIFT);
    else if (kind)
        scan_population(m, slab, kind, pm_mark_bits(slab, kind));
    return true;
}

// ---- begin, run, end ----------------------------------------------------------------------------

// Pinned blocks are roots. Beside the program their slabs may soon be others, so they are scanned
// now, before the program runs, and are then ignored.
static void push_pinned_slab(struct pm_marker *m, uint32_t slab) {
    if (pm_marks.kind[slab] == PM_STRIPE_PINNED && !pm_marks.beside) {
        push(m, (uint64_t)slab << PM_SLAB_SHIFT, PM_SLAB_SIZE);
    } else if (pm_marks.kind[slab] == PM_STRIPE_PINNED) {
        scan_pinned(m, (uint64_t)slab << PM_SLAB_SHIFT);
        pm_marks.kind[slab] = 0;
    }
}

static void push_pinned(void) {
    struct pm_marker *m = crew.marker;
    if (!(pm_heap.super->super.incompat & PM_INCOMPAT_PINNED))
        return;
    for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;)
        if (pm_extents[i].slab)
            push_pinned_slab(m, pm_extent_slab(&pm_extents[i]));
    for (uint32_t i = 0; i < pm_marks.larges; i++) {
        const struct pm_large *l = &pm_marks.large[i];
        if (l->pinned && l->marked && !l->pointer_free)
            push(m, l->page << PM_PAGE_SHIFT, (uint64_t)l->pages << PM_PAGE_SHIFT);
    }
}

// Words that are neither to be counted nor to be looked at in other forms are scanned fast.
static void set_pace(struct pm_stray *counted, uint64_t from, uint64_t to) {
    stray = counted;
    moved = to - from;
    slow = stray || pm_forms & PM_FORMS_COSTLY;
}

static void set_pace_of_blocks(struct pm_stray *counted) {
    set_pace(counted, (uintptr_t)pm_marks.bytes, pm_marks.base);
}

int pm_mark_begin(const struct pm_mark_options *options, struct pm_error *err) {
    progress = options->progress;
    unsigned markers = options->beside ? 1 : options->markers ? options->markers : pm_nodes_cores();
    markers = markers < PM_CREW_MAX ? markers : PM_CREW_MAX;
    overflowed = false;
    reported = 0;
    memory_bytes = pm_crew_bytes(markers, PM_MARK_STACK, POOL);
    memory = pm_os_reserve(memory_bytes);
    if (!memory)
        return pm_fail(err, PM_OPERATIONAL, "%s: no memory to mark with: %s", pm_heap.dir,
                       pm_strerror(errno));
    crew = (struct pm_crew){.work = work_off, .start = start_marker, .join = join_marker};
    pm_crew_make(&crew, memory, markers, PM_MARK_STACK, POOL);
    next_noted = UINT64_MAX;
    int status = pm_mark_index_make(options->beside, options->held, err);
    set_pace_of_blocks(options->stray);
    if (status == PM_OK && !pm_behind_make(&behind))
        status = pm_fail(err, PM_OPERATIONAL, "%s: no memory to mark with: %s", pm_heap.dir,
                         pm_strerror(errno));
    if (status == PM_OK)
        push_pinned();
    return status;
}

// Of a slot nobody knows where it lies, so it has no distance.
void pm_mark_root(const struct pm_root_bytes *root, void *unused) {
    (void)unused;
    // A root may start at any byte. Pointers in it are aligned words.
    uintptr_t bytes = (uintptr_t)root->bytes;
    uint64_t skip = -(uint64_t)bytes & 7;
    struct pm_stray *counted = stray;
    set_pace(root->restored ? stray : NULL, bytes, root->address ? root->address : bytes);
    if (root->len > skip)
        scan_words(crew.marker, (const char *)root->bytes + skip, root->len - skip);
    if (skip && pm_forms & PM_FORM_UNALIGNED)
        pm_forms_each(root->bytes, root->len, bytes + moved, pm_marks.base, crew.marker,
                      consider_address, consider_before);
    set_pace_of_blocks(counted);
}

void pm_mark_block(const void *block, uint64_t len) {
    push(crew.marker, pm_heap_offset(block), len);
    work_off(crew.marker);
}

uint64_t pm_mark_run(void) {
    uint64_t overflows = 0;
    pm_crew_run(&crew);
    if (stray)
        stray->counted = true;
    if (stray && !stray->found)
        set_pace_of_blocks(NULL); // what is scanned again has been counted already
    while (atomic_exchange_explicit(&overflowed, false, memory_order_relaxed)) {
        overflows++;
        for (next_noted = 0; rescan(crew.marker);)
            work_off(crew.marker);
    }
    return overflows;
}

void pm_mark_again(void) {
    memset(pm_marks.noted, 1, pm_marks.stripes);
    overflowed = true;
    set_pace_of_blocks(stray && stray->found ? stray : NULL);
}

bool pm_mark_some(uint64_t bytes) {
    struct pm_marker *m = crew.marker;
    m->pause_at = m->scanned + bytes;
    while (m->scanned < m->pause_at) {
        work_off(m);
        if (m->count || m->ring_count || rescan(m))
            continue;
        if (!atomic_exchange_explicit(&overflowed, false, memory_order_relaxed))
            return false;
        next_noted = 0;
    }
    return true;
}

void pm_mark_end(void) {
    if (!pm_marks.beside)
        pm_mark_index_publish();
    munmap(memory, memory_bytes);
    crew.marker = NULL;
    pm_behind_drop(&behind);
    pm_mark_index_drop();
}
