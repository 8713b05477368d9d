// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The places of libraries that are on record and not loaded yet. Nothing else of this process may
// come there before they do: a word that leads there is one of an earlier run then, and is changed
// when the library comes elsewhere. Otherwise it may be one of this process, which leads to what
// lies there now.
#ifndef PM_KEEP_FREE_H
#define PM_KEEP_FREE_H

#include <stdbool.h>

#include "media/objects_format.h"

// Whether addresses may be filled: not under `ulimit -v`, which would count them.
bool pm_places_may_be_filled(void);
// Fills what is free of these places, and empties those where nothing is to come any more, if they
// may be filled. Calls come from one thread at a time.
void pm_places_keep_free(void);
// The same, without what overlaps these places.
void pm_places_keep_free_but(const struct pm_objects_entry *const *given, unsigned givens);
// Empties the place of an entry. False: there was nothing to empty.
bool pm_place_give(const struct pm_objects_entry *e);

#endif
