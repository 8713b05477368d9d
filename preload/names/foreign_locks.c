// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Locks of other libraries that take no lock of libc's by its name: those of GLib and libgomp, and
// the transactions of libitm (gcc -fgnu-tm). They count as libc's do (threads/sections.h), and what
// an earlier run held is free at its first use (locks.h). GRWLock and GRecMutex need nothing, since
// GLib makes them of libc's locks.
//
// Libraries use these names among themselves without coming here, as g_cond_wait() does.
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "export.h"
#include "locks.h"
#include "media/adopt.h"
#include "threads/sections.h"

#define UNLIKELY(x) __builtin_expect(!!(x), 0)

static void *find(_Atomic(void *) *known, const char *name) {
    void *next = atomic_load_explicit(known, memory_order_relaxed);
    return next ? next : (atomic_store(known, pm_locks_next(name)), atomic_load(known));
}

#define FIND(type, name, parameters)                                                               \
    typedef type name##_fn parameters;                                                             \
    static name##_fn *libcs_##name(void) {                                                         \
        static _Atomic(void *) known;                                                              \
        name##_fn *next;                                                                           \
        *(void **)&next = find(&known, #name);                                                     \
        return next;                                                                               \
    }

// What an earlier run has left. Each of these is a word, and 0 is free.
static void reset_word(void *object) { *(volatile uint32_t *)object = 0; }
// One bit of a word, of which the others are data.
static __thread uint8_t bit_to_reset __attribute__((tls_model("initial-exec")));
static void reset_bit(void *object) {
    *(volatile uint32_t *)object &= ~((uint32_t)1 << (bit_to_reset & 31));
}

static void adopt(const volatile void *object, void (*reset)(void *)) {
    if (UNLIKELY(!pm_surely_adopted((const void *)(uintptr_t)object)))
        pm_locks_adopt((void *)(uintptr_t)object, reset);
}
static void adopt_word(const void *object) { adopt(object, reset_word); }
static void adopt_bit(const volatile int *object, int bit) {
    bit_to_reset = (uint8_t)bit;
    adopt(object, reset_bit);
}
// A lock of the library's own, or one that it makes anew in each run.
static void adopt_none(void) {}

// ---- taking and giving back ---------------------------------------------------------------------

// Name, parameters, arguments, what is done to a lock that may be an earlier run's.
#define TAKES(X)                                                                                   \
    X(g_mutex_lock, (void *o), (o), adopt_word(o))                                                 \
    X(g_bit_lock, (volatile int *o, int bit), (o, bit), adopt_bit(o, bit))                         \
    X(omp_set_lock, (void *o), (o), adopt_word(o))                                                 \
    X(omp_set_nest_lock, (void *o), (o), adopt_none())                                             \
    X(GOMP_critical_start, (void), (), adopt_none())                                               \
    X(GOMP_critical_name_start, (void **o), (o), adopt_none())                                     \
    X(GOMP_atomic_start, (void), (), adopt_none())
#define TRIES(X)                                                                                   \
    X(g_mutex_trylock, (void *o), (o), adopt_word(o))                                              \
    X(g_bit_trylock, (volatile int *o, int bit), (o, bit), adopt_bit(o, bit))                      \
    X(omp_test_lock, (void *o), (o), adopt_word(o))                                                \
    X(omp_test_nest_lock, (void *o), (o), adopt_none())
#define GIVES(X)                                                                                   \
    X(g_mutex_unlock, (void *o), (o))                                                              \
    X(g_bit_unlock, (volatile int *o, int bit), (o, bit))                                          \
    X(omp_unset_lock, (void *o), (o))                                                              \
    X(omp_unset_nest_lock, (void *o), (o))                                                         \
    X(GOMP_critical_end, (void), ())                                                               \
    X(GOMP_critical_name_end, (void **o), (o))                                                     \
    X(GOMP_atomic_end, (void), ())

#define DEFINE_TAKE(name, parameters, arguments, adopted)                                          \
    FIND(void, name, parameters)                                                                   \
    EXPORT name##_fn name;                                                                         \
    void name parameters {                                                                         \
        adopted;                                                                                   \
        if (!pm_sections_counted()) {                                                              \
            libcs_##name() arguments;                                                              \
            return;                                                                                \
        }                                                                                          \
        struct pm_section section = pm_section_before(pm_gate());                                  \
        libcs_##name() arguments;                                                                  \
        pm_section_begin(section, __builtin_return_address(0));                                    \
    }
TAKES(DEFINE_TAKE)

#define DEFINE_TRY(name, parameters, arguments, adopted)                                           \
    FIND(int, name, parameters)                                                                    \
    EXPORT name##_fn name;                                                                         \
    int name parameters {                                                                          \
        adopted;                                                                                   \
        if (!pm_sections_counted())                                                                \
            return libcs_##name() arguments;                                                       \
        struct pm_section section = pm_section_before(pm_gate());                                  \
        int result = libcs_##name() arguments;                                                     \
        if (result)                                                                                \
            pm_section_begin(section, __builtin_return_address(0));                                \
        return result;                                                                             \
    }
TRIES(DEFINE_TRY)

#define DEFINE_GIVE(name, parameters, arguments)                                                   \
    FIND(void, name, parameters)                                                                   \
    EXPORT name##_fn name;                                                                         \
    void name parameters {                                                                         \
        if (pm_sections_counted())                                                                 \
            pm_section_end(pm_gate());                                                             \
        libcs_##name() arguments;                                                                  \
    }
GIVES(DEFINE_GIVE)

// ---- waits --------------------------------------------------------------------------------------

// The mutex is free meanwhile.
static bool leave(void) { return pm_sections_counted() && pm_section_end(pm_gate()); }

FIND(void, g_cond_wait, (void *cond, void *mutex))
EXPORT g_cond_wait_fn g_cond_wait;
void g_cond_wait(void *cond, void *mutex) {
    bool left = leave();
    libcs_g_cond_wait()(cond, mutex);
    if (left)
        pm_section_again(__builtin_return_address(0));
}

FIND(int, g_cond_wait_until, (void *cond, void *mutex, int64_t end))
EXPORT g_cond_wait_until_fn g_cond_wait_until;
int g_cond_wait_until(void *cond, void *mutex, int64_t end) {
    bool left = leave();
    int result = libcs_g_cond_wait_until()(cond, mutex, end);
    if (left)
        pm_section_again(__builtin_return_address(0));
    return result;
}

// ---- transactions -------------------------------------------------------------------------------

// _ITM_beginTransaction() returns to its caller anew for each try of the transaction, with the
// caller's stack and registers as they are now. So it is jumped to, and not called. It counts once:
// a second try comes back behind this.
static __thread uint16_t depth __attribute__((tls_model("initial-exec")));
static __thread uint16_t cancelled __attribute__((tls_model("initial-exec")));

static void leave_cancelled(void) {
    for (; cancelled; cancelled--, depth--)
        leave();
}

__attribute__((used)) static void *begin_transaction(void *caller) {
    static _Atomic(void *) known;
    leave_cancelled();
    depth++;
    if (pm_sections_counted())
        pm_section_begin(pm_section_before(pm_gate()), caller);
    return find(&known, "_ITM_beginTransaction");
}

EXPORT uint32_t _ITM_beginTransaction(uint32_t properties, ...);
__asm__(".text\n.globl _ITM_beginTransaction\n.type _ITM_beginTransaction, @function\n"
        "_ITM_beginTransaction:\n"
        ".cfi_startproc\n"
        "endbr64\n"
        "pushq %rdi\n.cfi_adjust_cfa_offset 8\n"
        "movq 8(%rsp), %rdi\n"
        "call begin_transaction\n"
        "popq %rdi\n.cfi_adjust_cfa_offset -8\n"
        "movq %rax, %r11\n"
        "xorl %eax, %eax\n"
        "jmp *%r11\n"
        ".cfi_endproc\n"
        ".size _ITM_beginTransaction, . - _ITM_beginTransaction\n");

FIND(void, _ITM_commitTransaction, (void))
EXPORT _ITM_commitTransaction_fn _ITM_commitTransaction;
void _ITM_commitTransaction(void) {
    leave_cancelled();
    libcs__ITM_commitTransaction()();
    depth--;
    leave();
}

FIND(void, _ITM_commitTransactionEH, (void *exception))
EXPORT _ITM_commitTransactionEH_fn _ITM_commitTransactionEH;
void _ITM_commitTransactionEH(void *exception) {
    leave_cancelled();
    libcs__ITM_commitTransactionEH()(exception);
    depth--;
    leave();
}

// `__transaction_cancel` does not return here, and what the transaction has stored is undone in it.
// So the thread stays counted until its next transaction.
#define OUTER_ABORT 0x10
FIND(void, _ITM_abortTransaction, (int reason))
EXPORT _ITM_abortTransaction_fn _ITM_abortTransaction;
void _ITM_abortTransaction(int reason) {
    leave_cancelled();
    cancelled = reason & OUTER_ABORT ? depth : 1;
    libcs__ITM_abortTransaction()(reason);
}
