// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "build_of.h"

#include <stdatomic.h>
#include <string.h>

#include "base/crc.h"

// One sum of code, one of constants, one of what variables begin with.
enum { CODE, CONSTANTS, VARIABLES, SUMS };

static unsigned part_of(const ElfW(Phdr) * p) {
    return p->p_flags & PF_W ? VARIABLES : p->p_flags & PF_X ? CODE : CONSTANTS;
}

// Without the file's own header, which says where sections are: a strip moves them.
static void add_segment(const struct pm_elf *f, const ElfW(Phdr) * p, uint32_t sum[SUMS]) {
    uint64_t skip = p->p_offset < sizeof f->ehdr ? sizeof f->ehdr - p->p_offset : 0;
    skip = skip < p->p_filesz ? skip : p->p_filesz;
    const unsigned char *bytes = pm_elf_bytes(f, p->p_offset + skip, p->p_filesz - skip);
    uint32_t *s = &sum[part_of(p)];
    *s = pm_crc32c(*s, p, sizeof *p);
    if (bytes)
        *s = pm_crc32c(*s, bytes, p->p_filesz - skip);
}

static void sum_up(const struct pm_elf *f, struct pm_objects_entry *e) {
    uint32_t sum[SUMS] = {0};
    ElfW(Phdr) p;
    for (size_t i = 0; pm_elf_phdr(f, i, &p); i++)
        if (p.p_type == PT_LOAD)
            add_segment(f, &p, sum);
    memcpy(e->build_id, sum, sizeof sum);
    e->build_id_len = sizeof sum;
}

void pm_build_of_file(const struct pm_elf *f, struct pm_objects_entry *e) {
    e->build_id_len = (uint32_t)pm_elf_build_id(f, e->build_id);
    if (e->build_id_len)
        return;
    e->flags |= PM_OBJECT_SUMMED;
    sum_up(f, e);
}

// ---- of what is loaded --------------------------------------------------------------------------

// What was summed up already. What has been unloaded since may have left its place to another.
#define KNOWN 64u
static struct known {
    uintptr_t base;
    uint64_t unloads;
    uint32_t len;
    uint8_t sum[SUMS * sizeof(uint32_t)];
} known[KNOWN];
static unsigned next_known;
static _Atomic bool in_use; // by another thread, or for good in a child that was forked meanwhile

static const struct known *find(const struct pm_object *o) {
    for (unsigned i = 0; i < KNOWN; i++)
        if (known[i].len && known[i].base == o->base && known[i].unloads == o->unloads)
            return &known[i];
    return NULL;
}

static void remember(const struct pm_object *o, const struct pm_objects_entry *e) {
    struct known *k = &known[next_known++ % KNOWN];
    *k = (struct known){.base = o->base, .unloads = o->unloads, .len = e->build_id_len};
    memcpy(k->sum, e->build_id, sizeof k->sum);
}

static void sum_up_loaded(const struct pm_object *o, struct pm_objects_entry *e) {
    struct pm_elf file;
    struct pm_error ignored;
    if (pm_object_open(o, &file, &ignored) != PM_OK)
        return;
    sum_up(&file, e);
    pm_elf_close(&file);
}

void pm_build_of_loaded(const struct pm_object *o, struct pm_objects_entry *e) {
    e->build_id_len = (uint32_t)pm_object_build_id(o, e->build_id);
    if (e->build_id_len)
        return;
    e->flags |= PM_OBJECT_SUMMED;
    bool may = !atomic_exchange(&in_use, true);
    const struct known *k = may ? find(o) : NULL;
    if (k) {
        memcpy(e->build_id, k->sum, sizeof k->sum);
        e->build_id_len = k->len;
    } else {
        sum_up_loaded(o, e);
    }
    if (may && !k && e->build_id_len)
        remember(o, e);
    if (may)
        atomic_store(&in_use, false);
}
