// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// dlopen() without RTLD_DEEPBIND. A library loaded with that flag (PHP's modules, some plugins and
// NSS modules) would find libc's malloc before ours, and would give our blocks to libc's free. That
// ends in libc's abort or worse. Without the flag such a library no longer prefers its own symbols
// to the program's. That is the lesser evil.
//
// And what it has loaded is put on record (process/moved.h), for words of the heap that lead there.
// That is all that is to be done with musl, which knows no such flag.
#include <dlfcn.h>
#include <string.h>

#include "as_caller.h"
#include "base/message.h"
#include "export.h"
#include "process/moved.h"
#include "roots/loaded_object.h"

typedef void *dlopen_fn(const char *, int);
static _Atomic(dlopen_fn *) real_dlopen;

static dlopen_fn *next(void) {
    dlopen_fn *real = real_dlopen;
    if (!real) {
        *(void **)&real = dlsym(RTLD_NEXT, "dlopen");
        if (!real)
            pm_refuse(PM_EV_LIBC_UNFIT,
                      "this program's libc has no dlopen; run it without PMAlloc");
        real_dlopen = real;
    }
    return real;
}

// `ret`: in the object of a caller that libc is to see; NULL: it may see us.
static void *open_by_way_of(const void *ret, const char *file, int mode) {
    dlopen_fn *real = next();
    bool held = pm_moved_hold_place(file);
    void *handle =
        ret ? pm_call_by_way_of(ret, (void *)real, (long)file, mode, 0) : real(file, mode);
    pm_moved_loaded(held, handle != NULL);
    return handle;
}

static void *open_and_note(const char *file, int mode) { return open_by_way_of(NULL, file, mode); }

#ifndef RTLD_DEEPBIND // musl, whose dlopen() does the same whoever calls it

EXPORT void *dlopen(const char *file, int mode) { return open_and_note(file, mode); }

#else

// Is jumped to, so its caller is dlopen()'s.
static void *open_as_caller(const char *file, int mode) {
    return open_by_way_of(pm_return_in(__builtin_return_address(0)), file, mode);
}

__attribute__((used, visibility("hidden"))) dlopen_fn *pm_next_dlopen(const char *file,
                                                                      const void *caller);
dlopen_fn *pm_next_dlopen(const char *file, const void *caller) {
    if (!pm_caller_matters(file, caller))
        return open_and_note;
    return pm_return_in(caller) ? open_as_caller : next();
}

// libc looks at the return address to see whose search path and namespace to use. Where that
// matters we call it by way of the caller's object. If that has nothing that will do for it, we
// jump to libc's function, and what it loads is put on record with the next library.
_Static_assert(RTLD_DEEPBIND == 8, "the mask below");
EXPORT void *dlopen(const char *file, int mode);
__asm__(".text\n"
        ".globl dlopen\n"
        ".type dlopen, @function\n"
        "dlopen:\n"
        ".cfi_startproc\n"
        "    endbr64\n"
        "    push %rdi\n"
        ".cfi_adjust_cfa_offset 8\n"
        "    push %rsi\n"
        ".cfi_adjust_cfa_offset 8\n"
        "    sub $8, %rsp\n" // the stack is aligned to 16 bytes at calls
        ".cfi_adjust_cfa_offset 8\n"
        "    mov 24(%rsp), %rsi\n" // where dlopen() returns to
        "    call pm_next_dlopen\n"
        "    add $8, %rsp\n"
        ".cfi_adjust_cfa_offset -8\n"
        "    pop %rsi\n"
        ".cfi_adjust_cfa_offset -8\n"
        "    pop %rdi\n"
        ".cfi_adjust_cfa_offset -8\n"
        "    and $~8, %esi\n"
        "    jmp *%rax\n"
        ".cfi_endproc\n"
        ".size dlopen, . - dlopen\n");
#endif
