// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A packed object: its ELF file without code, without what variables begin with, and without what
// only linkers and debuggers read. What is left tells what lies at each address: headers, names,
// constants, and where functions begin.
#ifndef PM_PACKED_OBJECT_H
#define PM_PACKED_OBJECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "elf_file.h"

// How many bytes the packed object of this file has; 0: it cannot be packed.
size_t pm_packed_size(const struct pm_elf *f);
// Writes it. `out` has that many bytes, which are zeroes.
void pm_packed_write(const struct pm_elf *f, unsigned char *out);

#endif
