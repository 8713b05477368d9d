// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "root_member.h"

#include "program_types.h"

bool root_member(const char *heap, const struct pm_root *root, char *out) {
    static struct program_types t;
    static bool tried, open;
    struct pm_error ignored;
    char name[DWARF_NAME];
    uint64_t type, offset;
    *out = '\0';
    if (root->kind != PM_ROOT_RANGE)
        return false;
    if (!tried)
        open = program_types_open(&t, heap, &ignored) == PM_OK;
    tried = true;
    return open && program_variable(&t, root, 0, name, sizeof name, &type, &offset) &&
           member_range(t.types, type, name, offset, root->length, out);
}
