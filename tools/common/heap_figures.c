// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "heap_figures.h"

enum { NUMBER = false, BYTES = true };

// Key, label, kind, and where it is: `f` is the recovery, `c` the census. The order is that of all
// outputs.
#define EACH(X)                                                                                    \
    X(roots, "roots", NUMBER, f->roots)                                                            \
    X(live_objects, "live objects", NUMBER, f->live_objects)                                       \
    X(live_bytes, "live bytes", BYTES, f->live_bytes)                                              \
    X(leaked_objects, "leaked objects", NUMBER, f->leaked_objects)                                 \
    X(leaked_bytes, "leaked bytes", BYTES, f->leaked_bytes)                                        \
    X(unfinished, NULL, NUMBER, f->unfinished)                                                     \
    X(heap_bytes, "address space", BYTES, c->frontier)                                             \
    X(slabs, "slabs", NUMBER, c->slabs)                                                            \
    X(slab_bytes, "bytes in slabs", BYTES, c->slab_bytes)                                          \
    X(morphing, NULL, NUMBER, c->morphing)                                                         \
    X(pointer_free, "pointer-free objects", NUMBER, c->pointer_free)                               \
    X(pointer_free_bytes, "pointer-free bytes", BYTES, c->pointer_free_bytes)                      \
    X(pinned, "pinned objects", NUMBER, c->pinned)                                                 \
    X(pinned_bytes, "pinned bytes", BYTES, c->pinned_bytes)                                        \
    X(extents, "large blocks", NUMBER, c->extents)                                                 \
    X(extent_bytes, "bytes in large blocks", BYTES, c->active_bytes - c->slab_bytes)               \
    X(free_bytes, "free address space", BYTES, c->free_bytes)                                      \
    X(log_chunks, NULL, NUMBER, c->log_chunks)                                                     \
    X(log_active_chunks, NULL, NUMBER, c->log_active)                                              \
    X(log_live_entries, NULL, NUMBER, c->log_live)                                                 \
    X(metadata_bytes, "files, metadata", BYTES, c->files.metadata_bytes)                           \
    X(data_bytes, "files, data", BYTES, c->files.data_bytes)

const struct heap_figure heap_figures[] = {
#define ROW(key, label, kind, where) {#key, label, kind},
    EACH(ROW)
#undef ROW
};
const unsigned heap_figures_count = sizeof heap_figures / sizeof *heap_figures;

uint64_t heap_figure(const struct info *info, unsigned index) {
    const struct pm_recovery *f = &info->found;
    const struct census *c = &info->census;
    const uint64_t values[] = {
#define VALUE(key, label, kind, where) where,
        EACH(VALUE)
#undef VALUE
    };
    return values[index];
}
