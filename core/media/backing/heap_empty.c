// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "heap_empty.h"

#include <errno.h>
#include <linux/falloc.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backing.h"
#include "base/file_limit.h"
#include "file.h"
#include "marks.h"
#include "media/heap.h"

// A commit notes each range that it need not read. Shorter ones are not worth a note.
#define NOTED_LEAST ((uint64_t)256 << 10)

// Other threads may use the pages beside, so access changes only where the program has changed it.
static void store_zeroes(uint64_t offset, uint64_t len) {
    pm_marks_lift(offset, offset + len);
    memset(pm_heap_at(offset), 0, len);
    pm_marks_renew(offset, offset + len);
}

// Through the descriptor, because the program may have made the pages unwritable.
static bool write_zeroes(const struct pm_file *file, uint64_t at, uint64_t len) {
    static const char zeroes[PM_PAGE_SIZE];
    struct pm_file_room room = pm_file_room(file->length ? 0 : at + len);
    bool good = room.good;
    while (len && good) {
        size_t part = len < sizeof zeroes ? len : sizeof zeroes;
        long done = syscall(SYS_pwrite64, file->fd, zeroes, part, file->at + at);
        if (done < 0 && errno == EINTR)
            continue;
        good = done > 0;
        at += good ? (uint64_t)done : 0;
        len -= good ? (uint64_t)done : 0;
    }
    pm_file_room_end(room);
    return good;
}

static bool zero_in_place(struct pm_shard *s, uint64_t offset, uint64_t len) {
    const int how = FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE;
    uint64_t at = offset - s->offset;
    if (!pm_file_ready(&s->data))
        return false;
    if (!s->data.length && syscall(SYS_fallocate, s->data.fd, how, s->data.at + at, len) == 0)
        return true;
    return write_zeroes(&s->data, at, len);
}

static void empty_file(uint64_t offset, uint64_t len, bool keep) {
    struct pm_shard *s = pm_shard_at(offset);
    bool gave = !keep && !s->data.length && pm_heap_release_space(offset, len);
    if (!gave && !zero_in_place(s, offset, len))
        store_zeroes(offset, len);
}

static void empty_private(uint64_t offset, uint64_t len, bool keep) {
    if (!keep && len >= NOTED_LEAST && pm_heap_vacate(offset, len))
        pm_marks_renew(offset, offset + len);
    else
        store_zeroes(offset, len);
}

void pm_heap_empty(uint64_t offset, uint64_t len, bool keep) {
    int saved = errno;
    if (pm_heap_state() == PM_HEAP_SHARED)
        empty_file(offset, len, keep);
    else
        empty_private(offset, len, keep);
    errno = saved;
}
