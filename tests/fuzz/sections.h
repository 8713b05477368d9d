// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Included before all else in core, gc and tools/common when they are built for the fuzzer. It puts
// their variables into sections of their own, so that reset.c can restore them all.
#ifndef PMALLOC_TESTS_FUZZ_SECTIONS_H
#define PMALLOC_TESTS_FUZZ_SECTIONS_H

#pragma clang section bss = "pm_bss" data = "pm_data"

#endif
