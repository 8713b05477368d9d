// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "lock_place.h"

#include <stdio.h>
#include <string.h>

#include "base/message.h"
#include "program_maps.h"
#include "roots/elf_file.h"
#include "roots/objects_record.h"

static const char *name_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

// ---- in the file --------------------------------------------------------------------------------

struct search {
    uint64_t value; // as symbols have it
    struct lock_place *out;
};

static void compare(const char *symbol, uint64_t value, uint64_t size, void *arg) {
    struct search *s = arg;
    if (s->value < value || s->value - value >= size || *s->out->variable)
        return;
    snprintf(s->out->variable, sizeof s->out->variable, "%s", symbol);
    s->out->into = s->value - value;
}

// Where its segments would lie, had the file not been moved.
static void find_span(const struct pm_elf *f, uint64_t *from, uint64_t *to) {
    const uint64_t within = PM_PAGE_SIZE - 1;
    ElfW(Phdr) segment;
    *from = UINT64_MAX;
    *to = 0;
    for (size_t i = 0; pm_elf_phdr(f, i, &segment); i++) {
        uint64_t end = (segment.p_vaddr + segment.p_memsz + within) & ~within;
        if (segment.p_type != PT_LOAD)
            continue;
        *from = segment.p_vaddr < *from ? segment.p_vaddr & ~within : *from;
        *to = end > *to ? end : *to;
    }
}

static void find_variable(const struct pm_elf *f, struct lock_place *out) {
    uint64_t from, to;
    struct pm_error ignored;
    find_span(f, &from, &to);
    struct search s = {from + out->offset, out};
    pm_elf_each_variable(f, PM_ELF_IN_SYMTAB, compare, &s, &ignored);
    if (!*out->variable)
        pm_elf_each_variable(f, PM_ELF_IN_DYNSYM, compare, &s, &ignored);
}

static void note_object(const char *path, uint64_t offset, struct lock_place *out) {
    snprintf(out->object, sizeof out->object, "%.*s", (int)sizeof out->object - 1, name_of(path));
    out->offset = offset;
}

// ---- a process ----------------------------------------------------------------------------------

// Between the segments of an object there may be pages of the heap: those of captured roots; and
// behind them memory without a file. So an object is known by where it begins.
struct maps {
    uint64_t at;
    struct lock_place *out;
};

static void look(const struct program_map *m, void *arg) {
    struct maps *s = arg;
    struct pm_elf elf;
    struct pm_error ignored;
    uint64_t from, to;
    if (*s->out->object || !m->inode || m->offset || m->start > s->at ||
        pm_elf_open(&elf, m->name, &ignored) != PM_OK)
        return;
    find_span(&elf, &from, &to);
    if (elf.ino == m->inode && from < to && s->at - m->start < to - from) {
        note_object(m->name, s->at - m->start, s->out);
        find_variable(&elf, s->out);
    }
    pm_elf_close(&elf);
}

// ---- the record of a heap -----------------------------------------------------------------------

static void find_on_record(uint64_t at, struct lock_place *out) {
    unsigned count = 0;
    struct pm_elf elf;
    struct pm_error ignored;
    if (!pm_record_was_read() && !pm_record_read())
        return;
    const struct pm_objects_entry *e = pm_record_entries(&count), *found = NULL;
    for (unsigned i = 0; i < count; i++)
        if (at >= e[i].start && at < e[i].end)
            found = &e[i]; // the last that was loaded there
    if (!found)
        return;
    note_object(found->path, at - found->start, out);
    if (pm_elf_open(&elf, found->path, &ignored) != PM_OK)
        return;
    if (pm_record_is_build_of(found, &elf))
        find_variable(&elf, out);
    pm_elf_close(&elf);
}

void lock_place_find(uint64_t at, pid_t process, struct lock_place *out) {
    *out = (struct lock_place){0};
    if (process)
        (void)program_maps_each(process, look, &(struct maps){at, out});
    else
        find_on_record(at, out);
}
