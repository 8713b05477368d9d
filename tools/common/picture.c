// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "picture.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "figures.h"
#include "text.h"

// Lengths are in pixels.
enum { WIDTH = 880, COLUMNS = 64, CELL = WIDTH / COLUMNS, MARGIN = 10, LINE = 20, LABEL = 90 };
enum { BAR_WIDTH = 420 };

static const char free_colour[] = "#e8e8e8", large_colour[] = "#e0a030", huge_colour[] = "#c05028",
                  leaked_colour[] = "#9040a0", pinned_colour[] = "#3f8f4f",
                  live_colour[] = "#2f6db5", empty_colour[] = "#c9dcf2";

int picture_take(struct picture *p, const struct info *info, bool page, pm_progress *progress,
                 struct pm_error *err) {
    uint64_t slabs = info->census.frontier / PM_SLAB_SIZE;
    p->info = info;
    p->cell_count = slabs >= PICTURE_CELLS ? PICTURE_CELLS : slabs ? (unsigned)slabs : 1;
    p->cells[0] = '\0';
    if (info->census.frontier)
        census_map(p->cells, p->cell_count);
    else
        p->cell_count = 0;
    return page ? retained_find(&p->retained, progress, err) : PM_OK;
}

// U+FFFE and U+FFFF are valid UTF-8, but XML forbids them.
static bool forbidden(const unsigned char *c) {
    return c[0] == 0xef && c[1] == 0xbf && c[2] >= 0xbe;
}

void picture_text(const char *text) {
    const unsigned char *c = (const unsigned char *)text;
    for (size_t length; *c; c += length ? length : 1) {
        length = text_utf8_length(c);
        if (length == 0 || (length == 3 && forbidden(c)))
            fputs("\xef\xbf\xbd", stdout); // U+FFFD, for each byte that is no character
        else if (*c == '<' || *c == '>' || *c == '&' || *c == '"')
            printf("&#%u;", *c);
        else if (*c < ' ' || *c == 127)
            putchar('?');
        else
            fwrite(c, 1, length, stdout);
    }
}

// ---- the map ------------------------------------------------------------------------------------

// A slab's colour goes from pale to dark by its live tenths.
static const char *colour_of(char cell, char out[8]) {
    static const unsigned pale[] = {0xdc, 0xe9, 0xf8}, dark[] = {0x10, 0x40, 0x85};
    unsigned rgb[3], tenths = cell == '#' ? 10 : (unsigned)(cell - '0');
    if (cell == '.' || cell == 'L' || cell == 'H' || cell == 'P' || cell == '?')
        return cell == '.'   ? free_colour
               : cell == 'L' ? large_colour
               : cell == 'H' ? huge_colour
               : cell == 'P' ? pinned_colour
                             : leaked_colour;
    for (unsigned i = 0; i < 3; i++)
        rgb[i] = (pale[i] * (10 - tenths) + dark[i] * tenths) / 10;
    snprintf(out, 8, "#%02x%02x%02x", rgb[0] & 255, rgb[1] & 255, rgb[2] & 255);
    return out;
}

static const char *meaning(char cell) {
    return cell == '.'   ? "free"
           : cell == 'L' ? "large blocks"
           : cell == 'H' ? "huge blocks"
           : cell == 'P' ? "pinned blocks"
           : cell == '?' ? "large blocks that nothing reaches"
                         : "slabs";
}

// Runs of equal cells of a row are one rectangle.
static void draw_cells(const struct picture *p, unsigned top) {
    char colour[8];
    for (unsigned i = 0; i < p->cell_count;) {
        unsigned first = i, row = i / COLUMNS;
        while (i < p->cell_count && i / COLUMNS == row && p->cells[i] == p->cells[first])
            i++;
        printf("<rect x=\"%u\" y=\"%u\" width=\"%u\" height=\"%u\" fill=\"%s\"><title>%s",
               MARGIN + first % COLUMNS * CELL, top + row * CELL, (i - first) * CELL - 1, CELL - 1,
               colour_of(p->cells[first], colour), meaning(p->cells[first]));
        if (p->cells[first] == '#')
            printf(", full");
        else if (p->cells[first] >= '0' && p->cells[first] <= '9')
            printf(", %c0%% live", p->cells[first]);
        puts("</title></rect>");
    }
}

static void draw_legend(unsigned top) {
    static const char shown[] = {'.', '0', '5', '#', 'L', 'H', 'P', '?'};
    static const char *const names[] = {"free",  "slab, empty", "half live", "full",
                                        "large", "huge",        "pinned",    "unreachable"};
    char colour[8];
    for (unsigned i = 0; i < sizeof shown; i++) {
        unsigned x = MARGIN + i * 108;
        printf("<rect x=\"%u\" y=\"%u\" width=\"12\" height=\"12\" fill=\"%s\"/>"
               "<text x=\"%u\" y=\"%u\">%s</text>\n",
               x, top, colour_of(shown[i], colour), x + 18, top + 11, names[i]);
    }
}

// ---- the size classes ---------------------------------------------------------------------------

static unsigned class_rows(const struct census *c) {
    unsigned rows = 0;
    PM_EACH_CLASS(i)
        rows += c->cls[i].blocks != 0;
    return rows;
}

// The length of a bar is the space of the class's slabs, and its dark part what is live of it.
static void draw_classes(const struct census *c, unsigned top) {
    uint64_t most = 1;
    PM_EACH_CLASS(i)
        if (c->cls[i].blocks * pm_classes[i].size > most)
            most = c->cls[i].blocks * pm_classes[i].size;
    PM_EACH_CLASS(i) {
        const struct census_class *k = &c->cls[i];
        char live[32], blocks[32];
        if (!k->blocks)
            continue;
        double all = (double)(k->blocks * pm_classes[i].size) * BAR_WIDTH / (double)most;
        double used = (double)(k->live * pm_classes[i].size) * BAR_WIDTH / (double)most;
        printf("<text x=\"%u\" y=\"%u\" text-anchor=\"end\">%u</text>", LABEL - 10, top + 14,
               pm_classes[i].size);
        printf("<rect x=\"%u\" y=\"%u\" width=\"%.1f\" height=\"14\" fill=\"%s\"/>", LABEL, top + 3,
               all < 1 ? 1 : all, empty_colour);
        printf("<rect x=\"%u\" y=\"%u\" width=\"%.1f\" height=\"14\" fill=\"%s\"/>", LABEL, top + 3,
               used, live_colour);
        printf("<text x=\"%u\" y=\"%u\">%s of %s live</text>\n", LABEL + BAR_WIDTH + 12, top + 14,
               figure_count(k->live, live), figure_count(k->blocks, blocks));
        top += LINE;
    }
}

void picture_svg(const struct picture *p, bool document) {
    const struct census *c = &p->info->census;
    unsigned rows = (p->cell_count + COLUMNS - 1) / COLUMNS, classes = class_rows(c);
    unsigned map_top = 2 * LINE + 10, legend_top = map_top + rows * CELL + 8;
    unsigned class_top = legend_top + 3 * LINE;
    unsigned height = class_top + (classes ? (classes + 1) * LINE : 0);
    char size[32], cell[32];
    if (document)
        puts("<?xml version=\"1.0\" encoding=\"UTF-8\"?>");
    printf("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%u\" height=\"%u\" "
           "viewBox=\"0 0 %u %u\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n",
           WIDTH + 2 * MARGIN, height, WIDTH + 2 * MARGIN, height);
    if (document)
        printf("<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n");
    printf("<text x=\"%u\" y=\"%u\" font-weight=\"bold\">", MARGIN, LINE);
    picture_text(p->info->heap);
    printf("</text>\n<text x=\"%u\" y=\"%u\">%s up to the end of what is in use; a cell is %s"
           "</text>\n",
           MARGIN, 2 * LINE, figure_bytes(c->frontier, size),
           figure_bytes(p->cell_count ? c->frontier / p->cell_count : 0, cell));
    draw_cells(p, map_top);
    draw_legend(legend_top);
    if (classes)
        printf("<text x=\"%u\" y=\"%u\" font-weight=\"bold\">Small blocks by size in bytes: "
               "slabs, and what of them is live</text>\n",
               MARGIN, class_top - 6);
    draw_classes(c, class_top);
    puts("</svg>");
}
