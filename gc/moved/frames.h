// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Where functions begin, by .eh_frame: that has all of them also where symbols were stripped.
#ifndef PM_FRAMES_H
#define PM_FRAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "roots/elf_file.h"

// *start: their addresses in order. False: there is no memory. A section that is damaged or not
// there has none.
bool pm_frames_starts(const struct pm_elf *f, uint64_t **start, uint32_t *count);

#endif
