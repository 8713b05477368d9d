// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The locks of <pthread.h> and <threads.h> by their names. Each function first checks whether an
// earlier run left the object and this run has not used it yet. If so, it clears what threads of
// the earlier run held (PMALLOC_LOCKS=reset). Then it calls libc's function.
//
// The functions that unlock check nothing. A thread that unlocks an object has locked it before. So
// every object is adopted before a thread of this run can hold it, and nothing that such a thread
// holds is ever cleared. The same is true for locks that libc takes inside a call: the caller of
// pthread_cond_wait() holds the mutex already.
//
// In commit mode each thread counts the locks that it holds (threads/sections.h).
//
// Semaphores need nothing (lock_state.h), or are in waits.c. libstdc++ comes here by these names:
// std::mutex, std::shared_mutex, std::condition_variable, std::call_once.
#include <dlfcn.h>
#include <errno.h>
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
#include "threads/sections.h"

#define UNLIKELY(x) __builtin_expect(!!(x), 0)

typedef void reset_fn(void *object);

// For an object that is about to be made: its bytes do not matter.
static void pm_reset_fresh(void *object) { (void)object; }

__attribute__((noinline, cold)) void pm_locks_adopt(void *object, reset_fn *reset) {
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

void *pm_locks_next(const char *name) {
    void *next = find(name);
    if (!next)
        pm_refuse(PM_EV_LIBC_UNFIT, "this program's libc has no %s; run it without PMAlloc", name);
    return next;
}

typedef const struct timespec *until;

// Result, name, what a first use clears, parameters (`o` is the object), arguments.
// clang-format off
// Functions that libraries may call at any time.
#define MUTEX_TAKES(X) X(int, pthread_mutex_lock, mutex, (pthread_mutex_t *o), (o))
#define MUTEX_GIVES(X) X(int, pthread_mutex_unlock, none, (pthread_mutex_t *o), (o))
#define COMMON_TAKES(X)                                                                            \
    X(int, pthread_mutex_trylock, mutex, (pthread_mutex_t *o), (o))                                \
    X(int, pthread_rwlock_rdlock, rwlock, (pthread_rwlock_t *o), (o))                              \
    X(int, pthread_rwlock_wrlock, rwlock, (pthread_rwlock_t *o), (o))
#define COMMON_GIVES(X)                                                                            \
    X(int, pthread_rwlock_unlock, none, (pthread_rwlock_t *o), (o))
#define COMMON_LOCKS(X)                                                                            \
    X(int, pthread_mutex_init, fresh, (pthread_mutex_t *o, const pthread_mutexattr_t *a),          \
      (o, a))                                                                                      \
    X(int, pthread_mutex_destroy, mutex, (pthread_mutex_t *o), (o))                                \
    X(int, pthread_rwlock_init, fresh, (pthread_rwlock_t *o, const pthread_rwlockattr_t *a),       \
      (o, a))                                                                                      \
    X(int, pthread_rwlock_destroy, rwlock, (pthread_rwlock_t *o), (o))                             \
    X(int, pthread_cond_signal, cond, (pthread_cond_t *o), (o))                                    \
    X(int, pthread_cond_broadcast, cond, (pthread_cond_t *o), (o))                                 \
    X(int, pthread_once, once, (pthread_once_t *o, void (*run)(void)), (o, run))

#define OTHER_TAKES(X)                                                                             \
    X(int, pthread_mutex_timedlock, mutex, (pthread_mutex_t *o, until t), (o, t))                  \
    X(int, pthread_rwlock_tryrdlock, rwlock, (pthread_rwlock_t *o), (o))                           \
    X(int, pthread_rwlock_timedrdlock, rwlock, (pthread_rwlock_t *o, until t), (o, t))             \
    X(int, pthread_rwlock_trywrlock, rwlock, (pthread_rwlock_t *o), (o))                           \
    X(int, pthread_rwlock_timedwrlock, rwlock, (pthread_rwlock_t *o, until t), (o, t))             \
    X(int, pthread_spin_lock, spin, (pthread_spinlock_t *o), (o))                                  \
    X(int, pthread_spin_trylock, spin, (pthread_spinlock_t *o), (o))
#define OTHER_GIVES(X) X(int, pthread_spin_unlock, none, (pthread_spinlock_t *o), (o))
#define OTHER_LOCKS(X)                                                                             \
    X(int, pthread_mutex_setprioceiling, mutex, (pthread_mutex_t *o, int to, int *old),            \
      (o, to, old))                                                                                \
    X(int, pthread_cond_init, fresh, (pthread_cond_t *o, const pthread_condattr_t *a), (o, a))     \
    X(int, pthread_cond_destroy, cond, (pthread_cond_t *o), (o))                                   \
    X(int, pthread_barrier_init, fresh,                                                            \
      (pthread_barrier_t *o, const pthread_barrierattr_t *a, unsigned n), (o, a, n))               \
    X(int, pthread_barrier_destroy, barrier, (pthread_barrier_t *o), (o))                          \
    X(int, pthread_spin_init, fresh, (pthread_spinlock_t *o, int shared), (o, shared))

// Functions that name the clock to wait by.
#ifdef __GLIBC__
#define CLOCK_TAKES(X)                                                                             \
    X(int, pthread_mutex_clocklock, mutex, (pthread_mutex_t *o, clockid_t c, until t),             \
      (o, c, t))                                                                                   \
    X(int, pthread_rwlock_clockrdlock, rwlock, (pthread_rwlock_t *o, clockid_t c, until t),        \
      (o, c, t))                                                                                   \
    X(int, pthread_rwlock_clockwrlock, rwlock, (pthread_rwlock_t *o, clockid_t c, until t),        \
      (o, c, t))
#define CLOCK_WAITS(X)                                                                             \
    X(int, pthread_cond_clockwait, cond,                                                           \
      (pthread_cond_t *o, pthread_mutex_t *m, clockid_t c, until t), (o, m, c, t), m, CONDITION)
#else
#define CLOCK_TAKES(X)
#define CLOCK_WAITS(X)
#endif

// <threads.h> has the same objects, and its functions do not come by those above.
#define C11_MUTEX_TAKES(X) X(int, mtx_lock, mutex, (mtx_t *o), (o))
#define C11_MUTEX_GIVES(X) X(int, mtx_unlock, none, (mtx_t *o), (o))
#define C11_TAKES(X)                                                                               \
    X(int, mtx_trylock, mutex, (mtx_t *o), (o))                                                    \
    X(int, mtx_timedlock, mutex, (mtx_t *o, until t), (o, t))
#define C11_LOCKS(X)                                                                               \
    X(int, mtx_init, fresh, (mtx_t *o, int kind), (o, kind))                                       \
    X(int, cnd_init, fresh, (cnd_t *o), (o))                                                       \
    X(int, cnd_signal, cond, (cnd_t *o), (o))                                                      \
    X(int, cnd_broadcast, cond, (cnd_t *o), (o))                                                   \
    X(void, cnd_destroy, cond, (cnd_t *o), (o))                                                    \
    X(void, call_once, once, (once_flag *o, void (*run)(void)), (o, run))

// Waits for what another thread does, which are a reason for a commit (commit/triggers.h). To wait
// for a lock is none: the thread is in the middle of something.
// `m`: the mutex that is free meanwhile, or NULL.
#define CONDITION .memory = {{(void *)o, sizeof *o}, {(void *)m, sizeof *m}}
#define WAITS(X)                                                                                   \
    X(int, pthread_cond_wait, cond, (pthread_cond_t *o, pthread_mutex_t *m), (o, m), m, CONDITION) \
    X(int, pthread_cond_timedwait, cond, (pthread_cond_t *o, pthread_mutex_t *m, until t),         \
      (o, m, t), m, CONDITION)                                                                     \
    X(int, pthread_barrier_wait, barrier, (pthread_barrier_t *o), (o), NULL,                       \
      .memory = {{(void *)o, sizeof *o}})                                                          \
    X(int, cnd_wait, cond, (cnd_t *o, mtx_t *m), (o, m), m, CONDITION)                             \
    X(int, cnd_timedwait, cond, (cnd_t *o, mtx_t *m, until t), (o, m, t), m, CONDITION)            \
    CLOCK_WAITS(X)
// clang-format on
#define TAKES(X) COMMON_TAKES(X) OTHER_TAKES(X) CLOCK_TAKES(X) C11_TAKES(X)
#define GIVES(X) COMMON_GIVES(X) OTHER_GIVES(X)
#define LOCKS(X) COMMON_LOCKS(X) OTHER_LOCKS(X) C11_LOCKS(X)

_Static_assert(sizeof(mtx_t) == sizeof(pthread_mutex_t), "one for the other");
_Static_assert(sizeof(cnd_t) == sizeof(pthread_cond_t), "one for the other");
_Static_assert(sizeof(once_flag) == sizeof(pthread_once_t), "one for the other");

// next_NAME points to libc's function. At first it points to first_NAME, which finds libc's.
#define FIRST(type, name, parameters, arguments)                                                   \
    typedef type name##_fn parameters;                                                             \
    static name##_fn first_##name;                                                                 \
    static name##_fn *_Atomic next_##name = first_##name;                                          \
    static type first_##name parameters {                                                          \
        name##_fn *next, *first = first_##name;                                                    \
        *(void **)&next = pm_locks_next(#name);                                                    \
        atomic_compare_exchange_strong(&next_##name, &first, next);                                \
        return next arguments;                                                                     \
    }
#define ADOPT(reset)                                                                               \
    if (UNLIKELY(!pm_surely_adopted((const void *)o)))                                             \
    pm_locks_adopt((void *)o, pm_reset_##reset)
#define GO_ON(name, arguments)                                                                     \
    return atomic_load_explicit(&next_##name, memory_order_relaxed) arguments
#define DEFINE(type, name, reset, parameters, arguments)                                           \
    FIRST(type, name, parameters, arguments)                                                       \
    EXPORT type name parameters {                                                                  \
        ADOPT(reset);                                                                              \
        GO_ON(name, arguments);                                                                    \
    }
LOCKS(DEFINE)

// ---- counting -----------------------------------------------------------------------------------

#define SLOW __attribute__((noinline)) static
// The compiler would merge this end of a function with another one, and jump there.
#define GO_ON_APART(name, arguments)                                                               \
    name##_fn *next = atomic_load_explicit(&next_##name, memory_order_relaxed);                    \
    __asm__ volatile("" : "+r"(next));                                                             \
    return next arguments

#define DEFINE_TAKE(type, name, reset, parameters, arguments)                                      \
    FIRST(type, name, parameters, arguments)                                                       \
    EXPORT type name parameters {                                                                  \
        uint32_t gate = pm_gate();                                                                 \
        ADOPT(reset);                                                                              \
        if (!UNLIKELY(gate != PM_GATE_NONE))                                                       \
            GO_ON(name, arguments);                                                                \
        struct pm_section section = pm_section_before(gate);                                       \
        type result = atomic_load_explicit(&next_##name, memory_order_relaxed) arguments;          \
        if (result == 0 || UNLIKELY(result == EOWNERDEAD))                                         \
            pm_section_begin(section, (const void *)o);                                            \
        return result;                                                                             \
    }
TAKES(DEFINE_TAKE)

#define DEFINE_GIVE(type, name, reset, parameters, arguments)                                      \
    FIRST(type, name, parameters, arguments)                                                       \
    EXPORT type name parameters {                                                                  \
        uint32_t gate = pm_gate();                                                                 \
        if (UNLIKELY(gate != PM_GATE_NONE))                                                        \
            pm_section_end(gate);                                                                  \
        GO_ON(name, arguments);                                                                    \
    }
GIVES(DEFINE_GIVE)

// Whether the mutex is a plain one. libc's functions for it never fail, and note who has it.
static inline bool is_plain(const pthread_mutex_t *mutex) {
#ifdef __GLIBC__
    return mutex->__data.__kind == 0;
#else
    (void)mutex;
    return false;
#endif
}

// Programs lock plain mutexes most of all. So nothing is left to do when libc's function returns,
// and all else is out of the way.
#define DEFINE_MUTEX_TAKE(type, name, reset, parameters, arguments)                                \
    FIRST(type, name, parameters, arguments)                                                       \
    SLOW type slow_##name parameters {                                                             \
        struct pm_section section = pm_section_before(pm_gate());                                  \
        if (is_plain((const void *)o)) {                                                           \
            pm_section_begin_in_line(section, (const void *)o);                                    \
            GO_ON(name, arguments);                                                                \
        }                                                                                          \
        type result = atomic_load_explicit(&next_##name, memory_order_relaxed) arguments;          \
        if (result == 0 || result == EOWNERDEAD)                                                   \
            pm_section_begin(section, (const void *)o);                                            \
        return result;                                                                             \
    }                                                                                              \
    SLOW type old_##name parameters {                                                              \
        pm_locks_adopt((void *)o, pm_reset_##reset);                                               \
        if (pm_gate() != PM_GATE_NONE)                                                             \
            return slow_##name arguments;                                                          \
        GO_ON(name, arguments);                                                                    \
    }                                                                                              \
    EXPORT type name parameters {                                                                  \
        if (UNLIKELY(!pm_surely_adopted((const void *)o)))                                         \
            return old_##name arguments;                                                           \
        uint32_t gate = pm_gate();                                                                 \
        if (!UNLIKELY(gate != PM_GATE_NONE))                                                       \
            GO_ON(name, arguments);                                                                \
        if (UNLIKELY(gate != PM_GATE_OPEN || !pm_calls_own || !is_plain((const void *)o)))         \
            return slow_##name arguments;                                                          \
        pm_section_begin_in_line(pm_section_next(pm_calls_own), (const void *)o);                  \
        GO_ON_APART(name, arguments);                                                              \
    }
MUTEX_TAKES(DEFINE_MUTEX_TAKE)
C11_MUTEX_TAKES(DEFINE_MUTEX_TAKE)

// libc refuses to unlock some kinds of mutexes that the thread does not have (EPERM). It may be in
// a section of another lock then, which is not over for a moment either: these count afterwards.
#define DEFINE_MUTEX_GIVE(type, name, reset, parameters, arguments)                                \
    FIRST(type, name, parameters, arguments)                                                       \
    SLOW type slow_##name parameters {                                                             \
        bool plain = is_plain((const void *)o);                                                    \
        if (plain)                                                                                 \
            pm_section_end(pm_gate());                                                             \
        type result = atomic_load_explicit(&next_##name, memory_order_relaxed) arguments;          \
        if (!plain && result == 0)                                                                 \
            pm_section_end(pm_gate());                                                             \
        return result;                                                                             \
    }                                                                                              \
    EXPORT type name parameters {                                                                  \
        uint32_t gate = pm_gate();                                                                 \
        if (!UNLIKELY(gate != PM_GATE_NONE))                                                       \
            GO_ON(name, arguments);                                                                \
        struct pm_call_record *own = pm_calls_own;                                                 \
        if (UNLIKELY(gate != PM_GATE_OPEN || !own || !is_plain((const void *)o)))                  \
            return slow_##name arguments;                                                          \
        uint64_t sections = atomic_load_explicit(&own->sections, memory_order_relaxed);            \
        if (UNLIKELY(!pm_sections_depth(sections)))                                                \
            return slow_##name arguments;                                                          \
        atomic_store_explicit(&own->sections, sections - 1, memory_order_relaxed);                 \
        GO_ON_APART(name, arguments);                                                              \
    }
MUTEX_GIVES(DEFINE_MUTEX_GIVE)
C11_MUTEX_GIVES(DEFINE_MUTEX_GIVE)

// ---- waits --------------------------------------------------------------------------------------

struct wait {
    struct pm_call *call; // NULL: it is not on record
    const void *given;    // the mutex that was counted; NULL: none
};
// Handlers of a thread that is cancelled in a wait have the mutex, too.
static void end_wait(void *arg) {
    const struct wait *wait = arg;
    if (wait->call)
        pm_call_leave(wait->call);
    if (wait->given)
        pm_section_again(wait->given);
}

#define DEFINE_WAIT(type, name, reset, parameters, arguments, mutex, ...)                          \
    typedef type name##_fn parameters;                                                             \
    EXPORT type name parameters {                                                                  \
        ADOPT(reset);                                                                              \
        static _Atomic(name##_fn *) known;                                                         \
        name##_fn *next = atomic_load_explicit(&known, memory_order_relaxed);                      \
        if (UNLIKELY(!next)) {                                                                     \
            *(void **)&next = pm_locks_next(#name);                                                \
            atomic_store_explicit(&known, next, memory_order_relaxed);                             \
        }                                                                                          \
        bool recorded = UNLIKELY(pm_calls_recorded);                                               \
        if (!recorded && !UNLIKELY(pm_sections_counted()))                                         \
            return next arguments;                                                                 \
        struct pm_call call = {.kind = PM_CALL_WAITS, .by_futex = true, __VA_ARGS__};              \
        const void *given = mutex;                                                                 \
        bool gives = given && pm_sections_counted() && pm_section_end(pm_gate());                  \
        if (recorded) {                                                                            \
            pm_trigger_before(&call);                                                              \
            pm_call_enter(&call);                                                                  \
        }                                                                                          \
        struct wait wait = {recorded ? &call : NULL, gives ? given : NULL};                        \
        type result;                                                                               \
        pthread_cleanup_push(end_wait, &wait);                                                     \
        result = next arguments;                                                                   \
        pthread_cleanup_pop(1);                                                                    \
        if (recorded)                                                                              \
            pm_trigger_after(&call);                                                               \
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
    MUTEX_TAKES(FIND)
    MUTEX_GIVES(FIND)
    COMMON_TAKES(FIND)
    COMMON_GIVES(FIND)
}
