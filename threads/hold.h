// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Holds the threads of the process without a trace, for a commit or a backup. While they are held,
// memory stands still: no thread stores, none is inside the allocator, and none holds a lock of
// ours. The program cannot see it but by a clock. No call of its fails with EINTR, none transfers
// less than it was asked to, and timeouts run on.
//
//   a thread that        rests
//   runs                 in our signal handler (threads/threads.h), all signals blocked
//   is in the allocator  as soon as it is out of it; it is asked again until then
//   sleeps in a call     where it is, and at the end of the call (threads/calls.h, names/waits.c)
//   sleeps elsewhere     in the handler; the kernel repeats the call (SA_RESTART)
//   ran a vfork          in it, until its child executes or ends
//
// A signal of the program's that arrives at a sleeping thread would run a handler. While threads
// are held each such signal has a gate in the place of its handler. The gate waits and then calls
// the handler with the same arguments, mask and flags.
//
// Memory may still change by stores of the kernel for calls that end now (pm_hold_each_memory), by
// other processes that share it, and by asynchronous requests (aio, io_uring).
#ifndef PM_HOLD_H
#define PM_HOLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// From here on threads can be held without a trace. Called before the program has threads, if it is
// wanted then: a call in which a thread sleeps already is not known. False: no memory.
bool pm_hold_prepare(void);

// From here on threads can be held also where the program loses sight of /proc. `alone`: the
// process has no other thread, so our record has all threads. False: /proc is not to be seen now.
bool pm_hold_keep_sight(bool alone);
// In a forked child: once more if it makes commits. Else its descriptors are the program's again.
void pm_hold_forked(bool commits);

// Every other thread of the process rests. False: a thread could not be brought to rest in time;
// nobody is held. The caller holds no lock of ours. Several callers wait for each other.
bool pm_hold_all(uint64_t timeout_ms);
// The same. `rests` is called in the signal handler of each thread that waits there, with its
// ucontext_t, once it waits.
bool pm_hold_all_and(uint64_t timeout_ms, void (*rests)(const void *context));
// What the kernel, and libc around a call, may store although everything rests.
void pm_hold_each_memory(void (*each)(void *at, size_t len, void *arg), void *arg);
void pm_release_all(void);
// The same for the program itself, which goes on in this thread as usual and may allocate and say
// things: what it does may hold the others once more, and release them from that.
bool pm_hold_for_program(uint64_t timeout_ms);
// False: the calling thread does not hold them, as in a child that was forked meanwhile.
bool pm_release_for_program(void);
// For a signal handler that would keep its thread there: whether all others can go on meanwhile.
bool pm_hold_may_rest(const void *context);
// While threads are held: one of them was interrupted in what a slow path of the library calls
// (libc, the kernel). It holds no lock, but may have blocks in hand, or be about to change a file.
bool pm_hold_met_inside(void);
// While threads are held: each of them is in a call that waits (PM_CALL_WAITS of threads/calls.h).
bool pm_hold_all_wait(void);

#endif
