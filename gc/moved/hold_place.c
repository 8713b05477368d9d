// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "hold_place.h"

#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mappings.h"
#include "comes_along.h"
#include "keep_free.h"
#include "roots/build_of.h"
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
    unsigned count;
    const struct pm_objects_entry *all = pm_record_entries(&count), **e = entry;
    if (pm_twins_same(all, count, *e, loaded) != PM_SAME_NOT)
        *e = NULL;
    return *e != NULL;
}

// The last place where it lay; of several in other directories, that of this one.
static const struct pm_objects_entry *find(const char *file) {
    unsigned count;
    const struct pm_objects_entry *all = pm_record_entries(&count), *found = NULL;
    for (unsigned i = 0; i < count; i++) {
        bool is = !(all[i].flags & PM_OBJECT_IS_PROGRAM) &&
                  strcmp(pm_base_name(all[i].path), pm_base_name(file)) == 0;
        if (is && (!found || strcmp(found->path, file) != 0 || strcmp(all[i].path, file) == 0))
            found = &all[i];
    }
    if (found)
        pm_record_each_loaded(is_loaded, &found);
    return found;
}

// Where the file cannot be found by its name alone, libc looks for it.
static const char *path_of(const struct pm_objects_entry *e, const char *file) {
    return strchr(file, '/') ? file : e->path;
}

static bool is_another_build(const struct pm_objects_entry *e, const char *file) {
    struct pm_error ignored;
    struct pm_elf elf;
    if (pm_elf_open(&elf, path_of(e, file), &ignored) != PM_OK)
        return false;
    bool same = pm_build_is_unknown(e) || pm_record_is_build_of(e, &elf);
    pm_elf_close(&elf);
    return !same;
}

// ---- the list of libraries ----------------------------------------------------------------------

// glibc finds a name without a directory in this list, which it maps before the library, and until
// it is loaded. That must not come to the library's place.
#define LIST "/etc/ld.so.cache"

// The bytes that the list takes up; 0: it is not asked for this library.
static uint64_t list_bytes(const struct pm_objects_entry *e, const char *file) {
    struct stat st;
    uint64_t bytes = 0;
    int fd = strchr(file, '/') ? -1 : open(LIST, O_RDONLY | O_CLOEXEC);
    void *list = MAP_FAILED;
    if (fd >= 0 && fstat(fd, &st) == 0 && st.st_size > 0)
        list = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (fd >= 0)
        close(fd);
    if (list == MAP_FAILED)
        return 0;
    if (memmem(list, (size_t)st.st_size, e->path, strlen(e->path) + 1))
        bytes = ((uint64_t)st.st_size + PM_PAGE_SIZE - 1) & ~(uint64_t)(PM_PAGE_SIZE - 1);
    munmap(list, (size_t)st.st_size);
    return bytes;
}

// ---- the gaps -----------------------------------------------------------------------------------

struct gaps {
    uint64_t list;               // bytes that are to be left for it
    uint64_t from;               // behind what has been seen
    uint64_t in_stack;           // an address
    uint64_t last_from, last_to; // the gap that was seen last
};

// The gap below the first thread's stack is left, into which that grows; and the last one, because
// the kernel puts no library there.
static void see(uint64_t from, uint64_t to, int access, void *arg) {
    struct gaps *g = arg;
    bool is_stack = g->in_stack >= from && g->in_stack < to;
    (void)access;
    bool fits = g->list && g->last_to - g->last_from >= g->list;
    fill(g->last_from, fits ? g->last_to - g->list : g->last_to);
    g->list = fits ? 0 : g->list;
    g->last_from = is_stack ? 0 : g->from;
    g->last_to = is_stack ? 0 : from;
    g->from = to;
}

#define USER_TOP (((uint64_t)1 << 47) - 4096)

// What is free of a place.
struct place {
    uint64_t from, to; // behind what has been seen, and its end; 0: nothing is to be filled
    bool taken;
};

static void see_part(uint64_t from, uint64_t to, int access, void *arg) {
    struct place *p = arg;
    (void)access;
    if (p->to)
        fill(p->from, from);
    p->from = to;
    p->taken = true;
}

static bool is_free(const struct pm_objects_entry *e) {
    struct place p = {0}; // so nothing is filled
    return pm_mappings_each(e->start, e->end, see_part, &p) && !p.taken;
}

static void fill_part(uint64_t from, uint64_t to) {
    struct place p = {from, to, false};
    pm_mappings_each(from, to, see_part, &p);
    fill(p.from, p.to);
}

static void keep_away(const struct pm_objects_entry *e) { fill_part(e->start, e->end); }

// ---- a place, and those of the libraries that come along ----------------------------------------

struct family {
    const struct pm_objects_entry *of[PM_ALONG_MOST]; // the first one is the file's
    unsigned count;
    const char *file;
    uint64_t list; // bytes of the list that is mapped first
};

// The one that lies next above an address; NULL: none.
static const struct pm_objects_entry *next_above(const struct family *f, uint64_t at) {
    const struct pm_objects_entry *found = NULL;
    for (unsigned i = 0; i < f->count; i++)
        if (f->of[i]->start >= at && (!found || f->of[i]->start < found->start))
            found = f->of[i];
    return found;
}

static void fill_gaps(const struct family *f) {
    const struct pm_objects_entry *last = next_above(f, 0), *next;
    for (; (next = next_above(f, last->end)) != NULL; last = next)
        fill_part(last->end, next->start);
    struct gaps g = {.list = f->list, .from = last->end, .in_stack = getauxval(AT_EXECFN)};
    pm_mappings_each(last->end, USER_TOP, see, &g);
}

// Of a file that can have large pages the kernel takes a lower gap where there is room to align
// them. So it is asked, in the same words as libc will use.
static void *ask(uint64_t bytes, const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int flags = MAP_PRIVATE | (fd < 0 ? MAP_ANONYMOUS : 0);
    void *at = mmap(NULL, bytes, PROT_READ, flags, fd, 0);
    if (fd >= 0)
        close(fd);
    return at;
}

static bool come_there(const struct family *f) {
    void *at[PM_ALONG_MOST], *list = f->list ? ask(f->list, LIST) : MAP_FAILED;
    unsigned asked = 0;
    bool right = true;
    while (right && asked < f->count) {
        const struct pm_objects_entry *e = f->of[asked];
        at[asked] = ask(e->end - e->start, asked ? e->path : path_of(e, f->file));
        right = at[asked++] == (void *)(uintptr_t)e->start;
    }
    while (asked--)
        if (at[asked] != MAP_FAILED)
            munmap(at[asked], f->of[asked]->end - f->of[asked]->start);
    if (list != MAP_FAILED)
        munmap(list, f->list);
    return right;
}

// Of those that come along the first ones whose places are free; the others come anywhere.
static void find_family(struct family *f) {
    unsigned known = pm_comes_along(f->of, path_of(f->of[0], f->file));
    for (f->count = 1; f->count < known; f->count++) {
        pm_place_give(f->of[f->count]);
        if (!is_free(f->of[f->count]))
            break;
    }
    pm_places_keep_free_but(f->of, f->count);
}

static bool hold(struct family *f) {
    fill_gaps(f);
    if (come_there(f))
        return true;
    pm_place_release();
    return false;
}

bool pm_place_hold(const char *file) {
    const struct pm_objects_entry *e = file && pm_places_may_be_filled() ? find(file) : NULL;
    if (!e || fillers)
        return false;
    bool another = is_another_build(e, file), given = !another && pm_place_give(e);
    if (another || !is_free(e)) {
        keep_away(e);
        return given || fillers;
    }
    struct family f = {.of = {e}, .file = file, .list = list_bytes(e, file)};
    find_family(&f);
    if (hold(&f))
        return true;
    if (f.count > 1) { // without the others
        f.count = 1;
        pm_places_keep_free_but(f.of, 1);
        if (hold(&f))
            return true;
    }
    pm_places_keep_free();
    return false;
}
