// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// A model of the bookkeeping log: for each page the entry that stands and its place in the log.
#ifndef PMALLOC_TESTS_UNIT_BOOKLOG_MODEL_H
#define PMALLOC_TESTS_UNIT_BOOKLOG_MODEL_H

#include "heap_fixture.h"
#include "media/log/log.h"

#define MODEL_PAGES 4096

static uint64_t model[MODEL_PAGES]; // entry, 0 where none stands
static pm_log_pos model_pos[MODEL_PAGES];
static uint64_t model_live;

static uint64_t seen[MODEL_PAGES];
static pm_log_pos seen_pos[MODEL_PAGES];
static unsigned seen_count, seen_twice;

static inline void seen_reset(void) {
    memset(seen, 0, sizeof seen);
    seen_count = seen_twice = 0;
}

static inline int see(struct pm_shard *s, uint64_t entry, pm_log_pos pos, struct pm_error *err) {
    (void)s, (void)err;
    uint64_t page = pm_entry_page(entry);
    if (page >= MODEL_PAGES || seen[page]) {
        seen_twice++;
        return PM_OK;
    }
    seen[page] = entry;
    seen_pos[page] = pos;
    seen_count++;
    return PM_OK;
}

static inline void model_moved(struct pm_shard *s, uint64_t entry, pm_log_pos to) {
    (void)s;
    CHECK_EQ(model[pm_entry_page(entry)], entry);
    model_pos[pm_entry_page(entry)] = to;
}

// Makes a heap with a new, empty log.
static inline void log_new(void) {
    pm_options_default();
    fixture_new_heap();
}

static inline void model_note(uint64_t page, uint64_t entry, pm_log_pos pos) {
    model[page] = entry;
    model_pos[page] = pos;
    model_live++;
}

// Each entry gets a size of its own. An old entry of the same page that came back would show.
static inline void model_append(uint64_t page) {
    static uint64_t stamp;
    stamp = stamp % PM_ENTRY_PAGES_MAX + 1;
    enum pm_entry_type type = stamp & 1 ? PM_ENTRY_EXTENT : PM_ENTRY_SLAB;
    uint64_t entry = pm_entry_make(type, page, stamp);
    pm_log_pos pos = pm_log_append(&pm_heap.shard[0], entry, model_moved);
    CHECK(pos != PM_LOG_NOWHERE);
    model_note(page, entry, pos);
}

static inline void model_end(uint64_t page) {
    pm_log_end(&pm_heap.shard[0], &model_pos[page], model_moved);
    model[page] = 0;
    model_live--;
}

// One random operation that keeps about `want` entries standing.
static inline void step(unsigned want) {
    uint64_t page = rnd(MODEL_PAGES / 2);
    bool grow = rnd(2 * (want ? want : 1)) >= model_live;
    for (unsigned i = 0; i < MODEL_PAGES / 2 && (model[page] == 0) != grow; i++)
        page = (page + 1) % (MODEL_PAGES / 2);
    if ((model[page] == 0) != grow)
        return;
    if (grow)
        model_append(page);
    else
        model_end(page);
}

// Replays the log as it is on media now. What stands goes into `seen`.
static inline void replay(void) {
    struct pm_error err = {0};
    seen_reset();
    int status = pm_log_load(&pm_heap.shard[0], see, &err);
    CHECK_EQ(status, PM_OK);
    if (status != PM_OK)
        fprintf(stderr, "  %s\n", err.text);
    CHECK_EQ(seen_twice, 0);
}

static inline void compare(void) {
    unsigned wrong = 0;
    for (unsigned page = 0; page < MODEL_PAGES; page++)
        wrong += seen[page] != model[page] || (model[page] && seen_pos[page] != model_pos[page]);
    CHECK_EQ(wrong, 0);
}

// Runs in a child, because a replay overwrites the volatile state of the log.
static inline void model_child(void) {
    replay();
    compare();
}
static inline void check_model_matches(void) { CHECK_EQ(in_child(model_child), 0); }

// Rebuilds the log's volatile state from media, as opening a heap does. The heap stays open.
static inline void reload(void) {
    replay();
    compare();
    pm_log_activate(&pm_heap.shard[0]);
}

#endif
