// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// PMALLOC_REBASE_TRUST: what is taken for granted where words are made to lead to the same things,
// although it cannot be proved.
#ifndef PM_TRUST_H
#define PM_TRUST_H

#include <stdbool.h>

#include "base/message.h"

#define PM_TRUST_EXACT 1u    // in a program at fixed addresses the address of a thing is no number
#define PM_TRUST_HASHED 2u   // the program makes tables anew that are hashed by an address
#define PM_TRUST_NUMBERED 4u // what only numbers tell apart stands in the same order
#define PM_TRUST_STALE 8u    // a word of which nothing else can be proved is one that nobody reads

// PM_USAGE: the setting has another word.
int pm_trust_check(struct pm_error *err);
bool pm_trusts(unsigned what);

#endif
