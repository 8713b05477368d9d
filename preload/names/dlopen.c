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

static void *open_and_note(const char *file, int mode) {
    bool held = pm_moved_hold_place(file);
    void *handle = next()(file, mode);
    if (held)
        pm_moved_release_place(handle != NULL);
    if (handle)
        pm_moved_library();
    return handle;
}

#ifndef RTLD_DEEPBIND // musl, whose dlopen() does the same whoever calls it

EXPORT void *dlopen(const char *file, int mode) { return open_and_note(file, mode); }

#else

// ---- who has called -----------------------------------------------------------------------------

struct caller {
    uintptr_t address;
    bool matters;
};

static int look_at(const struct pm_object *o, void *arg) {
    struct caller *c = arg;
    c->matters |= (!o->is_main && pm_object_has_entry(o, DT_RPATH)) ||
                  (pm_object_holds(o, c->address) && pm_object_has_entry(o, DT_RUNPATH));
    return c->matters;
}

// Whether libc would find another file for this caller than for us: by the search path of the
// object that calls, or of one that has loaded it.
static bool matters(const char *file, const void *address) {
    struct caller c = {.address = (uintptr_t)address};
    if (!file || (strchr(file, '/') && !strchr(file, '$')))
        return false;
    return strchr(file, '$') || pm_object_each(look_at, &c);
}

__attribute__((used, visibility("hidden"))) dlopen_fn *pm_next_dlopen(const char *file,
                                                                      const void *caller);
dlopen_fn *pm_next_dlopen(const char *file, const void *caller) {
    return matters(file, caller) ? next() : open_and_note;
}

// libc looks at the return address to see whose search path and namespace to use. Where that
// matters we jump to libc's function instead of calling it.
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
