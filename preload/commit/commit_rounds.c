// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "commit_rounds.h"

#include <stdint.h>

#include "commit_cost.h"
#include "media/commit/commit.h"
#include "media/journal/pauses_format.h"

#define LITTLE 1024u // pages, which the instant copies in a millisecond or two
#define ROUNDS_MOST 12u
#define VAIN_MOST 2u
#define TIMES_MOST 2u // pages of the first round, in the journal: it takes room on the medium

static uint64_t make_round(unsigned number, bool count) {
    uint64_t before = pm_commit_in_rounds(), looked = pm_commit_round(count);
    uint64_t after = pm_commit_in_rounds();
    pm_commit_round_was(number < PM_PAUSE_ROUNDS ? number : PM_PAUSE_ROUNDS - 1,
                        after > before ? after - before : 0);
    return looked;
}

// What the instant finds may be more than the last round: threads may have to be waited for.
void pm_commit_rounds(bool count, void (*anew)(void)) {
    uint64_t last = UINT64_MAX, most = UINT64_MAX, looked;
    for (unsigned i = 0, vain = 0; i < ROUNDS_MOST; i++, last = looked) {
        anew();
        looked = make_round(i, count);
        vain += looked > last / 4 * 3;
        most = i ? most : TIMES_MOST * pm_commit_in_rounds() + LITTLE;
        bool over = looked < LITTLE || vain == VAIN_MOST || pm_commit_in_rounds() > most;
        if (!looked || (over && pm_commit_ready(2 * looked + LITTLE)))
            return;
    }
}
