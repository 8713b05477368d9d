// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "here.h"

static bool nobody(void) { return false; }

static _Atomic uint32_t always = 1;
_Atomic uint32_t *pm_here_word = &always;
bool (*pm_here_lost)(void) = nobody;

void pm_here_mark(void) { atomic_store_explicit(pm_here_word, 1, memory_order_relaxed); }

void pm_here_watch(_Atomic uint32_t *word, bool (*lost)(void)) {
    atomic_store_explicit(word, 1, memory_order_relaxed);
    pm_here_lost = lost;
    pm_here_word = word;
}
