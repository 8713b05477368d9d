// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "pauses_print.h"

#include <stdio.h>

#include "figures.h"

static double milliseconds(uint64_t ns) { return (double)ns / 1e6; }

void pauses_text(const struct pm_pauses *pauses, const char *before) {
    char text[32];
    printf("threads stood still %s times, half of them for at most %.3g ms, 99 of 100 for at most "
           "%.3g ms, the longest for %.3g ms",
           figure_count(pm_pauses_count(pauses), text), milliseconds(pm_pauses_at_most(pauses, 50)),
           milliseconds(pm_pauses_at_most(pauses, 99)), milliseconds(pauses->longest_ns));
    if (pauses->failed)
        printf("%s%s commits have failed before a later one succeeded", before,
               figure_count(pauses->failed, text));
    if (!pauses->round[0])
        return;
    printf("%spages: %s found meanwhile", before, figure_count(pauses->instant, text));
    for (unsigned i = 0; i < PM_PAUSE_ROUNDS; i++)
        printf(", %s in round %u", figure_count(pauses->round[i], text), i + 1);
}

void pauses_json(struct json *j, const struct pm_pauses *pauses) {
    json_open(j, "pauses", '{');
    json_number(j, "count", pm_pauses_count(pauses));
    json_number(j, "held_ns", pauses->held_ns);
    json_number(j, "median_at_most_ns", pm_pauses_at_most(pauses, 50));
    json_number(j, "p99_at_most_ns", pm_pauses_at_most(pauses, 99));
    json_number(j, "longest_ns", pauses->longest_ns);
    json_open(j, "lengths", '[');
    for (unsigned i = 0; i <= PM_PAUSE_BOUNDS; i++) {
        if (!pauses->of[i])
            continue;
        json_open(j, NULL, '{');
        if (i < PM_PAUSE_BOUNDS)
            json_number(j, "at_most_ns", pm_pause_bound(i));
        json_number(j, "count", pauses->of[i]);
        json_close(j, '}');
    }
    json_close(j, ']');
    json_number(j, "failed_commits", pauses->failed);
    json_number(j, "pages_at_instants", pauses->instant);
    json_open(j, "pages_in_rounds", '[');
    for (unsigned i = 0; i < PM_PAUSE_ROUNDS; i++)
        json_number(j, NULL, pauses->round[i]);
    json_close(j, ']');
    json_close(j, '}');
}
