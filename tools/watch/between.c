// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "between.h"

#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "door.h"
#include "patience.h"
#include "threads/sections.h"
#include "tools/common/program_status.h"
#include "tracee.h"

enum {
    FIRST_NS = 5000000,     // a thread that could run so long has left the section of before
    PATIENCE_NS = 20000000, // with each thread, in which it can run
    SLEEP_NS = 1000000,     // a thread that sleeps so long in a section waits
    HELPS_NS = 5000000,     // one that could run so long does not do what another one waits for
    AJAR_NS = 1000000,
    TURN_NS = 25000000, // for who is let through the gate, and may have no processor
    TURNS_MOST = 8,
    NAP_NS = 100000,
    HOLDS_MOST = 60
};
#define LONGEST_NS 2000000000u // of one approach

struct between_thread {
    pid_t id;
    bool awaited;          // in the last look
    bool left;             // it sleeps in this section, and nobody is there to wake it
    uint64_t sections;     // of its record
    uint64_t asleep_since; // in this section; 0: it runs
    uint64_t could_run;    // since locks are counted
    uint64_t chance;       // of it since the last look
    uint64_t awake;        // how long it could run since it was seen asleep, or in a section
    uint64_t spent;        // of the patience with it
    struct patience patience;
};

// ---- the memory of the process ------------------------------------------------------------------

static bool reads(const struct between *b, uint64_t at, void *to, size_t len) {
    struct iovec here = {to, len}, there = {(void *)at, len};
    return process_vm_readv(b->pid, &here, 1, &there, 1, 0) == (ssize_t)len;
}

static bool writes(const struct between *b, uint64_t at, const void *from, size_t len) {
    struct iovec here = {(void *)(uintptr_t)from, len}, there = {(void *)at, len};
    return process_vm_writev(b->pid, &here, 1, &there, 1, 0) == (ssize_t)len;
}

static uint32_t word_at(const struct between *b, const void *at) {
    uint32_t word = 0;
    reads(b, (uintptr_t)at, &word, sizeof word);
    return word;
}

static bool set_gate(const struct between *b, uint32_t to) {
    return writes(b, (uintptr_t)b->door.gate, &to, sizeof to);
}

// 0: nobody has counted yet.
static uint64_t record_at(const struct between *b, pid_t id) {
    uint64_t records = 0;
    reads(b, (uintptr_t)b->door.records, &records, sizeof records);
    return records ? records + (uint64_t)id * sizeof(struct pm_call_record) : 0;
}

// ---- what a thread does -------------------------------------------------------------------------

enum place {
    OUTSIDE,
    INSIDE,  // in a section
    UNKNOWN, // it has taken no lock since locks are counted
};

// A plain mutex is counted before the thread has it.
static bool owns(const struct between *b, pid_t id, uint64_t mutex) {
    uint32_t owner = 0;
    return b->door.owner < 0 || (reads(b, mutex + (uint64_t)b->door.owner, &owner, sizeof owner) &&
                                 owner == (uint32_t)id);
}

static enum place place_of(const struct between *b, pid_t id, uint64_t *sections) {
    uint64_t at = record_at(b, id), lock = 0;
    *sections = 0;
    if (!at || !reads(b, at + offsetof(struct pm_call_record, sections), sections, 8) || !*sections)
        return UNKNOWN;
    if (pm_sections_depth(*sections) != 1)
        return pm_sections_depth(*sections) ? INSIDE : OUTSIDE;
    reads(b, at + offsetof(struct pm_call_record, lock), &lock, sizeof lock);
    return lock & PM_SECTION_SURE || owns(b, id, lock) ? INSIDE : OUTSIDE;
}

// A thread that was just made, and has not run yet, is in the call that made it.
static bool makes_threads(long call) {
    return call == SYS_clone || call == 435; // clone3: older headers lack it
}

// In which system call it sleeps, or was halted just as it came from there; -1: in none. A thread
// that waits for a page or a disk does something.
static long call_of(const struct between *b, pid_t id, bool *asleep) {
    struct tracee_call call = {.number = -1};
    unsigned long flags;
    char state = program_state(b->pid, id, &flags);
    bool in_call = (state == 'S' || state == 't') && tracee_asleep(b->pid, id, &call);
    if (makes_threads(call.number))
        call.number = -1;
    *asleep = state == 'S' && in_call && call.number >= 0;
    return call.number;
}

static struct between_thread *known(struct between *b, pid_t id) {
    for (size_t i = 0; i < b->count; i++)
        if (b->thread[i].id == id)
            return &b->thread[i];
    if (b->count == b->room) {
        size_t room = b->room ? b->room * 2 : 64;
        struct between_thread *more = realloc(b->thread, room * sizeof *more);
        if (!more)
            return NULL;
        b->thread = more;
        b->room = room;
    }
    b->thread[b->count] = (struct between_thread){.id = id};
    return &b->thread[b->count++];
}

static bool sleeps_long(const struct between_thread *t) {
    return t->asleep_since && patience_now_ns() - t->asleep_since >= SLEEP_NS;
}

// Whether the thread is at something that a copy would have half done. One that sleeps in a futex
// may wait for a lock, of which another thread is to do the rest.
static bool is_amid(struct between *b, struct between_thread *t) {
    uint64_t sections;
    enum place place = place_of(b, t->id, &sections);
    bool asleep;
    long call = call_of(b, t->id, &asleep);
    if (sections != t->sections || !asleep) {
        t->asleep_since = 0;
        t->left = false;
    }
    if (asleep && !t->asleep_since)
        t->asleep_since = patience_now_ns();
    t->sections = sections;
    if (place == INSIDE)
        return !t->left;
    return place == UNKNOWN && (call < 0 || (call == SYS_futex && !sleeps_long(t)));
}

struct visit {
    struct between *b;
    void (*fn)(struct between *b, struct between_thread *t);
};

static bool visit(pid_t id, void *arg) {
    struct visit *v = arg;
    struct between_thread *t = known(v->b, id);
    if (t)
        v->fn(v->b, t);
    return true;
}

static void each_thread(struct between *b, void fn(struct between *, struct between_thread *)) {
    struct visit v = {b, fn};
    tracee_each(b->pid, visit, &v);
}

// ---- counting -----------------------------------------------------------------------------------

static void forget(struct between *b, struct between_thread *t) {
    uint64_t at = record_at(b, t->id), none = 0;
    if (at)
        writes(b, at + offsetof(struct pm_call_record, sections), &none, sizeof none);
}

// Counts of an earlier time say nothing: unlocks were not counted since. A tool that was killed may
// have left the gate in any state.
bool between_begin(struct between *b, pid_t pid) {
    struct pm_leaks_door door;
    struct pm_error ignored;
    *b = (struct between){.pid = pid};
    if (door_find(pid, &door, &ignored) != PM_OK || !door.sections ||
        !reads(b, (uintptr_t)door.sections, &b->door, sizeof b->door))
        return false;
    bool fresh = word_at(b, b->door.gate) == PM_GATE_NONE;
    if (fresh)
        each_thread(b, forget);
    b->counts = set_gate(b, fresh ? PM_GATE_ASKED : PM_GATE_OPEN);
    return b->counts;
}

void between_end(struct between *b) {
    if (b->counts)
        set_gate(b, PM_GATE_NONE);
    free(b->thread);
    b->thread = NULL;
    b->count = b->room = 0;
    b->counts = false;
}

// ---- the instant --------------------------------------------------------------------------------

static void look_at(struct between *b, struct between_thread *t) {
    bool before = t->awaited;
    uint64_t chance = patience_chance(&t->patience, b->pid, t->id);
    t->could_run += chance;
    t->chance = before ? chance : 0;
    bool amid = is_amid(b, t);
    t->awaited = amid && t->spent < PATIENCE_NS;
    t->awake = amid || t->asleep_since ? 0 : t->awake + chance;
    if (!amid && !t->asleep_since && t->awake < HELPS_NS) {
        b->helpers++;
        b->least = chance < b->least ? chance : b->least;
    }
    b->awaited += t->awaited;
    b->asleep += t->awaited && t->asleep_since;
    b->long_asleep += t->awaited && sleeps_long(t);
}

// One that sleeps waits for one that runs, maybe, or that is at the gate, and that may find no
// processor.
static void spend(struct between *b, struct between_thread *t) {
    uint64_t chance = t->asleep_since && b->least < t->chance ? b->least : t->chance;
    bool for_other = b->asleep != b->awaited || (b->at_gate && b->turns < TURNS_MOST);
    if (t->awaited && (!t->asleep_since || !for_other))
        t->spent += chance;
}

static void look(struct between *b) {
    b->awaited = b->asleep = b->long_asleep = b->helpers = 0;
    b->least = UINT64_MAX;
    b->at_gate = word_at(b, b->door.at_gate) != 0;
    each_thread(b, look_at);
    each_thread(b, spend);
}

static void leave(struct between *b, struct between_thread *t) {
    (void)b;
    t->left = t->awaited;
}

static void look_first(struct between *b, struct between_thread *t) {
    bool asleep;
    call_of(b, t->id, &asleep);
    t->chance = patience_chance(&t->patience, b->pid, t->id);
    t->asleep_since = asleep;
    b->least = !asleep && t->chance < b->least ? t->chance : b->least;
}

// One that sleeps may wait in its section for one that runs.
static void spend_first(struct between *b, struct between_thread *t) {
    t->could_run += t->asleep_since && b->least < t->chance ? b->least : t->chance;
    t->asleep_since = 0;
    b->awaited += t->could_run < FIRST_NS;
}

// The gate is open still: who has taken a lock before it was counted might wait there with it.
static void await_first(struct between *b) {
    uint64_t since = patience_now_ns();
    do {
        b->awaited = 0;
        b->least = UINT64_MAX;
        each_thread(b, look_first);
        each_thread(b, spend_first);
        if (b->awaited)
            tracee_nap(AJAR_NS);
    } while (b->awaited && patience_now_ns() - since < LONGEST_NS);
}

// A section that sleeps may wait for a thread at the gate. One that comes there later waits.
static void give_turn(struct between *b) {
    uint64_t since = patience_now_ns();
    uint32_t next = word_at(b, b->door.let_through) + 1;
    writes(b, (uintptr_t)b->door.let_through, &next, sizeof next);
    do
        tracee_nap(AJAR_NS);
    while (word_at(b, b->door.at_gate) != 0 && patience_now_ns() - since < TURN_NS);
    b->turns++;
}

void between_approach(struct between *b) {
    if (!b->counts)
        return;
    if (!b->holds)
        await_first(b);
    uint64_t since = patience_now_ns();
    b->turns = 0;
    set_gate(b, PM_GATE_CLOSED);
    for (look(b); b->awaited && patience_now_ns() - since < LONGEST_NS; look(b)) {
        if (b->asleep == b->awaited && b->at_gate) {
            give_turn(b);
        } else if (b->long_asleep == b->awaited && !b->helpers) {
            each_thread(b, leave);
        }
        tracee_nap(NAP_NS);
    }
}

static void look_halted(struct between *b, struct between_thread *t) {
    if (!is_amid(b, t))
        return;
    b->reached = b->reached && (t->spent >= PATIENCE_NS || b->holds >= HOLDS_MOST);
    b->amid = t->id;
}

bool between_reached(struct between *b) {
    b->amid = 0;
    b->reached = true;
    b->holds++;
    if (b->counts)
        each_thread(b, look_halted);
    return b->reached;
}

void between_leave(struct between *b) {
    if (b->counts)
        set_gate(b, PM_GATE_OPEN);
}
