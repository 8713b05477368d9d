// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "lazy_table.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "os.h"
#include "own_memory.h"

#define STEP ((size_t)2 << 20) // one huge page
#define SMALL_STEP ((size_t)128 << 10)
#define LITTLE_DATA ((rlim_t)128 << 20)

// `ulimit -d` includes the memory that a step makes writable, touched or not.
static size_t step_size(void) {
    static size_t size;
    struct rlimit data;
    if (!size)
        size =
            getrlimit(RLIMIT_DATA, &data) == 0 && data.rlim_cur < LITTLE_DATA ? SMALL_STEP : STEP;
    return size;
}

static size_t round_up(size_t bytes, size_t step) { return (bytes + step - 1) & ~(step - 1); }

static void *map(void *at, size_t len, int prot, int fixed) {
    return mmap(at, len, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed, -1, 0);
}

static struct pm_range_table *range_tables;

static char *reserve(size_t bytes) {
    char *map = pm_os_reserve_unused(bytes);
    int saved = errno;
    if (!map)
        return NULL;
    pm_own_note(map, bytes);
    pm_os_advise(map, bytes, MADV_DONTDUMP);
    errno = saved;
    return map;
}

static void begin(struct pm_lazy_table *t, char *map, size_t bytes) {
    *t = (struct pm_lazy_table){.map = map, .reach = bytes};
    int saved = errno;
    size_t step = step_size();
    size_t first = step < bytes ? step : bytes; // now: a sandbox may forbid mprotect() later
    if (mprotect(t->map, first, PROT_READ | PROT_WRITE) == 0)
        t->ready = first;
    errno = saved;
}

bool pm_lazy_table_reserve(struct pm_lazy_table *t, size_t bytes) {
    char *map = reserve(bytes);
    if (map)
        begin(t, map, bytes);
    return map != NULL;
}

// Nothing was ever stored there, so a new mapping in the same place is as good as mprotect(), and a
// sandbox is less likely to forbid it. But the kernel does not count a mapping that replaces
// another one against RLIMIT_DATA. So ask for as much memory elsewhere first, and keep to the
// answer. That request may fail because of what is reserved (RLIMIT_AS); then try mprotect(), for
// which the reserved part does not count.
static bool make_writable(char *at, size_t len, size_t whole, bool *replaced) {
    const int prot = PROT_READ | PROT_WRITE;
    void *counted = map(NULL, len, prot, 0);
    if (counted != MAP_FAILED)
        munmap(counted, len);
    *replaced = counted != MAP_FAILED && map(at, len, prot, MAP_FIXED) != MAP_FAILED;
    return *replaced || (pm_os_address_space(whole) && mprotect(at, len, prot) == 0);
}

bool pm_lazy_table_step(struct pm_lazy_table *t, size_t bytes) {
    if (bytes > t->reach)
        return false;
    size_t to = round_up(bytes, step_size());
    to = to < t->reach ? to : t->reach;
    int saved = errno;
    bool replaced;
    if (!make_writable(t->map + t->ready, to - t->ready, to, &replaced))
        return false;
    // Of data, what is reserved is left out of core dumps. A new mapping is in them already.
    if (!t->is_data)
        pm_os_advise(t->map + t->ready, to - t->ready, MADV_DONTDUMP);
    else if (!replaced)
        pm_os_advise(t->map + t->ready, to - t->ready, MADV_DODUMP);
    errno = saved;
    t->ready = to;
    return true;
}

static size_t bytes_for(const struct pm_range_table *t, uint64_t range) {
    return ((range + (1ull << t->shift) - 1) >> t->shift) * t->element;
}

void pm_lazy_table_divide(struct pm_lazy_table *table, size_t stride) {
    char *map = table[0].map;
    size_t reach = table[0].reach;
    table[0].reach = reach < stride ? reach : stride;
    for (unsigned i = 1; i < PM_SHARDS && i * stride < reach; i++)
        table[i] = (struct pm_lazy_table){.map = map + i * stride, .reach = stride};
}

// A program may ask about any address of the range, so the reserved part reads as zeroes. After
// mlockall(MCL_FUTURE) the kernel would provide a page for each 4 KiB of a mapping that is made
// readable, and for none of one that becomes readable. False: memory is out.
static bool become_readable(char *at, size_t len) {
    int saved = errno;
    bool good = mprotect(at, len, PROT_READ) == 0;
    if (!good && map(at, len, PROT_READ, MAP_FIXED) == at) {
        pm_os_advise(at, len, MADV_DONTDUMP);
        good = true;
    }
    if (good)
        errno = saved;
    return good;
}

static void place(struct pm_range_table *t, char *map, uint64_t range) {
    bool listed = t->table[0].map != NULL;
    size_t bytes = bytes_for(t, range);
    begin(&t->table[0], map, bytes);
    // If the program calls mlock(), the kernel maps the reserved part too. With this it uses one
    // zeroed huge page for every 2 MiB instead of 512 small ones.
    int saved = errno;
    size_t ready = t->table[0].ready;
    if (ready < bytes)
        pm_os_advise(map + ready, bytes - ready, MADV_HUGEPAGE);
    errno = saved;
    pm_lazy_table_divide(t->table, bytes_for(t, PM_SHARD_RANGE));
    if (!listed) {
        t->next = range_tables;
        range_tables = t;
    }
}

bool pm_range_tables_reserve(struct pm_range_table *first, unsigned count, uint64_t range) {
    size_t bytes = 0;
    for (unsigned i = 0; i < count; i++)
        bytes += round_up(bytes_for(&first[i], range), STEP);
    char *at = reserve(bytes);
    bool good = at && become_readable(at, bytes);
    for (unsigned i = 0; good && i < count; i++) {
        place(&first[i], at, range);
        at += round_up(bytes_for(&first[i], range), STEP);
    }
    return good;
}

bool pm_range_tables_cover(unsigned shard, uint64_t bytes) {
    for (struct pm_range_table *t = range_tables; t; t = t->next)
        if (!pm_lazy_table_need(&t->table[shard], bytes_for(t, bytes)))
            return false;
    return true;
}

// From here on huge pages replace small ones: a table this long belongs to a heap of gigabytes.
#define HUGE_FROM ((size_t)4 << 20)

void pm_table_touch(void *from, void *to) {
    uintptr_t start = (uintptr_t)from & ~(PM_PAGE_SIZE - 1);
    uintptr_t end = round_up((uintptr_t)to, PM_PAGE_SIZE);
    int saved = errno;
    if (end - start >= HUGE_FROM)
        pm_os_advise((void *)start, end - start, MADV_HUGEPAGE);
    pm_os_advise((void *)start, end - start, MADV_POPULATE_WRITE);
    errno = saved;
}
