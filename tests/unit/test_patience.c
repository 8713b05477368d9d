// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Patience counts the time in which the other side could run.
#include "../../tools/common/program_status.c"
#include "../../tools/watch/patience.c"

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { NAP_NS = 100000000 };

static void nap(void) {
    const struct timespec time = {.tv_nsec = NAP_NS};
    nanosleep(&time, NULL);
}

static void only_here(void) {
    cpu_set_t all, one;
    CPU_ZERO(&one);
    CHECK(sched_getaffinity(0, sizeof all, &all) == 0);
    int cpu = 0;
    while (!CPU_ISSET(cpu, &all))
        cpu++;
    CPU_SET(cpu, &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
}

static pid_t child(void work(void)) {
    pid_t id = fork();
    CHECK(id >= 0);
    if (id == 0) {
        work();
        _exit(0);
    }
    return id;
}

static int begun[2];

static void sleeps(void) {
    CHECK(write(begun[1], "", 1) == 1);
    pause();
}

static void spins(void) {
    only_here();
    for (;;)
        __asm__ volatile("");
}

static void spins_when_nobody_else_does(void) {
    const struct sched_param none = {0};
    CHECK(sched_setscheduler(0, SCHED_IDLE, &none) == 0);
    spins();
}

// How long the child could have run while this process napped `naps` times.
static uint64_t chance_of(pid_t id, unsigned naps, uint64_t *passed) {
    struct patience p = {0};
    CHECK(patience_chance(&p, id, id) == 0);
    uint64_t sum = 0, begin = p.looked_ns;
    for (unsigned i = 0; i < naps; i++) {
        nap();
        sum += patience_chance(&p, id, id);
    }
    *passed = p.looked_ns - begin;
    return sum;
}

static void end(pid_t id) {
    kill(id, SIGKILL);
    CHECK(waitpid(id, NULL, 0) == id);
}

static _Atomic pid_t *made; // shared with children

// It makes a child of this process's that the kernel shows at once, and that waits behind the hog.
static void makes_starved(void) {
    const struct sched_param none = {0};
    only_here();
    CHECK(sched_setscheduler(0, SCHED_IDLE, &none) == 0);
    if (syscall(SYS_clone, CLONE_PARENT | CLONE_PARENT_SETTID | SIGCHLD, NULL, made, NULL, 0) == 0)
        for (;;)
            __asm__ volatile("");
}

// Whether it had not run at both looks.
static bool is_unborn_twice(void) {
    struct patience p = {0};
    *made = 0;
    pid_t maker = child(makes_starved);
    while (*made == 0)
        sched_yield();
    pid_t id = *made;
    const struct timespec moment = {.tv_nsec = 500000};
    patience_chance(&p, id, id);
    nanosleep(&moment, NULL);
    uint64_t chance = patience_chance(&p, id, id);
    bool unborn = p.ran_ns == 0;
    CHECK(!unborn || chance == 0);
    end(id);
    end(maker);
    return unborn;
}

int main(void) {
    uint64_t passed;
    char byte;
    CHECK(pipe(begun) == 0);
    made = mmap(NULL, sizeof *made, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(made != MAP_FAILED);
    pid_t id = child(sleeps);
    // On its way there it may wait, too: for memory, say.
    CHECK(read(begun[0], &byte, 1) == 1);
    while (wants_processor(id, id))
        nap();
    CHECK(chance_of(id, 1, &passed) == passed && passed >= NAP_NS);
    end(id);

    pid_t hog = child(spins), starved = child(spins_when_nobody_else_does);
    nap(); // both have begun, if they could
    struct patience known = {0};
    patience_chance(&known, starved, starved);
    if (known.ran_ns) { // a kernel that tells how long a thread has run
        CHECK(chance_of(starved, 4, &passed) < passed / 4);
        CHECK(chance_of(hog, 4, &passed) > 0); // however busy the machine is
        unsigned tries = 0;
        while (!is_unborn_twice() && ++tries < 100) {
        }
        CHECK(tries < 100);
    }
    end(starved);
    end(hog);
    return CHECK_DONE();
}
