// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "types.h"

#include "holes.h"
#include "kinds.h"

static uint32_t *heads;

static unsigned arenas(void) { return PM_ARENAS_TYPED * pm_nodes.count; }

size_t pm_types_bytes(void) {
    return (size_t)arenas() * (PM_CLASSES + 1) * PM_TYPE_CHAINS * sizeof *heads;
}

void pm_types_init(void *memory) { heads = memory; }

// NULL: the arena is none of typed slabs.
static uint32_t *head_of(unsigned arena, unsigned cls, uint16_t type) {
    unsigned number = arena - pm_typed_arena(PM_KIND_TYPED, 0);
    if (number >= arenas())
        return NULL;
    return &heads[((size_t)number * (PM_CLASSES + 1) + cls) * PM_TYPE_CHAINS +
                  type % PM_TYPE_CHAINS];
}

void pm_types_link(uint32_t slab) {
    struct pm_vslab *v = &pm_vslabs[slab];
    uint32_t *head = head_of(v->arena, v->size_class, v->type);
    if (!head)
        return;
    v->typed_prev = 0;
    v->typed_next = *head;
    if (v->typed_next)
        pm_vslabs[v->typed_next - 1].typed_prev = slab + 1;
    *head = slab + 1;
}

void pm_types_unlink(uint32_t slab) {
    const struct pm_vslab *v = &pm_vslabs[slab];
    uint32_t *head = head_of(v->arena, v->size_class, v->type);
    if (!head)
        return;
    *(v->typed_prev ? &pm_vslabs[v->typed_prev - 1].typed_next : head) = v->typed_next;
    if (v->typed_next)
        pm_vslabs[v->typed_next - 1].typed_prev = v->typed_prev;
}

// A slab stands in its bin without a free block while others' frees wait for it.
static bool is_good(uint32_t slab, uint16_t type) {
    const struct pm_vslab *v = &pm_vslabs[slab];
    return v->type == type && v->free_count && (!v->holes || pm_holes_ready(slab, 1));
}

uint32_t pm_types_find(unsigned arena, unsigned cls, uint16_t type) {
    uint32_t at = *head_of(arena, cls, type);
    while (at && !is_good(at - 1, type))
        at = pm_vslabs[at - 1].typed_next;
    return at;
}

bool pm_types_has(uint32_t slab) {
    const struct pm_vslab *v = &pm_vslabs[slab];
    const uint32_t *head = head_of(v->arena, v->size_class, v->type);
    uint32_t at = head ? *head : 0, previous = 0;
    while (at && at != slab + 1 && pm_vslabs[at - 1].typed_prev == previous) {
        previous = at;
        at = pm_vslabs[at - 1].typed_next;
    }
    return at == slab + 1 && v->typed_prev == previous;
}
