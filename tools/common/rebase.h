// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc-recover --rebase: words of a heap are made to lead into another build of its program.
// Only the loader knows where that and its libraries come to lie. So the program is started, by
// pmalloc-run and with PMALLOC_REBASE=only or look, which ends it before anything of it has run.
#ifndef PM_TOOLS_REBASE_H
#define PM_TOOLS_REBASE_H

#include <stdbool.h>

#include "cli.h"

// `operand`: the program and the heap; `good`: there are just these, and no other option. Returns
// an exit status only if pmalloc-run cannot be started.
int rebase(const struct cli_tool *tool, char *const *operand, bool dry, bool good);

#endif
