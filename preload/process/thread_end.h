// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// How PMAlloc learns that a thread ends, so that the blocks in its cache go back: by a key of
// libc's (pthread_key_create). It is made with the second thread: the first key is the program's,
// as its number tells. There are 1024 of them. A program that wants the last one gets ours.
// While it has it, new threads get no cache, except the first one, whose end is the process's; and
// what is in the cache of a thread that ends is not used any more in this run. As soon as the
// program deletes a key, one is ours again.
#ifndef PM_THREAD_END_H
#define PM_THREAD_END_H

#include <pthread.h>
#include <stdbool.h>

// `ended` is called with the cache of each thread that ends.
void pm_thread_end_begin(void (*ended)(void *cache));
// Called before a thread is made.
void pm_thread_end_hear(void);
// Whether the calling thread may have a cache.
bool pm_thread_end_is_heard(void);
// It has one now. May allocate.
void pm_thread_end_note(void *cache);

// The program needs a key. False: we have none.
bool pm_thread_end_give_key(int delete (pthread_key_t key));
// It has deleted one.
void pm_thread_end_take_key(void);

#endif
