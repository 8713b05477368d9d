// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "thread_memory.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "base/geometry.h"
#include "base/lock.h"
#include "base/own_memory.h"
#include "base/signal_stack.h"

#define ABOVE ((size_t)16 << 10) // more than libc's own data of a thread
#ifdef __GLIBC__
// libc's other variables around errno, such as its locale, which numbers are read by. glibc 2.36
// has 144 bytes of them; it leaves room for more below all of them.
#define LIBC_TLS 192u
#else
#define LIBC_TLS 0u // musl's own lie above, and below the lowest variable a mapping may begin
#endif
#define GUARD_AT 0x28 // from the thread pointer; part of the ABI

static char *thread_pointer(void) {
    char *pointer;
    __asm__("movq %%fs:0, %0" : "=r"(pointer));
    return pointer;
}

static size_t further(const char *pointer, const void *variable, size_t most) {
    size_t below = (size_t)(pointer - (const char *)variable);
    return below < (size_t)1 << 30 && below > most ? below : most; // musl's errno lies above
}

bool pm_thread_memory(struct pm_thread_memory *m, size_t stack_bytes, const void *const *variable,
                      unsigned count) {
    const char *maker = thread_pointer();
    size_t below = further(maker, &errno, 0);
    for (unsigned i = 0; i < count; i++)
        below = further(maker, variable[i], below);
    below += LIBC_TLS;
    size_t before = stack_bytes + ((below + PM_PAGE_SIZE - 1) & ~(PM_PAGE_SIZE - 1));
    char *area = m->pointer ? NULL : pm_own_reserve(before + PM_PAGE_SIZE + ABOVE);
    if (area) {
        mprotect(area, PM_PAGE_SIZE, PROT_NONE);
        m->stack_top = area + stack_bytes;
        m->pointer = area + before + PM_PAGE_SIZE;
    }
    if (!m->pointer)
        return false;
    char *pointer = m->pointer;
    memset(pointer, 0, ABOVE);
    memcpy(pointer - below, maker - below, below);
    memcpy(pointer + GUARD_AT, maker + GUARD_AT, sizeof(uint64_t));
    char **word = (char **)(void *)pointer;
    word[0] = pointer; // as the ABI says
    word[2] = pointer; // glibc's THREAD_SELF
    return true;
}

void pm_thread_memory_own(void) {
    pm_locks_held = 0;
    pm_signal_stack_own = NULL;
    pm_ranks_forget();
}
