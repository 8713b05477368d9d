// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "trust.h"

#include <string.h>

#include "base/options.h"

static const struct {
    const char *name;
    unsigned bit;
} words[] = {
    {"exact", PM_TRUST_EXACT}, {"hashed", PM_TRUST_HASHED}, {"numbered", PM_TRUST_NUMBERED}};

static unsigned bit_of(const char *text, size_t len) {
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strlen(words[i].name) == len && memcmp(words[i].name, text, len) == 0)
            return words[i].bit;
    return 0;
}

// False: a word is none of them.
static bool parse(unsigned *bits) {
    const char *text = pm_options.rebase_trust.text;
    *bits = 0;
    while (*text) {
        size_t len = strcspn(text, ",");
        unsigned bit = bit_of(text, len);
        if (!bit)
            return false;
        *bits |= bit;
        text += text[len] ? len + 1 : len;
    }
    return true;
}

int pm_trust_check(struct pm_error *err) {
    unsigned bits;
    if (parse(&bits))
        return PM_OK;
    return pm_fail(err, PM_USAGE,
                   "PMALLOC_REBASE_TRUST=%.100s: not a valid value; use one or more of exact, "
                   "hashed and numbered, with commas between them",
                   pm_options.rebase_trust.text);
}

bool pm_trusts(unsigned what) {
    unsigned bits;
    return parse(&bits) && bits & what;
}
