// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The tags of the process say which blocks are handed out, and no other. Where recovery has left a
// slab untagged, nobody has got or freed a block of it since: its free bits say the rest.
#include "blocks_report.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/bits.h"
#include "door.h"
#include "halted.h"
#include "pages/extent.h"
#include "recovery/offline.h"
#include "recovery/recover.h"
#include "tools/common/info_print.h"
#include "tools/common/program_maps.h"
#include "tools/common/program_status.h"
#include "tools/common/progress.h"

struct reading {
    struct block_list *list;
    int memory;
    // The tables of the process.
    uint64_t tags, vslabs, bits;
};

static bool reads(const struct reading *r, uint64_t at, void *to, size_t len) {
    return pread(r->memory, to, len, (off_t)at) == (ssize_t)len;
}

// The tag of each granule of a slab.
static bool read_tags(const struct reading *r, uint32_t slab, uint8_t tag[PM_SLAB_BLOCKS_MAX]) {
    uint8_t run[PM_TAG_RUN];
    for (unsigned row = 0; row < PM_TAG_ROWS; row++) {
        uint64_t first = pm_tag_run(slab, row);
        if (!reads(r, r->tags + first, run, sizeof run))
            return false;
        for (unsigned i = 0; i < PM_TAG_RUN; i++)
            tag[pm_tag_granule(first + i) % PM_SLAB_BLOCKS_MAX] = run[i];
    }
    return true;
}

static void by_tags(const struct pm_population *p, const uint8_t *tag, uint64_t *allocated) {
    const struct pm_vslab *v = &pm_vslabs[p->slab];
    size_t size = pm_classes[p->cls].size;
    memset(allocated, 0, pm_slab_words(p->cls) * sizeof *allocated);
    for (unsigned i = 0; i < pm_classes[p->cls].blocks; i++) {
        struct pm_slab_block block;
        unsigned own = tag[i * size >> PM_GRANULE_SHIFT];
        bool kind = own == PM_TAG_KIND && pm_slab_find(v, (uint32_t)(i * size), &block) &&
                    block.old == p->old;
        if (pm_tag_class(own) == p->cls || kind)
            pm_bit_set(allocated, i);
    }
}

static bool by_free_bits(const struct reading *r, const struct pm_population *p,
                         uint64_t *allocated) {
    const uint64_t *here = pm_bits_of(pm_slab_bits, p->slab, p->cls);
    uint64_t at = r->bits + (uint64_t)((const char *)here - (const char *)pm_slab_bits);
    unsigned words = pm_slab_words(p->cls);
    if (!reads(r, at, allocated, words * sizeof *allocated))
        return false;
    for (unsigned w = 0; w < words; w++)
        allocated[w] = ~allocated[w];
    pm_bits_trim(allocated, pm_classes[p->cls].blocks);
    return true;
}

static bool read_slab(const struct reading *r, uint32_t extent) {
    uint32_t slab = pm_extent_slab(&pm_extents[extent]);
    struct pm_population population[2];
    unsigned count = pm_slab_populations(&pm_vslabs[slab], population);
    uint8_t tag[PM_SLAB_BLOCKS_MAX];
    uint64_t allocated[PM_BITMAP_WORDS];
    struct pm_vslab theirs;
    if (!reads(r, r->vslabs + (uint64_t)slab * sizeof theirs, &theirs, sizeof theirs) ||
        !read_tags(r, slab, tag))
        return false;
    if (theirs.untagged && count > 1)
        return true; // what is alive
    for (unsigned i = 0; i < count; i++) {
        if (!theirs.untagged)
            by_tags(&population[i], tag, allocated);
        else if (!by_free_bits(r, &population[i], allocated))
            return false;
        if (!block_list_note(extent, population[i].old, allocated,
                             pm_slab_words(population[i].cls)))
            return false;
    }
    return true;
}

static bool read_large(const struct reading *r, uint32_t extent) {
    uint8_t tag;
    if (!reads(r, r->tags + pm_tag_index_of_page(pm_extents[extent].page), &tag, 1))
        return false;
    if (tag == PM_TAG_NONE) // it is cached
        block_list_note_free(extent);
    return true;
}

static bool read_all(const struct reading *r) {
    bool good = true;
    for (uint32_t i = 0; good && (i = pm_extent_next_active(i)) != 0;)
        good = pm_extents[i].slab ? read_slab(r, i) : read_large(r, i);
    return good;
}

// A program that commits has the heap as private pages: media have it as of the last commit.
static void note_private(const struct program_map *m, void *commits) {
    if (m->start == PM_HEAP_BASE && (m->private || strncmp(m->name, "/memfd:", 7) == 0))
        *(bool *)commits = true;
}

static int look(struct halted *h, void *arg, struct pm_error *err) {
    struct reading *r = arg;
    struct pm_recover_options how = {.mark.progress = progress_start()};
    struct pm_recovery found;
    program_maps_each(h->pid, note_private, &r->list->commits);
    r->list->exact = !r->list->commits;
    int status = pm_offline_open(h->heap, PM_OPEN_HALTED, err);
    if (status == PM_OK)
        status = pm_recover(&how, &found, err);
    if (status != PM_OK)
        return status;
    errno = ENOMEM;
    if (!block_list_begin() || (r->list->exact && !read_all(r)))
        return pm_fail(err, PM_OPERATIONAL, "process %d: which blocks are allocated: %s",
                       (int)h->pid, pm_strerror(errno));
    return PM_OK;
}

static int find_tables(pid_t pid, struct reading *r, struct pm_error *err) {
    struct pm_leaks_door door;
    if (door_find(pid, &door, err) != PM_OK)
        return err->status;
    r->memory = program_memory(pid, O_RDONLY);
    if (r->memory < 0 || !reads(r, (uintptr_t)door.tags, &r->tags, sizeof r->tags) ||
        !reads(r, (uintptr_t)door.vslabs, &r->vslabs, sizeof r->vslabs) ||
        !reads(r, (uintptr_t)door.slab_bits, &r->bits, sizeof r->bits))
        return pm_fail(err, PM_OPERATIONAL, "process %d cannot be looked at: %s", (int)pid,
                       pm_strerror(errno));
    return PM_OK;
}

int blocks_of_process(pid_t pid, struct block_list *b) {
    static struct halted h;
    struct reading r = {.list = b, .memory = -1};
    struct pm_error err;
    int status = find_tables(pid, &r, &err);
    if (status == PM_OK)
        status = halted_look(&h, pid, look, &r, &err);
    progress_end();
    if (r.memory >= 0)
        close(r.memory);
    b->pid = pid;
    b->held_ns = h.held_ns;
    if (status == PM_OK) {
        block_list_print(b, h.heap);
        return PM_OK;
    }
    pm_say("%s", err.text);
    if (b->json)
        info_error(h.heap, &err);
    return status;
}
