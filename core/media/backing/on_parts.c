// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "base/os.h"
#include "file_space.h"
#include "fixed.h"
#include "media/core_dump.h"
#include "rows.h"

// A part's length never falls: so bytes beyond it were never in use.
bool pm_parts_set_length(struct pm_shard *s, uint64_t bytes) {
    bool good = bytes > s->frontier && pm_os_address_space(bytes) &&
                pm_slabs_grow_in_room(s, bytes) && pm_fixed_set_length(&s->data, bytes);
    if (good)
        pm_shard_dump_up_to(s, bytes);
    return good;
}
