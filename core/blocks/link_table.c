// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "link_table.h"

#include "base/crc.h"
#include "base/own_memory.h"
#include "media/backing/backing.h"
#include "media/feature.h"
#include "media/heap.h"
#include "media/link_format.h"
#include "media/persist.h"
#include "media_lines.h"

#define TABLES_MAX (1u << 17)
#define CHECK_BITS(word) ((word) & ~(~0ull << PM_LINK_CHECK_SHIFT))
#define FLAGS (PM_LINK_IN_USE | PM_LINK_LONG | PM_LINK_ROOT)
#define OBJECT_UNIT 16u

// The tables by number, and a stack of the entries that are free. Entry i of table t has the number
// t * PM_LINK_ENTRIES + i.
static uint32_t *lines, *spare;
static uint32_t tables, spares;

uint64_t pm_links_weeded;

static struct pm_link_state *state(void) {
    return (struct pm_link_state *)(void *)(pm_heap.super->state.reserved +
                                            sizeof(struct pm_shard_state));
}

static struct pm_link_head *table_at(uint32_t line) {
    return (struct pm_link_head *)(void *)(pm_heap.shard[0].morph.map +
                                           (size_t)line * PM_MORPH_LINE);
}

static struct pm_link_entry *entry_of(uint32_t number) {
    void *first = table_at(lines[number / PM_LINK_ENTRIES]) + 1;
    return (struct pm_link_entry *)first + number % PM_LINK_ENTRIES;
}

static bool reserve(void) {
    if (!lines)
        lines = pm_own_reserve(TABLES_MAX * sizeof *lines);
    if (!spare)
        spare = pm_own_reserve((size_t)TABLES_MAX * PM_LINK_ENTRIES * sizeof *spare);
    return lines && spare;
}

// ---- words --------------------------------------------------------------------------------------

static uint32_t salt_of(const uint64_t *word) {
    const uint64_t *first = (const uint64_t *)(const void *)pm_heap.shard[0].morph.map;
    return PM_SALT_LINK((uint32_t)(word - first));
}

static uint64_t checked(const uint64_t *word, uint64_t value) {
    uint32_t crc = pm_crc32c(salt_of(word), &value, sizeof value);
    return value | (uint64_t)(crc >> 12) << PM_LINK_CHECK_SHIFT;
}

static bool is_checked(const uint64_t *word) { return *word == checked(word, CHECK_BITS(*word)); }

// Never used, or erased: the check stays, so that a lost word is no erased one.
static bool is_free(const struct pm_link_entry *e) { return !CHECK_BITS(e->link); }

static uint64_t link_word(const uint64_t *word, const struct pm_link *link) {
    uint64_t where = link->in_root ? link->at : link->at / sizeof(uint64_t);
    return checked(word, where << PM_LINK_WHERE_SHIFT | (link->in_root ? PM_LINK_ROOT : 0) |
                             (link->is_long ? PM_LINK_LONG : 0) | PM_LINK_IN_USE);
}

static struct pm_link read_entry(const struct pm_link_entry *e) {
    uint64_t where = CHECK_BITS(e->link) >> PM_LINK_WHERE_SHIFT;
    bool in_root = e->link & PM_LINK_ROOT;
    return (struct pm_link){.at = in_root ? where : where * sizeof(uint64_t),
                            .object = CHECK_BITS(e->object),
                            .root = in_root ? pm_unseal(e->root) : 0,
                            .in_root = in_root,
                            .is_long = e->link & PM_LINK_LONG};
}

static uint64_t root_word(const struct pm_link_entry *e, const struct pm_link *link) {
    return link->in_root ? pm_seal(link->root, salt_of(&e->root)) : 0;
}

// ---- adding, moving, erasing --------------------------------------------------------------------

static void make_spare(uint32_t table) {
    for (uint32_t i = PM_LINK_ENTRIES; i-- > 0;)
        spare[spares++] = table * PM_LINK_ENTRIES + i;
}

static uint32_t crc_of(const struct pm_link_head *h) {
    return pm_crc32c(0, h, offsetof(struct pm_link_head, crc));
}

// The lines may have been another table's, so all of the new one is durable before it is named.
static bool make_table(void) {
    uint32_t line;
    if (!reserve() || tables == TABLES_MAX)
        return false;
    pm_feature_need(PM_INCOMPAT_LINKS);
    if (!pm_media_lines_take(&pm_heap.shard[0], PM_LINK_LINES, &line))
        return false;
    struct pm_link_head *h = table_at(line);
    struct pm_link_entry *entry = (struct pm_link_entry *)(void *)(h + 1);
    *h = (struct pm_link_head){.magic = PM_LINK_MAGIC,
                               .entries = PM_LINK_ENTRIES,
                               .line = line,
                               .next = pm_unseal(state()->first)};
    h->crc = crc_of(h);
    for (uint32_t i = 0; i < PM_LINK_ENTRIES; i++)
        entry[i] = (struct pm_link_entry){0};
    pm_make_durable(h, PM_LINK_LINES * PM_MORPH_LINE);
    pm_commit_u64(&state()->first, pm_seal(line, PM_SALT_LINKS));
    lines[tables] = line;
    make_spare(tables++);
    return true;
}

bool pm_links_add(const struct pm_link *link, uint32_t *number) {
    if (!spares && !make_table())
        return false;
    *number = spare[--spares];
    struct pm_link_entry *e = entry_of(*number);
    __atomic_store_n(&e->object, checked(&e->object, link->object), __ATOMIC_RELEASE);
    __atomic_store_n(&e->root, root_word(e, link), __ATOMIC_RELEASE);
    pm_commit_u64(&e->link, link_word(&e->link, link)); // the same line, so after the others
    return true;
}

bool pm_links_move(uint32_t *number, const struct pm_link *to) {
    struct pm_link_entry *e = entry_of(*number);
    uint32_t fresh;
    if (e->root == root_word(e, to)) {
        pm_commit_u64(&e->link, link_word(&e->link, to));
        return true;
    }
    if (!pm_links_add(to, &fresh))
        return false;
    pm_links_erase(*number);
    pm_links_settle();
    *number = fresh;
    return true;
}

void pm_links_set_object(uint32_t number, uint64_t object) {
    struct pm_link_entry *e = entry_of(number);
    pm_commit_u64(&e->object, checked(&e->object, object));
}

void pm_links_clear_word(uint64_t *word) {
    __atomic_store_n(word, 0, __ATOMIC_RELEASE);
    pm_flush(word, sizeof *word);
}

void pm_links_erase(uint32_t number) {
    struct pm_link_entry *e = entry_of(number);
    __atomic_store_n(&e->link, checked(&e->link, 0), __ATOMIC_RELEASE);
    pm_flush(&e->link, sizeof e->link);
    spare[spares++] = number;
}

void pm_links_settle(void) { pm_drain(); }

// ---- reading ------------------------------------------------------------------------------------

void pm_links_each(void (*fn)(uint32_t number, const struct pm_link *link, void *arg), void *arg) {
    for (uint32_t number = 0; number < tables * PM_LINK_ENTRIES; number++) {
        const struct pm_link_entry *e = entry_of(number);
        if (is_free(e))
            continue;
        struct pm_link link = read_entry(e);
        fn(number, &link, arg);
    }
}

uint64_t pm_links_count(void) { return (uint64_t)tables * PM_LINK_ENTRIES - spares; }

uint64_t pm_links_load_word(uint64_t at) {
    const struct pm_shard *s = pm_shard_at(at);
    struct pm_written known = {0, 0};
    uint64_t from = at;
    bool there = at - s->offset < s->frontier &&
                 pm_heap_next_data(&known, &from, at + sizeof(uint64_t)) && from == at;
    return there ? __atomic_load_n((uint64_t *)pm_heap_at(at), __ATOMIC_RELAXED) : 0;
}

bool pm_links_names(uint64_t word, uint64_t block, uint64_t size) {
    return word - block < size || ~word - block < size;
}

// ---- recovery -----------------------------------------------------------------------------------

static bool in_heap(uint64_t offset) { return offset >> PM_SHARD_SHIFT < pm_heap.shards; }

static bool entry_is_good(const struct pm_link_entry *e) {
    if (is_free(e))
        return !e->link || is_checked(&e->link);
    if (!is_checked(&e->link) || !is_checked(&e->object) || !(e->link & PM_LINK_IN_USE))
        return false;
    struct pm_link link = read_entry(e);
    return (link.in_root ? pm_sealed(e->root, salt_of(&e->root)) : !e->root && in_heap(link.at)) &&
           in_heap(link.object) && link.object % OBJECT_UNIT == 0;
}

static bool head_is_good(uint32_t line) {
    if ((uint64_t)line + PM_LINK_LINES > pm_media_lines_there(&pm_heap.shard[0]))
        return false;
    const struct pm_link_head *h = table_at(line);
    return h->magic == PM_LINK_MAGIC && h->entries == PM_LINK_ENTRIES && h->line == line &&
           h->crc == crc_of(h);
}

// A chain that comes back to itself claims lines twice.
static int adopt(uint32_t line, struct pm_error *err) {
    const char *name = pm_heap.shard[0].morph.name;
    if (!head_is_good(line))
        return pm_fail(err, PM_DAMAGE, "%s/%s: line %u is no table of links", pm_heap.dir, name,
                       line);
    if (tables == TABLES_MAX || !pm_media_lines_claim(&pm_heap.shard[0], line, PM_LINK_LINES))
        return pm_fail(err, PM_DAMAGE, "%s/%s: the table of links at line %u overlaps another one",
                       pm_heap.dir, name, line);
    lines[tables++] = line;
    for (uint32_t i = 0, number = (tables - 1) * PM_LINK_ENTRIES; i < PM_LINK_ENTRIES; i++) {
        const struct pm_link_entry *e = entry_of(number + i);
        if (!entry_is_good(e))
            return pm_fail(err, PM_DAMAGE,
                           "%s/%s: link %u of the table at line %u is damaged, or says a place "
                           "outside of the heap; restore the file from a copy",
                           pm_heap.dir, name, i, line);
        if (is_free(e))
            spare[spares++] = number + i;
    }
    return PM_OK;
}

int pm_links_adopt(struct pm_error *err) {
    tables = spares = 0;
    bool known = pm_heap.super->super.incompat & PM_INCOMPAT_LINKS;
    if (!state()->first)
        return PM_OK;
    if (!pm_sealed(state()->first, PM_SALT_LINKS) || !known)
        return pm_fail(err, PM_DAMAGE,
                       "%s/superblock: the word that names the tables of links is damaged",
                       pm_heap.dir);
    if (!reserve())
        return pm_fail(err, PM_OPERATIONAL, "no address space for the table of links");
    int status = PM_OK;
    for (uint32_t line = pm_unseal(state()->first); line && status == PM_OK;) {
        status = adopt(line, err);
        if (status == PM_OK)
            line = table_at(line)->next;
    }
    return status;
}
