// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// PMALLOC_COMMIT=output[:TIME]: one commit for all answers that wait for it. What the program
// writes to a stream socket or a pipe is *taken* into the outbox, and the call returns. Nobody
// outside can tell an answer that leaves late from one that is slow to come (Nightingale et al.,
// Rethink the Sync, OSDI 2006). So one commit is made for all of them, and then they leave in
// their order:
//
//   when a thread is about to wait: an event loop has served all of its clients by then
//   before anything else that leaves the process, and before a descriptor in the outbox is closed
//   when an answer has no room in the outbox
//   with the next answer, once the oldest one has waited for TIME
//   by PMAlloc's thread, if for as long again there is no other answer, and no wait
//
//   take ... take ... take ... wait: | commit | send, send, send | the call that waits
//
// An answer leaves only after a commit whose instant came after it was taken (pm_commits_instants).
// A kill before that loses the answer and what it answers to: then nothing has happened.
//
// What a program may see of it is what it sees of a socket's own buffer. Nothing is taken that
// might not go out at once: the socket can be written to, the other end is there, and the bytes fit
// into what is surely free. So the program gets EAGAIN, EPIPE and short counts from the kernel, in
// calls that are not taken. Standard output and standard error are for people, and never taken. A
// failure to send that the kernel tells only once is the result of the next call for the
// descriptor.
//
// The outbox lies outside the heap. A forked child has an empty one.
#ifndef PM_OUTBOX_H
#define PM_OUTBOX_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "threads/calls.h"

// Whether answers are taken.
extern bool pm_outbox_on;
// How many there are.
extern _Atomic uint32_t pm_outbox_count;

// With TIME in microseconds, once there are commits. Without memory nothing is taken.
void pm_outbox_begin(uint64_t us);
// From here on nothing is taken, for good. What there is has left when this returns.
void pm_outbox_end(void);
// In a forked child: it is empty.
void pm_outbox_forked(void);

// Takes what `call` says, and stores its result in it. False: the call must be made. May sleep: the
// caller is no handler that has interrupted the allocator.
bool pm_outbox_take(struct pm_call *call);
// Makes a commit for all that is in the outbox now, and sends it.
void pm_outbox_flush(void);
// The same, if one of the descriptors `from` to `to` is in it.
void pm_outbox_flush_before(unsigned from, unsigned to);
static inline void pm_outbox_look_at(unsigned from, unsigned to) {
    if (__builtin_expect(atomic_load_explicit(&pm_outbox_count, memory_order_relaxed) != 0, 0))
        pm_outbox_flush_before(from, to);
}
// Before they are closed or replaced, and after that. Between the two nothing is taken for them:
// another thread may answer there while the commit is made, and its answer would find the
// descriptor closed.
unsigned pm_outbox_begin_closing(unsigned from, unsigned to);
void pm_outbox_end_closing(unsigned place);
static inline unsigned pm_outbox_closing(unsigned from, unsigned to) {
    bool may = pm_outbox_on || atomic_load_explicit(&pm_outbox_count, memory_order_relaxed) != 0;
    return __builtin_expect(may, 0) ? pm_outbox_begin_closing(from, to) : 0;
}
static inline void pm_outbox_closed(unsigned place) {
    if (__builtin_expect(place != 0, 0))
        pm_outbox_end_closing(place);
}
// Sends what is left, at the end of the program, after its last commit.
void pm_outbox_last(void);

// For PMAlloc's thread. Whether it has to look soon, and the look, which returns the time until the
// next one, in microseconds.
bool pm_outbox_looks(void);
uint64_t pm_outbox_look(void);
// Sleeps for `us` at most, until there is something in an outbox that was empty for long.
void pm_outbox_sleep(uint64_t us);
void pm_outbox_wake(void);

// For PMALLOC_STATS: how many answers were taken, and in how many turns they left.
void pm_outbox_say(void);

#endif
