// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "aside.h"

#include <asm/prctl.h>
#include <errno.h>
#include <stdint.h>
#include <sys/syscall.h>

#include "base/bare_thread.h"
#include "base/cancel.h"
#include "base/lock.h"
#include "blocks/tcache.h"
#include "media/heap.h"
#include "roots/root_table.h"
#include "threads/calls.h"
#include "threads/thread_memory.h"

#define FRAME_BYTES ((size_t)32 << 10) // more than the largest frame, that of a thread with AMX
#define STACK_BYTES ((size_t)128 << 10)
#define ALL_BYTES (PM_PAGE_SIZE + FRAME_BYTES + STACK_BYTES)

static struct pm_thread_memory memory;
static char *own; // the thread pointer of the thread that is aside

static char *thread_pointer(void) {
    char *pointer;
    __asm__("movq %%fs:0, %0" : "=r"(pointer));
    return pointer;
}

static bool on_media(const void *at) {
    uint64_t offset = pm_heap_offset(at);
    return offset < pm_range || pm_roots_captured(at);
}

struct pm_aside pm_aside_look(void) {
    struct pm_aside look = {false, false};
    if (pm_heap_on_media()) {
        look.stack = on_media(__builtin_frame_address(0));
        look.storage = on_media(thread_pointer());
    }
    return look;
}

bool pm_aside_prepare(void) {
    const void *used[] = {&pm_tcache, &pm_persist_mine, &pm_calls_own, &pm_locks_held,
                          &pm_cancel_asynchronous};
    int saved = errno;
    bool good = pm_thread_memory(&memory, ALL_BYTES, used, sizeof used / sizeof *used);
    own = thread_pointer();
    errno = saved;
    return good;
}

// The old stack pointer stays in a register that the function keeps.
long pm_aside_call(long (*function)(void *arg), void *arg) {
    long result;
    __asm__ volatile("movq %%rsp, %%rbx\n\t"
                     "movq %[top], %%rsp\n\t"
                     "callq *%[function]\n\t"
                     "movq %%rbx, %%rsp"
                     : "=a"(result), "+D"(arg)
                     : [top] "r"(memory.stack_top), [function] "r"(function)
                     : "rbx", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "xmm0", "xmm1", "xmm2",
                       "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",
                       "xmm12", "xmm13", "xmm14", "xmm15", "memory", "cc");
    return result;
}

void pm_aside_enter(void) { pm_bare_call(SYS_arch_prctl, ARCH_SET_FS, (long)memory.pointer, 0, 0); }

void pm_aside_leave(void) { pm_bare_call(SYS_arch_prctl, ARCH_SET_FS, (long)own, 0, 0); }

void *pm_aside_frame(size_t *size) {
    *size = FRAME_BYTES;
    return memory.stack_top - STACK_BYTES - FRAME_BYTES;
}
