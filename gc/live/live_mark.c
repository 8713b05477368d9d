// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "live_mark.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/os.h"
#include "helpers.h"
#include "scan.h"

#ifndef LIVE_STACK // tests make these small
#define LIVE_STACK 32768u
#define LIVE_POOL (1u << 20)
#define ALONE PM_SCAN_ALONE
#endif

static struct pm_crew crew;
static void *memory; // the crew's
static size_t memory_bytes;
static struct {
    uint64_t *word;
    uint64_t end; // the bytes of the heap that they are for
} marks;
#define WORD_SHIFT (PM_GRANULE_SHIFT + 6) // the bytes of the heap that a word is for
static struct {
    uint64_t *offset;
    size_t count, room;
    struct pm_live_sum in_use;
} noted;
static _Atomic bool overflowed; // ranges were not pushed: all marked blocks are scanned once more

// ---- marks --------------------------------------------------------------------------------------

static uint8_t *tag_of(uint64_t offset) {
    return &pm_tag[pm_tag_index(offset >> PM_GRANULE_SHIFT)];
}

static bool is_marked(uint64_t offset) {
    return offset < marks.end &&
           __atomic_load_n(&marks.word[offset >> WORD_SHIFT], __ATOMIC_RELAXED) >>
                   (offset >> PM_GRANULE_SHIFT & 63) &
               1;
}

// False: it has a mark.
static bool set_mark(uint64_t offset) {
    uint64_t *word = &marks.word[offset >> WORD_SHIFT];
    uint64_t bit = (uint64_t)1 << (offset >> PM_GRANULE_SHIFT & 63);
    return !(__atomic_load_n(word, __ATOMIC_RELAXED) & bit ||
             __atomic_fetch_or(word, bit, __ATOMIC_RELAXED) & bit);
}

// Marks the block that begins at `offset`, if it is in use and has no mark.
static void reach(struct pm_marker *m, uint64_t offset, uint64_t len) {
    if (offset >= marks.end || *tag_of(offset) == PM_TAG_NONE || !set_mark(offset))
        return;
    while (!pm_crew_push(m, offset, len))
        if (!pm_crew_give(m)) {
            atomic_store_explicit(&overflowed, true, memory_order_relaxed);
            return;
        }
}

static inline void found(struct pm_marker *m, uint64_t offset, uint64_t len) {
    pm_scan_found(m, tag_of(offset), offset, len, reach);
}

// ---- scanning -----------------------------------------------------------------------------------

static void scan_words(struct pm_marker *m, const void *bytes, uint64_t len) {
    pm_scan_words(m, bytes, len, found);
}

static void scan(struct pm_marker *m, struct pm_range r) {
    if (r.len > PM_STEP)
        pm_scan_long(m, r.offset, r.len, scan_words);
    else
        pm_scan_words(m, pm_heap_at(r.offset), r.len & ~(uint64_t)PM_WRITTEN, found); // inline
}

static void work_off(struct pm_marker *m) {
    do
        pm_crew_work_off(m, (const char *)pm_scan.base, scan);
    while (m->scanned < m->pause_at && pm_scan_rest(m, reach));
}

// ---- all blocks in use --------------------------------------------------------------------------

typedef void each_fn(uint64_t offset, uint64_t len, void *arg);

// Threads may run, and the slab may become another one meanwhile.
static void each_in_slab(uint32_t slab, each_fn *each, void *arg) {
    uint64_t from = (uint64_t)slab << PM_SLAB_SHIFT;
    const struct pm_vslab *v = &pm_vslabs[slab], seen = *v;
    unsigned stride = seen.size_class ? pm_slab_stride(&seen) : PM_SLAB_SIZE;
    for (uint64_t at = from; at < from + PM_SLAB_SIZE; at += stride) {
        unsigned tag = *tag_of(at), cls = pm_tag_class(tag);
        struct pm_slab_block block;
        if (tag == PM_TAG_KIND)
            cls = pm_slab_find(v, (uint32_t)(at - from), &block) ? block.cls : 0;
        if (cls)
            each(at, pm_classes[cls].size, arg);
    }
}

static void each_in_use(each_fn *each, void *arg) {
    for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;) {
        const struct pm_extent *e = &pm_extents[i];
        if (e->slab)
            each_in_slab(pm_extent_slab(e), each, arg);
        else if (*tag_of(e->page << PM_PAGE_SHIFT))
            each(e->page << PM_PAGE_SHIFT, pm_extent_bytes(e), arg);
    }
}

static void scan_marked(uint64_t offset, uint64_t len, void *unused) {
    (void)unused;
    if (!is_marked(offset))
        return;
    if (crew.marker->count == crew.room)
        pm_scan_run(&crew, ALONE);
    pm_crew_push(crew.marker, offset, len);
}

struct unreached {
    pm_live_fn *each;
    void *arg;
    struct pm_live_sum sum;
};

static void add_unreached(uint64_t offset, uint64_t len, void *arg) {
    struct unreached *u = arg;
    u->sum.blocks++;
    u->sum.bytes += len;
    if (!is_marked(offset))
        u->each(pm_heap_at(offset), len, u->arg);
}

// ---- begin, mark, end ---------------------------------------------------------------------------

static void reach_pinned(uint64_t offset, uint64_t len, void *unused) {
    (void)unused;
    reach(crew.marker, offset, len);
}

// Pinned blocks are in use whatever reaches them. Slabs without any are passed over.
static void reach_all_pinned(void) {
    for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;) {
        const struct pm_extent *e = &pm_extents[i];
        if (!pm_kind_is_pinned(e->slab ? pm_vslabs[pm_extent_slab(e)].kind : e->kind))
            continue;
        if (e->slab)
            each_in_slab(pm_extent_slab(e), reach_pinned, NULL);
        else
            reach_pinned(e->page << PM_PAGE_SHIFT, pm_extent_bytes(e), NULL);
    }
}

// The heap may grow while the program runs.
static bool make_marks(void) {
    uint64_t twice = 2 * pm_scan.frontier + ((uint64_t)64 << 20);
    marks.end = twice < pm_range ? twice : pm_range;
    marks.word = pm_os_reserve(((marks.end >> WORD_SHIFT) + 1) * sizeof *marks.word);
    return marks.word;
}

int pm_live_begin(unsigned markers, struct pm_error *err) {
    markers = pm_helpers_markers(markers);
    overflowed = false;
    memory_bytes = pm_crew_bytes(markers, LIVE_STACK, LIVE_POOL);
    memory = pm_os_reserve(memory_bytes);
    if (!memory)
        return pm_fail(err, PM_OPERATIONAL, "no memory to mark with: %s", pm_strerror(errno));
    crew = (struct pm_crew){.work = work_off};
    pm_crew_make(&crew, memory, markers, LIVE_STACK, LIVE_POOL);
    int status = pm_scan_begin(err);
    if (status == PM_OK && !make_marks())
        status = pm_fail(err, PM_OPERATIONAL, "no memory to mark with: %s", pm_strerror(errno));
    if (status != PM_OK)
        pm_live_end();
    else
        reach_all_pinned();
    return status;
}

void pm_live_root(const void *from, size_t len) {
    uint64_t skip = -(uint64_t)(uintptr_t)from & 7;
    if (len > skip)
        scan_words(crew.marker, (const char *)from + skip, len - skip);
}

// Marks are only ever set, so this ends.
void pm_live_mark(void) {
    pm_scan_run(&crew, ALONE);
    while (atomic_exchange_explicit(&overflowed, false, memory_order_relaxed)) {
        each_in_use(scan_marked, NULL);
        pm_scan_run(&crew, ALONE);
    }
}

bool pm_live_is_reached(const void *block) { return is_marked(pm_heap_offset(block)); }

struct pm_live_sum pm_live_unreached(pm_live_fn *each, void *arg) {
    struct unreached u = {.each = each, .arg = arg};
    each_in_use(add_unreached, &u);
    return u.sum;
}

// ---- beside the program -------------------------------------------------------------------------

static void count_note(void *block, size_t bytes, void *unused) {
    (void)block, (void)bytes, (void)unused;
    noted.room++;
}

static void note(void *block, size_t bytes, void *unused) {
    (void)bytes, (void)unused;
    if (noted.count < noted.room)
        noted.offset[noted.count++] = pm_heap_offset(block);
}

bool pm_live_note(void) {
    pm_live_unreached(count_note, NULL);
    noted.room += noted.room / 8 + 1024; // more may have come
    noted.offset = pm_os_reserve(noted.room * sizeof *noted.offset);
    if (!noted.offset)
        return false;
    noted.in_use = pm_live_unreached(note, NULL);
    return true;
}

int pm_live_again(struct pm_error *err) {
    pm_scan_end();
    int status = pm_scan_begin(err);
    if (status == PM_OK && pm_scan.frontier > marks.end)
        status = pm_fail(err, PM_OPERATIONAL, "the heap has grown too much meanwhile");
    if (status != PM_OK)
        return status;
    crew.marker->known = (struct pm_written){0}; // holes
    reach_all_pinned();
    return PM_OK;
}

// Around `at` is no block: where the next one may begin.
static uint64_t next_start(uint64_t at) {
    uint64_t unit =
        pm_vslabs[at >> PM_SLAB_SHIFT].size_class ? (uint64_t)1 << PM_GRANULE_SHIFT : PM_PAGE_SIZE;
    return (at & ~(unit - 1)) + unit;
}

// A word that is not aligned may lie across the end.
static void scan_stored(const struct pm_range *block, uint64_t from, uint64_t to) {
    uint64_t end = block->offset + block->len;
    from = from - block->offset > PM_FORMS_OVERLAP ? from - PM_FORMS_OVERLAP : block->offset;
    to = end - to > PM_FORMS_OVERLAP ? to + PM_FORMS_OVERLAP : end;
    scan_words(crew.marker, pm_heap_at(from), to - from);
    if (crew.marker->count > crew.room / 2)
        pm_scan_run(&crew, ALONE);
}

void pm_live_stored(const void *from, size_t len) {
    uint64_t at = pm_heap_offset(from), end = at + len;
    end = end < pm_scan.frontier ? end : pm_scan.frontier;
    while (at < end) {
        struct pm_range block;
        if (!pm_scan_around(at, &block)) {
            at = next_start(at);
            continue;
        }
        uint64_t block_end = block.offset + block.len;
        if (is_marked(block.offset))
            scan_stored(&block, at > block.offset ? at : block.offset,
                        end < block_end ? end : block_end);
        at = block_end;
    }
}

struct pm_live_sum pm_live_noted(pm_live_fn *each, void *arg) {
    for (size_t i = 0; i < noted.count; i++) {
        uint64_t at = noted.offset[i];
        struct pm_range block;
        if (!is_marked(at) && at < pm_scan.frontier && *tag_of(at) && pm_scan_around(at, &block) &&
            block.offset == at)
            each(pm_heap_at(at), block.len, arg);
    }
    return noted.in_use;
}

static void drop(void *at, size_t bytes) {
    if (at)
        munmap(at, bytes);
}

void pm_live_end(void) {
    pm_scan_end();
    drop(memory, memory_bytes);
    drop(marks.word, ((marks.end >> WORD_SHIFT) + 1) * sizeof *marks.word);
    drop(noted.offset, noted.room * sizeof *noted.offset);
    memory = NULL;
    memset(&marks, 0, sizeof marks);
    memset(&noted, 0, sizeof noted);
}
