// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc-info --tree ROOT: the values that a root leads to, as the types of the program's debug
// information say. It is bounded: by depth (pointers followed one after the other; a pointer to the
// same type, as in a list, is width), and by width (elements of an array that are not zero, links
// of a list).
#ifndef PM_TOOLS_TREE_H
#define PM_TOOLS_TREE_H

#include <stdbool.h>

struct tree_request {
    const char *heap, *root;
    unsigned depth, width;
    bool json;
};
// Of the open heap, which was marked. Prints the tree, or one line that says why not. Returns an
// enum pm_status.
int tree_print(const struct tree_request *q);

#endif
