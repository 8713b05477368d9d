// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "commit_gate.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/lock.h"
#include "base/options.h"
#include "base/os.h"
#include "calls.h"
#include "hold.h"
#include "roll.h"
#include "sections.h"
#include "tasks.h"

#define STRICT 1000      // times the patience of others, where no other instant is taken
#define STARVED_MS 1000  // the same where a thread in a section gets no processor
#define FORGET 200       // a thread that was waited for in vain gets its patience back
#define HOLDS_MOST 16    // threads that wait in line for a lock enter one after the other
#define SLEEP_NS 1000000 // patience with a section that sleeps, and not for a time
#define AJAR_NS 1000000
#define FIRST_NAP_NS 100000 // a section that rings ends it
#define LONGEST_NAP_NS 1000000

// ---- the threads that are looked at -------------------------------------------------------------

// What is known of a thread, by its id; of the committer alone.
struct seen {
    uint64_t used;      // how long it had run at the last look
    uint64_t missed_at; // milliseconds; when it was first waited for in vain
    uint64_t sections;  // of its record
    uint64_t slept;     // the same, of a section in which it slept in a call and was not waited for
    uint8_t misses;
    bool met; // it is waited for
};
static struct seen *seen;
// All threads at the last hold.
static pid_t *watched;
static size_t watched_count;

static bool have_memory(void) {
    if (!seen)
        seen = pm_os_reserve(PM_TASKS * sizeof *seen);
    if (!watched)
        watched = pm_os_reserve(PM_TASKS * sizeof *watched);
    return seen && watched;
}

enum place {
    OUTSIDE,
    INSIDE,  // in a section
    UNKNOWN, // never took a lock that is seen, and is in no call
};

static enum place place_of(pid_t id, const struct pm_call_record *of) {
    uint64_t sections = atomic_load_explicit(&of->sections, memory_order_relaxed);
    if (atomic_load_explicit(&of->answers, memory_order_relaxed))
        return OUTSIDE;
    if (sections)
        return pm_sections_inside(id, of) ? INSIDE : OUTSIDE;
    return atomic_load(&of->call) ? OUTSIDE : UNKNOWN;
}

// Nanoseconds, of the clock of pm_commit_clock().
static uint64_t clock_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

// Whether nobody waits for a thread in a section: it sleeps in it, or stays in it.
static bool is_let_be(pid_t id, const struct pm_call_record *of, uint64_t sections, bool strict) {
    return (atomic_load(&of->call) && seen[id].slept == sections) ||
           (!strict && pm_sections_excused(id, sections));
}

static uint64_t now_ms(void) { return clock_now() / 1000000; }

// Nanoseconds. `strict` takes no account of what was in vain.
static uint64_t patience_for(pid_t id, bool strict) {
    struct seen *s = &seen[id];
    uint64_t patience = pm_options.commit_patience.number * 1000000;
    if (strict)
        return patience * STRICT;
    if (s->misses && now_ms() - s->missed_at > FORGET * pm_options.commit_patience.number)
        s->misses = 0;
    return patience >> 2 * s->misses;
}

static void missed(pid_t id) {
    struct seen *s = &seen[id];
    if (!s->misses)
        s->missed_at = now_ms();
    s->misses += s->misses < 20;
}

// ---- before the hold ----------------------------------------------------------------------------

struct wait {
    bool strict;
    bool unknown;          // one that never took a lock was waited for
    uint64_t spent, since; // nanoseconds
    long nap;
};

struct found {
    unsigned inside;  // threads that are waited for
    unsigned asleep;  // of these
    unsigned in_call; // of these, in a call
    unsigned naps;    // of these, in one that ends by itself
    uint64_t ran;     // what one of them has run since the last look
    uint64_t patience;
};

// Whether it sleeps in the kernel. One that waits for a processor, or for a page, does not.
static bool sleeps(pid_t id) {
    char text[512];
    bool gone;
    if (!pm_task_read(id, "stat", text, sizeof text, &gone))
        return gone;
    const char *at = strrchr(text, ')');
    return !at || !at[1] || at[2] == 'S';
}

// The call lies on the stack of the thread.
static bool naps(pid_t id, const struct pm_call *call) {
    bool does = false, gone;
    return pm_task_peek(id, &call->naps, &does, sizeof does, &gone) && does;
}

static void look_at(pid_t id, struct wait *w, struct found *found) {
    const struct pm_call_record *of = pm_calls_of(id);
    struct seen *s = &seen[id];
    enum place place = place_of(id, of);
    uint64_t sections = atomic_load_explicit(&of->sections, memory_order_relaxed), patience, used;
    if (place == OUTSIDE || (place == INSIDE && is_let_be(id, of, sections, w->strict)) ||
        (patience = patience_for(id, w->strict)) == 0 || (used = pm_calls_used(id)) == 0) {
        if (s->met && place == OUTSIDE)
            s->misses = 0;
        s->met = false;
        return;
    }
    w->unknown |= place == UNKNOWN;
    uint64_t ran = s->met ? used - s->used : 0;
    const struct pm_call *call = atomic_load(&of->call);
    bool in_call = call != NULL;
    found->inside++;
    found->in_call += in_call;
    found->naps += in_call && naps(id, call);
    found->asleep += in_call || (s->met && ran == 0 && sleeps(id));
    if (ran > found->ran)
        found->ran = ran;
    if (patience > found->patience)
        found->patience = patience;
    s->used = used;
    s->sections = sections;
    s->met = true;
}

static struct found look(struct wait *w) {
    struct found found = {0};
    pid_t self = (pid_t)syscall(SYS_gettid);
    for (size_t i = 0; i < watched_count; i++)
        if (watched[i] != self)
            look_at(watched[i], w, &found);
    return found;
}

static void nap(struct wait *w, uint32_t bell) {
    const struct timespec pause = {0, w->nap};
    syscall(SYS_futex, &pm_sections_bell, FUTEX_WAIT_PRIVATE, bell, &pause, NULL, 0);
    if (w->nap < LONGEST_NAP_NS)
        w->nap *= 2;
}

static void set_gate(enum pm_gate_word to) {
    atomic_store(&pm_gate_word, to);
    if (to != PM_GATE_CLOSED && pm_sections_at_gate())
        pm_futex_wake(&pm_gate_word, INT_MAX);
}

// Whether one that is waited for has gone on since the last look.
static bool has_gone_on(void) {
    for (size_t i = 0; i < watched_count; i++) {
        const struct pm_call_record *of = pm_calls_of(watched[i]);
        if (seen[watched[i]].met &&
            atomic_load_explicit(&of->sections, memory_order_relaxed) != seen[watched[i]].sections)
            return true;
    }
    return false;
}

// All that are inside sleep: maybe for a thread at the gate. It may come back to the gate, or wait
// for this commit.
static void leave_ajar(struct wait *w, uint64_t patience) {
    uint64_t since = clock_now(), passed = 0;
    set_gate(PM_GATE_AJAR);
    w->nap = FIRST_NAP_NS;
    while (!has_gone_on() && w->spent + passed < patience && passed < AJAR_NS) {
        nap(w, atomic_load(&pm_sections_bell));
        passed = clock_now() - since;
    }
    w->spent += passed;
    w->nap = FIRST_NAP_NS;
    set_gate(PM_GATE_CLOSED);
}

static void give_up(void) {
    for (size_t i = 0; i < watched_count; i++) {
        pid_t id = watched[i];
        if (!seen[id].met)
            continue;
        missed(id);
        if (atomic_load(&pm_calls_of(id)->call))
            seen[id].slept = seen[id].sections;
        else if (pm_sections_depth(seen[id].sections))
            pm_sections_excuse(id, seen[id].sections);
        seen[id].met = false;
    }
}

static void let_sleepers_be(void) {
    for (size_t i = 0; i < watched_count; i++)
        if (seen[watched[i]].met && atomic_load(&pm_calls_of(watched[i])->call))
            seen[watched[i]].slept = seen[watched[i]].sections;
}

// Time counts in which one of them ran, or all slept. A section that waits for a lock which nobody
// inside holds waits for the thread that makes this commit. One that sleeps in a call may, too.
static bool is_over(struct wait *w, const struct found *found, uint64_t passed, bool again) {
    bool all_sleep = found->asleep == found->inside;
    w->spent += all_sleep || passed < found->ran ? passed : found->ran;
    bool nobody_helps = all_sleep && again && !pm_sections_at_gate();
    if (nobody_helps && !found->in_call && !w->strict)
        return true;
    if (nobody_helps && !found->naps && w->spent >= SLEEP_NS)
        let_sleepers_be();
    return w->spent >= found->patience ||
           clock_now() - w->since > ((uint64_t)STARVED_MS * 1000000 + found->patience);
}

// Returns when nobody is inside who is worth waiting for. False: patience was over.
static bool await(struct wait *w) {
    bool slept = false;
    uint64_t before = clock_now();
    for (;;) {
        uint32_t bell = atomic_load(&pm_sections_bell);
        pm_sections_listen(true);
        struct found found = look(w);
        uint64_t now = clock_now();
        if (!found.inside)
            return true;
        if (is_over(w, &found, now - before, slept))
            return false;
        before = now;
        slept = found.asleep == found.inside;
        if (slept && pm_sections_at_gate()) {
            leave_ajar(w, found.patience);
            before = clock_now();
        } else {
            nap(w, bell);
        }
    }
}

// ---- while all are held -------------------------------------------------------------------------

struct second {
    bool strict, over; // patience is over
    bool again;        // somebody is worth waiting for
    struct pm_gate_passed *passed;
};

static void note_any(struct second *s, pid_t id, uintptr_t lock) {
    if (s->passed->rung == PM_RUNG_ANY && (s->passed->lock || !lock))
        return;
    s->passed->rung = PM_RUNG_ANY;
    s->passed->thread = id;
    s->passed->lock = lock;
}

// A read from a file is no wait.
static bool waits(pid_t id) {
    struct stat st;
    int fd = pm_calls_reads(id);
    return pm_calls_waits(id) || (fd >= 0 && fstat(fd, &st) == 0 && !S_ISREG(st.st_mode));
}

static void look_again(pid_t id, void *arg) {
    struct second *s = arg;
    const struct pm_call_record *of = pm_calls_of(id);
    uint64_t sections = atomic_load_explicit(&of->sections, memory_order_relaxed);
    enum place place = place_of(id, of);
    watched[watched_count++] = id;
    if (place == OUTSIDE || pm_calls_says(id) || pm_task_is_dead(id))
        return;
    bool let_be = place == INSIDE && is_let_be(id, of, sections, s->strict);
    if (!s->over && !let_be && patience_for(id, s->strict))
        s->again = true;
    else if (place == UNKNOWN || !waits(id))
        note_any(s, id, place == INSIDE ? atomic_load(&of->lock) & ~PM_SECTION_SURE : 0);
}

// ---- hold and release ---------------------------------------------------------------------------

// Whether the instant is taken.
static bool look_while_held(struct wait *w, bool over, struct pm_gate_passed *passed) {
    struct second second = {w->strict, over, false, passed};
    passed->rung = w->unknown ? PM_RUNG_WAITED : PM_RUNG_BETWEEN;
    watched_count = 0;
    pm_roll_each(look_again, &second);
    return !second.again && !(w->strict && passed->rung == PM_RUNG_ANY);
}

static enum pm_gate_result hold_between(uint64_t timeout_ms, bool strict,
                                        struct pm_gate_passed *passed) {
    struct wait wait = {.strict = strict, .since = clock_now(), .nap = FIRST_NAP_NS};
    bool over = false;
    for (unsigned holds = 1;; holds++) {
        over = over || !await(&wait);
        if (over)
            give_up();
        if (over && strict)
            return PM_GATE_INSIDE;
        passed->held_since = clock_now();
        if (!pm_hold_all(timeout_ms))
            return PM_GATE_NOT_STILL;
        if (look_while_held(&wait, over, passed))
            return PM_GATE_HELD;
        pm_release_all();
        over = !strict && holds == HOLDS_MOST;
    }
}

static bool is_ready(void) {
    return pm_sections_counted() && have_memory() && pm_options.commit_patience.number;
}

void pm_gate_open(void) {
    if (pm_sections_counted())
        set_gate(PM_GATE_OPEN);
}

enum pm_gate_result pm_gate_hold(uint64_t timeout_ms, bool strict, struct pm_gate_passed *passed) {
    *passed = (struct pm_gate_passed){.rung = PM_RUNG_ANY};
    if (!is_ready()) {
        passed->held_since = clock_now();
        return pm_hold_all(timeout_ms) ? PM_GATE_HELD : PM_GATE_NOT_STILL;
    }
    set_gate(PM_GATE_CLOSED);
    enum pm_gate_result result = hold_between(timeout_ms, strict, passed);
    pm_sections_listen(false);
    if (result != PM_GATE_HELD)
        pm_gate_open();
    return result;
}

void pm_gate_release(void) {
    pm_release_all();
    pm_gate_open();
}

void pm_gate_shut(bool strict) {
    struct wait wait = {.strict = strict, .since = clock_now(), .nap = FIRST_NAP_NS};
    if (!is_ready())
        return;
    set_gate(PM_GATE_CLOSED);
    if (!await(&wait))
        give_up();
    pm_sections_listen(false);
}

static void find_inside(pid_t id, void *found) {
    const struct pm_call_record *of = pm_calls_of(id);
    watched[watched_count++] = id;
    *(bool *)found |= place_of(id, of) == INSIDE && !waits(id) && !pm_calls_says(id);
}

bool pm_gate_is_between(void) {
    bool found = false;
    watched_count = 0;
    return !is_ready() || !pm_roll_each(find_inside, &found) || !found;
}
