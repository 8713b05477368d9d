// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include <sys/mman.h>

#include "base/lazy_table.h"
#include "base/own_limit.h"
#include "rows.h"

bool pm_memory_set_length(struct pm_shard *s, uint64_t bytes) {
    return (bytes <= s->frontier || pm_address_limit_told_allows(bytes)) &&
           pm_lazy_table_need(&s->anonymous, bytes);
}

bool pm_memory_release(uint64_t offset, uint64_t len) {
    return madvise(pm_heap_at(offset), len, MADV_DONTNEED) == 0;
}

bool pm_detached_release(uint64_t offset, uint64_t len) {
    return mmap(pm_heap_at(offset), len, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED;
}
