// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "signal_stack.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>

#include "bare_thread.h"
#include "os.h"
#include "own_memory.h"

#define SLOT PM_SIGNAL_STACK
#define WORD_BITS 64u
#define SLOTS 512u
#define RED_ZONE 128
#define FRAME_ALIGN 16ul
#define STATE_ALIGN 64ul
#define NO_DISARM ((unsigned)1 << 31) // SS_AUTODISARM
#define LEAST_STACK 2048u             // what the kernel asks for

struct pm_signal_stack {
    unsigned char frames[SLOT - 48];
    // What the program has asked for. Without a stack of ours the kernel knows that.
    _Alignas(FRAME_ALIGN) stack_t theirs;
    void *kept[2];
};
_Static_assert(sizeof(struct pm_signal_stack) == SLOT, "each is aligned as the first one");

static struct pm_signal_stack *_Atomic slots; // never unmapped
static _Atomic uint64_t used[SLOTS / WORD_BITS];

__thread struct pm_signal_stack *pm_signal_stack_own __attribute__((tls_model("initial-exec")));

static long set(const stack_t *to, stack_t *was) {
    return pm_bare_call(SYS_sigaltstack, (long)to, (long)was, 0, 0);
}

// ---- the slots ----------------------------------------------------------------------------------

// Another thread may be faster: then this reservation is not used.
static struct pm_signal_stack *all_slots(void) {
    struct pm_signal_stack *all = slots, *none = NULL;
    if (all || pm_own_room(SLOT, SLOTS) != SLOTS || (all = pm_own_reserve(SLOT * SLOTS)) == NULL)
        return all;
    pm_os_advise(all, SLOT * SLOTS, MADV_DONTDUMP); // a core would be longer by all of it
    return atomic_compare_exchange_strong(&slots, &none, all) ? all : none;
}

struct pm_signal_stack *pm_signal_stack_take(void) {
    int saved = errno;
    struct pm_signal_stack *all = all_slots();
    errno = saved;
    for (unsigned w = 0; all && w < SLOTS / WORD_BITS; w++) {
        uint64_t seen = used[w];
        while (~seen) {
            unsigned bit = (unsigned)__builtin_ctzll(~seen);
            if (atomic_compare_exchange_weak(&used[w], &seen, seen | 1ull << bit))
                return &all[w * WORD_BITS + bit];
        }
    }
    return NULL;
}

void **pm_signal_stack_kept(struct pm_signal_stack *s) { return s->kept; }

void pm_signal_stack_return(struct pm_signal_stack *s) {
    size_t i = (size_t)(s - slots);
    atomic_fetch_and(&used[i / WORD_BITS], ~(1ull << i % WORD_BITS));
}

// The others' threads are no more.
void pm_signal_stack_forked(void) {
    for (unsigned w = 0; w < SLOTS / WORD_BITS; w++)
        used[w] = 0;
    if (pm_signal_stack_own) {
        size_t i = (size_t)(pm_signal_stack_own - slots);
        used[i / WORD_BITS] = 1ull << i % WORD_BITS;
    }
}

// ---- of a thread --------------------------------------------------------------------------------

// A thread may have one of the program's already. The kernel refuses while the thread is on it.
void pm_signal_stack_use(struct pm_signal_stack *s) {
    const stack_t ours = {.ss_sp = s->frames, .ss_size = sizeof s->frames};
    if (set(NULL, &s->theirs) != 0 || (unsigned)s->theirs.ss_flags & NO_DISARM ||
        set(&ours, NULL) != 0)
        pm_signal_stack_return(s);
    else
        pm_signal_stack_own = s;
}

void pm_signal_stack_give(void) {
    struct pm_signal_stack *s = pm_signal_stack_own ? NULL : pm_signal_stack_take();
    if (s)
        pm_signal_stack_use(s);
}

static bool is_own(const stack_t *at) {
    return pm_signal_stack_own && at->ss_sp == pm_signal_stack_own->frames;
}

// The program may have set another one by an instruction of its own.
void pm_signal_stack_drop(void) {
    const stack_t none = {.ss_flags = SS_DISABLE};
    stack_t now;
    struct pm_signal_stack *s = pm_signal_stack_own;
    if (!s || (set(NULL, &now) == 0 && is_own(&now) && set(&none, NULL) != 0))
        return;
    pm_signal_stack_own = NULL;
    pm_signal_stack_return(s);
}

static bool lies_on(const stack_t *s, uintptr_t at) {
    return !(s->ss_flags & SS_DISABLE) && at - (uintptr_t)s->ss_sp - 1 < s->ss_size;
}

// One that is disarmed in handlers is the kernel's affair: there can be none of ours then.
static long give_up_ours(const stack_t *to) {
    pm_signal_stack_drop();
    return set(to, NULL);
}

static long change(const stack_t *to, bool on_it) {
    unsigned flags = (unsigned)to->ss_flags & ~NO_DISARM;
    if (on_it)
        return -EPERM;
    if (flags != SS_DISABLE && flags != SS_ONSTACK && flags != 0)
        return -EINVAL;
    if (flags != SS_DISABLE && to->ss_size < LEAST_STACK)
        return -ENOMEM;
    if ((unsigned)to->ss_flags & NO_DISARM)
        return give_up_ours(to);
    stack_t *theirs = &pm_signal_stack_own->theirs;
    *theirs = flags == SS_DISABLE ? (stack_t){.ss_flags = SS_DISABLE} : *to;
    theirs->ss_flags &= SS_DISABLE;
    return 0;
}

long pm_signal_stack_set(const stack_t *to, stack_t *was) {
    stack_t now;
    if (!pm_signal_stack_own || set(NULL, &now) != 0 || !is_own(&now))
        return set(to, was);
    const stack_t before = pm_signal_stack_own->theirs, wanted = to ? *to : (stack_t){0};
    bool on_it = lies_on(&before, (uintptr_t)__builtin_frame_address(0));
    long result = to ? change(&wanted, on_it) : 0;
    if (result == 0 && was) {
        *was = before;
        was->ss_flags = before.ss_flags & SS_DISABLE ? SS_DISABLE : on_it ? SS_ONSTACK : 0;
    }
    return result;
}

// ---- the library runs there ---------------------------------------------------------------------

static bool is_here(void) {
    uintptr_t here = (uintptr_t)__builtin_frame_address(0), from = (uintptr_t)pm_signal_stack_own;
    return here - from < SLOT;
}

// The old stack pointer stays in a register that functions preserve, and a debugger finds the
// caller by it.
void pm_signal_stack_run(void (*run)(void *arg), void *arg) {
    pm_signal_stack_give();
    if (!pm_signal_stack_own || is_here()) {
        run(arg);
        return;
    }
    unsigned char *top = pm_signal_stack_own->frames + sizeof pm_signal_stack_own->frames;
    __asm__ volatile("mov %%rsp, %%rbx\n\t"
                     "mov %[top], %%rsp\n\t"
                     "call *%[run]\n\t"
                     "mov %%rbx, %%rsp"
                     : "+D"(arg), [run] "+r"(run), [top] "+r"(top)
                     :
                     : "rbx", "rax", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "cc", "memory",
                       "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
                       "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
}

// ---- a frame moves ------------------------------------------------------------------------------

// What the kernel stores: the address to return to, a ucontext_t (shorter than libc's), a
// siginfo_t, and above them the processor's state, with its length in it.
struct frame {
    void *restorer;
    unsigned char context[304];
    siginfo_t info;
};
#define STATE_LEGACY 512u
#define STATE_TOLD 464u // where the state tells its whole length
#define STATE_MAGIC 0x46505853u

static size_t state_length(const void *state) {
    uint32_t told[2];
    memcpy(told, (const char *)state + STATE_TOLD, sizeof told);
    return !state ? 0 : told[0] == STATE_MAGIC ? told[1] : STATE_LEGACY;
}

// As the kernel chooses it. Where the program's alternate stack is too small, the kernel would end
// the process; the frame stays on ours. So does that of a thread that runs with other thread-local
// storage for a moment.
static uintptr_t place(uintptr_t interrupted, size_t state, uintptr_t *state_at) {
    if (!pm_signal_stack_own)
        return 0;
    const stack_t *theirs = &pm_signal_stack_own->theirs;
    bool nested = lies_on(theirs, interrupted);
    bool on_theirs = !(theirs->ss_flags & SS_DISABLE);
    uintptr_t top =
        on_theirs && !nested ? (uintptr_t)theirs->ss_sp + theirs->ss_size : interrupted - RED_ZONE;
    *state_at = (top - state) & ~(STATE_ALIGN - 1);
    uintptr_t at = ((*state_at - sizeof(struct frame)) & ~(FRAME_ALIGN - 1)) - sizeof(void *);
    return on_theirs && !lies_on(theirs, at) ? 0 : at;
}

_Noreturn static void run(void (*handler)(int, siginfo_t *, void *), int number, void *info,
                          void *context, uintptr_t stack) {
    __asm__ volatile("mov %[stack], %%rsp\n\txor %%eax, %%eax\n\tjmp *%[handler]"
                     :
                     : [stack] "r"(stack), [handler] "r"(handler), "D"(number), "S"(info),
                       "d"(context)
                     : "memory");
    __builtin_unreachable();
}

// With the state of the processor its address changes. The kernel reads both when the handler
// returns.
_Noreturn void pm_signal_stack_move(void (*handler)(int, siginfo_t *, void *), int number,
                                    siginfo_t *info, void *context) {
    ucontext_t *u = context;
    struct frame *f = (struct frame *)(void *)((char *)context - offsetof(struct frame, context));
    uintptr_t state_at;
    size_t state = state_length(u->uc_mcontext.fpregs);
    uintptr_t at = place((uintptr_t)u->uc_mcontext.gregs[REG_RSP], state, &state_at);
    (void)info;
    if (!at)
        run(handler, number, &f->info, f->context, (uintptr_t)f);
    struct frame *moved = (struct frame *)at; // aligned as the kernel aligns it
    memcpy((void *)state_at, u->uc_mcontext.fpregs, state);
    memcpy(moved, f, sizeof *f);
    ((ucontext_t *)(void *)moved->context)->uc_mcontext.fpregs = state ? (void *)state_at : NULL;
    run(handler, number, &moved->info, moved->context, at);
}
