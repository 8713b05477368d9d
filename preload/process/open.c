// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "open.h"
#include "roots/program.h"
#include "roots/root_table.h"

#include <errno.h>
#include <string.h>
#include <sys/auxv.h>

#include "addresses.h"
#include "bad_read.h"
#include "base/event_hook.h"
#include "base/event_log.h"
#include "base/nodes.h"
#include "base/options.h"
#include "base/os.h"
#include "blocks/tables.h"
#include "commit/commits.h"
#include "commit/late.h"
#include "descent.h"
#include "fork/stray.h"
#include "leaks.h"
#include "leaks_asked.h"
#include "marking/forms.h"
#include "media/adopt.h"
#include "media/backing/volume.h"
#include "media/commit/doubt.h"
#include "media/open/heap_dir.h"
#include "media/open/heap_open.h"
#include "media/open/spare.h"
#include "media/outside.h"
#include "moved.h"
#include "moved/trust.h"
#include "open_check.h"
#include "pages/extent_adopt.h"
#include "recovery/beside.h"
#include "recovery/clear_typed.h"
#include "recovery/typed_words.h"
#include "stacks.h"
#include "start_seen.h"
#include "state/phase.h"

static struct pm_chosen chosen;
static bool by_call; // the heap was opened by pmalloc_open()
static struct pm_recovery recovery;
static uint64_t generation;

const struct pm_chosen *pm_open_chosen(void) { return &chosen; }

const struct pm_recovery *pm_process_recovery(void) { return &recovery; }

bool pm_process_is_root(const void *p) { return pm_heap_on_media() && pm_roots_captured(p); }

bool pm_process_default_heap(void) { return chosen.default_heap; }

uint64_t pm_process_generation(void) { return generation; }

void pm_process_forget_heap(void) { generation = 0; }

bool pm_process_opened_by_call(void) { return by_call; }

bool pm_process_wanted(void) {
    struct pm_error ignored;
    bool out;
    if (getauxval(AT_SECURE) || pm_options_load(pm_os_environ(), &ignored) != PM_OK ||
        pm_left_out(&out, &ignored) != PM_OK)
        return false;
    return !out &&
           (pm_options.heap.text[0] || pm_options.commit_dir.text[0] || pm_options.roots.text[0]);
}

// Without these settings, which set-user-ID programs pass over as all others, it costs nothing.
static int begin_to_say(struct pm_error *err) {
    if (!pm_event_log_wanted() && !*pm_options.on.text)
        return PM_OK;
    pm_event_heap_dir = pm_heap.dir;
    int status = pm_event_log_begin(pm_descent_was_told(), err);
    return status == PM_OK ? pm_event_hooks_begin(pm_os_environ(), err) : status;
}

int pm_open_decide(bool called, struct pm_error *err) {
    bool secure = getauxval(AT_SECURE) != 0; // setuid: the environment is not to be trusted
    int status = pm_options_load(secure ? NULL : pm_os_environ(), err);
    if (status == PM_OK)
        status = begin_to_say(err);
    if (status == PM_OK)
        status = pm_commits_options(err);
    if (status == PM_OK)
        status = pm_trust_check(err);
    if (status == PM_OK && *pm_options.pointers.text)
        status = pm_forms_choose(err);
    if (status == PM_OK)
        status = pm_choose_none(&chosen, called, err);
    return status;
}

void pm_open_refuse(const struct pm_error *err) {
    pm_event_log_say_failure();
    if (err->status == PM_DAMAGE)
        pm_refuse(PM_EV_HEAP_DAMAGED,
                  "%s; nothing was changed: copy the heap, ask `pmalloc-recover --check`, or set "
                  "PMALLOC_HEAP to another one",
                  err->text);
    pm_refuse(pm_event_of(err), "%s", err->text);
}

// ---- what both ways to a heap share -------------------------------------------------------------

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
        pm_event(PM_EV_COLLECT_WAITS,
                 "PMALLOC_COLLECT=background: no collection beside the program: %s; all that was "
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
    if (!pm_heap.created)
        pm_moved_keep_free();
    bool borrow = pm_heap.readonly;
    struct pm_recover_options how = {.write = !borrow,
                                     .borrow = borrow,
                                     .beside = pm_commits_wanted() &&
                                               pm_options.collect.number == PM_COLLECT_BACKGROUND,
                                     .mark = {.markers = (unsigned)pm_options.markers.number,
                                              .stray = pm_program_stray(),
                                              .progress = pm_start_seen_progress}};
    pm_doubt_thorough = pm_commits_wanted();
    status = pm_recover(&how, &recovery, err);
    if (status == PM_OK && !borrow) {
        pm_spare_begin();
        pm_outside_begin();
    }
    if (status == PM_OK && borrow)
        status = pm_heap_borrow(err);
    if (status == PM_OK && borrow && pm_typed_words_any())
        pm_clear_typed(); // in the private pages
    if (status == PM_OK && !borrow && pm_commits_wanted())
        status = pm_commits_begin(!pm_phase_main_runs(), err);
    if (status == PM_OK)
        collect_beside();
    if (status == PM_OK && pm_heap_has_roots() && pm_options.locks.number == PM_LOCKS_RESET)
        status = keep_account_of_locks(err);
    return status;
}

// What every heap needs, once.
static int make_ready(const char *dir, struct pm_error *err) {
    static bool ready;
    if (ready)
        return PM_OK;
    pm_leaks_open_door();
    int status = pm_leaks_begin(err);
    if (status == PM_OK)
        status = pm_nodes_find(err);
    if (status != PM_OK)
        return status;
    if (!pm_tables_reserve(pm_nodes.cores, pm_volume_count(dir)))
        return pm_fail(err, PM_OPERATIONAL,
                       "no address space for the allocator's tables; is `ulimit -v` or "
                       "vm.overcommit_memory=2 set?");
    ready = true;
    return PM_OK;
}

// ---- the heap of the settings -------------------------------------------------------------------

// Early, while nothing is open. But most programs that the owner of a heap starts get none: those
// wait until they have one.
static void keep_addresses(void) {
    pm_addresses_begin(!pm_phase_main_runs());
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

// Opens the heap once more where something of it was changed: strings are copied into it before
// words lead to them.
static int look_for_moved(struct pm_error *err) {
    bool again;
    int status;
    do {
        status = pm_moved_look(&again, err);
        if (status != PM_OK || again)
            pm_heap_release();
        if (status == PM_OK && again)
            status = pm_choose_heap(&chosen, err);
    } while (status == PM_OK && again && !pm_moved_was());
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

int pm_open_heap(struct pm_error *err) {
    if (!chosen.without_heap)
        keep_addresses();
    int status = make_ready(pm_options.heap.text, err);
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

// ---- the heap of pmalloc_open() -----------------------------------------------------------------

static int open_and_check(const char *dir, bool existing, struct pm_error *err) {
    int status = pm_choose_called(dir, existing, err);
    if (status != PM_OK)
        return status;
    bool again;
    do {
        again = false;
        status = pm_open_check(err);
        if (status == PM_OK)
            status = pm_moved_look(&again, err);
        int saved = errno;
        if (status != PM_OK || again)
            pm_heap_release();
        errno = saved;
        if (status == PM_OK && again)
            status = pm_choose_called(dir, existing, err);
        if (status != PM_OK)
            return status;
    } while (again && !pm_moved_was());
    status = open_persistent(err);
    if (status != PM_OK && pm_heap_state() != PM_HEAP_CLOSED)
        pm_open_refuse(err); // it has begun to change the heap
    return status;
}

int pm_open_called(const char *dir, bool existing, struct pm_error *err) {
    int status = make_ready(dir, err);
    if (status != PM_OK)
        return status;
    pm_addresses_begin(false);
    pm_bad_reads_begin();
    pm_heap.careful = true;
    status = open_and_check(dir, existing, err);
    pm_bad_reads_end(); // keeps errno
    if (status != PM_OK)
        return status;
    chosen = (struct pm_chosen){0};
    generation = pm_heap.super->state.opens;
    by_call = true;
    return PM_OK;
}
