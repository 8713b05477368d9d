// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The locks of <pthread.h> and <threads.h> by their names. Each function first checks whether an
// earlier run left the object and this run has not used it yet. If so, it clears what threads of
// the earlier run held (PMALLOC_LOCKS=reset). Then it calls libc's function.
//
// The functions that make, take, wait, wake and destroy are here. The unlock functions are not. A
// thread that unlocks an object has locked it before. So every object is adopted before a thread of
// this run can hold it, and nothing that such a thread holds is ever cleared. The same is true for
// locks that libc takes inside a call: the caller of pthread_cond_wait() holds the mutex already.
//
// Semaphores need nothing (lock_state.h). libstdc++ comes here by the same names: std::mutex,
// std::shared_mutex, std::condition_variable, std::call_once.
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <threads.h>
#include <time.h>

#include "base/message.h"
#include "commit/triggers.h"
#include "export.h"
#include "lock_state.h"
#include "locks.h"
#include "media/adopt.h"
#include "threads/calls.h"

#define UNLIKELY(x) __builtin_expect(!!(x), 0)

typedef void reset_fn(void *object);

// For an object that is about to be made: its bytes do not matter.
static void pm_reset_fresh(void *object) { (void)object; }

__attribute__((noinline, cold)) static void adopt(void *object, reset_fn *reset) {
    if (pm_adopted(object))
        return;
    if (reset == pm_reset_fresh) {
        pm_adopt_fresh(object);
        return;
    }
    pm_lock_state_learn();
    if (pm_adopt_begin(object)) {
        reset(object);
        pm_adopt_end(object);
    }
}

// glibc has two layouts of condition variables. Programs are linked to the newer one, but dlsym()
// may return the functions of the older one. pthread_cond_clockwait() exists for the newer only.
static void *find(const char *name) {
#ifdef __GLIBC__
    if (strncmp(name, "pthread_cond_", 13) == 0 && strcmp(name + 13, "clockwait") != 0)
        return dlvsym(RTLD_NEXT, name, "GLIBC_2.3.2");
#endif
    return dlsym(RTLD_NEXT, name);
}

static void *find_or_refuse(const char *name) {
    void *next = find(name);
    if (!next)
        pm_refuse("this program's libc has no %s; run it without PMAlloc", name);
    return next;
}

typedef const struct timespec *until;

// Result, name, what a first use clears, parameters (`o` is the object), arguments.
// clang-format off
// Functions that libraries may call at any time.
#define COMMON_LOCKS(X)                                                                            \
    X(int, pthread_mutex_init, fresh, (pthread_mutex_t *o, const pthread_mutexattr_t *a),          \
      (o, a))                                                                                      \
    X(int, pthread_mutex_destroy, mutex, (pthread_mutex_t *o), (o))                                \
    X(int, pthread_mutex_lock, mutex, (pthread_mutex_t *o), (o))                                   \
    X(int, pthread_mutex_trylock, mutex, (pthread_mutex_t *o), (o))                                \
    X(int, pthread_rwlock_init, fresh, (pthread_rwlock_t *o, const pthread_rwlockattr_t *a),       \
      (o, a))                                                                                      \
    X(int, pthread_rwlock_destroy, rwlock, (pthread_rwlock_t *o), (o))                             \
    X(int, pthread_rwlock_rdlock, rwlock, (pthread_rwlock_t *o), (o))                              \
    X(int, pthread_rwlock_wrlock, rwlock, (pthread_rwlock_t *o), (o))                              \
    X(int, pthread_cond_signal, cond, (pthread_cond_t *o), (o))                                    \
    X(int, pthread_cond_broadcast, cond, (pthread_cond_t *o), (o))                                 \
    X(int, pthread_once, once, (pthread_once_t *o, void (*run)(void)), (o, run))

#define OTHER_LOCKS(X)                                                                             \
    X(int, pthread_mutex_timedlock, mutex, (pthread_mutex_t *o, until t), (o, t))                  \
    X(int, pthread_mutex_setprioceiling, mutex, (pthread_mutex_t *o, int to, int *old),            \
      (o, to, old))                                                                                \
    X(int, pthread_rwlock_tryrdlock, rwlock, (pthread_rwlock_t *o), (o))                           \
    X(int, pthread_rwlock_timedrdlock, rwlock, (pthread_rwlock_t *o, until t), (o, t))             \
    X(int, pthread_rwlock_trywrlock, rwlock, (pthread_rwlock_t *o), (o))                           \
    X(int, pthread_rwlock_timedwrlock, rwlock, (pthread_rwlock_t *o, until t), (o, t))             \
    X(int, pthread_cond_init, fresh, (pthread_cond_t *o, const pthread_condattr_t *a), (o, a))     \
    X(int, pthread_cond_destroy, cond, (pthread_cond_t *o), (o))                                   \
    X(int, pthread_barrier_init, fresh,                                                            \
      (pthread_barrier_t *o, const pthread_barrierattr_t *a, unsigned n), (o, a, n))               \
    X(int, pthread_barrier_destroy, barrier, (pthread_barrier_t *o), (o))                          \
    X(int, pthread_spin_init, fresh, (pthread_spinlock_t *o, int shared), (o, shared))             \
    X(int, pthread_spin_lock, spin, (pthread_spinlock_t *o), (o))                                  \
    X(int, pthread_spin_trylock, spin, (pthread_spinlock_t *o), (o))

// Functions that name the clock to wait by.
#ifdef __GLIBC__
#define CLOCK_LOCKS(X)                                                                             \
    X(int, pthread_mutex_clocklock, mutex, (pthread_mutex_t *o, clockid_t c, until t),             \
      (o, c, t))                                                                                   \
    X(int, pthread_rwlock_clockrdlock, rwlock, (pthread_rwlock_t *o, clockid_t c, until t),        \
      (o, c, t))                                                                                   \
    X(int, pthread_rwlock_clockwrlock, rwlock, (pthread_rwlock_t *o, clockid_t c, until t),        \
      (o, c, t))
#define CLOCK_WAITS(X)                                                                             \
    X(int, pthread_cond_clockwait, cond,                                                           \
      (pthread_cond_t *o, pthread_mutex_t *m, clockid_t c, until t), (o, m, c, t), CONDITION)
#else
#define CLOCK_LOCKS(X)
#define CLOCK_WAITS(X)
#endif

// <threads.h> has the same objects, and its functions do not come by those above.
#define C11_LOCKS(X)                                                                               \
    X(int, mtx_init, fresh, (mtx_t *o, int kind), (o, kind))                                       \
    X(int, mtx_lock, mutex, (mtx_t *o), (o))                                                       \
    X(int, mtx_trylock, mutex, (mtx_t *o), (o))                                                    \
    X(int, mtx_timedlock, mutex, (mtx_t *o, until t), (o, t))                                      \
    X(int, cnd_init, fresh, (cnd_t *o), (o))                                                       \
    X(int, cnd_signal, cond, (cnd_t *o), (o))                                                      \
    X(int, cnd_broadcast, cond, (cnd_t *o), (o))                                                   \
    X(void, cnd_destroy, cond, (cnd_t *o), (o))                                                    \
    X(void, call_once, once, (once_flag *o, void (*run)(void)), (o, run))

// Waits for what another thread does, which are a reason for a commit (commit/triggers.h). To wait
// for a lock is no such wait: the thread is in the middle of something.
#define CONDITION .memory = {{(void *)o, sizeof *o}, {(void *)m, sizeof *m}}
#define WAITS(X)                                                                                   \
    X(int, pthread_cond_wait, cond, (pthread_cond_t *o, pthread_mutex_t *m), (o, m), CONDITION)    \
    X(int, pthread_cond_timedwait, cond, (pthread_cond_t *o, pthread_mutex_t *m, until t),         \
      (o, m, t), CONDITION)                                                                        \
    X(int, pthread_barrier_wait, barrier, (pthread_barrier_t *o), (o),                             \
      .memory = {{(void *)o, sizeof *o}})                                                          \
    X(int, cnd_wait, cond, (cnd_t *o, mtx_t *m), (o, m), CONDITION)                                \
    X(int, cnd_timedwait, cond, (cnd_t *o, mtx_t *m, until t), (o, m, t), CONDITION)               \
    CLOCK_WAITS(X)
// clang-format on
#define LOCKS(X) COMMON_LOCKS(X) OTHER_LOCKS(X) CLOCK_LOCKS(X) C11_LOCKS(X)

_Static_assert(sizeof(mtx_t) == sizeof(pthread_mutex_t), "one for the other");
_Static_assert(sizeof(cnd_t) == sizeof(pthread_cond_t), "one for the other");
_Static_assert(sizeof(once_flag) == sizeof(pthread_once_t), "one for the other");

// next_NAME points to libc's function. At first it points to first_NAME, which finds libc's.
#define FIRST(type, name, parameters, arguments)                                                   \
    typedef type name##_fn parameters;                                                             \
    static name##_fn first_##name;                                                                 \
    static name##_fn *_Atomic next_##name = first_##name;                                          \
    static type first_##name parameters {                                                          \
        name##_fn *next;                                                                           \
        *(void **)&next = find_or_refuse(#name);                                                   \
        atomic_store_explicit(&next_##name, next, memory_order_relaxed);                           \
        return next arguments;                                                                     \
    }
#define DEFINE(type, name, reset, parameters, arguments)                                           \
    FIRST(type, name, parameters, arguments)                                                       \
    EXPORT type name parameters {                                                                  \
        if (UNLIKELY(!pm_surely_adopted((const void *)o)))                                         \
            adopt((void *)o, pm_reset_##reset);                                                    \
        return atomic_load_explicit(&next_##name, memory_order_relaxed) arguments;                 \
    }
LOCKS(DEFINE)

#define DEFINE_WAIT(type, name, reset, parameters, arguments, ...)                                 \
    typedef type name##_fn parameters;                                                             \
    EXPORT type name parameters {                                                                  \
        if (UNLIKELY(!pm_surely_adopted((const void *)o)))                                         \
            adopt((void *)o, pm_reset_##reset);                                                    \
        static _Atomic(name##_fn *) known;                                                         \
        name##_fn *next = atomic_load_explicit(&known, memory_order_relaxed);                      \
        if (UNLIKELY(!next)) {                                                                     \
            *(void **)&next = find_or_refuse(#name);                                               \
            atomic_store_explicit(&known, next, memory_order_relaxed);                             \
        }                                                                                          \
        if (!UNLIKELY(pm_calls_recorded))                                                          \
            return next arguments;                                                                 \
        struct pm_call call = {.kind = PM_CALL_WAITS, .by_futex = true, __VA_ARGS__};              \
        pm_trigger_before(&call);                                                                  \
        pm_call_enter(&call);                                                                      \
        type result = next arguments;                                                              \
        pm_call_leave(&call);                                                                      \
        pm_trigger_after(&call);                                                                   \
        return result;                                                                             \
    }
WAITS(DEFINE_WAIT)

// dlsym() changes what dlerror() tells the program, and a library may take a mutex between an error
// and its dlerror(). So the common functions are found in advance. Finding the others, too, would
// add 10 us to each start.
#define FIND(type, name, reset, parameters, arguments)                                             \
    next = find(#name);                                                                            \
    if (next)                                                                                      \
        atomic_store_explicit(&next_##name, *(name##_fn **)&next, memory_order_relaxed);
void pm_locks_find(void) {
    void *next;
    COMMON_LOCKS(FIND)
}
