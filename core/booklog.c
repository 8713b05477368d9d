// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "booklog.h"

#include <string.h>

#include "crc.h"
#include "heap.h"
#include "persist.h"
#include "table.h"

#define POS_SHIFT 7
#define GENERATION_MASK ((1u << 26) - 1)
#define MIN_CHUNKS 16 // below this, the log is never worth collecting
#define NO_CHUNK UINT32_MAX
#define EPOCH_MAX (UINT32_MAX - 1)
#define CHECK_MASK (0xffull << PM_ENTRY_CHECK_SHIFT)
#define ERASED (PM_ENTRY_PAGES_MAX << 38 | PM_ENTRY_NONE)

// The volatile side of a chunk ("vchunk").
struct vchunk {
    uint64_t live[2]; // bit i: entry i is an extent that stands
    uint16_t used;    // entries appended, in interleaved order
    uint16_t pins;    // tombstones here whose entry's chunk is still in the log
    bool active;
    uint32_t next_free;
    uint32_t ended_by[PM_CHUNK_ENTRIES]; // chunk + 1 of the tombstone that ended entry i
};

static struct vchunk *vchunks;
static struct pm_table vchunk_table;
static uint32_t chunks; // that were ever used; the file may have more
static uint32_t active; // in the log
static uint64_t live;   // entries that stand
static uint32_t current = NO_CHUNK;
static uint32_t free_head = NO_CHUNK;
static uint64_t fast_gcs, slow_gcs;

void (*pm_log_moved)(uint64_t entry, pm_log_pos to);

static struct pm_log_header *header(void) { return (struct pm_log_header *)pm_heap.log.map; }

static struct pm_log_chunk *chunk_at(uint32_t id) {
    return (struct pm_log_chunk *)(pm_heap.log.map + sizeof(struct pm_log_header)) + id;
}

static uint32_t epoch_of(uint32_t id) { return pm_unseal(chunk_at(id)->epoch); }
static uint32_t generation_of(uint32_t id) { return pm_unseal(chunk_at(id)->generation); }
static uint64_t free_epoch(uint32_t id) { return pm_seal(0, PM_SALT_CHUNK_EPOCH(id)); }

// An entry as it stands on media at this place: with its check bits.
static uint64_t seal_entry(uint32_t id, unsigned slot, uint64_t entry) {
    uint64_t where = (uint64_t)generation_of(id) << 32 | id << POS_SHIFT | slot;
    return entry | (uint64_t)pm_crc8(pm_crc8(0, where), entry) << PM_ENTRY_CHECK_SHIFT;
}

static uint64_t entry_at(uint32_t id, unsigned slot) {
    return chunk_at(id)->entry[slot] & ~CHECK_MASK;
}

// Interleaved appending: the k-th entry of a chunk goes to cache line k % 16. Line 0 has room for six
// entries beside the chunk's header, the others for eight, so the last rounds pass over line 0.
static unsigned slot_of(unsigned k) {
    const unsigned lines = 16, short_rounds = 6 * lines;
    if (k < short_rounds) {
        unsigned line = k % lines, row = k / lines;
        return line == 0 ? row : 6 + (line - 1) * 8 + row;
    }
    k -= short_rounds;
    return 6 + k % (lines - 1) * 8 + 6 + k / (lines - 1);
}

static void set_live(struct vchunk *v, unsigned slot) {
    v->live[slot / 64] |= 1ull << slot % 64;
    live++;
}

static bool clear_live(struct vchunk *v, unsigned slot) {
    uint64_t bit = 1ull << slot % 64;
    bool was = v->live[slot / 64] & bit;
    v->live[slot / 64] &= ~bit;
    live -= was;
    return was;
}

static bool is_live(const struct vchunk *v, unsigned slot) {
    return v->live[slot / 64] >> slot % 64 & 1;
}

static void push_free(uint32_t id) {
    vchunks[id].next_free = free_head;
    free_head = id;
}

// ---- load --------------------------------------------------------------------------------------------

static int check_header(struct pm_error *err) {
    const struct pm_log_header *h = header();
    if (h->magic != PM_LOG_MAGIC || h->version != PM_FORMAT_VERSION ||
        h->chunk_size != PM_CHUNK_SIZE)
        return pm_fail(err, PM_DAMAGE, "%s/booklog.0: not a bookkeeping log of version %u",
                       pm_heap.dir, PM_FORMAT_VERSION);
    uint32_t epoch = pm_unseal(h->epoch); // there is always a next one
    if (!pm_sealed(h->epoch, PM_SALT_LOG_EPOCH) || epoch == 0 || epoch > EPOCH_MAX)
        return pm_fail(err, PM_DAMAGE, "%s/booklog.0: header epoch %016lx does not match its check",
                       pm_heap.dir, (unsigned long)h->epoch);
    if (!pm_sealed(h->chunks, PM_SALT_LOG_CHUNKS))
        return pm_fail(err, PM_DAMAGE,
                       "%s/booklog.0: the number of chunks %016lx does not match its check",
                       pm_heap.dir, (unsigned long)h->chunks);
    uint64_t there = (pm_heap.log.size - sizeof *h) / PM_CHUNK_SIZE;
    if (pm_unseal(h->chunks) > there)
        return pm_fail(err, PM_DAMAGE,
                       "%s/booklog.0 has %zu bytes, too few for %u chunks; was it truncated?",
                       pm_heap.dir, pm_heap.log.size, pm_unseal(h->chunks));
    return PM_OK;
}

static int check_chunk(uint32_t id, struct pm_error *err) {
    const struct pm_log_chunk *c = chunk_at(id);
    if (!pm_sealed(c->epoch, PM_SALT_CHUNK_EPOCH(id)) ||
        !pm_sealed(c->generation, PM_SALT_CHUNK_GENERATION(id)))
        return pm_fail(err, PM_DAMAGE,
                       "%s/booklog.0: chunk %u: epoch %016lx or generation %016lx does not match "
                       "its check",
                       pm_heap.dir, id, (unsigned long)c->epoch, (unsigned long)c->generation);
    // 0 is free, less is of a past list, one more of a slow GC that did not reach its flip.
    if (epoch_of(id) > pm_unseal(header()->epoch) + 1)
        return pm_fail(err, PM_DAMAGE, "%s/booklog.0: chunk %u has epoch %u, from the future",
                       pm_heap.dir, id, epoch_of(id));
    return PM_OK;
}

static int check_entry(uint32_t id, unsigned slot, struct pm_error *err) {
    uint64_t word = chunk_at(id)->entry[slot], e = entry_at(id, slot);
    if (word == seal_entry(id, slot, e) && (pm_entry_type(e) != PM_ENTRY_NONE || e == ERASED))
        return PM_OK;
    return pm_fail(err, PM_DAMAGE, "%s/booklog.0: chunk %u entry %u is no entry (%016lx)",
                   pm_heap.dir, id, slot, (unsigned long)word);
}

// First pass over a chunk: the entries. `used` ends behind the last appended one, in interleaved order; an empty
// one before it was not always empty.
static int load_entries(uint32_t id, struct pm_error *err) {
    struct vchunk *v = &vchunks[id];
    v->active = true;
    active++;
    for (unsigned k = 0; k < PM_CHUNK_ENTRIES; k++) {
        unsigned slot = slot_of(k);
        if (chunk_at(id)->entry[slot] == 0)
            continue;
        int status = check_entry(id, slot, err);
        if (status != PM_OK)
            return status;
        if (v->used != k)
            return pm_fail(err, PM_DAMAGE, "%s/booklog.0: chunk %u entry %u is lost", pm_heap.dir,
                           id, slot_of(v->used));
        v->used = (uint16_t)(k + 1);
        enum pm_entry_type type = pm_entry_type(entry_at(id, slot));
        if (type == PM_ENTRY_EXTENT || type == PM_ENTRY_SLAB)
            set_live(v, slot);
    }
    if (v->used == PM_CHUNK_ENTRIES)
        return PM_OK;
    if (current != NO_CHUNK)
        return pm_fail(err, PM_DAMAGE,
                       "%s/booklog.0: chunk %u or %u has lost entries: neither is full",
                       pm_heap.dir, current, id);
    current = id;
    return PM_OK;
}

// Second pass: the tombstones. One whose chunk left the log, or came back with another generation, has
// done its work.
static int load_tombstones(uint32_t id, struct pm_error *err) {
    for (unsigned slot = 0; slot < PM_CHUNK_ENTRIES; slot++) {
        uint64_t e = entry_at(id, slot);
        if (pm_entry_type(e) != PM_ENTRY_TOMBSTONE)
            continue;
        uint64_t target = pm_entry_page(e) >> POS_SHIFT, at = pm_entry_page(e) & 127;
        if (target >= chunks || at >= PM_CHUNK_ENTRIES)
            return pm_fail(err, PM_DAMAGE,
                           "%s/booklog.0: chunk %u entry %u ends an entry outside the log",
                           pm_heap.dir, id, slot);
        struct vchunk *v = &vchunks[target];
        if (!v->active || (generation_of((uint32_t)target) & GENERATION_MASK) != pm_entry_pages(e))
            continue;
        if (!clear_live(v, (unsigned)at))
            return pm_fail(err, PM_DAMAGE,
                           "%s/booklog.0: chunk %u entry %u ends an entry that does not stand",
                           pm_heap.dir, id, slot);
        v->ended_by[at] = id + 1;
        if (target != id)
            vchunks[id].pins++;
    }
    return PM_OK;
}

static bool volatile_side(uint32_t in_use) {
    size_t reach = (pm_heap.log.reach / PM_CHUNK_SIZE) * sizeof *vchunks;
    if (!vchunks && !pm_table_reserve(&vchunk_table, reach))
        return false;
    vchunks = (struct vchunk *)vchunk_table.map;
    if (!pm_table_need(&vchunk_table, in_use * sizeof *vchunks))
        return false;
    chunks = in_use;
    active = 0;
    live = 0;
    current = free_head = NO_CHUNK;
    for (uint32_t id = 0; id < chunks; id++)
        vchunks[id] = (struct vchunk){0};
    return true;
}

int pm_log_each(int (*each)(uint64_t entry, pm_log_pos pos, struct pm_error *err),
                struct pm_error *err) {
    int status = PM_OK;
    for (uint32_t id = 0; id < chunks && status == PM_OK; id++)
        for (unsigned slot = 0; slot < PM_CHUNK_ENTRIES && status == PM_OK; slot++)
            if (is_live(&vchunks[id], slot))
                status = each(entry_at(id, slot), id << POS_SHIFT | slot, err);
    return status;
}

int pm_log_load(int (*each)(uint64_t entry, pm_log_pos pos, struct pm_error *err),
                struct pm_error *err) {
    int status = check_header(err);
    if (status == PM_OK && !volatile_side(pm_unseal(header()->chunks)))
        status = pm_fail(err, PM_OPERATIONAL, "out of address space for the bookkeeping log");
    for (uint32_t id = 0; id < chunks && status == PM_OK; id++) {
        status = check_chunk(id, err);
        if (status == PM_OK && epoch_of(id) == pm_unseal(header()->epoch))
            status = load_entries(id, err);
    }
    for (uint32_t id = 0; id < chunks && status == PM_OK; id++)
        if (vchunks[id].active)
            status = load_tombstones(id, err);
    return status == PM_OK ? pm_log_each(each, err) : status;
}

// A slow GC that did not reach its flip leaves chunks of the next epoch; they must not wake up when a later one
// flips.
static void drop_future_chunks(void) {
    for (uint32_t id = 0; id < chunks; id++)
        if (epoch_of(id) > pm_unseal(header()->epoch))
            pm_commit_u64(&chunk_at(id)->epoch, free_epoch(id));
}

// The last entries, or the flip, of a process that was killed may not be durable yet: a tombstone must not outlast
// the entry that it ends.
void pm_log_activate(void) {
    pm_make_durable(header(), sizeof(struct pm_log_header) + (size_t)chunks * PM_CHUNK_SIZE);
    drop_future_chunks();
    for (uint32_t id = chunks; id-- > 0;)
        if (!vchunks[id].active)
            push_free(id);
}

void pm_log_header_init(struct pm_log_header *h) {
    *h = (struct pm_log_header){.magic = PM_LOG_MAGIC,
                                .version = PM_FORMAT_VERSION,
                                .chunk_size = PM_CHUNK_SIZE,
                                .epoch = pm_seal(1, PM_SALT_LOG_EPOCH),
                                .chunks = pm_seal(0, PM_SALT_LOG_CHUNKS)};
}

static bool sound(void) {
    struct pm_error ignored;
    bool good = check_header(&ignored) == PM_OK && pm_unseal(header()->epoch) < EPOCH_MAX;
    for (uint32_t id = 0; good && id < pm_unseal(header()->chunks); id++)
        good = check_chunk(id, &ignored) == PM_OK;
    return good;
}

bool pm_log_reset(void) {
    bool good = sound();
    if (!volatile_side(good ? pm_unseal(header()->chunks) : 0))
        return false;
    for (uint32_t id = chunks; id-- > 0;)
        push_free(id);
    // A good header stays: killed amid rewriting it, the heap would look damaged. The flip empties the log at once.
    if (good) {
        drop_future_chunks();
        pm_commit_u64(&header()->epoch, pm_seal(pm_unseal(header()->epoch) + 1, PM_SALT_LOG_EPOCH));
        return true;
    }
    pm_log_header_init(header());
    pm_make_durable(header(), 64);
    return true;
}

// ---- chunks ------------------------------------------------------------------------------------------

// A chunk that is not in the log, its entries zero; NO_CHUNK when the file cannot grow.
static uint32_t fresh_chunk(void) {
    uint32_t id = free_head;
    if (id != NO_CHUNK) {
        free_head = vchunks[id].next_free;
    } else {
        size_t size = sizeof(struct pm_log_header) + (size_t)(chunks + 1) * PM_CHUNK_SIZE;
        if (!pm_table_need(&vchunk_table, (chunks + 1) * sizeof *vchunks) ||
            !pm_file_grow(&pm_heap.log, size))
            return NO_CHUNK;
        id = chunks++;
    }
    struct pm_log_chunk *c = chunk_at(id);
    memset(c->entry, 0, sizeof c->entry);
    __atomic_store_n(&c->epoch, free_epoch(id), __ATOMIC_RELAXED);
    __atomic_store_n(&c->generation, pm_seal(generation_of(id) + 1, PM_SALT_CHUNK_GENERATION(id)),
                     __ATOMIC_RELAXED);
    vchunks[id] = (struct vchunk){0};
    return id;
}

// Chunks that the header does not count yet must be on media, as free ones, before it does. Durable with the next
// drain: that of the first entry, or of the new list's epochs.
static void count_chunks(void) {
    if (pm_unseal(header()->chunks) == chunks)
        return;
    __atomic_store_n(&header()->chunks, pm_seal(chunks, PM_SALT_LOG_CHUNKS), __ATOMIC_RELEASE);
    pm_flush(&header()->chunks, sizeof header()->chunks);
}

// Entries and header reach media before the epoch that makes the chunk part of the log. The epoch needs no flush of
// its own: the first entry goes to the same line behind it, and without an entry nothing depends on the chunk.
static void enter_chunk(uint32_t id) {
    pm_make_durable(chunk_at(id), PM_CHUNK_SIZE);
    count_chunks();
    uint32_t epoch = pm_unseal(header()->epoch);
    __atomic_store_n(&chunk_at(id)->epoch, pm_seal(epoch, PM_SALT_CHUNK_EPOCH(id)),
                     __ATOMIC_RELEASE);
    vchunks[id].active = true;
    active++;
}

// ---- collection --------------------------------------------------------------------------------------

static bool is_dead(uint32_t id) {
    const struct vchunk *v = &vchunks[id];
    return v->active && id != current && !v->live[0] && !v->live[1] && !v->pins;
}

static void drop_chunk(uint32_t id) {
    pm_commit_u64(&chunk_at(id)->epoch, free_epoch(id));
    vchunks[id].active = false;
    active--;
    // The tombstones of its entries have done their work; that may free their chunks in turn.
    for (unsigned slot = 0; slot < PM_CHUNK_ENTRIES; slot++) {
        uint32_t by = vchunks[id].ended_by[slot];
        if (by && by - 1 != id)
            vchunks[by - 1].pins--;
    }
    push_free(id);
}

// Fast GC: frees dead chunks by looking at vchunks only. Tombstones mostly stand in later chunks than
// their entries, so one pass upwards sees most of the chain.
static void fast_gc(void) {
    fast_gcs++;
    for (uint32_t id = 0; id < chunks; id++)
        if (is_dead(id))
            drop_chunk(id);
}

// The chunk leaves the log, and with it what stood in it.
static void retire_chunk(uint32_t id) {
    vchunks[id].active = false;
    vchunks[id].live[0] = vchunks[id].live[1] = 0;
    push_free(id);
}

// Copies the live entries of `from` behind *to, opening chunks as needed. False when there is no room.
static bool copy_live(uint32_t from, uint32_t *to, uint32_t *list) {
    for (unsigned slot = 0; slot < PM_CHUNK_ENTRIES; slot++) {
        if (!is_live(&vchunks[from], slot))
            continue;
        if (*to == NO_CHUNK || vchunks[*to].used == PM_CHUNK_ENTRIES) {
            uint32_t id = fresh_chunk();
            if (id == NO_CHUNK)
                return false;
            vchunks[id].next_free = *list;
            *list = *to = id;
        }
        struct vchunk *v = &vchunks[*to];
        unsigned at = slot_of(v->used++);
        chunk_at(*to)->entry[at] = seal_entry(*to, at, entry_at(from, slot));
        v->live[at / 64] |= 1ull << at % 64;
    }
    return true;
}

static void flush_list(uint32_t list) {
    for (uint32_t id = list; id != NO_CHUNK; id = vchunks[id].next_free)
        pm_flush(chunk_at(id), PM_CHUNK_SIZE);
    pm_drain();
    count_chunks();
}

// Slow GC: copies what stands into new chunks of the next epoch, then flips the header to it:
//
//   1 entries of the new chunks      flushed, then the header's count of chunks
//   2 new chunks' epoch = e + 1      flushed     a crash up to here leaves the old list in force
//   3 header epoch = e + 1           the flip
//
// Old chunks need no write: their epoch has passed.
static void slow_gc(void) {
    uint32_t next = pm_unseal(header()->epoch) + 1;
    uint32_t to = NO_CHUNK, list = NO_CHUNK, old_chunks = chunks;
    bool whole = true;
    for (uint32_t id = 0; id < old_chunks && whole; id++)
        if (vchunks[id].active)
            whole = copy_live(id, &to, &list);
    flush_list(list);
    if (!whole || next > EPOCH_MAX) { // no room: keep the old list
        while (list != NO_CHUNK) {
            uint32_t id = list;
            list = vchunks[id].next_free;
            retire_chunk(id);
        }
        return;
    }
    slow_gcs++;
    for (uint32_t id = list; id != NO_CHUNK; id = vchunks[id].next_free) {
        chunk_at(id)->epoch = pm_seal(next, PM_SALT_CHUNK_EPOCH(id));
        pm_flush(&chunk_at(id)->epoch, sizeof(uint64_t));
    }
    pm_drain();
    pm_commit_u64(&header()->epoch, pm_seal(next, PM_SALT_LOG_EPOCH));
    for (uint32_t id = 0; id < chunks; id++)
        if (vchunks[id].active)
            retire_chunk(id);
    active = 0;
    for (uint32_t id = list, after; id != NO_CHUNK; id = after) {
        after = vchunks[id].next_free;
        vchunks[id].active = true;
        active++;
        for (unsigned slot = 0; slot < PM_CHUNK_ENTRIES; slot++)
            if (is_live(&vchunks[id], slot))
                pm_log_moved(entry_at(id, slot), id << POS_SHIFT | slot);
    }
    current = to;
}

// The log's share of the heap is held near 0.2% (PMAlloc, Usage_pmem).
static void collect(void) {
    uint64_t bound = pm_heap.frontier / 500 / PM_CHUNK_SIZE;
    bound = bound < MIN_CHUNKS ? MIN_CHUNKS : bound;
    if (active < bound)
        return;
    fast_gc();
    if (active >= bound && live < (uint64_t)active * PM_CHUNK_ENTRIES / 2)
        slow_gc();
}

// ---- append ------------------------------------------------------------------------------------------

static bool make_room(void) {
    if (current != NO_CHUNK && vchunks[current].used < PM_CHUNK_ENTRIES)
        return true;
    current = NO_CHUNK;
    collect();
    if (current != NO_CHUNK && vchunks[current].used < PM_CHUNK_ENTRIES)
        return true;
    uint32_t id = fresh_chunk();
    if (id == NO_CHUNK) { // the file cannot grow: what is dead may do
        fast_gc();
        id = fresh_chunk();
    }
    if (id == NO_CHUNK)
        return false;
    enter_chunk(id);
    current = id;
    return true;
}

static unsigned put(uint64_t entry) {
    unsigned slot = slot_of(vchunks[current].used++);
    pm_commit_u64(&chunk_at(current)->entry[slot], seal_entry(current, slot, entry));
    return slot;
}

pm_log_pos pm_log_append(uint64_t entry) {
    if (!pm_heap.persistent)
        return 0;
    if (!make_room())
        return PM_LOG_NOWHERE;
    unsigned slot = put(entry);
    set_live(&vchunks[current], slot);
    return current << POS_SHIFT | slot;
}

void pm_log_erase(pm_log_pos pos) {
    uint32_t id = pos >> POS_SHIFT;
    unsigned slot = pos & 127;
    clear_live(&vchunks[id], slot);
    pm_commit_u64(&chunk_at(id)->entry[slot], seal_entry(id, slot, ERASED));
}

void pm_log_end(const pm_log_pos *pos) {
    if (!pm_heap.persistent)
        return;
    bool room = make_room();
    uint32_t target = *pos >> POS_SHIFT;
    unsigned slot = *pos & 127;
    if (!room) { // not even space for a tombstone
        pm_log_erase(*pos);
        return;
    }
    clear_live(&vchunks[target], slot);
    uint64_t generation = generation_of(target) & GENERATION_MASK;
    put(pm_entry_make(PM_ENTRY_TOMBSTONE, *pos, generation));
    vchunks[target].ended_by[slot] = current + 1;
    if (target != current)
        vchunks[current].pins++;
}

struct pm_log_digest pm_log_digest(void) {
    struct pm_log_digest d = {0, 0};
    for (uint32_t id = 0; id < chunks; id++)
        for (unsigned slot = 0; slot < PM_CHUNK_ENTRIES; slot++)
            if (is_live(&vchunks[id], slot)) {
                uint64_t x = entry_at(id, slot) * 0x9e3779b97f4a7c15ull;
                x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9ull;
                d.sum += x ^ x >> 32;
                d.entries++;
            }
    return d;
}

struct pm_log_stats pm_log_stats(void) {
    return (struct pm_log_stats){chunks, active, live, fast_gcs, slow_gcs};
}
