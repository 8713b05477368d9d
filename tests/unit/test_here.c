// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/geometry.h"
#include "base/here.h"
#include "check.h"

static bool lost(void) { return false; }

// In a child: what it has until somebody sees to it, and then. `others` has the numbers of those
// that it descends from.
static void descend(const uint32_t *others, unsigned count) {
    pid_t child = fork();
    if (child == 0) {
        uint32_t numbers[3] = {others[0], others[1], 0};
        CHECK(pm_here_number() == 0 && !pm_is_here());
        pm_here_mark();
        numbers[count] = pm_here_number();
        CHECK(numbers[count] && pm_is_here());
        for (unsigned i = 0; i < count; i++)
            CHECK(numbers[count] != others[i]);
        if (count < 2)
            descend(numbers, count + 1);
        _exit(CHECK_DONE());
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(void) {
    CHECK(pm_here_number() == 0 && pm_is_here()); // not watched
    _Atomic uint32_t *word =
        mmap(NULL, PM_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(word != MAP_FAILED && madvise((void *)word, PM_PAGE_SIZE, MADV_WIPEONFORK) == 0);
    pm_here_watch(word, lost);
    const uint32_t numbers[2] = {pm_here_number(), 0};
    CHECK(numbers[0]);
    descend(numbers, 1);
    CHECK(pm_here_number() == numbers[0]);
    return CHECK_DONE();
}
