// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "commit_print.h"
#include "figures.h"
#include "picture.h"

enum { ROOTS_SHOWN = 64 }; // those that keep most; the others have one row together

static const char style[] =
    "body{font:14px sans-serif;color:#222;max-width:920px;margin:24px auto;padding:0 10px}"
    "table{border-collapse:collapse;margin:8px 0}th,td{padding:3px 10px;text-align:left;"
    "border-bottom:1px solid #ddd;vertical-align:top}td.n{text-align:right}"
    ".bar{height:12px;background:#c9dcf2;width:200px}.bar div{height:12px;background:#2f6db5}"
    "h1{font-size:20px;overflow-wrap:anywhere}h2{font-size:16px;margin-top:28px}"
    // On a narrow screen nothing is cut: pictures shrink, words break, bars are shorter.
    "svg{max-width:100%;height:auto}td,th{overflow-wrap:anywhere}"
    "@media(max-width:600px){.bar{width:60px}th,td{padding:3px 4px}}";

static void row(const char *name, const char *value) {
    printf("<tr><th>%s</th><td>", name);
    picture_text(value);
    puts("</td></tr>");
}

static void put_facts(const struct info *info) {
    const struct pm_recovery *f = &info->found;
    char text[160], a[32], b[32];
    struct pm_program program;
    puts("<table id=\"facts\">");
    row("state", info->found.was_clean ? "clean" : "needs recovery");
    row("guarantee", commit_guarantee());
    row("program", info_program(&program) ? program.path : "none recorded");
    snprintf(text, sizeof text, "%s objects, %s", figure_count(f->live_objects, a),
             figure_bytes(f->live_bytes, b));
    row("live", text);
    snprintf(text, sizeof text, "%s objects, %s%s", figure_count(f->leaked_objects, a),
             figure_bytes(f->leaked_bytes, b), f->leaks_exact ? "" : " (large ones only)");
    row("leaked", text);
    snprintf(text, sizeof text, "%s, of which free %s", figure_bytes(info->census.frontier, a),
             figure_bytes(info->census.free_bytes, b));
    row("address space", text);
    puts("</table>");
}

// The three kinds of blocks that take most of it.
static void put_kinds(const struct retained_blocks *b) {
    bool shown[PM_CLASSES + 1] = {false};
    char count[32], bytes[32];
    for (unsigned n = 0; n < 3; n++) {
        unsigned best = 0;
        for (unsigned cls = 1; cls <= PM_CLASSES; cls++)
            if (shown[best] || (!shown[cls] && b->bytes[cls] > b->bytes[best]))
                best = cls;
        if (shown[best] || !b->bytes[best])
            return;
        shown[best] = true;
        printf("%s%s of ", n ? ", " : "", figure_count(b->count[best], count));
        if (best)
            printf("%u B", pm_classes[best].size);
        else
            printf("over %u B (%s)", (unsigned)PM_SMALL_MAX, figure_bytes(b->bytes[0], bytes));
    }
}

static void put_root(const char *name, uint64_t length, const struct retained_blocks *b,
                     uint64_t whole) {
    char bytes[32], count[32], own[32];
    printf("<tr><td>");
    picture_text(name);
    printf("</td><td class=\"n\">%s</td><td class=\"n\">%s</td><td class=\"n\">%s</td>",
           length ? figure_bytes(length, own) : "", figure_count(b->all_count, count),
           figure_bytes(b->all_bytes, bytes));
    printf("<td><div class=\"bar\"><div style=\"width:%.1f%%\"></div></div></td><td>",
           whole ? 100.0 * (double)b->all_bytes / (double)whole : 0.0);
    put_kinds(b);
    puts("</td></tr>");
}

static int by_bytes(const void *a, const void *b) {
    const struct retained_root *x = *(const struct retained_root *const *)a,
                               *y = *(const struct retained_root *const *)b;
    if (x->blocks.all_bytes != y->blocks.all_bytes)
        return x->blocks.all_bytes < y->blocks.all_bytes ? 1 : -1;
    return (x > y) - (x < y);
}

static void put_others(const struct retained_root *const *root, unsigned count, uint64_t whole) {
    struct retained_blocks sum = {0};
    uint64_t length = 0;
    char name[32];
    for (unsigned i = 0; i < count; i++) {
        retained_add(&sum, &root[i]->blocks);
        length += root[i]->length;
    }
    snprintf(name, sizeof name, "%u other root%s", count, count == 1 ? "" : "s");
    put_root(name, length, &sum, whole);
}

static void put_roots(const struct picture *p) {
    static const struct retained_root *sorted[RETAINED_ROOTS];
    const struct retained *r = &p->retained;
    uint64_t whole = r->shared.all_bytes;
    for (unsigned i = 0; i < r->count; i++) {
        sorted[i] = &r->root[i];
        whole += r->root[i].blocks.all_bytes;
    }
    qsort(sorted, r->count, sizeof sorted[0], by_bytes);
    puts("<h2>What each root keeps alive</h2>\n<p>Blocks that only this root reaches: they would "
         "be free without it.</p>\n<table id=\"roots\"><tr><th>root</th><th>its bytes</th>"
         "<th>blocks</th><th>their bytes</th><th></th><th>mostly</th></tr>");
    unsigned shown = r->count < ROOTS_SHOWN ? r->count : ROOTS_SHOWN;
    for (unsigned i = 0; i < shown; i++)
        put_root(sorted[i]->text, sorted[i]->length, &sorted[i]->blocks, whole);
    if (r->count > shown)
        put_others(sorted + shown, r->count - shown, whole);
    if (r->count > 1)
        put_root("more than one root", 0, &r->shared, whole);
    puts("</table>");
}

static void put_large(const struct census *c) {
    char from[32], bytes[32], live[32], count[32];
    if (!c->extents)
        return;
    puts("<h2>Large blocks</h2>\n<table id=\"large\"><tr><th>from</th><th>blocks</th>"
         "<th>bytes</th><th>live</th></tr>");
    for (unsigned i = 0; i < CENSUS_BUCKETS; i++) {
        const struct census_bucket *k = &c->bucket[i];
        if (k->count)
            printf("<tr><td class=\"n\">%s</td><td class=\"n\">%s</td><td class=\"n\">%s</td>"
                   "<td class=\"n\">%s</td></tr>\n",
                   figure_bytes(PM_PAGE_SIZE << i, from), figure_count(k->count, count),
                   figure_bytes(k->bytes, bytes), figure_count(k->live, live));
    }
    puts("</table>");
}

void picture_html(const struct picture *p) {
    puts("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
         "<meta name=\"viewport\" content=\"width=device-width\">");
    printf("<title>");
    picture_text(p->info->heap);
    printf("</title><style>%s</style></head><body>\n<h1>", style);
    picture_text(p->info->heap);
    puts("</h1>");
    put_facts(p->info);
    puts("<h2>Map</h2>");
    picture_svg(p, false);
    put_roots(p);
    put_large(&p->info->census);
    puts("</body></html>");
}
