// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// dlmopen() of a new namespace, which has a C library of its own. A fork() there would run none of
// our handlers. So they are registered there, too. And of the program's own namespace, which is as
// dlopen(): what it has loaded is put on record.
//
// libc looks at the return address of dlmopen() for the search path of the object that calls it.
// Where that object has one of its own and the name is no path, libc's function is called by way of
// that object; or, if it has nothing that will do for it, is left to return to it, and nothing is
// registered.
#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>

#include "as_caller.h"
#include "base/message.h"
#include "export.h"
#include "fork/fork.h"
#include "process/moved.h"

#ifdef LM_ID_NEWLM // musl has no such thing

typedef void *dlmopen_fn(Lmid_t, const char *, int);

static dlmopen_fn *next(void) {
    static _Atomic(dlmopen_fn *) known;
    dlmopen_fn *real = known;
    if (!real) {
        *(void **)&real = dlsym(RTLD_NEXT, "dlmopen");
        if (!real)
            pm_refuse(PM_EV_LIBC_UNFIT,
                      "this program's libc has no dlmopen; run it without PMAlloc");
        known = real;
    }
    return real;
}

// `ret`: in the object of a caller that libc is to see; NULL: it may see us.
static void *open_in(Lmid_t space, const char *file, int mode, const void *ret) {
    dlmopen_fn *real = next();
    return ret ? pm_call_by_way_of(ret, (void *)real, space, (long)file, mode)
               : real(space, file, mode);
}

static void *open_and_note(const char *file, int mode, const void *ret) {
    bool held = pm_moved_hold_place(file);
    void *handle = open_in(LM_ID_BASE, file, mode, ret);
    pm_moved_loaded(held, handle != NULL);
    return handle;
}

static void *open_and_register(const char *file, int mode, const void *ret) {
    pm_register_atfork *in_space;
    void *handle = open_in(LM_ID_NEWLM, file, mode, ret);
    if (!handle)
        return NULL;
    *(void **)&in_space = dlsym(handle, "__register_atfork");
    if (in_space)
        pm_fork_init_elsewhere(in_space);
    return handle;
}

// Is jumped to, so its caller is dlmopen()'s.
static void *dlmopen_here(Lmid_t space, const char *file, int mode) {
    const void *caller = __builtin_return_address(0);
    const void *ret = pm_caller_matters(file, caller) ? pm_return_in(caller) : NULL;
    return (space == LM_ID_BASE ? open_and_note : open_and_register)(file, mode, ret);
}

__attribute__((used, visibility("hidden"))) dlmopen_fn *
pm_which_dlmopen(Lmid_t space, const char *file, const void *caller);
dlmopen_fn *pm_which_dlmopen(Lmid_t space, const char *file, const void *caller) {
    bool wanted = (space == LM_ID_NEWLM || space == LM_ID_BASE) && file;
    bool serves = wanted && (!pm_caller_matters(file, caller) || pm_return_in(caller));
    return serves ? dlmopen_here : next();
}

EXPORT void *dlmopen(Lmid_t space, const char *file, int mode);
__asm__(".text\n"
        ".globl dlmopen\n"
        ".type dlmopen, @function\n"
        "dlmopen:\n"
        ".cfi_startproc\n"
        "    endbr64\n"
        "    push %rdi\n"
        ".cfi_adjust_cfa_offset 8\n"
        "    push %rsi\n"
        ".cfi_adjust_cfa_offset 8\n"
        "    push %rdx\n" // the stack is aligned to 16 bytes at calls
        ".cfi_adjust_cfa_offset 8\n"
        "    mov 24(%rsp), %rdx\n"
        "    call pm_which_dlmopen\n"
        "    pop %rdx\n"
        ".cfi_adjust_cfa_offset -8\n"
        "    pop %rsi\n"
        ".cfi_adjust_cfa_offset -8\n"
        "    pop %rdi\n"
        ".cfi_adjust_cfa_offset -8\n"
        "    jmp *%rax\n"
        ".cfi_endproc\n"
        ".size dlmopen, . - dlmopen\n");
#endif
