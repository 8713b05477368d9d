// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// How a program of tests/bench tells who traces its accesses (study/loads.c) which of them count:
// by an access to a line of the page at BENCH_MARKS, the line with the number of the mark. The page
// lies where no program and no heap does.
#ifndef BENCH_MARKS_H
#define BENCH_MARKS_H

#define BENCH_MARKS 0x3ff000000000u

enum bench_marks {
    BENCH_OFF,  // accesses do not count
    BENCH_ON,   // they do, as from the start of the program
    BENCH_ZERO, // those up to here do not
};

#endif
