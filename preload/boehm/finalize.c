// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Finalizers: functions that are called once a block is dead. The block, and all that it reaches,
// lives until its finalizer has run. Which blocks are dead depends on how they are registered:
//
//   ORDINARY      nothing reaches the block, and neither does another block with a finalizer, or
//                 it does itself (then never)
//   IGNORE_SELF   the same, but pointers from the block to itself are ignored
//   NO_ORDER      no root reaches it
//   UNREACHABLE   as NO_ORDER, and after the finalizers of all blocks that reach it have run
//
// The steps, after the marking from the roots:
//   1  mark what blocks with finalizers reach, each as it is registered; not the blocks
//   2  those that have no mark now are ready: they leave the table for the queue
//   3  mark them, and what NO_ORDER ones reach; UNREACHABLE ones that got a mark go back
#include <errno.h>

#include "boehm.h"
#include "live/trace.h"
#include "notes.h"
#include "pages/pagemap.h"
#include "settings.h"

enum { ORDINARY, IGNORE_SELF, NO_ORDER, UNREACHABLE };

typedef void gc_finalizer(void *block, void *data);

static struct notes finalizers;
// Ready ones. Their keys are numbers, in the order in which they are called.
static struct notes ready;
static _Atomic uint32_t ready_count;

static void set(void *block, gc_finalizer *call, void *data, gc_finalizer **old_call,
                void **old_data, uint32_t how) {
    struct note old = {0};
    pm_gc_init();
    pm_gc_lock();
    struct pm_col_block b;
    bool ours = pm_col_find(block, &b) && b.base == block;
    uint32_t i = notes_find(&finalizers, (uintptr_t)block);
    if (i)
        old = finalizers.note[i];
    if (i && !call)
        notes_remove(&finalizers, i);
    else if (call && ours && (i || (i = notes_add(&finalizers, (uintptr_t)block)) != 0)) {
        finalizers.note[i].call = call;
        finalizers.note[i].data = data;
        finalizers.note[i].how = how;
    }
    pm_gc_unlock();
    if (old_call)
        *old_call = old.call;
    if (old_data)
        *old_data = old.data;
}

// A block that GC_free() frees has no finalizer any more.
void pm_gc_finalizer_forget(const void *block) {
    if (finalizers.count)
        set((void *)(uintptr_t)block, NULL, NULL, NULL, NULL, 0);
}

// ---- with the world held ------------------------------------------------------------------------

void pm_gc_finalizers_mark(void) {
    NOTES_EACH(i, &finalizers)
    pm_trace_range(&finalizers.note[i].data, sizeof(void *));
    NOTES_EACH(i, &ready) {
        pm_trace_range(&ready.note[i].block, sizeof(void *));
        pm_trace_range(&ready.note[i].data, sizeof(void *));
    }
}

static void *block_at(const struct notes *t, uint32_t i) { return (void *)t->note[i].key; }

static void mark_what_they_reach(void) {
    NOTES_EACH(i, &finalizers) {
        const struct note *n = &finalizers.note[i];
        if (n->how == NO_ORDER || n->how == UNREACHABLE ||
            pm_trace_is_alive(block_at(&finalizers, i)))
            continue;
        pm_trace_children(block_at(&finalizers, i), n->how == IGNORE_SELF);
        if (n->how == ORDINARY && pm_trace_is_alive(block_at(&finalizers, i)))
            pm_gc_warn("Finalization cycle involving 0x%lx\n", n->key);
    }
    pm_trace_all();
}

static uint64_t serial; // the key of a note in the queue; no two are the same

static bool enqueue(const struct note *n) {
    uint32_t q = notes_add(&ready, (uintptr_t)++serial);
    if (!q)
        return false;
    uintptr_t key = ready.note[q].key;
    uint32_t next = ready.note[q].next;
    ready.note[q] = *n;
    ready.note[q].block = n->key;
    ready.note[q].key = key;
    ready.note[q].next = next;
    return true;
}

static void mark_block(const void *block) {
    pm_trace_pointer(block);
    pm_trace_all();
}

// Without Java's rules what a NO_ORDER block reaches may be dead before its finalizer runs.
static void keep(uint64_t from) {
    for (uint64_t s = from + 1; s <= serial; s++) {
        uint32_t i = notes_find(&ready, (uintptr_t)s);
        const struct note *n = i ? &ready.note[i] : NULL;
        if (!n || n->how == UNREACHABLE)
            continue;
        if (GC_java_finalization || n->how != NO_ORDER)
            mark_block((void *)n->block);
        else
            pm_trace_only((void *)n->block);
    }
    for (uint64_t s = from + 1; s <= serial; s++) {
        uint32_t i = notes_find(&ready, (uintptr_t)s);
        if (!i || ready.note[i].how != UNREACHABLE)
            continue;
        struct note n = ready.note[i];
        if (!pm_trace_is_alive((void *)n.block)) {
            mark_block((void *)n.block);
            continue;
        }
        uint32_t back = notes_add(&finalizers, n.block);
        if (!back)
            continue;
        finalizers.note[back].call = n.call;
        finalizers.note[back].data = n.data;
        finalizers.note[back].how = UNREACHABLE;
        notes_remove(&ready, i);
    }
}

static void call_await(void) {
    if (!pm_gc_settings.await_finalize)
        return;
    NOTES_EACH(i, &ready)
    pm_gc_settings.await_finalize((void *)ready.note[i].block);
}

void pm_gc_finalizers_find(void) {
    uint64_t from = serial;
    mark_what_they_reach();
    NOTES_EACH(i, &finalizers)
    if (!pm_trace_is_alive(block_at(&finalizers, i)) && enqueue(&finalizers.note[i]))
        notes_remove(&finalizers, i);
    keep(from);
    if (serial != from)
        call_await();
    atomic_store_explicit(&ready_count, ready.count, memory_order_release);
}

// ---- calls --------------------------------------------------------------------------------------

static uint64_t next_serial = 1;

// Takes the next one off the queue.
static bool take(struct note *n) {
    bool found = false;
    pm_gc_lock();
    while (ready.count && next_serial <= serial && !found) {
        uint32_t i = notes_find(&ready, (uintptr_t)next_serial++);
        found = i != 0;
        if (i) {
            *n = ready.note[i];
            notes_remove(&ready, i);
        }
    }
    atomic_store_explicit(&ready_count, ready.count, memory_order_release);
    pm_gc_unlock();
    return found;
}

EXPORT int GC_should_invoke_finalizers(void) {
    return atomic_load_explicit(&ready_count, memory_order_acquire) != 0;
}

EXPORT int GC_invoke_finalizers(void) {
    int count = 0;
    struct note n = {0};
    for (; GC_should_invoke_finalizers() && take(&n); count++)
        n.call((void *)n.block, n.data);
    return count;
}

static __thread bool calling __attribute__((tls_model("initial-exec")));

void pm_gc_finalizers_due(void) {
    static uint64_t told;
    if (!GC_should_invoke_finalizers() || calling || pm_gc_marking)
        return;
    int saved = errno;
    calling = true;
    if (!GC_finalize_on_demand) {
        GC_invoke_finalizers();
    } else if (GC_finalizer_notifier && told != GC_gc_no) {
        told = GC_gc_no;
        GC_finalizer_notifier();
    }
    calling = false;
    errno = saved;
}

EXPORT void GC_finalize_all(void) {
    pm_gc_lock();
    while (finalizers.count) {
        NOTES_EACH(i, &finalizers)
        if (enqueue(&finalizers.note[i]))
            notes_remove(&finalizers, i);
        atomic_store_explicit(&ready_count, ready.count, memory_order_release);
        pm_gc_unlock();
        GC_invoke_finalizers();
        pm_gc_lock();
    }
    pm_gc_unlock();
}

// ---- names --------------------------------------------------------------------------------------

#define REGISTER(name, how)                                                                        \
    EXPORT void name(void *block, gc_finalizer *call, void *data, gc_finalizer **old_call,         \
                     void **old_data) {                                                            \
        set(block, call, data, old_call, old_data, how);                                           \
    }
REGISTER(GC_register_finalizer, ORDINARY)
REGISTER(GC_register_finalizer_ignore_self, IGNORE_SELF)
REGISTER(GC_register_finalizer_no_order, NO_ORDER)
REGISTER(GC_register_finalizer_unreachable, UNREACHABLE)
REGISTER(GC_debug_register_finalizer, ORDINARY)
REGISTER(GC_debug_register_finalizer_ignore_self, IGNORE_SELF)
REGISTER(GC_debug_register_finalizer_no_order, NO_ORDER)
REGISTER(GC_debug_register_finalizer_unreachable, UNREACHABLE)
