// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc-recover: checks and recovers a heap without its program.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/options.h"
#include "blocks/verify.h"
#include "common/bad_read.h"
#include "common/census.h"
#include "common/census_print.h"
#include "common/cli.h"
#include "common/commit_print.h"
#include "common/confirm.h"
#include "common/copy_print.h"
#include "common/default_list.h"
#include "common/drop_root.h"
#include "common/figures.h"
#include "common/json.h"
#include "common/make.h"
#include "common/make_room.h"
#include "common/pmem.h"
#include "common/progress.h"
#include "common/rebase.h"
#include "common/remarks.h"
#include "common/root_path.h"
#include "common/to_node.h"
#include "marking/forms.h"
#include "media/commit/doubt.h"
#include "media/commit/journal_files.h"
#include "media/open/origin.h"
#include "media/persist.h"
#include "recovery/close.h"
#include "recovery/offline.h"
#include "recovery/recover.h"
#include "roots/root_table.h"
#include "roots/spec.h"
#include "types/types_print.h"

enum { KEY_CHECK = 256, KEY_DRY_RUN, KEY_COPY, KEY_JSON, KEY_PURGE, KEY_DROP_ROOT, KEY_REBASE };
enum { KEY_RENAME_ROOT = KEY_REBASE + 1, KEY_AT, KEY_POINTERS, KEY_MAKE, KEY_GROW, KEY_SIZE };
enum { KEY_JOURNAL = KEY_SIZE + 1, KEY_FROM, KEY_FORCE, KEY_YES, KEY_SPARE };
enum { KEY_TO_NODE = KEY_SPARE + 1, KEY_TRANSIENT };
enum { MARKERS_MAX = 64 };

static const char *const synopsis[] = {
    "[--check|--dry-run] [--at good] [--copy] [--drop-root NAME [--yes]] [--pointers FORMS] "
    "[--to-node N] [--transient stacks|clear] [--threads N] [--json] HEAP",
    "--rename-root OLD NEW [--json] HEAP",
    "--rebase [--dry-run] PROGRAM HEAP",
    "[--purge[=all] [--yes]] [--json]",
    "--make [--from HEAP] [--size SIZE] [--journal SIZE] [--force [--yes]] [--json] "
    "FILE|DEVICE...",
    "--grow [--size SIZE] [--force] [--json] FILE|DEVICE",
    "[--grow] [--size SIZE] [--spare SIZE] [--json] HEAP[:DIR...]",
    NULL,
};

static const char *const description[] = {
    "Brings the heap in directory HEAP into a clean state, as the next start of its program would "
    "do. It replays the bookkeeping log, marks everything that the roots on record reach, and "
    "frees the rest. It checks everything before it writes anything. If it is interrupted, run it "
    "again: the result is the same.",
    "Leaked objects were allocated, but no root reaches them. Large leaked blocks are always "
    "counted. Small ones are counted only after a clean close, because a crash leaves no record "
    "of them. A heap without roots can never be reached again, so recovering it empties it.",
    "A copy that cp or rsync has made of a heap in use, or of one whose program was killed, need "
    "not be of one instant. So it is refused, unless --copy is given. `mv` makes no copy within a "
    "file system. Copies of a clean heap and of a backup are heaps like any other.",
    "Without HEAP it lists the default heaps of the user with their states. A program "
    "with roots gets a default heap if PMALLOC_HEAP is not set. One that may come to have roots "
    "gets it with the first one.",
    NULL,
};

static const struct cli_option options[] = {
    {KEY_CHECK, "check", NULL,
     "Check everything and say whether the heap is clean, needs recovery or is damaged. Nothing is "
     "changed."},
    {KEY_DRY_RUN, "dry-run", NULL,
     "Report in full what a recovery would find and reclaim. Nothing is changed."},
    {KEY_REBASE, "rebase", NULL,
     "Let words that lead into the program lead to the same in PROGRAM, which is not run."},
    {KEY_COPY, "copy", NULL,
     "Take a copy of a heap that was not clean, as it is. It is of one instant only if no program "
     "used the heap while it was copied."},
    {KEY_POINTERS, "pointers", "FORMS",
     "Which words count as pointers, as PMALLOC_POINTERS says it (see libpmalloc). Without it "
     "those count that the program's last run has looked for."},
    {KEY_TRANSIENT, "transient", "stacks|clear",
     "Let words of blocks that lead into what the program's last run had mapped become NULL, as "
     "PMALLOC_TRANSIENT does it (see libpmalloc). With --dry-run: count them."},
    {KEY_JSON, "json", NULL, "Print the report as one JSON object on standard output."},
    {'t', "threads", "N", "Mark with N threads, 1 to 64 (default: one for each core)."},
    {KEY_RENAME_ROOT, "rename-root", "OLD NEW",
     "First let the root OLD (see pmalloc-info) be the one that NEW names for `pmalloc-run -r`: "
     "for a variable that has another name or place in a new build of the program. With NEW the "
     "same as OLD, an offset holds for a new build. Nothing is freed for it."},
    {KEY_DROP_ROOT, "drop-root", "NAME",
     "First drop the root NAME (see pmalloc-info): no program finds it any more. The heap keeps it "
     "as dropped:NAME, with all that it reaches. --rename-root dropped:NAME NAME gives it back; "
     "dropping dropped:NAME loses what only it reaches, and wants --yes. So does dropping the only "
     "root that a program finds."},
    {KEY_TO_NODE, "to-node", "N",
     "Then take the heap to NUMA node N: all data files belong to it, and their pages in memory "
     "move there. Data files on devices of others go to a directory of the heap on one of N's."},
    {KEY_AT, "at", "good",
     "Where the journal of PMALLOC_COMMIT is damaged, take the heap as of the last commit before"
     " the damage. Later commits are lost. Pages of theirs may stand in the other files, so the"
     " heap may be no instant: prefer a backup."},
    {KEY_PURGE, "purge", "[all]",
     "Remove the default heaps that no process uses. Heaps with roots and damaged heaps are kept, "
     "unless `all` is given."},
    {KEY_MAKE, "make", NULL,
     "Make an empty heap in FILE, which has all its space, or in a device /dev/daxX.Y. It must "
     "hold zeroes. With several of them one heap lies in all, up to 8; it is named FILE:FILE."},
    {KEY_GROW, "grow", NULL,
     "The heap in FILE or DEVICE takes up all of it, after that was made longer. What is new must "
     "hold zeroes. A heap in a directory gets each DIR as another one, and with --size a higher "
     "limit, also while its program runs."},
    {KEY_SIZE, "size", "SIZE",
     "With --make and --grow: use so many bytes of each, at least 16M. With --make a FILE that is "
     "missing is made. With --grow a directory: the heap may be so large; the larger of this and "
     "PMALLOC_LIMIT counts from now on."},
    {KEY_SPARE, "spare", "SIZE",
     "Keep so much space of the file system in reserve, as PMALLOC_SPARE does, also while the "
     "program runs. 0: give it up, so that the program has room at once."},
    {KEY_JOURNAL, "journal", "SIZE",
     "With --make: keep so many bytes for the commits of PMALLOC_COMMIT (default: none)."},
    {KEY_FROM, "from", "HEAP",
     "With --make: put the heap of the directory HEAP there, such as a backup, not an empty one."},
    {KEY_FORCE, "force", NULL,
     "With --make and --grow: overwrite what it holds. Where that is a heap, this wants --yes."},
    {KEY_YES, "yes", NULL,
     "Do what loses data: drop the only root or one that is kept, purge heaps, make a heap over "
     "another one. Without it a user at a terminal is asked, and anyone else is refused."},
    {0},
};

static const struct cli_status statuses[] = {
    {0, "The heap is clean, or was recovered. With --check: it is clean. With --dry-run: it is "
        "clean, or can be recovered."},
    {1, "With --check: it needs recovery."},
    {4, "The heap is damaged; nothing was changed."},
    {8,
     "The heap could not be opened or written: it is in use, missing, not the user's, or made by "
     "another build, or the file system failed."},
    {16, "The command line is wrong."},
    {0},
};

static const struct cli_example examples[] = {
    {"pmalloc-recover /dev/shm/store", "Recover the heap of a killed program."},
    {"pmalloc-recover --check --json /dev/shm/store",
     "Ask for the state of a heap, from a script."},
    {"pmalloc-recover --make /dev/dax0.0", "Make a heap that fills a device."},
    {"pmalloc-recover --purge", "Remove what killed programs have left, after a question."},
    {0},
};

static const struct cli_tool tool = {
    .name = "pmalloc-recover",
    .summary = "Check or recover a PMAlloc heap without its program.",
    .synopsis = synopsis,
    .description = description,
    .options = options,
    .statuses = statuses,
    .examples = examples,
    .see_also = "pmalloc-info(1), pmalloc-run(1), libpmalloc(7)",
    .usage_status = PM_USAGE,
};

struct request {
    bool check, dry_run, copy, json, purge, purge_all, make, grow, force, yes, at_good, rebase;
    bool spares; // `spare` is wanted
    uint64_t size, journal, spare;
    unsigned threads;
    struct to_node to_node;
    const char *drop_root, *rename_root, *rename_to, *from, *heap, *pointers, *transient;
};

static uint64_t size_of(const char *option, const char *value) {
    uint64_t size;
    if (!pm_parse_size(value, &size) || size == 0)
        cli_wrong(&tool, "--%s: '%s' is no size; give bytes, or a number with K, M, G or T", option,
                  value);
    return size;
}

static bool *flag_of(struct request *q, int key) {
    return key == KEY_CHECK     ? &q->check
           : key == KEY_DRY_RUN ? &q->dry_run
           : key == KEY_COPY    ? &q->copy
           : key == KEY_JSON    ? &q->json
           : key == KEY_MAKE    ? &q->make
           : key == KEY_GROW    ? &q->grow
           : key == KEY_FORCE   ? &q->force
           : key == KEY_YES     ? &q->yes
           : key == KEY_PURGE   ? &q->purge
           : key == KEY_REBASE  ? &q->rebase
                                : NULL;
}

static void take(int key, const char *value, void *arg) {
    struct request *q = arg;
    bool *flag = flag_of(q, key);
    if (flag)
        *flag = true;
    switch (key) {
    case KEY_RENAME_ROOT:
        q->rename_root = value;
        break;
    case KEY_DROP_ROOT:
        q->drop_root = value;
        break;
    case KEY_AT:
        if (strcmp(value, "good") != 0)
            cli_wrong(&tool, "--at %s: only `good` can be given", value);
        q->at_good = true;
        break;
    case KEY_POINTERS:
        q->pointers = value;
        break;
    case KEY_TRANSIENT:
        q->transient = value;
        break;
    case KEY_SIZE:
        q->size = size_of("size", value);
        break;
    case KEY_SPARE:
        q->spares = true;
        q->spare = strcmp(value, "0") == 0 ? 0 : size_of("spare", value);
        break;
    case KEY_TO_NODE:
        q->to_node.wanted = true;
        q->to_node.id = (unsigned)cli_number(&tool, "--to-node", value, 0, TO_NODE_MOST);
        break;
    case KEY_FROM:
        q->from = value;
        break;
    case KEY_JOURNAL:
        q->journal = size_of("journal", value);
        break;
    case KEY_PURGE:
        if (value && strcmp(value, "all") != 0)
            cli_wrong(&tool, "--purge=%s: only `all` can be given", value);
        q->purge_all |= value != NULL;
        break;
    case 't':
        q->threads = (unsigned)cli_number(&tool, "--threads", value, 1, MARKERS_MAX);
    }
}

static bool works(const struct request *q) {
    return q->check || q->dry_run || q->copy || q->drop_root || q->threads || q->at_good ||
           q->pointers || q->transient || q->rename_root || q->to_node.wanted;
}

// Whether only --dry-run goes with --rebase.
static bool rebases_alone(struct request q) {
    q.dry_run = false;
    return !works(&q) && !q.json && !q.purge && !q.make && !q.grow && !q.force && !q.yes &&
           !q.spares && !q.from && !q.size && !q.journal;
}

static void check_request(const struct request *q) {
    const char *make = q->make ? "--make" : "--grow";
    bool makes = q->make || q->grow;
    if (((q->size || q->force) && !makes) || ((q->journal || q->from) && !q->make) ||
        (q->make && q->grow))
        cli_wrong(&tool, "--size and --force are for --make or --grow, --journal and --from for "
                         "--make");
    if (q->yes && !q->drop_root && !q->purge && !(q->make && q->force))
        cli_wrong(&tool, "--yes goes with --drop-root, --purge, or --make --force");
    unsigned forms;
    if (q->pointers && !pm_forms_parse(q->pointers, &forms))
        cli_wrong(
            &tool,
            "--pointers %s: use plain, or some of tagged,unaligned,relative,base32,end,before",
            q->pointers);
    if (q->transient && strcmp(q->transient, "stacks") != 0 && strcmp(q->transient, "clear") != 0)
        cli_wrong(&tool, "--transient %s: use stacks or clear", q->transient);
    if (q->spares && (works(q) || q->purge || q->make || q->rebase || !q->heap))
        cli_wrong(&tool, "--spare goes with --grow, --size and --json alone, and a heap");
    if (makes && (works(q) || q->purge))
        cli_wrong(&tool, "%s goes with --size, %s--force and --json alone", make,
                  q->make ? "--from, --journal, --yes, " : "");
    if (makes && !q->heap)
        cli_wrong(&tool, "%s: name the file or device", make);
    if (q->check && q->dry_run)
        cli_wrong(&tool, "--check and --dry-run exclude each other; give one of them");
    if ((q->drop_root || q->rename_root || q->to_node.wanted) && (q->check || q->dry_run))
        cli_wrong(&tool, "--drop-root, --rename-root and --to-node change the heap; --check and "
                         "--dry-run do not");
    if (q->drop_root && q->rename_root)
        cli_wrong(&tool, "--drop-root and --rename-root exclude each other; give one of them");
    if (q->heap && !*q->heap)
        cli_wrong(&tool, "the heap's name is empty");
    if (q->heap && q->purge)
        cli_wrong(&tool, "--purge is about the default heaps; to remove %s, remove its directory",
                  q->heap);
    if (!q->heap && works(q))
        cli_wrong(&tool, "name the heap: without one, the default heaps are listed");
}

// ---- the report ---------------------------------------------------------------------------------

struct report {
    const struct request *request;
    char root[PM_SPEC_TEXT_LEN]; // to be dropped or renamed, as the heap calls it
    char to[PM_SPEC_TEXT_LEN];   // its new name
    char kept[PM_SPEC_TEXT_LEN]; // the name under which a root that was dropped stays
    struct pm_recovery found;
    uint64_t owner; // the last process before this one that had the heap open
    const char *result;
    struct census census; // with --dry-run
    struct to_node moved; // with --to-node
};

static void report_json(const struct report *r) {
    const struct pm_recovery *f = &r->found;
    struct json j = {.out = stdout};
    json_open(&j, NULL, '{');
    json_text(&j, "heap", r->request->heap);
    json_text(&j, "state", f->was_clean ? "clean" : "dirty");
    json_text(&j, "result", r->result);
    if (*r->kept)
        json_text(&j, "kept_root", r->kept);
    json_bool(&j, "copy", pm_heap.copy);
    json_number(&j, "roots", f->roots);
    json_number(&j, "live_objects", f->live_objects);
    json_number(&j, "live_bytes", f->live_bytes);
    remarks_json(&j, f);
    json_number(&j, "leaked_objects", f->leaked_objects);
    json_number(&j, "leaked_bytes", f->leaked_bytes);
    json_number(&j, "reclaimed_bytes", f->reclaimed_bytes);
    json_number(&j, "reclaimed_slabs", f->reclaimed_slabs);
    json_number(&j, "reclaimed_extents", f->reclaimed_extents);
    json_number(&j, "vacant_bytes", f->vacant_bytes);
    json_number(&j, "kept_bytes", f->kept_bytes);
    json_number(&j, "unfinished", f->unfinished);
    json_number(&j, "slabs", f->slabs);
    json_number(&j, "morphing", f->morphing);
    json_number(&j, "extents", f->extents);
    json_number(&j, "markers", f->markers);
    json_real(&j, "seconds", f->seconds);
    json_real(&j, "mark_seconds", f->mark_seconds);
    commit_json(&j);
    to_node_json(&j, &r->moved);
    if (r->request->dry_run)
        census_classes_json(&j, &r->census);
    json_text(&j, "guarantee", commit_guarantee());
    json_close(&j, '}');
    json_end(&j);
}

static void print_root(const struct pm_root *root, const char *text, void *separator) {
    (void)root;
    printf("%s%s", *(const char **)separator, text);
    *(const char **)separator = ", ";
}

static void print_roots(const struct pm_recovery *f) {
    const char *separator = ": ";
    unsigned slots = pm_roots_slots_used();
    printf("roots      %u", f->roots);
    pm_roots_list(print_root, &separator);
    if (slots)
        printf("%s%u slot%s", separator, slots, slots == 1 ? "" : "s");
    puts(f->roots ? "" : ": nothing can reach this heap again");
}

static void print_objects(const char *what, uint64_t objects, uint64_t bytes, const char *note) {
    char count[32], size[32];
    printf("%-10s %s object%s, %s%s\n", what, figure_count(objects, count), objects == 1 ? "" : "s",
           figure_bytes(bytes, size), note);
}

static void print_time(const struct pm_recovery *f) {
    printf("time       %.3f s, of which marking %.3f s with %u thread%s", f->seconds,
           f->mark_seconds, f->markers, f->markers == 1 ? "" : "s");
    if (f->mark_seconds > 0 && f->live_bytes)
        printf(" (%.0f MB/s)", (double)f->live_bytes / 1e6 / f->mark_seconds);
    putchar('\n');
}

static const char *result_text(const struct report *r) {
    if (strcmp(r->result, "needs-recovery") == 0)
        return r->request->check ? "needs recovery; nothing was changed"
                                 : "can be recovered; nothing was changed";
    if (r->request->check || r->request->dry_run)
        return "clean; nothing was changed";
    return r->found.was_clean ? "was clean, and is" : "recovered: it is clean now";
}

static void print_reclaimed(const struct report *r) {
    const struct pm_recovery *f = &r->found;
    char size[32], slabs[32], extents[32];
    printf("%-10s %s", r->request->check || r->request->dry_run ? "to reclaim" : "reclaimed",
           figure_bytes(f->reclaimed_bytes, size));
    printf(", in %s whole slab%s and %s large block%s", figure_count(f->reclaimed_slabs, slabs),
           f->reclaimed_slabs == 1 ? "" : "s", figure_count(f->reclaimed_extents, extents),
           f->reclaimed_extents == 1 ? "" : "s");
    if (f->vacant_bytes)
        printf("; slabs that stay have %s free for new blocks",
               figure_bytes(f->vacant_bytes, size));
    if (f->kept_bytes)
        printf("; up to %s stay in the file until a program reuses them or gives them back",
               figure_bytes(f->kept_bytes, size));
    putchar('\n');
}

static void report_text(const struct report *r) {
    const struct pm_recovery *f = &r->found;
    printf("heap       %s\n", r->request->heap);
    if (f->was_clean)
        puts("state      cleanly closed");
    else
        printf("state      %snot cleanly closed; last opened by process %lu\n",
               pm_heap.copy ? "a copy, " : "", (unsigned long)r->owner);
    commit_text();
    print_roots(f);
    print_objects("live", f->live_objects, f->live_bytes, "");
    print_objects("leaked", f->leaked_objects, f->leaked_bytes,
                  f->leaks_exact ? ""
                                 : " (large ones; small ones are not on record after a crash)");
    if (f->unfinished)
        printf("publishes  %u that were cut short %s\n", f->unfinished,
               r->request->check || r->request->dry_run ? "are to be finished" : "are finished");
    remarks_text(f);
    print_reclaimed(r);
    census_classes_text(&r->census);
    print_time(f);
    printf("guarantee  %s\n", commit_guarantee());
    drop_root_text(r->request->heap, r->root, r->kept);
    to_node_text(&r->moved);
    printf("result     %s\n", result_text(r));
}

static int report_error(const struct request *q, struct pm_error *err) {
    copy_explain(err);
    pm_say("%s", err->text);
    if (q->json) {
        struct json j = {.out = stdout};
        json_open(&j, NULL, '{');
        json_text(&j, "heap", q->heap);
        json_text(&j, "result", err->status == PM_DAMAGE ? "damaged" : "error");
        json_text(&j, "error", err->text);
        json_close(&j, '}');
        json_end(&j);
    }
    return cli_flush(err->status, PM_OPERATIONAL);
}

// ---- the work -----------------------------------------------------------------------------------

// The roots that the command line names, perhaps by member paths.
static int name_roots(const struct request *q, struct report *r, struct pm_error *err) {
    const char *root = q->drop_root ? q->drop_root : q->rename_root;
    int status = root ? root_path_in_heap(q->heap, root, r->root, err) : PM_OK;
    return status == PM_OK && q->rename_root ? root_path_of_heap(q->heap, q->rename_to, r->to, err)
                                             : status;
}

// Dropping a root is the one write that comes before a recovery's checks. So all checks run first,
// in a child, because a process can open a heap only once. Returns 0 if the heap is sound. Else the
// child has reported what is wrong.
static int rehearse(const struct request *q) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        struct pm_recover_options how = {.mark.markers = q->threads};
        struct report r = {.request = q};
        struct pm_error err;
        int status = pm_offline_open(q->heap, PM_OPEN_READONLY, &err);
        if (status == PM_OK)
            status = name_roots(q, &r, &err);
        if (status == PM_OK)
            status = pm_recover(&how, &r.found, &err);
        if (status == PM_OK)
            status = pm_verify(false, &err);
        if (status == PM_OK && q->drop_root && !drop_root_may(q->heap, r.root, q->yes, &r.found))
            _exit(PM_USAGE);
        _exit(status == PM_OK ? PM_OK : report_error(q, &err));
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) {
        pm_say("the check of %s did not finish; nothing was changed; run it again", q->heap);
        return PM_OPERATIONAL;
    }
    return WEXITSTATUS(status);
}

static int work(const struct request *q, struct report *r, struct pm_error *err) {
    bool write = !q->check && !q->dry_run;
    int status = to_node_check(&q->to_node, err);
    if (status == PM_OK)
        status = pm_offline_open(q->heap, write ? PM_OPEN_EXISTING : PM_OPEN_READONLY, err);
    if (status != PM_OK)
        return status;
    pmem_use();
    pm_doubt_thorough = true;
    bool was_clean = pm_heap_is_clean();
    status = name_roots(q, r, err);
    if (status == PM_OK)
        status = to_node_begin(&q->to_node, err);
    if (status == PM_OK && q->drop_root)
        status = drop_root(r->root, r->kept, sizeof r->kept, err);
    else if (status == PM_OK && q->rename_root)
        status = pm_roots_rename(r->root, r->to, err);
    if (status != PM_OK)
        return status;
    r->owner = pm_heap.super->state.owner_pid;
    struct pm_recover_options how = {.write = write,
                                     .mark = {.markers = q->threads, .progress = progress_start()}};
    status = pm_recover(&how, &r->found, err);
    if (status == PM_OK)
        status = pm_verify(write, err);
    progress_end();
    if (status == PM_OK && q->dry_run)
        status = census_take(&r->census, err);
    r->found.was_clean = was_clean; // before a root was dropped
    if (status == PM_OK && write && !pm_close())
        status = pm_fail(err, PM_OPERATIONAL,
                         "%.300s: the clean state could not be written; nothing is lost, run it "
                         "again once the file system works",
                         q->heap);
    if (status == PM_OK && write)
        status = to_node_go(&r->moved, err);
    r->result = r->found.was_clean ? "clean" : write ? "recovered" : "needs-recovery";
    return status;
}

static int recover(const struct request *q) {
    struct report r = {.request = q, .moved = q->to_node};
    struct pm_error err;
    int status = q->drop_root || q->rename_root ? rehearse(q) : PM_OK;
    if (status != PM_OK)
        return status;
    if (work(q, &r, &err) != PM_OK)
        return report_error(q, &err);
    types_say_damage(q->heap);
    if (q->json)
        report_json(&r);
    else
        report_text(&r);
    if (q->check && !r.found.was_clean)
        status = PM_NEEDS_RECOVERY;
    return cli_flush(status, PM_OPERATIONAL);
}

int main(int argc, char **argv) {
    struct request q = {0};
    pm_message_prefix = tool.name;
    pm_persist_exit = PM_OPERATIONAL;
    pm_options_default();
    bad_reads_catch();
    int operand = cli_parse(&tool, argc, argv, take, &q);
    if (q.rename_root && argc - operand == 2)
        q.rename_to = argv[operand++];
    else if (q.rename_root)
        cli_wrong(&tool, "--rename-root needs the old name, the new one, and the heap");
    if (q.rebase)
        return rebase(&tool, argv + operand, q.dry_run, argc - operand == 2 && rebases_alone(q));
    if (argc - operand > 1 && !q.make)
        cli_wrong(&tool, "one heap at a time: '%s' is one too many", argv[operand + 1]);
    q.heap = argv[operand];
    check_request(&q);
    pm_copies_taken = q.copy;
    if (q.spares || (q.grow && room_is_for(q.heap)))
        return make_room(&(struct room_request){q.heap, q.grow, q.spares, q.size, q.spare, q.json});
    if (q.make || q.grow)
        return make_heap(&(struct make_request){(const char *const *)argv + operand, q.from, q.size,
                                                q.journal, q.grow, q.force, q.yes, q.json});
    if (q.pointers) // check_request() has read it
        pm_option_set("PMALLOC_POINTERS", q.pointers, &(struct pm_error){0});
    if (q.transient)
        pm_option_set("PMALLOC_TRANSIENT", q.transient, &(struct pm_error){0});
    pm_journal_take_good = q.at_good;
    if (q.heap)
        return recover(&q);
    enum default_purge purge = q.purge_all ? PURGE_ALL : q.purge ? PURGE_ROOTLESS : PURGE_NONE;
    return default_list(purge, q.yes, q.json);
}
