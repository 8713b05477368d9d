// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The commits of another process: which blocks of its heap's files they write. Each commit is in
// the journal before it reaches the files, and stays there until the next lap overwrites it. So who
// looks often enough knows all blocks that have changed. Epochs follow each other without a gap: a
// commit that was missed is noticed.
#ifndef PM_TOOLS_COMMIT_FOLLOW_H
#define PM_TOOLS_COMMIT_FOLLOW_H

#include <stdbool.h>
#include <stdint.h>

#include "media/heap_files.h"

// From here on the commits of the heap that is open are followed. The blocks that the last one
// wrote are taken for changed. The files are measured after that.
void follow_begin(void);
// The same once more, after commits were missed: the files are to be read again then.
void follow_again(void);
// The file was found to have `blocks` blocks.
void follow_file(size_t row, uint64_t blocks);
void follow_end(void);
// Looks at the journal. Costs a system call if nothing is new, and nothing if nobody is followed.
void follow_look(void);
// The same while no thread of the process runs, and no commit is being written to the files.
// False, if `patient`: one is being written to the journal, or was cut there. Try again.
bool follow_instant(bool patient);
// Every commit since the beginning was seen.
bool follow_knows(void);
// Whether a journal writes this file.
bool follow_covers(size_t row);
// Calls `fn` for each run of blocks of the file, of its first `blocks`, that have changed since it
// was called for them. Returns how many they were. The blocks of the last commit may not be in the
// file yet: they come with `all`, and each time, until there is another commit.
typedef void follow_fn(size_t row, uint64_t block, uint64_t end);
uint64_t follow_each(size_t row, uint64_t blocks, bool all, follow_fn *fn);

#endif
