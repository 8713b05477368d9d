// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "rebased_print.h"

#include <stdio.h>

#include "commit_print.h"
#include "figures.h"
#include "media/heap.h"
#include "moved/rebased.h"

void rebased_text(void) {
    struct pm_rebased r;
    char when[96], words[32];
    if (!pm_rebased_read(&pm_heap.super->state, &r))
        return;
    printf("rebased    %u time%s, last at %s: %s word%s, for %s\n", r.count,
           r.count == 1 ? "" : "s", commit_when(r.time, when), figure_count(r.words, words),
           r.words == 1 ? "" : "s", r.other_build ? "another build" : "another place");
}

void rebased_json(struct json *j) {
    struct pm_rebased r;
    if (!pm_rebased_read(&pm_heap.super->state, &r))
        return;
    json_open(j, "rebased", '{');
    json_number(j, "count", r.count);
    json_real(j, "time", (double)r.time / 1e9);
    json_number(j, "words", r.words);
    json_number(j, "words_ever", r.words_ever);
    json_bool(j, "other_build", r.other_build);
    json_close(j, '}');
}
