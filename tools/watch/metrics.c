// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "look.h"
#include "media/backup/backup.h"
#include "media/heap.h"
#include "media/journal/pauses.h"
#include "tools/common/cli.h"
#include "tools/common/defaults.h"
#include "tools/common/medium.h"
#include "tools/common/text.h"

struct sample {
    const char *heap;
    int status;
    struct look look;
    bool known; // the two below
    enum pm_durability durability;
    char type[32]; // of the file system
};

static struct sample *sample;
static int samples;

struct backup {
    const char *dir;
    const char *heap; // whose it is; "": that is not known
    uint64_t when;    // seconds since 1970; 0: it is no backup of one of the heaps
};

static struct backup *backup;
static int backups;

// ---- the figures --------------------------------------------------------------------------------

// What there must be for a figure to be printed.
enum needs {
    ALWAYS,
    LOOKED,
    SETTLED,
    REBASED,
    RECOVERED,
    COLLECTED,
    JOURNAL,
    COMMIT,
    COUNTED,
    PAUSED,
};

// Name, kind, what it needs, value and help. `l` is the look, `c` its commit, `i` the instants that
// it counts. OpenMetrics wants base units, and that a counter's samples end in _total.
#define EACH(X)                                                                                    \
    X("up", GAUGE, ALWAYS, s->status == PM_OK, "Whether the heap could be looked at.")             \
    X("in_use", GAUGE, LOOKED, l->pid != 0 && !l->clean, "Whether a process has the heap.")        \
    X("clean", GAUGE, LOOKED, l->clean,                                                            \
      "Whether it was closed cleanly; one that was not, and is not in use, is recovered.")         \
    X("opens", COUNTER, LOOKED, l->opens, "How often the heap was opened.")                        \
    X("roots", GAUGE, LOOKED, l->roots, "Roots by name.")                                          \
    X("late_roots", GAUGE, LOOKED, l->late_roots, "Of them, those not restored before main.")      \
    X("late_roots_waiting", GAUGE, LOOKED, l->late_waiting,                                        \
      "Late roots that the last start has not restored.")                                          \
    X("heap_bytes", GAUGE, LOOKED, l->heap_bytes, "Address space of the data files.")              \
    X("data_bytes", GAUGE, LOOKED, l->data_bytes, "Space of the data files on the medium.")        \
    X("metadata_bytes", GAUGE, LOOKED, l->metadata_bytes, "Space of the other files.")             \
    X("medium_bytes", GAUGE, LOOKED, l->medium_bytes,                                              \
      "Size of the file system, or of the room for data on fixed media.")                          \
    X("medium_free_bytes", GAUGE, LOOKED, l->medium_free, "What of it is free for this user.")     \
    X("slabs", GAUGE, SETTLED, l->slabs, "Slabs, of 64 KiB each.")                                 \
    X("large_blocks", GAUGE, SETTLED, l->extents, "Large blocks.")                                 \
    X("large_bytes", GAUGE, SETTLED, l->extent_bytes, "Bytes in large blocks.")                    \
    X("log_entries", GAUGE, SETTLED, l->log_live, "Live entries of the bookkeeping log.")          \
    X("log_chunks", GAUGE, SETTLED, l->log_active, "Chunks of the log that are in use.")           \
    X("rebases", COUNTER, LOOKED, l->rebased.count,                                                \
      "How often words were led to another build or place of the program.")                        \
    X("rebase_timestamp_seconds", GAUGE, REBASED, (double)l->rebased.time / 1e9,                   \
      "When that was last, since 1970.")                                                           \
    X("rebase_words", GAUGE, REBASED, l->rebased.words, "Words that were changed then.")           \
    X("recoveries", COUNTER, RECOVERED, l->recovered.count, "Recoveries of the heap.")             \
    X("recovery_timestamp_seconds", GAUGE, RECOVERED, (double)l->recovered.time / 1e9,             \
      "When the last recovery was, since 1970.")                                                   \
    X("recovery_seconds", GAUGE, RECOVERED, (double)l->recovered.took_us / 1e6,                    \
      "How long it took.")                                                                         \
    X("recovery_reached_bytes", GAUGE, COLLECTED, l->recovered.live_bytes,                         \
      "Bytes in blocks that roots reached then.")                                                  \
    X("recovery_freed_bytes", GAUGE, COLLECTED, l->recovered.freed_bytes,                          \
      "Bytes of large blocks and slabs that it freed.")                                            \
    X("commits", COUNTER, COMMIT, c->epoch, "Commits of the heap, in commit mode.")                \
    X("commit_timestamp_seconds", GAUGE, COMMIT, (double)c->time / 1e9,                            \
      "When the last commit was made, since 1970.")                                                \
    X("commit_pages", GAUGE, COMMIT, c->pages, "Pages of the last commit.")                        \
    X("journal_bytes", GAUGE, COMMIT, c->bytes, "What of the journal commits have used.")          \
    X("journal_size_bytes", GAUGE, JOURNAL, l->journal_bytes,                                      \
      "Length of the journal, or its room on fixed media.")                                        \
    X("commit_held_seconds", GAUGE, COMMIT, (double)c->held / 1e6,                                 \
      "How long threads stood still for it.")                                                      \
    X("commit_amid", GAUGE, COMMIT, c->amid, "Whether it lies amid an operation of a thread.")     \
    X("instants_between", COUNTER, COUNTED, i->between,                                            \
      "Commits of the process that lie between operations.")                                       \
    X("instants_after_a_wait", COUNTER, COUNTED, i->waited,                                        \
      "Commits after a wait for threads that never took a lock.")                                  \
    X("instants_others", COUNTER, COUNTED, i->any, "Commits that may lie amid an operation.")      \
    X("commits_failed", COUNTER, PAUSED, c->pauses.failed,                                         \
      "Commits that failed before a later one succeeded.")                                         \
    X("pause_longest_seconds", GAUGE, PAUSED, (double)c->pauses.longest_ns / 1e9,                  \
      "How long the threads of the process stood still at most.")                                  \
    X("pages_at_instants", COUNTER, PAUSED, c->pauses.instant, "Pages found meanwhile.")           \
    X("pages_before_instants", COUNTER, PAUSED, pm_pauses_in_rounds(&c->pauses),                   \
      "Pages that commits have found while the program ran.")

enum kind { GAUGE, COUNTER, HISTOGRAM };
static const struct family {
    char name[32], help[96];
    enum kind kind;
    enum needs needs;
} families[] = {
#define ROW(name, kind, needs, value, help) {name, help, kind, needs},
    EACH(ROW)
#undef ROW
};
#define FAMILIES (sizeof families / sizeof *families)

static double value_of(const struct sample *s, size_t family) {
    const struct look *l = &s->look;
    const struct pm_journal_found *c = &l->commit;
    const struct pm_instants *i = &c->instants;
    const double values[] = {
#define VALUE(name, kind, needs, value, help) (double)(value),
        EACH(VALUE)
#undef VALUE
    };
    return values[family];
}

static bool has(const struct sample *s, enum needs needs) {
    const struct look *l = &s->look;
    bool looked = s->status == PM_OK;
    return needs == ALWAYS      ? true
           : needs == LOOKED    ? looked
           : needs == SETTLED   ? looked && l->settled
           : needs == COMMIT    ? looked && l->commit.groups
           : needs == JOURNAL   ? looked && l->journal_bytes
           : needs == REBASED   ? looked && l->rebased.time
           : needs == RECOVERED ? looked && l->recovered.time
           : needs == COLLECTED ? looked && l->recovered.time && !l->recovered.kept_all
           : needs == COUNTED   ? looked && l->commit.counted
                                : looked && pm_pauses_count(&l->commit.pauses);
}

// ---- the format ---------------------------------------------------------------------------------

static void put_label(FILE *out, const char *name, const char *text) {
    fprintf(out, "%s=\"", name);
    for (const unsigned char *at = (const unsigned char *)text; *at;) {
        size_t length = text_utf8_length(at);
        if (length == 0)
            fputs("\xef\xbf\xbd", out);
        else if (*at == '\n')
            fputs("\\n", out);
        else if (*at == '"' || *at == '\\')
            fprintf(out, "\\%c", *at);
        else
            fwrite(at, 1, length, out);
        at += length ? length : 1;
    }
    putc('"', out);
}

static void put_head(FILE *out, const char *name, enum kind kind, const char *help) {
    static const char *const kinds[] = {
        [GAUGE] = "gauge", [COUNTER] = "counter", [HISTOGRAM] = "histogram"};
    fprintf(out, "# TYPE pmalloc_%s %s\n# HELP pmalloc_%s %s\n", name, kinds[kind], name, help);
}

static void put_family(FILE *out, size_t number) {
    const struct family *f = &families[number];
    bool head = false;
    for (const struct sample *s = sample; s < sample + samples; s++) {
        if (!has(s, f->needs))
            continue;
        if (!head)
            put_head(out, f->name, f->kind, f->help);
        head = true;
        fprintf(out, "pmalloc_%s%s{", f->name, f->kind == COUNTER ? "_total" : "");
        put_label(out, "heap", s->heap);
        fprintf(out, "} %.15g\n", value_of(s, number));
    }
}

static void put_classes(FILE *out) {
    bool head = false;
    for (const struct sample *s = sample; s < sample + samples; s++) {
        PM_EACH_CLASS(c) {
            if (!has(s, SETTLED) || !s->look.class_slabs[c])
                continue;
            if (!head)
                put_head(out, "class_slabs", GAUGE, "Slabs of each size of block.");
            head = true;
            fputs("pmalloc_class_slabs{", out);
            put_label(out, "heap", s->heap);
            fprintf(out, ",size=\"%u\"} %lu\n", pm_classes[c].size,
                    (unsigned long)s->look.class_slabs[c]);
        }
    }
}

// By OpenMetrics' rule a bucket counts all that is not longer than its bound.
static void put_lengths(FILE *out, const struct sample *s) {
    const struct pm_pauses *p = &s->look.commit.pauses;
    uint64_t count = 0;
    for (unsigned i = 0; i <= PM_PAUSE_BOUNDS; i++) {
        count += p->of[i];
        fputs("pmalloc_pause_seconds_bucket{", out);
        put_label(out, "heap", s->heap);
        if (i < PM_PAUSE_BOUNDS)
            fprintf(out, ",le=\"%g\"} %lu\n", (double)pm_pause_bound(i) / 1e9,
                    (unsigned long)count);
        else
            fprintf(out, ",le=\"+Inf\"} %lu\n", (unsigned long)count);
    }
    fputs("pmalloc_pause_seconds_count{", out);
    put_label(out, "heap", s->heap);
    fprintf(out, "} %lu\npmalloc_pause_seconds_sum{", (unsigned long)count);
    put_label(out, "heap", s->heap);
    fprintf(out, "} %.15g\n", (double)p->held_ns / 1e9);
}

static void put_pauses(FILE *out) {
    bool head = false;
    for (const struct sample *s = sample; s < sample + samples; s++) {
        if (!has(s, PAUSED))
            continue;
        if (!head)
            put_head(out, "pause_seconds", HISTOGRAM,
                     "How long the threads of the process stood still for commits.");
        head = true;
        put_lengths(out, s);
    }
}

// As the first column of README's table of guarantees has it.
static const char *row_of(enum pm_durability durability) {
    static const char *const rows[] = {
        [PM_DURABLE_NONE] = "tmpfs",
        [PM_DURABLE_CACHE] = "caches survive",
        [PM_DURABLE_LINE] = "DAX with ADR",
        [PM_DURABLE_PAGE] = "plain file",
    };
    return rows[durability];
}

static void put_guarantees(FILE *out) {
    bool head = false;
    for (const struct sample *s = sample; s < sample + samples; s++) {
        if (!s->known)
            continue;
        if (!head)
            put_head(out, "guarantee_info", GAUGE,
                     "Which row of the guarantees applies, and whether its program commits.");
        head = true;
        fputs("pmalloc_guarantee_info{", out);
        put_label(out, "heap", s->heap);
        putc(',', out);
        put_label(out, "row", row_of(s->durability));
        putc(',', out);
        put_label(out, "file_system", s->type);
        bool commits = s->look.journal_bytes && !s->look.clean;
        fprintf(out, ",commit=\"%s\"} 1\n", commits ? "yes" : "no");
    }
}

static void put_backups(FILE *out) {
    if (backups)
        put_head(out, "backup_timestamp_seconds", GAUGE,
                 "When the last round of the backup began, since 1970; 0: it is none.");
    for (const struct backup *b = backup; b < backup + backups; b++) {
        fputs("pmalloc_backup_timestamp_seconds{", out);
        put_label(out, "heap", b->heap);
        putc(',', out);
        put_label(out, "backup", b->dir);
        fprintf(out, "} %lu\n", (unsigned long)b->when);
    }
}

static void put_all(FILE *out) {
    put_head(out, "build_info", GAUGE, "The version of the tool.");
    fprintf(out, "pmalloc_build_info{version=\"%s\"} 1\n", cli_version());
    for (size_t i = 0; i < FAMILIES; i++)
        put_family(out, i);
    put_classes(out);
    put_pauses(out);
    put_guarantees(out);
    put_backups(out);
    fputs("# EOF\n", out);
}

// ---- heaps --------------------------------------------------------------------------------------

static void add(const char *heap) {
    sample = realloc(sample, ((size_t)samples + 1) * sizeof *sample);
    char *name = strdup(heap);
    if (!sample || !name) {
        pm_say("no memory");
        exit(PM_OPERATIONAL);
    }
    sample[samples++] = (struct sample){.heap = name};
}

static void add_default(const struct default_heap *h, void *unused) {
    (void)unused;
    if (h->state != DEFAULT_REMNANT)
        add(h->dir);
}

static int take(struct sample *s) {
    struct pm_error err;
    bool gone;
    s->status = look_open(s->heap, &err);
    if (s->status == PM_OK) {
        s->status = look_take(&s->look, &gone, &err);
        look_close();
    }
    if (s->status != PM_OK) {
        pm_say("%s", err.text);
        return s->status;
    }
    static struct medium medium;
    s->known = medium_find(s->heap, &medium, &err) == PM_OK;
    s->durability = medium.durability;
    snprintf(s->type, sizeof s->type, "%s", medium.type);
    return PM_OK;
}

// ---- backups ------------------------------------------------------------------------------------

// The heap is known by what both have as its number. One that cannot be looked at may be any. NULL:
// it is none of them.
static const char *heap_of(const struct pm_backup_age *age) {
    bool unknown = false;
    for (const struct sample *s = sample; s < sample + samples; s++) {
        if (s->status == PM_OK && memcmp(s->look.uuid, age->uuid, sizeof age->uuid) == 0)
            return s->heap;
        unknown |= s->status != PM_OK;
    }
    return !unknown ? NULL : samples == 1 ? sample->heap : "";
}

static int take_backup(struct backup *b) {
    struct pm_backup_age age = {0};
    struct pm_error err;
    int fd = open(b->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int status = fd < 0 ? pm_fail(&err, PM_OPERATIONAL, "%.300s: cannot open the backup: %s",
                                  b->dir, pm_strerror(errno))
                        : pm_backup_age(fd, b->dir, &age, &err);
    if (fd >= 0)
        close(fd);
    b->heap = status == PM_OK ? heap_of(&age) : NULL;
    if (status == PM_OK && !b->heap)
        status = pm_fail(&err, PM_OPERATIONAL,
                         "%.300s is the backup of another heap than those named (or of one that "
                         "was made anew since)",
                         b->dir);
    b->when = status == PM_OK ? age.when : 0;
    if (!b->heap)
        b->heap = samples == 1 ? sample->heap : "";
    if (status != PM_OK)
        pm_say("%s", err.text);
    return status;
}

static int take_backups(const struct metrics_request *q) {
    int status = PM_OK;
    backup = calloc((size_t)q->backup_count + 1, sizeof *backup);
    if (!backup) {
        pm_say("no memory");
        exit(PM_OPERATIONAL);
    }
    for (; backups < q->backup_count; backups++) {
        backup[backups].dir = q->backups[backups];
        int took = take_backup(&backup[backups]);
        status = status == PM_OK ? took : status;
    }
    return status;
}

// ---- all of it ----------------------------------------------------------------------------------

// A collector may read the file at any moment, and ignores names that do not end in .prom.
static int put_file(const char *path) {
    char *made = NULL;
    if (asprintf(&made, "%s.new", path) < 0)
        made = NULL;
    int fd = made ? open(made, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644) : -1;
    FILE *out = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (out)
        put_all(out);
    bool good = out && !ferror(out);
    int error = errno;
    if (out && fclose(out) != 0)
        good = false, error = errno;
    if (good && rename(made, path) != 0)
        good = false, error = errno;
    if (!good) {
        pm_say("%s: cannot be written: %s", path, pm_strerror(error));
        if (fd >= 0)
            unlink(made);
    }
    free(made);
    return good ? PM_OK : PM_OPERATIONAL;
}

int metrics(const struct metrics_request *q) {
    struct pm_error err;
    int status = PM_OK;
    for (int i = 0; i < q->count; i++)
        add(q->heaps[i]);
    if (q->all && (status = defaults_each(PURGE_NONE, add_default, NULL, &err)) != PM_OK)
        pm_say("%s", err.text);
    for (struct sample *s = sample; s < sample + samples; s++) {
        int took = take(s);
        status = status == PM_OK ? took : status;
    }
    int backed_up = take_backups(q);
    status = status == PM_OK ? backed_up : status;
    int written = PM_OK;
    if (q->output)
        written = put_file(q->output);
    else
        put_all(stdout);
    status = status == PM_OK ? written : status;
    return q->output ? status : cli_flush(status, PM_OPERATIONAL);
}
