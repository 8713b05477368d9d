// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "variables.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "program_maps.h"

// ---- one module ---------------------------------------------------------------------------------

// Memory that is read-only once the program runs holds nothing that it keeps.
static void take_ranges(struct module *m) {
    ElfW(Phdr) p;
    uint64_t from = 0, to = 0;
    for (size_t i = 0; pm_elf_phdr(&m->elf, i, &p); i++)
        if (p.p_type == PT_GNU_RELRO) {
            from = m->base + p.p_vaddr;
            to = from + p.p_memsz;
        }
    for (size_t i = 0; pm_elf_phdr(&m->elf, i, &p) && m->ranges < VARIABLES_RANGES; i++) {
        uint64_t start = m->base + p.p_vaddr, end = start + p.p_memsz;
        if (p.p_type != PT_LOAD || !(p.p_flags & PF_W) || end < start)
            continue;
        if (from <= start && start < to)
            start = to < end ? to : end;
        if (start < end) {
            m->range[m->ranges].from = start;
            m->range[m->ranges++].to = end;
        }
    }
}

// A program that uses it has a copy of libc's.
static void note_environ(const char *symbol, uint64_t value, uint64_t size, void *arg) {
    struct module *m = arg;
    if (size == sizeof(char **) && strcmp(symbol, "environ") == 0)
        m->environment = m->base + value;
}

bool module_of_program(struct module *m, const struct pm_program *on_record) {
    struct pm_error ignored;
    *m = (struct module){.base = on_record->main_base};
    snprintf(m->path, sizeof m->path, "%s", on_record->path);
    if (pm_elf_open(&m->elf, m->path, &ignored) != PM_OK)
        return false;
    if (program_is_recorded(&m->elf, on_record))
        return true;
    pm_elf_close(&m->elf);
    return false;
}

// ---- a process ----------------------------------------------------------------------------------

struct finding {
    pid_t pid;
    struct module *module;
    unsigned count, room;
    bool full;
    uint64_t first; // where the file that is mapped now begins
    uint64_t inode;
    bool taken;
    uint64_t program; // the inode number of the main program
};

#define DELETED " (deleted)" // what the kernel adds to the name

static size_t name_length(const char *name) {
    size_t length = strlen(name), more = strlen(DELETED);
    bool deleted = length > more && strcmp(name + length - more, DELETED) == 0;
    return deleted ? length - more : length;
}

static bool is_ours(const char *path) {
    const char *slash = strrchr(path, '/');
    return strncmp(slash ? slash + 1 : path, "libpmalloc", 10) == 0;
}

// A file that was removed or replaced, as by an upgrade, is still there for the process. To others
// the kernel shows a program to whoever may trace it, and a library only to the administrator.
static bool open_file(const struct finding *f, const struct program_map *map, struct module *m) {
    struct pm_error ignored;
    if (map->inode == f->program)
        snprintf(m->path, sizeof m->path, "/proc/%d/exe", (int)f->pid);
    else
        snprintf(m->path, sizeof m->path, "/proc/%d/root%.4000s", (int)f->pid, map->name);
    if (pm_elf_open(&m->elf, m->path, &ignored) == PM_OK)
        return true;
    snprintf(m->path, sizeof m->path, "/proc/%d/map_files/%lx-%lx", (int)f->pid,
             (unsigned long)map->start, (unsigned long)map->end);
    if (pm_elf_open(&m->elf, m->path, &ignored) == PM_OK)
        return true;
    if (map->inode == f->program || strstr(map->name, ".so"))
        pm_say("note: %.300s cannot be read, so its variables are left out", map->name);
    return false;
}

static void open_module(struct finding *f, const struct program_map *map) {
    struct module *m = &f->module[f->count];
    struct pm_error ignored;
    ElfW(Phdr) p;
    *m = (struct module){0};
    const char *slash = strrchr(map->name, '/');
    if (!open_file(f, map, m))
        return;
    if (map->inode != f->program)
        snprintf(m->object, sizeof m->object, "%.*s", (int)name_length(slash + 1), slash + 1);
    for (size_t i = 0; pm_elf_phdr(&m->elf, i, &p); i++)
        if (p.p_type == PT_LOAD) {
            m->base = f->first - (p.p_vaddr & ~4095ull);
            break;
        }
    take_ranges(m);
    pm_elf_each_variable(&m->elf, PM_ELF_IN_DYNSYM, note_environ, m, &ignored);
    f->count++;
}

// A module is a file of which something is executable.
static void find_module(const struct program_map *map, void *arg) {
    struct finding *f = arg;
    if (!map->inode || map->name[0] != '/')
        return;
    if (map->inode != f->inode || map->offset == 0) {
        f->inode = map->inode;
        f->first = map->start - map->offset;
        f->taken = false;
    }
    if (!map->executable || f->taken || is_ours(map->name))
        return;
    f->taken = true;
    if (f->count == f->room) {
        f->room = f->room ? 2 * f->room : 32;
        struct module *more = realloc(f->module, f->room * sizeof *more);
        f->full |= !more;
        if (!more)
            return;
        f->module = more;
    }
    open_module(f, map);
}

unsigned modules_of_process(pid_t pid, struct module **modules, struct pm_error *err) {
    struct finding f = {.pid = pid};
    char exe[32];
    struct stat st;
    snprintf(exe, sizeof exe, "/proc/%d/exe", (int)pid);
    f.program = stat(exe, &st) == 0 ? st.st_ino : 0;
    bool read = program_maps_each(pid, find_module, &f);
    *modules = f.module;
    if (!read)
        pm_fail(err, PM_OPERATIONAL, "process %d cannot be looked at: %s", (int)pid,
                pm_strerror(errno));
    else if (f.full)
        pm_fail(err, PM_OPERATIONAL, "no memory");
    else if (!f.count)
        pm_fail(err, PM_OPERATIONAL, "the program of process %d cannot be read", (int)pid);
    return read && !f.full ? f.count : 0;
}

// ---- names --------------------------------------------------------------------------------------

static void read_names(struct module *m) {
    struct pm_error ignored;
    if (m->named)
        return;
    m->named = true;
    if (root_names_find(m->path, &m->names, &ignored) != PM_OK)
        m->names = (struct root_names){0};
    m->types = calloc(1, sizeof *m->types);
    if (m->types &&
        (program_types_of(m->types, m->path, &ignored) != PM_OK || !program_types_load(m->types))) {
        free(m->types);
        m->types = NULL;
    }
}

// The variable around an address of the file; NULL: none is known.
static const struct root_name *variable_at(struct module *m, uint64_t at, uint64_t length) {
    read_names(m);
    const struct root_name *best = NULL;
    for (size_t i = 0; i < m->names.count; i++) {
        const struct root_name *r = &m->names.name[i];
        if (at - r->offset < r->size && r->size - (at - r->offset) >= length && r->text[0] != '+' &&
            (!best || r->size < best->size))
            best = r;
    }
    return best;
}

void module_range_text(struct module *m, uint64_t address, uint64_t length, char *out, size_t len) {
    uint64_t at = address - m->base;
    const struct root_name *r = variable_at(m, at, length);
    const char *colon = m->object[0] ? ":" : "";
    if (r && r->size == length)
        snprintf(out, len, "%s%s%s", m->object, colon, r->text);
    else
        snprintf(out, len, "%s%s%s+0x%lx/%lu", m->object, colon, r ? r->text : "",
                 (unsigned long)(r ? at - r->offset : at), (unsigned long)length);
}

bool module_member_text(struct module *m, uint64_t address, uint64_t length, char *out) {
    struct dwarf_entry variable;
    char name[DWARF_NAME];
    uint64_t at = address - m->base;
    *out = '\0';
    read_names(m);
    return m->types && dw_variable_around(m->types->types, at, &variable) &&
           dw_full_name(m->types->types, &variable, name, sizeof name) &&
           member_range(m->types->types, variable.type, name, at - variable.address, length, out);
}
