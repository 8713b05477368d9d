// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "pagemap.h"

#include "os.h"

uint8_t *pm_tag;
uint32_t *pm_page_extent;

bool pm_pagemap_init(void) {
    pm_tag = pm_os_reserve(PM_GRANULES);
    pm_page_extent = pm_os_reserve(PM_PAGES * sizeof *pm_page_extent);
    return pm_tag && pm_page_extent;
}
