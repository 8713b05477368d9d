// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// dlopen() without RTLD_DEEPBIND. A library loaded with that flag (PHP's modules, some plugins and
// NSS modules) would find libc's malloc before ours, and would give our blocks to libc's free. That
// ends in libc's abort or worse. Without the flag such a library no longer prefers its own symbols
// to the program's. That is the lesser evil.
#include <dlfcn.h>

#include "base/message.h"
#include "export.h"

#ifdef RTLD_DEEPBIND // musl has no such thing

typedef void *dlopen_fn(const char *, int);
static _Atomic(dlopen_fn *) real_dlopen;

__attribute__((used, visibility("hidden"))) dlopen_fn *pm_next_dlopen(void);
dlopen_fn *pm_next_dlopen(void) {
    dlopen_fn *real = real_dlopen;
    if (!real) {
        *(void **)&real = dlsym(RTLD_NEXT, "dlopen");
        if (!real)
            pm_refuse("this program's libc has no dlopen; run it without PMAlloc");
        real_dlopen = real;
    }
    return real;
}

// libc looks at the return address to see whose search path and namespace to use. So we jump to
// libc's function instead of calling it.
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
