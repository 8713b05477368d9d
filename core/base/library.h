// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Where this library lies: its code, and all of it with its variables. The allocator may be linked
// into a program, as in unit tests. Then its code and its variables are among the program's, and
// tell nothing about who uses them.
#ifndef PM_LIBRARY_H
#define PM_LIBRARY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/auxv.h>

// The linker's names for the start of this library, the end of its code, and its end.
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char etext[];
extern const char _end[] __attribute__((visibility("hidden")));
// The code of system calls that this library makes itself. Where they are libc's, there is none.
extern const char __start_pm_inner_calls[] __attribute__((weak, visibility("hidden")));
extern const char __stop_pm_inner_calls[] __attribute__((weak, visibility("hidden")));

static inline bool pm_lies_within(uintptr_t at, const char *start, const char *end) {
    return at - (uintptr_t)start < (uintptr_t)end - (uintptr_t)start;
}
static inline bool pm_library_has(uintptr_t at) { return pm_lies_within(at, __ehdr_start, _end); }
static inline bool pm_library_runs(uintptr_t at) { return pm_lies_within(at, __ehdr_start, etext); }
static inline bool pm_library_calls(uintptr_t at) {
    return pm_lies_within(at, __start_pm_inner_calls, __stop_pm_inner_calls);
}
static inline bool pm_library_is_program(void) { return pm_library_has(getauxval(AT_ENTRY)); }

#endif
