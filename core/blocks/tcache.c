// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "tcache.h"

#include <errno.h>
#include <string.h>

#include "base/os.h"
#include "base/own_memory.h"

struct pm_tcache pm_no_tcache = {.extents = &pm_no_extent_cache};
__thread struct pm_tcache *pm_tcache __attribute__((tls_model("initial-exec"))) = &pm_no_tcache;
struct pm_lock pm_tcache_lock = PM_LOCK(PM_RANK_THREADS);

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

static void reset_caps(struct pm_tcache *t) {
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++)
        t->stack[cls].cap = (uint16_t)pm_classes[cls].tcache_cap;
    t->ran_empty = t->busy = 0;
}

static uint64_t grown_bytes(const struct pm_tcache *t) {
    uint64_t bytes = 0;
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++)
        bytes += (uint64_t)(t->stack[cls].cap - pm_classes[cls].tcache_cap) * pm_classes[cls].size;
    return bytes;
}

// Of a full stack. True: it has room now.
static bool grow_cap(struct pm_tcache *t, unsigned cls) {
    struct pm_stack *s = &t->stack[cls];
    uint32_t most = most_slots(cls), cap = 2 * s->cap < most ? 2 * s->cap : most;
    if (!(t->ran_empty >> cls & 1) || cap <= s->cap)
        return false;
    t->ran_empty &= ~(1ull << cls);
    if (grown_bytes(t) + (uint64_t)(cap - s->cap) * pm_classes[cls].size > MOST_GROWN_BYTES)
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
static void return_oldest(struct pm_tcache *t, unsigned cls, uint32_t count, uint32_t keep) {
    void **slot = t->slot[cls];
    pm_arena_return(cls, slot, count);
    memmove(slot, slot + count, keep * sizeof *slot);
}

// Returns what the stack has beyond the usual.
static void shrink_cap(struct pm_tcache *t, unsigned cls) {
    struct pm_stack *s = &t->stack[cls];
    uint32_t usual = pm_classes[cls].tcache_cap;
    uint32_t n;
    if (!seize(s, &n))
        return;
    uint32_t keep = n < usual ? n : usual;
    return_oldest(t, cls, n - keep, keep);
    s->cap = (uint16_t)usual;
    leave_with(s, keep);
}

static unsigned next_grown(const struct pm_tcache *t, unsigned cls) {
    for (unsigned i = 0; i < PM_CLASSES; i++) {
        cls = cls % PM_CLASSES + 1;
        if (t->stack[cls].cap > pm_classes[cls].tcache_cap)
            return cls;
    }
    return 0;
}

// The turn of the next class that has grown. It shrinks if it was idle since its last turn.
static void age_cap(struct pm_tcache *t) {
    unsigned cls = ++t->slow_requests % AGE_EVERY ? 0 : next_grown(t, t->last_aged);
    if (!cls)
        return;
    t->last_aged = (uint8_t)cls;
    if (!(t->busy >> cls & 1) && pm_tcache_free_to_use(t, cls))
        shrink_cap(t, cls);
    t->busy &= ~(1ull << cls);
}

// ---- caches -------------------------------------------------------------------------------------

// Address space for a cache and its stacks. The kernel gives it memory page by page, when touched.
// Several caches share a mapping, because the kernel limits the number of mappings. They are never
// unmapped: a spare cache serves the next thread. pm_tcache_lock is held.
#define CACHES_AT_ONCE 8u

static void *space_for(size_t bytes) {
    static char *next;
    static unsigned left;
    if (!left && (next = pm_own_reserve(CACHES_AT_ONCE * bytes)))
        left = CACHES_AT_ONCE;
    if (!left)
        return pm_own_reserve(bytes); // address space is short
    char *space = next;
    next += bytes;
    left--;
    return space;
}

static struct pm_tcache *map_new(void) {
    look_for_room();
    size_t slots = 0;
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++)
        slots += most_slots(cls);
    size_t bytes = sizeof(struct pm_tcache) + slots * sizeof(void *);
    struct pm_tcache *t = space_for((bytes + PM_PAGE_SIZE - 1) & ~(PM_PAGE_SIZE - 1));
    if (!t)
        return NULL;
    void **slot = (void **)(t + 1);
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++) {
        t->slot[cls] = slot;
        slot += most_slots(cls);
    }
    return t;
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
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++)
        t->fill[cls] = FIRST_FILL;
    reset_caps(t);
    set_range(t, node);
    t->emptied = 0;
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
    pm_tcache = to; // from here on signal handlers, too, leave the other one alone
    move_deferred(to, t);
    pm_tcache_return(t);
    atomic_fetch_add_explicit(&pm_tcache_moves, 1, memory_order_relaxed);
    return to;
}

bool pm_tcache_free_to_use(struct pm_tcache *t, unsigned cls) {
    struct pm_stack *s = &t->stack[cls];
    int16_t seized = __atomic_load_n(&s->seized, __ATOMIC_RELAXED);
    if (PM_LIKELY(!seized))
        return true;
    // No request that this one interrupted is looking at the stack: it would add what it took off.
    if (seized != PM_STACK_TAKEN)
        return false;
    // Acquire: who emptied the stack reads it no more. One request opens it: this one, or a handler
    // that interrupts it here.
    uint64_t bit = 1ull << cls;
    if (!(atomic_fetch_and_explicit(&t->emptied, ~bit, memory_order_acq_rel) & bit))
        return false;
    leave_with(s, 0);
    return true;
}

bool pm_tcache_return(struct pm_tcache *t) {
    bool all = true;
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++) {
        struct pm_stack *s = &t->stack[cls];
        uint32_t n;
        if (!pm_tcache_free_to_use(t, cls) || !seize(s, &n)) {
            all = false;
            continue;
        }
        pm_arena_return(cls, t->slot[cls], n);
        leave_with(s, 0);
    }
    reset_caps(t);
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
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++)
        leave_with(&t->stack[cls], 0);
    leave(t);
    unlink_live(t);
    t->next = spare;
    spare = t;
}

void pm_tcache_destroy(struct pm_tcache *t) {
    struct pm_tcache *at = t, *next;
    do {
        for (unsigned cls = 1; cls <= PM_CLASSES; cls++)
            end_seizure(&at->stack[cls]);
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

bool pm_tcache_refill(struct pm_tcache *t, unsigned cls) {
    struct pm_stack *s = &t->stack[cls];
    unsigned want = t->fill[cls];
    unsigned most = s->cap / 2;
    if (want > most)
        want = most;
    t->busy |= 1ull << cls;
    t->ran_empty |= 1ull << cls;
    age_cap(t);
    uint32_t n;
    if (!seize(s, &n))
        return true;
    if (n) { // a handler has filled it
        pm_stack_leave(s);
        return true;
    }
    void **slot = t->slot[cls];
    unsigned got = pm_arena_fill(t->arena, cls, slot, want);
    t->fill[cls] = (uint16_t)(want * 2);
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

void pm_tcache_trim(struct pm_tcache *t, unsigned cls) {
    struct pm_stack *s = &t->stack[cls];
    t->busy |= 1ull << cls;
    if (grow_cap(t, cls))
        return;
    age_cap(t);
    uint32_t n;
    if (!seize(s, &n))
        return;
    return_oldest(t, cls, n / 2, n - n / 2);
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
        held += pm_stack_count(&t->stack[cls]);
    pm_unlock(&pm_tcache_lock);
    return held;
}

static uint64_t misplaced(const struct pm_tcache *t) {
    uint64_t count = 0;
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++)
        for (uint32_t i = 0, n = pm_stack_count(&t->stack[cls]); i < n; i++) {
            const void *p = __atomic_load_n(&t->slot[cls][i], __ATOMIC_RELAXED);
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
}
