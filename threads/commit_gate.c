// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "commit_gate.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/lock.h"
#include "base/options.h"
#include "base/os.h"
#include "calls.h"
#include "gate_seen.h"
#include "hold.h"
#include "roll.h"
#include "sections.h"
#include "tasks.h"

#define LATE_MS 1000     // where no patience is spent, as by a thread without a processor
#define LATE_MOST 4      // commits in a row that are not made because of it
#define LATE_LOOKS 20    // until then, after this thread itself has found no processor
#define GAP_NS 100000000 // for so long
#define HOLDS_MOST 64    // threads that wait in line for a lock enter one after the other
#define SLEEP_NS 1000000 // patience with a section that sleeps, and not for a time
#define AJAR_NS 1000000
#define RENEWALS 4
#define HELPS_NS 5000000    // one that runs so long does not do what another one waits for
#define LIST_NS 500000      // of such sleep, until the threads are listed anew
#define LISTS_MOST 20       // in a commit, because one fell asleep
#define FIRST_NAP_NS 100000 // a section that rings ends it
#define LONGEST_NAP_NS 1000000
#define PASSED_MOST_NS 2000000 // counted of one nap
#define GIVEN_UP (UINT64_MAX / 2)

static pid_t holder; // that made the last hold
static uint32_t late_in_row;

// ---- before the hold ----------------------------------------------------------------------------

struct wait {
    bool strict;
    bool tries;           // PM_GATE_TRIES, and it was not late so often that any instant will do
    bool unknown;         // one that never took a lock was waited for
    bool listed;          // nobody is missing in the list since the hold before this
    bool late;            // it was over for want of a processor, or the like
    uint64_t since, last; // nanoseconds: the first look, and the last one
    long nap;
    unsigned relisted;
    unsigned looks; // since the last gap
    unsigned gaps;
    unsigned turns; // how often patience was over, and the gate was left ajar
    unsigned rests; // looks at which it was late, and nobody lacked a processor
};

static void list(struct wait *w) {
    size_t count = pm_gate_watched_count;
    pm_gate_watched_count = 0;
    if (!pm_tasks_each_other(pm_gate_watch, NULL))
        pm_gate_watched_count = count;
    w->listed = true;
}

struct found {
    unsigned inside;    // threads that are waited for
    unsigned in_call;   // of these, asleep in a call
    unsigned naps;      // of these, in one that ends by itself
    unsigned in_line;   // asleep in no call: they wait for a lock
    unsigned exhausted; // patience with them is over
    bool left;          // one of them has left its section
    bool fell_asleep;   // one in its section did not sleep at the last look
    uint64_t passed;    // since the last look
    uint64_t ran;       // of it, those for whom another one may wait
};

// What a thread that is waited for has done since the last look: to run, or to sleep in a call,
// costs patience.
static void spend(pid_t id, const struct pm_call *call, uint64_t used, struct found *found) {
    struct pm_gate_seen *s = &pm_gate_seen[id];
    uint64_t ran = s->met ? used - s->used : 0;
    if (s->commit != pm_gate_commit)
        s->spent = s->waited = 0;
    s->commit = pm_gate_commit;
    // A call may be over, and its thread without a processor.
    bool asleep = (call || s->met) && ran == 0 && pm_task_sleeps(id);
    call = asleep ? call : NULL;
    bool dozes = call && pm_gate_naps(id, call);
    s->asleep = asleep && !dozes;
    s->spent += !s->met ? 0 : dozes ? found->passed : ran;
    s->used = used;
    s->met = true;
    found->in_call += call != NULL;
    found->naps += dozes;
    found->in_line += s->asleep && !call;
}

static void note_left(struct pm_gate_seen *s, uint64_t sections, struct found *found) {
    if (!s->met || !pm_sections_depth(s->sections) ||
        (pm_sections_depth(sections) &&
         pm_sections_number(sections) == pm_sections_number(s->sections)))
        return;
    s->leaves = s->left == pm_gate_commit ? s->leaves + (s->leaves < RENEWALS) : 0;
    s->left = pm_gate_commit;
    found->left |= s->leaves < RENEWALS;
}

static void look_at(pid_t id, struct wait *w, struct found *found) {
    const struct pm_call_record *of = pm_calls_of(id);
    struct pm_gate_seen *s = &pm_gate_seen[id];
    enum pm_gate_place place = pm_gate_place_of(id, of);
    uint64_t sections = atomic_load_explicit(&of->sections, memory_order_relaxed), used = 0;
    note_left(s, sections, found);
    if (place == PM_GATE_OUTSIDE ||
        (place == PM_GATE_IN_SECTION && pm_gate_is_let_be(id, of, sections, w->strict)) ||
        (used = pm_calls_used(id)) == 0) {
        s->misses = s->met && place == PM_GATE_OUTSIDE ? 0 : s->misses;
        s->met = s->asleep = false;
        return;
    }
    bool slept = s->met && s->asleep;
    s->sections = sections;
    spend(id, atomic_load(&of->call), used, found);
    found->fell_asleep |= place == PM_GATE_IN_SECTION && s->asleep && !slept;
    if (place == PM_GATE_UNKNOWN && s->asleep && pm_gate_waits_unrecorded(id)) {
        w->unknown = true;
        found->in_line--;
        s->met = s->asleep = false;
        return;
    }
    if (!pm_gate_patience(id, w->strict)) {
        found->exhausted++;
        return;
    }
    w->unknown |= place == PM_GATE_UNKNOWN;
    found->inside++;
}

// A thread that sleeps may wait for one that has found no processor: for a lock of another one in a
// section, or of one whose locks are not seen; for one that was let through the gate. Returns how
// long it has run, at least or at most, as nobody says which one it is; UINT64_MAX: all sleep.
static uint64_t helpers_ran(void) {
    pid_t self = pm_calls_self();
    uint64_t least = UINT64_MAX, most = 0;
    bool unknown = false;
    for (size_t i = 0; i < pm_gate_watched_count; i++) {
        pid_t id = pm_gate_watched[i];
        struct pm_gate_seen *s = &pm_gate_seen[id];
        const struct pm_call_record *of = pm_calls_of(id);
        bool in_call = atomic_load(&of->call); // or on its way out
        if (id == self || s->asleep || atomic_load(&of->answers) || (in_call && pm_task_sleeps(id)))
            continue;
        uint64_t used = pm_calls_used(id), ran = used > s->used ? used - s->used : 0;
        if (!used || (!ran && !in_call && pm_task_sleeps(id)))
            continue;
        if (!s->met)
            s->used = used;
        bool inside = pm_gate_place_of(id, of) == PM_GATE_IN_SECTION;
        least = inside && ran < least ? ran : least;
        most = ran > most ? ran : most;
        unknown |= !inside;
    }
    return least == UINT64_MAX && unknown ? most : least;
}

static void spend_asleep(struct found *found) {
    uint64_t ran = helpers_ran();
    found->ran = ran < found->passed ? ran : found->passed;
    for (size_t i = 0; i < pm_gate_watched_count; i++)
        if (pm_gate_seen[pm_gate_watched[i]].met && pm_gate_seen[pm_gate_watched[i]].asleep)
            pm_gate_seen[pm_gate_watched[i]].waited += found->ran;
}

// Others may have run in vain as long as that one had no processor: they try to lock what it has
// held, again and again. Patience has an end, as a thread counts a few times in a commit.
static void renew_patience(struct found *found) {
    for (size_t i = 0; i < pm_gate_watched_count; i++) {
        struct pm_gate_seen *s = &pm_gate_seen[pm_gate_watched[i]];
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
    w->looks = passed > GAP_NS && w->gaps++ < RENEWALS ? 0 : w->looks + 1;
    for (size_t i = 0; i < pm_gate_watched_count; i++)
        if (pm_gate_watched[i] != self)
            look_at(pm_gate_watched[i], w, &found);
    found.ran = found.passed;
    if (found.in_line + found.in_call > found.naps)
        spend_asleep(&found);
    if (found.left)
        renew_patience(&found);
    return found;
}

static void nap(struct wait *w, uint32_t bell) {
    const struct timespec pause = {0, w->nap};
    syscall(SYS_futex, &pm_sections_bell, FUTEX_WAIT_PRIVATE, bell, &pause, NULL, 0L);
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
    for (size_t i = 0; i < pm_gate_watched_count; i++) {
        const struct pm_call_record *of = pm_calls_of(pm_gate_watched[i]);
        if (pm_gate_seen[pm_gate_watched[i]].met &&
            atomic_load_explicit(&of->sections, memory_order_relaxed) !=
                pm_gate_seen[pm_gate_watched[i]].sections)
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
    for (size_t i = 0; i < pm_gate_watched_count; i++) {
        struct pm_gate_seen *s = &pm_gate_seen[pm_gate_watched[i]];
        uint64_t used =
            s->met || pm_gate_watched[i] == self ? 0 : pm_calls_used(pm_gate_watched[i]);
        bool asleep = used && pm_task_sleeps(pm_gate_watched[i]);
        if (asleep)
            s->starves = 0;
        if (!used || asleep || (s->starves == pm_gate_commit && used > s->starved + HELPS_NS))
            continue;
        if (s->starves != pm_gate_commit)
            s->starved = used;
        s->starves = pm_gate_commit;
        found = true;
    }
    return found;
}

// Those with whom patience is over, or all.
static void give_up(const struct wait *w, bool all) {
    for (size_t i = 0; i < pm_gate_watched_count; i++) {
        pid_t id = pm_gate_watched[i];
        struct pm_gate_seen *s = &pm_gate_seen[id];
        if (!s->met || !(all || pm_gate_patience(id, w->strict) == 0))
            continue;
        pm_gate_missed(id);
        pm_gate_let_be(id, w->late);
        // One that slept in its section and has woken when all are held is waited for anew.
        s->spent = s->sections && s->slept == s->sections ? 0 : GIVEN_UP;
        s->waited = 0;
        s->met = false;
    }
}

// The last one that helped may have woken a sleeper, come to the gate, or begun a section and slept
// there, before it was looked at.
static bool all_still_sleep(bool strict) {
    pid_t self = pm_calls_self();
    bool still = pm_sections_at_gate() == 0;
    for (size_t i = 0; still && i < pm_gate_watched_count; i++) {
        pid_t id = pm_gate_watched[i];
        still = id == self ||
                (pm_gate_seen[id].met ? pm_task_sleeps(id) : !pm_gate_is_awaited(id, strict));
    }
    return still;
}

static void let_sleepers_be(void) {
    for (size_t i = 0; i < pm_gate_watched_count; i++)
        if (pm_gate_seen[pm_gate_watched[i]].met)
            (void)pm_gate_let_sleep(pm_gate_watched[i]);
}

// All that are inside sleep, and nobody is at the gate. One that waits for a lock waits for the
// thread that makes this commit, if no other one is there to give it back. One that sleeps in a
// call may wait for that thread, too. True: there is nothing to wait for.
static bool nobody_helps(const struct found *found, const struct wait *w, uint64_t slept) {
    if (found->in_line && !found->in_call)
        return !w->strict && helpers_ran() == UINT64_MAX && all_still_sleep(w->strict);
    if (!found->naps && slept >= SLEEP_NS && !one_starves() && all_still_sleep(w->strict))
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
    unsigned met = found->inside + found->exhausted;
    bool all = found->inside && found->in_line + found->in_call >= met;
    bool some = found->in_call > found->naps;
    // One that falls asleep may have made a thread before that.
    s->before = all && s->all && !found->fell_asleep;
    s->listed = s->listed && s->before;
    s->all = all ? (s->before ? s->all : 0) + (found->ran ? found->ran : 1) : 0;
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
    for (size_t i = 0; i < pm_gate_watched_count; i++) {
        struct pm_gate_seen *s = &pm_gate_seen[pm_gate_watched[i]];
        char state =
            pm_gate_watched[i] == pm_calls_self() ? 'S' : pm_task_state(pm_gate_watched[i], &gone);
        bool kept = state == 'R' || state == 't' || state == 'T';
        if (kept && s->met && pm_gate_patience(pm_gate_watched[i], false))
            return true;
        sleeper |= s->met && s->asleep;
        helper |= kept && !s->met;
    }
    return sleeper && (helper || pm_sections_at_gate());
}

// One that found no processor until patience was over may have come to the gate, where it sleeps: a
// sleeper may wait for that one. A few times, as others come there, too.
static bool gives_turn(struct wait *w, const struct found *found) {
    bool sleeper = found->in_line + found->in_call > found->naps;
    return sleeper && pm_sections_at_gate() && w->turns++ < RENEWALS;
}

static bool is_late(const struct wait *w) {
    return !w->strict && w->looks >= LATE_LOOKS && w->last - w->since > (uint64_t)LATE_MS * 1000000;
}

// A single look may find all asleep, each of them woken in the next moment, or miss a thread that
// was just made.
static bool is_starved(struct wait *w) {
    if (late_in_row == LATE_MOST)
        return false;
    list(w);
    w->rests++;
    return one_cannot_run();
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
        bool late = is_late(w);
        if (!found.inside && !found.exhausted)
            return AWAITED;
        if (late && is_starved(w))
            return AWAITED_TOO_LONG;
        late = late && (late_in_row == LATE_MOST || w->rests >= LATE_LOOKS);
        note_sleep(&sleep, &found);
        if (found.fell_asleep && w->relisted++ < LISTS_MOST)
            w->listed = false;
        bool known = sleep.before && (sleep.listed || !found.in_call);
        bool helpless = known && !pm_sections_at_gate() && nobody_helps(&found, w, sleep.all);
        list_anew(w, &sleep);
        bool spent = !found.inside && !one_starves();
        bool turn = spent && gives_turn(w, &found);
        bool over = late || helpless || (spent && !turn);
        if (over && w->listed) {
            w->late = late;
            w->tries &= !late;
            give_up(w, late || helpless);
            return AWAITED_IN_VAIN;
        }
        if (over)
            list(w);
        if (turn || waits_for_gate(&sleep)) {
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
    bool first;   // a section of which there has been no instant yet; of unknown locks none ends
    struct pm_gate_passed *passed;
};

static void note_any(struct second *s, pid_t id, const struct pm_call_record *of, uintptr_t lock) {
    uint64_t sections = atomic_load_explicit(&of->sections, memory_order_relaxed);
    s->first |= sections && pm_gate_seen[id].amid != sections + 1;
    if (!s->wait->tries)
        pm_gate_seen[id].amid = sections + 1;
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
    enum pm_gate_place place = pm_gate_place_of(id, of);
    pm_gate_watch(id, NULL);
    s->passed->unseen += sections == 0;
    if (place == PM_GATE_OUTSIDE || pm_calls_says(id) || pm_task_is_dead(id))
        return;
    if (place == PM_GATE_UNKNOWN && atomic_load_explicit(&of->was_asleep, memory_order_relaxed)) {
        s->unknown = true;
        return;
    }
    bool left_alone =
        place == PM_GATE_IN_SECTION && pm_gate_is_let_be(id, of, sections, s->wait->strict);
    if (!s->any && !left_alone && pm_gate_patience(id, s->wait->strict))
        s->again = true;
    else if (place == PM_GATE_UNKNOWN || s->wait->late || !waits(id) ||
             pm_gate_seen[id].slept != sections)
        note_any(s, id, of,
                 place == PM_GATE_IN_SECTION ? atomic_load(&of->lock) & ~PM_SECTION_SURE : 0);
}

// ---- hold and release ---------------------------------------------------------------------------

enum instant { TAKEN, NOT_YET, REFUSED };

static enum instant look_while_held(struct wait *w, bool any, struct pm_gate_passed *passed) {
    struct second second = {.wait = w, .any = any, .passed = passed};
    pid_t self = pm_calls_self();
    bool own = self == (pid_t)atomic_load_explicit(&pm_os_own_thread, memory_order_acquire);
    passed->rung = PM_RUNG_BETWEEN;
    passed->counted = true;
    passed->unseen =
        !own && atomic_load_explicit(&pm_calls_of(self)->sections, memory_order_relaxed) == 0;
    pm_gate_watched_count = 0;
    pm_roll_each(look_again, &second);
    if (passed->rung == PM_RUNG_BETWEEN && (w->unknown || second.unknown))
        passed->rung = PM_RUNG_WAITED;
    if (second.again || (w->strict && passed->rung == PM_RUNG_ANY))
        return NOT_YET;
    return w->tries && passed->rung == PM_RUNG_ANY && second.first ? REFUSED : TAKEN;
}

static enum pm_gate_result hold_between(uint64_t timeout_ms, enum pm_gate_wish wish,
                                        struct pm_gate_passed *passed) {
    bool strict = wish == PM_GATE_STRICT;
    struct wait wait = {.strict = strict,
                        .tries = wish == PM_GATE_TRIES,
                        .since = pm_os_now_ns(),
                        .nap = FIRST_NAP_NS};
    for (unsigned holds = 1;; holds++) {
        enum awaited awaited = await(&wait);
        late_in_row += awaited == AWAITED_TOO_LONG;
        if (awaited == AWAITED_TOO_LONG || (awaited == AWAITED_IN_VAIN && strict))
            return awaited == AWAITED_TOO_LONG ? PM_GATE_NOT_STILL : PM_GATE_INSIDE;
        passed->held_since = pm_os_now_ns();
        if (!pm_hold_all(timeout_ms))
            return PM_GATE_NOT_STILL;
        enum instant instant = look_while_held(&wait, holds == HOLDS_MOST && !strict, passed);
        if (instant == TAKEN) {
            late_in_row = 0;
            return PM_GATE_HELD;
        }
        pm_release_all();
        if (instant == REFUSED)
            return PM_GATE_INSIDE;
    }
}

static bool is_ready(void) {
    return pm_sections_counted() && pm_gate_have_memory() && pm_options.commit_patience.number;
}

void pm_gate_open(void) {
    if (pm_sections_counted())
        set_gate(PM_GATE_OPEN);
}

enum pm_gate_result pm_gate_hold(uint64_t timeout_ms, enum pm_gate_wish wish,
                                 struct pm_gate_passed *passed) {
    *passed = (struct pm_gate_passed){.rung = PM_RUNG_ANY};
    if (!is_ready()) {
        passed->held_since = pm_os_now_ns();
        return pm_hold_all(timeout_ms) ? PM_GATE_HELD : PM_GATE_NOT_STILL;
    }
    pm_gate_commit++;
    pid_t own = (pid_t)atomic_load_explicit(&pm_os_own_thread, memory_order_acquire);
    if (holder && holder != pm_calls_self() && holder != own)
        pm_gate_watch(holder, NULL);
    holder = pm_calls_self();
    set_gate(PM_GATE_CLOSED);
    enum pm_gate_result result = hold_between(timeout_ms, wish, passed);
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
    pm_gate_commit++;
    set_gate(PM_GATE_CLOSED);
    list(&wait);
    (void)await(&wait);
    pm_sections_listen(false);
}

static void find_inside(pid_t id, void *found) {
    const struct pm_call_record *of = pm_calls_of(id);
    pm_gate_watch(id, NULL);
    uint64_t sections = atomic_load_explicit(&of->sections, memory_order_relaxed);
    bool let_be = waits(id) && pm_gate_seen[id].slept == sections;
    *(bool *)found |=
        pm_gate_place_of(id, of) == PM_GATE_IN_SECTION && !let_be && !pm_calls_says(id);
}

bool pm_gate_is_between(void) {
    bool found = false;
    pm_gate_watched_count = 0;
    return !is_ready() || !pm_roll_each(find_inside, &found) || !found;
}
