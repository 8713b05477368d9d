// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Kinds of blocks that the program defines, typed blocks, and blocks in lists (gc_mark.h,
// gc_typed.h, gc_gcj.h, gc_inline.h).
#include <string.h>

#include "boehm.h"
#include "live/trace.h"
#include "process/entry.h"
#include "settings.h"

#define RESERVED_PROCS 8u // GC_RESERVED_MARK_PROCS
#define BITMAP_BITS 62u
#define LIST_BYTES 4096u
#define LIST_MAX 64u

static unsigned kinds = KIND_FIRST_FREE, procs = RESERVED_PROCS;

// The free lists are not used. They are one for each kind, so that the program can tell them apart.
EXPORT void **GC_new_free_list(void) { return pm_gc_alloc(sizeof(void *), KIND_UNCOLLECTABLE); }
EXPORT void **GC_new_free_list_inner(void) { return GC_new_free_list(); }

unsigned pm_gc_new_kind(gc_word descriptor, bool add_size, bool clear) {
    pm_gc_init();
    pm_gc_lock();
    if (kinds == PM_COL_KINDS)
        pm_gc_abort("Too many kinds");
    unsigned kind = kinds++;
    pm_col_kinds[kind] = (struct pm_col_kind){
        .descriptor = descriptor, .add_size = add_size, .clear = clear, .mortal = true};
    pm_gc_unlock();
    return kind;
}
EXPORT unsigned GC_new_kind(void **list, gc_word descriptor, int add_size, int clear) {
    (void)list;
    return pm_gc_new_kind(descriptor, add_size != 0, clear != 0);
}
EXPORT unsigned GC_new_kind_inner(void **list, gc_word descriptor, int add_size, int clear) {
    return GC_new_kind(list, descriptor, add_size, clear);
}

EXPORT unsigned GC_new_proc(pm_trace_proc *proc) {
    pm_gc_lock();
    if (procs == PM_TRACE_PROCS)
        pm_gc_abort("Too many mark procedures");
    unsigned number = procs++;
    pm_trace_procs[number] = proc;
    pm_gc_unlock();
    return number;
}
EXPORT unsigned GC_new_proc_inner(pm_trace_proc *proc) { return GC_new_proc(proc); }

// ---- blocks of a kind ---------------------------------------------------------------------------

static unsigned checked(int kind) {
    pm_gc_init();
    if (kind < 0 || (unsigned)kind >= kinds)
        pm_gc_abort("there is no such kind of objects");
    return (unsigned)kind;
}

#define OF_KIND(name)                                                                              \
    EXPORT void *name(size_t size, int kind) { return pm_gc_alloc(size, checked(kind)); }
OF_KIND(GC_generic_malloc)
OF_KIND(GC_generic_malloc_ignore_off_page)
OF_KIND(GC_generic_or_special_malloc)
OF_KIND(GC_malloc_kind)
OF_KIND(GC_malloc_kind_global)

EXPORT void *GC_generic_malloc_uncollectable(size_t size, int kind) {
    return pm_gc_alloc(size, checked(kind) == KIND_ATOMIC ? KIND_ATOMIC_UNCOLLECTABLE
                                                          : KIND_UNCOLLECTABLE);
}

// A chain by the first words. `size` is that of the whole block. Amid this a collection may come:
// until the chain is whole, all of its blocks stand on the stack, because blocks of a kind without
// pointers do not keep each other alive. Afterwards that is the caller's concern.
EXPORT void GC_generic_malloc_many(size_t size, int kind, void **result) {
    void *volatile block[LIST_MAX];
    size_t most = LIST_BYTES / (size ? size : 1), padding = pm_gc_padded(size) - size;
    unsigned count = 0, want = most > LIST_MAX ? LIST_MAX : most ? (unsigned)most : 1;
    void *first = NULL;
    checked(kind);
    while (count < want && (block[count] = pm_gc_alloc(size - padding, (unsigned)kind)))
        count++;
    for (unsigned i = 0; i < count; i++) {
        *(void **)block[i] = first;
        first = block[i];
    }
    *result = first;
}

EXPORT void *GC_malloc_many(size_t size) {
    void *first;
    GC_generic_malloc_many(pm_gc_padded(size), KIND_NORMAL, &first);
    return first;
}

// ---- typed --------------------------------------------------------------------------------------

// A bitmap that is too long for a descriptor becomes the length up to its last pointer.
EXPORT gc_word GC_make_descriptor(const gc_word *bits, size_t count) {
    size_t last = count;
    gc_word map = 0;
    while (last > 0 && !(bits[(last - 1) / 64] >> ((last - 1) % 64) & 1))
        last--;
    if (last == 0)
        return 0;
    if (last > BITMAP_BITS)
        return last * sizeof(gc_word);
    for (size_t i = 0; i < last; i++)
        map |= (bits[0] >> i & 1) << (63 - i);
    return map | PM_TRACE_BITMAP;
}

EXPORT void *GC_malloc_explicitly_typed(size_t size, gc_word descriptor) {
    if (size > SIZE_MAX / 2)
        return GC_oom_fn(size);
    size_t room = (size + sizeof(gc_word) - 1) / sizeof(gc_word) * sizeof(gc_word);
    char *p = pm_gc_alloc(room + sizeof(gc_word), KIND_TYPED);
    if (p)
        memcpy(p + pm_usable_size(p) - sizeof descriptor, &descriptor, sizeof descriptor);
    return p;
}
EXPORT void *GC_malloc_explicitly_typed_ignore_off_page(size_t size, gc_word descriptor) {
    return GC_malloc_explicitly_typed(size, descriptor);
}

// Of an array only this is used: whether its elements hold pointers.
EXPORT void *GC_calloc_explicitly_typed(size_t count, size_t size, gc_word descriptor) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
        return GC_oom_fn(SIZE_MAX);
    void *p = count == 1   ? GC_malloc_explicitly_typed(bytes, descriptor)
              : descriptor ? pm_gc_alloc(bytes, KIND_NORMAL)
                           : pm_gc_alloc(bytes, KIND_ATOMIC);
    return p && count != 1 && !descriptor ? memset(p, 0, bytes) : p;
}

// ---- gcj ----------------------------------------------------------------------------------------

EXPORT int GC_gcj_kind = KIND_GCJ, GC_gcj_debug_kind = KIND_GCJ;

EXPORT void GC_init_gcj_malloc(int number, void *proc) {
    pm_gc_init();
    if (number < 0 || (unsigned)number >= RESERVED_PROCS)
        pm_gc_abort(
            "GC_init_gcj_malloc: the number of the mark procedure is none that is reserved");
    pm_trace_procs[number] = (pm_trace_proc *)proc;
}
EXPORT void *GC_gcj_malloc(size_t size, void *type) {
    void **p = pm_gc_alloc(size, KIND_GCJ);
    if (p)
        *p = type;
    return p;
}
EXPORT void *GC_gcj_malloc_ignore_off_page(size_t size, void *type) {
    return GC_gcj_malloc(size, type);
}
EXPORT void GC_register_describe_type_fn(int kind, void *fn) {
    (void)kind;
    (void)fn;
}
