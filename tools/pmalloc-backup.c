// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc-backup: copies a heap, and later what has changed of it.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backup/backup_live.h"
#include "backup/backup_round.h"
#include "backup/backup_verify.h"
#include "base/options.h"
#include "common/bad_read.h"
#include "common/cli.h"
#include "common/commit_print.h"
#include "common/figures.h"
#include "common/json.h"
#include "common/progress.h"
#include "media/heap.h"
#include "media/persist.h"

enum { KEY_VERIFY = 256, KEY_JSON };

static const char *const synopsis[] = {"[--verify] [--json] HEAP DIR", "--verify [--json] DIR",
                                       NULL};

static const char *const description[] = {
    "Copies HEAP, a directory, file or device, into directory DIR. The first round copies all of "
    "it and makes DIR if it is missing. Later rounds into the same DIR read the heap, compare it "
    "with the checksums in DIR, and write only what has changed. Holes stay holes.",
    "DIR is a heap like any other: to restore, name it as the heap, or copy or rename it. A "
    "program that opens it for writing makes a heap of its own of it; from then on it is no "
    "backup, and the next round is refused.",
    "A heap in use is copied as of one instant of its program, which goes on. The program is held "
    "for the moment in which what has changed during the copy is looked at, and notices nothing "
    "else. This needs the permission to trace it (ptrace(2)). In commit mode the instant is that "
    "of the last commit.",
    "The backup of a heap in use, or of one whose program was killed, is recovered when it is "
    "first used. A damaged heap is refused, so it never takes the place of a good backup. Nothing "
    "in HEAP is changed.",
    "If a round is interrupted in any way, the backup of the round before stands. Run the command "
    "again.",
    NULL,
};

static const struct cli_option options[] = {
    {KEY_VERIFY, "verify", NULL,
     "Read back every block of the backup and compare it with its checksum, after the round or, "
     "without HEAP, of the backup as it is."},
    {KEY_JSON, "json", NULL, "Print the report as one JSON object on standard output."},
    {0},
};

static const struct cli_status statuses[] = {
    {0, "DIR is a backup of HEAP as it is now, or was at an instant of the run. With --verify: "
        "every checksum is right."},
    {4, "The heap or the backup is damaged. The backup stands as it was."},
    {8, "There is no new backup: HEAP is in use and its program cannot be held, DIR is not a "
        "backup of HEAP, there is too little space, or the file system failed. The backup stands "
        "as it was."},
    {16, "The command line is wrong."},
    {0},
};

static const struct cli_example examples[] = {
    {"pmalloc-backup /dev/shm/store /var/backups/store", "Copy a heap to a disk, now and later."},
    {"pmalloc-backup --verify /var/backups/store", "Is the backup still good?"},
    {"pmalloc-run -H /var/backups/store app", "Use the backup as the heap."},
    {0},
};

static const struct cli_tool tool = {
    .name = "pmalloc-backup",
    .summary = "Back up a PMAlloc heap, again and again.",
    .synopsis = synopsis,
    .description = description,
    .options = options,
    .statuses = statuses,
    .examples = examples,
    .see_also = "pmalloc-recover(1), pmalloc-info(1), pmalloc-run(1), libpmalloc(7)",
    .usage_status = PM_USAGE,
};

struct request {
    bool verify, json;
    const char *heap, *dir; // without a heap: look at the backup
    char **argv;
};

static void take(int key, const char *value, void *arg) {
    struct request *q = arg;
    (void)value;
    q->verify |= key == KEY_VERIFY;
    q->json |= key == KEY_JSON;
}

// ---- the report ---------------------------------------------------------------------------------

struct report {
    const struct request *request;
    struct source source;
    struct target target;
    struct round round;
    uint64_t verified; // bytes
    struct pm_backup_age age;
};

// Everything of a round is durable when it ends, so the medium matters only if it loses all. That
// it cannot be asked is no failure of the round.
static const char *guarantee(const struct report *r) {
    static char unknown[128];
    enum pm_durability here;
    if (!pm_persist_probe(r->target.fd, &here)) {
        snprintf(unknown, sizeof unknown,
                 "not known: the kind of the file system cannot be read: %s", pm_strerror(errno));
        return unknown;
    }
    return here == PM_DURABLE_NONE ? pm_persist_guarantee(here)
                                   : "survives power loss, as of this round";
}

static const char *state_of(const struct source *s) {
    return s->owner ? "in use" : s->found.was_clean ? "clean" : "dirty";
}

// Of which instant a backup of a heap in use is.
static const char *instant(const struct source *s, char *out, size_t len) {
    if (s->of_commit)
        return "the last commit";
    if (!s->amid)
        return "between operations";
    snprintf(out, len, "within an operation of thread %d", (int)s->amid);
    return out;
}

static void report_json(const struct report *r) {
    const struct request *q = r->request;
    struct json j = {.out = stdout};
    char text[64];
    json_open(&j, NULL, '{');
    if (q->heap) {
        json_text(&j, "heap", q->heap);
        json_text(&j, "state", state_of(&r->source));
    }
    if (q->heap && r->source.owner) {
        json_number(&j, "owner_pid", (uint64_t)r->source.owner);
        json_number(&j, "pause_us", r->source.pause_ns / 1000);
        json_text(&j, "instant", instant(&r->source, text, sizeof text));
        json_bool(&j, "recorded", !r->source.unrecorded);
        if (r->source.unrecorded)
            json_text(&j, "unrecorded_because", r->source.unrecorded);
    }
    json_text(&j, "backup", q->dir);
    json_number(&j, "round", q->heap ? r->round.number : r->target.kept.round);
    json_number(&j, "time", r->age.when);
    if (q->heap) {
        json_number(&j, "changed_bytes", r->round.changed);
        json_number(&j, "written_bytes", r->round.written);
    }
    if (q->verify)
        json_number(&j, "verified_bytes", r->verified);
    json_text(&j, "guarantee", guarantee(r));
    json_close(&j, '}');
    json_end(&j);
}

static void report_round(const struct report *r) {
    char changed[32], written[32], text[64];
    printf("heap       %s\n", r->request->heap);
    if (r->source.owner) {
        printf("state      in use by process %d, which was held for %.1f ms%s%s%s\n",
               (int)r->source.owner, (double)r->source.pause_ns / 1e6,
               r->source.unrecorded ? " (" : "", r->source.unrecorded ? r->source.unrecorded : "",
               r->source.unrecorded ? ")" : "");
        printf("instant    %s\n", instant(&r->source, text, sizeof text));
    } else {
        printf("state      %s\n",
               r->source.found.was_clean
                   ? "cleanly closed"
                   : "not cleanly closed: the backup is recovered at its first use");
    }
    printf("round      %lu: ", (unsigned long)r->round.number);
    if (r->round.nothing)
        puts("nothing has changed since");
    else
        printf("%s %s, %s written\n", figure_bytes(r->round.changed, changed),
               r->round.first ? "of data" : "have changed",
               figure_bytes(r->round.written, written));
}

static void report_text(const struct report *r) {
    char size[32], when[96];
    if (r->request->heap)
        report_round(r);
    printf("backup     %s\n", r->request->dir);
    if (!r->request->heap)
        printf("round      %lu, at %s\n", (unsigned long)r->target.kept.round,
               commit_when(r->age.when * 1000000000, when));
    if (r->request->verify)
        printf("verified   %s: every checksum is right\n", figure_bytes(r->verified, size));
    printf("guarantee  %s\n", guarantee(r));
}

static int report_error(const struct request *q, const struct pm_error *err) {
    pm_say("%s", err->text);
    if (q->json) {
        struct json j = {.out = stdout};
        json_open(&j, NULL, '{');
        json_text(&j, "backup", q->dir);
        json_text(&j, "error", err->text);
        json_close(&j, '}');
        json_end(&j);
    }
    return cli_flush(err->status, PM_OPERATIONAL);
}

// ---- the work -----------------------------------------------------------------------------------

static int verify(struct report *r, pm_progress *progress, struct pm_error *err) {
    struct target *t = &r->target;
    if (t->state == PM_BACKUP_IS_UNFINISHED)
        return pm_fail(err, PM_OPERATIONAL,
                       "%.300s is an unfinished backup: run pmalloc-backup HEAP DIR again", t->dir);
    return backup_verify(t, progress, &r->verified, err);
}

// Reads the backup as a later round would read it.
static int read_again(struct target *t, struct pm_error *err) {
    t->state = pm_backup_state(t->fd);
    if (t->state == PM_BACKUP_IS_UNKNOWN)
        return pm_fail(err, PM_OPERATIONAL, "%.300s: %s", t->dir, pm_strerror(errno));
    return kept_load(t->fd, t->dir, &t->kept, err);
}

static int back_up(struct report *r, pm_progress *progress, struct pm_error *err) {
    const struct request *q = r->request;
    struct target *t = &r->target;
    uint64_t began = (uint64_t)time(NULL);
    int status = source_open(q->heap, progress, &r->source, err);
    if (status != PM_OK && pm_is_busy(err))
        status = live_open(q->heap, &r->source, err);
    if (status == PM_OK)
        status = target_open_for_heap(q->dir, t, err);
    if (status != PM_OK)
        return status;
    bool first = t->state == PM_BACKUP_IS_NONE || t->state == PM_BACKUP_IS_UNFINISHED;
    status = (first ? round_first : round_next)(&r->source, t, progress, &r->round, err);
    if (status == PM_OK)
        status = target_stamp(t, r->round.number, began, err);
    r->round.written += sizeof(struct pm_backup_stamp);
    if (status == PM_OK && q->verify)
        status = read_again(t, err);
    return status == PM_OK && q->verify ? verify(r, progress, err) : status;
}

#define TRIES "PMALLOC_BACKUP_TRIES"

// The process that had the heap has ended or has given it up: the heap's next state is to be backed
// up. Comes back if that has happened too often.
static void begin_anew(const struct request *q) {
    enum { MOST = 9 };
    const char *tries = getenv(TRIES);
    char next[2] = {(char)((tries ? *tries : '0') + 1), '\0'};
    if (next[0] <= '0' + MOST && setenv(TRIES, next, 1) == 0)
        execv("/proc/self/exe", q->argv);
}

static int work(const struct request *q) {
    static struct report r;
    struct pm_error err;
    pm_progress *progress = progress_start();
    int status;
    r.request = q;
    r.target.fd = -1;
    if (q->heap) {
        status = back_up(&r, progress, &err);
    } else {
        status = target_open(q->dir, &r.target, &err);
        if (status == PM_OK)
            status = verify(&r, progress, &err);
    }
    if (status == PM_OK)
        status = pm_backup_age(r.target.fd, q->dir, &r.age, &err);
    progress_end();
    if (status == PM_NEEDS_RECOVERY)
        begin_anew(q);
    if (status == PM_NEEDS_RECOVERY)
        status = pm_fail(&err, PM_OPERATIONAL, "%.300s has changed hands: try again", q->heap);
    if (status != PM_OK) {
        target_give_up(&r.target);
        return report_error(q, &err);
    }
    if (q->json)
        report_json(&r);
    else
        report_text(&r);
    return cli_flush(PM_OK, PM_OPERATIONAL);
}

int main(int argc, char **argv) {
    struct request q = {.argv = argv};
    pm_message_prefix = tool.name;
    pm_persist_exit = PM_OPERATIONAL;
    pm_options_default();
    bad_reads_catch();
    int operand = cli_parse(&tool, argc, argv, take, &q), operands = argc - operand;
    if (operands > 2)
        cli_wrong(&tool, "'%s' is one too many: name the heap and the backup's directory",
                  argv[operand + 2]);
    if (operands == 0 || (operands == 1 && !q.verify))
        cli_wrong(&tool, "name the heap and the directory of its backup: pmalloc-backup HEAP DIR");
    q.heap = operands == 2 ? argv[operand] : NULL;
    q.dir = argv[operand + operands - 1];
    if (!*q.dir || (q.heap && !*q.heap))
        cli_wrong(&tool, "a directory's name is empty");
    return work(&q);
}
