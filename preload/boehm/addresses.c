// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What an address belongs to, and the checks of pointers that gc.h has.
#include "boehm.h"
#include "live/collectable.h"
#include "process/entry.h"

EXPORT void *GC_base(void *p) {
    struct pm_col_block b;
    return pm_col_find(p, &b) ? b.base : NULL;
}
EXPORT int GC_is_heap_ptr(const void *p) {
    struct pm_col_block b;
    return pm_col_find(p, &b);
}
EXPORT size_t GC_size(const void *p) {
    struct pm_col_block b;
    return pm_col_find(p, &b) ? b.size : pm_usable_size((void *)(uintptr_t)p);
}
EXPORT int GC_get_kind_and_size(const void *p, size_t *size) {
    struct pm_col_block b = {0};
    pm_col_find(p, &b);
    if (size)
        *size = b.size;
    return b.byte & PM_COL_KIND;
}

// ---- checks ------------------------------------------------------------------------------------

static void fail_same(void *p, void *q) {
    (void)p, (void)q;
    pm_gc_abort("GC_same_obj test failed: the two pointers are into different objects");
}
static void fail_displacement(void *p) {
    (void)p;
    pm_gc_abort("GC_is_valid_displacement test failed");
}
static void fail_visible(void *p) {
    (void)p;
    pm_gc_abort("GC_is_visible test failed");
}
EXPORT void (*GC_same_obj_print_proc)(void *, void *) = fail_same;
EXPORT void (*GC_is_valid_displacement_print_proc)(void *) = fail_displacement;
EXPORT void (*GC_is_visible_print_proc)(void *) = fail_visible;

// All memory that the program can store to is looked at.
EXPORT void *GC_is_visible(void *p) { return p; }
EXPORT void *GC_is_valid_displacement(void *p) { return p; }

EXPORT void *GC_same_obj(void *p, void *q) {
    struct pm_col_block a = {0}, b = {0};
    pm_col_find(p, &a);
    pm_col_find(q, &b);
    if (a.base != b.base)
        GC_same_obj_print_proc(p, q);
    return p;
}
EXPORT void *GC_pre_incr(void **p, ptrdiff_t by) {
    *p = GC_same_obj((char *)*p + by, *p);
    return *p;
}
EXPORT void *GC_post_incr(void **p, ptrdiff_t by) {
    void *old = *p;
    GC_pre_incr(p, by);
    return old;
}
