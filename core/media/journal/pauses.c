// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "pauses.h"

uint64_t pm_pause_bound(unsigned number) {
    static const uint64_t first[] = {10000, 20000, 50000};
    uint64_t bound = first[number % 3];
    for (unsigned i = number / 3; i; i--)
        bound *= 10;
    return number < PM_PAUSE_BOUNDS ? bound : UINT64_MAX;
}

static uint64_t get(const uint64_t *from) { return __atomic_load_n(from, __ATOMIC_RELAXED); }

static void put(uint64_t *to, uint64_t value) { __atomic_store_n(to, value, __ATOMIC_RELAXED); }

void pm_pauses_add(struct pm_pauses *pauses, uint64_t ns) {
    unsigned number = 0;
    while (ns > pm_pause_bound(number))
        number++;
    put(&pauses->of[number], pauses->of[number] + 1);
    put(&pauses->held_ns, pauses->held_ns + ns);
    if (ns > pauses->longest_ns)
        put(&pauses->longest_ns, ns);
}

uint64_t pm_pauses_count(const struct pm_pauses *pauses) {
    uint64_t count = 0;
    for (unsigned i = 0; i <= PM_PAUSE_BOUNDS; i++)
        count += get(&pauses->of[i]);
    return count;
}

uint64_t pm_pauses_in_rounds(const struct pm_pauses *pauses) {
    uint64_t pages = 0;
    for (unsigned i = 0; i < PM_PAUSE_ROUNDS; i++)
        pages += get(&pauses->round[i]);
    return pages;
}

uint64_t pm_pauses_at_most(const struct pm_pauses *pauses, unsigned hundredths) {
    uint64_t wanted = (pm_pauses_count(pauses) * hundredths + 99) / 100;
    uint64_t bound = 0, done = 0, longest = get(&pauses->longest_ns);
    for (unsigned i = 0; i <= PM_PAUSE_BOUNDS && done < wanted; i++) {
        done += get(&pauses->of[i]);
        bound = pm_pause_bound(i);
    }
    return bound < longest ? bound : longest;
}
