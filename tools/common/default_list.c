// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "default_list.h"

#include <stdio.h>

#include "cli.h"
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

int default_list(enum default_purge purge, bool json) {
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
