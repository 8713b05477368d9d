// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "hold_place.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "base/mappings.h"
#include "roots/loaded_object.h"
#include "roots/objects_record.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
#define FILLERS 128u

static struct { uint64_t at, len; } filler[FILLERS];
static unsigned fillers;

// A filler that cannot be had is a gap that another mapping has taken meanwhile.
static void fill(uint64_t from, uint64_t to) {
    if (from >= to || fillers == FILLERS)
        return;
    void *at = (void *)(uintptr_t)from;
    if (mmap(at, to - from, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) != at)
        return;
    filler[fillers].at = from;
    filler[fillers++].len = to - from;
}

void pm_place_release(void) {
    while (fillers) {
        fillers--;
        munmap((void *)(uintptr_t)filler[fillers].at, filler[fillers].len);
    }
}

// ---- what is known of the file ------------------------------------------------------------------

static bool is_loaded(const struct pm_objects_entry *loaded, void *entry) {
    const struct pm_objects_entry **e = entry;
    if (pm_record_same_object(loaded, *e))
        *e = NULL;
    return *e != NULL;
}

// The last place where it lay.
static const struct pm_objects_entry *find(const char *file) {
    unsigned count;
    const struct pm_objects_entry *all = pm_record_entries(&count), *found = NULL;
    for (unsigned i = 0; i < count; i++)
        if (!(all[i].flags & PM_OBJECT_IS_PROGRAM) &&
            strcmp(pm_base_name(all[i].path), pm_base_name(file)) == 0)
            found = &all[i];
    if (found)
        pm_record_each_loaded(is_loaded, &found);
    return found;
}

// Where the file cannot be found by its name alone, libc looks for it.
static bool is_another_build(const struct pm_objects_entry *e, const char *file) {
    struct pm_objects_entry now = {0};
    struct pm_error ignored;
    struct pm_elf elf;
    if (pm_elf_open(&elf, strchr(file, '/') ? file : e->path, &ignored) != PM_OK)
        return false;
    now.build_id_len = (uint32_t)pm_elf_build_id(&elf, now.build_id);
    pm_elf_close(&elf);
    return now.build_id_len && !pm_record_same_build(e, &now);
}

// ---- the gaps -----------------------------------------------------------------------------------

struct gaps {
    uint64_t from;               // behind what has been seen
    uint64_t last_from, last_to; // the gap that was seen last
};

// The gap before the last mapping is left: that mapping is the stack, or what the kernel has put
// above all others.
static void see(uint64_t from, uint64_t to, int access, void *arg) {
    struct gaps *g = arg;
    (void)access;
    fill(g->last_from, g->last_to);
    g->last_from = g->from;
    g->last_to = from;
    g->from = to;
}

#define USER_TOP (((uint64_t)1 << 47) - 4096)

bool pm_place_hold(const char *file) {
    const struct pm_objects_entry *e = file ? find(file) : NULL;
    if (!e || fillers)
        return false;
    if (is_another_build(e, file)) {
        fill(e->start, e->end);
        return fillers != 0;
    }
    struct gaps g = {.from = e->end};
    pm_mappings_each(e->end, USER_TOP, see, &g);
    return fillers != 0;
}
