// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Callers have the commit lock, so there is no other. System calls are made directly.
#include "commit_bound.h"

#include <fcntl.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "base/options.h"
#include "base/os.h"
#include "base/proc.h"
#include "media/backing/journal_part.h"
#include "media/commit/rounds.h"
#include "media/heap_state.h"

// As fast as some threads together make the kernel copy pages.
#define PAGES_PER_MS 500u
#define PAUSE_MIN_MS 5u
#define PAUSE_MAX_MS 10000u
#define WAIT_MIN_MS 500u
#define WAIT_MAX_MS 60000u

static uint64_t limit;    // of copied pages; 0: not known yet
static uint64_t due_at;   // that many copied pages make a commit due: the limit or more
static uint64_t seen;     // the last look: private pages of the whole process
static uint64_t counted;  // `seen` at the last count of the heap's alone; 0: not since the commit
static uint64_t again_at; // milliseconds; pages that were kept may have become ones to drop
static uint64_t wait_ms = WAIT_MIN_MS;

bool pm_commit_bound_wanted(void) { return pm_heap_is_journaled(); }

// A quarter of the memory.
static uint64_t default_limit(void) {
    struct sysinfo info;
    if (syscall(SYS_sysinfo, &info) != 0)
        return 1 << 20;
    return (uint64_t)info.totalram * info.mem_unit / PM_PAGE_SIZE / 4;
}

static void find_limit(void) {
    limit = pm_options.commit_pages.number ? pm_options.commit_pages.number : default_limit();
    if (limit > pm_journal_part_pages())
        limit = pm_journal_part_pages();
    due_at = limit;
}

bool pm_commit_bound_of_journal(void) { return limit == pm_journal_part_pages(); }

static const char *read_number(const char *at, uint64_t *number) {
    for (*number = 0; *at >= '0' && *at <= '9'; at++)
        *number = *number * 10 + (uint64_t)(*at - '0');
    return *at == ' ' ? at + 1 : at;
}

// Resident pages that no file has. The copied pages of the heap are among them. If this cannot be
// found out, each look counts the heap's.
static uint64_t private_pages(void) {
    char text[128] = "";
    uint64_t size, resident, shared;
    if (pm_proc_kept_text(PM_PROC_STATM, text, sizeof text) <= 0)
        return UINT64_MAX;
    read_number(read_number(read_number(text, &size), &resident), &shared);
    return resident > shared ? resident - shared : 0;
}

bool pm_commit_bound_reached(void) {
    if (!limit)
        find_limit();
    if (due_at > limit && pm_os_now_ms() >= again_at) {
        due_at = limit;
        counted = 0;
    }
    seen = private_pages();
    if (seen < due_at || (counted && seen != UINT64_MAX && seen < counted + limit / 16))
        return false;
    counted = seen;
    return pm_rounds_copied() >= due_at;
}

bool pm_commit_bound_grown(uint64_t pages) {
    static uint64_t before;
    uint64_t now = private_pages();
    bool grown = now >= before && now - before >= pages;
    before = grown || now < before ? now : before;
    return grown;
}

void pm_commit_bound_kept(void) {
    uint64_t kept = pm_rounds_copied(), more = kept + limit / 4;
    bool in_vain = more > limit;
    due_at = in_vain ? more : limit;
    again_at = in_vain ? pm_os_now_ms() + wait_ms : 0;
    wait_ms = !in_vain ? WAIT_MIN_MS : wait_ms * 2 < WAIT_MAX_MS ? wait_ms * 2 : WAIT_MAX_MS;
    counted = 0;
}

uint64_t pm_commit_bound_pause(void) {
    uint64_t next = counted ? counted + limit / 16 : due_at;
    uint64_t pause = seen < next ? (next - seen) / PAGES_PER_MS : limit / 16 / PAGES_PER_MS;
    return pause < PAUSE_MIN_MS ? PAUSE_MIN_MS : pause > PAUSE_MAX_MS ? PAUSE_MAX_MS : pause;
}
