// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The loaded objects on record (media/objects_format.h): read, compared with what is loaded now,
// and written. A heap without names has no record, nor a fixed one that was made without room for
// it.
//
// Calls come from one thread at a time, with the heap open. Nothing here calls malloc.
#ifndef PM_OBJECTS_RECORD_H
#define PM_OBJECTS_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "elf_file.h"
#include "media/objects_format.h"
#include "twins.h"

// Whether this heap can have a record.
bool pm_record_may_be(void);
// Reads the record in force. False: there is none, or it cannot be read; then nothing is on record.
bool pm_record_read(void);
// Whether that was done, for the record in force.
bool pm_record_was_read(void);
// Whether it is whole. `all`: with the packed objects. PM_DAMAGE: it is not. PM_OPERATIONAL: it
// cannot be read.
int pm_record_check(bool all, struct pm_error *err);
// The entries that were read.
const struct pm_objects_entry *pm_record_entries(unsigned *count);
// Whether the program or one of its libraries lay at an address: by what was read, or by the
// program on record where a heap has no record of objects.
bool pm_record_lay_at(uint64_t address);
// The packed object of an entry: e->bytes, which the caller unmaps. NULL: there is none, or it is
// not whole (errno is 0), or it cannot be read.
const void *pm_record_packed(const struct pm_objects_entry *e);
// The generation in force; 0: none.
uint32_t pm_record_generation(void);

// An object that is loaded now, as an entry without a packed object.
typedef bool pm_loaded_fn(const struct pm_objects_entry *e, void *arg);
// Calls `fn` for each, until it returns false.
void pm_record_each_loaded(pm_loaded_fn *fn, void *arg);

// Whether a file is that build, as its build id or checksum tells.
bool pm_record_is_build_of(const struct pm_objects_entry *e, const struct pm_elf *f);
static inline bool pm_record_overlap(const struct pm_objects_entry *a,
                                     const struct pm_objects_entry *b) {
    return a->start < b->end && b->start < a->end;
}

// Appends what is loaded and not on record; begins a record where there is none. What lies over a
// place where it lay before is said to be mixed. `durable`: the record is durable when this
// returns. False, with errno: some of it is not on record.
bool pm_record_note(bool durable);

// Writes a whole record of another generation: what is loaded, and the old entries that `keep` has
// true for. It is durable, and not in force. False, with errno.
bool pm_record_write_next(uint32_t generation, const bool *keep);
// The same, and puts it in force.
bool pm_record_renew(const bool *keep);
// Removes the record that is not in force.
void pm_record_drop_other(void);
// Puts a generation in force in a copy of page 1.
struct pm_state;
void pm_record_switch(struct pm_state *page, uint32_t generation);

#endif
