// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Threads of gc.h. All threads of the process are held and looked at, whoever has made them. So
// registering one only notes that.
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/lock.h"
#include "boehm.h"
#include "settings.h"
#include "suspend.h"

#define STACK_KEPT 16384
#define SIGNAL_RESTART SIGXCPU

static __thread bool registered __attribute__((tls_model("initial-exec")));

struct stack_base {
    void *top;
};

// ---- registering --------------------------------------------------------------------------------

static bool is_main(void) { return getpid() == gettid(); }

EXPORT void GC_allow_register_threads(void) {}
EXPORT int GC_thread_is_registered(void) { return registered || is_main(); }
EXPORT int GC_register_my_thread(const struct stack_base *base) {
    (void)base;
    int result = GC_thread_is_registered() ? GC_DUPLICATE : GC_DONE;
    if (result == GC_DONE)
        pm_gc_threads_add(false);
    registered = true;
    return result;
}
EXPORT int GC_unregister_my_thread(void) {
    pm_gc_threads_remove();
    registered = false;
    return GC_DONE;
}
EXPORT void GC_register_altstack(void *stack, size_t size, void *other, size_t other_size) {
    (void)stack, (void)size, (void)other, (void)other_size;
}

// ---- threads made by their names here -----------------------------------------------------------

// On the stack of the thread that makes the other one.
struct beginning {
    void *(*run)(void *);
    void *arg;
    bool detached;
    _Atomic uint32_t begun; // a futex
};

// libc keeps the stack for a later thread, and of that the upper 16 KiB as they are. Old pointers
// there would keep blocks alive.
__attribute__((noinline)) static void wipe_stack(void) {
    char room[STACK_KEPT];
    memset(room, 0, sizeof room);
    __asm__ volatile("" : : "r"(room) : "memory");
}

static void end(void *unused) {
    (void)unused;
    if (registered)
        pm_gc_threads_end();
    registered = false;
}

static void *begin(void *p) {
    struct beginning *b = p;
    void *(*run)(void *) = b->run, *arg = b->arg, *result;
    pm_gc_threads_add(b->detached);
    registered = true;
    atomic_store_explicit(&b->begun, 1, memory_order_release);
    pm_futex_wake(&b->begun, 1);
    pthread_cleanup_push(end, NULL);
    result = run(arg);
    pthread_cleanup_pop(1);
    wipe_stack();
    return result;
}

// A thread that was made is registered, so that it can be suspended.
EXPORT int GC_pthread_create(pthread_t *id, const pthread_attr_t *attr, void *(*run)(void *),
                             void *arg) {
    pm_gc_init();
    struct beginning b = {.run = run, .arg = arg};
    int state = PTHREAD_CREATE_JOINABLE;
    if (attr)
        pthread_attr_getdetachstate(attr, &state);
    b.detached = state == PTHREAD_CREATE_DETACHED;
    int status = pthread_create(id, attr, begin, &b);
    while (status == 0 && !atomic_load_explicit(&b.begun, memory_order_acquire))
        pm_futex_wait(&b.begun, 0);
    return status;
}
EXPORT int GC_pthread_join(pthread_t id, void **result) {
    uint32_t serial = pm_gc_threads_serial(id);
    int status = pthread_join(id, result);
    if (status == 0)
        pm_gc_threads_joined(id, serial);
    return status;
}
EXPORT int GC_pthread_detach(pthread_t id) {
    int status = pthread_detach(id);
    if (status == 0)
        pm_gc_threads_detached(id);
    return status;
}
EXPORT int GC_pthread_cancel(pthread_t id) { return pthread_cancel(id); }
EXPORT __attribute__((noreturn)) void GC_pthread_exit(void *result) { pthread_exit(result); }
// A thread that blocks the signal could not be suspended.
EXPORT int GC_pthread_sigmask(int how, const sigset_t *set, sigset_t *old) {
    sigset_t less;
    if (set && how != SIG_UNBLOCK) {
        less = *set;
        sigdelset(&less, pm_gc_suspend_signal);
        set = &less;
    }
    return pthread_sigmask(how, set, old);
}
EXPORT void *GC_dlopen(const char *path, int mode) { return dlopen(path, mode); }

static int restart_signal = SIGNAL_RESTART;
EXPORT void GC_set_thr_restart_signal(int signal) { restart_signal = signal; }
EXPORT int GC_get_thr_restart_signal(void) { return restart_signal; }

// ---- stacks -------------------------------------------------------------------------------------

EXPORT char *GC_stackbottom;

EXPORT int GC_get_stack_base(struct stack_base *base) {
    pthread_attr_t attr;
    void *lowest;
    size_t size;
    if (pthread_getattr_np(pthread_self(), &attr) != 0)
        return GC_UNIMPLEMENTED;
    int status = pthread_attr_getstack(&attr, &lowest, &size);
    pthread_attr_destroy(&attr);
    base->top = (char *)lowest + size;
    return status == 0 ? GC_DONE : GC_UNIMPLEMENTED;
}

EXPORT void *GC_call_with_stack_base(void *(*fn)(struct stack_base *, void *), void *arg) {
    struct stack_base base;
    base.top = &base;
    return fn(&base, arg);
}
EXPORT void *GC_get_my_stackbottom(struct stack_base *base) {
    GC_get_stack_base(base);
    return (void *)pthread_self();
}
// Whatever memory a stack lies in is looked at from the stack pointer up.
EXPORT void GC_set_stackbottom(void *thread, const struct stack_base *base) {
    (void)thread;
    if (is_main())
        GC_stackbottom = base->top;
}
EXPORT void *GC_do_blocking(gc_fn *fn, void *arg) { return fn(arg); }
EXPORT void *GC_call_with_gc_active(gc_fn *fn, void *arg) { return fn(arg); }
