// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "outside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/crc.h"
#include "heap.h"

// Where each kind stands. Of two that have an address the first is taken: the mappings, and then
// the stacks, which are known only about.
enum { FILES = 0, ANONYMOUS = 9, TLS = 13, STACK = 14, THREADS = 15 };
#define STACK_BYTES ((uint64_t)8 << 20) // the usual limit
#define ABOVE_FRAME ((uint64_t)16 << 10)
#define BELOW_POINTER ((uint64_t)4 << 10) // thread-local memory lies on both sides of its pointer
#define TRIES 1000

_Static_assert(sizeof(struct pm_shard_state) + sizeof(struct pm_outside) <=
                   sizeof((struct pm_state *)0)->reserved,
               "there is room");

_Atomic bool pm_outside_nameless;

static struct pm_outside *record(void) {
    return (struct pm_outside *)(void *)(pm_heap.super->state.reserved +
                                         sizeof(struct pm_shard_state));
}

static uint32_t crc_of(const struct pm_outside_range *r) {
    return pm_crc32c(0, r, offsetof(struct pm_outside_range, crc));
}

static bool is_good(const struct pm_outside_range *r) {
    return r->from < r->to && r->kind >= PM_OUTSIDE_STACK && r->kind <= PM_OUTSIDE_ANONYMOUS &&
           memchr(r->name, 0, sizeof r->name) && r->crc == crc_of(r);
}

static void put(unsigned place, uint64_t from, uint64_t to, enum pm_outside_kind kind,
                const char *name) {
    struct pm_outside_range r = {.from = from, .to = to, .kind = kind};
    memcpy(r.name, name, strnlen(name, sizeof r.name - 1));
    r.crc = crc_of(&r);
    record()->range[place] = r;
}

// ---- one writer at a time -----------------------------------------------------------------------

// Not waited for long: a signal handler may have interrupted the writer. Then the range is missing.
static _Atomic bool busy;
static unsigned next_file, next_anonymous;
static _Atomic bool begun; // before, the record is that of the last run

static bool begin(void) {
    bool free = false;
    for (unsigned i = 0; i < TRIES; i++, free = false)
        if (pm_heap_on_media() && !pm_heap.readonly && begun &&
            atomic_compare_exchange_weak_explicit(&busy, &free, true, memory_order_acquire,
                                                  memory_order_relaxed))
            return true;
    return false;
}

static void end(void) { atomic_store_explicit(&busy, false, memory_order_release); }

void pm_outside_begin(void) {
    uint64_t start = getauxval(AT_RANDOM), strings = getauxval(AT_EXECFN);
    const char *pointer;
    __asm__("movq %%fs:0, %0" : "=r"(pointer));
    begun = true;
    if (!begin())
        return;
    memset(record(), 0, sizeof *record());
    next_file = next_anonymous = 0;
    if (start > STACK_BYTES)
        put(STACK, start - STACK_BYTES, (strings > start ? strings : start) + PM_PAGE_SIZE,
            PM_OUTSIDE_STACK, "");
    put(TLS, (uintptr_t)pointer - BELOW_POINTER, (uintptr_t)pointer + BELOW_POINTER, PM_OUTSIDE_TLS,
        "");
    end();
}

void pm_outside_thread(const void *frame) {
    uint64_t at = (uintptr_t)frame, from = at > STACK_BYTES ? at - STACK_BYTES : 0;
    uint64_t to = at + ABOVE_FRAME;
    bool in_heap = at < pm_base + pm_range; // or below it, where PMAlloc's own have theirs
    if (in_heap || !begin())
        return;
    const struct pm_outside_range *old = &record()->range[THREADS];
    if (is_good(old)) {
        from = from < old->from ? from : old->from;
        to = to > old->to ? to : old->to;
    }
    if (from != old->from || to != old->to)
        put(THREADS, from, to, PM_OUTSIDE_THREADS, "");
    end();
}

// ---- mappings -----------------------------------------------------------------------------------

// The end of a long path says more than its beginning.
static void name_of(int fd, char out[PM_OUTSIDE_NAME]) {
    char link[40], path[4096];
    long got = -1;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (!atomic_load_explicit(&pm_outside_nameless, memory_order_relaxed))
        got = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path);
    size_t len = got > 0 ? (size_t)got : 0, most = PM_OUTSIDE_NAME - 1, cut = 0;
    if (len > most)
        cut = len - most;
    memcpy(out, path + cut, len - cut);
    out[len - cut] = '\0';
    if (cut)
        memcpy(out, "...", 3);
}

// Before a file's range is overwritten.
static void forget(const struct pm_outside_range *r) {
    struct pm_outside *o = record();
    if (!is_good(r))
        return;
    if (!o->forgotten_to || r->from < o->forgotten_from)
        o->forgotten_from = r->from;
    if (r->to > o->forgotten_to)
        o->forgotten_to = r->to;
}

// Where a mapping goes: over what it replaces, or what it continues; or over the oldest one.
static unsigned place_for(unsigned first, unsigned count, unsigned *next, uint64_t *from,
                          uint64_t *to, bool join) {
    for (unsigned i = first; i < first + count; i++) {
        const struct pm_outside_range *r = &record()->range[i];
        if (join ? r->from <= *to && *from <= r->to && r->to : r->from == *from) {
            *from = join && r->from < *from ? r->from : *from;
            *to = join && r->to > *to ? r->to : *to;
            return i;
        }
    }
    return first + (*next)++ % count;
}

void pm_outside_map(const void *at, size_t len, int fd) {
    uint64_t from = (uintptr_t)at, to = from + ((len + PM_PAGE_SIZE - 1) & ~(PM_PAGE_SIZE - 1));
    char name[PM_OUTSIDE_NAME] = "";
    int saved = errno;
    if (fd >= 0)
        name_of(fd, name);
    errno = saved;
    if (from >= to || !begin())
        return;
    unsigned place = fd < 0
                         ? place_for(ANONYMOUS, TLS - ANONYMOUS, &next_anonymous, &from, &to, true)
                         : place_for(FILES, ANONYMOUS - FILES, &next_file, &from, &to, false);
    if (fd >= 0)
        forget(&record()->range[place]);
    put(place, from, to, fd < 0 ? PM_OUTSIDE_ANONYMOUS : PM_OUTSIDE_FILE, name);
    end();
}

// ---- readers ------------------------------------------------------------------------------------

unsigned pm_outside_read(struct pm_outside_range out[PM_OUTSIDE_RANGES]) {
    unsigned count = 0;
    for (unsigned i = 0; i < PM_OUTSIDE_RANGES; i++) {
        out[count] = record()->range[i];
        count += is_good(&out[count]);
    }
    return count;
}

bool pm_outside_was_forgotten(uint64_t address) {
    const struct pm_outside *o = record();
    return address - o->forgotten_from < o->forgotten_to - o->forgotten_from;
}

bool pm_outside_looked(void) { return record()->looked == 1; }

void pm_outside_note_looked(void) {
    if (begin()) {
        record()->looked = 1;
        end();
    }
}
