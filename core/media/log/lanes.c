// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "lanes.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/crc.h"
#include "media/backing/file.h"
#include "media/backing/file_space.h"
#include "media/feature.h"
#include "media/heap.h"
#include "media/persist.h"
#include "media/pinned.h"

struct pm_lock pm_lane_locks[PM_LANES] = {[0 ... PM_LANES - 1] = PM_LOCK(PM_RANK_LANE)};

static struct pm_lane *lane_at(unsigned lane) {
    return (struct pm_lane *)(pm_heap.super + 1) + lane;
}

static bool has_lanes(void) { return (pm_heap.super->super.incompat & PM_INCOMPAT_LANES) != 0; }

static uint32_t crc_of(const struct pm_lane *lane, uint32_t count) {
    return pm_crc32c(count, lane->store, count * sizeof lane->store[0]);
}

// ---- publish ------------------------------------------------------------------------------------

unsigned pm_lane_lock(unsigned hint) {
    for (unsigned i = 0; i < PM_LANES; i++)
        if (pm_trylock_raw(&pm_lane_locks[(hint + i) % PM_LANES])) {
            pm_rank_enter(&pm_lane_locks[0]);
            return (hint + i) % PM_LANES;
        }
    pm_lock(&pm_lane_locks[hint % PM_LANES]);
    return hint % PM_LANES;
}

void pm_lane_unlock(unsigned lane) { pm_unlock(&pm_lane_locks[lane]); }

// The file is longer before the feature says so. The bytes that are added read as zeroes.
static bool make_space(void) {
    struct pm_file *file = &pm_heap.super_file;
    const size_t old = sizeof(struct pm_super_file);
    return pm_file_grow(file, old + PM_LANES_BYTES) &&
           pm_file_back_with_space(file, old, PM_LANES_BYTES) &&
           (pm_durability == PM_DURABLE_NONE || pm_file_sync(file));
}

bool pm_lanes_make(void) {
    struct pm_lock *lock = &pm_heap.shard[0].lock; // as other features do
    if (has_lanes())
        return true;
    pm_lock(lock);
    bool good = has_lanes() || make_space();
    if (good)
        pm_feature_set(PM_INCOMPAT_LANES);
    pm_unlock(lock);
    return good;
}

static void make_stores(const struct pm_lane_target *target, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        if (!target[i].at) {
            pm_pin_change(target[i].where, target[i].value);
            continue;
        }
        // Release: who reads a pointer finds what it points to.
        __atomic_store_n(target[i].at, target[i].value, __ATOMIC_RELEASE);
        pm_flush(target[i].at, sizeof(uint64_t));
    }
    pm_drain();
}

bool pm_lanes_publish(unsigned lane, const struct pm_lane_target *target, unsigned count) {
    if (count == 1) {
        pm_drain(); // what the caller has flushed
        make_stores(target, 1);
        return true;
    }
    if (!pm_lanes_make())
        return false;
    struct pm_lane *l = lane_at(lane);
    uint32_t turn = pm_unseal(l->ended) / PM_LANE_TURN + 1;
    uint64_t word = pm_seal(turn * PM_LANE_TURN + count, PM_SALT_LANE(lane));
    for (unsigned i = 0; i < count; i++)
        l->store[i] = (struct pm_lane_store){target[i].where, target[i].value};
    l->crc = crc_of(l, count); // in the line of `commit` and before it, so durable before it
    if (count > PM_LANE_FIRST)
        pm_flush(&l->store[PM_LANE_FIRST], (count - PM_LANE_FIRST) * sizeof l->store[0]);
    pm_drain();
    pm_commit_u64(&l->commit, word);
    make_stores(target, count);
    pm_commit_u64(&l->ended, word);
    return true;
}

// ---- recovery -----------------------------------------------------------------------------------

// The number of stores that were committed and are not all known to have been made.
static uint32_t committed(unsigned lane) {
    const struct pm_lane *l = lane_at(lane);
    return l->commit == l->ended ? 0 : pm_unseal(l->commit) % PM_LANE_TURN;
}

static bool pinned_is_good(const struct pm_lane_store *store) {
    bool good = (pm_heap.super->super.incompat & PM_INCOMPAT_PINNED) != 0;
    if (good && pm_pin_word(store->where))
        pm_pin_read(store->where, &good);
    return good && pm_pin_word(store->where);
}

static bool offset_is_good(const struct pm_lane_store *store, uint64_t images, uint64_t length) {
    uint64_t offset = store->where & PM_PLACE_OFFSET;
    if (offset % sizeof(uint64_t))
        return false;
    switch (store->where >> PM_PLACE_SHIFT) {
    case PM_PLACE_PINNED:
        return pinned_is_good(store);
    case PM_PLACE_HEAP:
        return offset >> PM_SHARD_SHIFT < pm_heap.shards &&
               (offset & (PM_SHARD_RANGE - 1)) < pm_shard_at(offset)->frontier;
    case PM_PLACE_SLOT:
        return offset < sizeof(struct pm_slots) &&
               store->value == pm_slot_word((unsigned)(offset / 8), store->value & PM_SLOT_MAX);
    case PM_PLACE_IMAGE:
        return offset >= images && offset - images < length;
    default:
        return false;
    }
}

static bool is_good_word(unsigned lane, uint64_t word) {
    uint32_t count = pm_unseal(word) % PM_LANE_TURN;
    return !word || (pm_sealed(word, PM_SALT_LANE(lane)) && count && count <= PM_LANE_STORES);
}

static int check_lane(unsigned lane, uint64_t images, uint64_t length, struct pm_error *err) {
    const struct pm_lane *l = lane_at(lane);
    uint32_t count = committed(lane);
    if (!is_good_word(lane, l->commit) || !is_good_word(lane, l->ended) ||
        (l->commit != l->ended && !l->commit) || (count && l->crc != crc_of(l, count)))
        return pm_fail(err, PM_DAMAGE,
                       "%s/superblock: lane %u of a publish does not match its check; restore the "
                       "file from a copy",
                       pm_heap.dir, lane);
    for (uint32_t i = 0; i < count; i++)
        if (!offset_is_good(&l->store[i], images, length))
            return pm_fail(err, PM_DAMAGE,
                           "%s/superblock: lane %u of a publish stores to %016lx, which is no "
                           "place of this heap",
                           pm_heap.dir, lane, (unsigned long)l->store[i].where);
    return PM_OK;
}

static bool pending; // there are publishes to finish

int pm_lanes_check(uint64_t images, uint64_t length, unsigned *unfinished, struct pm_error *err) {
    *unfinished = 0;
    pending = false;
    if (!has_lanes())
        return PM_OK;
    if (pm_heap.super_file.size < sizeof(struct pm_super_file) + PM_LANES_BYTES)
        return pm_fail(err, PM_DAMAGE,
                       "%s/superblock has %zu bytes, too short for its lanes; was it truncated?",
                       pm_heap.dir, pm_heap.super_file.size);
    for (unsigned lane = 0; lane < PM_LANES; lane++) {
        if (check_lane(lane, images, length, err) != PM_OK)
            return err->status;
        *unfinished += committed(lane) != 0;
    }
    pending = *unfinished != 0;
    return PM_OK;
}

// The file `roots` is not mapped yet.
static bool store_in_image(uint64_t offset, uint64_t value) {
    uint64_t page = offset & ~(uint64_t)(PM_PAGE_SIZE - 1);
    char *map = pm_file_map(&pm_heap.roots, NULL, PM_PAGE_SIZE, PROT_READ | PROT_WRITE, 0, page);
    if (map == MAP_FAILED)
        return false;
    uint64_t *at = (uint64_t *)(void *)(map + (offset - page));
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
    pm_flush(at, sizeof *at);
    pm_file_unmap(&pm_heap.roots, map, PM_PAGE_SIZE);
    return true;
}

static bool finish(const struct pm_lane *l, uint32_t count) {
    bool good = true;
    for (uint32_t i = 0; i < count && good; i++) {
        uint64_t offset = l->store[i].where & PM_PLACE_OFFSET, value = l->store[i].value;
        unsigned place = (unsigned)(l->store[i].where >> PM_PLACE_SHIFT);
        if (place == PM_PLACE_PINNED) {
            pm_pin_change(l->store[i].where, value);
            continue;
        }
        if (place == PM_PLACE_IMAGE) {
            good = store_in_image(offset, value);
            continue;
        }
        uint64_t *at = place == PM_PLACE_SLOT ? &pm_heap.super->slots.slot[offset / 8]
                                              : (uint64_t *)pm_heap_at(offset);
        __atomic_store_n(at, value, __ATOMIC_RELEASE);
        pm_flush(at, sizeof *at);
    }
    pm_drain();
    return good;
}

int pm_lanes_finish(struct pm_error *err) {
    if (!has_lanes())
        return PM_OK;
    // A power failure could still undo the last stores of a killed process: a commit on which the
    // stores below build, and the end of a lane on which the program will build.
    pm_flush(lane_at(0), PM_LANES_BYTES);
    pm_drain();
    for (unsigned lane = 0; lane < PM_LANES; lane++) {
        struct pm_lane *l = lane_at(lane);
        if (committed(lane) == 0)
            continue;
        if (!finish(l, committed(lane)))
            return pm_fail(err, PM_OPERATIONAL, "%s/roots: cannot finish a publish: %s",
                           pm_heap.dir, pm_strerror(errno));
        pm_commit_u64(&l->ended, l->commit);
    }
    pending = false;
    return PM_OK;
}

uint32_t pm_lanes_pinned(uint64_t place, uint32_t bits) {
    for (unsigned lane = 0; pending && lane < PM_LANES; lane++)
        for (uint32_t i = 0; i < committed(lane); i++) {
            const struct pm_lane_store *store = &lane_at(lane)->store[i];
            if (store->where == place)
                bits = (bits | (uint32_t)store->value) & ~(uint32_t)(store->value >> 32);
        }
    return bits;
}

void pm_lanes_each(void (*fn)(const struct pm_lane_store *store, uint32_t count, void *arg),
                   void *arg) {
    for (unsigned lane = 0; has_lanes() && lane < PM_LANES; lane++)
        if (committed(lane))
            fn(lane_at(lane)->store, committed(lane), arg);
}
