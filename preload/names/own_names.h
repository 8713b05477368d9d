// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program may define functions of its own under names of libc's: C reserves few of them. The
// dynamic linker then leads this library's calls to the program. So each of the library's imports
// that leads into the program is led to libc, as libc's own calls are. Those that lead to another
// preloaded library stay: it is there to take libc's place.
#ifndef PM_OWN_NAMES_H
#define PM_OWN_NAMES_H

// Runs before the library calls libc. Calls nothing. `env`: as the loader gives it to constructors.
void pm_own_names_avoid(char **env);

#endif
