// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Which pages that the process has copied were stored to since the last look, by the kernel's
// record (base/store_record.h). What it does not know of are pages that the kernel has pinned, to
// store to them on its own (O_DIRECT, io_uring): whoever looks asks about these afterwards.
//
// A commit of a large heap looks only at these pages, first while the program runs, and at the
// instant at what was stored to meanwhile. Below PMALLOC_COMMIT_WATCH copied pages a commit looks
// at all of them instead: the record costs the program a fault for each page, and a question about
// each descriptor.
//
// With the commit lock. The record is this process's: a forked child begins its own.
//
// It may be lent to a marker that runs beside the program (gc/live/live_record.h), for a while:
//
//   commits look at the record     both do. Each look begins anew, and so is told to the other
//   they look at all copied pages  they go on so, and the record is the marker's alone
//
// Meanwhile no page is given back: what was stored to it would be lost to the marker. Who forgets
// the record lets both find more. If it ends, the marker learns that at its next look.
#ifndef PM_STORED_PAGES_H
#define PM_STORED_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/pagemap_scan.h"
#include "media/own_pages.h"

// Begins the record, where the kernel has one.
void pm_stored_begin(void);
void pm_stored_end(void);
// The program keeps a record of its own (userfaultfd): two cannot be of one page. Any thread.
void pm_stored_give_way(void);
bool pm_stored_gives_way(void);
bool pm_stored_can(void);

// `pagemap` is of pm_own_open().
//
// Finds the pages of [at, at + len), of the file, that are copied and were stored to since the last
// time that it began anew there. `anew`: it does so now. The first look finds all that are copied.
// False: they are not known, and some of the range may have begun anew, so forget the record.
bool pm_stored_find(unsigned file, int pagemap, char *at, size_t len, bool anew);
// How many pages were found in all files.
uint64_t pm_stored_pages(void);
// Of all that was found, by the order in which it was found, pages [from, to): calls `fn` for each
// run of them that is of the file: by rising address, and then what a marker has found. A page that
// was not stored to, or that comes twice, may be among them.
void pm_stored_part(unsigned file, uint64_t from, uint64_t to, pm_own_fn *fn, void *arg);
// The same. Of a run that is not `known` only the copied pages, which the kernel is asked about.
typedef bool pm_stored_known_fn(char *at, size_t len);
void pm_stored_each(unsigned file, int pagemap, uint64_t from, uint64_t to,
                    pm_stored_known_fn *known, pm_own_fn *fn, void *arg);
// Nothing is found any more. Before the files are looked at.
void pm_stored_none(void);
// Of all that was found, by the order in which it was found, what lies from page `from` on was not
// looked at: the next look finds it again.
void pm_stored_owe(uint64_t from);
// The next look finds all copied pages of the file again. It also takes away what the record leaves
// behind: a page that was given back, and is not there, has a mark, and looks as if it was copied
// and swapped out. False: that cannot be.
bool pm_stored_forget(unsigned file);
// Pages of the range in memory that are copied and were not stored to since the last look. False:
// they are not known.
bool pm_stored_not(unsigned file, int pagemap, char *at, size_t len, pm_own_fn *fn, void *arg);
// About how many copied pages of the range are in memory. False: that is not known.
bool pm_stored_count(char *at, size_t len, int pagemap, uint64_t *pages);

// The descriptor, for who closes others'; -1: there is none.
int pm_stored_fd(void);

// ---- lent to a marker. All threads are held, and nobody has the commit lock ---------------------

struct pm_stored_runs {
    struct pm_pagemap_region *run;
    size_t room, count;
};
// `watched`: commits look at it. *alive becomes 0 when the marker has ended. False: there is none.
bool pm_stored_lend(bool watched, const _Atomic uint32_t *alive);
// Pages must not be given back. With the commit lock. It ends what a marker has left that was
// killed, so who begins a commit asks, too.
bool pm_stored_is_lent(void);
bool pm_stored_is_alone(void);
// The marker is not told all. Any thread.
void pm_stored_lose(void);
// Empties `runs`, then notes what commits have found since the last time. False: that is not known.
bool pm_stored_told(struct pm_stored_runs *runs);
// Adds what was stored to in [at, at + len) of the file since the last look of either, and begins
// anew there. False: it is not known. The marker itself may call it while it is alone.
bool pm_stored_take(struct pm_stored_runs *runs, unsigned file, int pagemap, char *at, size_t len);
// By the marker, alone: adds to what pm_stored_told() is to note.
void pm_stored_tell(const struct pm_stored_runs *runs);
// The marker has ended, or is about to. Any thread.
void pm_stored_recall(void);

#endif
