// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Threads that run while all threads are held thousands of times. MODE SECONDS. In each mode
// threads count, and the holder sees that the counts stand still.
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "holds.h"

#define COUNTERS 16
static _Atomic unsigned long counter[COUNTERS];
static _Atomic unsigned used;
static _Atomic unsigned looked;
static double end;

// Called while memory stands still.
static void look(void) {
    unsigned long before[COUNTERS];
    for (unsigned i = 0; i < COUNTERS; i++)
        before[i] = counter[i];
    for (double until = now() + 0.0003; now() < until;) {
    }
    for (unsigned i = 0; i < COUNTERS; i++)
        if (before[i] != counter[i]) {
            static const char text[] = "memory did not stand still\n";
            (void)!write(2, text, sizeof text - 1);
            abort();
        }
    looked++;
}

static _Atomic unsigned long *my_counter(void) { return &counter[used++ % COUNTERS]; }

static void on_count(int unused) {
    (void)unused;
    counter[0]++;
}

static void on_long_count(int unused) {
    (void)unused;
    for (double until = now() + 0.0002; now() < until;)
        counter[1]++;
}

static void handle(int number, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    REQUIRE(sigaction(number, &action, NULL) == 0);
}

// ---- modes --------------------------------------------------------------------------------------

static void *count(void *unused) {
    (void)unused;
    for (_Atomic unsigned long *mine = my_counter(); now() < end;)
        ++*mine;
    return NULL;
}

// Inside malloc most of the time, its slow paths included.
static void *allocate(void *unused) {
    (void)unused;
    char *kept[64] = {0};
    unsigned seed = (unsigned)(uintptr_t)&kept;
    for (_Atomic unsigned long *mine = my_counter(); now() < end; ++*mine) {
        seed = seed * 1103515245 + 12345;
        unsigned i = seed >> 8 & 63;
        size_t size = 1u << (seed >> 16 & 15);
        if (kept[i])
            REQUIRE(kept[i][0] == (char)i);
        free(kept[i]);
        kept[i] = malloc(size);
        REQUIRE(kept[i]);
        kept[i][0] = (char)i;
    }
    return NULL;
}

// Each signal ends one pause(): none is lost, and nothing else ends it.
static _Atomic int answered;
static void *pause_again(void *unused) {
    (void)unused;
    while (now() < end) {
        REQUIRE(pause() == -1 && errno == EINTR);
        answered++;
    }
    return NULL;
}

static void signals_end_pauses(void) {
    pthread_t thread;
    handle(SIGUSR1, on_count, SA_RESTART);
    REQUIRE(pthread_create(&thread, NULL, pause_again, NULL) == 0);
    usleep(100000); // it may not pause yet when the first signal comes
    for (int sent = 0; now() < end;) {
        int before = answered;
        REQUIRE(pthread_kill(thread, SIGUSR1) == 0);
        for (double until = now() + 10; answered == before; usleep(1000))
            REQUIRE(now() < until);
        usleep(20000); // the thread pauses again
        REQUIRE(answered == ++sent);
    }
    end = 0;
    pthread_kill(thread, SIGUSR1);
    pthread_join(thread, NULL);
}

// Handlers that run often, in threads that sleep and on an alternate stack. A timer sends its
// signal while threads are held, too.
static void *sleep_on_other_stack(void *unused) {
    (void)unused;
    stack_t stack = {.ss_sp = malloc(65536), .ss_size = 65536};
    REQUIRE(sigaltstack(&stack, NULL) == 0);
    while (now() < end) {
        struct timespec left = {0, 20000000};
        while (nanosleep(&left, &left) != 0)
            REQUIRE(errno == EINTR);
    }
    return NULL;
}

static void handlers_run(void) {
    pthread_t thread[3];
    const struct itimerval often = {{0, 700}, {0, 700}}, never = {{0, 0}, {0, 0}};
    handle(SIGUSR1, on_count, SA_ONSTACK);
    handle(SIGALRM, on_long_count, SA_ONSTACK);
    REQUIRE(setitimer(ITIMER_REAL, &often, NULL) == 0);
    for (int i = 0; i < 3; i++)
        REQUIRE(pthread_create(&thread[i], NULL, sleep_on_other_stack, NULL) == 0);
    while (now() < end) {
        for (int i = 0; i < 3; i++)
            pthread_kill(thread[i], SIGUSR1);
        usleep(200);
    }
    REQUIRE(setitimer(ITIMER_REAL, &never, NULL) == 0);
    for (int i = 0; i < 3; i++)
        pthread_join(thread[i], NULL);
}

// The program's handlers and masks are what the program made them.
static void dispositions_stay(void) {
    while (now() < end) {
        for (int s = 1; s < 65; s++) {
            struct sigaction action = {.sa_handler = s & 1 ? on_count : SIG_IGN}, found;
            if (sigaction(s, &action, NULL) != 0)
                continue;
            REQUIRE(sigaction(s, NULL, &found) == 0 && found.sa_handler == action.sa_handler);
        }
        sigset_t all, before, found;
        sigfillset(&all);
        REQUIRE(sigprocmask(SIG_SETMASK, &all, &before) == 0);
        REQUIRE(sigprocmask(SIG_SETMASK, NULL, &found) == 0 && sigismember(&found, SIGTERM));
        REQUIRE(sigprocmask(SIG_SETMASK, &before, NULL) == 0);
        struct pollfd none = {-1, 0, 0};
        REQUIRE(poll(&none, 1, 1) == 0);
    }
}

// A handler leaves a call by siglongjmp(), and the thread runs on.
static sigjmp_buf back;
static void on_jump(int unused) {
    (void)unused;
    siglongjmp(back, 1);
}

static void *kick(void *main_thread) {
    for (; now() < end; usleep(3000))
        pthread_kill(*(pthread_t *)main_thread, SIGUSR2);
    return NULL;
}

static void jumps_leave_calls(void) {
    pthread_t thread, self = pthread_self();
    _Atomic unsigned long *mine = my_counter();
    handle(SIGUSR2, on_jump, SA_NODEFER);
    if (sigsetjmp(back, 1) == 0)
        REQUIRE(pthread_create(&thread, NULL, kick, &self) == 0);
    while (now() < end) {
        if (sigsetjmp(back, 1) == 0)
            poll(NULL, 0, 50);
        for (double until = now() + 0.002; now() < until && now() < end;)
            ++*mine;
    }
    handle(SIGUSR2, SIG_IGN, 0);
    pthread_join(thread, NULL);
}

static void *end_at_once(void *unused) { return unused; }

static void threads_come_and_go(void) {
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    REQUIRE(pthread_attr_setstacksize(&attr, 16384) == 0);
    for (_Atomic unsigned long *mine = my_counter(); now() < end; ++*mine) {
        pthread_t thread;
        int error;
        while ((error = pthread_create(&thread, &attr, end_at_once, NULL)) == EAGAIN) {
        }
        REQUIRE(error == 0 && pthread_join(thread, NULL) == 0);
    }
}

// A handler may run before the new thread has run anything else.
static void *be_interrupted(void *unused) {
    for (double until = now() + 0.0005; now() < until;) {
    }
    return unused;
}

static void newcomers_are_interrupted(void) {
    const struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
    pthread_attr_t attr;
    sigset_t alarm;
    handle(SIGALRM, on_long_count, 0);
    sigemptyset(&alarm);
    REQUIRE(pthread_attr_init(&attr) == 0 && pthread_attr_setsigmask_np(&attr, &alarm) == 0);
    sigaddset(&alarm, SIGALRM);
    REQUIRE(pthread_sigmask(SIG_BLOCK, &alarm, NULL) == 0); // so it goes to the new thread
    REQUIRE(setitimer(ITIMER_REAL, &often, NULL) == 0);
    while (now() < end) {
        pthread_t thread;
        usleep(400); // it waits for one by now
        REQUIRE(pthread_create(&thread, &attr, be_interrupted, NULL) == 0);
        REQUIRE(pthread_join(thread, NULL) == 0);
    }
    REQUIRE(setitimer(ITIMER_REAL, &never, NULL) == 0);
}

static void children_come_and_go(void) {
    extern char **environ;
    char *arguments[] = {"true", NULL};
    for (int i = 0; now() < end; i++) {
        pid_t child;
        int status;
        if (i & 1) {
            REQUIRE(posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ) == 0);
        } else {
            child = fork();
            if (child == 0) {
                poll(NULL, 0, 1);
                _exit(0);
            }
        }
        REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    }
}

static void cancelled(void *at) { ++*(_Atomic unsigned *)at; }

static void *sleep_for_ever(void *at) {
    pthread_cleanup_push(cancelled, at);
    for (;;)
        poll(NULL, 0, -1);
    pthread_cleanup_pop(0);
    return NULL;
}

static void threads_are_cancelled(void) {
    for (unsigned made = 1; now() < end; made++) {
        static _Atomic unsigned done;
        pthread_t thread;
        void *result;
        REQUIRE(pthread_create(&thread, NULL, sleep_for_ever, (void *)&done) == 0);
        usleep(1000);
        REQUIRE(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
        REQUIRE(result == PTHREAD_CANCELED && done == made);
    }
}

static void only_this(void) {
    while (now() < end)
        usleep(1000);
}

static const struct mode {
    const char *name;
    void (*run)(void);
    void *(*beside)(void *); // two threads of it
} modes[] = {
    {"count", only_this, count},
    {"allocate", only_this, allocate},
    {"pauses", signals_end_pauses, NULL},
    {"handlers", handlers_run, NULL},
    {"dispositions", dispositions_stay, NULL},
    {"jumps", jumps_leave_calls, NULL},
    {"threads", threads_come_and_go, NULL},
    {"newcomers", newcomers_are_interrupted, NULL},
    {"children", children_come_and_go, NULL},
    {"cancel", threads_are_cancelled, NULL},
};

int main(int argc, char **argv) {
    REQUIRE(argc == 3);
    end = now() + atof(argv[2]);
    if (&holder_check)
        holder_check = look;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        pthread_t thread[2];
        if (strcmp(modes[i].name, argv[1]) != 0)
            continue;
        for (int t = 0; modes[i].beside && t < 2; t++)
            REQUIRE(pthread_create(&thread[t], NULL, modes[i].beside, NULL) == 0);
        modes[i].run();
        for (int t = 0; modes[i].beside && t < 2; t++)
            pthread_join(thread[t], NULL);
        printf("looked %u\n", looked);
        return 0;
    }
    return 2;
}
