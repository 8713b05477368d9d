// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc-info: what is in a heap.
#include <stdlib.h>
#include <string.h>

#include "common/census.h"
#include "common/cli.h"
#include "common/follow.h"
#include "common/info_print.h"
#include "common/offline.h"
#include "common/progress.h"
#include "recover.h"

enum { KEY_JSON = 256, KEY_MAP, KEY_FOLLOW, KEY_INTERVAL, KEY_COUNT };

static const char *const synopsis[] = {"[--json] [--map] HEAP",
                                       "--follow [--interval S] [--count N] [--json] HEAP", NULL};

static const char *const description[] = {
    "Prints what is in the heap in directory HEAP: which program it belongs to and what becomes of "
    "it in a power "
    "failure, how much space its files take, how full the slabs of each size class are, the large "
    "blocks "
    "by size, and the roots. A block counts as live when it can be reached from the roots, which "
    "takes one "
    "marking; nothing is changed, also in a heap that needs recovery.",
    "In the map each character is an equal part of the heap, from its beginning to its end in use: "
    "a dot is "
    "free, a digit is slabs by tenths of live blocks (# means full), L and H are large and huge "
    "blocks, and "
    "? is a large block that nothing reaches.",
    "With --follow it looks at a heap that a process is using, every S seconds until that process "
    "ends, N looks are "
    "taken or it is interrupted: what the process is doing, how much of the heap is slabs, large "
    "blocks and free, what "
    "is on media, and how many slabs there are of each block size. Which blocks of a slab are in "
    "use stands in the "
    "process's own memory; ask it by malloc_stats(3) or PMALLOC_STATS=1. On a terminal each look "
    "replaces the one "
    "before; else it is one line, or with --json one object a line. The files are read and nothing "
    "else: "
    "the process is neither stopped nor kept from anything.",
    NULL,
};

static const struct cli_option options[] = {
    {KEY_JSON, "json", NULL, "Print it as one JSON object."},
    {KEY_MAP, "map", NULL, "Print the map of the heap also where standard output is no terminal."},
    {KEY_FOLLOW, "follow", NULL, "Look again and again at a heap that is in use."},
    {KEY_INTERVAL, "interval", "S", "Seconds between two looks, 0.01 to 86400; 2 by default."},
    {KEY_COUNT, "count", "N", "Look N times at most."},
    {0},
};

static const struct cli_status statuses[] = {
    {0, "Success."},
    {4, "The heap is damaged."},
    {8, "It is in use, missing, not the user's, or cannot be read."},
    {16, "The command line is wrong."},
    {0},
};

static const struct cli_example examples[] = {
    {"pmalloc-info /dev/shm/store", "What is in this heap?"},
    {"pmalloc-info --follow --interval 0.5 /dev/shm/store", "What becomes of it while it is used?"},
    {0},
};

static const struct cli_tool tool = {
    .name = "pmalloc-info",
    .summary = "Show what is in a PMAlloc heap.",
    .synopsis = synopsis,
    .description = description,
    .options = options,
    .statuses = statuses,
    .examples = examples,
    .see_also = "pmalloc-recover(1), pmalloc-run(1), libpmalloc(7)",
    .usage_status = PM_USAGE,
};

struct request {
    bool json, map, follow;
    const char *interval, *count;
};

static void take(int key, const char *value, void *arg) {
    struct request *q = arg;
    if (key == KEY_INTERVAL)
        q->interval = value;
    else if (key == KEY_COUNT)
        q->count = value;
    else
        *(key == KEY_JSON ? &q->json : key == KEY_MAP ? &q->map : &q->follow) = true;
}

static int follow_as_told(const struct request *q, const char *heap) {
    char *end = NULL;
    double seconds = q->interval ? strtod(q->interval, &end) : 2;
    if (q->interval && (*end || end == q->interval || !(seconds >= 0.01 && seconds <= 86400)))
        cli_wrong(&tool, "--interval %s: seconds, from 0.01 to 86400", q->interval);
    if (q->map)
        cli_wrong(&tool, "--follow shows no map");
    unsigned long count = q->count ? cli_number(&tool, "--count", q->count, 1, 1000000000) : 0;
    return follow(heap, seconds, count, q->json);
}

int main(int argc, char **argv) {
    struct request q = {0};
    struct pm_error err;
    pm_message_prefix = tool.name;
    int operand = cli_parse(&tool, argc, argv, take, &q);
    if (argc - operand != 1 || !*argv[operand])
        cli_wrong(&tool, operand < argc - 1 ? "one heap at a time" : "name the heap's directory");
    if (q.follow)
        return follow_as_told(&q, argv[operand]);
    if (q.interval || q.count)
        cli_wrong(&tool, "--interval and --count go with --follow");
    struct info info = {.heap = argv[operand]};
    int status = offline_open(info.heap, PM_OPEN_READONLY, &err);
    if (status == PM_OK) {
        progress_start();
        status = pm_recover(false, 0, &info.found, &err);
        progress_end();
    }
    if (status != PM_OK) {
        pm_say("%s", err.text);
        if (q.json)
            info_error(info.heap, &err);
        return cli_flush(status, PM_OPERATIONAL);
    }
    census_take(&info.census);
    if (q.json)
        info_json(&info);
    else
        info_text(&info, q.map);
    return cli_flush(PM_OK, PM_OPERATIONAL);
}
