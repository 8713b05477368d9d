// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A process opens one heap, once. So a child looks at each heap.
#include "diff.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "census.h"
#include "cli.h"
#include "figures.h"
#include "heap_figures.h"
#include "json.h"
#include "progress.h"
#include "recovery/offline.h"

struct findings {
    int status;
    struct pm_error err;
    struct info info;
};

static void find(const char *heap, struct findings *f) {
    f->status = pm_offline_open(heap, PM_OPEN_READONLY, &f->err);
    if (f->status != PM_OK)
        return;
    struct pm_recover_options how = {.mark.progress = progress_start()};
    f->status = pm_recover(&how, &f->info.found, &f->err);
    progress_end();
    if (f->status == PM_OK)
        f->status = census_take(&f->info.census, &f->err);
}

// The child writes where this process reads.
static struct findings *find_in_child(const char *heap) {
    int status = 0;
    struct findings *f =
        mmap(NULL, sizeof *f, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (f == MAP_FAILED)
        return NULL;
    pid_t child = fork();
    if (child == 0) {
        find(heap, f);
        _exit(0);
    }
    if (child < 0) {
        f->status = pm_fail(&f->err, PM_OPERATIONAL, "%s: cannot start a process: %s", heap,
                            pm_strerror(errno));
        return f;
    }
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (status != 0)
        f->status =
            pm_fail(&f->err, PM_OPERATIONAL, "%s: the process that looked at it died", heap);
    return f;
}

// ---- text ---------------------------------------------------------------------------------------

static const char *change(uint64_t before, uint64_t after, bool bytes, char out[40]) {
    char size[32];
    uint64_t by = after > before ? after - before : before - after;
    snprintf(out, 40, "%s%s",
             by == 0          ? ""
             : after > before ? "+"
                              : "-",
             bytes ? figure_bytes(by, size) : figure_count(by, size));
    return out;
}

static void line(const char *name, uint64_t before, uint64_t after, bool bytes) {
    char a[32], b[32], by[40];
    printf(
        "%-22s %14s %14s %14s\n", name, bytes ? figure_bytes(before, a) : figure_count(before, a),
        bytes ? figure_bytes(after, b) : figure_count(after, b), change(before, after, bytes, by));
}

static void print_text(const struct info *a, const struct info *b) {
    char name[64], from[32];
    printf("%-22s %14s %14s %14s\n", "", "before", "after", "change");
    for (unsigned i = 0; i < heap_figures_count; i++)
        if (heap_figures[i].label && (heap_figure(a, i) || heap_figure(b, i)))
            line(heap_figures[i].label, heap_figure(a, i), heap_figure(b, i),
                 heap_figures[i].bytes);
    PM_EACH_CLASS(i) {
        snprintf(name, sizeof name, "live blocks of %u B", pm_classes[i].size);
        if (a->census.cls[i].live != b->census.cls[i].live)
            line(name, a->census.cls[i].live, b->census.cls[i].live, false);
    }
    for (unsigned i = 0; i < CENSUS_BUCKETS; i++) {
        snprintf(name, sizeof name, "live from %s", figure_bytes(PM_PAGE_SIZE << i, from));
        if (a->census.bucket[i].live != b->census.bucket[i].live)
            line(name, a->census.bucket[i].live, b->census.bucket[i].live, false);
    }
}

// ---- JSON ---------------------------------------------------------------------------------------

static void pair(struct json *j, const char *key, uint64_t before, uint64_t after) {
    json_open(j, key, '{');
    json_number(j, "before", before);
    json_number(j, "after", after);
    json_close(j, '}');
}

static void print_json(const char *const heap[2], const struct info *a, const struct info *b) {
    struct json j = {.out = stdout};
    json_open(&j, NULL, '{');
    json_text(&j, "before", heap[0]);
    json_text(&j, "after", heap[1]);
    for (unsigned i = 0; i < heap_figures_count; i++)
        pair(&j, heap_figures[i].key, heap_figure(a, i), heap_figure(b, i));
    json_open(&j, "classes", '[');
    PM_EACH_CLASS(i) {
        if (!a->census.cls[i].live && !b->census.cls[i].live)
            continue;
        json_open(&j, NULL, '{');
        json_number(&j, "size", pm_classes[i].size);
        pair(&j, "live", a->census.cls[i].live, b->census.cls[i].live);
        json_close(&j, '}');
    }
    json_close(&j, ']');
    json_close(&j, '}');
    json_end(&j);
}

int diff(const char *before, const char *after, bool json) {
    struct findings *found[2];
    const char *const heap[2] = {before, after};
    for (unsigned i = 0; i < 2; i++) {
        found[i] = find_in_child(heap[i]);
        if (!found[i]) {
            pm_say("%s: no memory to look at it: %s", heap[i], pm_strerror(errno));
            return cli_flush(PM_OPERATIONAL, PM_OPERATIONAL);
        }
        if (found[i]->status == PM_OK)
            continue;
        pm_say("%s", found[i]->err.text);
        if (json)
            info_error(heap[i], &found[i]->err);
        return cli_flush(found[i]->status, PM_OPERATIONAL);
    }
    if (json)
        print_json(heap, &found[0]->info, &found[1]->info);
    else
        print_text(&found[0]->info, &found[1]->info);
    return cli_flush(PM_OK, PM_OPERATIONAL);
}
