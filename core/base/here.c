// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "here.h"

static bool nobody(void) { return false; }

static _Atomic uint32_t always = 1;
_Atomic uint32_t *pm_here_word = &always;
bool (*pm_here_lost)(void) = nobody;

uint32_t pm_here_number(void) {
    return pm_here_word == &always ? 0 : atomic_load_explicit(pm_here_word, memory_order_relaxed);
}

// A child inherits it, and so gets another number.
static uint32_t next(void) {
    return atomic_fetch_add_explicit(&always, 1, memory_order_relaxed) + 1;
}

void pm_here_mark(void) { atomic_store_explicit(pm_here_word, next(), memory_order_relaxed); }

void pm_here_watch(_Atomic uint32_t *word, bool (*lost)(void)) {
    atomic_store_explicit(word, next(), memory_order_relaxed);
    pm_here_lost = lost;
    pm_here_word = word;
}
