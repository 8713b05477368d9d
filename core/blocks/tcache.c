// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "tcache.h"

#include <errno.h>
#include <string.h>

#include "base/bits.h"
#include "base/os.h"
#include "base/own_memory.h"
#include "kinds.h"
#include "morph.h"

struct pm_tcache pm_no_tcache = {.extents = &pm_no_extent_cache};
__thread struct pm_tcache *pm_tcache __attribute__((tls_model("initial-exec"))) = &pm_no_tcache;

#define FIRST_FILL 8

struct pm_tcache *pm_tcache_first;
static struct pm_tcache *spare;
static unsigned live_count, parked_count;
_Atomic uint64_t pm_tcache_moves;
bool pm_tcache_lost;

// ---- capacities --------------------------------------------------------------------------------
//
// A program that allocates and frees in batches fills and empties a stack by turns. Such a stack
// doubles, until a whole batch fits and costs the hot path alone. What it may have beyond the usual
// (tcache_cap) is bounded for a class and for a thread. A stack that the thread no longer fills or
// empties falls back to the usual: from time to time a slow request looks at one class.

#define MOST_SLOTS 4096u
#define MOST_BYTES (1u << 20)       // of a class
#define MOST_GROWN_BYTES (2u << 20) // of a thread, beyond the usual
#define AGE_EVERY 32u

// Where address space is plenty, stacks may grow. Found out before the first cache is made.
static enum { NOT_KNOWN, SHORT, PLENTY } address_space;
#define MUCH (1ull << 40)

static void look_for_room(void) {
    int saved = errno;
    if (address_space == NOT_KNOWN)
        address_space = pm_os_address_space(MUCH) ? PLENTY : SHORT;
    errno = saved;
}

static uint32_t most_slots(unsigned cls) {
    if (address_space != PLENTY)
        return pm_classes[cls].tcache_cap;
    uint32_t fit = MOST_BYTES / pm_classes[cls].size, usual = pm_classes[cls].tcache_cap;
    return fit < usual ? usual : fit > MOST_SLOTS ? MOST_SLOTS : fit;
}

// What the blocks of a stack are like. Of tags that have none all is 0.
static const struct pm_class *class_of(unsigned tag) { return &pm_classes[pm_tag_class(tag)]; }

static void reset_caps(struct pm_tcache *t) {
    for (unsigned tag = 1; tag < t->stacks; tag++)
        t->stack[tag].cap = (uint16_t)class_of(tag)->tcache_cap;
    memset(t->ran_empty, 0, sizeof t->ran_empty);
    memset(t->busy, 0, sizeof t->busy);
}

// Of the stacks of tags from first + 1 on, one for each class.
static inline uint64_t grown_from(const struct pm_tcache *t, unsigned first) {
    uint64_t bytes = 0;
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++)
        bytes += (uint64_t)(t->stack[first + cls].cap - pm_classes[cls].tcache_cap) *
                 pm_classes[cls].size;
    return bytes;
}

static bool has_all_stacks(const struct pm_tcache *t) { return t->stacks == PM_TAGS; }

static uint64_t grown_bytes(const struct pm_tcache *t) {
    return grown_from(t, 0) + (has_all_stacks(t) ? grown_from(t, PM_TAG_POINTER_FREE) : 0);
}

// Of a full stack. True: it has room now.
static bool grow_cap(struct pm_tcache *t, unsigned tag) {
    struct pm_stack *s = &t->stack[tag];
    uint32_t most = most_slots(pm_tag_class(tag)), cap = 2 * s->cap < most ? 2 * s->cap : most;
    if (!pm_bit(t->ran_empty, tag) || cap <= s->cap)
        return false;
    pm_bit_clear(t->ran_empty, tag);
    if (grown_bytes(t) + (uint64_t)(cap - s->cap) * class_of(tag)->size > MOST_GROWN_BYTES)
        return false;
    s->cap = (uint16_t)cap;
    return true;
}

// Seizes the stack; *n becomes how many blocks are in it. False: it is seized already.
static bool seize(struct pm_stack *s, uint32_t *n) {
    bool seized = pm_stack_seize(s);
    *n = s->n;
    return seized;
}

static void leave_with(struct pm_stack *s, uint32_t n) {
    pm_stack_set(s, n);
    pm_stack_leave(s);
}

// Of a seized stack.
static void return_oldest(void **slot, unsigned cls, uint32_t count, uint32_t keep) {
    pm_arena_return(cls, slot, count);
    memmove(slot, slot + count, keep * sizeof *slot);
}

// Returns what the stack has beyond the usual.
static void shrink_cap(struct pm_tcache *t, unsigned tag) {
    struct pm_stack *s = &t->stack[tag];
    uint32_t usual = class_of(tag)->tcache_cap;
    uint32_t n;
    if (!seize(s, &n))
        return;
    uint32_t keep = n < usual ? n : usual;
    return_oldest(t->slot[tag], pm_tag_class(tag), n - keep, keep);
    s->cap = (uint16_t)usual;
    leave_with(s, keep);
}

static unsigned next_grown(const struct pm_tcache *t, unsigned tag) {
    for (unsigned i = 1; i < t->stacks; i++) {
        tag = tag % (t->stacks - 1u) + 1;
        if (t->stack[tag].cap > class_of(tag)->tcache_cap)
            return tag;
    }
    return 0;
}

// The turn of the next stack that has grown. It shrinks if it was idle since its last turn.
static void age_cap(struct pm_tcache *t) {
    unsigned tag = ++t->slow_requests % AGE_EVERY ? 0 : next_grown(t, t->last_aged);
    if (!tag)
        return;
    t->last_aged = (uint8_t)tag;
    if (!pm_bit(t->busy, tag) && pm_tcache_free_to_use(t, tag))
        shrink_cap(t, tag);
    pm_bit_clear(t->busy, tag);
}

// ---- caches -------------------------------------------------------------------------------------

// Address space for a cache and the stacks of malloc's blocks, or for its other stacks. The kernel
// gives it memory page by page, when touched. Several caches share a mapping, because the kernel
// limits the number of mappings. They are never unmapped: a spare cache serves the next thread.
// pm_tcache_lock is held.
#define CACHES_AT_ONCE 8u

struct space {
    char *next;
    unsigned left;
};

// For something of `head` bytes and a stack of each class.
static void *space_for(struct space *from, size_t head) {
    size_t bytes = head;
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++)
        bytes += most_slots(cls) * sizeof(void *);
    bytes = (bytes + PM_PAGE_SIZE - 1) & ~(PM_PAGE_SIZE - 1);
    if (!from->left && (from->next = pm_own_reserve(CACHES_AT_ONCE * bytes)))
        from->left = CACHES_AT_ONCE;
    if (!from->left)
        return pm_own_reserve(bytes); // address space is short
    char *space = from->next;
    from->next += bytes;
    from->left--;
    return space;
}

// The stacks of tags from first + 1 on, one for each class.
static void give_slots(struct pm_tcache *t, unsigned first, void **slot) {
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++) {
        t->slot[first + cls] = slot;
        slot += most_slots(cls);
    }
}

static struct pm_tcache *map_new(void) {
    static struct space caches;
    look_for_room();
    struct pm_tcache *t = space_for(&caches, sizeof *t);
    if (t)
        give_slots(t, 0, (void **)(t + 1));
    return t;
}

// The first pointer-free block of this thread. A handler finds a stack without capacity, or one
// that is complete; it does not get here, because this thread holds a lock. False: there is no
// memory.
static bool add_stacks(struct pm_tcache *t) {
    static struct space others;
    const unsigned first = PM_TAG_POINTER_FREE;
    pm_lock(&pm_tcache_lock);
    void **slot = t->slot[first + 1] ? t->slot[first + 1] : space_for(&others, 0);
    if (slot && !has_all_stacks(t)) {
        give_slots(t, first, slot);
        __atomic_store_n(&t->stacks, PM_TAGS, __ATOMIC_RELAXED);
        atomic_signal_fence(memory_order_seq_cst);
        for (unsigned tag = first + 1; tag < PM_TAGS; tag++) {
            t->fill[tag] = FIRST_FILL;
            t->stack[tag].cap = (uint16_t)class_of(tag)->tcache_cap;
        }
    }
    pm_unlock(&pm_tcache_lock);
    return slot != NULL;
}

bool pm_tcache_add_pinned(struct pm_tcache *t) {
    if (t == &pm_no_tcache || t->pinned)
        return t->pinned != NULL;
    pm_lock(&pm_tcache_lock);
    if (!t->pinned)
        t->pinned = pm_pinned_cache_make();
    pm_unlock(&pm_tcache_lock);
    return t->pinned != NULL;
}

// Of a cache whose stacks are empty.
static void drop_stacks(struct pm_tcache *t) {
    for (unsigned tag = PM_CLASSES + 1; tag < t->stacks; tag++)
        t->stack[tag].cap = 0;
    __atomic_store_n(&t->stacks, PM_CLASSES + 1, __ATOMIC_RELAXED);
}

static void link_live(struct pm_tcache *t) {
    t->prev = NULL;
    t->next = pm_tcache_first;
    if (pm_tcache_first)
        pm_tcache_first->prev = t;
    pm_tcache_first = t;
    live_count++;
}

static void unlink_live(struct pm_tcache *t) {
    *(t->prev ? &t->prev->next : &pm_tcache_first) = t->next;
    if (t->next)
        t->next->prev = t->prev;
    live_count--;
}

void pm_tcache_use(struct pm_tcache *t) {
    pm_tcache = t;
    pm_persist_mine = &t->arena->persisted;
}

// Counts the thread in, as one of the node.
static void join(struct pm_tcache *t) {
    t->arena = pm_arena_join(t->node);
    t->extents = pm_extent_cache_of(t->arena->number);
    t->parked = false;
}

static void leave(struct pm_tcache *t) {
    if (!t->parked)
        pm_arena_leave(t->arena);
    parked_count -= t->parked;
}

static void set_range(struct pm_tcache *t, unsigned node) {
    struct pm_node_memory range = pm_node_memory(node);
    t->tag = pm_tag + (range.offset >> PM_GRANULE_SHIFT);
    t->base = pm_base + range.offset;
    t->tag_of_0 = (uintptr_t)pm_tag - (pm_base >> PM_GRANULE_SHIFT); // pm_base: whole MiB
    bool watched = atomic_load_explicit(&pm_frees_watched, memory_order_relaxed);
    t->granules = t->all_granules = watched ? 0 : range.bytes >> PM_GRANULE_SHIFT;
}

// `all_granules` before `granules`, which the owner may set again from it.
void pm_tcaches_watch(void) {
    pm_lock(&pm_tcache_lock);
    atomic_store_explicit(&pm_frees_watched, true, memory_order_relaxed);
    for (struct pm_tcache *t = pm_tcache_first; t; t = t->next) {
        __atomic_store_n(&t->all_granules, 0, __ATOMIC_SEQ_CST);
        __atomic_store_n(&t->granules, 0, __ATOMIC_SEQ_CST);
    }
    pm_extent_caches_watch();
    pm_unlock(&pm_tcache_lock);
}

// pm_tcache_lock is held. The cache is complete before it is listed. A forked child may find it in
// the list although its thread is not in the child (pm_tcache_orphans).
static struct pm_tcache *create(unsigned node) {
    struct pm_tcache *t = spare;
    if (t)
        spare = t->next;
    else
        t = map_new();
    if (!t)
        return NULL;
    drop_stacks(t);
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++)
        t->fill[cls] = FIRST_FILL;
    reset_caps(t);
    set_range(t, node);
    for (unsigned w = 0; w < PM_STACK_WORDS; w++)
        t->emptied[w] = 0;
    t->sibling = t;
    t->node = (uint16_t)node;
    join(t);
    link_live(t);
    return t;
}

struct pm_tcache *pm_tcache_create(void) {
    unsigned node = pm_node_mine();
    pm_lock(&pm_tcache_lock);
    struct pm_tcache *t = create(node);
    pm_unlock(&pm_tcache_lock);
    return t;
}

// Takes over the notes of deferred frees. No handler adds to the notes of `from` any more.
static void move_deferred(struct pm_tcache *to, struct pm_tcache *from) {
    for (uint32_t i = 0; i < from->deferred_count; i++) {
        uint32_t n = __atomic_fetch_add(&to->deferred_count, 1, __ATOMIC_RELAXED);
        if (n < PM_DEFERRED_MAX)
            to->deferred[n] = from->deferred[i];
        else
            __atomic_fetch_sub(&to->deferred_count, 1, __ATOMIC_RELAXED);
    }
    from->deferred_count = 0;
}

// pm_tcache_lock is held. Returns the cache to go on with; NULL: memory is out.
static struct pm_tcache *sibling_of(struct pm_tcache *t, unsigned node) {
    struct pm_tcache *to = t->sibling;
    while (to != t && to->node != node)
        to = to->sibling;
    if (to != t) {
        join(to);
        parked_count--;
        return to;
    }
    to = create(node);
    if (to) {
        to->sibling = t->sibling;
        t->sibling = to;
    }
    return to;
}

struct pm_tcache *pm_tcache_move(struct pm_tcache *t, unsigned node) {
    pm_lock(&pm_tcache_lock);
    struct pm_tcache *to = sibling_of(t, node);
    if (to) {
        pm_arena_leave(t->arena);
        t->parked = true;
        parked_count++;
    }
    pm_unlock(&pm_tcache_lock);
    if (!to)
        return t;
    pm_tcache_use(to); // from here on signal handlers, too, leave the other one alone
    move_deferred(to, t);
    pm_tcache_return(t);
    atomic_fetch_add_explicit(&pm_tcache_moves, 1, memory_order_relaxed);
    return to;
}

bool pm_tcache_free_to_use(struct pm_tcache *t, unsigned tag) {
    struct pm_stack *s = &t->stack[tag];
    int16_t seized = __atomic_load_n(&s->seized, __ATOMIC_RELAXED);
    if (PM_LIKELY(!seized))
        return true;
    // No request that this one interrupted is looking at the stack: it would add what it took off.
    if (seized != PM_STACK_TAKEN)
        return false;
    // Acquire: who emptied the stack reads it no more. One request opens it: this one, or a handler
    // that interrupts it here.
    uint64_t bit = 1ull << tag % 64;
    if (!(atomic_fetch_and_explicit(&t->emptied[tag / 64], ~bit, memory_order_acq_rel) & bit))
        return false;
    leave_with(s, 0);
    return true;
}

bool pm_tcache_return(struct pm_tcache *t) {
    bool all = true;
    for (unsigned tag = 1; tag < t->stacks; tag++) {
        struct pm_stack *s = &t->stack[tag];
        uint32_t n;
        if (!pm_tcache_free_to_use(t, tag) || !seize(s, &n)) {
            all = false;
            continue;
        }
        pm_arena_return(pm_tag_class(tag), t->slot[tag], n);
        leave_with(s, 0);
    }
    pm_pinned_cache_return(t->pinned);
    reset_caps(t);
    return all;
}

bool pm_tcaches_return(void) {
    bool all = true;
    for (struct pm_tcache *t = pm_tcache_first; t; t = t->next)
        all &= pm_tcache_return(t);
    return all;
}

// A cancelled thread may have left a stack seized. Ending the seizure loses at most the one block
// of the cancelled request. A thread that takes back blocks leaves a seized stack alone, so a store
// will do.
static void end_seizure(struct pm_stack *s) {
    if (pm_stack_taken(s))
        __atomic_store_n(&s->seized, PM_STACK_TAKEN, __ATOMIC_RELAXED);
    else
        pm_stack_leave(s);
}

// No stack is another thread's any more, because that thread held the lock; all other stacks are
// empty. pm_tcache_lock is held.
static void retire(struct pm_tcache *t) {
    for (unsigned tag = 1; tag < t->stacks; tag++)
        leave_with(&t->stack[tag], 0);
    pm_pinned_cache_drop(t->pinned);
    leave(t);
    unlink_live(t);
    t->next = spare;
    spare = t;
}

void pm_tcache_destroy(struct pm_tcache *t) {
    struct pm_tcache *at = t, *next;
    do {
        for (unsigned tag = 1; tag < at->stacks; tag++)
            end_seizure(&at->stack[tag]);
        pm_tcache_return(at);
        at = at->sibling;
    } while (at != t);
    pm_lock(&pm_tcache_lock);
    do {
        next = at->sibling;
        retire(at);
        at = next;
    } while (at != t);
    pm_unlock(&pm_tcache_lock);
}

bool pm_tcache_refill(struct pm_tcache *t, unsigned tag) {
    struct pm_arena *arena = t->arena;
    unsigned cls = tag;
    if (PM_UNLIKELY(tag > PM_CLASSES)) {
        if (!has_all_stacks(t) && !add_stacks(t))
            return true; // the caller finds none
        arena = &pm_arenas[pm_kind_arena(PM_KIND_POINTER_FREE, arena->number)];
        cls = pm_tag_class(tag);
    }
    struct pm_stack *s = &t->stack[tag];
    unsigned want = t->fill[tag];
    unsigned most = s->cap / 2;
    if (want > most)
        want = most;
    pm_bit_set(t->busy, tag);
    pm_bit_set(t->ran_empty, tag);
    age_cap(t);
    uint32_t n;
    if (!seize(s, &n))
        return true;
    if (n) { // a handler has filled it
        pm_stack_leave(s);
        return true;
    }
    void **slot = t->slot[tag];
    unsigned got = pm_arena_fill(arena, cls, slot, want);
    t->fill[tag] = (uint16_t)(want * 2);
    // pm_tcache_pop() takes the last block first. Reverse the order, so that blocks are handed out
    // by rising address.
    for (unsigned i = 0; i < got / 2; i++) {
        void *low = slot[i];
        slot[i] = slot[got - 1 - i];
        slot[got - 1 - i] = low;
    }
    leave_with(s, got);
    return got > 0;
}

void pm_tcache_trim(struct pm_tcache *t, unsigned tag) {
    struct pm_stack *s = &t->stack[tag];
    unsigned cls = tag;
    if (PM_UNLIKELY(tag > PM_CLASSES)) {
        cls = pm_tag_class(tag);
        if (!has_all_stacks(t)) {
            add_stacks(t); // there is room now
            return;
        }
    }
    pm_bit_set(t->busy, tag);
    if (grow_cap(t, tag))
        return;
    age_cap(t);
    uint32_t n;
    if (!seize(s, &n))
        return;
    return_oldest(t->slot[tag], cls, n / 2, n - n / 2);
    leave_with(s, n - n / 2);
}

unsigned pm_tcache_live(void) {
    pm_lock(&pm_tcache_lock);
    unsigned count = live_count - parked_count;
    pm_unlock(&pm_tcache_lock);
    return count;
}

uint64_t pm_tcache_held(unsigned cls) {
    uint64_t held = 0;
    pm_lock(&pm_tcache_lock);
    for (struct pm_tcache *t = pm_tcache_first; t; t = t->next)
        held += pm_stack_count(&t->stack[cls]) +
                pm_stack_count(&t->stack[PM_TAG_POINTER_FREE + cls]) +
                pm_pinned_cache_held(t->pinned, cls);
    pm_unlock(&pm_tcache_lock);
    return held;
}

static uint64_t misplaced(const struct pm_tcache *t) {
    uint64_t count = 0;
    for (unsigned tag = 1; tag < __atomic_load_n(&t->stacks, __ATOMIC_RELAXED); tag++)
        for (uint32_t i = 0, n = pm_stack_count(&t->stack[tag]); i < n; i++) {
            const void *p = __atomic_load_n(&t->slot[tag][i], __ATOMIC_RELAXED);
            count += pm_in_range(p) && pm_node_of(p) != t->node;
        }
    return count;
}

uint64_t pm_tcache_misplaced(void) {
    uint64_t count = 0;
    pm_lock(&pm_tcache_lock);
    for (struct pm_tcache *t = pm_tcache_first; t && pm_nodes.count > 1; t = t->next)
        count += misplaced(t);
    pm_unlock(&pm_tcache_lock);
    return count;
}

// The fork may have caught the other threads anywhere. One may have been returning blocks, some of
// which other threads had already been given. One may have been storing while fork copied the
// memory page by page. So the child cannot believe what their caches have, and drops it: a block
// returned twice would get two owners.
void pm_tcache_orphans(struct pm_tcache *mine) {
    for (struct pm_tcache *t = pm_tcache_first, *next; t; t = next) {
        next = t->next;
        if (t == mine)
            continue;
        pm_tcache_lost = true;
        t->deferred_count = 0;
        retire(t);
    }
    mine->sibling = mine;
    atomic_store(&pm_morphs_wait, false); // who looks up blocks is beside the parent
}
