// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "remarks.h"

#include <stdio.h>

#include "figures.h"
#include "marking/forms.h"

// Another line, on standard error, says what to set.
static void disguised_text(const struct pm_recovery *f) {
    char size[32], count[32];
    printf("kept       %s block%s of %s, which only words that look like %s pointers reach%s%s\n",
           figure_count(f->disguised.blocks, count), f->disguised.blocks == 1 ? "" : "s",
           figure_bytes(f->disguised.bytes, size), pm_forms_text(f->disguised.form),
           *f->disguised.way ? ", as in " : "", f->disguised.way);
}

static void out_text(const struct pm_out_found *out) {
    char into[PM_OUTSIDE_NAME + 32], count[32];
    pm_out_range_text(&out->into, into, sizeof into);
    printf("leads out  %s%s word%s into %s, as in %s (pmalloc-info --out lists them)\n",
           out->all ? "" : "at least ", figure_count(out->words + out->others, count),
           out->words + out->others == 1 ? "" : "s", into, out->way);
}

static void cleared_text(uint64_t words, const char *which) {
    char count[32];
    printf("cleared    %s word%s that %s\n", figure_count(words, count), words == 1 ? "" : "s",
           which);
}

void remarks_text(const struct pm_recovery *f) {
    if (f->reached_before) {
        char before[32];
        printf("before     the last recovery reached %s: is a root missing, or a form of pointers "
               "(--pointers)?\n",
               figure_bytes(f->reached_before, before));
    }
    if (f->disguised.form)
        disguised_text(f);
    if (f->out)
        out_text(f->out);
    if (f->cleared)
        cleared_text(f->cleared, "led into what is gone (--transient)");
    if (f->declared)
        cleared_text(f->declared, "the program has declared transient");
}

void remarks_json(struct json *j, const struct pm_recovery *f) {
    json_number(j, "reached_before", f->reached_before);
    json_number(j, "disguised_blocks", f->disguised.blocks);
    json_number(j, "disguised_bytes", f->disguised.bytes);
    json_text(j, "disguised_form", f->disguised.form ? pm_forms_text(f->disguised.form) : "");
    json_text(j, "disguised_way", f->disguised.form ? f->disguised.way : "");
    json_number(j, "words_out", f->out ? f->out->words + f->out->others : 0);
    json_number(j, "words_cleared", f->cleared);
    json_number(j, "words_declared", f->declared);
}
