// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "leaks_asked.h"

#include <errno.h>

#include "base/library.h"
#include "base/lock.h"
#include "base/looker.h"
#include "base/os.h"
#include "base/own_memory.h"
#include "base/signal_stack.h"
#include "blocks/slab.h"
#include "commit/late.h"
#include "leaks.h"
#include "leaks_marker.h"
#include "live/leaks_door.h"
#include "stacks.h"
#include "start_seen.h"
#include "state/phase.h"
#include "world.h"

_Static_assert(PM_LEAKS_SITE_ROOM == PM_STACKS && PM_LEAK_FRAMES == PM_STACK_FRAMES, "one size");

// ---- the answer: all other threads stand still, anywhere in the program -------------------------

static struct pm_leaks_asked *asked;

// The piece has no roots but the registers. The kernel may have joined it to other memory.
static void root_but_piece(const void *at, size_t len, void *unused) {
    uintptr_t from = (uintptr_t)at, end = from + len;
    uintptr_t piece = (uintptr_t)asked, piece_end = piece + asked->piece_bytes;
    (void)unused;
    if (end <= piece || from >= piece_end) {
        pm_live_root(at, len);
        return;
    }
    if (from < piece)
        pm_live_root(at, piece - from);
    if (end > piece_end)
        pm_live_root((const void *)piece_end, end - piece_end);
}

static int roots(struct pm_error *err) {
    pm_live_root(asked->registers, asked->register_bytes);
    return pm_world_memory(asked->stacks, asked->threads, root_but_piece, NULL, err);
}

static void take_site(uint32_t i, const struct pm_leak_row *row, void *arg) {
    struct pm_leak_site **next = arg, *site = (*next)++;
    site->row = *row;
    for (unsigned f = 0; i && f < PM_STACK_FRAMES; f++)
        site->frame[f] = pm_stacks_frames(i)[f];
}

// The tool has halted the threads that it knows. One that was made now would escape it.
static struct pm_leaks_found found_for_tool(void) {
    return (struct pm_leaks_found){&asked->leaks, &asked->in_use, 1,
                                   asked->with_stacks ? asked->sites : NULL};
}

static enum pm_leaks_answer report(int status) {
    struct pm_leak_site *site = asked->site;
    if (status != PM_OK)
        return PM_LEAKS_FAILED;
    if (asked->with_stacks)
        asked->other_bytes = pm_leaks_sites(asked->sites, take_site, &site);
    return PM_LEAKS_FOUND;
}

static enum pm_leaks_answer find_held(void) {
    struct pm_leaks_found found = found_for_tool();
    return report(pm_leaks_mark(&found, roots, &asked->err));
}

// The marker has all memory for marking until FINISH.
static enum pm_leaks_answer find_beside(void) {
    struct pm_leaks_found found = found_for_tool();
    if (pm_leaks_begin_beside(&found, roots, &asked->err) != PM_OK)
        return PM_LEAKS_FAILED;
    if (pm_marker_start(&asked->marker))
        return PM_LEAKS_BEGUN;
    pm_live_end();
    return find_held();
}

// PM_LEAKS_NONE: the program can be asked now.
static enum pm_leaks_answer refuse(void) {
    enum pm_phase phase = pm_phase();
    if (phase == PM_COLD || phase == PM_WAITING)
        return PM_LEAKS_NO_HEAP;
    if (phase > PM_ENDING)
        return PM_LEAKS_AT_END;
    // The tool has seen that no thread is in our code. One that holds a lock may be in libc's.
    if (phase == PM_STARTING || phase == PM_ENDING || pm_process_any_locked())
        return PM_LEAKS_BUSY;
    return PM_LEAKS_NONE;
}

static enum pm_leaks_answer find(void) {
    uintptr_t next;
    enum pm_leaks_answer no = refuse();
    if (no != PM_LEAKS_NONE)
        return no;
    if (pm_marker_is_there())
        return PM_LEAKS_BUSY; // another tool's
    pm_live_end();            // of a tool that was killed
    if (!pm_own_end((uintptr_t)__ehdr_start, &next))
        pm_own_note_library();
    asked->with_stacks = pm_stacks_on;
    return pm_marker_can() ? find_beside() : find_held();
}

// The marker has marked: PM_LEAKS_BEGUN: it is to go on. PM_LEAKS_NONE: it has failed.
static enum pm_leaks_answer finish_beside(void) {
    struct pm_leaks_found found = found_for_tool();
    bool last;
    if (!atomic_load(&asked->marker.alive) ||
        atomic_load(&asked->marker.stage) != PM_MARKER_MARKED ||
        pm_leaks_look(asked->rounds++, &last, &asked->err) != PM_OK)
        return PM_LEAKS_NONE;
    if (!last) {
        pm_marker_go_on();
        return PM_LEAKS_BEGUN;
    }
    asked->beside = 1;
    return report(pm_leaks_end_beside(&found, roots, &asked->err));
}

static enum pm_leaks_answer finish(void) {
    enum pm_leaks_answer found = refuse();
    if (found != PM_LEAKS_NONE)
        return found;
    found = finish_beside();
    if (found == PM_LEAKS_BEGUN)
        return found;
    pm_marker_leave();
    if (found != PM_LEAKS_NONE)
        return found;
    pm_live_end();
    return find_held();
}

static enum pm_leaks_answer obey(void) {
    switch (asked->command) {
    case PM_LEAKS_FIND:
        return find();
    case PM_LEAKS_FINISH:
        return finish();
    default: // END, UNDO
        pm_marker_end();
        pm_live_end();
        return PM_LEAKS_FAILED;
    }
}

// Runs in a thread that is anywhere in the program, on the stack of the piece.
__attribute__((noinline)) static void answer(struct pm_leaks_asked *piece) {
    int saved = errno;
    asked = piece;
    pm_looker_halted(true);
    enum pm_leaks_answer found = obey();
    pm_looker_halted(false);
    errno = saved;
    atomic_store_explicit(&piece->answer, found, memory_order_release);
}

// ---- the door -----------------------------------------------------------------------------------

__attribute__((naked, noinline)) static void enter(void) {
    __asm__ volatile("cld\n\txorl %%ebp, %%ebp\n\tcall %P0\n1:\tpause\n\tjmp 1b" : : "i"(answer));
}

__attribute__((naked, noinline)) static void call(void) {
    __asm__ volatile("syscall\n1:\tpause\n\tjmp 1b");
}

static struct pm_leaks_door door __attribute__((used)) = {
    .magic_a = PM_LEAKS_MAGIC_A,
    .magic_b = PM_LEAKS_MAGIC_B,
    .self = &door,
    .layout = PM_LEAKS_LAYOUT,
    .answer = enter,
    .call = call,
    .text = __ehdr_start,
    .text_end = etext,
    .inner = __start_pm_inner_calls,
    .inner_end = __stop_pm_inner_calls,
    .own = &pm_os_own_thread,
    .looker = &pm_os_looker,
    .phase = &pm_phase_word,
    .commits = &pm_commit_lock.word,
    .start = &pm_start_seen,
    .late = &pm_late_awaited,
    .tags = &pm_tag,
    .vslabs = &pm_vslabs,
    .slab_bits = &pm_slab_bits,
};

void pm_leaks_open_door(void) {
    const char *pointer;
    __asm__("movq %%fs:0, %0" : "=r"(pointer));
    door.sections = pm_sections_open_door();
    door.signal_stack = (const char *)&pm_signal_stack_own - pointer;
    door.locks = (const char *)&pm_locks_held - pointer;
}
