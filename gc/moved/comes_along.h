// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The libraries that come along when an object is loaded, since it needs them (DT_NEEDED), or one
// that it needs does: in the order in which dynamic linkers map them.
#ifndef PM_COMES_ALONG_H
#define PM_COMES_ALONG_H

#include "media/objects_format.h"

#define PM_ALONG_MOST 32u

// Those on record, in list[1] and so on; list[0] is the object itself, in the file `path`. Returns
// how many there are with it. The list ends before the first one that is not on record, or is
// another build now.
unsigned pm_comes_along(const struct pm_objects_entry *list[PM_ALONG_MOST], const char *path);

#endif
