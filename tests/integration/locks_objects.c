// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Locks, one at a time: how each one is held at a kill, and how the next run tries and uses it.
#include "locks.h"

#include <linux/futex.h>
#include <sys/syscall.h>

static const char *const mutex_name[MUTEXES] = {"normal", "recursive", "errorcheck", "adaptive",
                                                "shared", "robust",    "inherit",    "protect"};

struct locks *at;

static void *wait_cond(void *unused) {
    (void)unused;
    MUST(pthread_mutex_lock(&at->cond_mutex));
    at->tokens++;
    MUST(pthread_cond_wait(&at->cond, &at->cond_mutex));
    at->tokens--;
    MUST(pthread_mutex_unlock(&at->cond_mutex));
    return NULL;
}

static void *wait_cnd(void *unused) {
    (void)unused;
    MUST(pthread_mutex_lock(&at->cond_mutex));
    at->tokens++;
    cnd_wait(&at->cnd, (mtx_t *)&at->cond_mutex);
    at->tokens--;
    MUST(pthread_mutex_unlock(&at->cond_mutex));
    return NULL;
}

// Returns when `count` threads wait. A thread holds the mutex from the moment it counts itself
// until it waits.
static void until_waiting(uint64_t count) {
    for (uint64_t seen = count + 1; seen != count; sched_yield()) {
        MUST(pthread_mutex_lock(&at->cond_mutex));
        seen = at->tokens;
        MUST(pthread_mutex_unlock(&at->cond_mutex));
    }
}

// Two threads wait, and one is woken. If nobody clears the condition variable, the next signal goes
// to the other, dead thread.
static void hold_cond(int c11) {
    pthread_t thread[2];
    at->tokens = 0;
    for (int i = 0; i < 2; i++)
        MUST(pthread_create(&thread[i], NULL, c11 ? wait_cnd : wait_cond, NULL));
    until_waiting(2);
    if (c11)
        cnd_signal(&at->cnd);
    else
        MUST(pthread_cond_signal(&at->cond));
    until_waiting(1);
}

static void use_cond(int c11) {
    pthread_t thread;
    at->tokens = 0;
    MUST(pthread_create(&thread, NULL, c11 ? wait_cnd : wait_cond, NULL));
    until_waiting(1);
    if (c11)
        cnd_signal(&at->cnd);
    else
        MUST(pthread_cond_signal(&at->cond));
    MUST(pthread_join(thread, NULL));
    if (c11) {
        cnd_destroy(&at->cnd);
        return;
    }
    // The clock is still the monotonic one. By the other clock, this time would be long past.
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    now.tv_nsec = 0;
    now.tv_sec++;
    MUST(pthread_mutex_lock(&at->cond_mutex));
    int status;
    do
        status = pthread_cond_timedwait(&at->cond, &at->cond_mutex, &now);
    while (status == 0);
    struct timespec then;
    clock_gettime(CLOCK_MONOTONIC, &then);
    HOLDS(status == ETIMEDOUT && then.tv_sec >= now.tv_sec);
    MUST(pthread_mutex_unlock(&at->cond_mutex));
    MUST(pthread_cond_destroy(&at->cond));
}

static _Atomic unsigned arrived;

static void *wait_barrier(void *unused) {
    (void)unused;
    arrived++;
    pthread_barrier_wait(&at->barrier);
    return NULL;
}

static void hold_barrier(void) {
    pthread_t thread;
    for (int i = 0; i < THREADS - 1; i++)
        MUST(pthread_create(&thread, NULL, wait_barrier, NULL));
    while (arrived < THREADS - 1)
        sched_yield();
    // The result does not need it: a thread that has not arrived leaves less to clear.
    usleep(20000);
}

static void use_barrier(void) {
    pthread_t thread[THREADS];
    for (int i = 0; i < THREADS; i++)
        MUST(pthread_create(&thread[i], NULL, wait_barrier, NULL));
    for (int i = 0; i < THREADS; i++)
        MUST(pthread_join(thread[i], NULL));
    MUST(pthread_barrier_destroy(&at->barrier));
}

static void once_killed(void) { die(); }
static void once_counted(void) { at->once_runs++; }

static void tried(int status) {
    HOLDS(status == 0 || status == EBUSY);
    printf("%s\n", status ? "held" : "free");
    if (status)
        exit(0);
}

#ifdef __GLIBC__
// Only threads of real-time priority may take it, so the test forges the held state.
static void hold_protect(pthread_mutex_t *m) {
    m->__data.__lock |= 2;
    m->__data.__owner = 12345;
    m->__data.__nusers = 1;
}

static void use_protect(pthread_mutex_t *m) {
    int ceiling, status = pthread_mutex_destroy(m);
    tried(status);
    MUST(pthread_mutex_getprioceiling(m, &ceiling));
    HOLDS(ceiling == 7);
}
#else
static void hold_protect(pthread_mutex_t *m) { MUST(pthread_mutex_lock(m)); }
static void use_protect(pthread_mutex_t *m) { tried(pthread_mutex_trylock(m)); }
#endif

// The state that a power loss leaves: the kernel has not noticed the holder's end.
static void hold_cut(pthread_mutex_t *m) {
    static struct robust_list_head none = {.list.next = &none.list};
    MUST(pthread_mutex_lock(m));
    HOLDS(syscall(SYS_set_robust_list, &none, sizeof none) == 0);
}

static void hold_mutex(int kind) {
    if (kind == PROTECT)
        hold_protect(&at->mutex[kind]);
    else
        MUST(pthread_mutex_lock(&at->mutex[kind]));
}

static void use_mutex(int kind) {
    pthread_mutex_t *m = &at->mutex[kind];
    if (kind == PROTECT) {
        use_protect(m);
        return;
    }
    int status = pthread_mutex_trylock(m);
    if (kind == ROBUST && status == EOWNERDEAD)
        status = pthread_mutex_consistent(m);
    else if (kind == ROBUST)
        HOLDS(status == EBUSY);
    tried(status);
    // The mutex is still of its kind and complete: it can be taken again, unlocked, destroyed.
    status = pthread_mutex_trylock(m);
    HOLDS(status == (kind == RECURSIVE ? 0 : EBUSY));
    if (kind == RECURSIVE)
        MUST(pthread_mutex_unlock(m));
    if (kind == ERRORCHECK)
        HOLDS(pthread_mutex_lock(m) == EDEADLK);
    MUST(pthread_mutex_unlock(m));
    if (kind == ERRORCHECK)
        HOLDS(pthread_mutex_unlock(m) == EPERM);
    MUST(pthread_mutex_lock(m));
    MUST(pthread_mutex_unlock(m));
    MUST(pthread_mutex_destroy(m));
}

static void use_rwlock(int (*try)(pthread_rwlock_t *)) {
    tried(try(&at->rwlock));
    MUST(pthread_rwlock_unlock(&at->rwlock));
    MUST(pthread_rwlock_rdlock(&at->rwlock));
    HOLDS(pthread_rwlock_trywrlock(&at->rwlock) == EBUSY);
    MUST(pthread_rwlock_unlock(&at->rwlock));
    MUST(pthread_rwlock_wrlock(&at->rwlock));
    HOLDS(pthread_rwlock_tryrdlock(&at->rwlock) == EBUSY);
    MUST(pthread_rwlock_unlock(&at->rwlock));
    MUST(pthread_rwlock_destroy(&at->rwlock));
}

static void use_mtx(void) {
    int status = mtx_trylock(&at->mtx);
    tried(status == thrd_busy ? EBUSY : status == thrd_success ? 0 : EINVAL);
    HOLDS(mtx_lock(&at->mtx) == thrd_success); // the mutex is recursive
    mtx_unlock(&at->mtx);
    mtx_unlock(&at->mtx);
}

static void *wait_sem(void *unused) {
    (void)unused;
    sem_wait(&at->sem);
    return NULL;
}

static void hold_sem(void) {
    pthread_t thread;
    sem_wait(&at->sem);
    sem_wait(&at->sem);
    MUST(pthread_create(&thread, NULL, wait_sem, NULL));
    usleep(20000); // as in hold_barrier()
}

// A semaphore's value belongs to the program, so it stays.
static void use_sem(void) {
    int value;
    MUST(sem_getvalue(&at->sem, &value));
    HOLDS(value == 0 && sem_trywait(&at->sem) == -1 && errno == EAGAIN);
    MUST(sem_post(&at->sem));
    MUST(sem_wait(&at->sem));
}

void one(int hold, const char *object) {
    for (int kind = 0; kind < MUTEXES; kind++)
        if (strcmp(object, mutex_name[kind]) == 0) {
            hold ? hold_mutex(kind) : use_mutex(kind);
            return;
        }
    if (strcmp(object, "cut") == 0)
        hold ? hold_cut(&at->mutex[ROBUST]) : use_mutex(ROBUST);
    else if (strcmp(object, "read") == 0)
        hold ? (void)pthread_rwlock_rdlock(&at->rwlock) : use_rwlock(pthread_rwlock_trywrlock);
    else if (strcmp(object, "write") == 0)
        hold ? (void)pthread_rwlock_wrlock(&at->rwlock) : use_rwlock(pthread_rwlock_tryrdlock);
    else if (strcmp(object, "spin") == 0)
        hold ? (void)pthread_spin_lock(&at->spin) : tried(pthread_spin_trylock(&at->spin));
    else if (strcmp(object, "mtx") == 0)
        hold ? (void)mtx_lock(&at->mtx) : use_mtx();
    else if (strcmp(object, "sem") == 0)
        hold ? hold_sem() : use_sem();
    else if (strcmp(object, "cond") == 0)
        hold ? hold_cond(0) : use_cond(0);
    else if (strcmp(object, "cnd") == 0)
        hold ? hold_cond(1) : use_cond(1);
    else if (strcmp(object, "barrier") == 0)
        hold ? hold_barrier() : use_barrier();
    else if (strcmp(object, "once") == 0) {
        MUST(pthread_once(&at->once, hold ? once_killed : once_counted));
        MUST(pthread_once(&at->once, once_counted));
        HOLDS(at->once_runs == 1);
    } else if (strcmp(object, "flag") == 0) {
        call_once(&at->flag, hold ? once_killed : once_counted);
        call_once(&at->flag, once_counted);
        HOLDS(at->once_runs == 1);
    } else if (strcmp(object, "done") == 0) { // a completed once stays complete
        MUST(pthread_once(&at->once, once_counted));
        HOLDS(at->once_runs == 1);
    } else
        HOLDS(!"an object of that name");
}
