// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "program_types.h"

#include <string.h>

#include "info_print.h"

int program_types_open(struct program_types *t, const char *heap, struct pm_error *err) {
    struct pm_program on_record;
    uint8_t id[PM_BUILD_ID_MAX] = {0};
    if (!info_program(&on_record))
        return pm_fail(err, PM_OPERATIONAL, "%s names no program, so the types are not known",
                       heap);
    if (pm_elf_open(&t->program, on_record.path, err) != PM_OK)
        return pm_fail_in(err, "the program of %s", heap);
    if (pm_elf_build_id(&t->program, id) != on_record.build_id_len ||
        memcmp(id, on_record.build_id, sizeof id) != 0)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s is another build than the one that last used %s, and its types may be "
                       "others: put that build there",
                       on_record.path, heap);
    t->base = on_record.main_base;
    t->types = dw_open(on_record.path, &t->program);
    if (!t->types)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s has no types: build it with -g, or install its debug symbols",
                       on_record.path);
    return PM_OK;
}
