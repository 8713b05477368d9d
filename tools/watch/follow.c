// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "follow.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "look.h"
#include "tools/common/cli.h"
#include "tools/common/commit_print.h"
#include "tools/common/figures.h"
#include "tools/common/info_print.h"
#include "tools/common/instants_print.h"
#include "tools/common/json.h"
#include "tools/common/pauses_print.h"

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number) {
    (void)number;
    interrupted = 1;
}

static uint64_t slab_bytes(const struct look *l) { return l->slabs * PM_SLAB_SIZE; }

static uint64_t free_bytes(const struct look *l) {
    uint64_t used = slab_bytes(l) + l->extent_bytes;
    return used < l->heap_bytes ? l->heap_bytes - used : 0;
}

static const char *state_of(const struct look *l) { return l->clean ? "clean" : "dirty"; }

static struct instants instants_of(const char *heap, const struct look *l) {
    return (struct instants){.of = l->commit.instants,
                             .time = l->commit.time,
                             .heap = heap,
                             .base = l->base,
                             .end = l->base + l->range,
                             .process = l->pid};
}

// ---- the three forms ----------------------------------------------------------------------------

static void put_json(const char *heap, const struct look *l) {
    struct json j = {.out = stdout};
    json_open(&j, NULL, '{');
    json_text(&j, "heap", heap);
    json_number(&j, "time", (uint64_t)time(NULL));
    json_text(&j, "owner", l->pid ? l->process : "gone");
    json_number(&j, "owner_pid", (uint64_t)l->pid);
    json_text(&j, "state", state_of(l));
    json_number(&j, "opens", l->opens);
    json_number(&j, "roots", l->roots);
    json_number(&j, "heap_bytes", l->heap_bytes);
    json_number(&j, "data_bytes", l->data_bytes);
    json_number(&j, "metadata_bytes", l->metadata_bytes);
    json_bool(&j, "settled", l->settled);
    json_number(&j, "slabs", l->slabs);
    json_number(&j, "slab_bytes", slab_bytes(l));
    json_number(&j, "extents", l->extents);
    json_number(&j, "extent_bytes", l->extent_bytes);
    json_number(&j, "free_bytes", free_bytes(l));
    json_number(&j, "log_chunks", l->log_chunks);
    json_number(&j, "log_active_chunks", l->log_active);
    json_number(&j, "log_live_entries", l->log_live);
    if (l->commit.groups) {
        json_open(&j, "commit", '{');
        commit_members(&j, &l->commit);
        json_close(&j, '}');
    }
    struct instants instants = instants_of(heap, l);
    if (l->commit.counted)
        instants_json(&j, &instants);
    if (l->commit.counted && pm_pauses_count(&l->commit.pauses))
        pauses_json(&j, &l->commit.pauses);
    json_open(&j, "classes", '[');
    PM_EACH_CLASS(i) {
        if (!l->class_slabs[i])
            continue;
        json_open(&j, NULL, '{');
        json_number(&j, "size", pm_classes[i].size);
        json_number(&j, "slabs", l->class_slabs[i]);
        json_close(&j, '}');
    }
    json_close(&j, ']');
    json_close(&j, '}');
    json_end(&j);
}

static void clock_text(char out[16]) {
    time_t now = time(NULL);
    struct tm tm;
    if (!localtime_r(&now, &tm) || !strftime(out, 16, "%H:%M:%S", &tm))
        strcpy(out, "?");
}

// What a kill at this moment would take the heap back to; and the instants of all commits.
static void put_commit(const char *heap, const struct look *l, const char *before) {
    char when[96], cost[COMMIT_COST];
    struct instants instants = instants_of(heap, l);
    if (l->commit.groups)
        printf("%scommit of %s: %s", before, commit_when(l->commit.time, when),
               commit_cost(&l->commit, cost));
    if (!l->commit.counted)
        return;
    printf("%sinstants: ", *before ? before : "\n");
    instants_text(&instants, *before ? before : "\n");
    if (pm_pauses_count(&l->commit.pauses)) {
        printf("%spauses: ", *before ? before : "\n");
        pauses_text(&l->commit.pauses, *before ? before : "\n");
    }
}

static void put_line(const char *heap, const struct look *l) {
    char now[16], whole[32], data[32], slabs[32], large[32], unused[32];
    clock_text(now);
    printf("%s process %d %s; heap %s, on media %s; %lu slabs %s, %lu large %s, free %s; log %lu "
           "entries in %lu chunks; roots %u%s",
           now, (int)l->pid, l->pid ? l->process : "gone", figure_bytes(l->heap_bytes, whole),
           figure_bytes(l->data_bytes + l->metadata_bytes, data), (unsigned long)l->slabs,
           figure_bytes(slab_bytes(l), slabs), (unsigned long)l->extents,
           figure_bytes(l->extent_bytes, large), figure_bytes(free_bytes(l), unused),
           (unsigned long)l->log_live, (unsigned long)l->log_active, l->roots,
           l->settled ? "" : " (changing too fast: slabs, large and log are of an earlier look)");
    put_commit(heap, l, "; ");
    putchar('\n');
}

static void put_bytes(const char *what, uint64_t count, uint64_t bytes) {
    char text[32];
    printf("%-12s", what);
    if (count != UINT64_MAX)
        printf(" %10lu", (unsigned long)count);
    else
        printf(" %10s", "");
    printf(" %12s\n", figure_bytes(bytes, text));
}

static void put_screen(const char *heap, const struct look *l) {
    char now[16];
    clock_text(now);
    printf("\033[H\033[J%s  %s  process %d %s, opened %lu times, roots %u\n\n", now, heap,
           (int)l->pid, l->process, (unsigned long)l->opens, l->roots);
    put_bytes("slabs", l->slabs, slab_bytes(l));
    put_bytes("large", l->extents, l->extent_bytes);
    put_bytes("free", UINT64_MAX, free_bytes(l));
    put_bytes("heap", UINT64_MAX, l->heap_bytes);
    put_bytes("on media", UINT64_MAX, l->data_bytes);
    put_bytes("metadata", UINT64_MAX, l->metadata_bytes);
    printf("log          %10lu entries in %lu of %lu chunks\n\n", (unsigned long)l->log_live,
           (unsigned long)l->log_active, (unsigned long)l->log_chunks);
    put_commit(heap, l, "");
    fputs(l->commit.groups ? "\n\n" : "", stdout);
    printf("block size   slabs   (how full they are, only the process knows)\n");
    PM_EACH_CLASS(i)
        if (l->class_slabs[i])
            printf("%10u %7lu\n", pm_classes[i].size, (unsigned long)l->class_slabs[i]);
    if (!l->settled)
        printf("changing too fast: slabs, large and log are of an earlier look\n");
}

static void put(const char *heap, const struct look *l, bool json, bool screen) {
    if (json)
        put_json(heap, l);
    else if (screen)
        put_screen(heap, l);
    else
        put_line(heap, l);
    fflush(stdout);
}

// ---- the loop -----------------------------------------------------------------------------------

static void nap(double seconds) {
    struct timespec rest = {.tv_sec = (time_t)seconds};
    rest.tv_nsec = (long)((seconds - (double)rest.tv_sec) * 1e9);
    while (!interrupted && nanosleep(&rest, &rest) != 0 && errno == EINTR) {
    }
}

static int failed(const char *heap, const struct pm_error *err, bool json) {
    pm_say("%s", err->text);
    if (json)
        info_error(heap, err);
    return cli_flush(err->status, PM_OPERATIONAL);
}

static int ended(const char *heap, const struct look *l, bool json) {
    if (json)
        put_json(heap, l);
    else
        printf("%s\n", l->clean ? "the heap was closed cleanly"
                                : "its process has ended without a clean close; the next opening "
                                  "recovers the heap");
    return cli_flush(PM_OK, PM_OPERATIONAL);
}

int follow(const char *heap, double interval, unsigned long count, bool json) {
    struct pm_error err;
    struct look look = {0};
    struct sigaction action = {.sa_handler = on_interrupt};
    bool screen = !json && isatty(STDOUT_FILENO), gone;
    int status = look_open(heap, &err);
    if (status != PM_OK)
        return failed(heap, &err, json);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    for (unsigned long n = 0; !interrupted; n++) {
        status = look_take(&look, &gone, &err);
        if (n == 0 && status == PM_OK && (!look.pid || look.clean))
            status = pm_fail(&err, PM_OPERATIONAL,
                             "%.300s is used by no process here; leave --follow out to see what "
                             "is in it",
                             heap);
        if (n && status != PM_OK && gone) {
            look.pid = 0;
            if (!json)
                printf("the heap was removed\n");
            return json ? ended(heap, &look, true) : cli_flush(PM_OK, PM_OPERATIONAL);
        }
        if (status != PM_OK)
            return failed(heap, &err, json);
        if (!look.pid || look.clean)
            return ended(heap, &look, json);
        put(heap, &look, json, screen);
        if (ferror(stdout) || (count && n + 1 == count))
            break;
        nap(interval);
    }
    return cli_flush(PM_OK, PM_OPERATIONAL);
}
