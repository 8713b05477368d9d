// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The x86 persistency model over the metadata files:
//
//   store   appended to its line's pending stores, 8 bytes at a time, in program order
//   flush   (clwb) the pending stores of the lines as they are now will be durable at this thread's next drain
//   drain   (sfence) makes them durable
//
// At any moment any line may have been written back by the cache's own choice: the media then hold some prefix of
// the line's pending stores, each line on its own.
#ifndef PMALLOC_TESTS_CRASH_MEDIA_H
#define PMALLOC_TESTS_CRASH_MEDIA_H

#include <stddef.h>

#include "world.h"

void media_init(void);
// The word is seen to have a new value. Stores of one group have no compiler barrier between them.
void media_store(unsigned file, uint32_t word, uint64_t value, uint64_t group);
// Without the caches: data that is durable at once (file system, the program's own flushed stores).
void media_durable(unsigned file, uint32_t word, uint64_t value);
void media_flush(unsigned thread, unsigned file, uint32_t first_line, uint32_t last_line);
void media_drain(unsigned thread);
// A mutant leaves out the flush of these lines, or a drain: their stores are now where they should not be.
void media_taint(unsigned file, uint32_t first_line, uint32_t last_line);
void media_taint_flushed(unsigned thread);
// The file's bytes [from, to) read as zeroes from here on.
void media_punch(unsigned file, uint64_t from, uint64_t to);

// ---- images ----
// Calls `take` for images that a power failure at this moment may leave. `choice` numbers them. At most `limit`
// are drawn where there are more; always none, all, and each line alone or missing while they fit.
void media_images(uint64_t limit, uint64_t seed,
                  bool (*take)(uint64_t choice, const uint32_t *prefix, bool loose, void *arg),
                  void *arg);
// The words that differ from `media` in the image of these prefixes; returns how many, and the image's hash.
uint32_t media_patches(const uint32_t *prefix, bool loose, uint64_t seed, struct patch *out,
                       uint64_t *hash);
// The power fails: the media become this image and the caches are empty.
void media_become(const struct patch *patch, uint32_t count);

#endif
