// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "dealloc.h"

#include <stdatomic.h>
#include <string.h>

#include "base/crc.h"
#include "base/own_memory.h"
#include "log_chunks.h"
#include "media/heap.h"
#include "media/persist.h"
#include "media/pinned.h"

#define LINE 64u

_Static_assert(PM_SHARDS <= 16, "bits of an entry, and of `owners`");

// The volatile side of a log.
struct log {
    struct pm_lock lock;
    // Bit n: it has blocks of node n. Changed under the lock, and read without it: a free stores it
    // before it looks whether the slab is queued (returns.h). Sequentially consistent.
    _Atomic uint32_t owners;
    uint32_t count;
    const void *block[PM_DEALLOC_ENTRIES];
} __attribute__((aligned(64)));

static struct log (*logs)[PM_DEALLOC_LOGS]; // by shard; NULL: there is one node

bool pm_dealloc_init(void) {
    if (!logs)
        logs = pm_own_reserve(PM_SHARDS * sizeof *logs);
    for (unsigned shard = 0; logs && shard < PM_SHARDS; shard++)
        for (unsigned log = 0; log < PM_DEALLOC_LOGS; log++)
            pm_lock_init(&logs[shard][log].lock, PM_RANK_DEALLOC);
    return logs != NULL;
}

static struct pm_dealloc_log *on_media(unsigned shard, unsigned log) {
    return &pm_log_head(&pm_heap.shard[shard])->dealloc[log];
}

// ---- entries ------------------------------------------------------------------------------------

// The k-th entry goes to the line after that of the one before, so that frees in a row do not flush
// one line again and again. The first word of line 0 is the generation.
static unsigned slot_of(unsigned k) {
    return (k + 1) % PM_DEALLOC_LINES * 8 + (k + 1) / PM_DEALLOC_LINES - 1;
}

static unsigned generation_of(uint64_t entry) {
    return entry >> PM_DEALLOC_GENERATION_SHIFT & (PM_DEALLOC_GENERATIONS - 1);
}

static unsigned generation_now(const struct pm_dealloc_log *m) {
    return pm_unseal(m->generation) & (PM_DEALLOC_GENERATIONS - 1);
}

static uint64_t with_check(uint64_t entry, unsigned log, unsigned slot) {
    const uint64_t low = entry & ((1ull << PM_DEALLOC_CHECK_SHIFT) - 1);
    const uint64_t parts[] = {low, log << 8 | slot};
    return low | (uint64_t)pm_crc32c(0, parts, sizeof parts) << PM_DEALLOC_CHECK_SHIFT;
}

static uint64_t entry_of(const struct pm_dealloc *freed, unsigned generation) {
    uint64_t shard = freed->place >> PM_PIN_SHARD_SHIFT;
    uint64_t word = (freed->place & ((1ull << PM_PIN_SHARD_SHIFT) - 1)) / sizeof(uint64_t);
    return (uint64_t)generation << PM_DEALLOC_GENERATION_SHIFT | shard << PM_DEALLOC_SHARD_SHIFT |
           word << PM_DEALLOC_WORD_SHIFT | (unsigned)__builtin_ctz(freed->mask);
}

static unsigned shard_of(uint64_t entry) { return entry >> PM_DEALLOC_SHARD_SHIFT & 15; }

static uint64_t place_of(uint64_t entry) {
    uint64_t word = entry >> PM_DEALLOC_WORD_SHIFT & ((1ull << 29) - 1);
    return (uint64_t)shard_of(entry) << PM_PIN_SHARD_SHIFT | word * sizeof(uint64_t);
}

static uint32_t mask_of(uint64_t entry) { return 1u << (entry & 31); }

// ---- sync; the lock is held, or nobody else runs ------------------------------------------------

// Flushes each line once; where a flush waits for a disk, each page.
static void flush_words(const uint64_t **word, unsigned count) {
    const uintptr_t unit = pm_persist_waits() ? PM_PAGE_SIZE : LINE;
    for (unsigned left; count; count = left) {
        uintptr_t first = (uintptr_t)word[0] / unit;
        struct pm_gather together = {0};
        left = 0;
        for (unsigned i = 0; i < count; i++)
            if ((uintptr_t)word[i] / unit == first)
                pm_gather_add(&together, word[i], sizeof *word[i]);
            else
                word[left++] = word[i];
        pm_flush(together.from, (size_t)(together.to - together.from));
    }
}

// Clears the bits of all entries in force, durably. False: there is no entry.
static bool clear_bits(const struct pm_dealloc_log *m) {
    const uint64_t *changed[PM_DEALLOC_ENTRIES];
    unsigned count = 0, generation = generation_now(m);
    bool any = false;
    for (unsigned i = 0; i < PM_DEALLOC_ENTRIES; i++) {
        uint64_t entry = m->entry[i];
        if (!entry || generation_of(entry) != generation)
            continue;
        uint64_t place = place_of(entry), *at = pm_pin_word(place);
        uint32_t salt = PM_SALT_PINNED((uint32_t)(entry >> PM_DEALLOC_WORD_SHIFT) & 0x1fffffff);
        any = true;
        if (pm_pin_change_at(at, salt, PM_PIN_CLEAR(mask_of(entry))))
            changed[count++] = at;
    }
    flush_words(changed, count);
    if (count)
        pm_drain();
    return any;
}

// Ends all entries. The bits are clear durably, so entries may go in any order.
static void next_generation(unsigned log, struct pm_dealloc_log *m) {
    uint32_t next = pm_unseal(m->generation) + 1;
    if (next % PM_DEALLOC_GENERATIONS == 0) {
        memset(m->entry, 0, sizeof m->entry);
        pm_make_durable(m->entry, sizeof m->entry);
    }
    pm_commit_u64(&m->generation, pm_seal(next, PM_SALT_DEALLOC(log)));
}

static void sync_log(unsigned shard, unsigned log, pm_dealloc_freed_fn *fn) {
    struct log *l = &logs[shard][log];
    if (pm_heap_on_media() && clear_bits(on_media(shard, log)))
        next_generation(log, on_media(shard, log));
    for (unsigned i = 0; i < l->count; i++)
        fn(l->block[i]);
    l->count = 0;
    atomic_store(&l->owners, 0);
}

static void sync_of(uint32_t owners, pm_dealloc_freed_fn *fn) {
    for (unsigned shard = 0; shard < pm_heap.shards; shard++)
        for (unsigned log = 0; log < PM_DEALLOC_LOGS; log++) {
            struct log *l = &logs[shard][log];
            if (!(atomic_load(&l->owners) & owners))
                continue;
            pm_lock(&l->lock);
            sync_log(shard, log, fn);
            pm_unlock(&l->lock);
        }
}

void pm_dealloc_sync(unsigned node, pm_dealloc_freed_fn *fn) { sync_of(1u << node, fn); }

void pm_dealloc_sync_all(pm_dealloc_freed_fn *fn) { sync_of(UINT32_MAX, fn); }

void pm_dealloc_each_lock(void (*step)(struct pm_lock *)) {
    for (unsigned shard = 0; logs && shard < PM_SHARDS; shard++)
        for (unsigned log = 0; log < PM_DEALLOC_LOGS; log++)
            step(&logs[shard][log].lock);
}

// ---- free ---------------------------------------------------------------------------------------

// Locks a log of the shard that nobody has and that has room, or else the thread's first one.
// Threads begin at different ones: the address of a variable of theirs differs.
static unsigned lock_log(unsigned shard) {
    unsigned first = (unsigned)((uintptr_t)&pm_locks_held >> 12) % PM_DEALLOC_LOGS;
    for (unsigned i = 0; i < PM_DEALLOC_LOGS; i++) {
        unsigned log = (first + i) % PM_DEALLOC_LOGS;
        if (!pm_trylock_raw(&logs[shard][log].lock))
            continue;
        if (logs[shard][log].count < PM_DEALLOC_ENTRIES) {
            pm_rank_enter(&logs[shard][log].lock);
            return log;
        }
        pm_unlock_raw(&logs[shard][log].lock);
    }
    pm_lock(&logs[shard][first].lock);
    return first;
}

static void append_freed(unsigned shard, unsigned log, const struct pm_dealloc *freed) {
    struct log *l = &logs[shard][log];
    struct pm_dealloc_log *m = on_media(shard, log);
    unsigned slot = slot_of(l->count);
    pm_commit_u64(&m->entry[slot], with_check(entry_of(freed, generation_now(m)), log, slot));
    l->block[l->count++] = freed->block;
    uint32_t owner = 1u << pm_heap.shard[freed->place >> PM_PIN_SHARD_SHIFT].node;
    if (!(atomic_load(&l->owners) & owner))
        atomic_fetch_or(&l->owners, owner);
}

// Forks and the end of the program take the lock, too: after them the heap may be private.
void pm_dealloc_add(unsigned shard, const struct pm_dealloc *freed, pm_dealloc_freed_fn *fn) {
    unsigned log = lock_log(shard);
    if (logs[shard][log].count == PM_DEALLOC_ENTRIES)
        sync_log(shard, log, fn);
    if (pm_heap_on_media())
        append_freed(shard, log, freed);
    else
        fn(freed->block);
    pm_unlock(&logs[shard][log].lock);
}

// ---- recovery -----------------------------------------------------------------------------------

static bool pending; // there are entries in force

static int damaged(const struct pm_shard *s, unsigned log, const char *what, struct pm_error *err) {
    return pm_fail(err, PM_DAMAGE,
                   "%s/%s: %s of deallocation log %u does not match its check; restore the file "
                   "from a copy",
                   pm_heap.dir, s->log.name, what, log);
}

static bool leads_to_a_bit(uint64_t entry) {
    bool good = pm_pin_word(place_of(entry)) != NULL;
    if (good)
        pm_pin_read(place_of(entry), &good);
    return good;
}

// All entries are of this generation or of one before it.
static bool entry_is_good(const struct pm_dealloc_log *m, unsigned log, unsigned slot) {
    uint64_t entry = m->entry[slot];
    unsigned now = generation_now(m);
    if (!entry)
        return true;
    if (entry != with_check(entry, log, slot) || generation_of(entry) > now)
        return false;
    bool in_force = generation_of(entry) == now;
    pending |= in_force;
    return !in_force || leads_to_a_bit(entry);
}

static int check_log(unsigned shard, unsigned log, struct pm_error *err) {
    const struct pm_shard *s = &pm_heap.shard[shard];
    const struct pm_dealloc_log *m = on_media(shard, log);
    if (m->generation && !pm_sealed(m->generation, PM_SALT_DEALLOC(log)))
        return damaged(s, log, "the generation", err);
    for (unsigned slot = 0; slot < PM_DEALLOC_ENTRIES; slot++)
        if (!entry_is_good(m, log, slot))
            return damaged(s, log, "an entry", err);
    return PM_OK;
}

static bool has_logs(void) { return (pm_heap.super->super.incompat & PM_INCOMPAT_DEALLOC) != 0; }

int pm_dealloc_check(struct pm_error *err) {
    pending = false;
    for (unsigned shard = 0; has_logs() && shard < pm_heap.shards; shard++)
        for (unsigned log = 0; log < PM_DEALLOC_LOGS; log++)
            if (check_log(shard, log, err) != PM_OK)
                return err->status;
    return PM_OK;
}

void pm_dealloc_finish(void) {
    for (unsigned shard = 0; pending && shard < pm_heap.shards; shard++)
        for (unsigned log = 0; log < PM_DEALLOC_LOGS; log++)
            if (clear_bits(on_media(shard, log)))
                next_generation(log, on_media(shard, log));
    pending = false;
}

static uint32_t cleared_by(const struct pm_dealloc_log *m, uint64_t place) {
    uint32_t mask = 0;
    for (unsigned i = 0; i < PM_DEALLOC_ENTRIES; i++) {
        uint64_t entry = m->entry[i];
        if (entry && generation_of(entry) == generation_now(m) && place_of(entry) == place)
            mask |= mask_of(entry);
    }
    return mask;
}

uint32_t pm_dealloc_pinned(uint64_t place, uint32_t bits) {
    for (unsigned shard = 0; pending && shard < pm_heap.shards; shard++)
        for (unsigned log = 0; log < PM_DEALLOC_LOGS; log++)
            bits &= ~cleared_by(on_media(shard, log), place);
    return bits;
}
