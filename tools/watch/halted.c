// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "halted.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "media/backing/backing.h"
#include "media/heap.h"
#include "patience.h"
#include "tools/common/program_maps.h"
#include "trace_rights.h"

struct finding {
    char *heap;
    char beside[PATH_MAX]; // the directory of the superblock
    bool copy;             // the data are in memory: PMALLOC_COMMIT_DIR
};

static bool cut(char *path, const char *file) {
    char *last = strrchr(path, '/');
    bool found = last && strcmp(last, file) == 0;
    if (found)
        *last = '\0';
    return found;
}

static void find_heap(const struct program_map *m, void *arg) {
    struct finding *f = arg;
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", m->name);
    if (!*f->beside && cut(path, "/superblock"))
        snprintf(f->beside, sizeof f->beside, "%s", path);
    if (*f->heap || m->start != PM_HEAP_BASE || m->name[0] != '/')
        return;
    f->copy |= strncmp(m->name, "/memfd:", 7) == 0;
    if (f->copy)
        return;
    cut(path, "/heap.0"); // else it is a medium of a fixed size
    snprintf(f->heap, PATH_MAX, "%s", path);
}

int halted_look(struct halted *h, pid_t pid, int look(struct halted *, void *, struct pm_error *),
                void *arg, struct pm_error *err) {
    struct finding f = {.heap = h->heap};
    *h = (struct halted){.pid = pid, .halt = {.pid = pid}};
    if (!trace_allowed(pid, err))
        return err->status;
    if (!program_maps_each(pid, find_heap, &f))
        return pm_fail(err, PM_OPERATIONAL, "process %d cannot be looked at: %s", (int)pid,
                       pm_strerror(errno));
    if (!*h->heap && f.copy)
        snprintf(h->heap, sizeof h->heap, "%s", f.beside);
    if (!*h->heap)
        return pm_fail(err, PM_OPERATIONAL,
                       "process %d has no heap on media, so nothing of it is kept", (int)pid);
    uint64_t began = patience_now_ns();
    int status = halt_begin(&h->halt, err) ? look(h, arg, err) : PM_OPERATIONAL;
    halt_end(&h->halt);
    h->held_ns = patience_now_ns() - began;
    return status;
}

// ---- the copy -----------------------------------------------------------------------------------

// What the kernel thinks it can give without swapping.
static uint64_t memory_available(void) {
    unsigned long kib = 0;
    char line[128];
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f) && sscanf(line, "MemAvailable: %lu", &kib) != 1) {
    }
    if (f)
        fclose(f);
    return (uint64_t)kib << 10;
}

// Where the file has a hole the copy has none of its pages, and reads as zeroes, too.
static bool copy_shard(const struct pm_shard *s) {
    uint64_t at = s->offset, end = s->offset + s->frontier, len;
    struct pm_written known = {0};
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    if (at == end)
        return true;
    char *copy = mmap(NULL, end - at, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (copy == MAP_FAILED)
        return false;
    madvise(copy, end - at, MADV_HUGEPAGE); // fewer faults, so a shorter pause
    for (; at < end && (len = pm_heap_next_data(&known, &at, end)) != 0; at += len)
        memcpy(copy + (at - s->offset), pm_heap_at(at), len);
    return mremap(copy, end - s->offset, end - s->offset, MREMAP_MAYMOVE | MREMAP_FIXED,
                  pm_heap_at(s->offset)) != MAP_FAILED;
}

bool halted_copy(void) {
    if (pm_heap.length > memory_available() / 2)
        return false;
    for (unsigned i = 0; i < pm_heap.shards; i++)
        if (!copy_shard(&pm_heap.shard[i]))
            return false;
    return true;
}
