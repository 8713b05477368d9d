// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Toggle references: blocks of which the program decides, before each collection, whether a
// reference from outside keeps them alive.
#include "boehm.h"
#include "live/trace.h"
#include "notes.h"
#include "settings.h"

enum { DROP, STRONG, WEAK }; // GC_ToggleRefStatus

static struct notes toggles;

void pm_gc_toggles_ask(void) {
    if (!pm_gc_settings.toggle)
        return;
    NOTES_EACH(i, &toggles) {
        toggles.note[i].how = (uint32_t)pm_gc_settings.toggle((void *)toggles.note[i].key);
        if (toggles.note[i].how == DROP)
            notes_remove(&toggles, i);
    }
}

void pm_gc_toggles_mark(void) {
    NOTES_EACH(i, &toggles)
    if (toggles.note[i].how == STRONG)
        pm_trace_range(&toggles.note[i].key, sizeof(void *));
}

void pm_gc_toggles_clear(void) {
    NOTES_EACH(i, &toggles)
    if (!pm_trace_is_alive((void *)toggles.note[i].key))
        notes_remove(&toggles, i);
}

EXPORT int GC_toggleref_add(void *block, int strong) {
    int result = GC_DONE;
    pm_gc_init();
    pm_gc_lock();
    if (pm_gc_settings.toggle) {
        uint32_t i = notes_find(&toggles, (uintptr_t)block);
        if (!i)
            i = notes_add(&toggles, (uintptr_t)block);
        if (i)
            toggles.note[i].how = strong ? STRONG : WEAK;
        else
            result = GC_NO_MEMORY;
    }
    pm_gc_unlock();
    return result;
}
