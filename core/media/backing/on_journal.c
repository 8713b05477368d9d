// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What lies below is a file or a part of a fixed medium; the file's own `length` tells which.
#include <errno.h>

#include "base/file_limit.h"
#include "base/os.h"
#include "commit_room.h"
#include "data_pin.h"
#include "emptied.h"
#include "file.h"
#include "file_space.h"
#include "fixed.h"
#include "media/core_dump.h"
#include "media/full.h"
#include "rows.h"
#include "work_copy.h"

// ---- length -------------------------------------------------------------------------------------

static bool extend(struct pm_shard *s, uint64_t bytes) {
    return s->data.length ? pm_fixed_set_length(&s->data, bytes) : pm_files_extend(s, bytes);
}

static bool grow(struct pm_shard *s, uint64_t bytes) {
    if (!pm_file_ready(&s->data) || !pm_os_address_space(bytes) ||
        !pm_slabs_grow_in_room(s, bytes) || (bytes > s->data.size && !extend(s, bytes)))
        return false;
    if (bytes > s->data.size)
        s->data.size = bytes;
    pm_shard_dump_up_to(s, bytes);
    return true;
}

// The file becomes longer at once, which changes nothing that the last commit says. It becomes
// shorter after the next one (pm_journaled_cut).
bool pm_journaled_set_length(struct pm_shard *s, uint64_t bytes) {
    if (bytes < s->frontier)
        return pm_emptied_add(s->offset + bytes, s->frontier - bytes);
    struct pm_file_room room = {.good = true};
    if (!s->data.length)
        room = pm_file_room(bytes);
    bool good = room.good && grow(s, bytes);
    pm_file_room_end(room);
    return good;
}

bool pm_journaled_cut(struct pm_shard *s, uint64_t bytes) {
    if (s->data.size <= bytes || s->data.length)
        return true;
    if (!pm_file_ready(&s->data) || !pm_shard_cut_file(s, bytes))
        return false;
    pm_work_empty(s, bytes, s->data.size - bytes);
    s->data.size = bytes;
    return true;
}

// ---- space --------------------------------------------------------------------------------------

// The shard is about to take this much.
bool pm_journaled_has_room(struct pm_shard *s, uint64_t more) {
    bool together = s->data.dev == pm_heap.journal.dev;
    if (pm_commit_has_room(more, together ? more : 0))
        return true;
    pm_full_note(ENOSPC);
    return false;
}

// First the journal's room: the file gives back its space only at a commit, for which there might
// be none.
bool pm_journaled_allocate(struct pm_shard *s, uint64_t offset, uint64_t len) {
    if (!pm_file_ready(&s->data) || !pm_journaled_has_room(s, len) || !pm_emptied_use(offset, len))
        return false;
    if (s->data.length || pm_space_back(&s->data, offset - s->offset, len))
        return true;
    pm_emptied_add(offset, len); // a full file system may have allocated a part of it
    return false;
}

// Beyond the ranges that can be kept apart, the space is allocated.
bool pm_journaled_promise(struct pm_shard *s, uint64_t offset, uint64_t len, bool *empty) {
    *empty = pm_emptied_promise(offset, len);
    return *empty || pm_journaled_allocate(s, offset, len);
}
