// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "heap_part.h"

#include "media/journal/journal.h"

struct pm_file *pm_heap_part(unsigned number) {
    struct pm_shard *s = &pm_heap.shard[number / PM_JOURNAL_MEMBERS];
    switch (number % PM_JOURNAL_MEMBERS) {
    case PM_JOURNAL_SELF:
        return &pm_heap.journal;
    case PM_JOURNAL_SUPER:
        return &pm_heap.super_file;
    case PM_JOURNAL_ROOTS:
        return &pm_heap.roots;
    case PM_JOURNAL_DATA:
        return &s->data;
    case PM_JOURNAL_SLABS:
        return &s->slabs;
    case PM_JOURNAL_LOG:
        return &s->log;
    case PM_JOURNAL_MORPH:
        return &s->morph;
    }
    return NULL;
}
