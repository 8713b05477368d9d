// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Thread caches: for each thread a stack of free blocks per size class. The stacks do not lie in
// the blocks. Only the owning thread uses them, but others may empty them (take_back.h). This is
// the hot path of malloc and free: no lock, no instruction with a lock prefix, no flush, no system
// call, no store to media. scripts/counters bounds its instructions.
//
// The stacks are indexed by tag. Tags that do not say a class (PM_TAG_NONE, PM_TAG_EXTENT and
// PM_TAG_KIND) find a stack of capacity 0, and so take the slow path without a test of their own. A
// thread without a cache points to pm_no_tcache; all its stacks have capacity 0. So have those of
// pointer-free blocks before the thread allocates or frees one: until then they cost a thread
// nothing (pm_tcache.stacks).
//
// Invariant: a signal handler finds each stack as before or as after the interrupted request, or
// finds it seized. Handlers may allocate and free too. A pop or push seizes the stack with one
// instruction that tells whether `seized` was 0 and makes it less. Before that instruction the
// request has read nothing from the stack. The store of 0 to `seized` ends the request. In between,
// a handler finds neither a block nor room; it takes the slow path, which leaves a seized stack
// alone. Only this thread uses the stack, so the instruction needs no lock prefix. Refill, trim and
// return seize a stack in the same way.
//
// A cache belongs to a NUMA node, and so do its blocks. At a slow request a thread may find that it
// has moved to another node. Then it goes on with another cache, which it keeps for that node, and
// empties the one it leaves. It does not turn the cache into one of the new node: the thread may be
// in a signal handler, and the interrupted request may go on with what it has read of the cache.
//
// `seized` is apart from `n`, and the instruction is a plain subtraction, because each request
// waits for the store of the last one. Through a single word the processor takes 2 ns more for a
// malloc and free (xadd on Zen 4), and so it does where a bit is tested and set (bts).
//
// Another thread may take all blocks out of a stack (take_back.h): it stores PM_STACK_TAKEN in
// `seized`. The owner's next slow request opens the stack again.
#ifndef PM_TCACHE_H
#define PM_TCACHE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "arena.h"
#include "extent_cache.h"
#include "media/open/shard_nodes.h"
#include "pages/pagemap.h"
#include "pinned_cache.h"

#define PM_LIKELY(x) __builtin_expect(!!(x), 1)
#define PM_UNLIKELY(x) __builtin_expect(!!(x), 0)

#define PM_DEFERRED_MAX 64

// In `seized`: another thread takes the blocks, or has taken them (pm_tcache.emptied).
#define PM_STACK_TAKEN 0x4000

// n <= cap free blocks of the class are in the stack (pm_tcache.slot), whose tags are 0.
//
//   seized   0                     open
//            below 0               a request uses it; 1 less for each handler that looks at it
//            PM_STACK_TAKEN        the blocks are another thread's
//            a little less         the same; 1 less for each request that looks at it
//
// Who looks at a seized stack takes off 1, and adds it again.
struct pm_stack {
    uint32_t n;
    uint16_t cap;
    int16_t seized;
};

// Words of a bit for each stack.
#define PM_STACK_WORDS ((PM_TAGS + 63u) / 64)

struct pm_tcache {
    // Where the memory of the cache's node begins: its first tag and its first byte. They lie in
    // one cache line with the stacks. With one node: pm_tag and pm_base.
    uint8_t *tag;
    uint64_t base;
    // Where the tag of address 0 would stand: so malloc finds a tag without a subtraction.
    uintptr_t tag_of_0;
    // How many granules of the node's memory lie in one range; 0 in pm_no_tcache. A free of another
    // address takes the slow path. Another thread may store 0, to ask the owner to return what it
    // has cached: its next free then takes the slow path.
    uint64_t granules;
    struct pm_stack stack[PM_TAGS];
    void **slot[PM_TAGS]; // the blocks of a stack are slot[tag][0 .. n)
    struct pm_arena *arena;
    struct pm_extent_cache *extents; // the arena's; pm_no_extent_cache in pm_no_tcache
    struct pm_pinned_cache *pinned;  // NULL before the first pinned block; set once
    struct pm_tcache *next, *prev;   // the list of live caches, or of spare ones; pm_tcache_lock
    struct pm_tcache *sibling;       // the thread's next cache, in a ring: one for each node
    uint64_t all_granules;           // what `granules` is unless another thread asks
    uint16_t node;
    // The stacks of tags from 1 up to this are in use: PM_CLASSES + 1, or all, PM_TAGS.
    uint8_t stacks;
    bool parked;            // the thread has moved to another node, and goes on with a sibling
    uint16_t fill[PM_TAGS]; // blocks to take at the next refill; doubles up to cap / 2
    // How far the stacks may grow; see "capacities" in tcache.c. A bit for each stack.
    uint64_t ran_empty[PM_STACK_WORDS], busy[PM_STACK_WORDS];
    uint16_t slow_requests;
    uint8_t last_aged;
    // Deferred frees: blocks that a signal handler freed while the interrupted code held a lock.
    // The thread frees them at its next slow request.
    void *deferred[PM_DEFERRED_MAX];
    uint32_t deferred_count;
    // For take_back.c, a bit for each stack: of these somebody takes the blocks now
    // (pm_tcache_lock); these have PM_STACK_TAKEN, and nobody else uses them any more.
    uint64_t marked[PM_STACK_WORDS];
    _Atomic uint64_t emptied[PM_STACK_WORDS];
    uint64_t heights; // of the stacks as pm_take_back_idle() saw them last; pm_tcache_lock
};

extern __thread struct pm_tcache *pm_tcache __attribute__((tls_model("initial-exec")));
extern struct pm_tcache pm_no_tcache;
// The thread's from here on.
void pm_tcache_use(struct pm_tcache *t);

// The empty asm keeps the stack's address in a register. Without it the compiler computes the
// address anew for each field.
static inline struct pm_stack *pm_stack_of(struct pm_tcache *t, uint64_t tag) {
    struct pm_stack *s = &t->stack[tag];
    __asm__("" : "+r"(s));
    return s;
}

// Seizes the stack. False: an interrupted request or another thread has seized it, and the caller
// must not touch it. The subtraction carries where `seized` was 0. `volatile` and the memory
// clobber keep the compiler from reading the stack before.
static inline bool pm_stack_seize(struct pm_stack *s) {
    bool was_open;
    __asm__ volatile("subw $1, %1" : "=@ccc"(was_open), "+m"(s->seized) : : "memory");
    if (PM_UNLIKELY(!was_open))
        __asm__ volatile("addw $1, %0" : "+m"(s->seized) : : "cc");
    return was_open;
}

// Ends a seizure. The fence keeps the compiler from moving the request's stores after this one. A
// signal handler of the same thread needs no more than that.
static inline void pm_stack_leave(struct pm_stack *s) {
    atomic_signal_fence(memory_order_seq_cst);
    __atomic_store_n(&s->seized, 0, __ATOMIC_RELAXED);
}

// Changes how many blocks the stack has. The caller has seized it.
static inline void pm_stack_set(struct pm_stack *s, uint64_t n) {
    __atomic_store_n(&s->n, (uint32_t)n, __ATOMIC_RELAXED);
}

// Whether the blocks are another thread's. Acquire: then n is as the owner has left it.
static inline bool pm_stack_taken(const struct pm_stack *s) {
    return __atomic_load_n(&s->seized, __ATOMIC_ACQUIRE) > 0;
}

static inline uint32_t pm_stack_count(const struct pm_stack *s) {
    return pm_stack_taken(s) ? 0 : __atomic_load_n(&s->n, __ATOMIC_RELAXED);
}

// Takes a cached block that will have this tag; NULL: the stack is empty or seized.
static inline void *pm_tcache_pop(struct pm_tcache *t, uint64_t tag) {
    struct pm_stack *s = pm_stack_of(t, tag);
    if (PM_UNLIKELY(!pm_stack_seize(s)))
        return NULL;
    uint64_t n;
    if (PM_UNLIKELY(__builtin_sub_overflow((uint64_t)s->n, 1, &n))) {
        pm_stack_leave(s);
        return NULL;
    }
    void *p = t->slot[tag][n];
    if (!p)
        __builtin_unreachable();
    pm_stack_set(s, n);
    pm_stack_leave(s);
    uint8_t *at = (uint8_t *)(t->tag_of_0 + pm_tag_index((uintptr_t)p >> PM_GRANULE_SHIFT));
    __atomic_store_n(at, (uint8_t)tag, __ATOMIC_RELAXED);
    return p;
}

// Caches the block at `p`, whose tag, *at, is `tag` and whose stack is `s`. False: the stack is
// full or seized.
static inline __attribute__((always_inline)) bool
pm_stack_push(struct pm_tcache *t, struct pm_stack *s, uint64_t tag, uint8_t *at, void *p) {
    if (PM_UNLIKELY(!pm_stack_seize(s)))
        return false;
    uint64_t n = s->n;
    __asm__("" : "+r"(n)); // as in pm_stack_of(): without it n is in two registers
    if (PM_UNLIKELY((uint16_t)n >= s->cap)) {
        pm_stack_leave(s);
        return false;
    }
    __atomic_store_n(at, PM_TAG_NONE, __ATOMIC_RELAXED);
    t->slot[tag][n] = p;
    pm_stack_set(s, n + 1);
    pm_stack_leave(s);
    return true;
}

// Caches the block at `p`. False: `p` is no allocated small block of the range that the cache knows
// (granules), or its stack is full or seized.
static inline bool pm_tcache_push(struct pm_tcache *t, void *p) {
    uint64_t granule = pm_granule_from(t->base, p);
    if (PM_UNLIKELY(granule >= t->granules))
        return false;
    uint8_t *at = &t->tag[pm_tag_index(granule)];
    uint64_t tag = __atomic_load_n(at, __ATOMIC_RELAXED);
    return pm_stack_push(t, pm_stack_of(t, tag), tag, at, p);
}

// Caches a block with this tag, wherever the memory of the cache's node lies. False: the stack is
// full or seized.
static inline bool pm_tcache_put(struct pm_tcache *t, void *p, unsigned tag) {
    return pm_stack_push(t, &t->stack[tag], tag, pm_tag_at(p), p);
}

// Returns a cache for this thread, perhaps the spare cache of an ended one. NULL: memory is out.
struct pm_tcache *pm_tcache_create(void);
// Returns the thread's cache of the node that it runs on now, in place of `t`. `t` itself: it is
// the one, or memory is out.
struct pm_tcache *pm_tcache_move(struct pm_tcache *t, unsigned node);
static inline struct pm_tcache *pm_tcache_follow(struct pm_tcache *t) {
    unsigned node = pm_node_mine();
    return PM_LIKELY(node == t->node) ? t : pm_tcache_move(t, node);
}
extern _Atomic uint64_t pm_tcache_moves; // how often threads have moved; relaxed
// Returns every cached block to its slab and makes the thread's caches spare.
void pm_tcache_destroy(struct pm_tcache *t);
// Whether the thread's stack is not seized. In a handler that interrupted a request of it it is.
// Opens a stack that another thread has emptied.
bool pm_tcache_free_to_use(struct pm_tcache *t, unsigned tag);
// Refills an empty stack from the arena; false when memory is out. True says no more: another
// thread may have seized the stack. For a pointer-free tag pm_arenas_add_kinds() has been called.
bool pm_tcache_refill(struct pm_tcache *t, unsigned tag);
// Makes room in a full stack: returns the older half of its blocks to their slabs.
void pm_tcache_trim(struct pm_tcache *t, unsigned tag);
// Makes the thread's cache of pinned blocks, if it has none. False: there is no memory.
bool pm_tcache_add_pinned(struct pm_tcache *t);
// Returns every block of this cache to its slab, except those in seized stacks. False: there were
// such stacks.
bool pm_tcache_return(struct pm_tcache *t);
// The same for the caches of all threads. No other thread is within the allocator.
bool pm_tcaches_return(void);
// Returns how many threads have caches: those that have allocated and not ended.
unsigned pm_tcache_live(void);
// Returns how many blocks of a class, of any kind, all caches hold. A figure for statistics: other
// threads' counts are read while they change.
uint64_t pm_tcache_held(unsigned cls);

// How many blocks caches have that are not of their node; a figure, too. It is 0.
uint64_t pm_tcache_misplaced(void);

// For a forked child, whose only thread owns `mine`: makes the other threads' caches spare and
// drops the blocks in them. Their slabs count these blocks as in use.
void pm_tcache_orphans(struct pm_tcache *mine);
extern bool pm_tcache_lost; // pm_tcache_orphans() has dropped blocks
// From here on every free takes the slow path (process/entry.h).
void pm_tcaches_watch(void);
extern struct pm_tcache *pm_tcache_first; // of the live ones

// Does what another thread has asked of the owner, who calls this at the start of a slow request.
static inline void pm_tcache_answer(struct pm_tcache *t) {
    if (PM_UNLIKELY(t->granules == 0) && t->all_granules) {
        __atomic_store_n(&t->granules, t->all_granules, __ATOMIC_RELAXED);
        pm_tcache_return(t);
    }
}

#endif
