// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "backup_image.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/os_file.h"

// What the slots in memory may take of the machine's memory, and of what this process may have.
enum { SHARE = 4 };

static bool fail(struct image *i, int error) {
    if (!i->failed)
        i->error = error;
    i->failed = true;
    return false;
}

// ---- slots --------------------------------------------------------------------------------------

static uint64_t spill_at(const struct image *i, uint32_t slot) {
    return (slot - 1 - i->in_memory) * PM_BACKUP_BLOCK;
}

static bool put_slot(struct image *i, uint32_t slot, const char *data) {
    if (slot <= i->in_memory) {
        memcpy(i->memory + (uint64_t)(slot - 1) * PM_BACKUP_BLOCK, data, PM_BACKUP_BLOCK);
        return true;
    }
    if (i->spill < 0)
        i->spill = openat(i->dir, ".", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    if (i->spill < 0 || !pm_os_write_all(i->spill, data, PM_BACKUP_BLOCK, spill_at(i, slot)))
        return fail(i, errno);
    i->spilled += PM_BACKUP_BLOCK;
    return true;
}

static bool get_slot(const struct image *i, uint32_t slot, char *out) {
    if (slot <= i->in_memory) {
        memcpy(out, i->memory + (uint64_t)(slot - 1) * PM_BACKUP_BLOCK, PM_BACKUP_BLOCK);
        return true;
    }
    return pread(i->spill, out, PM_BACKUP_BLOCK, (off_t)spill_at(i, slot)) == PM_BACKUP_BLOCK;
}

static uint32_t take_slot(struct image *i) {
    return i->free_count ? i->free_slot[--i->free_count] : ++i->used;
}

static void give_slot(struct image *i, uint32_t *slot) {
    if (*slot && i->free_count == i->free_room) {
        uint32_t room = i->free_room ? i->free_room * 2 : 256;
        uint32_t *more = realloc(i->free_slot, room * sizeof *more);
        if (!more)
            fail(i, ENOMEM);
        i->free_slot = more ? more : i->free_slot;
        i->free_room = more ? room : i->free_room;
    }
    if (*slot && i->free_count < i->free_room)
        i->free_slot[i->free_count++] = *slot;
    *slot = 0;
}

// ---- files --------------------------------------------------------------------------------------

static bool reach(struct image *i, struct image_file *f, uint64_t blocks) {
    if (blocks <= f->room)
        return true;
    uint64_t room = blocks + blocks / 4;
    uint64_t *sum = realloc(f->sum, room * sizeof *sum);
    f->sum = sum ? sum : f->sum;
    uint32_t *slot = realloc(f->slot, room * sizeof *slot);
    f->slot = slot ? slot : f->slot;
    if (!sum || !slot)
        return fail(i, ENOMEM);
    memset(sum + f->room, 0, (room - f->room) * sizeof *sum);
    memset(slot + f->room, 0, (room - f->room) * sizeof *slot);
    f->room = room;
    return true;
}

uint64_t image_memory(void) {
    uint64_t bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    struct rlimit most;
    if (getrlimit(RLIMIT_DATA, &most) == 0 && most.rlim_cur < bytes)
        bytes = most.rlim_cur;
    return bytes / SHARE;
}

bool image_begin(struct image *i, const struct kept *base, int dir, bool equal) {
    uint64_t bytes = image_memory();
    *i = (struct image){.base = base, .dir = dir, .spill = -1};
    i->memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (i->memory == MAP_FAILED)
        return fail(i, errno);
    i->in_memory = bytes / PM_BACKUP_BLOCK;
    for (size_t row = 0; row < PM_HEAP_FILES && equal; row++) {
        const struct kept_file *from = &base->file[row];
        image_file(i, row, from->there, from->length);
        for (uint64_t b = 0; b < kept_blocks(from->length) && !i->failed; b++)
            i->file[row].sum[b] = kept_sum_of(from, b);
    }
    return !i->failed;
}

void image_file(struct image *i, size_t row, bool there, uint64_t length) {
    struct image_file *f = &i->file[row];
    f->there = there;
    f->length = there ? length : 0;
    image_hole(i, row, kept_blocks(f->length), f->room);
    reach(i, f, kept_blocks(f->length));
}

// ---- blocks -------------------------------------------------------------------------------------

bool image_block(struct image *i, size_t row, uint64_t block, const char *data) {
    struct image_file *f = &i->file[row];
    uint64_t sum = pm_backup_sum(data);
    if (i->failed || block >= f->room)
        return false;
    bool wanted = sum && sum != kept_sum_of(&i->base->file[row], block);
    if (f->sum[block] == sum && wanted == (f->slot[block] != 0))
        return false;
    f->sum[block] = sum;
    if (!wanted)
        give_slot(i, &f->slot[block]);
    else if (!f->slot[block])
        f->slot[block] = take_slot(i);
    return !wanted || put_slot(i, f->slot[block], data);
}

void image_hole(struct image *i, size_t row, uint64_t from, uint64_t to) {
    struct image_file *f = &i->file[row];
    for (uint64_t b = from; b < to && b < f->room; b++) {
        f->sum[b] = 0;
        if (f->slot[b])
            give_slot(i, &f->slot[b]);
    }
}

bool image_read(const struct image *i, size_t row, uint64_t block, char *out) {
    const struct image_file *f = &i->file[row];
    return block < f->room && f->slot[block] && get_slot(i, f->slot[block], out);
}
