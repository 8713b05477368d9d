// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The library is linked without the compiler's start files. They would call __cxa_finalize() for a
// library that has nothing to finalize, and cost each program four page faults. This is the one
// name of theirs that libc's static part needs: what the library registers for the end, it
// registers under this handle.
extern void *const __dso_handle __attribute__((visibility("hidden")));
void *const __dso_handle = (void *)&__dso_handle;

// The page of variables that each start of a program touches begins here (preload/first).
__attribute__((used, retain, section(".data1"), aligned(4096))) static char first_page[0];
