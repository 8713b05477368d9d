// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A process that is halted while its threads execute programs: the tool does not wait for what
// waits for the tool, no thread runs while all are halted, and one that has run is noticed.
#include "tools/watch/standstill.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "tools/common/program_status.h"
#include "tools/watch/halt.h"

// The words of a long command make an execve(2) long.
enum { PROGRAMS = 30, THREADS = 6, PATIENCE_S = 60, WORDS = 8, WORD = 100000 };
enum { WITHOUT_END = -1, ONLY_COUNTS = -2 }; // in place of how many programs are left

static struct {
    _Atomic uint64_t counted; // by all threads, all the time
    _Atomic bool ready;
    int bell[2]; // a thread sleeps until there is a byte
} * shared;

static void nap(long ns) {
    const struct timespec time = {ns / 1000000000, ns % 1000000000};
    nanosleep(&time, NULL);
}

static void share(int memory) {
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
}

// ---- the process that is halted -----------------------------------------------------------------

static char memory_word[16], left_word[16], long_word[WORD];
static char *command[4 + WORDS] = {"halted", memory_word, left_word};

static void *count(void *unused) {
    while (true)
        atomic_fetch_add_explicit(&shared->counted, 1, memory_order_relaxed);
    return unused;
}

static void *execute(void *unused) {
    execv("/proc/self/exe", command);
    return unused;
}

static void *execute_soon(void *unused) {
    nap(rand() % 3000000);
    return execute(unused);
}

static void begin(void *thread(void *)) {
    pthread_t id;
    pthread_create(&id, NULL, thread, NULL);
}

// One program after the other, executed by the first thread and by another one, in turn.
static int be_halted(int memory, int left) {
    if (left == 0)
        return 0;
    share(memory);
    if (left == ONLY_COUNTS)
        return count(NULL) != NULL;
    snprintf(memory_word, sizeof memory_word, "%d", memory);
    snprintf(left_word, sizeof left_word, "%d", left - 1);
    memset(long_word, '-', WORD - 1);
    for (unsigned i = 0; i < WORDS; i++)
        command[3 + i] = long_word;
    srand((unsigned)left);
    for (unsigned i = 0; i < THREADS; i++)
        begin(count);
    if (left % 2)
        execute_soon(NULL);
    begin(execute_soon);
    return count(NULL) != NULL;
}

static void sleep_until_rung(void) {
    char byte;
    shared->ready = true;
    while (read(shared->bell[0], &byte, 1) != 1)
        continue;
}

static void *count_and_end(void *unused) {
    sleep_until_rung();
    shared->counted++;
    return unused;
}

static void *execute_when_rung(void *unused) {
    sleep_until_rung();
    return execute(unused);
}

static int wait_and_end(int memory) {
    (void)memory;
    begin(count_and_end);
    return pause();
}

// The program counts, too.
static int run_and_execute(int memory, int left) {
    snprintf(memory_word, sizeof memory_word, "%d", memory);
    snprintf(left_word, sizeof left_word, "%d", left);
    begin(execute_when_rung);
    return count(NULL) != NULL;
}

static int execute_others(int memory) { return run_and_execute(memory, WITHOUT_END); }
static int execute_one(int memory) { return run_and_execute(memory, ONLY_COUNTS); }
static int execute_often(int memory) { return be_halted(memory, PROGRAMS); }

// ---- the tool -----------------------------------------------------------------------------------

static bool moved;
static unsigned looks;

static void look(void *unused) {
    uint64_t before = shared->counted;
    (void)unused;
    nap(1000000);
    moved = shared->counted != before;
}

static int halt_often(pid_t pid) {
    struct pm_error err;
    enum standstill_result result;
    uint64_t ns;
    unsigned halted = 0;
    while ((result = standstill(pid, look, NULL, &ns, &err)) != STANDSTILL_GONE) {
        if (result != STANDSTILL_DONE)
            fprintf(stderr, "%s\n", err.text);
        CHECK(result == STANDSTILL_DONE && !moved);
        halted++;
    }
    CHECK(halted > 0);
    return check_failures != 0;
}

static bool has_ended(pid_t pid) {
    unsigned long flags;
    char state = program_state(pid, pid, &flags);
    return !state || strchr("ZX", state);
}

// By those who halt a process for longer.
static int halt_otherwise(pid_t pid) {
    struct pm_error err;
    struct halt h = {.pid = pid};
    unsigned halted = 0;
    while (!has_ended(pid)) {
        if (halt_begin(&h, &err)) {
            look(NULL);
            CHECK(!moved);
            halted++;
        } else if (!has_ended(pid)) {
            fprintf(stderr, "%s\n", err.text);
            CHECK(!"halted");
        }
        halt_end(&h);
        nap(2000000); // the program goes on
    }
    free(h.thread);
    CHECK(halted > 0);
    return check_failures != 0;
}

static void ring_once(void *unused) {
    uint64_t before = shared->counted;
    (void)unused;
    if (looks++ == 0 && write(shared->bell[1], "", 1) == 1)
        while (shared->counted == before)
            nap(100000);
}

static int halt_and_ring(pid_t pid) {
    struct pm_error err;
    uint64_t ns;
    while (!shared->ready)
        nap(100000);
    CHECK(standstill(pid, ring_once, NULL, &ns, &err) == STANDSTILL_DONE);
    CHECK(looks > 1);
    kill(pid, SIGKILL);
    return check_failures != 0;
}

// ---- both ---------------------------------------------------------------------------------------

// Neither is a child of the other, as a tool and a program are not.
static void halt_by(int tool(pid_t), int program(int)) {
    int memory = memfd_create("shared", 0), status = -1;
    CHECK(ftruncate(memory, 4096) == 0);
    share(memory);
    CHECK(pipe(shared->bell) == 0);
    pid_t halted = fork();
    if (halted == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
        _exit(program(memory));
    }
    pid_t halting = fork();
    if (halting == 0) {
        prctl(PR_SET_NAME, "pmalloc-backup"); // a tool waits for others of the tools
        _exit(tool(halted));
    }
    for (unsigned i = 0; i < PATIENCE_S * 100 && waitpid(halting, &status, WNOHANG) == 0; i++) {
        waitpid(halted, NULL, WNOHANG);
        nap(10000000);
    }
    CHECK(status == 0); // it has ended, and well
    kill(halting, SIGKILL);
    kill(halted, SIGKILL);
    while (wait(NULL) > 0)
        continue;
}

static void test_threads_that_execute_programs(void) { halt_by(halt_often, execute_often); }

static void test_threads_that_execute_programs_are_halted_for_longer(void) {
    halt_by(halt_otherwise, execute_often);
}

static void test_a_sleeper_runs_and_ends(void) { halt_by(halt_and_ring, wait_and_end); }

static void test_a_sleeper_executes_programs(void) { halt_by(halt_and_ring, execute_others); }

// Nobody executes another one afterwards, so the thread stops only if it is asked to.
static void test_a_sleeper_executes_one_program(void) { halt_by(halt_and_ring, execute_one); }

int main(int argc, char **argv) {
    if (argc > 2)
        _exit(be_halted(atoi(argv[1]), atoi(argv[2]))); // it is traced, so it cannot look for leaks
    RUN(threads_that_execute_programs);
    RUN(threads_that_execute_programs_are_halted_for_longer);
    RUN(a_sleeper_runs_and_ends);
    RUN(a_sleeper_executes_programs);
    RUN(a_sleeper_executes_one_program);
    return CHECK_DONE();
}
