// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "pmem.h"

#include <libpmem.h>

#include "media/persist.h"

void pmem_use(void) {
    if (pm_durability == PM_DURABLE_LINE)
        pm_persist = (struct pm_persist_ops){pmem_flush, pmem_drain};
}
