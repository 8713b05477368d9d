// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A new shard on media, step by step. Each step is durable before the next:
//
//   1  its files, empty, and their names      a cut leaves files that are ignored
//   2  the word `shards` says what there is   it was zero in a heap with one shard
//   3  the feature bit, then the checksum     older builds refuse the heap from here on
//   4  the word `shards` counts the new one   the commit
#include "shard_make.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/crc.h"
#include "base/nodes.h"
#include "base/options.h"
#include "base/os.h"
#include "heap_dir.h"
#include "heap_make.h"
#include "media/backing/backing.h"
#include "media/backing/file.h"
#include "media/backing/fixed.h"
#include "media/backing/own_limit.h"
#include "media/backing/volume.h"
#include "media/backing/volume_sync.h"
#include "media/backing/work_copy.h"
#include "media/core_dump.h"
#include "media/feature.h"
#include "media/full.h"
#include "media/log/log.h"
#include "media/log/log_chunks.h"
#include "media/persist.h"
#include "media/shard_place.h"

static struct pm_shard_state *shard_state(void) {
    return (struct pm_shard_state *)(void *)pm_heap.super->state.reserved;
}

unsigned pm_super_shards(const struct pm_super_file *file) {
    const struct pm_shard_state *state = (const void *)file->state.reserved;
    if (state->shards == 0 && !(file->super.incompat & PM_INCOMPAT_SHARDS))
        return 1;
    uint32_t count = pm_unseal(state->shards);
    return pm_sealed(state->shards, PM_SALT_SHARDS) && count <= PM_SHARDS ? count : 0;
}

unsigned pm_shards_most(void) {
    return pm_range < PM_SHARD_RANGE ? 1 : (unsigned)(pm_range >> PM_SHARD_SHIFT);
}

int pm_shard_recorded_node(unsigned shard) { return shard_state()->node[shard] - 1; }

static unsigned node_of(unsigned shard) {
    int recorded = pm_shard_recorded_node(shard);
    if (pm_fixed_is_open())
        return pm_fixed_node(shard, recorded);
    return recorded < 0 ? 0 : (unsigned)recorded % pm_nodes.count;
}

int pm_shards_read(struct pm_error *err) {
    unsigned count = pm_super_shards(pm_heap.super);
    if (count == 0)
        return pm_fail(err, PM_DAMAGE,
                       "%s/superblock: the number of shards %016lx does not match its check",
                       pm_heap.dir, (unsigned long)shard_state()->shards);
    if (pm_fixed_is_open() && count != pm_fixed.count)
        return pm_fail(err, PM_DAMAGE,
                       "%s/superblock: it tells of %u shards, but the heap has %u files or devices",
                       pm_heap.dir, count, pm_fixed.count);
    pm_heap.shards = count;
    for (unsigned i = 0; i < count; i++)
        pm_heap.shard[i].node = (uint16_t)node_of(i);
    return PM_OK;
}

uint64_t pm_shard_room(void) {
    uint64_t reach = pm_shard_reach(), most = pm_options.shard.number;
    return (most < reach ? most : reach) & ~(PM_REGION_SIZE - 1);
}

void pm_shards_limit(void) {
    uint64_t own = pm_heap_on_media() && !pm_heap.created ? pm_own_limit() : 0,
             set = pm_options.limit.number;
    pm_heap.limit = (own > set ? own : set) & ~(PM_REGION_SIZE - 1);
    unsigned room = pm_shards_most();
    for (unsigned i = 0; i < room || i < pm_heap.shards; i++) {
        struct pm_shard *s = &pm_heap.shard[i];
        s->limit = pm_shard_room();
        if (pm_heap_is_fixed() && s->data.length && s->limit > s->data.room)
            s->limit = s->data.room & ~(PM_REGION_SIZE - 1);
    }
}

// ---- the files ----------------------------------------------------------------------------------

#define EACH_FILE(f, n)                                                                            \
    const struct pm_heap_file *f = first_file(n);                                                  \
    f < first_file(n) + PM_SHARD_FILES;                                                            \
    f++

static const struct pm_heap_file *first_file(unsigned n) {
    return &pm_heap_files[PM_FIRST_FILES + PM_SHARD_FILES * (n - 1u)];
}

static bool is_wanted(const struct pm_heap_file *f) {
    return f->held && (!f->feature || (pm_heap.super->super.incompat & f->feature) != 0);
}

bool pm_shards_kept_from_children;

static bool map_file(const struct pm_heap_file *f, struct pm_shard *s) {
    struct pm_file *file = pm_heap_file(f);
    void *at = file == &s->data ? pm_heap_at(s->offset) : NULL;
    size_t reach = file == &s->data ? pm_shard_reach() : pm_shard_reach() / f->share;
    int flags = MAP_NORESERVE | (at ? MAP_FIXED : 0);
    void *map = pm_file_map(file, at, reach, PROT_READ | PROT_WRITE, flags, 0);
    if (map == MAP_FAILED)
        return false;
    file->map = map;
    file->reach = reach;
    return !pm_shards_kept_from_children || pm_os_advise(map, reach, MADV_DONTFORK);
}

static bool make_files(struct pm_shard *s, unsigned n) {
    struct pm_error ignored;
    bool good = pm_heap.nameless || pm_dir_ready();
    for (EACH_FILE(f, n))
        if (good && is_wanted(f))
            good = pm_make_file(f, pm_persist_syncs());
    good = good && (pm_heap.nameless || pm_volume_sync(s->volume));
    for (EACH_FILE(f, n))
        if (good && is_wanted(f))
            good = pm_file_open(pm_heap_file(f), O_RDWR, &ignored) == PM_OK &&
                   (pm_heap_file(f) != &s->data || !pm_heap_is_journaled() || pm_work_make(s)) &&
                   map_file(f, s);
    return good && pm_chunks_begin(s, 0) && pm_log_reset(s);
}

// The shard is not one of the heap yet, so nothing in its files is used.
static void drop_files(struct pm_shard *s, unsigned n) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
    for (EACH_FILE(f, n)) {
        struct pm_file *file = pm_heap_file(f);
        if (file->map && file == &s->data)
            mmap(file->map, file->reach, PROT_NONE, flags, -1, 0);
        else if (file->map)
            munmap(file->map, file->reach);
        if (pm_file_is_ours(file))
            close(file->fd);
        file->fd = -1;
        file->map = NULL;
        unlinkat(pm_heap.dir_fd, file->name, 0);
    }
    pm_work_drop(s);
    pm_shard_set_volume(n, 0);
}

void pm_shards_tidy(void) {
    unsigned n = pm_heap.shards;
    if (n == PM_SHARDS || !pm_dir_ready())
        return;
    for (EACH_FILE(f, n))
        pm_volumes_unlink(pm_heap.dir_fd, f);
}

// ---- the commit ---------------------------------------------------------------------------------

static void say_shards(unsigned count) {
    pm_commit_u64(&shard_state()->shards, pm_seal(count, PM_SALT_SHARDS));
}

static void commit(unsigned count) {
    if (shard_state()->shards == 0)
        say_shards(count - 1);
    pm_feature_set(PM_INCOMPAT_SHARDS);
    say_shards(count);
}

// The note lies in the cache line of the word that counts the shard, and before it: so it needs no
// flush of its own. For shard 0, pm_heap_dirty() makes it durable. On a machine with one node there
// is nothing to tell apart.
static void note_node(unsigned n, unsigned node) {
    if (pm_nodes.count > 1)
        __atomic_store_n(&shard_state()->node[n], (uint8_t)(node + 1), __ATOMIC_RELEASE);
}

static bool going; // to one node

void pm_shards_go(unsigned node) {
    going = true;
    for (unsigned i = 0; i < pm_heap.shards; i++)
        pm_heap.shard[i].node = (uint16_t)node;
}

void pm_shards_note_nodes(void) {
    for (unsigned i = 0; i < pm_heap.shards && (going || pm_fixed_is_open()); i++)
        if (pm_shard_recorded_node(i) != pm_heap.shard[i].node)
            note_node(i, pm_heap.shard[i].node);
}

void pm_shard_node_begins(unsigned node) {
    pm_heap.shard[0].node = (uint16_t)node;
    if (pm_heap_on_media())
        note_node(0, node);
}

static bool make_files_in(struct pm_shard *s, unsigned n, unsigned volume) {
    pm_shard_set_volume(n, volume);
    bool good = make_files(s, n);
    if (!good)
        drop_files(s, n);
    return good;
}

// If the volume that it should have is full, another one has it, unless the shards there can grow.
// With several nodes a shard lies on its node's device.
static bool make_files_somewhere(struct pm_shard *s, unsigned n, unsigned node) {
    unsigned first = pm_volume_choose(n, node);
    bool good = make_files_in(s, n, first);
    for (unsigned i = 1; !good && i < pm_heap.volumes && pm_nodes.count == 1; i++) {
        unsigned other = (first + i) % pm_heap.volumes;
        good = pm_volume_addresses(other) < PM_REGION_SIZE && make_files_in(s, n, other);
    }
    return good;
}

bool pm_shard_make(unsigned node) {
    unsigned n = pm_heap.shards;
    struct pm_shard *s = &pm_heap.shard[n < PM_SHARDS ? n : 0];
    int saved = errno;
    if (pm_heap.readonly || pm_heap_is_fixed())
        return false;
    if (n >= pm_shards_most()) {
        pm_full_note(PM_FULL_ADDRESSES);
        return false;
    }
    if (!pm_heap_on_media()) {
        pm_shard_is_anonymous(s, 0);
    } else if (!make_files_somewhere(s, n, node)) {
        errno = saved;
        return false;
    } else {
        note_node(n, node);
        pm_volume_note(n, s->volume);
        commit(n + 1);
    }
    s->frontier = 0;
    s->node = (uint16_t)node;
    pm_shard_place(s);
    pm_heap.shards = n + 1;
    if (pm_heap_on_media())
        pm_shard_dump_used(s);
    errno = saved;
    return true;
}
