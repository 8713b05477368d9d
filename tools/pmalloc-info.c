// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc-info: what is in a heap.
#include <string.h>

#include "common/census.h"
#include "common/cli.h"
#include "common/info_print.h"
#include "common/offline.h"
#include "common/progress.h"
#include "recover.h"

enum { KEY_JSON = 256, KEY_MAP };

static const char *const synopsis[] = {"[--json] [--map] HEAP", NULL};

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
    NULL,
};

static const struct cli_option options[] = {
    {KEY_JSON, "json", NULL, "Print it as one JSON object."},
    {KEY_MAP, "map", NULL, "Print the map of the heap also where standard output is no terminal."},
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
    bool json, map;
};

static void take(int key, const char *value, void *arg) {
    struct request *q = arg;
    (void)value;
    *(key == KEY_JSON ? &q->json : &q->map) = true;
}

int main(int argc, char **argv) {
    struct request q = {0};
    struct pm_error err;
    pm_message_prefix = tool.name;
    int operand = cli_parse(&tool, argc, argv, take, &q);
    if (argc - operand != 1 || !*argv[operand])
        cli_wrong(&tool, operand < argc - 1 ? "one heap at a time" : "name the heap's directory");
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
