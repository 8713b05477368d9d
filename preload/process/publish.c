// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc.h: several changes at once. An element is volatile and says what is to be done; only the
// stores of a publish reach media (media/log/lanes.h). No pointer on media reaches a reserved block
// before them, and none reaches a deferred free after them. So recovery frees both by itself, and
// neither is noted on media.
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/cancel.h"
#include "blocks/alloc.h"
#include "blocks/pinned.h"
#include "choose_name.h"
#include "entry.h"
#include "export.h"
#include "media/heap.h"
#include "media/log/lanes.h"
#include "media/persist.h"
#include "media/pinned.h"
#include "moved.h"
#include "pmalloc.h"
#include "roots/root_table.h"
#include "start.h"
#include "version.h"
#include "walk.h"

_Static_assert(sizeof(pmalloc_op) == 64, "part of the interface");
_Static_assert(PMALLOC_PUBLISH_STORES == PM_LANE_STORES, "what fits into a lane");

// Values that no stray memory has by chance.
enum op_kind {
    OP_EMPTY = 0,
    OP_BLOCK = 0x6f70b10c,    // `at`: the block; `value`: how many of its bytes are to be flushed
    OP_STORE = 0x6f7057e0,    // `at`, `value`
    OP_SLOT = 0x6f70510e,     // `at`: the pointer; `value`: the slot
    OP_DEFERRED = 0x6f70f4ee, // `at`: the block
    // The same two for pinned blocks. Their bits on media are stores of the publish.
    OP_PINNED = 0x6f70919d,
    OP_UNPINNED = 0x6f7091e0,
};

static void set(pmalloc_op *op, enum op_kind kind, void *at, uint64_t value) {
    *op = (pmalloc_op){.kind = kind, .at = at, .value = value};
}

static int fail(int error) {
    errno = error;
    return -1;
}

// ---- elements -----------------------------------------------------------------------------------

static bool can_be_asked_for(const char *call, size_t align, unsigned flags) {
    unsigned known = PMALLOC_ZERO | PMALLOC_FLUSHED | PMALLOC_POINTER_FREE | PMALLOC_PINNED |
                     PMALLOC_TYPE(PMALLOC_TYPES - 1);
    if (flags & ~known)
        pm_event(PM_EV_CALL_REFUSED,
                 "%s: flags %#x are unknown to version %s; nothing was allocated", call,
                 flags & ~known, PM_VERSION);
    else if (align & (align - 1))
        pm_event(PM_EV_CALL_REFUSED,
                 "%s: alignment %zu is not a power of two; nothing was allocated", call, align);
    else
        return true;
    return false;
}

static struct pm_sort sort_of(unsigned flags) {
    uint16_t type = PMALLOC_TYPE_OF(flags);
    unsigned kind = (flags & PMALLOC_POINTER_FREE ? PM_KIND_POINTER_FREE : 0) |
                    (flags & PMALLOC_PINNED ? PM_KIND_PINNED : 0) | (type ? PM_KIND_TYPED : 0);
    return (struct pm_sort){(uint8_t)kind, type};
}

// A pinned block without its bit on media. Before pmalloc_open() a block is malloc()'s, of no kind:
// nobody looks for pointers in it, and it ends with the process.
static void *alloc(const char *call, size_t size, size_t align, unsigned flags) {
    pm_process_ask();
    bool good = can_be_asked_for(call, align, flags);
    struct pm_sort sort = pm_phase_serves() ? sort_of(flags) : (struct pm_sort){0};
    if (!good) {
        errno = EINVAL;
        return NULL;
    }
    if (pm_kind_is_pinned(sort.kind) && !pm_choose_name(call))
        return NULL;
    bool zero = flags & PMALLOC_ZERO;
    if (!sort.kind && zero && align <= 16)
        return pm_calloc(1, size);
    void *p = sort.kind ? pm_malloc_of_kind(sort, size, align) : pm_memalign(align, size);
    if (p && zero)
        pm_zero(p, size);
    return p;
}

static bool is_pinned(const void *p) {
    return p && pm_kind_is_pinned(pm_find((void *)(uintptr_t)p).kind);
}

__attribute__((noinline)) static void *alloc_slow(size_t size, size_t align, unsigned flags) {
    void *p = alloc("pmalloc_alloc", size, align, flags);
    if (flags & PMALLOC_PINNED && is_pinned(p))
        pm_pin_now(p);
    return p;
}

__attribute__((noinline)) static void *alloc_pinned(size_t size, size_t align, unsigned flags) {
    void *p = pm_malloc_pinned((enum pm_kind)sort_of(flags).kind, size);
    return p ? p : alloc_slow(size, align, flags);
}

// What every block of malloc's has.
static inline bool is_usual(size_t align) { return !(align & ~(size_t)8) || align == 16; }

// A thread that has blocks of a kind in its cache has asked for the heap before.
EXPORT void *pmalloc_alloc(size_t size, size_t align, unsigned flags) {
    if (flags == PMALLOC_POINTER_FREE && is_usual(align)) {
        void *p = pm_malloc_pointer_free(size);
        if (PM_LIKELY(p != NULL))
            return p;
    } else if ((flags & ~PMALLOC_POINTER_FREE) == PMALLOC_PINNED && is_usual(align)) {
        return alloc_pinned(size, align, flags);
    }
    return alloc_slow(size, align, flags);
}

EXPORT void *pmalloc_reserve(pmalloc_op *op, size_t size, size_t align, unsigned flags) {
    set(op, OP_EMPTY, NULL, 0);
    void *p = alloc("pmalloc_reserve", size, align, flags);
    if (!p)
        return NULL;
    set(op, is_pinned(p) ? OP_PINNED : OP_BLOCK, p, flags & PMALLOC_FLUSHED ? 0 : size);
    return p;
}

EXPORT int pmalloc_store(pmalloc_op *op, void *where, uint64_t value) {
    bool good = where && (uintptr_t)where % sizeof(uint64_t) == 0;
    set(op, good ? OP_STORE : OP_EMPTY, where, value);
    if (!good)
        pm_event(
            PM_EV_CALL_REFUSED,
            "pmalloc_store: %p is not the address of an aligned word of 8 bytes; the element is "
            "empty",
            where);
    return good ? 0 : fail(EINVAL);
}

EXPORT int pmalloc_store_root(pmalloc_op *op, unsigned slot, void *p) {
    bool good = slot < PM_ROOT_SLOTS && (uintptr_t)p <= PM_SLOT_MAX;
    set(op, good ? OP_SLOT : OP_EMPTY, p, slot);
    if (!good)
        pm_event(PM_EV_CALL_REFUSED,
                 "pmalloc_store_root: slot %u of %u, pointer %p: no such slot, or not an address; "
                 "the element is empty",
                 slot, PM_ROOT_SLOTS, p);
    return good ? 0 : fail(EINVAL);
}

EXPORT void pmalloc_defer_free(pmalloc_op *op, void *p) {
    set(op, is_pinned(p) ? OP_UNPINNED : p ? OP_DEFERRED : OP_EMPTY, p, 0);
}

// A pinned block of an element is not allocated on media, any more or yet.
static bool free_unpinned(void *p) {
    struct pm_cancel held = pm_cancel_hold();
    bool freed = pm_alloc_free_unpinned(p);
    pm_cancel_release(held);
    return freed;
}

static void free_op(const pmalloc_op *op) {
    bool pinned = op->kind == OP_PINNED || op->kind == OP_UNPINNED;
    if (pm_nodes.count == 1 || !pinned || !free_unpinned(op->at))
        pm_free_now(op->at);
}

EXPORT void pmalloc_cancel(pmalloc_op *op, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (op[i].kind == OP_BLOCK || op[i].kind == OP_PINNED)
            free_op(&op[i]);
        op[i].kind = OP_EMPTY;
    }
}

// ---- publish ------------------------------------------------------------------------------------

static bool in_heap(const void *at) {
    uint64_t offset = pm_heap_offset(at);
    return offset < pm_range &&
           offset - pm_shard_at(offset)->offset < pm_shard_at(offset)->frontier;
}

// Finds where a store goes. False: neither the heap nor a captured root is there, so nobody would
// find the store again.
static bool aim(const pmalloc_op *op, bool media, struct pm_lane_target *t) {
    uint64_t offset;
    t->value = op->value;
    t->at = op->at;
    t->where = 0;
    if (op->kind == OP_SLOT) {
        t->value = pm_slot_word((unsigned)op->value, (uint64_t)(uintptr_t)op->at);
        t->where = pm_lane_where(PM_PLACE_SLOT, op->value * sizeof(uint64_t));
        t->at = &pm_heap.super->slots.slot[op->value];
    } else if (media && in_heap(op->at)) {
        t->where = pm_lane_where(PM_PLACE_HEAP, pm_heap_offset(op->at));
    } else if (media && pm_roots_image_of(op->at, &offset)) {
        t->where = pm_lane_where(PM_PLACE_IMAGE, offset);
    } else if (media) {
        pm_event(
            PM_EV_CALL_REFUSED,
            "pmalloc_publish: %p is neither in the heap nor in a captured root, so a store there "
            "would not be durable; nothing was changed",
            op->at);
        return false;
    }
    return true;
}

static void aim_pinned(const pmalloc_op *op, struct pm_lane_target *t) {
    struct pm_pin pin = pm_pin_of(op->at);
    uint64_t value = op->kind == OP_PINNED ? PM_PIN_SET(pin.mask) : PM_PIN_CLEAR(pin.mask);
    *t = (struct pm_lane_target){NULL, pin.place, value};
}

static bool is_full(int count) {
    if (count < PMALLOC_PUBLISH_STORES)
        return false;
    pm_event(
        PM_EV_CALL_REFUSED,
        "pmalloc_publish: more than %u stores, pinned blocks and frees of pinned blocks; nothing "
        "was changed",
        PMALLOC_PUBLISH_STORES);
    return true;
}

// Whether a block is there that the element reserved, or is to free. The caller may have copied the
// element, and published or cancelled the copy. For a pinned block this must come first: where no
// block is, no bit on media is either, and the word in its place is something else.
static bool has_its_block(const pmalloc_op *op, size_t number) {
    bool pinned = op->kind == OP_PINNED || op->kind == OP_UNPINNED;
    if (!pinned && op->kind != OP_BLOCK && op->kind != OP_DEFERRED)
        return true;
    // Others' blocks, from outside the heap, are free()'s affair.
    if (pinned ? is_pinned(op->at) : !pm_in_range(op->at) || pm_find_tag(op->at) != PM_TAG_NONE)
        return true;
    pm_event(PM_EV_CALL_REFUSED,
             "pmalloc_publish: element %zu is about a block at %p, which is not allocated; was it "
             "published, cancelled or freed before? nothing was changed",
             number, op->at);
    return false;
}

// Collects the stores. -1: they cannot be made, and `errno` says why.
static int collect(const pmalloc_op *op, size_t n, bool media, struct pm_lane_target *target) {
    int count = 0;
    bool slots = media || pm_heap_state() == PM_HEAP_BORROWED; // see pmalloc_set_root()
    for (size_t i = 0; i < n; i++) {
        if (!has_its_block(&op[i], i))
            return fail(EINVAL);
        switch (op[i].kind) {
        case OP_EMPTY:
        case OP_BLOCK:
        case OP_DEFERRED:
            break;
        case OP_PINNED:
        case OP_UNPINNED:
            if (media && is_full(count))
                return fail(EINVAL);
            if (media)
                aim_pinned(&op[i], &target[count++]);
            break;
        case OP_SLOT:
        case OP_STORE:
            if (op[i].kind == OP_SLOT && !slots)
                return fail(ENOTSUP);
            if (is_full(count) || !aim(&op[i], media, &target[count]))
                return fail(EINVAL);
            count++;
            break;
        default:
            pm_event(PM_EV_CALL_REFUSED,
                     "pmalloc_publish: element %zu is none; nothing was changed", i);
            return fail(EINVAL);
        }
    }
    return count;
}

static void flush_blocks(const pmalloc_op *op, size_t n) {
    for (size_t i = 0; i < n; i++)
        if ((op[i].kind == OP_BLOCK || op[i].kind == OP_PINNED) && op[i].value)
            pm_flush(op[i].at, op[i].value);
}

// The lane's lock makes forks and the end of the program wait: after it the heap may be private.
static bool publish_locked(unsigned lane, const pmalloc_op *op, size_t n) {
    struct pm_lane_target target[PMALLOC_PUBLISH_STORES];
    bool media = pm_heap_on_media();
    int count = collect(op, n, media, target);
    if (count < 0)
        return false;
    if (!media) {
        for (int i = 0; i < count; i++)
            __atomic_store_n(target[i].at, target[i].value, __ATOMIC_RELEASE);
        return true;
    }
    if (count > 1 && !pm_lanes_make())
        return false;
    flush_blocks(op, n);
    if (count == 0)
        pm_drain();
    return count == 0 || pm_lanes_publish(lane, target, (unsigned)count);
}

// A thread's own lanes, so that threads seldom meet: the address of its cache pointer differs. It
// takes them in turn: a line that was flushed a moment ago is slow to store to and to flush again,
// on Optane as much as on CXL memory.
#define TURNS 4u
static unsigned own_lane(void) {
    static __thread uint8_t turn __attribute__((tls_model("initial-exec")));
    return (unsigned)((uintptr_t)&pm_tcache >> 12) * 7u + turn++ % TURNS;
}

static bool has_root(const pmalloc_op *op, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (op[i].kind == OP_SLOT && op[i].at)
            return true;
    return false;
}

EXPORT int pmalloc_publish(pmalloc_op *op, size_t n) {
    pm_process_ask();
    if (pm_nested())
        return fail(EDEADLK);
    if (pm_heap.nameless && has_root(op, n) && !pm_choose_name("pmalloc_publish"))
        return -1;
    if (has_root(op, n))
        pm_moved_note_first();
    struct pm_cancel held = pm_cancel_hold();
    unsigned lane = pm_lane_lock(own_lane());
    bool good = publish_locked(lane, op, n);
    pm_lane_unlock(lane);
    pm_cancel_release(held);
    if (!good)
        return -1;
    for (size_t i = 0; i < n; i++) {
        if (op[i].kind == OP_DEFERRED || op[i].kind == OP_UNPINNED)
            free_op(&op[i]);
        op[i].kind = OP_EMPTY;
    }
    return 0;
}

// ---- in one call --------------------------------------------------------------------------------

static void *publish_to(pmalloc_op *op, void *where, void *p) {
    if (p && pmalloc_store(&op[1], where, (uint64_t)(uintptr_t)p) == 0 &&
        pmalloc_publish(op, 3) == 0)
        return p;
    int saved = errno;
    pmalloc_cancel(op, 3);
    errno = saved;
    return NULL;
}

EXPORT void *pmalloc_malloc_to(void *where, size_t size) {
    pmalloc_op op[3] = {0};
    return publish_to(op, where, pmalloc_reserve(&op[0], size, 0, PMALLOC_FLUSHED));
}

EXPORT void *pmalloc_calloc_to(void *where, size_t count, size_t size) {
    pmalloc_op op[3] = {0};
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
        bytes = SIZE_MAX; // which no block has
    return publish_to(op, where, pmalloc_reserve(&op[0], bytes, 0, PMALLOC_ZERO));
}

EXPORT void *pmalloc_realloc_at(void *where, size_t size) {
    pmalloc_op op[3] = {0};
    void *old = *(void **)where;
    size_t room = pm_usable_size(old);
    if (old && size <= room && size >= room / 2)
        return old;
    struct pm_found found = old ? pm_find(old) : (struct pm_found){0};
    unsigned flags = pm_flags_of(&found);
    void *p = pmalloc_reserve(&op[0], size, 0, flags);
    if (p && old)
        memcpy(p, old, room < size ? room : size);
    pmalloc_defer_free(&op[2], old);
    return publish_to(op, where, p);
}

EXPORT int pmalloc_free_from(void *where) {
    pmalloc_op op[2];
    if (pmalloc_store(&op[0], where, 0) != 0)
        return -1;
    pmalloc_defer_free(&op[1], *(void **)where);
    return pmalloc_publish(op, 2);
}

// ---- the program's own data ---------------------------------------------------------------------

EXPORT int pmalloc_needs_flush(void) {
    pm_process_ask();
    return pm_heap_on_media() &&
           (pm_durability == PM_DURABLE_LINE || pm_durability == PM_DURABLE_PAGE);
}

EXPORT void pmalloc_flush(const void *p, size_t n) {
    if (n == 0 || !pmalloc_needs_flush())
        return;
    struct pm_cancel held = pm_cancel_hold(); // msync() is a cancellation point
    if (in_heap(p) || pm_roots_captured(p))
        pm_flush(p, n);
    pm_cancel_release(held);
}

EXPORT void pmalloc_drain(void) {
    pm_process_ask();
    pm_drain();
}

EXPORT void pmalloc_persist(const void *p, size_t n) {
    pmalloc_flush(p, n);
    pmalloc_drain();
}
