// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What the files of a heap take up, by the table of core/media/heap_files.h.
#ifndef PM_TOOLS_FILES_H
#define PM_TOOLS_FILES_H

#include <stdint.h>

#include "base/message.h"
#include "media/heap_files.h"

struct files {
    struct file_space {
        char name[PM_FILE_NAME];    // seen from the heap's directory
        uint64_t length, allocated; // bytes; allocated on the file system
    } file[PM_HEAP_FILES];
    unsigned count;
    uint64_t heap_bytes;     // length of the data
    uint64_t data_bytes;     // allocated by the data
    uint64_t metadata_bytes; // allocated by all files but the data and the captured roots
};

// `dir_fd` is the heap's directory, `dir` its name for messages. A file that is missing has no
// length.
int files_measure(int dir_fd, const char *dir, struct files *files, struct pm_error *err);

#endif
