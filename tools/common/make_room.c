// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "make_room.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cli.h"
#include "figures.h"
#include "json.h"
#include "media/backing/fixed.h"
#include "media/backing/own_limit.h"
#include "media/backing/volume.h"
#include "media/heap.h"
#include "media/open/spare.h"
#include "media/persist.h"
#include "open_in_use.h"

struct added {
    char path[sizeof pm_heap.dir];
    unsigned number;
};
static struct added added[PM_VOLUMES];
static unsigned adds;

static void first_name(const char *heap, char out[sizeof pm_heap.dir]) {
    snprintf(out, sizeof pm_heap.dir, "%.*s", (int)pm_volume_first(heap), heap);
}

bool room_is_for(const char *heap) {
    char first[sizeof pm_heap.dir];
    struct stat st;
    first_name(heap, first);
    // A file grows alone: what has a directory behind it, and is missing, is to be a directory.
    return stat(first, &st) == 0 ? S_ISDIR(st.st_mode) : heap[pm_volume_first(heap)] != '\0';
}

// Directories that are not to be added must be the heap's.
static int open_heap(const struct room_request *q, struct pm_error *err) {
    char first[sizeof pm_heap.dir];
    first_name(q->heap, first);
    int status = open_in_use(q->grow ? first : q->heap, err);
    return status == PM_OK ? pm_persist_init(pm_heap.super_file.fd, -1, pm_heap.dir, err) : status;
}

static int add_directories(const char *heap, struct pm_error *err) {
    const char *at = heap + pm_volume_first(heap);
    int status = pm_volume_check(heap, err);
    while (*at && status == PM_OK) {
        struct added *a = &added[adds];
        unsigned before = pm_heap.volumes;
        size_t len = strcspn(++at, ":");
        snprintf(a->path, sizeof a->path, "%.*s", (int)len, at);
        status = pm_volume_add(a->path, &a->number, err);
        adds += pm_heap.volumes > before;
        at += len;
    }
    return status;
}

static int check_limit(uint64_t limit, struct pm_error *err) {
    if (!limit || (limit >= PM_REGION_SIZE && limit <= PM_SHARDS * PM_SHARD_RANGE))
        return PM_OK;
    return pm_fail(err, PM_USAGE,
                   "--size %lu: a heap may be 4M to 16T large, as PMALLOC_LIMIT has it",
                   (unsigned long)limit);
}

static int work(const struct room_request *q, struct pm_error *err) {
    int status = check_limit(q->limit, err);
    if (status == PM_OK)
        status = open_heap(q, err);
    if (status != PM_OK)
        return status;
    if (pm_fixed_is_open())
        return pm_fail(err, PM_USAGE,
                       "--spare %.300s: a heap in a file or device has all its space already",
                       pm_heap.dir);
    // First, for it may be what is missing.
    if (q->spares)
        status = pm_spare_set(q->spare, err);
    if (status == PM_OK && q->grow)
        status = add_directories(q->heap, err);
    if (status == PM_OK && q->limit)
        status = pm_own_limit_set(q->limit, err);
    if (status == PM_OK && q->grow && !adds && !q->limit)
        return pm_fail(err, PM_USAGE,
                       "--grow %.300s: name a directory on another device behind it, "
                       "%.300s:DIR, or a limit, --size SIZE; the heap has %u director%s",
                       pm_heap.dir, pm_heap.dir, pm_heap.volumes,
                       pm_heap.volumes == 1 ? "y" : "ies");
    return status;
}

static void report_json(void) {
    struct json j = {.out = stdout};
    json_open(&j, NULL, '{');
    json_text(&j, "heap", pm_heap.dir);
    json_open(&j, "added", '[');
    for (unsigned i = 0; i < adds; i++)
        json_text(&j, NULL, added[i].path);
    json_close(&j, ']');
    json_number(&j, "directories", pm_heap.volumes);
    json_number(&j, "limit_bytes", pm_own_limit());
    json_number(&j, "spare_bytes", pm_spare_bytes());
    json_close(&j, '}');
    json_end(&j);
}

static void report_text(const struct room_request *q) {
    char bytes[32];
    printf("heap       %s\n", pm_heap.dir);
    for (unsigned i = 0; i < adds; i++)
        printf("directory  %s is number %u\n", added[i].path, added[i].number + 1);
    if (q->limit)
        printf("limit      %s, or PMALLOC_LIMIT if that is larger\n",
               figure_bytes(pm_own_limit(), bytes));
    if (q->spares && q->spare)
        printf("spare      %s; `pmalloc-recover --spare 0` gives it up\n",
               figure_bytes(pm_spare_bytes(), bytes));
    else if (q->spares)
        puts("spare      none; the file system has its space again");
    if (adds || q->limit)
        puts("next       nothing: a program that runs uses it when it asks for memory");
}

int make_room(const struct room_request *q) {
    struct pm_error err;
    int status = work(q, &err);
    if (status != PM_OK) {
        pm_say("%s", err.text);
        return status;
    }
    if (q->json)
        report_json();
    else
        report_text(q);
    return cli_flush(PM_OK, PM_OPERATIONAL);
}
