// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Pictures of the open heap, in SVG, and a page in HTML that contains them. Both need no other
// file and no network.
#ifndef PM_TOOLS_PICTURE_H
#define PM_TOOLS_PICTURE_H

#include "info_print.h"
#include "retained.h"

enum { PICTURE_CELLS = 2048 };

// What a picture shows. All of it is taken before the first byte is printed.
struct picture {
    const struct info *info;
    char cells[PICTURE_CELLS + 1]; // census_map()
    unsigned cell_count;
    struct retained retained; // of a page alone
};

// For a page, or for the picture alone: then nothing is marked once more for each root.
int picture_take(struct picture *p, const struct info *info, bool page, pm_progress *progress,
                 struct pm_error *err);

// The map and the size classes, as one SVG document, or as a part of a page.
void picture_svg(const struct picture *p, bool document);
// One page: what the heap is, the pictures, and what each root keeps alive.
void picture_html(const struct picture *p);

// Text with the characters of markup replaced, and what XML forbids. `text` may be any bytes, but
// what is printed is UTF-8.
void picture_text(const char *text);

#endif
