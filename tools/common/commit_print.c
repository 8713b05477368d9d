// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "commit_print.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "copy_print.h"
#include "figures.h"
#include "media/commit/doubt.h"
#include "media/heap.h"
#include "media/persist.h"

#define SECOND 1000000000u

static uint64_t time_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

// The largest unit of which there are at least two.
static void put_age(uint64_t seconds, char out[32]) {
    static const struct {
        const char *name;
        uint64_t seconds;
    } unit[] = {{"days", 86400}, {"hours", 3600}, {"minutes", 60}};
    for (size_t i = 0; i < sizeof unit / sizeof unit[0]; i++)
        if (seconds >= 2 * unit[i].seconds) {
            snprintf(out, 32, "%lu %s", (unsigned long)(seconds / unit[i].seconds), unit[i].name);
            return;
        }
    snprintf(out, 32, "%lu s", (unsigned long)seconds);
}

const char *commit_when(uint64_t time, char out[96]) {
    uint64_t now = time_now();
    time_t seconds = (time_t)(time / SECOND);
    char age[32], date[32] = "?", zone[8] = "";
    struct tm tm;
    if (localtime_r(&seconds, &tm)) {
        strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S", &tm);
        strftime(zone, sizeof zone, "%z", &tm);
    }
    put_age(now > time ? (now - time) / SECOND : 0, age);
    snprintf(out, 96, "%s.%03u %s, %s ago", date, (unsigned)(time % SECOND / 1000000), zone, age);
    return out;
}

const char *commit_cost(const struct pm_journal_found *commit, char out[COMMIT_COST]) {
    char pages[32];
    snprintf(out, COMMIT_COST, "%s page%s, threads stood still for %.1f ms%s%s",
             figure_count(commit->pages, pages), commit->pages == 1 ? "" : "s",
             commit->held / 1000.0, commit->forced ? ", forced" : "",
             commit->amid ? ", amid an operation of another thread" : "");
    return out;
}

void commit_text(void) {
    const struct pm_journal_found *commit = &pm_journal_opened.commit;
    char when[96], cost[COMMIT_COST];
    commit_when(commit->time, when);
    commit_cost(commit, cost);
    if (pm_journal_opened.cut) {
        printf("commit     the journal is damaged behind %s%s: later ones are lost\n",
               commit->groups ? "the commit of " : "its start", commit->groups ? when : "");
        return;
    }
    switch (pm_journal_opened.is) {
    case PM_JOURNAL_NONE:
        break;
    case PM_JOURNAL_TORN:
        puts("commit     one that was cut short does not count; the heap is as of the one before");
        break;
    case PM_JOURNAL_APPLIED:
        printf("commit     the heap is as of %s (%s)\n", when, cost);
        break;
    case PM_JOURNAL_WHOLE:
        printf("commit     as of %s (%s); a recovery brings it into the files\n", when, cost);
        break;
    }
}

const char *commit_guarantee(void) {
    static char text[256];
    const char *lasts = pm_durability == PM_DURABLE_NONE ? "; on tmpfs: not after a reboot" : "";
    char when[96];
    if (pm_journal_opened.cut)
        return "none: the heap is as of the last commit before the damage, but pages of later ones "
               "may stand in it: not one instant";
    if (pm_heap.copy)
        return COPY_GUARANTEE;
    if (pm_doubt_why()) {
        snprintf(text, sizeof text,
                 "none, until pmalloc-recover or a start has written all pages once more: %s",
                 pm_doubt_why());
        return text;
    }
    switch (pm_journal_opened.is) {
    case PM_JOURNAL_NONE:
        break;
    case PM_JOURNAL_TORN:
        snprintf(text, sizeof text,
                 "commit mode: the heap goes back to the commit before the one that was cut short, "
                 "one instant of all threads%s",
                 lasts);
        return text;
    case PM_JOURNAL_APPLIED:
    case PM_JOURNAL_WHOLE:
        snprintf(text, sizeof text,
                 "commit mode: the heap goes back to the commit of %s, one instant of all "
                 "threads%s",
                 commit_when(pm_journal_opened.commit.time, when), lasts);
        return text;
    }
    return pm_persist_row();
}

void commit_members(struct json *j, const struct pm_journal_found *commit) {
    json_real(j, "time", (double)commit->time / SECOND);
    json_real(j, "age", (double)(int64_t)(time_now() - commit->time) / SECOND);
    json_number(j, "number", commit->epoch);
    json_number(j, "pages", commit->pages);
    json_number(j, "journal_bytes", commit->bytes);
    json_number(j, "held_us", commit->held);
    json_bool(j, "forced", commit->forced);
    json_bool(j, "between_operations", !commit->amid);
}

void commit_json(struct json *j) {
    static const char *const names[] = {"", "torn", "applied", "pending"};
    if (pm_journal_opened.is == PM_JOURNAL_NONE && !pm_journal_opened.cut)
        return;
    json_open(j, "commit", '{');
    json_text(j, "journal", pm_journal_opened.cut ? "damaged" : names[pm_journal_opened.is]);
    if (pm_journal_opened.commit.groups)
        commit_members(j, &pm_journal_opened.commit);
    json_close(j, '}');
}
