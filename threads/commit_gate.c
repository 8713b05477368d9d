// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "commit_gate.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
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

#define STRICT 200       // times the patience of others, where no other instant is taken
#define LATE_MS 1000     // where no patience is spent, as by a thread without a processor
#define LATE_MOST 4      // commits in a row that are not made because of it
#define FORGET 200       // a thread that was waited for in vain gets its patience back
#define HOLDS_MOST 64    // threads that wait in line for a lock enter one after the other
#define SLEEP_NS 1000000 // patience with a section that sleeps, and not for a time
#define AJAR_NS 1000000
#define RENEWALS 4
#define HELPS_NS 5000000    // one that runs so long does not do what another one waits for
#define LIST_NS 500000      // of such sleep, until the threads are listed anew
#define FIRST_NAP_NS 100000 // a section that rings ends it
#define LONGEST_NAP_NS 1000000
#define PASSED_MOST_NS 2000000 // counted of one nap
#define GIVEN_UP (UINT64_MAX / 2)

// ---- the threads that are looked at -------------------------------------------------------------

// What is known of a thread, by its id; of the committer alone.
struct seen {
    uint64_t used;      // how long it had run at the last look
    uint64_t spent;     // of the patience with it in this commit
    uint64_t waited;    // the same, as long as it sleeps for another thread
    uint64_t missed_at; // milliseconds; when it was first waited for in vain
    uint64_t sections;  // of its record
    uint64_t slept;     // the same, of a section in which it slept in a call and was not waited for
    uint32_t commit;    // in which it was waited for last
    uint32_t left;      // the commit in which it was waited for, and left its section
    uint8_t leaves;     // how often in that one
    uint32_t starves;   // the commit in which it was found outside of sections, without a processor
    uint64_t starved;   // how long it had run then
    uint8_t misses;
    bool met;    // it is waited for
    bool asleep; // it waits for another thread: in line for a lock, or in a call, but for no time
};
static struct seen *seen;
// All threads at the last hold, but for the one that made it.
static pid_t *watched;
static size_t watched_count;
static pid_t holder;
static uint32_t commit, late_in_row; // the number of this one; those late, up to the last one

static void watch(pid_t id, void *unused) {
    (void)unused;
    if (watched_count < PM_TASKS)
        watched[watched_count++] = id;
}

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

// Whether nobody waits for a thread in a section: it sleeps in it, or stays in it.
static bool is_let_be(pid_t id, const struct pm_call_record *of, uint64_t sections, bool strict) {
    return (atomic_load(&of->call) && seen[id].slept == sections) ||
           (!strict && pm_sections_excused(id, sections));
}

// Nanoseconds. `strict` takes no account of what was in vain.
static uint64_t patience_for(pid_t id, bool strict) {
    struct seen *s = &seen[id];
    uint64_t patience = pm_options.commit_patience.number * 1000000;
    uint64_t spent = s->asleep && s->waited > s->spent ? s->waited : s->spent;
    if (s->misses && pm_os_now_ms() - s->missed_at > FORGET * pm_options.commit_patience.number)
        s->misses = 0;
    patience = strict ? patience * STRICT : patience >> 2 * s->misses;
    return s->commit != commit ? patience : patience > spent ? patience - spent : 0;
}

static void missed(pid_t id) {
    struct seen *s = &seen[id];
    if (!s->misses)
        s->missed_at = pm_os_now_ms();
    s->misses += s->misses < 20;
}

// ---- before the hold ----------------------------------------------------------------------------

struct wait {
    bool strict;
    bool unknown;         // one that never took a lock was waited for
    bool listed;          // nobody is missing in the list since the hold before this
    bool late;            // it was over for want of a processor, or the like
    uint64_t since, last; // nanoseconds: the first look, and the last one
    long nap;
};

static void list(struct wait *w) {
    size_t count = watched_count;
    watched_count = 0;
    if (!pm_tasks_each_other(watch, NULL))
        watched_count = count;
    w->listed = true;
}

struct found {
    unsigned inside;    // threads that are waited for
    unsigned in_call;   // of these, asleep in a call
    unsigned naps;      // of these, in one that ends by itself
    unsigned in_line;   // asleep in no call: they wait for a lock
    unsigned exhausted; // patience with them is over
    bool left;          // one of them has left its section
    uint64_t passed;    // since the last look
    uint64_t ran;       // of it, those for whom another one may wait
};

// Whether a thread that never took a lock sleeps in a call that is not recorded: in libc (getchar),
// or by an instruction of the program's. In a futex it may wait for a lock that is not seen.
static bool waits_unrecorded(pid_t id) {
    char text[128];
    bool gone;
    return pm_task_read(id, "syscall", text, sizeof text, &gone) && text[0] >= '0' &&
           text[0] <= '9' && atol(text) != SYS_futex;
}

// The call lies on the stack of the thread.
static bool naps(pid_t id, const struct pm_call *call) {
    bool does = false, gone;
    return pm_task_peek(id, &call->naps, &does, sizeof does, &gone) && does;
}

// What a thread that is waited for has done since the last look: to run, or to sleep in a call,
// costs patience.
static void spend(pid_t id, const struct pm_call *call, uint64_t used, struct found *found) {
    struct seen *s = &seen[id];
    uint64_t ran = s->met ? used - s->used : 0;
    if (s->commit != commit)
        s->spent = s->waited = 0;
    s->commit = commit;
    // A call may be over, and its thread without a processor.
    bool asleep = (call || s->met) && ran == 0 && pm_task_sleeps(id);
    call = asleep ? call : NULL;
    bool dozes = call && naps(id, call);
    s->asleep = asleep && !dozes;
    s->spent += !s->met ? 0 : dozes ? found->passed : ran;
    s->used = used;
    s->met = true;
    found->in_call += call != NULL;
    found->naps += dozes;
    found->in_line += s->asleep && !call;
}

static void note_left(struct seen *s, uint64_t sections, struct found *found) {
    if (!s->met || !pm_sections_depth(s->sections) ||
        (pm_sections_depth(sections) &&
         pm_sections_number(sections) == pm_sections_number(s->sections)))
        return;
    s->leaves = s->left == commit ? s->leaves + (s->leaves < RENEWALS) : 0;
    s->left = commit;
    found->left |= s->leaves < RENEWALS;
}

static void look_at(pid_t id, struct wait *w, struct found *found) {
    const struct pm_call_record *of = pm_calls_of(id);
    struct seen *s = &seen[id];
    enum place place = place_of(id, of);
    uint64_t sections = atomic_load_explicit(&of->sections, memory_order_relaxed), used = 0;
    note_left(s, sections, found);
    if (place == OUTSIDE || (place == INSIDE && is_let_be(id, of, sections, w->strict)) ||
        (used = pm_calls_used(id)) == 0) {
        s->misses = s->met && place == OUTSIDE ? 0 : s->misses;
        s->met = s->asleep = false;
        return;
    }
    s->sections = sections;
    spend(id, atomic_load(&of->call), used, found);
    if (place == UNKNOWN && s->asleep && waits_unrecorded(id)) {
        w->unknown = true;
        found->in_line--;
        s->met = s->asleep = false;
        return;
    }
    if (!patience_for(id, w->strict)) {
        found->exhausted++;
        return;
    }
    w->unknown |= place == UNKNOWN;
    found->inside++;
}

// A thread that sleeps may wait for one that has found no processor: for a lock of another one in a
// section, or of one whose locks are not seen; for one that was let through the gate. Returns how
// long it has run, at least or at most, as nobody says which one it is; UINT64_MAX: all sleep.
static uint64_t helpers_ran(void) {
    pid_t self = pm_calls_self();
    uint64_t least = UINT64_MAX, most = 0;
    bool unknown = false;
    for (size_t i = 0; i < watched_count; i++) {
        pid_t id = watched[i];
        struct seen *s = &seen[id];
        const struct pm_call_record *of = pm_calls_of(id);
        bool in_call = atomic_load(&of->call); // or on its way out
        if (id == self || s->asleep || atomic_load(&of->answers) || (in_call && pm_task_sleeps(id)))
            continue;
        uint64_t used = pm_calls_used(id), ran = used > s->used ? used - s->used : 0;
        if (!used || (!ran && !in_call && pm_task_sleeps(id)))
            continue;
        if (!s->met)
            s->used = used;
        bool inside = place_of(id, of) == INSIDE;
        least = inside && ran < least ? ran : least;
        most = ran > most ? ran : most;
        unknown |= !inside;
    }
    return least == UINT64_MAX && unknown ? most : least;
}

static void spend_asleep(struct found *found) {
    uint64_t ran = helpers_ran();
    found->ran = ran < found->passed ? ran : found->passed;
    for (size_t i = 0; i < watched_count; i++)
        if (seen[watched[i]].met && seen[watched[i]].asleep)
            seen[watched[i]].waited += found->ran;
}

// Others may have run in vain as long as that one had no processor: they try to lock what it has
// held, again and again. Patience has an end, as a thread counts a few times in a commit.
static void renew_patience(struct found *found) {
    for (size_t i = 0; i < watched_count; i++) {
        struct seen *s = &seen[watched[i]];
        if (s->met && pm_sections_depth(s->sections) && s->spent < GIVEN_UP)
            s->spent = s->waited = 0;
    }
    found->inside += found->exhausted;
    found->exhausted = 0;
}

static struct found look(struct wait *w) {
    uint64_t now = pm_os_now_ns(), passed = now - w->last;
    // This thread may have found no processor either.
    struct found found = {.passed = passed < PASSED_MOST_NS ? passed : PASSED_MOST_NS};
    pid_t self = pm_calls_self();
    w->last = now;
    for (size_t i = 0; i < watched_count; i++)
        if (watched[i] != self)
            look_at(watched[i], w, &found);
    found.ran = found.passed;
    if (found.in_line + found.in_call > found.naps)
        spend_asleep(&found);
    if (found.left)
        renew_patience(&found);
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

// One that is inside sleeps: maybe for a thread at the gate. It may come back to the gate, or wait
// for this commit. Who is at the gate now passes it also after it is closed again.
static void leave_ajar(struct wait *w) {
    uint64_t since = pm_os_now_ns();
    pm_sections_let_through();
    set_gate(PM_GATE_AJAR);
    w->nap = FIRST_NAP_NS;
    while (!has_gone_on() && pm_os_now_ns() - since < AJAR_NS)
        nap(w, atomic_load(&pm_sections_bell));
    w->nap = FIRST_NAP_NS;
    set_gate(PM_GATE_CLOSED);
}

// A thread that has just got a lock is not counted until it has found a processor; nor does one do
// what a sleeper waits for. Whether there may be one: it does not sleep, and has hardly run since
// it was looked at first, or slept.
static bool one_starves(void) {
    pid_t self = pm_calls_self();
    bool found = false;
    for (size_t i = 0; i < watched_count; i++) {
        struct seen *s = &seen[watched[i]];
        uint64_t used = s->met || watched[i] == self ? 0 : pm_calls_used(watched[i]);
        bool asleep = used && pm_task_sleeps(watched[i]);
        if (asleep)
            s->starves = 0;
        if (!used || asleep || (s->starves == commit && used > s->starved + HELPS_NS))
            continue;
        if (s->starves != commit)
            s->starved = used;
        s->starves = commit;
        found = true;
    }
    return found;
}

static void let_be(pid_t id) {
    if (atomic_load(&pm_calls_of(id)->call) && pm_task_sleeps(id))
        seen[id].slept = seen[id].sections;
    else if (pm_sections_depth(seen[id].sections))
        pm_sections_excuse(id, seen[id].sections);
}

// Those with whom patience is over, or all.
static void give_up(const struct wait *w, bool all) {
    for (size_t i = 0; i < watched_count; i++) {
        pid_t id = watched[i];
        struct seen *s = &seen[id];
        if (!s->met || !(all || patience_for(id, w->strict) == 0))
            continue;
        missed(id);
        let_be(id);
        // One that slept in its section and has woken when all are held is waited for anew.
        s->spent = s->sections && s->slept == s->sections ? 0 : GIVEN_UP;
        s->waited = 0;
        s->met = false;
    }
}

static void let_sleepers_be(void) {
    for (size_t i = 0; i < watched_count; i++)
        if (seen[watched[i]].met && atomic_load(&pm_calls_of(watched[i])->call))
            let_be(watched[i]);
}

// All that are inside sleep, and nobody is at the gate. One that waits for a lock waits for the
// thread that makes this commit, if no other one is there to give it back. One that sleeps in a
// call may wait for that thread, too. True: there is nothing to wait for.
static bool nobody_helps(const struct found *found, const struct wait *w, uint64_t slept) {
    if (found->in_line && !found->in_call)
        return !w->strict && helpers_ran() == UINT64_MAX;
    if (!found->naps && slept >= SLEEP_NS && !one_starves())
        let_sleepers_be();
    return false;
}

// What all that are inside have done together since the last looks, in nanoseconds.
struct sleep {
    uint64_t all;  // how long all of them slept, and nobody for whom they may wait was kept waiting
    uint64_t some; // how long one of them slept in a call
    bool before;   // all slept at the last look, too
    bool listed;   // the threads were listed since then
    uint64_t list; // how long one of them slept since the threads were listed
};

static void note_sleep(struct sleep *s, const struct found *found) {
    bool all = found->inside && found->in_line + found->in_call >= found->inside;
    bool some = found->in_call > found->naps;
    s->before = all && s->all;
    s->listed = s->listed && s->before;
    s->all = all ? s->all + (found->ran ? found->ran : 1) : 0;
    s->some = some ? s->some + found->passed : 0;
    s->list = some ? s->list + found->passed : 0;
}

// A sleeper may wait for a thread that is younger than the list.
static void list_anew(struct wait *w, struct sleep *s) {
    if (s->list < LIST_NS)
        return;
    s->list = 0;
    s->listed = s->all;
    list(w);
}

// One that runs may wait, too: it tries to lock what a sleeper has.
static bool waits_for_gate(const struct sleep *s) {
    return pm_sections_at_gate() && (s->all || s->some >= SLEEP_NS);
}

// Whether the reason is that one which is waited for, by us or by a sleeper, finds no processor, or
// that a debugger has stopped it: it could not be held either. Another reason may be a disk.
static bool one_cannot_run(void) {
    bool sleeper = false, helper = false, gone;
    for (size_t i = 0; i < watched_count; i++) {
        struct seen *s = &seen[watched[i]];
        char state = watched[i] == pm_calls_self() ? 'S' : pm_task_state(watched[i], &gone);
        bool kept = state == 'R' || state == 't' || state == 'T';
        if (kept && s->met && patience_for(watched[i], false))
            return true;
        sleeper |= s->met && s->asleep;
        helper |= kept && !s->met;
    }
    return sleeper && helper;
}

enum awaited {
    AWAITED,          // nobody is inside who is worth waiting for
    AWAITED_IN_VAIN,  // patience with some is over
    AWAITED_TOO_LONG, // one that is waited for finds no processor
};

static enum awaited await(struct wait *w) {
    struct sleep sleep = {0};
    for (w->last = pm_os_now_ns();;) {
        uint32_t bell = atomic_load(&pm_sections_bell);
        pm_sections_listen(true);
        struct found found = look(w);
        bool late = w->last - w->since > (uint64_t)LATE_MS * 1000000 && !w->strict;
        if (!found.inside && !found.exhausted)
            return AWAITED;
        note_sleep(&sleep, &found);
        bool known = sleep.before && (sleep.listed || !found.in_call);
        bool helpless = known && !pm_sections_at_gate() && nobody_helps(&found, w, sleep.all);
        list_anew(w, &sleep);
        bool over = late || helpless || (!found.inside && !one_starves());
        if (over && w->listed) {
            w->late = late;
            if (late && late_in_row < LATE_MOST && one_cannot_run())
                return AWAITED_TOO_LONG;
            give_up(w, late || helpless);
            return AWAITED_IN_VAIN;
        }
        if (over)
            list(w);
        if (waits_for_gate(&sleep)) {
            leave_ajar(w);
            sleep.some = 0;
        } else
            nap(w, bell);
    }
}

// ---- while all are held -------------------------------------------------------------------------

struct second {
    const struct wait *wait;
    bool any;     // enough was tried
    bool unknown; // one that never took a lock waited
    bool again;   // somebody is worth waiting for
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
    watch(id, NULL);
    if (place == OUTSIDE || pm_calls_says(id) || pm_task_is_dead(id))
        return;
    if (place == UNKNOWN && atomic_load_explicit(&of->was_asleep, memory_order_relaxed)) {
        s->unknown = true;
        return;
    }
    bool left_alone = place == INSIDE && is_let_be(id, of, sections, s->wait->strict);
    if (!s->any && !left_alone && patience_for(id, s->wait->strict))
        s->again = true;
    else if (place == UNKNOWN || s->wait->late || !waits(id) || seen[id].slept != sections)
        note_any(s, id, place == INSIDE ? atomic_load(&of->lock) & ~PM_SECTION_SURE : 0);
}

// ---- hold and release ---------------------------------------------------------------------------

// Whether the instant is taken.
static bool look_while_held(struct wait *w, bool any, struct pm_gate_passed *passed) {
    struct second second = {.wait = w, .any = any, .passed = passed};
    passed->rung = PM_RUNG_BETWEEN;
    watched_count = 0;
    pm_roll_each(look_again, &second);
    if (passed->rung == PM_RUNG_BETWEEN && (w->unknown || second.unknown))
        passed->rung = PM_RUNG_WAITED;
    return !second.again && !(w->strict && passed->rung == PM_RUNG_ANY);
}

static enum pm_gate_result hold_between(uint64_t timeout_ms, bool strict,
                                        struct pm_gate_passed *passed) {
    struct wait wait = {.strict = strict, .since = pm_os_now_ns(), .nap = FIRST_NAP_NS};
    for (unsigned holds = 1;; holds++) {
        enum awaited awaited = await(&wait);
        late_in_row = awaited == AWAITED_TOO_LONG ? late_in_row + 1 : 0;
        if (late_in_row || (awaited == AWAITED_IN_VAIN && strict))
            return late_in_row ? PM_GATE_NOT_STILL : PM_GATE_INSIDE;
        passed->held_since = pm_os_now_ns();
        if (!pm_hold_all(timeout_ms))
            return PM_GATE_NOT_STILL;
        if (look_while_held(&wait, holds == HOLDS_MOST && !strict, passed))
            return PM_GATE_HELD;
        pm_release_all();
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
        passed->held_since = pm_os_now_ns();
        return pm_hold_all(timeout_ms) ? PM_GATE_HELD : PM_GATE_NOT_STILL;
    }
    commit++;
    if (holder && holder != pm_calls_self())
        watch(holder, NULL);
    holder = pm_calls_self();
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
    struct wait wait = {.strict = strict, .since = pm_os_now_ns(), .nap = FIRST_NAP_NS};
    if (!is_ready())
        return;
    commit++;
    set_gate(PM_GATE_CLOSED);
    list(&wait);
    (void)await(&wait);
    pm_sections_listen(false);
}

static void find_inside(pid_t id, void *found) {
    const struct pm_call_record *of = pm_calls_of(id);
    watch(id, NULL);
    uint64_t sections = atomic_load_explicit(&of->sections, memory_order_relaxed);
    bool let_be = waits(id) && seen[id].slept == sections;
    *(bool *)found |= place_of(id, of) == INSIDE && !let_be && !pm_calls_says(id);
}

bool pm_gate_is_between(void) {
    bool found = false;
    watched_count = 0;
    return !is_ready() || !pm_roll_each(find_inside, &found) || !found;
}
