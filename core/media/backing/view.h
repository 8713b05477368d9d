// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Mappings of the heap's files that no pm_file remembers, such as the captured roots, which are
// mapped piece by piece. They are noted only so that file_at.h can name their file.
#ifndef PM_VIEW_H
#define PM_VIEW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// `len` bytes at `map` are those of a file from `at` on: of the one of this name in the heap's
// directory, or with `path` of the one that the name leads to. The name stays. A few mappings are
// remembered at a time; then one of them gives way.
void pm_view_note(const void *map, size_t len, const char *name, bool path, uint64_t at);
void pm_view_forget(const void *map);
// The file and the byte of an address, if it lies in one of them.
bool pm_view_find(const void *address, const char **name, bool *path, uint64_t *at);

#endif
