// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "pagemap.h"

#include "base/lazy_table.h"

uint8_t *pm_tag;
uint32_t *pm_page_extent;

static struct pm_range_table tags = {.element = sizeof *pm_tag, .shift = PM_GRANULE_SHIFT};
static struct pm_range_table pages = {.element = sizeof *pm_page_extent, .shift = PM_PAGE_SHIFT};

bool pm_pagemap_init(void) {
    bool good = pm_range_table_reserve(&tags, pm_range) && pm_range_table_reserve(&pages, pm_range);
    pm_tag = (uint8_t *)tags.table[0].map;
    pm_page_extent = (uint32_t *)(void *)pages.table[0].map;
    return good;
}
