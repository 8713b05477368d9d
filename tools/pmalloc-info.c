// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc-info: what is in a heap.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/options.h"
#include "common/bad_read.h"
#include "common/block_list.h"
#include "common/census.h"
#include "common/cli.h"
#include "common/copy_print.h"
#include "common/diff.h"
#include "common/heap_leaks.h"
#include "common/info_print.h"
#include "common/machine_nodes.h"
#include "common/medium.h"
#include "common/nodes_print.h"
#include "common/picture.h"
#include "common/progress.h"
#include "common/tree.h"
#include "media/open/origin.h"
#include "media/persist.h"
#include "recovery/offline.h"
#include "recovery/recover.h"
#include "types/types_print.h"
#include "watch/blocks_report.h"
#include "watch/follow.h"
#include "watch/holders_report.h"
#include "watch/live_leaks.h"
#include "watch/metrics.h"
#include "watch/out_report.h"

enum {
    KEY_JSON = 256,
    KEY_MAP,
    KEY_FOLLOW,
    KEY_INTERVAL,
    KEY_COUNT,
    KEY_MEDIUM,
    KEY_NODES,
    KEY_SVG,
    KEY_HTML,
    KEY_DIFF,
    KEY_LEAKS,
    KEY_TREE,
    KEY_DEPTH,
    KEY_WIDTH,
    KEY_OUT,
    KEY_HOLDERS,
    KEY_TYPES,
    KEY_METRICS,
    KEY_ALL,
    KEY_OUTPUT,
    KEY_BACKUP,
    KEY_BLOCKS,
    KEY_TYPE,
    KEY_CLASS,
    KEY_UNREACHED
};

static const char *const synopsis[] = {
    "[--json] [--map] HEAP",
    "--svg|--html HEAP",
    "--follow [--interval S] [--count N] [--json] HEAP",
    "--diff [--json] BEFORE AFTER",
    "--medium [--json] PATH",
    "--nodes [--json] HEAP",
    "--leaks [--json] HEAP|PID",
    "--blocks [--type N] [--class C] [--unreached] [--json] HEAP|PID",
    "--out [--json] HEAP|PID",
    "--holders [--width N] [--json] HEAP|PID",
    "--tree ROOT [--depth N] [--width N] [--json] HEAP",
    "--types [--json] HEAP",
    "--metrics [--all] [--backup DIR]... [--output FILE] [HEAP...]",
    NULL};

static const char *const description[] = {
    "Prints what is in HEAP, a directory, file or device: the program it belongs to, what becomes "
    "of it in a power failure, the space its files take, how full the slabs of each size class "
    "are, the large blocks by size, and the roots. It marks from the roots to find the blocks that "
    "are live. It changes nothing, even in a heap that needs recovery. Of a heap in use it prints "
    "one look, as --follow does.",
    "In the map each character is an equal part of the heap, up to the end of what is in use. A "
    "dot is free. A digit is slabs by tenths of live blocks; # means full. L and H are large and "
    "huge blocks. P is pinned blocks, small or large. A question mark is a large block that "
    "nothing reaches.",
    "With --follow it looks at a heap that a process is using, every S seconds. It ends with that "
    "process, after N looks, or when it is interrupted. It shows what the process is doing, how "
    "much of the heap is slabs, large blocks and free, what is on media, and the number of slabs "
    "of each block size; in commit mode also the last commit. Only the process itself knows which "
    "blocks of a slab are in use; ask it by malloc_stats(3) or "
    "PMALLOC_STATS=1. On a terminal each look replaces the one before. "
    "Otherwise a look is one line, with --json one object on a line. It only reads the files, so "
    "the process is not disturbed.",
    "With --medium it prints what decides how much of the heap survives a power failure, line by "
    "line: the file system and its relevant mount options, the files for which the kernel grants "
    "MAP_SYNC, the persistence domains of the machine's persistent memory, the kernel, how stores "
    "are flushed, and the guarantee that follows. PATH is a heap, which may be in use, or a "
    "directory, file or device for a new heap. In a directory it makes and removes a temporary "
    "file. It changes no heap.",
    "With --svg it prints a picture of the map and of the size classes. With --html it prints a "
    "page that contains the picture and needs no other file, and what each root keeps alive: the "
    "blocks that nothing would reach without it. For that it marks once for each root.",
    "With --diff it prints what has grown and shrunk between two heaps, such as a heap and its "
    "backup.",
    "With --nodes it prints the NUMA nodes of this machine, with cores, memory and distances, and "
    "under `recorded` the number that data files have for them on record. Then it prints the data "
    "files: the node of each on this machine and on record, how much of it was ever written, and "
    "how much of that lies on another node. A dash means that the file was made where there is one "
    "node. It asks the kernel for every page, and changes nothing. Arenas and thread caches exist "
    "only in a running process; ask it by malloc_stats(3).",
    "With --leaks it prints how many blocks of each size no root reaches, and where one of them "
    "is. The next recovery frees them. After a crash only large blocks are counted. It changes "
    "nothing.",
    "With --leaks and the number of a process it prints which blocks of that program nothing "
    "reaches now: no register, stack, variable or other block. The program needs no setting. If "
    "it was started with PMALLOC_LEAKS=stack, it also prints where they were allocated. All "
    "threads are stopped meanwhile, and go on as if nothing had been. Nothing is freed. A number "
    "is a heap if there is a directory of this name.",
    "With --blocks it prints the blocks of a heap, a line for each: its address, its bytes, the "
    "type that the program gave it by PMALLOC_TYPE(), whether it is pointer-free or pinned, and "
    "whether no root reaches it. It takes the blocks of one type, of one size, or those that no "
    "root reaches, if asked for. Of a heap in use it asks the process, whose threads are stopped "
    "meanwhile and go on as if nothing had been; in commit mode the list is that of the last "
    "commit. After a crash small blocks that no root reaches are not on record. It changes "
    "nothing.",
    "With --out it prints which words of live blocks and roots lead out of the heap: into stacks, "
    "thread-local memory, files and anonymous memory of the program, and addresses where nothing "
    "is mapped. None of it will be there in the next run. It shows how many there are, by what "
    "they lead to, and what holds them: the way from a root, with the names of members if the "
    "program was built with -g, and the block. Of a heap at rest only that counts which its last "
    "process has put on record: its stacks, and the last files and anonymous memory that it mapped "
    "by mmap(). The threads of a process are stopped meanwhile, and go on as if nothing had been.",
    "With --holders it prints which words of variables lead to the data, for a program of which "
    "nobody knows what to name as roots: of a process all that it and its libraries have, of a "
    "heap those of its roots. The word that comes first has the most bytes to which no other word "
    "is nearer; beside that it shows what the word alone keeps alive, and all that it reaches. "
    "Each is written as PMALLOC_ROOTS takes it. The threads of a process are stopped while its "
    "heap is read, and the report says for how long. Stacks and registers are not looked at, and "
    "in commit mode the heap is that of the last commit.",
    "With --tree it prints what a variable that is a root holds, and what that leads to, as the "
    "types in the program's debug information say: names of members, numbers, text. What is zero "
    "in an array is left out. ROOT may be a member, as server.db or table[3].head. The program "
    "must be the build that last used the heap, built with -g, or with its debug symbols "
    "installed. This is data without pointers: it survives every rebuild.",
    "With --types it prints which types the roots reach, with their sizes and members, in the "
    "build that pmalloc-run has started last; and for each root where the walk through the types "
    "has ended, such as at a void pointer. pmalloc-run compares another build with it. A heap in "
    "use can be asked, too.",
    "With --metrics it prints figures of heaps for a monitoring system, in OpenMetrics' text "
    "format, which Prometheus and the textfile collector of its node exporter read: space, slabs, "
    "large blocks, the last commit, and how often the heap was opened. It looks at each heap once, "
    "as --follow does, whether it is in use or at rest, and disturbs nobody. Of a heap that cannot "
    "be looked at pmalloc_up is 0. With --backup it says when the last round of a backup of one of "
    "them was, as DIR has it; 0 if DIR is no backup of any of them.",
    NULL,
};

static const struct cli_option options[] = {
    {KEY_JSON, "json", NULL, "Print the report as one JSON object."},
    {KEY_MAP, "map", NULL, "Print the map of the heap even if standard output is no terminal."},
    {KEY_FOLLOW, "follow", NULL, "Look again and again at a heap that is in use."},
    {KEY_INTERVAL, "interval", "S", "Seconds between two looks, 0.01 to 86400 (default 2)."},
    {KEY_COUNT, "count", "N", "End after N looks."},
    {KEY_MEDIUM, "medium", NULL, "Print what decides which guarantee holds at PATH."},
    {KEY_SVG, "svg", NULL, "Print a picture of the heap."},
    {KEY_HTML, "html", NULL, "Print a page for a browser, with what each root keeps alive."},
    {KEY_DIFF, "diff", NULL, "Print what differs between two heaps."},
    {KEY_NODES, "nodes", NULL, "Print on which NUMA nodes the heap lies."},
    {KEY_LEAKS, "leaks", NULL, "Print which blocks nothing reaches, by size."},
    {KEY_BLOCKS, "blocks", NULL, "Print the blocks, one by one."},
    {KEY_TYPE, "type", "N", "With --blocks: those of this type, 0 to 65535; 0 is no type."},
    {KEY_CLASS, "class", "C",
     "With --blocks: those of C bytes, a size that the report of a heap shows, or large."},
    {KEY_UNREACHED, "unreached", NULL, "With --blocks: those that no root reaches."},
    {KEY_OUT, "out", NULL, "Print which words lead out of the heap."},
    {KEY_HOLDERS, "holders", NULL, "Print which words of variables lead to the data."},
    {KEY_TREE, "tree", "ROOT", "Print the values that a root, or a member in it, leads to."},
    {KEY_TYPES, "types", NULL, "Print which types the roots reach."},
    {KEY_METRICS, "metrics", NULL, "Print figures of heaps for a monitoring system."},
    {KEY_ALL, "all", NULL, "With --metrics: of the user's default heaps, too."},
    {KEY_OUTPUT, "output", "FILE",
     "With --metrics: write to FILE, which is replaced when all is written."},
    {KEY_BACKUP, "backup", "DIR",
     "With --metrics: when the backup in DIR was made. May be given several times."},
    {KEY_DEPTH, "depth", "N", "With --tree: follow so many pointers, 1 to 100 (default 8)."},
    {KEY_WIDTH, "width", "N",
     "With --tree: print so many elements of an array, and links of a list, 1 to 10000 (default "
     "20). With --holders: so many words."},
    {0},
};

static const struct cli_status statuses[] = {
    {0, "Success."},
    {4, "The heap is damaged."},
    {8, "The heap is in use, missing, not the user's, made by another build, or cannot be read; or "
        "the process cannot be asked."},
    {16, "The command line is wrong."},
    {0},
};

static const struct cli_example examples[] = {
    {"pmalloc-info /dev/shm/store", "What is in this heap?"},
    {"pmalloc-info --follow --interval 0.5 /dev/shm/store",
     "What becomes of it while a program uses it?"},
    {"pmalloc-info --html /dev/shm/store > store.html", "What does each root keep alive?"},
    {"pmalloc-info --leaks 4711", "What has this program lost so far?"},
    {"pmalloc-info --blocks --type 7 --json /dev/shm/store", "Where are its blocks of type 7?"},
    {"pmalloc-info --holders 4711", "Which variables of this program have its data?"},
    {"pmalloc-info --metrics --output /var/lib/node_exporter/pmalloc.prom /mnt/pmem/store",
     "How is it, for the textfile collector?"},
    {"pmalloc-info --medium /mnt/pmem", "What would survive a power failure there?"},
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

// Each kind of report, and what goes with it. The last one is the usual report.
#define BIT(NAME) (1u << (KEY_##NAME - KEY_JSON))
static const struct kind {
    unsigned bit, with;
    const char *name, *text;
} kinds[] = {
    {BIT(FOLLOW), BIT(INTERVAL) | BIT(COUNT) | BIT(JSON), "--follow",
     "--interval, --count and --json only"},
    {BIT(MEDIUM), BIT(JSON), "--medium", "--json only"},
    {BIT(NODES), BIT(JSON), "--nodes", "--json only"},
    {BIT(SVG), 0, "--svg", "no other option"},
    {BIT(HTML), 0, "--html", "no other option"},
    {BIT(DIFF), BIT(JSON), "--diff", "--json only"},
    {BIT(LEAKS), BIT(JSON), "--leaks", "--json only"},
    {BIT(OUT), BIT(JSON), "--out", "--json only"},
    {BIT(BLOCKS), BIT(TYPE) | BIT(CLASS) | BIT(UNREACHED) | BIT(JSON), "--blocks",
     "--type, --class, --unreached and --json only"},
    {BIT(HOLDERS), BIT(WIDTH) | BIT(JSON), "--holders", "--width and --json only"},
    {BIT(TYPES), BIT(JSON), "--types", "--json only"},
    {BIT(METRICS), BIT(ALL) | BIT(OUTPUT) | BIT(BACKUP), "--metrics",
     "--all, --backup and --output only"},
    {BIT(TREE), BIT(DEPTH) | BIT(WIDTH) | BIT(JSON), "--tree", "--depth, --width and --json only"},
    {0, BIT(MAP) | BIT(JSON), NULL, NULL},
};

struct request {
    unsigned given; // the bits of all options
    bool json, map, follow, medium, nodes, svg, html, diff, leaks, out, holders, types, metrics,
        all, blocks, unreached;
    const char *interval, *count, *tree, *depth, *width, *output, *type, *cls;
    const char **backups;
    int backup_count;
};

static void add_backup(struct request *q, const char *dir) {
    q->backups = realloc(q->backups, ((size_t)q->backup_count + 1) * sizeof *q->backups);
    if (!q->backups) {
        pm_say("no memory");
        exit(PM_OPERATIONAL);
    }
    q->backups[q->backup_count++] = dir;
}

static void take(int key, const char *value, void *arg) {
    struct request *q = arg;
    q->given |= 1u << (key - KEY_JSON);
    if (key == KEY_INTERVAL)
        q->interval = value;
    else if (key == KEY_COUNT)
        q->count = value;
    else if (key == KEY_TREE)
        q->tree = value;
    else if (key == KEY_DEPTH)
        q->depth = value;
    else if (key == KEY_WIDTH)
        q->width = value;
    else if (key == KEY_OUTPUT)
        q->output = value;
    else if (key == KEY_TYPE)
        q->type = value;
    else if (key == KEY_CLASS)
        q->cls = value;
    else if (key == KEY_BACKUP)
        add_backup(q, value);
    else
        *(key == KEY_JSON        ? &q->json
          : key == KEY_MAP       ? &q->map
          : key == KEY_MEDIUM    ? &q->medium
          : key == KEY_NODES     ? &q->nodes
          : key == KEY_SVG       ? &q->svg
          : key == KEY_HTML      ? &q->html
          : key == KEY_DIFF      ? &q->diff
          : key == KEY_LEAKS     ? &q->leaks
          : key == KEY_OUT       ? &q->out
          : key == KEY_HOLDERS   ? &q->holders
          : key == KEY_TYPES     ? &q->types
          : key == KEY_METRICS   ? &q->metrics
          : key == KEY_ALL       ? &q->all
          : key == KEY_BLOCKS    ? &q->blocks
          : key == KEY_UNREACHED ? &q->unreached
                                 : &q->follow) = true;
}

static void check_kind(const struct request *q) {
    const struct kind *kind = kinds;
    while (kind->bit && !(q->given & kind->bit))
        kind++;
    unsigned wrong = q->given & ~(kind->bit | kind->with);
    if (wrong && kind->bit)
        cli_wrong(&tool, "%s goes with %s", kind->name, kind->text);
    if (wrong & BIT(WIDTH))
        cli_wrong(&tool, "--width goes with --tree or --holders");
    if (wrong)
        cli_wrong(&tool, wrong & BIT(DEPTH) ? "--depth goes with --tree"
                         : wrong & (BIT(ALL) | BIT(OUTPUT) | BIT(BACKUP))
                             ? "--all, --backup and --output go with --metrics"
                         : wrong & (BIT(TYPE) | BIT(CLASS) | BIT(UNREACHED))
                             ? "--type, --class and --unreached go with --blocks"
                             : "--interval and --count go with --follow");
}

static int follow_as_told(const struct request *q, const char *heap) {
    char *end = NULL;
    double seconds = q->interval ? strtod(q->interval, &end) : 2;
    if (q->interval && (*end || end == q->interval || !(seconds >= 0.01 && seconds <= 86400)))
        cli_wrong(&tool, "--interval %s: seconds, from 0.01 to 86400", q->interval);
    unsigned long count = q->count ? cli_number(&tool, "--count", q->count, 1, 1000000000) : 0;
    return follow(heap, seconds, count, q->json);
}

static int show_medium(const struct request *q, const char *path) {
    struct medium medium;
    struct pm_error err;
    int status = medium_find(path, &medium, &err);
    if (status != PM_OK) {
        pm_say("%s", err.text);
        if (q->json)
            info_error(path, &err);
    } else if (q->json) {
        medium_json(&medium);
    } else {
        medium_text(&medium);
    }
    return cli_flush(status, PM_OPERATIONAL);
}

static int show_nodes(const struct request *q, const char *heap) {
    struct node_shards nodes;
    struct pm_error err;
    int status = machine_nodes_find(&err);
    if (status == PM_OK)
        status = pm_offline_open(heap, PM_OPEN_READONLY, &err);
    if (status != PM_OK) {
        pm_say("%s", err.text);
        if (q->json)
            info_error(heap, &err);
        return cli_flush(status, PM_OPERATIONAL);
    }
    nodes_take(&nodes);
    if (q->json)
        nodes_json(&nodes, heap);
    else
        nodes_text(&nodes, heap);
    return cli_flush(PM_OK, PM_OPERATIONAL);
}

static int show_leaks(const struct request *q, const struct info *info) {
    static struct pm_leaks leaks;
    bool exact = heap_leaks_find(&info->found, &leaks);
    heap_leaks_print(info->heap, &leaks, exact, &info->found, q->json);
    return cli_flush(PM_OK, PM_OPERATIONAL);
}

static struct block_list blocks_wanted(const struct request *q) {
    struct block_list b = {.json = q->json, .unreached = q->unreached};
    unsigned next;
    b.type = q->type ? (int)cli_number(&tool, "--type", q->type, 0, 65535) : BLOCKS_OF_ANY;
    b.cls = q->cls ? block_list_class(q->cls, &next) : BLOCKS_OF_ANY;
    if (b.cls < BLOCKS_OF_ANY && next)
        cli_wrong(&tool, "--class %.40s: no block has this size; the next one is %u", q->cls, next);
    if (b.cls < BLOCKS_OF_ANY)
        cli_wrong(&tool, "--class %.40s: the bytes of a block, at most %lu, or large", q->cls,
                  PM_SMALL_MAX);
    return b;
}

static int show_blocks(const struct request *q, const struct info *info) {
    struct block_list b = blocks_wanted(q);
    if (!block_list_at_rest(info->found.leaks_exact, &b.exact)) {
        pm_say("no memory for the list of blocks");
        return PM_OPERATIONAL;
    }
    block_list_print(&b, info->heap);
    return cli_flush(PM_OK, PM_OPERATIONAL);
}

static uint32_t width(const struct request *q) {
    return q->width ? (uint32_t)cli_number(&tool, "--width", q->width, 1, 10000) : 20;
}

static int show_tree(const struct request *q, const char *heap) {
    struct tree_request tree = {.heap = heap, .root = q->tree, .json = q->json};
    tree.depth = q->depth ? (unsigned)cli_number(&tool, "--depth", q->depth, 1, 100) : 8;
    tree.width = width(q);
    return cli_flush(tree_print(&tree), PM_OPERATIONAL);
}

static int show_picture(const struct request *q, const struct info *info) {
    static struct picture picture;
    struct pm_error err;
    int status = picture_take(&picture, info, q->html, progress_start(), &err);
    progress_end();
    if (status != PM_OK) {
        pm_say("%s", err.text);
        return status;
    }
    if (q->svg)
        picture_svg(&picture, true);
    else
        picture_html(&picture);
    return cli_flush(PM_OK, PM_OPERATIONAL);
}

// Another process has the heap. The tool prints as much as it can; for the rest a line says which
// option can.
static int show_busy(const struct request *q, const char *heap, struct pm_error *err) {
    pid_t owner = err->holder.pid;
    bool lent = err->why == PM_WHY_LENT;
    char number[24] = "PID";
    if (owner > 0)
        snprintf(number, sizeof number, "%d", (int)owner);
    if (!lent && owner > 0 && q->leaks)
        return cli_flush(live_leaks(owner, q->json), PM_OPERATIONAL);
    if (!lent && owner > 0 && q->out)
        return cli_flush(out_of_process(owner, q->json), PM_OPERATIONAL);
    if (!lent && owner > 0 && q->holders)
        return cli_flush(holders_of_process(owner, width(q), q->json), PM_OPERATIONAL);
    if (!lent && owner > 0 && q->blocks) {
        struct block_list b = blocks_wanted(q);
        return cli_flush(blocks_of_process(owner, &b), PM_OPERATIONAL);
    }
    bool other =
        q->blocks || q->map || q->svg || q->html || q->leaks || q->out || q->tree || q->holders;
    if (!lent && !other) {
        pm_say("note: %.200s is in use by process %s; this is what its files say now (--follow "
               "goes on; --leaks asks the process; a copy by pmalloc-backup has the rest)",
               heap, number);
        return follow(heap, 2, 1, q->json);
    }
    pm_fail(err, PM_OPERATIONAL,
            "%.200s is in use by process %s; `pmalloc-info --follow` and `--leaks %s` look at it "
            "meanwhile, and `pmalloc-backup %.200s DIR` makes a copy to look at",
            heap, number, number, heap);
    pm_say("%s", err->text);
    if (q->json)
        info_error(heap, err);
    return cli_flush(PM_OPERATIONAL, PM_OPERATIONAL);
}

static int show(const struct request *q, const char *heap) {
    struct info info = {.heap = heap};
    struct pm_error err;
    int status = pm_offline_open(info.heap, PM_OPEN_READONLY, &err);
    if (status == PM_OK) {
        struct pm_recover_options how = {.mark.progress = progress_start(), .check = q->holders};
        status = pm_recover(&how, &info.found, &err);
        progress_end();
    }
    if (status == PM_OK && !q->leaks && !q->tree && !q->out && !q->holders && !q->blocks)
        status = census_take(&info.census, &err);
    if (status != PM_OK && pm_is_busy(&err))
        return show_busy(q, heap, &err);
    if (status != PM_OK) {
        copy_explain(&err);
        pm_say("%s", err.text);
        if (q->json)
            info_error(info.heap, &err);
        return cli_flush(status, PM_OPERATIONAL);
    }
    if (q->blocks)
        return show_blocks(q, &info);
    if (q->leaks)
        return show_leaks(q, &info);
    if (q->tree)
        return show_tree(q, heap);
    if (q->out)
        return cli_flush(out_of_heap(heap, q->json), PM_OPERATIONAL);
    if (q->holders)
        return cli_flush(holders_of_heap(heap, width(q), q->json), PM_OPERATIONAL);
    if (q->svg || q->html)
        return show_picture(q, &info);
    if (q->json)
        info_json(&info);
    else
        info_text(&info, q->map);
    return cli_flush(PM_OK, PM_OPERATIONAL);
}

int main(int argc, char **argv) {
    struct request q = {0};
    pm_message_prefix = tool.name;
    pm_persist_exit = PM_OPERATIONAL;
    pm_options_default();
    bad_reads_catch();
    pm_copies_taken = true; // it only looks, and says that it is one
    int operand = cli_parse(&tool, argc, argv, take, &q);
    int heaps = q.diff ? 2 : 1;
    if (q.metrics && (q.all || argc > operand)) {
        check_kind(&q);
        return metrics(&(struct metrics_request){.heaps = argv + operand,
                                                 .count = argc - operand,
                                                 .all = q.all,
                                                 .backups = q.backups,
                                                 .backup_count = q.backup_count,
                                                 .output = q.output});
    }
    if (argc - operand != heaps || !*argv[operand] || !*argv[argc - 1])
        cli_wrong(&tool, q.diff               ? "--diff: name two heaps"
                         : operand < argc - 1 ? "one heap at a time"
                                              : "name the heap's directory");
    check_kind(&q);
    struct block_list blocks = blocks_wanted(&q);
    pid_t pid = q.leaks || q.out || q.holders || q.blocks ? live_leaks_process(argv[operand]) : 0;
    if (pid && q.blocks)
        return cli_flush(blocks_of_process(pid, &blocks), PM_OPERATIONAL);
    if (pid && q.holders)
        return cli_flush(holders_of_process(pid, width(&q), q.json), PM_OPERATIONAL);
    if (pid)
        return cli_flush((q.out ? out_of_process : live_leaks)(pid, q.json), PM_OPERATIONAL);
    if (q.nodes)
        return show_nodes(&q, argv[operand]);
    if (q.medium)
        return show_medium(&q, argv[operand]);
    if (q.types)
        return cli_flush(types_print(argv[operand], q.json), PM_OPERATIONAL);
    if (q.follow)
        return follow_as_told(&q, argv[operand]);
    return q.diff ? diff(argv[operand], argv[operand + 1], q.json) : show(&q, argv[operand]);
}
