// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "trust.h"

#include "base/options.h"

static const struct pm_option_word words[] = {{"exact", PM_TRUST_EXACT},
                                              {"hashed", PM_TRUST_HASHED},
                                              {"numbered", PM_TRUST_NUMBERED},
                                              {"stale", PM_TRUST_STALE}};

static bool parse(unsigned *bits) {
    const char *text = pm_options.rebase_trust.text;
    *bits = 0;
    return !*text || pm_option_words(text, words, sizeof words / sizeof *words, bits);
}

int pm_trust_check(struct pm_error *err) {
    unsigned bits;
    if (parse(&bits))
        return PM_OK;
    return pm_fail(err, PM_USAGE,
                   "PMALLOC_REBASE_TRUST=%.100s: not a valid value; use one or more of exact, "
                   "hashed, numbered and stale, with commas between them",
                   pm_options.rebase_trust.text);
}

bool pm_trusts(unsigned what) {
    unsigned bits;
    return parse(&bits) && bits & what;
}
