// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "comes_along.h"

#include <string.h>

#include "roots/build_of.h"
#include "roots/loaded_object.h"
#include "roots/objects_record.h"

struct along {
    const struct pm_objects_entry **list;
    unsigned count;
    bool unknown; // what comes next is not known
};

static bool is_named(const struct pm_objects_entry *e, const char *name) {
    return strcmp(pm_base_name(e->path), name) == 0;
}

struct loaded {
    const char *name;
    bool there;
};

static bool look_at_loaded(const struct pm_objects_entry *e, void *arg) {
    struct loaded *l = arg;
    return !(l->there = is_named(e, l->name));
}

static bool is_loaded(const char *name) {
    struct loaded l = {name, false};
    pm_record_each_loaded(look_at_loaded, &l);
    return l.there;
}

static bool is_listed(const struct along *a, const char *name) {
    for (unsigned i = 0; i < a->count; i++)
        if (is_named(a->list[i], name))
            return true;
    return false;
}

static bool is_same_build_now(const struct pm_objects_entry *e) {
    struct pm_error ignored;
    struct pm_elf elf;
    if (pm_elf_open(&elf, e->path, &ignored) != PM_OK)
        return false;
    bool same = pm_record_is_build_of(e, &elf);
    pm_elf_close(&elf);
    return same;
}

// The last place where it lay.
static const struct pm_objects_entry *on_record(const char *name) {
    unsigned count;
    const struct pm_objects_entry *all = pm_record_entries(&count), *found = NULL;
    for (unsigned i = 0; i < count; i++)
        if (is_named(&all[i], name) && !(all[i].flags & PM_OBJECT_IS_PROGRAM))
            found = &all[i];
    return found;
}

static void need(struct along *a, const char *name) {
    if (a->unknown || is_listed(a, name) || is_loaded(name))
        return;
    const struct pm_objects_entry *e = on_record(name);
    a->unknown = !e || a->count == PM_ALONG_MOST || !is_same_build_now(e);
    if (!a->unknown)
        a->list[a->count++] = e;
}

static bool find_dynamic(const struct pm_elf *f, ElfW(Shdr) * s) {
    for (size_t i = 0; pm_elf_shdr(f, i, s); i++)
        if (s->sh_type == SHT_DYNAMIC)
            return true;
    return false;
}

static void need_all(struct along *a, const struct pm_elf *f) {
    ElfW(Shdr) s, strings;
    ElfW(Dyn) d;
    if (!find_dynamic(f, &s) || !pm_elf_shdr(f, s.sh_link, &strings))
        return;
    const unsigned char *all = pm_elf_bytes(f, s.sh_offset, s.sh_size);
    const char *text = (const char *)pm_elf_bytes(f, strings.sh_offset, strings.sh_size);
    for (size_t at = 0; all && text && at + sizeof d <= s.sh_size; at += sizeof d) {
        memcpy(&d, all + at, sizeof d);
        uint64_t name = d.d_un.d_val, left = strings.sh_size - name;
        if (d.d_tag == DT_NULL)
            return;
        if (d.d_tag == DT_NEEDED && name < strings.sh_size && memchr(text + name, 0, left))
            need(a, pm_base_name(text + name)); // a linker may have put a path there
    }
}

unsigned pm_comes_along(const struct pm_objects_entry *list[PM_ALONG_MOST], const char *path) {
    struct along a = {list, 1, false};
    for (unsigned i = 0; i < a.count && !a.unknown; i++) {
        struct pm_error ignored;
        struct pm_elf elf;
        a.unknown = pm_elf_open(&elf, i ? list[i]->path : path, &ignored) != PM_OK;
        if (a.unknown)
            break;
        need_all(&a, &elf);
        pm_elf_close(&elf);
    }
    return a.count;
}
