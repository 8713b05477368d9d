// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Looks at a heap that another process is using. Files are only read; no lock is taken and nothing
// is mapped. So neither that process nor one that wants to open the heap next notices it. The files
// may change while they are read. A look is settled if the log was read twice with the same
// contents and passes its checks.
//
// A look shows what is always on media: files, extents, slabs and roots. Only the process knows how
// many blocks of a slab are in use.
#ifndef PM_TOOLS_LOOK_H
#define PM_TOOLS_LOOK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/message.h"
#include "base/sizeclass.h"
#include "media/journal/journal.h"
#include "media/rebased_format.h"
#include "media/recovered_format.h"

struct look {
    pid_t pid;            // the owner; 0: there is none
    uint64_t base, range; // the heap's addresses
    uint64_t start;       // when the owner started
    char process[16];     // what the owner is doing: "running", "sleeping", ...
    bool clean;           // the state word says "clean"
    uint64_t opens;       // how often the heap was opened
    uint64_t heap_bytes;  // length of heap.0
    uint64_t data_bytes;  // space of heap.0 on the file system
    uint64_t metadata_bytes;
    uint64_t medium_bytes; // of the file system, or of all heap.N on fixed media
    uint64_t medium_free;  // of it, for this user
    unsigned roots;
    unsigned late_roots, late_waiting; // roots that are not restored before main; and not yet
    uint8_t uuid[16];
    struct pm_recovered recovered; // the last recovery; its time is 0: none
    struct pm_rebased rebased;     // the same of words led to another build or place
    uint64_t journal_bytes;        // length of the journal; 0: the program does not commit
    bool settled;                  // the fields below are of this look, not of an earlier one
    uint64_t slabs, extents, extent_bytes;
    uint64_t log_chunks, log_active, log_live;
    uint64_t class_slabs[PM_CLASSES + 1]; // slabs of each class; [0]: the class is not known
    struct pm_journal_found commit;       // the last one that could be read; groups is 0: none
};

// Opens the heap's directory. PM_OK, PM_OPERATIONAL.
int look_open(const char *dir, struct pm_error *err);
// Takes a look. PM_OK, PM_OPERATIONAL or PM_DAMAGE. *gone becomes whether the heap no longer exists
// (PM_OPERATIONAL).
int look_take(struct look *look, bool *gone, struct pm_error *err);
// Before another heap is opened.
void look_close(void);

#endif
