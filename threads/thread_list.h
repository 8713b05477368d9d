// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The threads of the program by our own record, for where /proc cannot list them. The first thread
// and threads of pthread_create() and thrd_create() are in it. Threads that libc makes for itself
// (timers, getaddrinfo_a), and threads of a bare clone(), are not.
//
// A slot is claimed before the thread is made, and has its id from the thread itself, before it
// runs anything of the program's. A signal handler of the program's may come before that: it puts
// its thread on the list itself (postpone.c), so a thread may be on it twice. Nobody takes the id
// out at the thread's end: destructors run until the very last. Whoever meets an id of no thread
// frees the slot.
#ifndef PM_THREAD_LIST_H
#define PM_THREAD_LIST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct pm_signal_stack;

struct pm_thread_slot {
    _Atomic int32_t id; // 0: free; -1: its thread is being made
    // Of who makes the thread: its function, what that gets, its stack for signals or NULL.
    const void *run;
    void *arg;
    struct pm_signal_stack *stack;
};

// From here on there is a record. Called by the only thread, before the program has others; in a
// forked child once more. False: no memory for it.
bool pm_thread_list_begin(void);
// For a thread that is to be made. NULL: there is no record.
struct pm_thread_slot *pm_thread_list_claim(void);
// In the new thread. The caller then looks whether threads are held (calls.h): a holder sees the id
// or the thread sees the holder.
void pm_thread_list_enter(struct pm_thread_slot *slot);
// The same, by a thread that nobody has claimed a slot for, or that cannot know of it.
void pm_thread_list_add(void);
// The thread could not be made.
void pm_thread_list_drop(struct pm_thread_slot *slot);
// Calls `each` for every thread in it, until it returns false. False: there is no record, or it had
// no room for a thread.
bool pm_thread_list_each(bool (*each)(pid_t id, void *arg), void *arg);
// Whether the process has no thread with this id. The first one stays until the process ends.
bool pm_thread_has_ended(pid_t id);

#endif
