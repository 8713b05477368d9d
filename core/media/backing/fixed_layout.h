// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The layout of a fixed medium: whether it can be used, and whether the medium is the one that is
// meant. Each says which heap it belongs to, its place in the order of the media, and how many
// there are. So one that is missing, foreign, doubled or swapped is noticed before it is locked.
#ifndef PM_FIXED_LAYOUT_H
#define PM_FIXED_LAYOUT_H

#include "base/message.h"
#include "fixed_format.h"

uint32_t pm_layout_crc(const struct pm_layout *layout);
// Whether a layout can be used; `path` is for the message.
int pm_layout_check(const struct pm_layout *layout, const char *path, struct pm_error *err);

// How much of a medium its heap can take up: there is a header for every slab, and a shard has at
// most 1 TiB. What --make has laid out may be more, but is not used.
uint64_t pm_layout_most(const struct pm_layout *layout);

// What is named: the first medium's layout and path, and of how many media.
struct pm_layout_named {
    const struct pm_layout *first;
    const char *path;
    unsigned media;
};
// Whether this is the medium of the place, from 0, at which `path` is named.
int pm_layout_check_place(const struct pm_layout *layout, const struct pm_layout_named *named,
                          unsigned place, const char *path, struct pm_error *err);

#endif
