// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "pagemap.h"

#include "table.h"

uint8_t *pm_tag;
uint32_t *pm_page_extent;

static struct pm_table tags, pages;

bool pm_pagemap_init(void) {
    bool good = pm_table_reserve(&tags, PM_GRANULES) &&
                pm_table_reserve(&pages, PM_PAGES * sizeof *pm_page_extent);
    pm_tag = (uint8_t *)tags.map;
    pm_page_extent = (uint32_t *)pages.map;
    return good;
}

bool pm_pagemap_cover(uint64_t bytes) {
    return pm_table_need(&tags, bytes >> PM_GRANULE_SHIFT) &&
           pm_table_need(&pages, (bytes >> PM_PAGE_SHIFT) * sizeof *pm_page_extent);
}
