// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The roots as this process has them: those that PMALLOC_ROOTS names, and those of the heap.
//
// A root that is restored late (PM_ROOT_AT_IDLE, PM_ROOT_AT_CALL) is not of use before that: it
// waits. Its entry and its image go from table to table as the last run left them, so whatever ends
// the process meanwhile, it is as if the program had not started.
#ifndef PM_ROOTS_PARTS_H
#define PM_ROOTS_PARTS_H

#include "base/message.h"
#include "media/format.h"
#include "spec.h"

// Where one part of a spec lies.
struct pm_part {
    struct pm_spec spec;
    uint32_t number;
    uintptr_t address;
    uint64_t length;
    uint8_t build[PM_ROOT_BUILD]; // of a range
};

extern struct pm_part *pm_parts; // room for PM_ROOT_MAX, from pm_roots_prepare() on
extern unsigned pm_part_count;

// NULL: there is none.
const struct pm_part *pm_part_find(const struct pm_spec *spec, uint32_t number);
const struct pm_part *pm_part_of(const struct pm_root *root);
// When the late roots are to be restored, all at one instant: PM_ROOT_AT_START if there are none,
// PM_ROOT_AT_CALL if one of them says so.
enum pm_root_when pm_parts_when(void);
bool pm_part_waits(const struct pm_part *part);
// The time of the late roots has come.
void pm_parts_ready(void);

#endif
