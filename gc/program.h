// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Which program the heap belongs to. Pointers from its data into code, constants and globals are good as long as the
// program is the same and lies where it lay. Where it is not or does not, marking counts them.
#ifndef PMALLOC_GC_PROGRAM_H
#define PMALLOC_GC_PROGRAM_H

// Before marking in the program's own process: has it look for words that point to where the recorded program lay, if
// there is a difference.
void pm_program_watch(void);
// Says what is not valid any more, in a line, and records this program.
void pm_program_record(void);

#endif
