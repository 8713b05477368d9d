// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The file `volume` in each further directory of a heap. It says whose the directory is.
#ifndef PM_VOLUME_FILE_H
#define PM_VOLUME_FILE_H

#include "base/os_file.h"
#include "media/heap.h"

#define PM_VOLUME_FILE "volume"

struct pm_volume pm_volume_file(const uint8_t uuid[16], unsigned k);
// Reads a file from its start. False: it failed, with errno; errno 0: it is too short.
bool pm_volume_read_file(int dir_fd, const char *name, void *to, size_t size);
// PM_NOT_THERE: the directory has no such file, or one that is not intact.
enum pm_there pm_volume_read(int dir_fd, struct pm_volume *v);
// Whether the directory is another volume of a heap. It has no superblock, and must not be taken
// for a remnant.
enum pm_there pm_volume_is_one(int dir_fd);

#endif
