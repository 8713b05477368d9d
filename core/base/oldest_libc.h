// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The compiler includes this before everything else (Makefile). From 2.38 on glibc's headers give
// strtol and scanf and their kin other names inside, because they read `0b1`, too. We need none of
// that, and a library with these names would not load where glibc is older than on the machine that
// built it.
#ifndef PM_BASE_OLDEST_LIBC_H
#define PM_BASE_OLDEST_LIBC_H

#include <features.h>

#ifdef __GLIBC_USE_C2X_STRTOL // 2.38 and 2.39
#undef __GLIBC_USE_C2X_STRTOL
#define __GLIBC_USE_C2X_STRTOL 0
#endif
#ifdef __GLIBC_USE_C23_STRTOL
#undef __GLIBC_USE_C23_STRTOL
#define __GLIBC_USE_C23_STRTOL 0
#endif

#endif
