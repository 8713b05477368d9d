// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "commit_mode.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/options.h"
#include "media/backing/volume.h"
#include "media/backing/work_copy.h"
#include "media/heap.h"

static enum pm_commits_mode mode;
static uint64_t interval_ms;
static bool strict;         // no commit at any instant: `output:strict`
static uint64_t answers_us; // `output`: how long an answer may wait for a commit

#define INTERVAL_MAX ((uint64_t)24 * 3600 * 1000)

// 10ms, 5s, 2m, 1h. 0: it is none of these.
static uint64_t parse_time(const char *text) {
    static const struct {
        const char *name;
        uint64_t ms;
    } unit[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}};
    char *end;
    if (*text < '0' || *text > '9')
        return 0;
    uint64_t value = strtoull(text, &end, 10);
    for (size_t i = 0; i < sizeof unit / sizeof unit[0]; i++)
        if (strcmp(end, unit[i].name) == 0 && value <= INTERVAL_MAX / unit[i].ms)
            return value * unit[i].ms;
    return 0;
}

bool pm_commits_wanted(void) { return pm_options.commit.text[0] != '\0'; }

enum pm_commits_mode pm_commits_mode(void) { return mode; }

uint64_t pm_commits_interval(void) { return interval_ms; }

uint64_t pm_commits_answers_us(void) { return answers_us; }

// Whether a heap lies in the directory, or the first one of several. `st`: of its superblock.
static bool lies_in(const char *heap, struct stat *st) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.*s/%s", (int)pm_volume_first(heap), heap,
             pm_heap.super_file.name);
    return stat(path, st) == 0;
}

// The directory of the commits takes the place of PMALLOC_HEAP. Another heap that lies there would
// be passed over, with what it has.
static int use_commit_dir(struct pm_error *err) {
    const char *dir = pm_options.commit_dir.text, *heap = pm_options.heap.text;
    struct stat passed, used;
    if (!*dir)
        return PM_OK;
    if (*heap && lies_in(heap, &passed) &&
        !(lies_in(dir, &used) && used.st_ino == passed.st_ino && used.st_dev == passed.st_dev))
        return pm_fail(err, PM_OPERATIONAL,
                       "PMALLOC_HEAP=%.200s holds a heap, but with PMALLOC_COMMIT_DIR the heap is "
                       "%.200s: run `pmalloc-backup %.200s %.200s` and remove the first, or unset "
                       "one of the two settings",
                       heap, dir, heap, dir);
    pm_work_wanted = true;
    return pm_option_set("PMALLOC_HEAP", dir, err);
}

#define ANSWERS_MOST_MS 1000
// Of redis, by 50 clients, ten times as many answers a second as without; by one client as many.
#define ANSWERS_MS 5

// Whether the text is the mode, or the mode and a TIME, in `ms` then; else 0.
static bool is_mode(const char *text, const char *name, uint64_t *ms) {
    size_t len = strlen(name);
    *ms = 0;
    if (strncmp(text, name, len) != 0)
        return false;
    if (text[len] == ':')
        *ms = parse_time(text + len + 1);
    return text[len] == '\0' || *ms;
}

int pm_commits_options(struct pm_error *err) {
    if (use_commit_dir(err) != PM_OK)
        return err->status;
    const char *text = pm_options.commit.text;
    uint64_t ms;
    if (*text == '\0' || strcmp(text, "api") == 0) {
        mode = PM_COMMITS_API;
    } else if (is_mode(text, "idle", &ms)) {
        mode = PM_COMMITS_IDLE;
        interval_ms = ms;
    } else if (is_mode(text, "output", &ms) && ms <= ANSWERS_MOST_MS) {
        mode = PM_COMMITS_OUTPUT;
        answers_us = (ms ? ms : ANSWERS_MS) * 1000;
    } else if (strcmp(text, "output:0") == 0 || strcmp(text, "output:strict") == 0) {
        mode = PM_COMMITS_OUTPUT;
        strict = text[strlen("output:")] != '0';
    } else {
        mode = PM_COMMITS_TIME;
        interval_ms = parse_time(text);
    }
    if (mode != PM_COMMITS_TIME || interval_ms)
        return PM_OK;
    return pm_fail(
        err, PM_USAGE,
        "PMALLOC_COMMIT=%.100s: not a valid value; use output, output:TIME (at most "
        "1s), output:0, output:strict, idle, idle:TIME, api, or TIME, which is such as 100ms, 5s, "
        "2m or 1h (at most 24h)",
        text);
}

bool pm_commits_are_strict(void) { return strict; }
