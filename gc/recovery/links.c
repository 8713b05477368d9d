// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "links.h"

#include <errno.h>

#include "block_around.h"
#include "blocks/link_table.h"
#include "media/heap.h"
#include "roots/root_words.h"

static struct pm_block find_block(uint64_t offset, bool held) {
    struct pm_block b;
    pm_block_around(offset, held, &b);
    return b;
}

// ---- words --------------------------------------------------------------------------------------

static struct pm_root_word root_word(const struct pm_link *link) {
    return (struct pm_root_word){link->root, link->at};
}

static bool word_is_alive(const struct pm_link *link, bool held) {
    return link->in_root ? pm_root_word_exists(root_word(link)) : find_block(link->at, held).alive;
}

struct weeding {
    struct pm_links_found *found;
    bool write, held;
    int error; // an errno
};

static bool load(const struct pm_link *link, uint64_t *word) {
    if (link->in_root)
        return pm_root_word_load(root_word(link), word);
    *word = pm_links_load_word(link->at);
    return true;
}

static bool store_zero(const struct pm_link *link) {
    if (link->in_root)
        return pm_root_word_store(root_word(link), 0);
    pm_links_clear_word(pm_heap_at(link->at));
    return true;
}

static void clear_word(struct weeding *w, const struct pm_link *link) {
    struct pm_block object = find_block(link->object, w->held);
    uint64_t word;
    bool good = load(link, &word);
    bool names = good && pm_links_names(word, pm_base + object.start, object.size);
    if (names && w->write)
        good = store_zero(link);
    if (!good)
        w->error = errno;
    else if (names || !word)
        w->found->cleared++;
    else
        w->found->foreign++;
}

static void clear(uint32_t number, const struct pm_link *link, void *arg) {
    struct weeding *w = arg;
    (void)number;
    if (!word_is_alive(link, w->held))
        w->found->lost++;
    else if (find_block(link->object, w->held).alive)
        return;
    else
        clear_word(w, link);
}

static void erase(uint32_t number, const struct pm_link *link, void *arg) {
    struct weeding *w = arg;
    if (word_is_alive(link, w->held) && find_block(link->object, w->held).alive)
        return;
    pm_links_erase(number);
    pm_links_weeded++;
}

int pm_links_weed(bool write, bool held, struct pm_links_found *found, struct pm_error *err) {
    struct weeding w = {.found = found, .write = write, .held = held};
    found->registered = pm_links_count();
    found->cleared = found->lost = found->foreign = 0;
    pm_links_each(clear, &w);
    if (w.error)
        return pm_fail(err, PM_OPERATIONAL, "%s/roots: cannot clear links: %s", pm_heap.dir,
                       pm_strerror(w.error));
    if (!write || found->cleared + found->lost + found->foreign == 0)
        return PM_OK;
    pm_links_settle(); // the words are durable before their links go
    pm_links_each(erase, &w);
    pm_links_settle();
    if (found->foreign)
        pm_say("%s: %lu disappearing links of dead objects hold neither their address nor its "
               "complement; the words were left as they are, and the links are gone",
               pm_heap.dir, (unsigned long)found->foreign);
    return PM_OK;
}
