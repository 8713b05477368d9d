// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "record.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "image.h"
#include "media.h"
#include "media/heap.h"
#include "media/outside_format.h"
#include "media/persist.h"
#include "schedule.h"

// The writable mappings of metadata files.
#define REGIONS 32
static struct region {
    uintptr_t start, end;
    unsigned file;
    uint64_t offset;
} regions[REGIONS];
static unsigned region_count;
static uintptr_t lowest = UINTPTR_MAX, highest;
static bool active;

// The last store that was announced. The announcement comes before the store, so its value is
// looked at when the next event comes.
static struct {
    uintptr_t at;
    size_t len;
} open_store;
static uint64_t group; // counts compiler barriers

unsigned record_full_log;
uint64_t record_clock_ms = 1000;

// ---- stores -------------------------------------------------------------------------------------

static const struct region *region_of(uintptr_t at) {
    if (at < lowest || at >= highest)
        return NULL;
    for (unsigned i = region_count; i-- > 0;)
        if (at >= regions[i].start && at < regions[i].end)
            return &regions[i];
    return NULL;
}

// What the process had mapped outside is a hint: nothing is ever flushed for it, and each range has
// a check of its own. If its lines were pending, nearly all images would differ in them alone.
static bool is_hint(uintptr_t at) {
    const size_t before = sizeof(struct pm_shard_state);
    return pm_heap.super &&
           at - (uintptr_t)pm_heap.super->state.reserved - before < sizeof(struct pm_outside);
}

// Records the stores to [at, at + len): every word there that has changed since it was last looked
// at.
static void look(uintptr_t at, size_t len) {
    const struct region *r = region_of(at);
    if (!r)
        return;
    uint64_t from = r->offset + (at - r->start), to = from + len;
    struct shadow *s = &world->shadow[r->file];
    if (to > s->size)
        to = s->size;
    for (uint64_t word = from / WORD; word * WORD < to; word++) {
        uint64_t value = *(const uint64_t *)(r->start + (word * WORD - r->offset));
        if (value != s->now[word] && is_hint(r->start + (word * WORD - r->offset))) {
            media_hint(r->file, (uint32_t)word, value);
        } else if (value != s->now[word]) {
            media_store(r->file, (uint32_t)word, value, group);
            if (world->eadr)
                image_point(SITE_STORE, 0);
        }
    }
}

static void look_at_open_store(void) {
    if (open_store.len) {
        size_t len = open_store.len;
        open_store.len = 0;
        look(open_store.at, len);
    }
}

static void announce(const void *at, size_t len) {
    if (!active)
        return;
    look_at_open_store();
    if (region_of((uintptr_t)at)) {
        open_store.at = (uintptr_t)at;
        open_store.len = len;
    }
}

static void barrier(void) {
    if (!active)
        return;
    look_at_open_store();
    group++;
}

void record_stored(const void *at, size_t len) {
    if (!active)
        return;
    barrier();
    look((uintptr_t)at, len);
}

void data_store(void *to, const void *from, size_t len) {
    barrier();
    image_point(SITE_DATA, (uint64_t)(uintptr_t)__builtin_return_address(0));
    memcpy(to, from, len);
    world->data_version++;
    const struct region *r = region_of((uintptr_t)to);
    if (!r)
        return;
    uint64_t offset = r->offset + ((uintptr_t)to - r->start);
    for (uint64_t word = offset / WORD; word * WORD < offset + len; word++)
        media_durable(r->file, (uint32_t)word,
                      *(const uint64_t *)(r->start + (word * WORD - r->offset)));
}

void data_store_weak(uint64_t *to, uint64_t value) {
    barrier();
    *to = value;
    look((uintptr_t)to, sizeof *to);
}

// ---- flush and drain ----------------------------------------------------------------------------

static struct late {
    const void *at;
    size_t len;
} late[64];
static unsigned late_count; // flushes that a mutant delays until after the drain

// Records a flush of the lines, or that a mutant has left it out.
static void each_line(const void *at, size_t len, bool flush) {
    for (uintptr_t from = (uintptr_t)at, end = from + len; from < end;) {
        const struct region *r = region_of(from);
        if (!r)
            return;
        uintptr_t to = end < r->end ? end : r->end;
        uint64_t offset = r->offset + (from - r->start);
        uint32_t first = (uint32_t)(offset / 64);
        uint32_t last = (uint32_t)((offset + (to - from) - 1) / 64);
        if (flush)
            media_flush(schedule_self(), r->file, first, last);
        else
            media_taint(r->file, first, last);
        from = to;
    }
}

static void record_flush(const void *at, size_t len) {
    uint64_t pc = (uint64_t)(uintptr_t)__builtin_return_address(0);
    barrier();
    if (!active || !len)
        return;
    schedule_point();
    image_point(SITE_FLUSH, pc);
    const struct region *r = region_of((uintptr_t)at);
    bool any = !world->mutant_second || (r && r->file == F_MEDIUM_1);
    bool dropped = any && image_mutated(MUTATE_DROP_FLUSH, pc);
    bool delayed =
        any && image_mutated(MUTATE_LATE_FLUSH, pc) && late_count < sizeof late / sizeof *late;
    if (delayed)
        late[late_count++] = (struct late){at, len};
    each_line(at, len, !dropped && !delayed);
}

static void record_drain(void) {
    uint64_t pc = (uint64_t)(uintptr_t)__builtin_return_address(0);
    barrier();
    if (!active)
        return;
    world->fences++;
    image_point(SITE_DRAIN, pc);
    bool any = !world->mutant_second || media_flushed(schedule_self(), F_MEDIUM_1);
    if (any && image_mutated(MUTATE_DROP_DRAIN, pc))
        media_taint_flushed(schedule_self());
    else
        media_drain(schedule_self());
    while (late_count) {
        late_count--;
        each_line(late[late_count].at, late[late_count].len, true);
    }
    schedule_point();
}

int __wrap_pm_persist_init(int fd, int forced, const char *heap, struct pm_error *err);
int __wrap_pm_persist_init(int fd, int forced, const char *heap, struct pm_error *err) {
    (void)fd, (void)forced, (void)heap, (void)err;
    pm_durability = world->plain ? PM_DURABLE_PAGE : PM_DURABLE_LINE;
    pm_persist = (struct pm_persist_ops){record_flush, record_drain};
    return PM_OK;
}

// ---- files --------------------------------------------------------------------------------------

int record_file_of(int fd) {
    if (!active)
        return -1;
    char link[64], path[256];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, sizeof path - 1);
    path[len > 0 ? len : 0] = '\0';
    size_t root = strlen(world->root);
    if (strncmp(path, world->root, root) != 0 || strncmp(path + root, "/heap/", 6) != 0)
        return -1;
    for (int file = 0; file < FILES; file++)
        if (strcmp(path + root + 6, file_name((unsigned)file)) == 0)
            return file;
    return -1;
}

void record_map(void *at, size_t len, int fd, uint64_t offset) {
    int file = active ? record_file_of(fd) : -1;
    if (file < 0 || file >= F_DATA)
        return;
    bool medium = is_medium((unsigned)file);
    if (medium && offset >= world->medium_shadow)
        return;
    if (medium && len > world->medium_shadow - offset)
        len = world->medium_shadow - offset;
    if (region_count == REGIONS)
        abort();
    uintptr_t start = (uintptr_t)at;
    regions[region_count++] = (struct region){start, start + len, (unsigned)file, offset};
    lowest = start < lowest ? start : lowest;
    highest = start + len > highest ? start + len : highest;
}

void record_unmap(void *at) {
    barrier();
    for (unsigned i = 0; i < region_count; i++)
        if (regions[i].start == (uintptr_t)at)
            regions[i] = regions[--region_count];
}

uint64_t shadow_size(unsigned file, uint64_t bytes) {
    if (is_medium(file)) {
        world->medium_bytes[file - F_MEDIUM] = bytes;
        return bytes < world->medium_shadow ? bytes : world->medium_shadow;
    }
    if (bytes > SHADOW_BYTES) {
        fprintf(stderr, "crash: %s is too long for the simulator\n", file_name(file));
        abort();
    }
    return bytes;
}

static void rescan_file(int dir, unsigned file) {
    struct shadow *s = &world->shadow[file];
    struct stat st;
    int fd = openat(dir, file_name(file), O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) {
        media_punch(file, 0, s->size);
        s->exists = false;
        s->size = 0;
        return;
    }
    static uint64_t content[SHADOW_WORDS];
    uint64_t before = s->size, size = shadow_size(file, (uint64_t)st.st_size);
    uint64_t bytes = (size > before ? size : before) + WORD - 1;
    memset(content, 0, bytes);
    bool good = pread(fd, content, size, 0) == (ssize_t)size;
    close(fd);
    if (!good)
        abort();
    s->exists = true;
    s->size = size;
    for (uint32_t word = 0; word < bytes / WORD; word++)
        if (content[word] != s->now[word])
            media_durable(file, word, content[word]);
}

void record_rescan(void) {
    look_at_open_store();
    char path[192];
    struct stat st;
    snprintf(path, sizeof path, "%s/heap", world->root);
    int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (unsigned file = 0; file < SHADOWS; file++)
        rescan_file(dir, file);
    for (unsigned i = 0; i < DATA_FILES; i++) {
        world->data_exists[i] = dir >= 0 && fstatat(dir, file_name(F_DATA + i), &st, 0) == 0;
        world->data_size[i] = world->data_exists[i] ? (uint64_t)st.st_size : 0;
    }
    world->data_version++;
    if (dir >= 0)
        close(dir);
}

void record_begin(void) {
    record_rescan();
    active = true;
}

bool record_complete(void) {
    look_at_open_store();
    active = false;
    char path[192];
    static uint64_t content[SHADOW_WORDS];
    for (unsigned file = 0; file < SHADOWS; file++) {
        const struct shadow *s = &world->shadow[file];
        snprintf(path, sizeof path, "%s/heap/%s", world->root, file_name(file));
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t got = fd < 0 ? 0 : pread(fd, content, s->size, 0);
        if (fd >= 0)
            close(fd);
        for (uint32_t word = 0; word < (size_t)(got > 0 ? got : 0) / WORD; word++)
            if (content[word] != s->now[word]) {
                fprintf(stderr, "crash: a store to %s at byte %u was not seen\n", file_name(file),
                        word * 8);
                return false;
            }
    }
    return true;
}

void record_restore_files(void) {
    char path[192];
    active = false;
    for (unsigned file = 0; file < SHADOWS; file++) {
        const struct shadow *s = &world->shadow[file];
        snprintf(path, sizeof path, "%s/heap/%s", world->root, file_name(file));
        if (!s->exists)
            continue;
        int fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd < 0 || pwrite(fd, s->media, s->size, 0) != (ssize_t)s->size)
            abort();
        close(fd);
    }
}

// ---- what the compiler calls --------------------------------------------------------------------

static void on_read(const volatile void *p, size_t n) { (void)p, (void)n; }
static void on_write(const volatile void *p, size_t n) { announce((const void *)(uintptr_t)p, n); }
static void on_enter(void) { barrier(), schedule_point(); }
static void on_leave(void) { barrier(); }
static void on_fence(void) { barrier(); }

static void before_load(const volatile void *p, size_t n) {
    (void)p, (void)n;
    if (active)
        schedule_point();
}

static void before_atomic(const volatile void *p, size_t n) {
    (void)n;
    if (!active)
        return;
    barrier();
    schedule_point();
    announce((const void *)(uintptr_t)p, 8);
}

static void on_cas(const volatile void *p, unsigned bits, uint64_t from, uint64_t to) {
    (void)p, (void)bits, (void)from, (void)to;
}
static void on_exchange(const volatile void *p, unsigned bits, uint64_t to) {
    (void)p, (void)bits, (void)to;
}

#include "compiler_calls.h"
