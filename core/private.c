// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "private.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "extent.h"
#include "heap.h"
#include "os.h"

static struct pm_private_run *runs; // reserved at first use, PM_PRIVATE_RUNS_MAX of them
static unsigned run_count;
static bool any_mapped;

const struct pm_private_run *pm_private_runs(unsigned *count) {
    *count = run_count;
    return runs;
}

void pm_private_forget(void) { run_count = 0; }

// ---- which parts of the file hold what is in use -------------------------------------------------------

static bool add_run(uint64_t offset, uint64_t len) {
    struct pm_private_run *last = run_count ? &runs[run_count - 1] : NULL;
    if (last && last->offset + last->len == offset) {
        last->len += len;
        return true;
    }
    if (run_count == PM_PRIVATE_RUNS_MAX)
        return false;
    runs[run_count++] = (struct pm_private_run){offset, len};
    return true;
}

// Of a lazily reserved extent only what was ever written: reading its holes through a mapping would take space on the
// file system, and the file's owner may fill them later.
static bool add_extent(const struct pm_extent *e, struct pm_written *known) {
    uint64_t offset = e->page << PM_PAGE_SHIFT, end = offset + pm_extent_bytes(e), part;
    if (e->backed)
        return add_run(offset, end - offset);
    for (; offset < end && (part = pm_heap_next_data(known, &offset, end)) != 0; offset += part)
        if (!add_run(offset, part))
            return false;
    return true;
}

bool pm_private_find(void) {
    uint64_t end = pm_heap.frontier >> PM_PAGE_SHIFT;
    struct pm_written known = {0};
    run_count = 0;
    if (!runs)
        runs = pm_os_reserve(PM_PRIVATE_RUNS_MAX * sizeof *runs);
    if (!runs)
        return false;
    for (uint64_t page = 0; page < end;) {
        const struct pm_extent *e = &pm_extents[pm_page_extent[page]];
        if (!e->pages) // no extent: copying does not need the tiling
            return false;
        if (e->state == PM_EXTENT_ACTIVE && !add_extent(e, &known))
            return false;
        page = e->page + e->pages;
    }
    return true;
}

// ---- the mappings -------------------------------------------------------------------------------------

// From here on it need not be writable: what is, mlockall(MCL_FUTURE) makes real at once.
static uint64_t writable_end(void) { return pm_heap.frontier; }

// Of anonymous memory where `fd` is -1.
static bool map_piece(uint64_t offset, uint64_t end, int prot, int fd) {
    int flags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE | (fd < 0 ? MAP_ANONYMOUS : 0);
    bool good = offset == end || mmap(pm_heap_at(offset), end - offset, prot, flags, fd,
                                      fd < 0 ? 0 : (off_t)offset) != MAP_FAILED;
    any_mapped = any_mapped || (good && offset != end);
    return good;
}

// Piece by piece, so that on failure every byte can still be read at its place.
static bool map_runs(int fd) {
    const int prot = PROT_READ | PROT_WRITE;
    uint64_t at = 0;
    for (unsigned i = 0; i < run_count; i++) {
        uint64_t end = runs[i].offset + runs[i].len;
        if (!map_piece(at, runs[i].offset, prot, -1) || !map_piece(runs[i].offset, end, prot, fd))
            return false;
        at = end;
    }
    return map_piece(at, writable_end(), prot, -1);
}

static bool map_file(void) {
    int fd = pm_heap_pin();
    if (fd < 0)
        return false;
    bool good = pm_private_find() && map_runs(fd);
    close(fd);
    return good;
}

struct copying {
    char *fresh;
    struct pm_written known;
};

static bool copy_range(uint64_t offset, uint64_t len, void *arg) {
    struct copying *c = arg;
    uint64_t end = offset + len, part;
    for (; offset < end && (part = pm_heap_next_data(&c->known, &offset, end)) != 0; offset += part)
        memcpy(c->fresh + offset, pm_heap_at(offset), part);
    return true;
}

static bool copy_all(void) {
    run_count = 0;
    uint64_t size = writable_end();
    void *fresh = size ? pm_os_reserve(size) : NULL;
    if (!fresh)
        return size == 0;
    struct copying copying = {.fresh = fresh};
    if (pm_extent_each_active(copy_range, &copying) &&
        mremap(fresh, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)(uintptr_t)pm_base) !=
            MAP_FAILED)
        return any_mapped = true;
    munmap(fresh, size);
    return false;
}

bool pm_private_leave(void) {
    if (any_mapped && !pm_file_ready(&pm_heap.data))
        return false;
    if (any_mapped &&
        pm_file_map(&pm_heap.data, (void *)(uintptr_t)pm_base, pm_range, PROT_READ | PROT_WRITE,
                    MAP_FIXED | MAP_NORESERVE, 0) == MAP_FAILED)
        return false;
    pm_heap.data.map = (char *)(uintptr_t)pm_base;
    pm_heap.persistent = true;
    pm_heap.file_beneath = false;
    return true;
}

bool pm_private_enter(void) {
    any_mapped = false;
    bool mapped = map_file();
    // Nothing is kept behind the frontier, so that part may come last.
    if ((!mapped && !copy_all()) || !map_piece(writable_end(), pm_range, PROT_NONE, -1))
        return false;
    any_mapped = true;
    pm_heap_is_anonymous(writable_end());
    pm_heap.data.map = NULL;
    pm_heap.persistent = false;
    pm_heap.file_beneath = mapped && run_count;
    return true;
}
