// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "trace.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/os.h"
#include "base/own_memory.h"
#include "helpers.h"
#include "scan.h"

#ifndef COLLECT_STACK // tests make these small
#define COLLECT_STACK 32768u
#define COLLECT_POOL (1u << 26)
#define ALONE PM_SCAN_ALONE
#endif
#define LATER (1u << 16) // blocks with mark procedures that helpers have met
#define BYTES_HIGH 0x8080808080808080ull
#define BYTES_LOW 0x0101010101010101ull

pm_trace_proc *pm_trace_procs[PM_TRACE_PROCS];
unsigned pm_trace_wanted;

static struct pm_crew crew;
static _Atomic bool overflowed;  // ranges were not pushed: all that is alive is scanned again
static uint64_t self, self_size; // pointers into this block are ignored
static struct pm_range *later;
static _Atomic unsigned later_count;

// ---- marks --------------------------------------------------------------------------------------

static void push(struct pm_marker *m, uint64_t offset, uint64_t len) {
    while (__builtin_expect(!pm_crew_push(m, offset, len), 0))
        if (!pm_crew_give(m)) {
            atomic_store_explicit(&overflowed, true, memory_order_relaxed);
            return;
        }
}

static inline uint8_t with_state(uint8_t byte, unsigned state) {
    return (uint8_t)((byte & ~PM_COL_STATE) | state);
}

// Nothing else in the byte changes now. Two markers that come at once store the same, and both scan
// the block.
static inline void mark(struct pm_marker *m, uint64_t offset, uint64_t size) {
    uint8_t *at = pm_col_of(offset);
    uint8_t byte = __atomic_load_n(at, __ATOMIC_RELAXED);
    if (!(byte & PM_COL_MORTAL) || pm_col_marked(byte))
        return;
    __atomic_store_n(at, with_state(byte, pm_col_mark), __ATOMIC_RELAXED);
    const struct pm_col_kind *kind = &pm_col_kinds[byte & PM_COL_KIND];
    if (!kind->descriptor && kind->add_size)
        push(m, offset, size | PM_WORDS);
    else if (kind->descriptor)
        push(m, offset, size);
}

static inline void found(struct pm_marker *m, uint64_t offset, uint64_t size) {
    if (offset - self >= self_size)
        pm_scan_found(m, pm_col_of(offset), offset, size, mark);
}

// ---- scanning -----------------------------------------------------------------------------------

static void scan_words(struct pm_marker *m, const void *bytes, uint64_t len) {
    pm_scan_words(m, bytes, len, found);
}

// Where pointers into the block itself are ignored, all of it is scanned in this call.
static inline void scan_bytes(struct pm_marker *m, uint64_t offset, uint64_t len) {
    if (__builtin_expect(len <= PM_STEP, 1))
        scan_words(m, pm_heap_at(offset), len);
    else if (self_size)
        pm_scan_whole(m, offset, len, scan_words);
    else
        pm_scan_long(m, offset, len, scan_words);
}

static void scan_bitmap(struct pm_marker *m, uint64_t offset, uint64_t size, uint64_t bits) {
    const uint64_t *word = pm_heap_at(offset);
    for (bits &= ~3ull; bits && size >= sizeof *word; bits <<= 1, word++, size -= sizeof *word)
        if (bits >> 63)
            pm_scan_word(m, __atomic_load_n(word, __ATOMIC_RELAXED), found);
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

// A mark procedure is the program's: it runs in the thread that collects.
static void call_proc(struct pm_marker *m, uint64_t offset, uint64_t size, uint64_t descriptor) {
    pm_trace_proc *proc = pm_trace_procs[(descriptor >> 2) % PM_TRACE_PROCS];
    if (!proc)
        return;
    if (m == crew.marker) {
        proc(pm_heap_at(offset), crew.marker, crew.marker + 1, descriptor >> 8);
        return;
    }
    unsigned i = atomic_fetch_add_explicit(&later_count, 1, memory_order_relaxed);
    if (i < LATER)
        later[i] = (struct pm_range){offset, size};
    else
        atomic_store_explicit(&overflowed, true, memory_order_relaxed);
}

static void scan_as(struct pm_marker *m, uint64_t offset, uint64_t size, uint64_t descriptor) {
    if ((descriptor & 3) == PM_TRACE_PER_OBJECT)
        descriptor = descriptor_in(offset, descriptor);
    switch (descriptor & 3) {
    case PM_TRACE_LENGTH:
        scan_bytes(m, offset, descriptor < size ? descriptor : size);
        break;
    case PM_TRACE_BITMAP:
        scan_bitmap(m, offset, size, descriptor);
        break;
    case PM_TRACE_PROC:
        call_proc(m, offset, size, descriptor);
        break;
    default: // a descriptor that leads to another one: none does
        scan_bytes(m, offset, size);
    }
}

static void scan_block(struct pm_marker *m, uint64_t offset, uint64_t size) {
    uint8_t byte = __atomic_load_n(pm_col_of(offset), __ATOMIC_RELAXED);
    const struct pm_col_kind *kind = &pm_col_kinds[byte & PM_COL_KIND];
    if (byte & PM_COL_OWNED)
        scan_as(m, offset, size, kind->descriptor + (kind->add_size ? size : 0));
    else
        scan_bytes(m, offset, size);
}

static void scan(struct pm_marker *m, struct pm_range r) {
    if (!(r.len & PM_WRITTEN))
        scan_block(m, r.offset, r.len);
    else if (r.len > PM_STEP)
        pm_scan_long(m, r.offset, r.len, scan_words);
    else
        pm_scan_words(m, pm_heap_at(r.offset), r.len & ~(uint64_t)PM_WRITTEN, found); // inline
}

// ---- the markers --------------------------------------------------------------------------------

static void work_off(struct pm_marker *m) {
    do
        pm_crew_work_off(m, (const char *)pm_scan.base, scan);
    while (m->scanned < m->pause_at && pm_scan_rest(m, mark));
}

static void scan_later(void) {
    unsigned count = atomic_exchange_explicit(&later_count, 0, memory_order_relaxed);
    for (unsigned i = 0; i < count && i < LATER; i++)
        scan_block(crew.marker, later[i].offset, later[i].len);
}

static void run(void) {
    do {
        scan_later();
        pm_scan_run(&crew, ALONE);
    } while (later_count);
}

// For blocks that are roots, and so have no mark.
static void push_root(uint64_t offset, uint64_t len) {
    if (crew.marker->count == crew.room)
        run();
    push(crew.marker, offset, len);
}

// ---- all blocks ---------------------------------------------------------------------------------

static uint64_t load(const uint8_t *at) {
    uint64_t eight;
    memcpy(&eight, at, sizeof eight);
    return eight;
}

// The high bit of each byte that is not 0.
static inline uint64_t not_zero(uint64_t x) { return ((x & ~BYTES_HIGH) + ~BYTES_HIGH) | x; }

// Of eight blocks that may start in a row, the high bit of each byte that counts: those that have a
// mark, those that may die, the roots, which are all blocks in use that are not mortal, or the
// collector's blocks that are marked or not mortal.
static inline uint64_t marked_of(uint64_t tags, uint64_t bytes) {
    uint64_t differ = bytes ^ pm_col_mark * BYTES_LOW;
    (void)tags;
    return ~(differ | differ << 1) & BYTES_HIGH; // bits 6 and 7 are PM_COL_STATE
}
static inline uint64_t mortal_of(uint64_t tags, uint64_t bytes) {
    (void)tags;
    return bytes << 2 & BYTES_HIGH; // PM_COL_MORTAL is bit 5
}
static inline uint64_t roots_of(uint64_t tags, uint64_t bytes) {
    return not_zero(tags) & ~(bytes << 2) & BYTES_HIGH;
}
static inline uint64_t reached_of(uint64_t tags, uint64_t bytes) { // PM_COL_OWNED is bit 4
    return bytes << 3 & (marked_of(tags, bytes) | ~mortal_of(tags, bytes)) & BYTES_HIGH;
}
_Static_assert(PM_COL_STATE == 0xc0 && PM_COL_MORTAL << 2 == 0x80 && PM_COL_OWNED << 3 == 0x80,
               "see above");

typedef uint64_t of_fn(uint64_t tags, uint64_t bytes);

static inline void each_in_run(uint64_t first, of_fn *of, pm_trace_each_fn *each) {
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

static inline void each_in_slab(uint64_t slab, of_fn *of, pm_trace_each_fn *each) {
    unsigned rows = pm_slab_stride(&pm_vslabs[slab]) >> PM_GRANULE_SHIFT;
    for (unsigned row = 0; row < PM_TAG_ROWS; row += rows)
        each_in_run(pm_tag_run(slab, row), of, each);
}

static inline void each_block(of_fn *of, pm_trace_each_fn *each) {
    for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;) {
        const struct pm_extent *e = &pm_extents[i];
        if (e->slab)
            each_in_slab(pm_extent_slab(e), of, each);
        else if (of(*pm_tag_of_page(e->page), *pm_col_of(e->page << PM_PAGE_SHIFT)))
            each(e->page << PM_PAGE_SHIFT, pm_extent_bytes(e));
    }
}

static enum pm_kind kind_at(uint64_t offset) {
    const struct pm_vslab *v = &pm_vslabs[offset >> PM_SLAB_SHIFT];
    const struct pm_large *large = v->size_class ? NULL : pm_large_index_find(offset);
    return (enum pm_kind)(large ? pm_extents[large->extent].kind : v->kind);
}

static void scan_root(uint64_t offset, uint64_t size) {
    if (!*pm_col_of(offset) && !pm_kind_has_pointers(kind_at(offset)))
        return;
    push_root(offset, size);
}

static void scan_holder(uint64_t offset, uint64_t size) {
    if (pm_col_kinds[*pm_col_of(offset) & PM_COL_KIND].holds)
        push_root(offset, size);
}

static void scan_roots(void) {
    bool any = false;
    each_block(roots_of, scan_root);
    for (unsigned i = 0; i < PM_COL_KINDS; i++)
        any |= pm_col_kinds[i].holds;
    if (any)
        each_block(mortal_of, scan_holder);
}

void pm_trace_explicit(void) {
    scan_roots();
    run();
}

void pm_trace_each_reached(pm_trace_each_fn *each) { each_block(reached_of, each); }

// ---- begin, mark, end ---------------------------------------------------------------------------

// Its memory stays.
static bool make_crew(void) {
    static char *memory;
    static unsigned markers;
    static uint32_t pool;
    static size_t bytes;
    if (!memory) {
        markers = pm_helpers_markers(pm_trace_wanted);
        pool = (uint32_t)pm_own_room(sizeof(struct pm_range), COLLECT_POOL);
        bytes = pm_crew_bytes(markers, COLLECT_STACK, pool);
        memory = pm_own_reserve(bytes + LATER * sizeof *later);
    }
    if (!memory)
        return false;
    crew = (struct pm_crew){.work = work_off};
    pm_crew_make(&crew, memory, markers, COLLECT_STACK, pool);
    later = (struct pm_range *)(void *)(memory + bytes);
    return true;
}

int pm_trace_begin(struct pm_error *err) {
    overflowed = false;
    if (!make_crew())
        return pm_fail(err, PM_OPERATIONAL, "no memory to mark with: %s", pm_strerror(errno));
    int status = pm_scan_begin(err);
    if (status == PM_OK)
        pm_col_mark ^= PM_COL_STATE;
    return status;
}

void pm_trace_range(const void *from, size_t len) {
    uint64_t skip = -(uint64_t)(uintptr_t)from & 7;
    if (len > skip)
        scan_words(crew.marker, (const char *)from + skip, len - skip);
}

void pm_trace_pointer(const void *p) { pm_scan_word(crew.marker, (uintptr_t)p, found); }

void pm_trace_children(const void *block, bool not_itself) {
    struct pm_col_block b;
    if (!pm_col_find(block, &b))
        return;
    uint64_t offset = pm_heap_offset(b.base);
    self = not_itself ? offset : 0;
    self_size = not_itself ? b.size : 0;
    scan_block(crew.marker, offset, b.size);
    self_size = 0;
    run();
}

void pm_trace_only(const void *p) {
    struct pm_col_block b;
    if (pm_col_find(p, &b) && b.byte & PM_COL_MORTAL)
        *pm_col_of(pm_heap_offset(b.base)) = with_state(b.byte, pm_col_mark);
}

void pm_trace_unmark(const void *p) {
    struct pm_col_block b;
    if (pm_col_find(p, &b) && b.byte & PM_COL_MORTAL && pm_col_marked(b.byte))
        *pm_col_of(pm_heap_offset(b.base)) = with_state(b.byte, 0);
}

// Marks are only ever set, so this ends.
void pm_trace_all(void) {
    run();
    while (atomic_exchange_explicit(&overflowed, false, memory_order_relaxed)) {
        scan_roots();
        each_block(marked_of, push_root);
        run();
    }
}

bool pm_trace_is_alive(const void *p) {
    struct pm_col_block b;
    return !pm_col_find(p, &b) || !(b.byte & PM_COL_MORTAL) || pm_col_marked(b.byte);
}

unsigned pm_trace_took_part(void) {
    unsigned count = 0;
    for (unsigned i = 0; i < crew.markers; i++)
        count += crew.marker[i].scanned > 0;
    return count;
}

void pm_trace_end(void) {
    if (crew.most_pooled)
        pm_os_advise(crew.pool, crew.most_pooled * sizeof *crew.pool, MADV_DONTNEED);
    pm_scan_end();
}
