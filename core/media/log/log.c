// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "log.h"

#include <string.h>

#include "log_chunks.h"
#include "log_compact.h"
#include "log_places.h"
#include "media/heap.h"
#include "media/persist.h"

#define GENERATION_MASK ((1u << 26) - 1)
#define MIN_CHUNKS 16 // a log with fewer chunks is never shortened ...
#define MIN_COMPACT 4 // ... except by recovery, where nobody else waits for the log

static uint32_t epoch_of(const struct pm_shard *s, uint32_t id) {
    return pm_unseal(pm_chunk_at(s, id)->epoch);
}

static void set_live(struct pm_shard *s, struct pm_vchunk *v, unsigned slot) {
    v->live[slot / 64] |= 1ull << slot % 64;
    s->chunks.live++;
}

static bool clear_live(struct pm_shard *s, struct pm_vchunk *v, unsigned slot) {
    uint64_t bit = 1ull << slot % 64;
    bool was = v->live[slot / 64] & bit;
    v->live[slot / 64] &= ~bit;
    s->chunks.live -= was;
    return was;
}

// ---- load ---------------------------------------------------------------------------------------

static int check_header(const struct pm_shard *s, struct pm_error *err) {
    const struct pm_log_header *h = pm_log_head(s);
    if (h->magic != PM_LOG_MAGIC || h->version != PM_FORMAT_VERSION ||
        h->chunk_size != PM_CHUNK_SIZE)
        return pm_fail(err, PM_DAMAGE, "%s/%s: not a bookkeeping log of version %u", pm_heap.dir,
                       s->log.name, PM_FORMAT_VERSION);
    uint32_t epoch = pm_unseal(h->epoch); // at most PM_EPOCH_MAX, so that epoch + 1 exists
    if (!pm_sealed(h->epoch, PM_SALT_LOG_EPOCH) || epoch == 0 || epoch > PM_EPOCH_MAX)
        return pm_fail(err, PM_DAMAGE, "%s/%s: header epoch %016lx does not match its check",
                       pm_heap.dir, s->log.name, (unsigned long)h->epoch);
    if (!pm_sealed(h->chunks, PM_SALT_LOG_CHUNKS))
        return pm_fail(err, PM_DAMAGE,
                       "%s/%s: the number of chunks %016lx does not match its check", pm_heap.dir,
                       s->log.name, (unsigned long)h->chunks);
    uint64_t there = (s->log.size - sizeof *h) / PM_CHUNK_SIZE;
    if (pm_unseal(h->chunks) > there)
        return pm_fail(err, PM_DAMAGE,
                       "%s/%s has %zu bytes, too few for %u chunks; was it truncated?", pm_heap.dir,
                       s->log.name, s->log.size, pm_unseal(h->chunks));
    return PM_OK;
}

static int check_chunk(const struct pm_shard *s, uint32_t id, struct pm_error *err) {
    const struct pm_log_chunk *c = pm_chunk_at(s, id);
    if (!pm_sealed(c->epoch, PM_SALT_CHUNK_EPOCH(id)) ||
        !pm_sealed(c->generation, PM_SALT_CHUNK_GENERATION(id)))
        return pm_fail(err, PM_DAMAGE,
                       "%s/%s: chunk %u: epoch %016lx or generation %016lx does not match "
                       "its check",
                       pm_heap.dir, s->log.name, id, (unsigned long)c->epoch,
                       (unsigned long)c->generation);
    // 0: the chunk is free. Less than the log's epoch: it belonged to an earlier list. One more: it
    // belongs to a compaction that did not reach its commit.
    if (epoch_of(s, id) > pm_unseal(pm_log_head(s)->epoch) + 1)
        return pm_fail(err, PM_DAMAGE, "%s/%s: chunk %u has epoch %u, from the future", pm_heap.dir,
                       s->log.name, id, epoch_of(s, id));
    return PM_OK;
}

static int check_entry(const struct pm_shard *s, uint32_t id, unsigned slot, struct pm_error *err) {
    uint64_t word = pm_chunk_at(s, id)->entry[slot], e = pm_entry_at(s, id, slot);
    if (word == pm_entry_seal(s, id, slot, e) &&
        (pm_entry_type(e) != PM_ENTRY_NONE || e == PM_ENTRY_ERASED))
        return PM_OK;
    return pm_fail(err, PM_DAMAGE, "%s/%s: chunk %u entry %u is no entry (%016lx)", pm_heap.dir,
                   s->log.name, id, slot, (unsigned long)word);
}

// First pass over a chunk: the entries. `used` becomes the number of entries appended, in
// interleaved order. An empty place before the last entry has lost what it had.
static int load_entries(struct pm_shard *s, uint32_t id, struct pm_error *err) {
    struct pm_vchunk *v = &s->chunks.v[id];
    v->active = true;
    s->chunks.active++;
    for (unsigned k = 0; k < PM_CHUNK_ENTRIES; k++) {
        unsigned slot = pm_entry_slot(k);
        if (pm_chunk_at(s, id)->entry[slot] == 0)
            continue;
        int status = check_entry(s, id, slot, err);
        if (status != PM_OK)
            return status;
        if (v->used != k)
            return pm_fail(err, PM_DAMAGE, "%s/%s: chunk %u entry %u is lost", pm_heap.dir,
                           s->log.name, id, pm_entry_slot(v->used));
        v->used = (uint16_t)(k + 1);
        enum pm_entry_type type = pm_entry_type(pm_entry_at(s, id, slot));
        if (type == PM_ENTRY_EXTENT || type == PM_ENTRY_SLAB)
            set_live(s, v, slot);
        else if (type == PM_ENTRY_NONE)
            pm_place_add(s, id, slot);
    }
    if (v->used == PM_CHUNK_ENTRIES)
        return PM_OK;
    if (s->chunks.current != PM_NO_CHUNK)
        return pm_fail(err, PM_DAMAGE, "%s/%s: chunk %u or %u has lost entries: neither is full",
                       pm_heap.dir, s->log.name, s->chunks.current, id);
    s->chunks.current = id;
    return PM_OK;
}

// Second pass: the tombstones. A tombstone is ignored if the chunk it names has left the log, or is
// in the log again with another generation: its entry is gone already.
static int load_tombstones(struct pm_shard *s, uint32_t id, struct pm_error *err) {
    for (unsigned slot = 0; slot < PM_CHUNK_ENTRIES; slot++) {
        uint64_t e = pm_entry_at(s, id, slot);
        if (pm_entry_type(e) != PM_ENTRY_TOMBSTONE)
            continue;
        uint64_t target = pm_entry_page(e) >> PM_POS_SHIFT, at = pm_entry_page(e) & 127;
        if (target >= s->chunks.count || at >= PM_CHUNK_ENTRIES)
            return pm_fail(err, PM_DAMAGE, "%s/%s: chunk %u entry %u ends an entry outside the log",
                           pm_heap.dir, s->log.name, id, slot);
        struct pm_vchunk *v = &s->chunks.v[target];
        if (!v->active ||
            (pm_chunk_generation(s, (uint32_t)target) & GENERATION_MASK) != pm_entry_pages(e))
            continue;
        if (!clear_live(s, v, (unsigned)at))
            return pm_fail(err, PM_DAMAGE,
                           "%s/%s: chunk %u entry %u ends an entry that does not stand",
                           pm_heap.dir, s->log.name, id, slot);
        v->ended_by[at] = id + 1;
        if (target != id)
            s->chunks.v[id].pins++;
    }
    return PM_OK;
}

int pm_log_each(struct pm_shard *s, pm_log_each_fn *each, struct pm_error *err) {
    int status = PM_OK;
    for (uint32_t id = 0; id < s->chunks.count && status == PM_OK; id++)
        for (unsigned slot = 0; slot < PM_CHUNK_ENTRIES && status == PM_OK; slot++)
            if (pm_entry_live(&s->chunks.v[id], slot))
                status = each(s, pm_entry_at(s, id, slot), id << PM_POS_SHIFT | slot, err);
    return status;
}

int pm_log_load(struct pm_shard *s, pm_log_each_fn *each, struct pm_error *err) {
    int status = check_header(s, err);
    if (status == PM_OK && !pm_chunks_begin(s, pm_unseal(pm_log_head(s)->chunks)))
        status =
            pm_fail(err, PM_OPERATIONAL,
                    "%s: no address space for the bookkeeping log; see `ulimit -v`", pm_heap.dir);
    for (uint32_t id = 0; id < s->chunks.count && status == PM_OK; id++) {
        status = check_chunk(s, id, err);
        if (status == PM_OK && epoch_of(s, id) == pm_unseal(pm_log_head(s)->epoch))
            status = load_entries(s, id, err);
    }
    for (uint32_t id = 0; id < s->chunks.count && status == PM_OK; id++)
        if (s->chunks.v[id].active)
            status = load_tombstones(s, id, err);
    return status == PM_OK && each ? pm_log_each(s, each, err) : status;
}

// A compaction that did not reach its commit leaves chunks of the next epoch. The commit of a later
// compaction must not bring them into the log.
static void drop_future_chunks(struct pm_shard *s) {
    for (uint32_t id = 0; id < s->chunks.count; id++)
        if (epoch_of(s, id) > pm_unseal(pm_log_head(s)->epoch))
            pm_commit_u64(&pm_chunk_at(s, id)->epoch, pm_chunk_free_epoch(id));
}

// A killed process may have left its last entries, or its last commit of an epoch, in the caches
// alone. They become durable before anything is appended: a tombstone must not be on media without
// the entry that it ends.
void pm_log_activate(struct pm_shard *s) {
    pm_make_durable(pm_log_head(s),
                    sizeof(struct pm_log_header) + (size_t)s->chunks.count * PM_CHUNK_SIZE);
    drop_future_chunks(s);
    for (uint32_t id = s->chunks.count; id-- > 0;)
        if (!s->chunks.v[id].active)
            pm_chunk_push_free(s, id);
}

void pm_log_header_init(struct pm_log_header *h) {
    *h = (struct pm_log_header){.magic = PM_LOG_MAGIC,
                                .version = PM_FORMAT_VERSION,
                                .chunk_size = PM_CHUNK_SIZE,
                                .epoch = pm_seal(1, PM_SALT_LOG_EPOCH),
                                .chunks = pm_seal(0, PM_SALT_LOG_CHUNKS)};
}

bool pm_log_reset(struct pm_shard *s) {
    uint32_t next = pm_unseal(pm_log_head(s)->epoch) + 1;
    if (next > PM_EPOCH_MAX || !pm_chunks_begin(s, pm_unseal(pm_log_head(s)->chunks)))
        return false;
    for (uint32_t id = s->chunks.count; id-- > 0;)
        pm_chunk_push_free(s, id);
    drop_future_chunks(s);
    pm_commit_u64(&pm_log_head(s)->epoch, pm_seal(next, PM_SALT_LOG_EPOCH)); // empties the log
    return true;
}

// ---- chunks -------------------------------------------------------------------------------------

// The chunk's empty entries and its generation are durable before the epoch that makes it part of
// the log. The epoch needs no flush of its own: the first entry goes to the same cache line after
// it.
static void enter_chunk(struct pm_shard *s, uint32_t id) {
    pm_make_durable(pm_chunk_at(s, id), PM_CHUNK_SIZE);
    pm_chunks_count(s);
    pm_chunk_enter(s, id);
}

// ---- keeping it short ---------------------------------------------------------------------------

static bool is_sparse(const struct pm_shard *s) {
    return s->chunks.live < (uint64_t)s->chunks.active * PM_CHUNK_ENTRIES / 2;
}

// The log is kept near this part of the heap's size (PMAlloc, Usage_pmem: 0.2%).
#ifndef PM_LOG_SHARE // 1 in a study build: a log that grows (scripts/study.mk)
#define PM_LOG_SHARE 500
#endif

static void shorten(struct pm_shard *s, pm_log_moved_fn *moved) {
    uint64_t bound = s->frontier / PM_LOG_SHARE / PM_CHUNK_SIZE;
    bound = bound < MIN_CHUNKS ? MIN_CHUNKS : bound;
    if (s->chunks.active < bound)
        return;
    pm_log_drop_dead_chunks(s);
    if (s->chunks.active >= bound && is_sparse(s))
        pm_log_compact(s, moved);
}

// ---- append -------------------------------------------------------------------------------------

static bool make_room(struct pm_shard *s, pm_log_moved_fn *moved) {
    if (s->chunks.current != PM_NO_CHUNK && s->chunks.v[s->chunks.current].used < PM_CHUNK_ENTRIES)
        return true;
    s->chunks.current = PM_NO_CHUNK;
    shorten(s, moved);
    if (s->chunks.current != PM_NO_CHUNK && s->chunks.v[s->chunks.current].used < PM_CHUNK_ENTRIES)
        return true;
    uint32_t id = pm_chunk_fresh(s);
    if (id == PM_NO_CHUNK) { // the file cannot grow, but dropping may free a chunk
        pm_log_drop_dead_chunks(s);
        id = pm_chunk_fresh(s);
    }
    if (id == PM_NO_CHUNK)
        return false;
    enter_chunk(s, id);
    s->chunks.current = id;
    return true;
}

#ifdef PM_NO_LOG // a study build (scripts/study.mk, tests/bench/study/inside.c)
void pm_study_put(struct pm_shard *s, uint64_t *at, uint64_t word, uint64_t entry);
#endif

static unsigned put(struct pm_shard *s, uint64_t entry) {
    uint32_t id = s->chunks.current;
    unsigned slot = pm_entry_slot(s->chunks.v[id].used++);
    uint64_t *at = &pm_chunk_at(s, id)->entry[slot], word = pm_entry_seal(s, id, slot, entry);
#ifdef PM_NO_LOG
    pm_study_put(s, at, word, entry);
#else
    pm_commit_u64(at, word);
#endif
    return slot;
}

pm_log_pos pm_log_append(struct pm_shard *s, uint64_t entry, pm_log_moved_fn *moved) {
    if (pm_persist_waits()) {
        pm_log_pos pos;
        return pm_log_append_group(s, &entry, &pos, 1, moved) ? pos : PM_LOG_NOWHERE;
    }
    if (!pm_heap_on_media())
        return 0;
    if (!make_room(s, moved))
        return PM_LOG_NOWHERE;
    unsigned slot = put(s, entry);
    set_live(s, &s->chunks.v[s->chunks.current], slot);
    return s->chunks.current << PM_POS_SHIFT | slot;
}

// Room for the group is made before its first entry is stored, because that may move entries.
static uint64_t make_places(struct pm_shard *s, unsigned count, pm_log_moved_fn *moved) {
    if (s->chunks.places < count)
        shorten(s, moved);
    bool more = true;
    while (more && s->chunks.places < count)
        more = pm_places_more(s);
    if (!more && !s->chunks.places) { // the file cannot grow, but dropping may free a chunk
        pm_log_drop_dead_chunks(s);
        pm_places_more(s);
    }
    return s->chunks.places < count ? s->chunks.places : count;
}

// Whole chunks become durable, and what lies between them too: on a plain file each flush waits for
// the disk (as in log_compact.c).
unsigned pm_log_append_group(struct pm_shard *s, const uint64_t *entry, pm_log_pos *pos,
                             unsigned count, pm_log_moved_fn *moved) {
    struct pm_gather stored = {0};
    if (!pm_heap_on_media()) { // a thread that makes a group holds no lock before it comes here
        memset(pos, 0, count * sizeof *pos);
        return count;
    }
    unsigned room = (unsigned)make_places(s, count, moved);
    for (unsigned i = 0; i < room; i++) {
        pos[i] = pm_place_take(s);
        uint32_t id = pos[i] >> PM_POS_SHIFT;
        unsigned slot = pos[i] & 127;
        __atomic_store_n(&pm_chunk_at(s, id)->entry[slot], pm_entry_seal(s, id, slot, entry[i]),
                         __ATOMIC_RELEASE);
        set_live(s, &s->chunks.v[id], slot);
        pm_gather_add(&stored, pm_chunk_at(s, id), PM_CHUNK_SIZE);
    }
    pm_gather_durable(&stored);
    return room;
}

static uint64_t *mark_erased(struct pm_shard *s, pm_log_pos pos) {
    uint32_t id = pos >> PM_POS_SHIFT;
    unsigned slot = pos & 127;
    uint64_t *entry = &pm_chunk_at(s, id)->entry[slot];
    clear_live(s, &s->chunks.v[id], slot);
    __atomic_store_n(entry, pm_entry_seal(s, id, slot, PM_ENTRY_ERASED), __ATOMIC_RELEASE);
    pm_place_add(s, id, slot);
    return entry;
}

void pm_log_erase(struct pm_shard *s, pm_log_pos pos) {
    pm_make_durable(mark_erased(s, pos), sizeof(uint64_t));
}

void pm_log_forget(struct pm_shard *s, pm_log_pos pos) { mark_erased(s, pos); }

// A power failure before the drain leaves any subset of the entries erased on media. No entry
// depends on an erased one, so the log is good in each case.
void pm_log_forgotten_between(struct pm_shard *s, pm_log_pos low, pm_log_pos high) {
    struct pm_gather erased = {0};
    pm_gather_add(&erased, pm_chunk_at(s, low >> PM_POS_SHIFT), PM_CHUNK_SIZE);
    pm_gather_add(&erased, pm_chunk_at(s, high >> PM_POS_SHIFT), PM_CHUNK_SIZE);
    pm_gather_durable(&erased);
}

// A power failure in here leaves any subset of these entries erased on media. Each of them is that
// of an extent that nothing reaches, and no other entry depends on it. The next recovery finds the
// erased ones free and the others dead again. So nothing is lost. Erasing needs no new chunk, so it
// also works on a full file system. For compaction see pm_log_compact().
void pm_log_forgotten(struct pm_shard *s, pm_log_moved_fn *moved) {
    pm_make_durable(pm_log_head(s),
                    sizeof(struct pm_log_header) + (size_t)s->chunks.count * PM_CHUNK_SIZE);
    if (s->chunks.active >= MIN_COMPACT && is_sparse(s))
        pm_log_compact(s, moved);
}

void pm_log_end(struct pm_shard *s, const pm_log_pos *pos, pm_log_moved_fn *moved) {
    if (!pm_heap_on_media())
        return;
    if (pm_persist_waits()) {
        pm_log_erase(s, *pos);
        return;
    }
    bool room = make_room(s, moved);
    uint32_t target = *pos >> PM_POS_SHIFT;
    unsigned slot = *pos & 127;
    if (!room) { // there is no room for a tombstone
        pm_log_erase(s, *pos);
        return;
    }
    clear_live(s, &s->chunks.v[target], slot);
    uint64_t generation = pm_chunk_generation(s, target) & GENERATION_MASK;
    put(s, pm_entry_make(PM_ENTRY_TOMBSTONE, *pos, generation));
    s->chunks.v[target].ended_by[slot] = s->chunks.current + 1;
    if (target != s->chunks.current)
        s->chunks.v[s->chunks.current].pins++;
}

struct pm_log_digest pm_log_digest(const struct pm_shard *s) {
    struct pm_log_digest d = {0, 0};
    for (uint32_t id = 0; id < s->chunks.count; id++)
        for (unsigned slot = 0; slot < PM_CHUNK_ENTRIES; slot++)
            if (pm_entry_live(&s->chunks.v[id], slot)) {
                uint64_t x = pm_entry_at(s, id, slot) * 0x9e3779b97f4a7c15ull;
                x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9ull;
                d.sum += x ^ x >> 32;
                d.entries++;
            }
    return d;
}

struct pm_log_stats pm_log_stats(const struct pm_shard *s) {
    return (struct pm_log_stats){s->chunks.count, s->chunks.active, s->chunks.live,
                                 s->chunks.chunk_drops, s->chunks.compactions};
}

struct pm_log_stats pm_log_stats_sum(void) {
    struct pm_log_stats sum = {0};
    for (unsigned i = 0; i < pm_heap.shards; i++) {
        struct pm_log_stats one = pm_log_stats(&pm_heap.shard[i]);
        sum.chunks += one.chunks;
        sum.active += one.active;
        sum.live += one.live;
        sum.chunk_drops += one.chunk_drops;
        sum.compactions += one.compactions;
    }
    return sum;
}

// ---- reading a copy ----------------------------------------------------------------------------

// Loading stores nothing through the mapping. So the copy may stand in for a file.
int pm_log_read(const void *bytes, size_t size, pm_log_each_fn *each, struct pm_log_stats *stats,
                struct pm_error *err) {
    static struct pm_shard copy; // its table of chunks is kept for the next copy
    if (size < sizeof(struct pm_log_header))
        return pm_fail(err, PM_DAMAGE, "a log of %zu bytes has no header", size);
    copy.log = (struct pm_file){.name = "booklog", .map = (char *)(uintptr_t)bytes, .size = size};
    copy.log.reach =
        sizeof(struct pm_log_header) + PM_SHARD_RANGE / PM_PAGE_SIZE * sizeof(uint64_t);
    int status = pm_log_load(&copy, each, err);
    *stats = pm_log_stats(&copy);
    return status;
}
