// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "heap.h"

#include "base/crc.h"
#include "persist.h"

uint64_t pm_base = PM_HEAP_BASE, pm_range = PM_HEAP_RANGE;
// The number of a shard gives its place in the range, whether it is there or not.
#define PLACE(n) .shard[n].offset = (uint64_t)(n) << PM_SHARD_SHIFT,
#define CLOSED(member, text, ...) .member = {.name = text, .fd = -1},
#define CLOSED_OF_SHARD(n, member, text, ...) .shard[n].member = {.name = text, .fd = -1},
// clang-format off
struct pm_heap pm_heap = {
    .dir_fd = -1,
    .shards = 1,
    .volumes = 1,
    PM_HEAP_FILE_TABLE(CLOSED, CLOSED_OF_SHARD)
    PM_MORE_FILES_TABLE(CLOSED_OF_SHARD)
    PLACE(1) PLACE(2) PLACE(3) PLACE(4) PLACE(5) PLACE(6) PLACE(7) PLACE(8)
    PLACE(9) PLACE(10) PLACE(11) PLACE(12) PLACE(13) PLACE(14) PLACE(15)
};
// clang-format on
#undef PLACE
#undef CLOSED
#undef CLOSED_OF_SHARD

const struct pm_heap_file pm_heap_files[PM_HEAP_FILES] = {
#define ROW(member, name, holds, held, empty, feature, share)                                      \
    {name, offsetof(struct pm_heap, member), holds, held, empty, feature, share, 0},
#define ROW_OF_SHARD(n, member, name, holds, held, empty, feature, share)                          \
    {name, offsetof(struct pm_heap, shard[n].member), holds, held, empty, feature, share, n},
    PM_HEAP_FILE_TABLE(ROW, ROW_OF_SHARD) PM_MORE_FILES_TABLE(ROW_OF_SHARD)
#undef ROW
#undef ROW_OF_SHARD
};

bool pm_heap_holds(const struct pm_heap_file *file) {
    return file->held && file->shard < pm_heap.shards &&
           (!file->feature || (pm_heap.super->super.incompat & file->feature) != 0);
}

uint64_t pm_slot_word(unsigned slot, uint64_t pointer) {
    uint64_t both = (uint64_t)slot << 48 | pointer;
    return (uint64_t)(0x8000 | pm_crc32c(0, &both, sizeof both) >> 17) << 48 | pointer;
}

unsigned pm_super_root_count(const struct pm_super_file *file) {
    const struct pm_root_table *t = &file->roots[file->state.root_epoch & 1];
    unsigned count = 0;
    for (uint32_t i = 0; i < t->count && i < PM_ROOT_MAX; i++)
        count += t->root[i].part == 0;
    for (unsigned i = 0; i < PM_ROOT_SLOTS; i++)
        count += (__atomic_load_n(&file->slots.slot[i], __ATOMIC_ACQUIRE) & PM_SLOT_MAX) != 0;
    return count;
}

// After the word: perhaps a number, and then the end or a dash.
bool pm_root_is_dropped(const struct pm_root *root) {
    static const char word[] = PM_ROOT_DROPPED;
    const char *rest = root->object + sizeof word - 1;
    if (strncmp(root->object, word, sizeof word - 1) != 0)
        return false;
    rest += strspn(rest, "0123456789");
    return *rest == '\0' || *rest == '-';
}

bool pm_heap_roots_are_dropped(void) {
    const struct pm_root_table *t = &pm_heap.super->roots[pm_heap_root_epoch() & 1];
    unsigned dropped = 0;
    for (uint32_t i = 0; i < t->count && i < PM_ROOT_MAX; i++)
        dropped += t->root[i].part == 0 && pm_root_is_dropped(&t->root[i]);
    return dropped && dropped == pm_heap_root_count();
}

unsigned pm_heap_root_count(void) { return pm_super_root_count(pm_heap.super); }
