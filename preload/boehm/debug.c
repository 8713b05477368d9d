// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What programs that define GC_DEBUG call. Blocks have no header here: every free is checked, and
// no word of the heap's own lies beside the program's (docs/guide.md). So these do what the plain
// names do, without the place that they are told.
#include "boehm.h"

// Declared by gc.h, and defined in the other files of this folder.
void *GC_malloc(size_t), *GC_malloc_atomic(size_t), *GC_malloc_uncollectable(size_t);
void *GC_malloc_atomic_uncollectable(size_t), *GC_realloc(void *, size_t);
void *GC_generic_malloc(size_t, int), *GC_gcj_malloc(size_t, void *);
char *GC_strdup(const char *), *GC_strndup(const char *, size_t);

EXPORT const size_t GC_debug_header_size = 0;
EXPORT size_t GC_get_debug_header_size(void) { return 0; }

#define DEBUG(name, plain)                                                                         \
    EXPORT void *name(size_t size, const char *file, int line) {                                   \
        (void)file, (void)line;                                                                    \
        return plain(size);                                                                        \
    }
DEBUG(GC_debug_malloc, GC_malloc)
DEBUG(GC_debug_malloc_atomic, GC_malloc_atomic)
DEBUG(GC_debug_malloc_uncollectable, GC_malloc_uncollectable)
DEBUG(GC_debug_malloc_atomic_uncollectable, GC_malloc_atomic_uncollectable)
DEBUG(GC_debug_malloc_ignore_off_page, GC_malloc)
DEBUG(GC_debug_malloc_atomic_ignore_off_page, GC_malloc_atomic)
DEBUG(GC_debug_malloc_stubborn, GC_malloc)
EXPORT void *GC_debug_malloc_replacement(size_t size) { return GC_malloc(size); }
EXPORT void *GC_debug_realloc_replacement(void *p, size_t size) { return GC_realloc(p, size); }

EXPORT void *GC_debug_realloc(void *p, size_t size, const char *file, int line) {
    (void)file, (void)line;
    return GC_realloc(p, size);
}
EXPORT char *GC_debug_strdup(const char *text, const char *file, int line) {
    (void)file, (void)line;
    return GC_strdup(text);
}
EXPORT char *GC_debug_strndup(const char *text, size_t size, const char *file, int line) {
    (void)file, (void)line;
    return GC_strndup(text, size);
}
EXPORT void *GC_debug_generic_or_special_malloc(size_t size, int kind, const char *file, int line) {
    (void)file, (void)line;
    return GC_generic_malloc(size, kind);
}
EXPORT void *GC_debug_gcj_malloc(size_t size, void *type, const char *file, int line) {
    (void)file, (void)line;
    return GC_gcj_malloc(size, type);
}
EXPORT void GC_debug_free(void *p) { pm_gc_free(p); }
EXPORT void GC_debug_change_stubborn(const void *p) { (void)p; }
EXPORT void GC_debug_end_stubborn_change(const void *p) { (void)p; }
EXPORT void GC_debug_ptr_store_and_dirty(void *p, const void *q) { *(const void **)p = q; }
