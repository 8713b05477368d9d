// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Slabs of typed blocks (media/kind_format.h). All blocks of a slab have the type that its header
// says. The slabs of all types stand in the bins of the typed arenas as other slabs do, so that
// they age, and are given back, like these. Beside that, each slab which stands in its bin is in a
// chain of its bin, by its type: so a request finds one of its type without a look at the others.
//
// A bin has PM_TYPE_CHAINS chains, of types whose numbers differ by a multiple of that. Nobody
// touches the heads of a bin that has no typed slab.
//
// Lock: the bin's.
#ifndef PM_TYPES_H
#define PM_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "slab.h"

#define PM_TYPE_CHAINS 64u // 256 bytes of heads for each bin

// How many bytes the heads of all typed arenas need, and where they lie; all zeroes.
size_t pm_types_bytes(void);
void pm_types_init(void *heads);

// Adds a slab to its chain, or takes it out. The slab's `home` says in which bin it is. A slab that
// is held is in none.
void pm_types_link(uint32_t slab);
void pm_types_unlink(uint32_t slab);
// Returns a slab (number + 1) of the type that has free blocks, or 0. Its pages may be holes, which
// get their space. 0 is also the answer if the medium is full.
uint32_t pm_types_find(unsigned arena, unsigned cls, uint16_t type);
// For verify.c: whether a slab is in its chain.
bool pm_types_has(uint32_t slab);

#endif
