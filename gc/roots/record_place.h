// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Where the record of a generation lies: a file of the heap's directory, or a part of its first
// fixed medium. Either is a file of bytes: what lies beyond its length is not there.
//
// Calls come from one thread at a time, with the heap open. Nothing here calls malloc. What fails
// sets errno.
#ifndef PM_RECORD_PLACE_H
#define PM_RECORD_PLACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pm_file;

struct pm_record_place {
    int fd;
    struct pm_file *part; // NULL: a file
};

// Whether the open heap has places for records: a heap with names, or a fixed medium that was made
// with room for them.
bool pm_record_place_may_be(void);
// "objects.a" or "objects.b".
const char *pm_record_place_name(uint32_t generation);
enum pm_record_use { PM_RECORD_READ, PM_RECORD_APPEND, PM_RECORD_MAKE };
// PM_RECORD_MAKE: a file that is missing is made. False: errno is ENOENT if there is no record.
bool pm_record_place_open(struct pm_record_place *p, uint32_t generation, enum pm_record_use use);
// Keeps errno.
void pm_record_place_close(struct pm_record_place *p);
// The bytes it has. False: they cannot be known.
bool pm_record_place_length(const struct pm_record_place *p, uint64_t *bytes);
// How many bytes there were, up to `len`; -1.
ssize_t pm_record_place_read(const struct pm_record_place *p, void *to, size_t len, uint64_t at);
// Makes it longer where it has to. ENOSPC, EFBIG: it cannot become so long.
bool pm_record_place_write(const struct pm_record_place *p, const void *from, size_t len,
                           uint64_t at);
// Makes it so many zeroes.
bool pm_record_place_clear(const struct pm_record_place *p, uint64_t bytes);
// All that was written is durable, and so is the file's name.
bool pm_record_place_sync(const struct pm_record_place *p);
// Takes a record away; none may be there.
void pm_record_place_remove(uint32_t generation);

#endif
