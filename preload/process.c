// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Events of the process: load, the moment before main, exit; calls that want it to have one thread.
#include <dlfcn.h>
#include <link.h>
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fork.h"
#include "marker.h"
#include "message.h"
#include "pmalloc.h"
#include "runtime.h"
#include "statics.h"

#define EXPORT __attribute__((visibility("default")))

// When both libpmalloc_preload.so and libpmalloc.so are loaded, malloc belongs to the first in search order;
// the other one keeps still.
char pm_marker[1];

#ifdef __GLIBC__
// In a program that is linked to a fixed address and takes the address of malloc, that address is a stub in the program.
static int is_stub(void *function) {
    Dl_info info;
    const ElfW(Sym) *symbol = NULL;
    return dladdr1(function, &info, (void **)(uintptr_t)&symbol, RTLD_DL_SYMENT) && symbol &&
           symbol->st_shndx == SHN_UNDEF && symbol->st_value;
}
#else
static int is_stub(void *function) { return function == NULL; }
#endif

static int in_charge(void) {
    Dl_info ours, theirs;
    if (is_stub((void *)(uintptr_t)&malloc)) { // where it leads shows when it is called
        void *volatile p = malloc(1);
        free(p);
        return pm_phase() != PM_COLD;
    }
    return dladdr(pm_marker, &ours) && dladdr((void *)(uintptr_t)&malloc, &theirs) &&
           ours.dli_fbase == theirs.dli_fbase && malloc_usable_size(pm_marker) == PM_MARK;
}

// A program that brings its own malloc never asks us for memory. Whoever named a heap or roots for it should know.
static void say_not_in_charge(void) {
    Dl_info ours, theirs;
    void *whose = dlsym(RTLD_DEFAULT, "pmalloc_version"); // of the PMAlloc that comes first
    if (!pm_runtime_wanted() || whose != (void *)(uintptr_t)&pmalloc_version ||
        !dladdr(whose, &ours) || !dladdr((void *)(uintptr_t)&malloc, &theirs))
        return;
    if (ours.dli_fbase != theirs.dli_fbase)
        pm_say("this program's malloc is in %s, not here: nothing of it is on a persistent heap",
               theirs.dli_fname);
    else if (dladdr(pm_marker, &ours) && ours.dli_fbase == theirs.dli_fbase)
        pm_say("something has taken malloc's place, as valgrind does: nothing of this program is "
               "on a persistent heap");
}

// Before libc's own constructors (-z initfirst), which will set environ to what glibc's loader hands to all of them.
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
    if (in_charge())
        pm_runtime_start();
}

// For a program that exits before main.
__attribute__((destructor)) static void on_exit_or_unload(void) { pm_runtime_exit(); }

// Shells end so: no destructor runs. libc's own exit() does not come here.
EXPORT _Noreturn void _exit(int status) {
    pm_runtime_leave();
    for (;;)
        syscall(SYS_exit_group, status);
}

EXPORT _Noreturn void _Exit(int status) { _exit(status); }

// A sanitizer's runtime library needs to be asked for memory, and has its own way with libc: some of libc's functions
// cannot be called before it is ready, so this goes without.
#define REFUSE(text)                                                                               \
    do {                                                                                           \
        syscall(SYS_write, STDERR_FILENO, text "\n", sizeof text);                                 \
        syscall(SYS_exit_group, PM_EXIT_START);                                                    \
    } while (0)

extern void __asan_init(void) __attribute__((weak));
extern void __tsan_init(void) __attribute__((weak));

void pm_runtime_guard(void) {
    if (__asan_init)
        REFUSE("pmalloc: this program is built with AddressSanitizer, which needs its own malloc; "
               "run it without PMAlloc, or build it without -fsanitize=address");
    if (__tsan_init)
        REFUSE("pmalloc: this program is built with ThreadSanitizer, which needs its own malloc; "
               "run it without PMAlloc, or build it without -fsanitize=thread");
}

typedef int main_fn(int, char **, char **);
static main_fn *program_main;

static void at_end(void) {
    pm_runtime_exit();
    pm_statics_destroy();
}

// Handlers run in reverse order: behind those of main, before the destructors of what was constructed before it.
static int main_after_capture(int argc, char **argv, char **env) {
    if (in_charge()) {
        pm_runtime_before_main();
        (void)!atexit(at_end); // fails without memory; then our destructor is the end
        (void)!at_quick_exit(pm_runtime_exit);
    } else {
        say_not_in_charge();
    }
    return program_main(argc, argv, env);
}

// Between the last constructor and main there is no hook but this: restoring earlier would let the program's own
// constructors overwrite what was restored.
EXPORT int __libc_start_main(main_fn *main, int argc, char **argv, void (*init)(void),
                             void (*fini)(void), void (*rtld_fini)(void), void *stack_end);
EXPORT int __libc_start_main(main_fn *main, int argc, char **argv, void (*init)(void),
                             void (*fini)(void), void (*rtld_fini)(void), void *stack_end) {
    __typeof(__libc_start_main) *real;
    *(void **)&real = dlsym(RTLD_NEXT, "__libc_start_main");
    if (!real)
        pm_refuse("this program has no libc to start it");
    // Loaded twice (preloaded and linked), each of us gets here in turn; the innermost main is the program's.
    program_main = main;
    return real(main_after_capture, argc, argv, init, fini, rtld_fini, stack_end);
}

// These fail while a forked child has a thread beside the program's one.
EXPORT int unshare(int flags);
EXPORT int unshare(int flags) {
    pm_fork_settle();
    return (int)syscall(SYS_unshare, flags);
}

EXPORT int setns(int fd, int type);
EXPORT int setns(int fd, int type) {
    pm_fork_settle();
    return (int)syscall(SYS_setns, fd, type);
}
