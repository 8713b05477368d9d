// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "machine.h"

#include "message.h"

void pm_machine_check(const struct pm_machine *m, unsigned from, unsigned to) {
    if (!pm_machine_may(m, from, to))
        pm_abort(PM_EV_INTERNAL_FAULT,
                 "%s is %s and cannot become %s: this is a fault of PMAlloc; the heap keeps what "
                 "it has; please report it",
                 m->what, m->state[from].name, m->state[to].name);
}
