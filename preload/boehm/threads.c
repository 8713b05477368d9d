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

#include "boehm.h"
#include "process/entry.h"
#include "settings.h"

#define SIGNAL_SUSPEND SIGPWR // what bdwgc documents. Threads are held by another signal
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
    registered = true;
    return result;
}
EXPORT int GC_unregister_my_thread(void) {
    registered = false;
    return GC_DONE;
}
EXPORT void GC_register_altstack(void *stack, size_t size, void *other, size_t other_size) {
    (void)stack, (void)size, (void)other, (void)other_size;
}

// ---- threads made by their names here -----------------------------------------------------------

struct beginning {
    void *(*run)(void *);
    void *arg;
};

// libc keeps the stack for a later thread, and of that the upper 16 KiB as they are. Old pointers
// there would keep blocks alive.
__attribute__((noinline)) static void wipe_stack(void) {
    char room[STACK_KEPT];
    memset(room, 0, sizeof room);
    __asm__ volatile("" : : "r"(room) : "memory");
}

static void *begin(void *p) {
    struct beginning b = *(struct beginning *)p;
    pm_free(p);
    registered = true;
    void *result = b.run(b.arg);
    wipe_stack();
    return result;
}

EXPORT int GC_pthread_create(pthread_t *id, const pthread_attr_t *attr, void *(*run)(void *),
                             void *arg) {
    pm_gc_init();
    struct beginning *b = pm_malloc(sizeof *b);
    if (!b)
        return EAGAIN;
    *b = (struct beginning){run, arg};
    int status = pthread_create(id, attr, begin, b);
    if (status != 0)
        pm_free(b);
    return status;
}
EXPORT int GC_pthread_join(pthread_t id, void **result) { return pthread_join(id, result); }
EXPORT int GC_pthread_detach(pthread_t id) { return pthread_detach(id); }
EXPORT int GC_pthread_cancel(pthread_t id) { return pthread_cancel(id); }
EXPORT __attribute__((noreturn)) void GC_pthread_exit(void *result) { pthread_exit(result); }
EXPORT int GC_pthread_sigmask(int how, const sigset_t *set, sigset_t *old) {
    return pthread_sigmask(how, set, old);
}
EXPORT void *GC_dlopen(const char *path, int mode) { return dlopen(path, mode); }

static int suspend_signal = SIGNAL_SUSPEND, restart_signal = SIGNAL_RESTART;
EXPORT void GC_set_suspend_signal(int signal) { suspend_signal = signal; }
EXPORT void GC_set_thr_restart_signal(int signal) { restart_signal = signal; }
EXPORT int GC_get_suspend_signal(void) { return suspend_signal; }
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
