// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Events of the process: load, the moment before main, exit. Also the calls that fail in a process
// with several threads.
#include <dlfcn.h>
#include <link.h>
#include <malloc.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/library.h"
#include "base/message.h"
#include "commit/background.h"
#include "export.h"
#include "fork/fork.h"
#include "locks.h"
#include "marker.h"
#include "own_names.h"
#include "pmalloc.h"
#include "process/before_main.h"
#include "process/leaks_marker.h"
#include "process/open.h"
#include "process/start.h"
#include "statics.h"
#include "streams.h"
#include "threads/postpone.h"

#ifdef __GLIBC__
// If a program is linked to a fixed address and takes the address of malloc, it gets the address of
// a stub in the program itself.
static bool is_stub(void *function) {
    Dl_info info;
    const ElfW(Sym) *symbol = NULL;
    return dladdr1(function, &info, (void **)(uintptr_t)&symbol, RTLD_DL_SYMENT) && symbol &&
           symbol->st_shndx == SHN_UNDEF && symbol->st_value;
}
#else
static bool is_stub(void *function) { return function == NULL; }
#endif

static bool in_charge(void) {
    if (pm_library_has((uintptr_t)&malloc))
        return malloc_usable_size(pm_marker) == PM_MARK;
    if (!is_stub((void *)(uintptr_t)&malloc))
        return false;
    void *volatile p = malloc(1); // only a call shows where it leads
    free(p);
    return pm_phase() != PM_COLD;
}

// A program that brings its own malloc never asks us for memory. If somebody has named a heap or
// roots for it, we say so.
static void say_not_in_charge(void) {
    Dl_info ours, theirs;
    void *whose = dlsym(RTLD_DEFAULT, "pmalloc_version"); // in the PMAlloc that is found first
    if (!pm_process_wanted() || whose != (void *)(uintptr_t)&pmalloc_version ||
        !dladdr(whose, &ours) || !dladdr((void *)(uintptr_t)&malloc, &theirs))
        return;
    if (ours.dli_fbase != theirs.dli_fbase)
        pm_event(PM_EV_MALLOC_ELSEWHERE,
                 "this program's malloc is in %s, not here: nothing of it is on a persistent heap",
                 theirs.dli_fname);
    else if (dladdr(pm_marker, &ours) && ours.dli_fbase == theirs.dli_fbase)
        pm_event(PM_EV_MALLOC_ELSEWHERE,
                 "something has taken malloc's place, as valgrind does: nothing of this program is "
                 "on a persistent heap");
}

extern void __asan_init(void) __attribute__((weak));
extern void __tsan_init(void) __attribute__((weak));
extern void __lsan_init(void) __attribute__((weak)); // AddressSanitizer has it, too

// In a sanitized program libc's functions are the sanitizer's. They cannot be called before the
// sanitizer is ready.
static bool is_sanitized(void) { return __asan_init || __tsan_init || __lsan_init; }

static void end_somehow(void);

// Runs before libc's own constructors (-z initfirst), which set environ. glibc's loader passes the
// environment to every constructor, so it is set here already.
extern char **environ;
__attribute__((constructor)) static void on_load(int argc, char **argv, char **env) {
    (void)argc;
    (void)argv;
#ifdef __GLIBC__
    if (!environ)
        environ = env;
#else
    (void)env;
#endif
    if (!is_sanitized())
        pm_own_names_avoid(env);
    pm_statics_init(end_somehow);
    if (!is_sanitized())
        pm_locks_find();
    if (in_charge()) {
        pm_postpone_here();
        pm_process_begin();
    }
}

// Shells end by _exit(), which runs no destructor. libc's own exit() does not call this function.
EXPORT _Noreturn void _exit(int status) {
    pm_process_leave();
    for (;;)
        syscall(SYS_exit_group, status);
}

EXPORT _Noreturn void _Exit(int status) { _exit(status); }

// The end of the program. Where no destructor may run after it, the process ends, too.
static void end(int status) {
    if (pm_process_end())
        return;
    fflush(NULL);
    syscall(SYS_exit_group, status);
}

// The end where libc does not tell the status: in a program that exits before main, in
// quick_exit(), and in a later call of exit(). The status is the first exit()'s, or EXIT_FAILURE.
static _Atomic int status_of_first = EXIT_FAILURE;
static void end_somehow(void) { end(status_of_first); }
__attribute__((destructor)) static void on_exit_or_unload(void) { end_somehow(); }

// A sanitizer's runtime library must serve malloc itself. It also replaces functions of libc, some
// of which cannot be called before it is ready. So this calls none of them, and no setting is read.
#define REFUSE(text)                                                                               \
    do {                                                                                           \
        syscall(SYS_write, STDERR_FILENO, text "\n", sizeof text);                                 \
        syscall(SYS_exit_group, PM_EXIT_START);                                                    \
    } while (0)

void pm_preload_check(void) {
    if (__asan_init)
        REFUSE("pmalloc: this program is built with AddressSanitizer, which needs its own malloc; "
               "run it without PMAlloc, or build it without -fsanitize=address");
    if (__tsan_init)
        REFUSE("pmalloc: this program is built with ThreadSanitizer, which needs its own malloc; "
               "run it without PMAlloc, or build it without -fsanitize=thread");
    // Its threads allocate before pthread_create() returns, and so would wait for our start.
    if (__lsan_init)
        REFUSE("pmalloc: this program is built with LeakSanitizer, which needs its own malloc; "
               "run it without PMAlloc, or build it without -fsanitize=leak");
}

typedef int main_fn(int, char **, char **);
static main_fn *program_main;

#ifdef __GLIBC__
static void at_end(int status, void *unused) {
    (void)unused;
    status_of_first = status;
    end(status);
    pm_statics_destroy();
}
#define AT_END(handler) on_exit(handler, NULL)
// Not at_quick_exit(): it lies in libc's static part, and so in a page of our code that a start
// needs for nothing else.
extern int __cxa_at_quick_exit(void (*run)(void *), void *object);
static void end_quickly(void *unused) {
    (void)unused;
    end_somehow();
}
#define AT_QUICK_EXIT() __cxa_at_quick_exit(end_quickly, NULL)
#else
static void at_end(void) {
    end_somehow();
    pm_statics_destroy();
}
#define AT_END(handler) atexit(handler)
#define AT_QUICK_EXIT() at_quick_exit(end_somehow)
#endif

// Handlers run in reverse order. Ours runs after those that main registers, and before the
// destructors of what was constructed before main.
static int main_after_capture(int argc, char **argv, char **env) {
    char **before = environ;
    if (in_charge()) {
        pm_process_before_main();
        pm_streams_cover();
        (void)!AT_END(at_end); // fails without memory; then our destructor is the end
        (void)!AT_QUICK_EXIT();
    } else {
        say_not_in_charge();
    }
    return program_main(argc, argv, env == before ? environ : env);
}

// The loader's handler runs the functions with __attribute__((destructor)) of the program and its
// libraries. A later call of exit() may come to it first, so it has a gate.
static void (*loader_fini)(void);
static void gated_fini(void) {
    end_somehow();
    loader_fini();
}

// This is the only hook between the last constructor and main. If roots were restored earlier, the
// program's own constructors would overwrite them.
EXPORT int __libc_start_main(main_fn *main, int argc, char **argv, void (*init)(void),
                             void (*fini)(void), void (*rtld_fini)(void), void *stack_end);
EXPORT int __libc_start_main(main_fn *main, int argc, char **argv, void (*init)(void),
                             void (*fini)(void), void (*rtld_fini)(void), void *stack_end) {
    __typeof(__libc_start_main) *real;
    *(void **)&real = dlsym(RTLD_NEXT, "__libc_start_main");
    if (!real)
        pm_refuse(PM_EV_LIBC_UNFIT, "this program has no libc to start it; run it without PMAlloc");
    // If the library is loaded twice (preloaded and linked), each copy comes here in turn. The last
    // one gets the program's own main.
    program_main = main;
    loader_fini = rtld_fini;
    return real(main_after_capture, argc, argv, init, fini, rtld_fini ? gated_fini : NULL,
                stack_end);
}

// The kernel refuses these calls while a thread of ours runs beside the program's: a forked child's
// copier, or the thread of PMALLOC_BACKGROUND. Not so a new PID namespace for the children alone;
// and after that the process can have no new thread, so ours goes on.
static bool bears_threads(int flags) {
    return flags & CLONE_NEWPID &&
           !(flags & (CLONE_NEWUSER | CLONE_THREAD | CLONE_VM | CLONE_SIGHAND));
}

EXPORT int unshare(int flags);
EXPORT int unshare(int flags) {
    pm_fork_finish_copy();
    pm_marker_end();
    bool stopped = !bears_threads(flags) && pm_background_pause();
    int status = (int)syscall(SYS_unshare, flags);
    pm_background_go_on(stopped);
    return status;
}

EXPORT int setns(int fd, int type);
EXPORT int setns(int fd, int type) {
    pm_fork_finish_copy();
    pm_marker_end();
    bool stopped = type != CLONE_NEWPID && pm_background_pause();
    int status = (int)syscall(SYS_setns, fd, type);
    pm_background_go_on(stopped);
    return status;
}
