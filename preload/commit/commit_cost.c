// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "commit_cost.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/message.h"
#include "base/os.h"
#include "media/commit/commit.h"
#include "media/heap.h"
#include "media/journal/pauses.h"
#include "threads/commit_gate.h"
#include "threads/tasks.h"

// Changed with the commit lock; read at any time.
static struct { _Atomic uint64_t made, pages, took; } cost;
static struct pm_pauses pauses;

static void add(_Atomic uint64_t *to, uint64_t more) {
    atomic_fetch_add_explicit(to, more, memory_order_relaxed);
}

static uint64_t get(_Atomic uint64_t *from) {
    return atomic_load_explicit(from, memory_order_relaxed);
}

static void add_word(uint64_t *to, uint64_t more) {
    __atomic_fetch_add(to, more, __ATOMIC_RELAXED);
}

void pm_commit_was_held(uint64_t ns, const struct pm_commit_cost *of) {
    pm_pauses_add(&pauses, ns);
    add_word(&pauses.instant, of->pages - of->before);
    add(&cost.pages, of->pages);
}

void pm_commit_round_was(unsigned round, uint64_t pages) { add_word(&pauses.round[round], pages); }

void pm_commit_has_failed(void) { add_word(&pauses.failed, 1); }

void pm_commit_was_made(uint64_t since) {
    add(&cost.made, 1);
    add(&cost.took, pm_os_now_ns() - since);
}

// At which instants commits were taken, and which thread was not between operations at the last of
// the others.
static _Atomic uint64_t rungs[PM_RUNGS];
static struct pm_gate_passed last_any;
static char last_name[32];
static struct pm_instants told; // as the journal has them

// It is read again only for another thread: that costs calls.
static void note_any(const struct pm_gate_passed *passed) {
    bool gone, other = passed->thread != last_any.thread;
    if (!passed->thread && last_any.thread)
        return;
    last_any = *passed;
    if (other && !(passed->thread &&
                   pm_task_read(passed->thread, "comm", last_name, sizeof last_name, &gone)))
        *last_name = '\0';
    last_name[strcspn(last_name, "\n")] = '\0';
    told.time = pm_commit_clock();
    told.lock = passed->lock;
    told.thread = (uint32_t)passed->thread;
    memcpy(told.name, last_name, sizeof told.name);
}

void pm_commit_passed(const struct pm_gate_passed *passed) {
    add(&rungs[passed->rung], 1);
    if (passed->rung == PM_RUNG_ANY)
        note_any(passed);
    told.between = get(&rungs[PM_RUNG_BETWEEN]);
    told.waited = get(&rungs[PM_RUNG_WAITED]);
    told.any = get(&rungs[PM_RUNG_ANY]);
    told.unseen = passed->counted ? passed->unseen : told.unseen;
    pm_commit_instants(&told, &pauses);
}

// An address of the program as the tools name it.
static void name_of(uintptr_t at, char *text, size_t len) {
    Dl_info info;
    const char *file;
    if (pm_heap_offset((void *)at) < pm_range)
        snprintf(text, len, "%s+0x%lx", pm_heap.dir, (unsigned long)pm_heap_offset((void *)at));
    else if (dladdr((void *)at, &info) && info.dli_fname)
        snprintf(text, len, "%s+0x%lx",
                 (file = strrchr(info.dli_fname, '/')) ? file + 1 : info.dli_fname,
                 (unsigned long)(at - (uintptr_t)info.dli_fbase));
    else
        snprintf(text, len, "0x%lx", (unsigned long)at);
}

static void say_rungs(void) {
    char who[128] = "", lock[sizeof pm_heap.dir + 32] = "";
    if (last_any.lock)
        name_of(last_any.lock, lock, sizeof lock);
    if (last_any.thread)
        snprintf(who, sizeof who, "; thread %d (%s) %s", (int)last_any.thread, last_name,
                 last_any.lock ? "holds the lock at " : "runs, and never took a lock that is seen");
    pm_event(
        PM_EV_STATS,
        "stats: instants of commits: %lu between operations, %lu after a wait for threads that "
        "never took a lock, %lu others%s%s",
        (unsigned long)get(&rungs[PM_RUNG_BETWEEN]), (unsigned long)get(&rungs[PM_RUNG_WAITED]),
        (unsigned long)get(&rungs[PM_RUNG_ANY]), who, lock);
}

static uint64_t read_word(const uint64_t *from) { return __atomic_load_n(from, __ATOMIC_RELAXED); }

static void say_pauses(void) {
    pm_event(PM_EV_STATS,
             "stats: threads stood still for commits: half of the times for at most %lu "
             "microseconds, 99 of 100 for at most %lu; pages found meanwhile %lu, in a first round "
             "%lu, in later ones %lu, %lu, %lu",
             (unsigned long)(pm_pauses_at_most(&pauses, 50) / 1000),
             (unsigned long)(pm_pauses_at_most(&pauses, 99) / 1000),
             (unsigned long)read_word(&pauses.instant), (unsigned long)read_word(&pauses.round[0]),
             (unsigned long)read_word(&pauses.round[1]), (unsigned long)read_word(&pauses.round[2]),
             (unsigned long)read_word(&pauses.round[3]));
}

void pm_commit_cost_say(void) {
    uint64_t made = get(&cost.made), holds = pm_pauses_count(&pauses);
    if (made == 0 || holds == 0)
        return;
    pm_event(
        PM_EV_STATS,
        "stats: commits: %lu of %lu pages in all, %lu of them before the instant; microseconds: "
        "%lu for one, %lu of them with the threads held, at most %lu",
        (unsigned long)made, (unsigned long)get(&cost.pages),
        (unsigned long)pm_pauses_in_rounds(&pauses), (unsigned long)(get(&cost.took) / made / 1000),
        (unsigned long)(read_word(&pauses.held_ns) / holds / 1000),
        (unsigned long)(read_word(&pauses.longest_ns) / 1000));
    say_pauses();
    say_rungs();
}
