// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "process_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/own_memory.h"
#include "base/pagemap_scan.h"
#include "base/proc.h"
#include "media/heap.h"
#include "media/own_pages.h"

#define RED_ZONE 128u // the bytes below the stack pointer that a function may use

struct mapping {
    uintptr_t from, to;
    bool readable, writable, shared, guard_below;
    const char *name; // "" for anonymous memory
};

struct search {
    const uintptr_t *stacks;
    unsigned count;
    pm_memory_fn *each;
    void *arg;
    uintptr_t guard_end; // the end of the last mapping without access
};

// ---- pages --------------------------------------------------------------------------------------

static void give_own(char *at, size_t len, void *arg) {
    const struct search *s = arg;
    s->each(at, len, s->arg);
}

#define BIT_PRESENT ((uint64_t)1 << 63)
#define BIT_SWAPPED ((uint64_t)1 << 62)
#define BIT_GUARD ((uint64_t)1 << 58) // reading it ends the program

// Shared memory may be a file with holes. Reading one on tmpfs takes space, so only pages that this
// process has touched are read.
static void give_touched(const struct search *s, uintptr_t at, uintptr_t end) {
    long fd = pm_proc_take(PM_PROC_PAGEMAP);
    uint64_t word[512];
    while (fd >= 0 && at < end) {
        size_t count = (end - at) / PM_PAGE_SIZE;
        count = count < 512 ? count : 512;
        long got = syscall(SYS_pread64, fd, word, count * sizeof word[0],
                           at / PM_PAGE_SIZE * sizeof word[0]);
        if (got < (long)sizeof word[0])
            break;
        for (size_t i = 0; i < (size_t)got / sizeof word[0]; i++, at += PM_PAGE_SIZE)
            if ((word[i] & (BIT_PRESENT | BIT_SWAPPED)) && !(word[i] & BIT_GUARD))
                s->each((void *)at, PM_PAGE_SIZE, s->arg);
    }
    pm_proc_give_back((int)fd);
}

// Whether a mapping is of a file of the heap. Captured roots are all in one of them. In the others
// stand addresses that mean nothing, such as where the heap begins.
static bool is_heaps(const char *name, bool *roots) {
    size_t len = strlen(pm_heap.dir);
    bool found = len && strncmp(name, pm_heap.dir, len) == 0 && name[len] == '/';
    *roots = found && strcmp(name + len, "/roots") == 0;
    return found;
}

static void give(const struct search *s, const struct mapping *m, uintptr_t from, uintptr_t to) {
    bool roots;
    if (from >= to || (is_heaps(m->name, &roots) && !roots))
        return;
    if (roots)
        s->each((void *)from, to - from, s->arg);
    else if (!m->shared)
        pm_own_pages((char *)from, to - from, give_own, (void *)(uintptr_t)s);
    else
        give_touched(s, from, to);
}

// ---- mappings -----------------------------------------------------------------------------------

// Gives what is neither the heap's nor PMAlloc's own.
static void give_rest(const struct search *s, const struct mapping *m) {
    uintptr_t at = m->from, heap_end = (uintptr_t)(pm_base + pm_range), next, end;
    while (at < m->to) {
        end = pm_own_end(at, &next);
        if (at >= pm_base && at < heap_end && heap_end > end)
            end = heap_end;
        else if (pm_base > at && pm_base < next)
            next = (uintptr_t)pm_base;
        if (!end) {
            uintptr_t to = next < m->to ? next : m->to;
            give(s, m, at & ~(PM_PAGE_SIZE - 1), to);
            end = to;
        }
        at = end;
    }
}

// ---- stacks -------------------------------------------------------------------------------------

// The lowest stack pointer of [from, to); 0: there is none.
static uintptr_t pointer_in(const struct search *s, uintptr_t from, uintptr_t to) {
    uintptr_t lowest = 0;
    for (unsigned i = 0; i < s->count; i++)
        if (s->stacks[i] >= from && s->stacks[i] < to && (!lowest || s->stacks[i] < lowest))
            lowest = s->stacks[i];
    return lowest;
}

static void note_end(uint64_t start, uint64_t end, void *arg) {
    (void)start;
    *(uintptr_t *)arg = end;
}

// The end of the last guard page of [from, to). 0: there is none, or the kernel does not tell.
static uintptr_t last_guard(uintptr_t from, uintptr_t to) {
    uintptr_t found = 0;
    struct pm_pagemap_scan scan = {.start = from & ~(PM_PAGE_SIZE - 1),
                                   .end = to & ~(PM_PAGE_SIZE - 1),
                                   .category_mask = PM_SCAN_GUARD,
                                   .return_mask = PM_SCAN_GUARD};
    int fd = pm_own_open();
    if (fd >= 0 && !pm_pagemap_scan(fd, &scan, note_end, &found))
        found = 0;
    pm_own_close(fd);
    return found;
}

// A stack begins at its stack pointer: gives the rest of that page, and goes on behind it.
static void begin_at(const struct search *s, struct mapping *m, uintptr_t pointer) {
    pointer = (pointer - RED_ZONE) & ~(uintptr_t)7;
    if (pointer <= m->from)
        return;
    uintptr_t page_end = (pointer | (PM_PAGE_SIZE - 1)) + 1;
    s->each((void *)pointer, page_end - pointer, s->arg);
    m->from = page_end;
}

// From glibc 2.42 on guard pages lie inside of mappings, and neighbours are one mapping. Memory
// from a guard page to the only stack pointer before the next one is below that stack.
static void skip_below_stacks(const struct search *s, struct mapping *m, uintptr_t pointer) {
    uintptr_t floor = m->from;
    while (pointer) {
        uintptr_t next = pointer_in(s, pointer + 1, m->to);
        uintptr_t guard = last_guard(floor, pointer);
        if (guard && (!next || last_guard(pointer, next))) {
            struct mapping below = *m;
            below.to = guard;
            give_rest(s, &below);
            m->from = guard;
            begin_at(s, m, pointer);
        }
        floor = pointer;
        pointer = next;
    }
}

// A mapping that is the stack of one thread begins at its stack pointer. It is taken for one if the
// kernel says so, or if what lies below cannot be accessed. Where a stack is a part of other
// memory, all of that is a root.
static void skip_below_stack(const struct search *s, struct mapping *m) {
    uintptr_t pointer = pointer_in(s, m->from, m->to);
    if (!pointer)
        return;
    bool whole = m->guard_below || strcmp(m->name, "[stack]") == 0;
    if (whole && !pointer_in(s, pointer + 1, m->to))
        begin_at(s, m, pointer);
    else
        skip_below_stacks(s, m, pointer);
}

static bool is_device(const char *name) {
    return strncmp(name, "/dev/", 5) == 0 && strncmp(name, "/dev/shm/", 9) != 0 &&
           strncmp(name, "/dev/zero", 9) != 0;
}

// "from-to rwxp offset device inode   name". False: the line is not of this form.
static bool parse(char *line, struct mapping *m) {
    char *at;
    *m = (struct mapping){.from = strtoull(line, &at, 16)};
    if (*at != '-')
        return false;
    m->to = strtoull(at + 1, &at, 16);
    if (*at != ' ' || strlen(at) < 6)
        return false;
    m->readable = at[1] == 'r';
    m->writable = at[2] == 'w';
    m->shared = at[4] == 's';
    m->name = strpbrk(at, "/[");
    if (!m->name)
        m->name = "";
    return true;
}

static void take(struct search *s, char *line) {
    struct mapping m;
    if (!parse(line, &m))
        return;
    m.guard_below = s->guard_end == m.from;
    if (!m.readable && !m.writable)
        s->guard_end = m.to;
    // A program may have made anonymous memory read-only after it has stored there.
    if (!m.readable || !(m.writable || (!m.shared && !*m.name)) || is_device(m.name))
        return;
    skip_below_stack(s, &m);
    give_rest(s, &m);
}

// The file is read in pieces. The kernel ends each at the end of a line.
int pm_process_memory(const uintptr_t *stacks, unsigned count, pm_memory_fn *each, void *arg,
                      struct pm_error *err) {
    struct search s = {.stacks = stacks, .count = count, .each = each, .arg = arg};
    char text[8192];
    long got = 0, kept = 0;
    int fd = pm_proc_open("thread-self/maps", O_RDONLY);
    while (fd >= 0 && (got = pm_proc_read(fd, text + kept, sizeof text - 1 - (size_t)kept)) > 0) {
        char *line = text, *end;
        text[kept + got] = '\0';
        for (; (end = strchr(line, '\n')) != NULL; line = end + 1) {
            *end = '\0';
            take(&s, line);
        }
        kept = text + kept + got - line;
        memmove(text, line, (size_t)kept);
    }
    int error = errno;
    pm_proc_close(fd);
    if (fd < 0 || got < 0)
        return pm_fail(err, PM_OPERATIONAL, "/proc/thread-self/maps cannot be read: %s",
                       pm_strerror(error));
    return PM_OK;
}
