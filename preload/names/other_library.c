// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "other_library.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/library.h"
#include "base/message.h"
#include "base/os.h"

// ---- objects ------------------------------------------------------------------------------------

struct search {
    uintptr_t at;            // an address ..
    uintptr_t from, end;     // .. and the object that it lies in
    unsigned number, wanted; // of an object, in the linker's order
    char name[PATH_MAX];
};

static bool lies_in(const struct dl_phdr_info *info, struct search *s) {
    s->from = UINTPTR_MAX;
    s->end = 0;
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t from = info->dlpi_addr + part->p_vaddr;
        if (part->p_type != PT_LOAD)
            continue;
        s->from = from < s->from ? from : s->from;
        s->end = from + part->p_memsz > s->end ? from + part->p_memsz : s->end;
    }
    return s->at - s->from < s->end - s->from;
}

static int is_at(struct dl_phdr_info *info, size_t size, void *arg) {
    struct search *s = arg;
    (void)size;
    if (!lies_in(info, s))
        return 0;
    snprintf(s->name, sizeof s->name, "%s", info->dlpi_name);
    return 1;
}

static int has_number(struct dl_phdr_info *info, size_t size, void *arg) {
    struct search *s = arg;
    (void)size;
    if (s->number++ != s->wanted)
        return 0;
    snprintf(s->name, sizeof s->name, "%s", info->dlpi_name);
    return 1;
}

// ---- functions ----------------------------------------------------------------------------------

// What stays loaded while its functions may be called.
static void keep(const void *function) {
    Dl_info info;
    if (dladdr(function, &info) && info.dli_fname)
        dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
}

// By an object and by what it was linked with.
static void *find_by(const char *object, const char *name) {
    void *handle = *object ? dlopen(object, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    void *function = handle ? dlsym(handle, name) : NULL;
    if (function && pm_library_has((uintptr_t)function))
        function = NULL;
    if (function)
        keep(function);
    if (handle)
        dlclose(handle);
    return function;
}

// An object may get a function from whoever has loaded it.
static void *find_anywhere(struct search *s, const char *name) {
    void *function = NULL;
    for (s->wanted = 0; !function; s->wanted++) {
        s->number = 0;
        if (!dl_iterate_phdr(has_number, s))
            return NULL;
        function = find_by(s->name, name);
    }
    return function;
}

static struct pm_other_use *room(void) {
    static struct pm_other_use first[128];
    static _Atomic unsigned used;
    unsigned i = atomic_fetch_add_explicit(&used, 1, memory_order_relaxed);
    return i < sizeof first / sizeof *first ? &first[i] : pm_os_reserve(sizeof *first);
}

// Release: see pm_other(). Without memory the function is looked up each time.
static void note(struct pm_other *o, uintptr_t from, uintptr_t bytes, void *function) {
    const struct pm_other_use *next = atomic_load_explicit(&o->uses, memory_order_relaxed);
    struct pm_other_use *use = room();
    if (!use)
        return;
    do
        *use = (struct pm_other_use){from, bytes, function, next};
    while (!atomic_compare_exchange_weak_explicit(&o->uses, &next, use, memory_order_release,
                                                  memory_order_relaxed));
}

void *pm_other_find(struct pm_other *o, const char *name, const void *caller) {
    int saved = errno;
    void *function = dlsym(RTLD_NEXT, name);
    if (function) {
        atomic_store_explicit(&o->global, function, memory_order_relaxed);
        return function;
    }
    struct search s = {.at = (uintptr_t)caller};
    uintptr_t from = 0, bytes = 0;
    if (dl_iterate_phdr(is_at, &s)) {
        from = s.from;
        bytes = s.end - s.from;
        function = find_by(s.name, name);
    }
    if (!function)
        function = find_anywhere(&s, name);
    if (function && bytes)
        note(o, from, bytes, function);
    errno = saved;
    return function;
}

void pm_other_missing(const char *name) {
    pm_refuse(PM_EV_LIBC_UNFIT, "no library of this program has %s; run it without PMAlloc", name);
}
