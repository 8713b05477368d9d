// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Threads that change pairs of numbers under all kinds of locks. Who holds a pair's lock may find
// its two numbers different; nobody else may. A start says "whole", or which pair is torn.
//
//   sections THREADS SEED [ANSWERS]     all ways to lock, in random order; says numbers, until it
//                                       is killed, or ends among its threads
//   sections waits HOW ROUNDS           a section waits for a thread that is about to begin one
//   sections endless ANSWERS            one section never ends, nor does it call anything
//   sections spins ANSWERS              the same without a lock that anybody sees
//   sections cancelled ANSWERS          the same in a handler of a wait that is cancelled
//   sections refuses THREADS            in their sections they ask for unlocks that libc refuses,
//                                       again and again; says numbers
//   sections long SECONDS               sections of 20 milliseconds, and each 50 nothing
//   sections commits COMMITS            makes so many, beside those of PMAlloc's own thread
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

enum kind {
    NORMAL,
    RECURSIVE,
    ERRORCHECK,
    ROBUST,
    ADAPTIVE,
    RWLOCK,
    SPIN,
    MTX,
    SHARED,
    INHERIT,
    PREFERS_WRITERS,
    KINDS
};
#define PAIRS (2 * KINDS)

struct pair {
    union {
        pthread_mutex_t mutex;
        pthread_rwlock_t rwlock;
        pthread_spinlock_t spin;
        mtx_t mtx;
    } lock;
    volatile long a, b;
};

struct store {
    struct pair pair[PAIRS];
    pthread_cond_t cond;
    long said;
};
struct store *root;

int pmalloc_commit(void) __attribute__((weak));

static _Atomic int over;

static void check(int good, const char *what) {
    if (good)
        return;
    fprintf(stderr, "failed: %s\n", what);
    _exit(2);
}

static unsigned next(unsigned *seed) {
    *seed = *seed * 1103515245 + 12345;
    return *seed >> 16;
}

static void burn(unsigned rounds) {
    for (volatile unsigned i = 0; i < rounds; i++) {
    }
}

// ---- one lock -----------------------------------------------------------------------------------

static enum kind kind_of(unsigned i) { return i % KINDS; }
static int is_rwlock(enum kind kind) { return kind == RWLOCK || kind == PREFERS_WRITERS; }

static void make_rwlock(pthread_rwlock_t *lock, enum kind kind) {
    pthread_rwlockattr_t attr;
    pthread_rwlockattr_init(&attr);
    if (kind == PREFERS_WRITERS)
        pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    check(pthread_rwlock_init(lock, &attr) == 0, "rwlock_init");
}

static void make(struct pair *p, enum kind kind) {
    static const int type[] = {
        [NORMAL] = PTHREAD_MUTEX_NORMAL,         [RECURSIVE] = PTHREAD_MUTEX_RECURSIVE,
        [ERRORCHECK] = PTHREAD_MUTEX_ERRORCHECK, [ROBUST] = PTHREAD_MUTEX_NORMAL,
        [SHARED] = PTHREAD_MUTEX_NORMAL,         [INHERIT] = PTHREAD_MUTEX_NORMAL,
        [ADAPTIVE] = PTHREAD_MUTEX_ADAPTIVE_NP};
    pthread_mutexattr_t attr;
    if (is_rwlock(kind))
        make_rwlock(&p->lock.rwlock, kind);
    else if (kind == SPIN)
        check(pthread_spin_init(&p->lock.spin, 0) == 0, "spin_init");
    else if (kind == MTX)
        check(mtx_init(&p->lock.mtx, mtx_timed) == thrd_success, "mtx_init");
    else {
        pthread_mutexattr_init(&attr);
        pthread_mutexattr_settype(&attr, type[kind]);
        if (kind == ROBUST)
            pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
        if (kind == SHARED)
            pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
        if (kind == INHERIT)
            pthread_mutexattr_setprotocol(&attr, PTHREAD_PRIO_INHERIT);
        check(pthread_mutex_init(&p->lock.mutex, &attr) == 0, "mutex_init");
    }
}

enum way { LOCK, TRY, TIMED, WAYS };

static struct timespec soon(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += 100000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_nsec -= 1000000000;
        t.tv_sec++;
    }
    return t;
}

static int try_lock(struct pair *p, enum kind kind, enum way way) {
    const struct timespec until = soon();
    switch (kind) {
    case RWLOCK:
    case PREFERS_WRITERS:
        return way == LOCK  ? pthread_rwlock_wrlock(&p->lock.rwlock)
               : way == TRY ? pthread_rwlock_trywrlock(&p->lock.rwlock)
                            : pthread_rwlock_timedwrlock(&p->lock.rwlock, &until);
    case SPIN:
        return way == LOCK ? pthread_spin_lock(&p->lock.spin) : pthread_spin_trylock(&p->lock.spin);
    case MTX:
        return way == LOCK  ? mtx_lock(&p->lock.mtx)
               : way == TRY ? mtx_trylock(&p->lock.mtx)
                            : mtx_timedlock(&p->lock.mtx, &until);
    default:
        return way == LOCK  ? pthread_mutex_lock(&p->lock.mutex)
               : way == TRY ? pthread_mutex_trylock(&p->lock.mutex)
                            : pthread_mutex_timedlock(&p->lock.mutex, &until);
    }
}

// A robust mutex may say that its owner died: an earlier run did.
static void lock(struct pair *p, enum kind kind, enum way way) {
    int error;
    while ((error = try_lock(p, kind, way)) != 0 && error != EOWNERDEAD)
        check(way != LOCK, "lock");
    if (error == EOWNERDEAD)
        check(pthread_mutex_consistent(&p->lock.mutex) == 0, "consistent");
}

static void unlock(struct pair *p, enum kind kind) {
    int error = is_rwlock(kind) ? pthread_rwlock_unlock(&p->lock.rwlock)
                : kind == SPIN  ? pthread_spin_unlock(&p->lock.spin)
                : kind == MTX   ? mtx_unlock(&p->lock.mtx)
                                : pthread_mutex_unlock(&p->lock.mutex);
    check(error == 0, "unlock");
}

// ---- sections -----------------------------------------------------------------------------------

static void one(unsigned i, unsigned *seed) {
    struct pair *p = &root->pair[i];
    enum kind kind = kind_of(i);
    lock(p, kind, next(seed) % WAYS);
    p->a++;
    if (kind == RECURSIVE)
        lock(p, kind, next(seed) % WAYS);
    burn(next(seed) % 2000);
    if (kind == RECURSIVE)
        unlock(p, kind);
    burn(next(seed) % 2000);
    p->b++;
    unlock(p, kind);
}

// Locks are taken in the order of their numbers.
static void nested(unsigned i, unsigned *seed) {
    unsigned j = i + 1 + next(seed) % (PAIRS - i - 1);
    struct pair *p = &root->pair[i], *q = &root->pair[j];
    lock(p, kind_of(i), next(seed) % WAYS);
    p->a++;
    lock(q, kind_of(j), next(seed) % WAYS);
    q->a++;
    burn(next(seed) % 1000);
    p->b++;
    q->b++;
    unlock(q, kind_of(j));
    unlock(p, kind_of(i));
}

static void hand_over_hand(unsigned i, unsigned *seed) {
    lock(&root->pair[i], kind_of(i), LOCK);
    for (; i + 1 < PAIRS; i++) {
        root->pair[i].a++;
        lock(&root->pair[i + 1], kind_of(i + 1), next(seed) % WAYS);
        burn(next(seed) % 500);
        root->pair[i].b++;
        unlock(&root->pair[i], kind_of(i));
    }
    root->pair[i].a++;
    burn(500);
    root->pair[i].b++;
    unlock(&root->pair[i], kind_of(i));
}

// The mutex is free while the thread waits, and the pair whole.
static void condition(unsigned *seed) {
    struct pair *p = &root->pair[NORMAL];
    const struct timespec until = soon();
    lock(p, NORMAL, LOCK);
    p->a++;
    burn(next(seed) % 1000);
    p->b++;
    pthread_cond_timedwait(&root->cond, &p->lock.mutex, &until);
    p->a++;
    burn(next(seed) % 1000);
    p->b++;
    unlock(p, NORMAL);
    pthread_cond_broadcast(&root->cond);
}

// An unlock that is refused ends no section.
static void refused(unsigned *seed) {
    struct pair *p = &root->pair[NORMAL];
    pthread_mutex_t other = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;
    lock(p, NORMAL, LOCK);
    p->a++;
    check(pthread_mutex_unlock(&other) == EPERM, "an unlock of a free mutex");
    burn(next(seed) % 2000);
    p->b++;
    unlock(p, NORMAL);
}

static void *refuse(void *kind) {
    pthread_mutex_t other = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;
    struct pair *p = &root->pair[(size_t)kind];
    for (;;) {
        lock(p, (enum kind)(size_t)kind, LOCK);
        p->a++;
        for (int i = 0; i < 64; i++)
            check(pthread_mutex_unlock(&other) == EPERM, "an unlock of a free mutex");
        p->b++;
        unlock(p, (enum kind)(size_t)kind);
    }
    return NULL;
}

static void readers(unsigned i) {
    struct pair *p = &root->pair[i];
    check(pthread_rwlock_rdlock(&p->lock.rwlock) == 0, "rdlock");
    check(p->a == p->b, "a reader finds a pair torn");
    unlock(p, RWLOCK);
}

// A handler that locks, in the middle of a section of another lock.
static __thread volatile sig_atomic_t in_order;
static void handle(int number) {
    unsigned seed = (unsigned)number;
    if (in_order)
        one(PAIRS - 1, &seed);
}

static void interrupted(unsigned *seed) {
    struct pair *p = &root->pair[ERRORCHECK];
    lock(p, ERRORCHECK, LOCK);
    p->a++;
    in_order = 1;
    pthread_kill(pthread_self(), SIGUSR1);
    in_order = 0;
    burn(next(seed) % 500);
    p->b++;
    unlock(p, ERRORCHECK);
}

// What a section waits for, and which lock comes first.
struct meeting {
    pthread_barrier_t *barrier;
    unsigned i, seed;
};

static void *meet(void *arg) {
    struct meeting *m = arg;
    one(m->i, &m->seed);
    if (m->barrier)
        pthread_barrier_wait(m->barrier);
    one(m->i, &m->seed);
    return NULL;
}

// A section waits for a thread that has sections of its own: at a barrier, for its end.
static void meets(unsigned i, unsigned *seed) {
    struct pair *p = &root->pair[i];
    pthread_barrier_t barrier;
    pthread_t id;
    struct meeting m = {NULL, i + 1 + next(seed) % (PAIRS - i - 1), *seed};
    pthread_barrier_init(&barrier, NULL, 2);
    if (next(seed) % 2)
        m.barrier = &barrier;
    lock(p, kind_of(i), next(seed) % WAYS);
    p->a++;
    check(pthread_create(&id, NULL, meet, &m) == 0, "pthread_create");
    if (m.barrier)
        pthread_barrier_wait(m.barrier);
    check(pthread_join(id, NULL) == 0, "pthread_join");
    p->b++;
    unlock(p, kind_of(i));
    pthread_barrier_destroy(&barrier);
}

// The child is born outside of sections of its thread, and amid those of others. It has sections of
// its own.
static void forks(void) {
    pid_t child = fork();
    if (child == 0) {
        struct pair own = {.a = 0};
        make(&own, NORMAL);
        lock(&own, NORMAL, LOCK);
        unlock(&own, NORMAL);
        _exit(0);
    }
    check(child > 0 && waitpid(child, NULL, 0) == child, "fork");
}

static void seldom(unsigned i, unsigned *seed) {
    if (next(seed) % 4)
        meets(i, seed);
    else
        forks();
}

static void *work(void *arg) {
    unsigned seed = (unsigned)(size_t)arg;
    while (!over) {
        unsigned i = next(&seed) % (PAIRS - 1);
        if (next(&seed) % 64 == 0)
            seldom(i, &seed);
        switch (next(&seed) % 8) {
        case 0:
            nested(i, &seed);
            break;
        case 1:
            hand_over_hand(i, &seed);
            break;
        case 2:
            condition(&seed);
            break;
        case 3:
            refused(&seed);
            break;
        case 4:
            readers((next(&seed) % 2 ? RWLOCK : PREFERS_WRITERS) + next(&seed) % 2 * KINDS);
            break;
        case 5:
            interrupted(&seed);
            break;
        default:
            one(i, &seed);
        }
        burn(next(&seed) % 4000);
    }
    return NULL;
}

// ---- the program --------------------------------------------------------------------------------

static void say(void) {
    char text[32];
    int len = snprintf(text, sizeof text, "%ld\n", ++root->said);
    check(write(1, text, (size_t)len) == len, "write");
}

static void begin(void) {
    if (!root) {
        struct store *fresh = calloc(1, sizeof *fresh);
        for (unsigned i = 0; i < PAIRS; i++)
            make(&fresh->pair[i], kind_of(i));
        pthread_cond_init(&fresh->cond, NULL);
        root = fresh;
        return;
    }
    for (unsigned i = 0; i < PAIRS; i++)
        if (root->pair[i].a != root->pair[i].b) {
            fprintf(stderr, "torn: pair %u, %ld and %ld\n", i, root->pair[i].a, root->pair[i].b);
            exit(3);
        }
    fprintf(stderr, "whole\n");
}

static void make_thread(void *(*run)(void *), size_t arg) {
    pthread_t id;
    check(pthread_create(&id, NULL, run, (void *)arg) == 0, "pthread_create");
}

static int run_all(unsigned threads, unsigned seed, int answers) {
    signal(SIGUSR1, handle);
    for (unsigned i = 1; i < threads; i++)
        make_thread(work, seed + i);
    for (int i = 0; !answers || i < answers; i++) {
        say();
        usleep(50);
    }
    return 0;
}

static int run_refuses(unsigned threads) {
    for (unsigned i = 0; i < threads; i++)
        make_thread(refuse, i % 2 ? RECURSIVE : NORMAL);
    for (;; usleep(200))
        say();
    return 0;
}

static int run_commits(int commits) {
    signal(SIGUSR1, handle);
    make_thread(work, 1);
    for (int i = 0; i < commits; i++) {
        usleep(5000);
        check(pmalloc_commit && (pmalloc_commit() == 0 || errno == EAGAIN), "pmalloc_commit");
    }
    return 0;
}

// ---- a section that waits -----------------------------------------------------------------------

static _Atomic int wanted; // rounds that the other thread is to make
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t done_cond = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t barrier;
static int done, ends[2];
static const char *how;

static void burn_ms(long ms) {
    struct timespec used;
    long until = 0;
    do {
        burn(100);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
        until = until ? until : used.tv_sec * 1000000 + used.tv_nsec / 1000 + ms * 1000;
    } while (used.tv_sec * 1000000 + used.tv_nsec / 1000 < until);
}

// Begins a section of its own before it does what the other one waits for.
static void *serve(void *unused) {
    unsigned seed = 1;
    one(ADAPTIVE, &seed);
    if (strcmp(how, "cond") == 0) {
        pthread_mutex_lock(&turn);
        done = 1;
        pthread_cond_signal(&done_cond);
        pthread_mutex_unlock(&turn);
    } else if (strcmp(how, "pipe") == 0)
        check(write(ends[1], "x", 1) == 1, "pipe");
    else if (strcmp(how, "barrier") == 0)
        pthread_barrier_wait(&barrier);
    else if (strcmp(how, "busy") == 0)
        burn_ms(3);
    return unused;
}

static void await(pthread_t id) {
    char byte;
    if (strcmp(how, "cond") == 0) {
        pthread_mutex_lock(&turn);
        while (!done)
            pthread_cond_wait(&done_cond, &turn);
        done = 0;
        pthread_mutex_unlock(&turn);
    } else if (strcmp(how, "pipe") == 0)
        check(read(ends[0], &byte, 1) == 1, "pipe");
    else if (strcmp(how, "barrier") == 0)
        pthread_barrier_wait(&barrier);
    pthread_join(id, NULL);
}

static void *wait_inside(void *unused) {
    struct pair *p = &root->pair[NORMAL];
    while (!over) {
        pthread_t id;
        lock(p, NORMAL, LOCK);
        p->a++;
        check(pthread_create(&id, NULL, serve, NULL) == 0, "pthread_create");
        await(id);
        p->b++;
        unlock(p, NORMAL);
        wanted++;
    }
    return unused;
}

static int run_waits(int rounds) {
    check(pipe(ends) == 0, "pipe");
    pthread_barrier_init(&barrier, NULL, 2);
    make_thread(wait_inside, 0);
    while (wanted < rounds)
        say();
    return 0;
}

// ---- sections without an end --------------------------------------------------------------------

static void stay_on(void *unused) {
    (void)unused;
    for (wanted = 1;;)
        burn(1000);
}

// The handler of a cancelled wait has the mutex.
static void *stay_cancelled(void *unused) {
    struct pair *p = &root->pair[NORMAL];
    lock(p, NORMAL, LOCK);
    pthread_cleanup_push(stay_on, unused);
    pthread_cancel(pthread_self());
    pthread_cond_wait(&root->cond, &p->lock.mutex);
    pthread_cleanup_pop(0);
    return NULL;
}

static void *stay(void *locked) {
    struct pair *p = &root->pair[NORMAL];
    if (locked)
        lock(p, NORMAL, LOCK);
    stay_on(NULL);
    return NULL;
}

static int run_endless(const char *way, int answers) {
    make_thread(*way == 'c' ? stay_cancelled : stay, *way == 'e');
    while (!wanted)
        usleep(100);
    for (int i = 0; i < answers; i++)
        say();
    return 0;
}

// ---- sections that last longer than patience ----------------------------------------------------

static void *stay_long(void *unused) {
    struct pair *p = &root->pair[NORMAL];
    while (!over) {
        lock(p, NORMAL, LOCK);
        p->a++;
        burn_ms(20);
        p->b++;
        unlock(p, NORMAL);
        usleep(30000);
    }
    return unused;
}

static int run_long(unsigned seconds) {
    pthread_t id;
    check(pthread_create(&id, NULL, stay_long, NULL) == 0, "pthread_create");
    sleep(seconds);
    over = 1;
    pthread_join(id, NULL);
    return 0;
}

int main(int argc, char **argv) {
    check(argc >= 3, "usage");
    begin();
    if (strcmp(argv[1], "waits") == 0) {
        how = argv[2];
        return run_waits(atoi(argv[3]));
    }
    if (strstr("endless spins cancelled", argv[1]))
        return run_endless(argv[1], atoi(argv[2]));
    if (strcmp(argv[1], "refuses") == 0)
        return run_refuses((unsigned)atoi(argv[2]));
    if (strcmp(argv[1], "long") == 0)
        return run_long((unsigned)atoi(argv[2]));
    if (strcmp(argv[1], "commits") == 0)
        return run_commits(atoi(argv[2]));
    return run_all((unsigned)atoi(argv[1]), (unsigned)atoi(argv[2]), argc > 3 ? atoi(argv[3]) : 0);
}
