// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The x86 persistency model over the metadata files:
//
//   store   appended to its line's pending stores, 8 bytes at a time, in program order
//   flush   (clwb) notes the pending stores of the lines as they are now
//   drain   (sfence) makes durable what this thread has noted
//
// At any moment the cache may have written back any line by itself. The media then hold some prefix
// of the line's pending stores, each line independently of the others.
#ifndef PMALLOC_TESTS_CRASH_MEDIA_H
#define PMALLOC_TESTS_CRASH_MEDIA_H

#include <stddef.h>

#include "world.h"

void media_init(void);
// A word has got a new value. Stores with the same `group` have no compiler barrier between them.
void media_store(unsigned file, uint32_t word, uint64_t value, uint64_t group);
// A change that is durable at once: by the file system, or a store of the program's own.
void media_durable(unsigned file, uint32_t word, uint64_t value);
// The same for the word alone.
void media_hint(unsigned file, uint32_t word, uint64_t value);
void media_flush(unsigned thread, unsigned file, uint32_t first_line, uint32_t last_line);
void media_drain(unsigned thread);
// A mutant has left out the flush or the drain of these lines. They stay dirty longer than they
// should.
void media_taint(unsigned file, uint32_t first_line, uint32_t last_line);
void media_taint_flushed(unsigned thread);
// Whether the next drain of this thread makes stores to the file durable.
bool media_flushed(unsigned thread, unsigned file);
// From now on the file's bytes [from, to) read as zeroes.
void media_punch(unsigned file, uint64_t from, uint64_t to);

// ---- images ----
// Calls `take` for images that a power failure at this moment may leave; `choice` numbers them.
// Where there are more than `limit`, it draws so many. Among these are always: no line, all lines,
// and, while they fit, each line alone and each line missing. `take` returns false to stop.
void media_images(uint64_t limit, uint64_t seed,
                  bool (*take)(uint64_t choice, const uint32_t *prefix, bool loose, void *arg),
                  void *arg);
// Writes the words in which the image of these prefixes differs from the media, and the image's
// hash. Returns the number of words.
uint32_t media_patches(const uint32_t *prefix, bool loose, uint64_t seed, struct patch *out,
                       uint64_t *hash);
// The power fails: the media become this image, and the caches are empty.
void media_become(const struct patch *patch, uint32_t count);

#endif
