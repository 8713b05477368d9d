// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "backup_places.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/os.h"
#include "base/os_file.h"

// A word is the place, which begins a block, and in its lower bits how many bytes of the block
// count; 0: all of them.
#define BYTES ((uint64_t)PM_BACKUP_BLOCK - 1)

static bool reach(struct pm_backup_places *p, uint64_t blocks) {
    if (blocks <= p->blocks)
        return true;
    uint64_t room = p->blocks ? blocks + blocks / 4 : blocks;
    uint64_t *word = pm_os_reserve(room * sizeof *word);
    if (!word)
        return false;
    if (p->blocks)
        memcpy(word, p->word, p->used * sizeof *word);
    uint64_t used = p->used;
    pm_backup_forget(p);
    p->used = used;
    p->word = word;
    p->blocks = room;
    return true;
}

static void use(struct pm_backup_places *p, uint64_t block) {
    p->used = p->used > block ? p->used : block + 1;
}

// Bytes beyond it are lost, whatever the length becomes later. For blocks in the file, p->cut has
// it.
static void cut(struct pm_backup_places *p, uint64_t length) {
    uint64_t last = length / PM_BACKUP_BLOCK, rest = length & BYTES;
    if (last < p->used && rest && p->word[last]) {
        uint64_t old = p->word[last] & BYTES;
        p->word[last] = (p->word[last] & ~BYTES) | (old && old < rest ? old : rest);
    }
    for (uint64_t keep = last + (rest != 0); p->used > keep; p->used--)
        if (p->word[p->used - 1])
            p->word[p->used - 1] = 0; // a store makes a page of it
    p->cut = p->named && p->cut < length ? p->cut : length;
    p->named = true;
}

uint64_t pm_backup_blocks_of(const struct pm_backup_file *f, const struct pm_backup_entry *e) {
    return f->entries ? (uint64_t)(e[f->entries - 1].block & ~PM_BACKUP_HOLE) + 1 : 0;
}

bool pm_backup_note(struct pm_backup_places *p, const struct pm_backup_file *f,
                    const struct pm_backup_entry *e, uint64_t *data) {
    uint64_t length = f->length == PM_BACKUP_GONE ? 0 : f->length;
    // Not by the length: a wrong one may be a million times what is there.
    if (!reach(p, pm_backup_blocks_of(f, e)))
        return false;
    for (uint64_t i = 0; i < f->entries; i++) {
        bool hole = (e[i].block & PM_BACKUP_HOLE) != 0;
        uint64_t block = e[i].block & ~PM_BACKUP_HOLE;
        p->word[block] = hole ? PM_BACKUP_BY_HOLE : *data;
        use(p, block);
        *data += hole ? 0 : PM_BACKUP_BLOCK;
    }
    cut(p, length); // last, as in folding
    return true;
}

struct pm_backup_place pm_backup_place(const struct pm_backup_places *p, uint64_t block) {
    uint64_t word = block < p->blocks ? p->word[block] : 0;
    uint32_t bytes = (uint32_t)(word & BYTES);
    if (!word && p->named && block == p->cut / PM_BACKUP_BLOCK)
        bytes = (uint32_t)(p->cut & BYTES);
    return (struct pm_backup_place){word & ~BYTES, bytes ? bytes : PM_BACKUP_BLOCK};
}

bool pm_backup_stands(const struct pm_backup_places *p, uint64_t block) {
    return (!p->named || block * PM_BACKUP_BLOCK < p->cut) &&
           pm_backup_place(p, block).at == PM_BACKUP_IN_FILE;
}

void pm_backup_forget(struct pm_backup_places *p) {
    if (p->word)
        munmap(p->word, p->blocks * sizeof *p->word);
    p->word = NULL;
    p->blocks = p->used = 0;
}

ssize_t pm_backup_read_block(int fd, uint64_t at, struct pm_backup_place place,
                             char out[PM_BACKUP_BLOCK]) {
    ssize_t have = pm_os_read_at(fd, out, PM_BACKUP_BLOCK, at);
    if (have < 0)
        return -1;
    size_t keep = (size_t)have < place.bytes ? (size_t)have : place.bytes;
    memset(out + keep, 0, PM_BACKUP_BLOCK - keep);
    return have;
}
