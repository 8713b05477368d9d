// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "written.h"

#include <errno.h>
#include <unistd.h>

#include "file.h"

// A file that was cut meanwhile has no data there either, but its end is no hole: a hole begins
// where a look within the file finds no data.
static bool is_hole(const struct pm_shard *s, off_t at) {
    return errno == ENXIO && lseek(s->data.fd, at, SEEK_HOLE) >= 0;
}

uint64_t pm_heap_next_in_file(struct pm_written *known, uint64_t *offset, uint64_t end) {
    struct pm_shard *s = pm_shard_at(*offset);
    if (s->data.length || !pm_file_ready(&s->data))
        return end - *offset;
    if (*offset < known->from || *offset >= known->to) {
        off_t at = (off_t)(*offset - s->offset), data = lseek(s->data.fd, at, SEEK_DATA);
        if (data < 0)
            return is_hole(s, at) ? 0 : end - *offset;
        if (s->offset + (uint64_t)data >= end)
            return 0;
        *offset = s->offset + (uint64_t)data;
        off_t hole = lseek(s->data.fd, data, SEEK_HOLE);
        *known = (struct pm_written){*offset, hole < 0 ? end : s->offset + (uint64_t)hole};
    }
    return (known->to > end ? end : known->to) - *offset;
}
