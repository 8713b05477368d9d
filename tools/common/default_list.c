// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "default_list.h"

#include <stdio.h>

#include "cli.h"
#include "confirm.h"
#include "figures.h"
#include "json.h"
#include "text.h"

struct list {
    struct json *json; // NULL: print text
    bool purging;
    unsigned count, removed, failed;
};

static const char *state_name(const struct default_heap *h) {
    static const char *const names[] = {
        [DEFAULT_CLEAN] = "clean",     [DEFAULT_DIRTY] = "dirty",     [DEFAULT_BUSY] = "busy",
        [DEFAULT_REMNANT] = "remnant", [DEFAULT_DAMAGED] = "damaged", [DEFAULT_FOREIGN] = "error",
    };
    return names[h->state];
}

static void visit_json(struct json *j, const struct default_heap *h) {
    json_open(j, NULL, '{');
    json_text(j, "heap", h->dir);
    json_text(j, "state", state_name(h));
    if (h->state == DEFAULT_BUSY)
        json_number(j, "pid", (uint64_t)h->pid);
    if (h->state == DEFAULT_CLEAN || h->state == DEFAULT_DIRTY)
        json_bool(j, "has_roots", h->roots);
    json_number(j, "bytes", h->bytes);
    json_bool(j, "removed", h->removed);
    if (h->why[0])
        json_text(j, "error", h->why);
    json_close(j, '}');
}

static void visit_text(const struct default_heap *h, bool purging) {
    char size[32], state[64];
    if (h->state == DEFAULT_BUSY && h->pid > 0)
        snprintf(state, sizeof state, "busy (process %d)", (int)h->pid);
    else
        snprintf(state, sizeof state, "%s%s", state_name(h), h->roots ? ", has roots" : "");
    printf("%-22s %10s  ", state, figure_bytes(h->bytes, size));
    text_print(h->dir);
    fputs(h->removed ? "  removed" : purging ? "  kept" : "", stdout);
    if (h->why[0]) {
        fputs("  (", stdout);
        text_print(h->why);
        putchar(')');
    }
    putchar('\n');
}

static void visit(const struct default_heap *h, void *arg) {
    struct list *list = arg;
    list->count++;
    list->removed += h->removed;
    list->failed += h->stuck;
    if (list->json)
        visit_json(list->json, h);
    else
        visit_text(h, list->purging);
}

struct loss {
    enum default_purge purge;
    unsigned heaps, rooted;
    uint64_t bytes;
    char first[512];
};

static void add_loss(const struct default_heap *h, void *arg) {
    struct loss *loss = arg;
    if (!default_is_purged(h, loss->purge) || h->state == DEFAULT_REMNANT)
        return;
    if (loss->heaps++ == 0)
        snprintf(loss->first, sizeof loss->first, "%s", h->dir);
    loss->rooted += h->roots || h->state == DEFAULT_DAMAGED;
    loss->bytes += h->bytes;
}

// The request is for the heaps of now: a heap whose program ends meanwhile may be removed, too.
static bool may_purge(enum default_purge purge, bool yes) {
    struct loss loss = {.purge = purge};
    struct pm_error ignored;
    char size[32];
    if (purge == PURGE_NONE || yes || defaults_each(PURGE_NONE, add_loss, &loss, &ignored) ||
        loss.heaps == 0)
        return true;
    const char *others = loss.heaps > 1 ? " and others" : "";
    figure_bytes(loss.bytes, size);
    if (loss.rooted)
        return confirm(false,
                       "--purge=all removes %u heap%s of %s (%.300s%s), of which %u may hold data: "
                       "they are lost. `pmalloc-backup HEAP DIR` keeps a copy",
                       loss.heaps, loss.heaps == 1 ? "" : "s", size, loss.first, others,
                       loss.rooted);
    return confirm(false,
                   "--purge removes %u heap%s of %s (%.300s%s) of programs that were killed; no "
                   "root reaches what is in there",
                   loss.heaps, loss.heaps == 1 ? "" : "s", size, loss.first, others);
}

int default_list(enum default_purge purge, bool yes, bool json) {
    if (!may_purge(purge, yes))
        return PM_USAGE;
    struct json j = {.out = stdout};
    struct list list = {.json = json ? &j : NULL, .purging = purge != PURGE_NONE};
    struct pm_error err;
    if (json) {
        json_open(&j, NULL, '{');
        json_text(&j, "directory", defaults_dir());
        json_open(&j, "heaps", '[');
    }
    int status = defaults_each(purge, visit, &list, &err);
    if (status != PM_OK)
        pm_say("%s", err.text);
    if (json) {
        json_close(&j, ']');
        if (status != PM_OK)
            json_text(&j, "error", err.text);
        json_close(&j, '}');
        json_end(&j);
    } else if (status == PM_OK && list.count == 0) {
        printf("no default heaps in %s\n", defaults_dir());
    } else if (list.purging) {
        printf("%u of %u removed\n", list.removed, list.count);
    }
    return cli_flush(list.failed ? PM_OPERATIONAL : status, PM_OPERATIONAL);
}
