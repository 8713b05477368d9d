// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A state machine as a table: the name of each state, and which states may follow it. Three headers
// draw such machines and say what they are for: media/heap_state.h, state/phase.h and
// fork/fork.h.
#ifndef PM_MACHINE_H
#define PM_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#define PM_MACHINE_STATES 8
#define PM_MAY(state) (1u << (state))

struct pm_machine {
    const char *what; // "the heap"
    struct {
        const char *name; // "shared"
        uint32_t next;    // PM_MAY() of each state that may follow
    } state[PM_MACHINE_STATES];
};

static inline bool pm_machine_may(const struct pm_machine *m, unsigned from, unsigned to) {
    return m->state[from].next >> to & 1;
}
// An edge that is not drawn is a fault of PMAlloc: the process ends with a message.
void pm_machine_check(const struct pm_machine *m, unsigned from, unsigned to);

#endif
