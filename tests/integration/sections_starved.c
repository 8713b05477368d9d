// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A section that lasts longer because a thread finds no processor. Another process stops the thread
// for that, so that no processor has to be kept busy. After each answer under `output` the section
// is over: else the commit before it has the two numbers as they are amid the section.
//
//   sections_starved holds     the thread is in the section
//   sections_starved joined    the section waits for the end of the thread, which takes no lock
//   sections_starved again     the same; the thread has taken one, and runs for a moment
//                              meanwhile, and yet another thread runs all the time
//   sections_starved gate      the same; patience is over when the thread runs again, and then it
//                              takes a lock before its end
//   sections_starved both      as `gate`; the thread that makes the commit is stopped, too, and
//                              goes on when the other one is at the gate
//   sections_starved born      no thread is stopped. The section waits for the end of a thread that
//                              comes to the gate, and then makes one for whose end it waits in a
//                              section of its own, and that comes to the gate a little later
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct store {
    volatile long a, b;
};
struct store *root;

// Of this process and the one that stops the thread. To say something would be a commit.
static struct {
    _Atomic pid_t id, committer;
    _Atomic bool still, asks, moment, over;
} * starved;

static pthread_mutex_t outer = PTHREAD_MUTEX_INITIALIZER, other = PTHREAD_MUTEX_INITIALIZER,
                       third = PTHREAD_MUTEX_INITIALIZER;
static const char *how;
static bool is_output; // PMALLOC_COMMIT
static _Atomic int ready, begun;

static bool is(const char *name) { return strcmp(how, name) == 0; }

static void check(int good, const char *what) {
    if (good)
        return;
    fprintf(stderr, "failed: %s\n", what);
    _exit(2);
}

static void burn(void) {
    for (volatile unsigned i = 0; i < 1000; i++) {
    }
}

static void lock_once(void) {
    pthread_mutex_lock(&other);
    pthread_mutex_unlock(&other);
}

static void run_on(void) {
    for (starved->id = (pid_t)syscall(SYS_gettid); !starved->over; burn())
        if (starved->moment) { // then it stops itself: who traces it may find no processor
            for (unsigned i = 0; i < 300; i++)
                burn();
            starved->moment = false;
            __asm__ volatile("int3");
        }
}

static void *run_for_other(void *unused) {
    if (is("again"))
        lock_once();
    run_on();
    if (is("gate") || is("both"))
        lock_once();
    return unused;
}

static void burn_ms(long ms) {
    struct timespec used;
    long until;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    until = used.tv_sec * 1000 + used.tv_nsec / 1000000 + ms;
    do {
        burn();
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    } while (used.tv_sec * 1000 + used.tv_nsec / 1000000 < until);
}

static void *be_born(void *unused) {
    burn_ms(3);
    lock_once();
    return unused;
}

static void *have_child(void *unused) {
    pthread_t id;
    for (starved->still = true; !starved->asks; burn()) {
    }
    burn_ms(2); // the gate is closed by then
    pthread_mutex_lock(&third);
    check(pthread_create(&id, NULL, be_born, NULL) == 0, "pthread_create");
    pthread_join(id, NULL);
    pthread_mutex_unlock(&third);
    return unused;
}

// A commit has seen the thread before its section begins.
static void *have_section(void *unused) {
    pthread_t id;
    lock_once();
    for (ready++; !begun;)
        usleep(100);
    pthread_mutex_lock(&outer);
    root->a++;
    if (is("holds")) {
        run_on();
    } else {
        void *(*run)(void *) = is("born") ? have_child : run_for_other;
        check(pthread_create(&id, NULL, run, NULL) == 0, "pthread_create");
        pthread_join(id, NULL);
    }
    root->b++;
    pthread_mutex_unlock(&outer);
    return unused;
}

static void *run_always(void *unused) {
    lock_once();
    for (ready++;;)
        burn();
    return unused;
}

// ---- the other process --------------------------------------------------------------------------

static void stop(pid_t id) {
    int status;
    check(ptrace(PTRACE_SEIZE, id, NULL, NULL) == 0, "PTRACE_SEIZE");
    check(ptrace(PTRACE_INTERRUPT, id, NULL, NULL) == 0, "PTRACE_INTERRUPT");
    check(waitpid(id, &status, __WALL) == id, "waitpid");
}

static void let_run(pid_t id) {
    int status = 0;
    starved->moment = true;
    for (int number = 0; number != SIGTRAP;) {
        check(ptrace(PTRACE_CONT, id, NULL, status >> 16 ? 0L : (long)number) == 0, "PTRACE_CONT");
        check(waitpid(id, &status, __WALL) == id && WIFSTOPPED(status), "waitpid");
        number = status >> 16 ? 0 : WSTOPSIG(status);
    }
}

static void let_go(pid_t id) { check(ptrace(PTRACE_DETACH, id, NULL, NULL) == 0, "PTRACE_DETACH"); }

// A second is over when the thread that makes the commit looks again.
static void keep_committer_still(pid_t starving) {
    while (!starved->asks)
        usleep(50);
    usleep(300000);
    stop(starved->committer);
    usleep(1500000);
    starved->over = true;
    let_go(starving);
    usleep(100000);
    let_go(starved->committer);
}

static void keep_still(void) {
    pid_t id;
    while ((id = starved->id) == 0)
        usleep(50);
    stop(id);
    starved->still = true;
    if (is("both")) {
        keep_committer_still(id);
        return;
    }
    if (is("again")) {
        usleep(100000);
        let_run(id);
    }
    usleep(is("again") || is("gate") ? 500000 : 1500000);
    starved->over = true;
    let_go(id);
}

// ---- the program --------------------------------------------------------------------------------

static void say(void) {
    check(write(1, "answer\n", 7) == 7, "write");
    check(!is_output || !begun || root->a == root->b, "an answer amid a section");
}

static void make_thread(void *(*run)(void *)) {
    pthread_t id;
    check(pthread_create(&id, NULL, run, NULL) == 0, "pthread_create");
}

int main(int argc, char **argv) {
    int status, threads = 1;
    check(argc == 2, "usage");
    how = argv[1];
    const char *commit = getenv("PMALLOC_COMMIT");
    is_output = commit && strcmp(commit, "output") == 0;
    root = calloc(1, sizeof *root);
    starved =
        mmap(NULL, sizeof *starved, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    check(starved != MAP_FAILED, "mmap");
    starved->committer = getpid();
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    pid_t child = fork();
    if (child == 0) {
        if (!is("born"))
            keep_still();
        _exit(0);
    }
    lock_once(); // nothing is known of a thread that never took one
    make_thread(have_section);
    if (is("again") || is("gate")) {
        make_thread(run_always);
        threads++;
    }
    while (ready < threads)
        usleep(100);
    say();
    usleep(50000); // or until one by time has been made
    for (begun = 1; !starved->still;)
        usleep(100);
    starved->asks = true;
    say();
    say();
    check(waitpid(child, &status, 0) == child && status == 0, "the other process");
    usleep(100000);
    return 0;
}
