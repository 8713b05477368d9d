// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "start.h"
#include "roots/program.h"
#include "roots/root_table.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include "addresses.h"
#include "bad_read.h"
#include "base/cancel.h"
#include "base/fallback.h"
#include "base/nodes.h"
#include "base/options.h"
#include "base/os.h"
#include "base/os_file.h"
#include "blocks/age.h"
#include "blocks/stats.h"
#include "blocks/tables.h"
#include "choose.h"
#include "commit/background.h"
#include "commit/commits.h"
#include "commit/late.h"
#include "commit/triggers.h"
#include "descent.h"
#include "fork/fork.h"
#include "fork/fork_exclude.h"
#include "fork/stray.h"
#include "leaks.h"
#include "leaks_asked.h"
#include "marking/forms.h"
#include "media/adopt.h"
#include "media/backing/file.h"
#include "media/commit/commit.h"
#include "media/commit/doubt.h"
#include "media/open/heap_dir.h"
#include "media/open/heap_open.h"
#include "media/outside.h"
#include "media/persist.h"
#include "moved.h"
#include "open_check.h"
#include "pages/extent_adopt.h"
#include "pmalloc.h"
#include "recovery/beside.h"
#include "rootless.h"
#include "stacks.h"
#include "start_line.h"
#include "state/replaced.h"
#include "thread_end.h"

static __thread bool thread_ending __attribute__((tls_model("initial-exec")));
// A thread that got no cache asks for one again after this many requests. Asking takes long where
// there is no memory.
#define CACHELESS 250
static __thread uint8_t cacheless __attribute__((tls_model("initial-exec")));
static struct pm_chosen chosen;
static bool by_call; // the heap was opened by pmalloc_open()
static struct pm_recovery recovery;
static uint64_t generation;

const struct pm_recovery *pm_process_recovery(void) { return &recovery; }

extern char **environ;

bool pm_process_is_root(const void *p) { return pm_heap_on_media() && pm_roots_captured(p); }

bool pm_process_default_heap(void) { return chosen.default_heap; }

uint64_t pm_process_generation(void) { return generation; }

// ---- start --------------------------------------------------------------------------------------

// Each shard's extents lie in a row.
static int keep_account_of_locks(struct pm_error *err) {
    int status = pm_old_heap(pm_heap.shard[0].frontier, err);
    for (unsigned i = 1; i < pm_heap.shards && status == PM_OK; i++) {
        const struct pm_shard *s = &pm_heap.shard[i];
        if (s->frontier)
            status = pm_old_root((uintptr_t)pm_heap_at(s->offset), s->frontier, err);
    }
    return status;
}

// Only where the start has collected nothing. Roots are as the last run left them.
static void collect_beside(void) {
    struct pm_error err = {.text = "it needs PMALLOC_COMMIT, because without that the program "
                                   "stores to what is to be marked"};
    if (recovery.uncollected && pm_options.collect.number == PM_COLLECT_BACKGROUND &&
        !(pm_heap_is_journaled() && pm_beside_begin(&err)))
        pm_say("PMALLOC_COLLECT=background: no collection beside the program: %s; all that was "
               "allocated is kept, as under later",
               err.text);
}

// Maps the chosen heap and recovers it.
static int open_persistent(struct pm_error *err) {
    int status = pm_roots_prepare(err);
    if (status == PM_OK)
        status = pm_late_begin(err);
    if (status == PM_OK)
        status = pm_tables_extend(err);
    if (status == PM_OK)
        status = pm_stacks_begin(err);
    if (status == PM_OK)
        status = pm_heap_map(err);
    if (status != PM_OK) {
        if (pm_heap.created)
            pm_heap_remove();
        else if (status != PM_DAMAGE) // for damage refuse() adds this
            strncat(err->text, "; nothing was changed", sizeof err->text - strlen(err->text) - 1);
        pm_heap_release();
        return status;
    }
    bool borrow = pm_heap.readonly;
    struct pm_recover_options how = {
        .write = !borrow,
        .borrow = borrow,
        .beside = pm_commits_wanted() && pm_options.collect.number == PM_COLLECT_BACKGROUND,
        .mark = {.markers = (unsigned)pm_options.markers.number, .stray = pm_program_stray()}};
    pm_doubt_thorough = pm_commits_wanted();
    status = pm_recover(&how, &recovery, err);
    if (status == PM_OK && !borrow)
        pm_outside_begin();
    if (status == PM_OK && borrow)
        status = pm_heap_borrow(err);
    if (status == PM_OK && !borrow && pm_commits_wanted())
        status = pm_commits_begin(!pm_process_main_runs(), err);
    if (status == PM_OK)
        collect_beside();
    if (status == PM_OK && pm_heap_has_roots() && pm_options.locks.number == PM_LOCKS_RESET)
        status = keep_account_of_locks(err);
    return status;
}

// Reads the settings, and whether they leave the process without a heap.
static bool called; // pmalloc_open() was called before anything else

static int decide(struct pm_error *err) {
    bool secure = getauxval(AT_SECURE) != 0; // setuid: the environment is not to be trusted
    int status = pm_options_load(secure ? NULL : pm_os_environ(), err);
    if (status == PM_OK)
        status = pm_commits_options(err);
    if (status == PM_OK && *pm_options.pointers.text)
        status = pm_forms_choose(err);
    if (secure)
        pm_options.backing.number = PM_BACKING_VOLATILE;
    if (status == PM_OK)
        status = pm_choose_none(&chosen, called, err);
    return status;
}

// What every heap needs, once.
static int make_ready(struct pm_error *err) {
    static bool ready;
    if (ready)
        return PM_OK;
    pm_leaks_open_door();
    int status = pm_leaks_begin(err);
    if (status == PM_OK)
        status = pm_nodes_find(err);
    if (status != PM_OK)
        return status;
    if (!pm_tables_reserve(pm_nodes.cores))
        return pm_fail(err, PM_OPERATIONAL,
                       "no address space for the allocator's tables; is `ulimit -v` or "
                       "vm.overcommit_memory=2 set?");
    ready = true;
    return PM_OK;
}

// Early, while nothing is open. But most programs that the owner of a heap starts get none: those
// wait until they have one.
static void keep_addresses(void) {
    pm_addresses_begin(!pm_process_main_runs());
    if (pm_addresses_may_be_kept() && !pm_descent_was_told())
        pm_addresses_keep();
}

// With a heap, of which the program that is executed again must find nothing open or half made.
static int keep_addresses_late(struct pm_error *err) {
    if (pm_heap.created)
        pm_heap_remove();
    pm_heap_release();
    pm_bad_reads_end();
    pm_addresses_keep();
    pm_bad_reads_begin();
    return pm_choose_heap(&chosen, err);
}

// Opens the heap once more if words of it were changed.
static int look_for_moved(struct pm_error *err) {
    bool again;
    int status = pm_moved_look(&again, err);
    if (status != PM_OK || again)
        pm_heap_release();
    if (status == PM_OK && again)
        status = pm_choose_heap(&chosen, err);
    if (status == PM_OK)
        pm_moved_end_if_asked();
    return status;
}

static int open_chosen(struct pm_error *err) {
    pm_bad_reads_begin();
    int status = pm_choose_heap(&chosen, err);
    if (status == PM_OK && !chosen.without_heap && pm_addresses_may_be_kept())
        status = keep_addresses_late(err);
    if (status == PM_OK && !chosen.without_heap)
        status = look_for_moved(err);
    if (status == PM_OK && !chosen.without_heap)
        status = open_persistent(err);
    pm_bad_reads_end();
    return status;
}

static int open_heap(struct pm_error *err) {
    if (!chosen.without_heap)
        keep_addresses();
    int status = make_ready(err);
    if (status != PM_OK)
        return status;
    if (!chosen.without_heap)
        status = open_chosen(err);
    if (status != PM_OK && pm_choose_volatile(&chosen, err))
        status = PM_OK;
    if (status == PM_OK && chosen.without_heap)
        status = pm_stacks_begin(err);
    if (status == PM_OK && chosen.without_heap)
        return pm_heap_volatile(err);
    // Borrowing is an opening that the heap does not count.
    if (status == PM_OK)
        generation = pm_heap.super->state.opens + pm_heap.readonly;
    return status;
}

bool pm_process_wanted(void) {
    struct pm_error ignored;
    bool out;
    if (getauxval(AT_SECURE) || pm_options_load(pm_os_environ(), &ignored) != PM_OK ||
        pm_left_out(&out, &ignored) != PM_OK)
        return false;
    return !out &&
           (pm_options.heap.text[0] || pm_options.commit_dir.text[0] || pm_options.roots.text[0]);
}

static void refuse(const struct pm_error *err) {
    if (err->status == PM_DAMAGE)
        pm_refuse("%s; nothing was changed: copy the heap, ask `pmalloc-recover --check`, or set "
                  "PMALLOC_HEAP to another one",
                  err->text);
    pm_refuse("%s", err->text);
}

static void thread_exit(void *cache) {
    pm_cancel_hold(); // for good: a cancellation of the thread may still arrive
    thread_ending = true;
    pm_tcache = &pm_no_tcache;
    pm_tcache_destroy(cache);
    pm_age_notice();
    pm_age();
    pm_inside_leave(); // handlers may run
}

// ---- waiting ------------------------------------------------------------------------------------

// Opening even a volatile heap costs as much as a small program's whole start. So it waits until
// the program has made this number of requests, or uses half of the fallback arena's small part.
#define FEW_REQUESTS 500

static _Atomic unsigned requests;
static _Atomic bool hopeless; // there was no room for the heap when it was to be opened
static _Atomic bool main_runs;

bool pm_process_main_runs(void) { return atomic_load_explicit(&main_runs, memory_order_relaxed); }

// A setting that says or does something at the start or at the end does not wait.
static bool may_wait(void) {
    const struct pm_options *o = &pm_options;
    return chosen.by_call || (chosen.without_heap && !o->verbose.number && !o->stats.number &&
                              !o->leaks.number && !o->background.number && !o->topology.text[0]);
}

static bool asks_for_little(void) {
    if (chosen.by_call)
        return pm_fallback_has_large_room(PM_FALLBACK_LARGE / 2);
    return atomic_fetch_add_explicit(&requests, 1, memory_order_relaxed) < FEW_REQUESTS &&
           pm_fallback_has_room(PM_FALLBACK_SMALL / 2);
}

// ---- the start ----------------------------------------------------------------------------------

// False: a process that has waited has no room for a heap any more. Its requests are served while
// the fallback arena lasts, and then fail.
static bool open_here(bool first) {
    struct pm_error err;
    hopeless = open_heap(&err) != PM_OK;
    if (hopeless && first)
        refuse(&err);
    if (!hopeless)
        pm_thread_end_begin(thread_exit);
    return !hopeless;
}

// By the thread that has moved the phase to STARTING.
static void start_here(bool first, bool patient) {
    int saved = errno;
    struct pm_error err;
    enum pm_phase next = PM_WAITING;
    if (first)
        pm_persist_exit = PM_EXIT_START; // until main runs
    if (first && pm_preload_check)
        pm_preload_check();
    if (first)
        pm_fork_init();
    if (first && decide(&err) != PM_OK)
        refuse(&err);
    if (!((patient || (first && chosen.by_call)) && may_wait()) && open_here(first))
        next = PM_READY;
    pm_phase_started(next);
    if (next == PM_READY && pm_process_main_runs()) // it has waited beyond pm_process_before_main()
        pm_phase_move(PM_READY, PM_RUNNING);
    errno = saved;
}

// `patient`: whether WAITING is far enough. One thread starts, others wait for it.
static void advance(bool patient) {
    enum pm_phase seen;
    while ((seen = pm_phase()) < PM_READY) {
        if (seen == PM_STARTING) {
            if (pm_phase_starts_here())
                return; // called by start_here(): this very thread opens the heap
            pm_phase_await_start();
        } else if (seen == PM_WAITING && (hopeless || (patient && asks_for_little()))) {
            return;
        } else if (pm_phase_claim(seen)) {
            start_here(seen == PM_COLD, patient && seen == PM_COLD);
            return;
        }
    }
}

void pm_process_start(void) { advance(false); }

void pm_process_begin(void) { advance(true); }

#define NOT_MUCH ((size_t)8 << 20)

void pm_process_start_for(size_t bytes) {
    if (!pm_phase_serves())
        advance(chosen.by_call && bytes <= NOT_MUCH);
}

void pm_process_ask(void) {
    if (!pm_phase_serves())
        advance(chosen.by_call);
}

enum pm_route pm_thread_enter(void) {
    if (!pm_phase_serves())
        advance(pm_phase() == PM_WAITING);
    if (!pm_phase_serves())
        return PM_ROUTE_FALLBACK;
    if (thread_ending || pm_stacks_on || (cacheless && cacheless--))
        return PM_ROUTE_DIRECT;
    int saved = errno;
    struct pm_tcache *t = pm_thread_end_is_heard() ? pm_tcache_create() : NULL;
    if (!t) {
        cacheless = CACHELESS;
        return PM_ROUTE_DIRECT;
    }
    if (pm_tcache != &pm_no_tcache) { // meanwhile a signal handler of this thread has got a cache
        pm_tcache_destroy(t);
        return PM_ROUTE_CACHE;
    }
    pm_tcache = t;
    pm_thread_end_note(t); // may allocate: the cache is in place already
    errno = saved;
    return PM_ROUTE_CACHE;
}

// ---- before main --------------------------------------------------------------------------------

static const char *advice(int error) {
    return pm_os_is_forbidden(error)
               ? "; does a seccomp filter forbid fdatasync? allow it, or unset PMALLOC_COMMIT"
           : error == ENOSPC || error == EDQUOT ? "; make room on its disk, and start again"
           : error == EFBIG                     ? "; raise `ulimit -f`"
           : error == EAGAIN
               ? "; does it block all signals, or is `ulimit -n` too low to look for it?"
               : "";
}

// So that the roots are on record, whatever comes later.
static void first_commit(void) {
    int error = pm_heap_is_journaled() ? pm_commits_make() : 0;
    if (error)
        pm_refuse("PMALLOC_COMMIT: the first commit has failed: %s; nothing of %s is lost%s",
                  pm_commits_reason(error), pm_heap.dir, advice(error));
}

static void capture_roots(void) {
    struct pm_error err;
    bool reads = pm_heap_state() != PM_HEAP_VOLATILE;
    if (reads)
        pm_bad_reads_begin();
    if ((pm_heap_on_media() && pm_roots_capture(&err) != PM_OK) ||
        (pm_heap_state() == PM_HEAP_BORROWED && pm_roots_restore(&err) != PM_OK)) {
        if (pm_heap.created)
            pm_heap_remove();
        pm_refuse("%s", err.text);
    }
    if (reads)
        pm_bad_reads_end();
}

static void begin_main(void) {
    char **variables = environ;
    capture_roots();
    pm_fork_exclude(true);
    pm_stray_watch();
    if (pm_heap_on_media() && !pm_heap.nameless && !by_call)
        pm_descent_tell(variables);
    pm_phase_move(PM_READY, PM_RUNNING);
    pm_stacks_record();
    pm_moved_note();
    first_commit();
    pm_persist_exit = 0;
    if (!pm_heap.created && recovery.roots && pm_heap_on_media())
        pm_replaced_note();
    pm_late_start();
    pm_triggers_start();
    pm_moved_say();
    if (pm_options.verbose.number)
        pm_start_line(&chosen, &recovery);
    pm_rootless_say_start(chosen.default_heap, &recovery);
    if (recovery.out)
        pm_out_say(recovery.out, false);
    pm_background_start();
}

void pm_process_before_main(void) {
    atomic_store_explicit(&main_runs, true, memory_order_relaxed);
    if (pm_phase() == PM_WAITING) { // there is no heap, and nothing to capture
        pm_persist_exit = 0;
        if (pm_options.verbose.number)
            pm_start_line(&chosen, &recovery);
        return;
    }
    advance(false);
    begin_main();
}

// ---- by a call ----------------------------------------------------------------------------------

static int open_and_check(const char *dir, bool existing, struct pm_error *err) {
    int status = pm_choose_called(dir, existing, err);
    if (status != PM_OK)
        return status;
    bool again = false;
    status = pm_open_check(err);
    if (status == PM_OK)
        status = pm_moved_look(&again, err);
    if (status != PM_OK || again) {
        int saved = errno;
        pm_heap_release();
        errno = saved;
        if (status != PM_OK || (status = pm_choose_called(dir, existing, err)) != PM_OK)
            return status;
    }
    status = open_persistent(err);
    if (status != PM_OK && pm_heap_state() != PM_HEAP_CLOSED)
        refuse(err); // it has begun to change the heap
    return status;
}

static int open_called(const char *dir, bool existing, struct pm_error *err) {
    int status = make_ready(err);
    if (status != PM_OK)
        return status;
    pm_addresses_begin(false);
    pm_bad_reads_begin();
    pm_heap.careful = true;
    status = open_and_check(dir, existing, err);
    pm_bad_reads_end(); // keeps errno
    return status;
}

// By the thread that has moved the phase to STARTING.
static int open_in_its_turn(const char *dir, bool existing, struct pm_error *err) {
    static char path[sizeof pm_heap.dir];
    const char *named = pm_options.heap.text;
    strcpy(path, dir);
    pm_options.heap.text = path;
    int status = open_called(path, existing, err);
    if (status != PM_OK) {
        pm_options.heap.text = named;
        pm_phase_started(PM_WAITING);
        return status;
    }
    chosen = (struct pm_chosen){0};
    generation = pm_heap.super->state.opens;
    by_call = true;
    pm_thread_end_begin(thread_exit);
    pm_phase_started(PM_READY);
    begin_main();
    return PM_OK;
}

static int is_open_already(const char *dir, struct pm_error *err) {
    struct stat its, ours;
    if (chosen.left_out) {
        errno = ENOTSUP;
        return pm_fail(err, PM_OPERATIONAL, "no heap for this program: %s", chosen.why);
    }
    if (pm_heap_on_media() && stat(dir, &its) == 0 && stat(pm_heap.dir, &ours) == 0 &&
        its.st_dev == ours.st_dev && its.st_ino == ours.st_ino)
        return PM_OK;
    errno = EBUSY;
    if (pm_heap_on_media())
        return pm_fail(err, PM_OPERATIONAL, "this process has the heap %s open already",
                       pm_heap.dir);
    return pm_fail(err, PM_OPERATIONAL,
                   by_call ? "this process has had a heap already"
                           : "this process is on volatile memory already; call pmalloc_open() "
                             "earlier, or name the heap in PMALLOC_HEAP");
}

int pm_process_open(const char *dir, bool existing, struct pm_error *err) {
    enum pm_phase seen = pm_phase();
    if (seen == PM_COLD)
        called = true;
    pm_process_begin();
    while ((seen = pm_phase()) < PM_READY) {
        if (seen == PM_WAITING && chosen.left_out)
            break;
        if (seen == PM_STARTING && pm_phase_starts_here()) {
            errno = EDEADLK;
            return pm_fail(err, PM_OPERATIONAL, "in a signal handler that interrupts an opening");
        }
        if (seen == PM_WAITING && pm_phase_claim(seen))
            return open_in_its_turn(dir, existing, err);
        pm_phase_await_start();
    }
    return is_open_already(dir, err);
}

bool pm_process_opened_by_call(void) { return by_call; }

void pm_process_forget_heap(void) { generation = 0; }
