// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Commits (PMALLOC_COMMIT): all stores of the process up to one instant reach the heap's files at
// once. All files are mapped private (PM_HEAP_JOURNALED), so between commits they stay as the last
// commit left them.
//
//   pm_commit_round    threads run. Where the kernel keeps a record of stores (stored_pages.h),
//                      what has changed so far goes to the journal, some times over.
//   pm_commit_take     at the instant: no other thread stores anything. Finds the pages that the
//                      process has copied, and puts those that differ from the last commit into
//                      the journal's memory. What that has no room for is written at once. After
//                      rounds it only copies them,
//   pm_commit_look     and threads run on while the copies are looked at.
//   pm_commit_finish   Threads run on. Writes and syncs the journal (from here on the commit is in
//                      force), and brings it into the files; a checkpoint syncs these later.
//
// Whether a page differs is found by a sum of what the last commit left, or by comparison with the
// file (changed_pages.h). A page that one whole time between two commits has left unchanged is
// given back to the kernel at the second, and shows the file again. A page that changes all the
// time stays copied, so it costs no fault.
//
// Released space is anonymous memory, which reads as zeroes; the file keeps its old bytes until the
// commit makes a hole of them. Later, when such a range is as the file has it, the file is mapped
// there again. The list of these ranges belongs to the extent lock of their shard.
#ifndef PM_COMMIT_H
#define PM_COMMIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "changed_pages.h"
#include "media/heap.h"
#include "media/journal/journal_format.h"

// Makes the open heap's journal. Its files are durable then, and are taken for the first commit.
int pm_commit_first(struct pm_error *err);
// The time of a commit: nanoseconds since 1970.
uint64_t pm_commit_clock(void);
// For a heap that is mapped and recovered: from now on what this process stores reaches the files
// with commits only. On failure the heap is shared as before.
int pm_heap_journal(struct pm_error *err);
// Shares the metadata again, for the clean close: the last commit is in the files, and no other
// thread runs. The data stay private. False: the heap stays as the last commit left it.
bool pm_commit_share_metadata(void);

// A private mapping of captured root pages, [at, at + len), of the roots file at `offset`.
void pm_commit_add_root(void *at, size_t len, uint64_t offset);
void pm_commit_forget_roots(void);
// The images of all roots were written to the roots file itself, and these bytes of it belong to
// them, too. A commit that is in the journal already may name a shorter file, and recovery would
// cut it there. So the next commit that succeeds has all of the images.
void pm_commit_whole_roots(uint64_t offset, uint64_t len);

// Writes the captured root pages to a copy of the roots file.
bool pm_commit_write_roots(int fd);
// In a forked child that makes commits: the kernel's record of stores was its parent's.
void pm_commit_forked(void);
// A forked child has a heap of its own now, in the place of its parent's: a copy, as of one
// instant. Its commits go there.
int pm_commit_change_heap(struct pm_error *err);

// One commit at a time: the caller holds a lock of its own. Before the instant: finishes what an
// earlier commit could not finish. False, with errno: it still cannot, so there is no commit now.
bool pm_commit_prepare(void);
// Then, while other threads run, as often as it is worth it: puts what has changed so far into the
// journal, so that less is left for the instant. Returns how many pages it has looked at; 0: rounds
// are not worth it, or not possible; PM_ROUNDS_CUT: somebody waits, so make another one later.
// `count`: copied pages may be counted to know that.
uint64_t pm_commit_round(bool count);
// How many pages rounds have found so far.
uint64_t pm_commit_in_rounds(void);
// Before the instant: touches memory for so many pages that it may find. False: that took time. A
// page of memory that was never used costs more than to copy a page there.
bool pm_commit_ready(uint64_t pages);
// What was begun is not to go on: the files are others. If there is merely no instant now, it goes
// on with the next one.
void pm_commit_abandon(void);
// At the instant, with the extent locks of all shards. `drop`: unchanged pages may be given back,
// because the kernel stores to none of them on its own (O_DIRECT, io_uring).
void pm_commit_take(bool drop, struct pm_commit_cost *cost);
// After the instant, while other threads run again: looks at what was copied there. After that the
// cost is whole. pm_commit_enforce() does it if nobody has.
void pm_commit_look(struct pm_commit_cost *cost);
// The commit that is taken next is not one that the trigger of PMALLOC_COMMIT asks for: memory is
// to become free (PMALLOC_COMMIT_PAGES).
void pm_commit_force(void);
// At its instant another thread is in the middle of an operation.
void pm_commit_amid(void);
// Before pm_commit_finish(): what this commit and later ones say of their instants and pauses.
void pm_commit_instants(const struct pm_instants *instants, const struct pm_pauses *pauses);
// False, with errno: there is no new commit; the last one stands.
bool pm_commit_finish(void);
// The same in two steps: puts the commit into force; brings it into the files. What waits for it
// may go on in between, and the heap may change. pm_commit_prepare() takes the second step if
// nobody has, or if that has failed.
bool pm_commit_enforce(void);
void pm_commit_bring(void);
// After that: the medium was full, and since then the journal has given up the room of earlier
// commits. So another one may be taken at once.
bool pm_commit_again(int error);
// Whether a commit has failed because there was no room for it.
bool pm_commit_lacks_room(int error);
// Gives back the ends of data files that the last commit does not need. Takes the extent locks.
void pm_commit_cut(void);
// The time of the last commit in force, nanoseconds since 1970; how many there were, and how many
// of them were forced.
extern _Atomic uint64_t pm_commit_time, pm_commit_count, pm_commit_forced;
// The cost of the last commit that was taken. Changes with the caller's lock.
extern struct pm_commit_cost pm_commit_last;

#endif
