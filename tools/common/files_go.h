// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Data files of a closed heap go to another of its directories: the one on a node's device. The
// files of a shard are copied, and are durable with their names; then one byte of the superblock
// says where they lie; then those before are unlinked. A kill leaves one of the two whole, and
// perhaps remnants of the other, which nobody reads and the next pmalloc-recover removes.
#ifndef PM_TOOLS_FILES_GO_H
#define PM_TOOLS_FILES_GO_H

#include "base/message.h"

// The data files that lie on devices of other nodes than `node` (pm_nodes) go to a directory of the
// heap on a device of it, if there is one. The first data file stays: it is in the first directory.
// New pages are asked of the machine's node `id`. *count: how many data files have gone.
int files_go(unsigned node, unsigned id, unsigned *count, struct pm_error *err);

#endif
