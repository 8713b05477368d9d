// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "door.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "tools/common/program_maps.h"
#include "tools/common/program_status.h"

struct search {
    int memory;
    struct pm_leaks_door door;
    bool found, served;
};

static void look_at(struct search *s, uint64_t at) {
    struct pm_leaks_door door;
    uint32_t phase = 0;
    if (pread(s->memory, &door, sizeof door, (off_t)at) != (ssize_t)sizeof door ||
        (uintptr_t)door.self != at)
        return;
    if (pread(s->memory, &phase, sizeof phase, (off_t)(uintptr_t)door.phase) != sizeof phase)
        phase = 0;
    if (s->found && (s->served || !phase))
        return;
    s->door = door;
    s->found = true;
    s->served = phase != 0;
}

// The data of a library or program. The door begins at a multiple of 8.
static void look_in(const struct program_map *m, void *arg) {
    static uint64_t word[8192];
    struct search *s = arg;
    if (!m->writable || !m->private || m->name[0] != '/')
        return;
    for (uint64_t at = m->start; at < m->end; at += sizeof word - sizeof word[0]) {
        uint64_t len = m->end - at < sizeof word ? m->end - at : sizeof word;
        ssize_t got = pread(s->memory, word, len, (off_t)at);
        for (ssize_t i = 0; i + 1 < got / (ssize_t)sizeof word[0]; i++)
            if (word[i] == PM_LEAKS_MAGIC_A && word[i + 1] == PM_LEAKS_MAGIC_B)
                look_at(s, at + (uint64_t)i * sizeof word[0]);
        if (got < (ssize_t)len)
            return;
    }
}

int door_find(pid_t pid, struct pm_leaks_door *door, struct pm_error *err) {
    struct search s = {.memory = program_memory(pid, O_RDONLY)};
    if (s.memory < 0 || !program_maps_each(pid, look_in, &s)) {
        int error = errno;
        if (s.memory >= 0)
            close(s.memory);
        return pm_fail(err, PM_OPERATIONAL, "process %d cannot be looked at: %s", (int)pid,
                       pm_strerror(error));
    }
    close(s.memory);
    *door = s.door;
    if (!s.found)
        return pm_fail(err, PM_OPERATIONAL,
                       "process %d does not run under PMAlloc, or under a build without this "
                       "report",
                       (int)pid);
    if (s.door.layout != PM_LEAKS_LAYOUT)
        return pm_fail(err, PM_OPERATIONAL,
                       "process %d runs under another build of PMAlloc; use the %s of that build",
                       (int)pid, pm_message_prefix);
    return PM_OK;
}
