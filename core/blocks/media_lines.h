// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The lines of morph.N: 64 bytes each, taken and given back in runs. They have the index tables of
// slabs that morph (morph_media.h), the tables of pinned blocks (pinned_table.h) and the tables of
// links (link_table.h). Which are in use is volatile: recovery finds it out from what names the
// tables.
//
// Lock: the shard's extent lock, which these functions take, but for recovery's. The heap is on
// media.
#ifndef PM_MEDIA_LINES_H
#define PM_MEDIA_LINES_H

#include <stdbool.h>
#include <stdint.h>

#include "media/heap.h"

bool pm_media_lines_init(void);
// Takes `count` lines in a row; *line is the first. False: there is no room.
bool pm_media_lines_take(struct pm_shard *s, uint32_t count, uint32_t *line);
// Makes them free. No header on media names them any more.
void pm_media_lines_give(struct pm_shard *s, uint32_t line, uint32_t count);
// For recovery, which is single-threaded in a shard: marks as in use what a header names. False:
// another one names a line of them, too, or memory is out.
bool pm_media_lines_claim(struct pm_shard *s, uint32_t line, uint32_t count);
// The lines of the file.
uint32_t pm_media_lines_there(const struct pm_shard *s);

#endif
