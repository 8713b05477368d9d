// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A tool reads a heap through mappings. A block that the disk cannot read, or a file that is cut
// meanwhile, is a SIGBUS there. It becomes a message and exit status 8, in the tool and in each
// process that it forks.
#ifndef PM_TOOLS_BAD_READ_H
#define PM_TOOLS_BAD_READ_H

// Once, before a heap is opened.
void bad_reads_catch(void);

#endif
