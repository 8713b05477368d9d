// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Every kind of lock, in the heap and in a root.
//
//   locks hold PLACE OBJECT   brings the object into use and is killed
//   locks use PLACE OBJECT    tries the object, prints "free" or "held", then uses it; SIGALRM ends
//                             a wait that would not end
//   locks take                takes all the mutexes of the race and is killed
//   locks race                8 threads use mutexes that were held at the last kill, all at once
//   locks fork                a child uses a lock that its parent holds, and one whose holder is
//                             dead
//   locks work                8 threads take every lock, for ever; each lock covers a pair of
//                             numbers
//   locks check               every pair is whole, except for one per thread: the one it worked on
//   locks generation          pmalloc_generation()
#include "locks.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>

struct store {
    struct locks locks;
    pthread_mutex_t race[RACES];
    unsigned count[RACES];
};

struct store *store; // a root: what lies in the heap
struct locks root;   // a root itself
uint64_t root_made;  // a root: `root` is initialised

void die(void) {
    kill(getpid(), SIGKILL);
    pause();
}

// ---- making -------------------------------------------------------------------------------------

static void make_mutex(pthread_mutex_t *m, int kind) {
    static const int type[MUTEXES] = {[RECURSIVE] = PTHREAD_MUTEX_RECURSIVE,
                                      [ERRORCHECK] = PTHREAD_MUTEX_ERRORCHECK,
#ifdef __GLIBC__
                                      [ADAPTIVE] = PTHREAD_MUTEX_ADAPTIVE_NP
#endif
    };
    pthread_mutexattr_t attr;
    MUST(pthread_mutexattr_init(&attr));
    MUST(pthread_mutexattr_settype(&attr, type[kind]));
    if (kind == SHARED)
        MUST(pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED));
    if (kind == ROBUST)
        MUST(pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST));
    if (kind == INHERIT)
        MUST(pthread_mutexattr_setprotocol(&attr, PTHREAD_PRIO_INHERIT));
#ifdef __GLIBC__
    if (kind == PROTECT) {
        MUST(pthread_mutexattr_setprotocol(&attr, PTHREAD_PRIO_PROTECT));
        MUST(pthread_mutexattr_setprioceiling(&attr, 7));
    }
#endif
    MUST(pthread_mutex_init(m, &attr));
}

static void make_locks(struct locks *l) {
    for (int kind = 0; kind < MUTEXES; kind++)
        make_mutex(&l->mutex[kind], kind);
    pthread_condattr_t attr;
    MUST(pthread_condattr_init(&attr));
    MUST(pthread_condattr_setclock(&attr, CLOCK_MONOTONIC));
    MUST(pthread_rwlock_init(&l->rwlock, NULL));
    MUST(pthread_spin_init(&l->spin, 0));
    HOLDS(mtx_init(&l->mtx, mtx_timed | mtx_recursive) == thrd_success);
    MUST(sem_init(&l->sem, 0, 2));
    MUST(pthread_cond_init(&l->cond, &attr));
    HOLDS(cnd_init(&l->cnd) == thrd_success);
    MUST(pthread_mutex_init(&l->cond_mutex, NULL));
    MUST(pthread_barrier_init(&l->barrier, NULL, THREADS));
}

static void make_all(void) {
    if (!root_made) {
        make_locks(&root);
        root_made = 1;
    }
    if (!store) {
        struct store *s = calloc(1, sizeof *s);
        HOLDS(s != NULL);
        make_locks(&s->locks);
        for (unsigned i = 0; i < RACES; i++)
            MUST(pthread_mutex_init(&s->race[i], NULL));
        store = s;
    }
}

// ---- many at once -------------------------------------------------------------------------------

// All threads come to each mutex at the same moment, as far as there are processors.
static void *race(void *unused) {
    static _Atomic unsigned ready;
    for (unsigned i = 0; i < RACES; i++) {
        ready++;
        for (unsigned spins = 1; ready < (i + 1) * THREADS; spins++)
            if (spins % 1000 == 0)
                sched_yield();
        MUST(pthread_mutex_lock(&store->race[i]));
        unsigned count = store->count[i];
        sched_yield();
        store->count[i] = count + 1;
        MUST(pthread_mutex_unlock(&store->race[i]));
    }
    return unused;
}

static void all_threads(void *(*run)(void *)) {
    pthread_t thread[THREADS];
    for (intptr_t i = 0; i < THREADS; i++)
        MUST(pthread_create(&thread[i], NULL, run, (void *)i));
    for (int i = 0; i < THREADS; i++)
        MUST(pthread_join(thread[i], NULL));
}

static void race_all(void) {
    memset(store->count, 0, sizeof store->count);
    all_threads(race);
    for (unsigned i = 0; i < RACES; i++)
        HOLDS(store->count[i] == THREADS);
}

static void take_all(void) {
    for (unsigned i = 0; i < RACES; i++)
        MUST(pthread_mutex_lock(&store->race[i]));
    die();
}

// ---- work ---------------------------------------------------------------------------------------

static void step(struct pair *pair) {
    uint64_t n = pair->a;
    HOLDS(pair->b == n); // no other thread is inside
    pair->a = n + 1;
    sched_yield(); // so that a kill finds threads that hold locks
    pair->b = n + 1;
}

static volatile uint64_t phase[THREADS];

static void meet(struct locks *l, intptr_t self) {
    uint64_t mine = ++phase[self];
    pthread_barrier_wait(&l->barrier);
    for (int i = 0; i < THREADS; i++)
        HOLDS(phase[i] >= mine);
}

static void token(struct locks *l) {
    MUST(pthread_mutex_lock(&l->cond_mutex));
    l->tokens++;
    MUST(pthread_cond_signal(&l->cond));
    MUST(pthread_mutex_unlock(&l->cond_mutex));
    sched_yield();
    MUST(pthread_mutex_lock(&l->cond_mutex));
    while (l->tokens == 0)
        MUST(pthread_cond_wait(&l->cond, &l->cond_mutex));
    l->tokens--;
    MUST(pthread_mutex_unlock(&l->cond_mutex));
}

static void take(pthread_mutex_t *m) {
    int status = pthread_mutex_lock(m);
    if (status == EOWNERDEAD)
        status = pthread_mutex_consistent(m);
    MUST(status);
}

// Visits each pair in turn, under the lock that covers it.
static void each_pair(struct locks *l, void (*visit)(struct pair *)) {
    // Only threads of real-time priority may take PROTECT.
    for (int kind = 0; kind < PROTECT; kind++) {
        take(&l->mutex[kind]);
        visit(&l->pair[kind]);
        MUST(pthread_mutex_unlock(&l->mutex[kind]));
    }
    MUST(pthread_rwlock_wrlock(&l->rwlock));
    visit(&l->pair[MUTEXES]);
    MUST(pthread_rwlock_unlock(&l->rwlock));
    MUST(pthread_rwlock_rdlock(&l->rwlock));
    HOLDS(l->pair[MUTEXES].a == l->pair[MUTEXES].b);
    MUST(pthread_rwlock_unlock(&l->rwlock));
    MUST(pthread_spin_lock(&l->spin));
    visit(&l->pair[MUTEXES + 1]);
    MUST(pthread_spin_unlock(&l->spin));
    HOLDS(mtx_lock(&l->mtx) == thrd_success);
    visit(&l->pair[MUTEXES + 2]);
    mtx_unlock(&l->mtx);
}

__attribute__((noreturn)) static void *work(void *self) {
    for (;;) {
        each_pair(&store->locks, step);
        token(&store->locks);
        meet(&store->locks, (intptr_t)self);
        each_pair(&root, step);
        token(&root);
        meet(&root, (intptr_t)self);
    }
}

static unsigned torn;
static uint64_t steps;

static void repair(struct pair *pair) {
    HOLDS(pair->a == pair->b || pair->a == pair->b + 1);
    torn += pair->a != pair->b;
    pair->b = pair->a;
    steps += pair->a;
}

static void repair_all(void) {
    each_pair(&store->locks, repair);
    each_pair(&root, repair);
    HOLDS(torn <= THREADS);
    printf("ok torn=%u steps=%lu\n", torn, (unsigned long)steps);
    fflush(stdout);
}

// A child uses the record of adopted locks that its parent has. A lock that the parent holds at the
// fork is held; one that a dead process held is free.
static void fork_all(void) {
    MUST(pthread_mutex_lock(&store->locks.mutex[NORMAL]));
    pid_t pid = fork();
    HOLDS(pid >= 0);
    if (pid == 0) {
        HOLDS(pthread_mutex_trylock(&store->locks.mutex[NORMAL]) == EBUSY);
        MUST(pthread_mutex_unlock(&store->locks.mutex[NORMAL]));
        at = &store->locks;
        one(0, "once");
        _exit(0);
    }
    int status;
    HOLDS(waitpid(pid, &status, 0) == pid && status == 0);
    MUST(pthread_mutex_unlock(&store->locks.mutex[NORMAL]));
}

static void say_generation(void) {
    uint64_t (*generation)(void);
    *(void **)&generation = dlsym(RTLD_DEFAULT, "pmalloc_generation");
    uint64_t mine = generation();
    free(malloc(1));
    HOLDS(mine == generation());
    printf("%lu\n", (unsigned long)mine);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    if (strcmp(mode, "generation") == 0) {
        say_generation();
        return 0;
    }
    make_all();
    if (argc == 4) {
        int hold = strcmp(mode, "hold") == 0;
        at = strcmp(argv[2], "heap") == 0 ? &store->locks : &root;
        alarm(hold ? 0 : 3);
        one(hold, argv[3]);
        if (hold)
            die();
    } else if (strcmp(mode, "fork") == 0) {
        fork_all();
    } else if (strcmp(mode, "take") == 0) {
        take_all();
    } else if (strcmp(mode, "race") == 0) {
        race_all();
    } else {
        repair_all();
        if (strcmp(mode, "work") == 0)
            all_threads(work);
    }
    return 0;
}
