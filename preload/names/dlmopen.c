// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// dlmopen() of a new namespace, which has a C library of its own. A fork() there would run none of
// our handlers. So they are registered there, too.
//
// libc looks at the return address of dlmopen() for the search path of the object that calls it.
// Where that object has one of its own and the name is no path, libc's function is left to return
// to it, and nothing is registered.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/message.h"
#include "export.h"
#include "fork/fork.h"

#ifdef LM_ID_NEWLM // musl has no such thing

typedef void *dlmopen_fn(Lmid_t, const char *, int);

__attribute__((used, visibility("hidden"))) dlmopen_fn *pm_next_dlmopen(void);
dlmopen_fn *pm_next_dlmopen(void) {
    static _Atomic(dlmopen_fn *) next;
    dlmopen_fn *real = next;
    if (!real) {
        *(void **)&real = dlsym(RTLD_NEXT, "dlmopen");
        if (!real)
            pm_refuse(PM_EV_LIBC_UNFIT,
                      "this program's libc has no dlmopen; run it without PMAlloc");
        next = real;
    }
    return real;
}

static bool has_search_path(const void *caller) {
    Dl_info ignored;
    struct link_map *map = NULL;
    if (!dladdr1(caller, &ignored, (void **)&map, RTLD_DL_LINKMAP) || !map)
        return true;
    for (const ElfW(Dyn) *d = map->l_ld; d && d->d_tag != DT_NULL; d++)
        if (d->d_tag == DT_RPATH || d->d_tag == DT_RUNPATH)
            return true;
    return false;
}

// Whether pm_dlmopen_here() may stand in for libc's function.
__attribute__((used, visibility("hidden"))) bool pm_dlmopen_serves(Lmid_t space, const char *file,
                                                                   const void *caller);
bool pm_dlmopen_serves(Lmid_t space, const char *file, const void *caller) {
    bool path = file && strchr(file, '/') && !strchr(file, '$');
    return space == LM_ID_NEWLM && file && (path || !has_search_path(caller));
}

__attribute__((used, visibility("hidden"))) void *pm_dlmopen_here(Lmid_t space, const char *file,
                                                                  int mode);
void *pm_dlmopen_here(Lmid_t space, const char *file, int mode) {
    pm_register_atfork *in_space;
    void *handle = pm_next_dlmopen()(space, file, mode);
    if (!handle)
        return NULL;
    *(void **)&in_space = dlsym(handle, "__register_atfork");
    if (in_space)
        pm_fork_init_elsewhere(in_space);
    return handle;
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
        "    call pm_dlmopen_serves\n"
        "    test %al, %al\n"
        "    lea pm_dlmopen_here(%rip), %rax\n"
        "    jne 1f\n"
        "    call pm_next_dlmopen\n"
        "1:  pop %rdx\n"
        ".cfi_adjust_cfa_offset -8\n"
        "    pop %rsi\n"
        ".cfi_adjust_cfa_offset -8\n"
        "    pop %rdi\n"
        ".cfi_adjust_cfa_offset -8\n"
        "    jmp *%rax\n"
        ".cfi_endproc\n"
        ".size dlmopen, . - dlmopen\n");
#endif
