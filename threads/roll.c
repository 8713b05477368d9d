// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "roll.h"

#include <stdatomic.h>
#include <stddef.h>

#include "base/os.h"
#include "calls.h"
#include "tasks.h"

static pid_t *roll;
static size_t count;
static bool whole;
static pid_t whose; // the thread that has listed them: it is not on it

static void add(pid_t id, void *arg) {
    (void)arg;
    if (count < PM_TASKS)
        roll[count++] = id;
}

bool pm_roll_each(void (*each)(pid_t id, void *arg), void *arg) {
    if (!roll && !(roll = pm_os_reserve(PM_TASKS * sizeof *roll)))
        return pm_tasks_each_other(each, arg);
    pid_t self = pm_calls_self();
    if (!whole || whose != self) {
        whole = false;
        whose = self;
        count = 0;
        if (!pm_tasks_each_other(add, NULL))
            return false;
        whole = true;
    }
    for (size_t i = 0; i < count; i++)
        each(roll[i], arg);
    return true;
}

// Beside the roll: this thread, and PMAlloc's own.
bool pm_roll_counts(size_t threads) {
    unsigned others = pm_os_own_count() - pm_os_is_own((uint32_t)pm_calls_self());
    whole = whole && threads == count + 1 + others;
    return whole;
}

bool pm_roll_has_any(void) { return whole && count != 0; }

void pm_roll_doubt(void) { whole = false; }
