// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "pagemap.h"

#include "base/lazy_table.h"

uint8_t *pm_tag;
uint32_t *pm_page_map;

static struct pm_range_table tables[] = {
    {.element = 1u << 16, .shift = 16 + PM_GRANULE_SHIFT}, // of pm_tag: all rows of a MiB,
    {.element = sizeof *pm_page_map << (PM_MAP_SHIFT - PM_PAGE_SHIFT), .shift = PM_MAP_SHIFT},
};

bool pm_pagemap_init(void) {
    bool good = pm_range_tables_reserve(tables, 2, pm_range);
    pm_tag = (uint8_t *)tables[0].table[0].map;
    pm_page_map = (uint32_t *)(void *)tables[1].table[0].map;
    return good;
}
