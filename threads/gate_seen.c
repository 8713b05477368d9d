// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "gate_seen.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>

#include "base/options.h"
#include "base/os.h"
#include "sections.h"
#include "tasks.h"

#define STRICT 200 // times the patience of others, where no other instant is taken
#define FORGET 200 // a thread that was waited for in vain gets its patience back

struct pm_gate_seen *pm_gate_seen;
pid_t *pm_gate_watched;
size_t pm_gate_watched_count;
uint32_t pm_gate_commit;

void pm_gate_watch(pid_t id, void *unused) {
    (void)unused;
    if (pm_gate_watched_count < PM_TASKS)
        pm_gate_watched[pm_gate_watched_count++] = id;
}

bool pm_gate_have_memory(void) {
    if (!pm_gate_seen)
        pm_gate_seen = pm_os_reserve(PM_TASKS * sizeof *pm_gate_seen);
    if (!pm_gate_watched)
        pm_gate_watched = pm_os_reserve(PM_TASKS * sizeof *pm_gate_watched);
    return pm_gate_seen && pm_gate_watched;
}

enum pm_gate_place pm_gate_place_of(pid_t id, const struct pm_call_record *of) {
    uint64_t sections = atomic_load_explicit(&of->sections, memory_order_relaxed);
    if (atomic_load_explicit(&of->answers, memory_order_relaxed))
        return PM_GATE_OUTSIDE;
    if (sections)
        return pm_sections_inside(id, of) ? PM_GATE_IN_SECTION : PM_GATE_OUTSIDE;
    return atomic_load(&of->call) ? PM_GATE_OUTSIDE : PM_GATE_UNKNOWN;
}

// It may sleep in a section that it never leaves, such as a server under the one lock of its
// extensions: each of its sleeps is an instant between operations then. So who sleeps is looked at
// as if nobody had lost patience with it.
static bool is_excused(pid_t id, const struct pm_call_record *of, uint64_t sections) {
    if (!pm_sections_excused(id, sections))
        return false;
    bool sleeps = atomic_load(&of->call) && pm_task_sleeps(id);
    if (sleeps)
        pm_sections_excuse(id, 0);
    return !sleeps;
}

bool pm_gate_is_let_be(pid_t id, const struct pm_call_record *of, uint64_t sections, bool strict) {
    return (atomic_load(&of->call) && pm_gate_seen[id].slept == sections) ||
           (!strict && is_excused(id, of, sections));
}

bool pm_gate_is_awaited(pid_t id, bool strict) {
    const struct pm_call_record *of = pm_calls_of(id);
    uint64_t sections = atomic_load_explicit(&of->sections, memory_order_relaxed);
    return pm_gate_place_of(id, of) == PM_GATE_IN_SECTION &&
           !pm_gate_is_let_be(id, of, sections, strict);
}

bool pm_gate_let_sleep(pid_t id) {
    bool sleeps = atomic_load(&pm_calls_of(id)->call) && pm_task_sleeps(id);
    if (sleeps)
        pm_gate_seen[id].slept = pm_gate_seen[id].sections;
    return sleeps;
}

void pm_gate_let_be(pid_t id, bool late) {
    bool sleeps = !late && pm_gate_let_sleep(id);
    if (!sleeps && pm_sections_depth(pm_gate_seen[id].sections))
        pm_sections_excuse(id, pm_gate_seen[id].sections);
}

uint64_t pm_gate_patience(pid_t id, bool strict) {
    struct pm_gate_seen *s = &pm_gate_seen[id];
    uint64_t patience = pm_options.commit_patience.number * 1000000;
    uint64_t spent = s->asleep && s->waited > s->spent ? s->waited : s->spent;
    if (s->misses && pm_os_now_ms() - s->missed_at > FORGET * pm_options.commit_patience.number)
        s->misses = 0;
    patience = strict ? patience * STRICT : patience >> 2 * s->misses;
    return s->commit != pm_gate_commit ? patience : patience > spent ? patience - spent : 0;
}

void pm_gate_missed(pid_t id) {
    struct pm_gate_seen *s = &pm_gate_seen[id];
    if (!s->misses)
        s->missed_at = pm_os_now_ms();
    s->misses += s->misses < 20;
}

// In a futex it may wait for a lock that is not seen.
bool pm_gate_waits_unrecorded(pid_t id) {
    char text[128];
    bool gone;
    return pm_task_read(id, "syscall", text, sizeof text, &gone) && text[0] >= '0' &&
           text[0] <= '9' && atol(text) != SYS_futex;
}

// The call lies on the stack of the thread.
bool pm_gate_naps(pid_t id, const struct pm_call *call) {
    bool does = false, gone;
    return pm_task_peek(id, &call->naps, &does, sizeof does, &gone) && does;
}
