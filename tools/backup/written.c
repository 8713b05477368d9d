// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "written.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/pagemap_scan.h"
#include "base/store_record.h"
#include "tools/watch/remote_call.h"

// A process under seccomp might be killed for a call that it would not make.
static bool has_filter(pid_t pid) {
    char path[32], line[256];
    bool filter = true;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *in = fopen(path, "re");
    while (in && fgets(line, sizeof line, in))
        if (strncmp(line, "Seccomp:", 8) == 0)
            filter = atoi(line + 8) != 0;
    if (in)
        fclose(in);
    return filter;
}

static bool has_state(pid_t pid, char wanted) {
    char path[32], line[256], state = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *in = fopen(path, "re");
    while (in && !state && fgets(line, sizeof line, in))
        sscanf(line, "State:\t%c", &state);
    if (in)
        fclose(in);
    return state == wanted;
}

// The answer for this process says what the kernel can do.
static bool kernel_records(void) {
    int faults = (int)syscall(SYS_userfaultfd, PM_STORE_RECORD_FLAGS);
    bool good = faults >= 0 && pm_store_record_prepare(faults);
    if (faults >= 0)
        close(faults);
    return good;
}

bool written_open(struct written *w, pid_t pid) {
    char path[32];
    *w = (struct written){.faults = -1, .pagemap = -1};
    if (!kernel_records())
        w->why = "this kernel keeps no record of stores, Linux 6.7 or later does";
    else if (has_filter(pid))
        w->why = "it runs under seccomp, which might not allow a record of stores";
    else if (has_state(pid, 'T'))
        w->why = "it is stopped, so it could not ask for a record of stores";
    if (w->why)
        return false;
    snprintf(path, sizeof path, "/proc/%d/pagemap", (int)pid);
    w->faults = remote_userfaultfd(pid, PM_STORE_RECORD_FLAGS);
    w->pagemap = w->faults < 0 ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (w->pagemap >= 0 && pm_store_record_prepare(w->faults))
        return true;
    written_close(w);
    w->why = "none of its threads could ask for a record of stores";
    return false;
}

void written_close(struct written *w) {
    if (w->faults >= 0)
        close(w->faults);
    if (w->pagemap >= 0)
        close(w->pagemap);
    free(w->range);
    *w = (struct written){.faults = -1, .pagemap = -1};
}

// Ranges are put together where they meet, because the process may divide its mappings otherwise.
static bool is_watched(const struct written *w, uint64_t start, uint64_t end) {
    for (uint64_t i = 0; i < w->count; i++)
        if (w->range[i].start <= start && end <= w->range[i].end)
            return true;
    return false;
}

static bool note(struct written *w, uint64_t start, uint64_t end) {
    for (uint64_t i = 0; i < w->count; i++)
        if (w->range[i].end == start) {
            w->range[i].end = end;
            return true;
        }
    if (w->count == w->room) {
        uint64_t room = w->room ? w->room * 2 : 16;
        struct written_range *more = realloc(w->range, room * sizeof *more);
        if (!more)
            return false;
        w->range = more;
        w->room = room;
    }
    w->range[w->count++] = (struct written_range){start, end};
    return true;
}

bool written_watch(struct written *w, uint64_t start, uint64_t end) {
    if (w->faults < 0 || !pm_store_record_watch(w->faults, start, end - start))
        return false;
    return note(w, start, end) && written_look(w, start, end, NULL, NULL);
}

// Only what was registered by this process: another one's record must not be disturbed.
bool written_look(struct written *w, uint64_t start, uint64_t end, written_fn *fn, void *arg) {
    struct pm_pagemap_scan s = {.flags = PM_SCAN_PROTECT | PM_SCAN_MUST_WATCH,
                                .start = start,
                                .end = end,
                                .category_mask = PM_SCAN_WRITTEN,
                                .return_mask = PM_SCAN_WRITTEN};
    return w->faults >= 0 && is_watched(w, start, end) && pm_pagemap_scan(w->pagemap, &s, fn, arg);
}
