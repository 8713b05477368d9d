// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A library whose thread-local array is made when a thread first asks for it; with `-z execstack`
// also a library that wants an executable stack.
static __thread unsigned much[20000];

unsigned *of_this_thread(unsigned least);
unsigned *of_this_thread(unsigned least) { return least <= sizeof much / sizeof *much ? much : 0; }
