// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "seen.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "roots/loaded_object.h"
#include "tools/common/program_status.h"
#include "tools/watch/door.h"

enum { CHILDREN = 64 };

static bool read_at(int memory, const volatile void *from, void *out, size_t len) {
    return pread(memory, out, len, (off_t)(uintptr_t)from) == (ssize_t)len;
}

// A program that is being executed may change at any step: what cannot be read is not there yet.
static void look(int memory, const struct pm_leaks_door *door, struct seen *out) {
    struct pm_start_seen start;
    bool late;
    if (!read_at(memory, door->start, &start, sizeof start) ||
        !read_at(memory, door->late, &late, sizeof late))
        return;
    static const enum seen_stage stages[] = {SEEN_BEGINS, SEEN_MARKS, SEEN_SWEEPS, SEEN_READY,
                                             SEEN_READY};
    if (start.stage >= sizeof stages / sizeof stages[0])
        return;
    *out = (struct seen){.stage = stages[start.stage],
                         .done = start.done,
                         .total = start.total,
                         .heap = start.stage == PM_START_OVER};
    if (out->stage == SEEN_READY && late)
        out->stage = SEEN_LATE;
}

static bool look_at(pid_t pid, struct seen *out) {
    struct pm_leaks_door door;
    struct pm_error ignored;
    *out = (struct seen){.stage = SEEN_NOTHING};
    int memory = program_memory(pid, O_RDONLY);
    if (memory < 0)
        return false;
    if (door_find(pid, &door, &ignored) == PM_OK)
        look(memory, &door, out);
    close(memory);
    return true;
}

static bool has_name(pid_t pid, const char *name) {
    char path[32], program[PATH_MAX];
    snprintf(path, sizeof path, "/proc/%d/exe", (int)pid);
    ssize_t length = readlink(path, program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    return fnmatch(name, pm_base_name(program), 0) == 0;
}

// The first that has the heap, or is named as the one that is to have it.
static bool look_behind(pid_t pid, const char *name, unsigned depth, struct seen *out) {
    char text[16 * CHILDREN];
    bool seen = look_at(pid, out);
    if (seen && (out->heap || has_name(pid, name)))
        return true;
    *out = (struct seen){.stage = SEEN_NOTHING};
    program_text(pid, pid, "children", text, sizeof text);
    for (char *at = text, *end; depth; at = end) {
        long child = strtol(at, &end, 10);
        if (end == at)
            break;
        struct seen its;
        look_behind((pid_t)child, name, depth - 1, &its);
        if (its.stage > out->stage)
            *out = its;
    }
    return seen;
}

bool seen_look(pid_t pid, const char *name, struct seen *out) {
    return *name ? look_behind(pid, name, 4, out) : look_at(pid, out);
}
