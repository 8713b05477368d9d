// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Locks of other libraries that take no lock of libc's by its name: those of GLib and libgomp, and
// the transactions of libitm (gcc -fgnu-tm). They count as libc's do (threads/sections.h), and what
// an earlier run held is free at its first use (locks.h). GRWLock and GRecMutex need nothing, since
// GLib makes them of libc's locks.
//
// Libraries use these names among themselves without coming here, as g_cond_wait() does.
#include <stdint.h>

#include "foreign.h"

// What an earlier run has left. Each of these is a word: 0 is free; 1, 2 or -1 is held, according
// to who waits. Another library of the same names has other words, which are left alone.
static void reset_word(void *object) {
    volatile uint32_t *word = object;
    if (*word + 1 <= 3)
        *word = 0;
}
// One bit of a word, of which the others are data.
static __thread uint8_t bit_to_reset __attribute__((tls_model("initial-exec")));
static void reset_bit(void *object) {
    *(volatile uint32_t *)object &= ~((uint32_t)1 << (bit_to_reset & 31));
}

static void adopt_word(const void *object) { foreign_adopt(object, reset_word); }
static void adopt_bit(const volatile int *object, int bit) {
    bit_to_reset = (uint8_t)bit;
    foreign_adopt(object, reset_bit);
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

#define TAKE(name, parameters, arguments, adopted)                                                 \
    FOREIGN_TAKE(name, #name, parameters, arguments, adopted)
#define TRY(name, parameters, arguments, adopted)                                                  \
    FOREIGN_TRY(int, name, #name, parameters, arguments, adopted)
#define GIVE(name, parameters, arguments) FOREIGN_GIVE(name, #name, parameters, arguments)
TAKES(TAKE)
TRIES(TRY)
GIVES(GIVE)

// ---- waits --------------------------------------------------------------------------------------

FOREIGN_WAIT(g_cond_wait, "g_cond_wait", (void *cond, void *mutex), (cond, mutex), adopt_none())
FOREIGN_WAIT_UNTIL(int, g_cond_wait_until, "g_cond_wait_until",
                   (void *cond, void *mutex, int64_t end), (cond, mutex, end), adopt_none())

// ---- transactions -------------------------------------------------------------------------------

// _ITM_beginTransaction() returns to its caller anew for each try of the transaction, with the
// caller's stack and registers as they are now. So it is jumped to, and not called. It counts once:
// a second try comes back behind this.
static __thread uint16_t depth __attribute__((tls_model("initial-exec")));
static __thread uint16_t cancelled __attribute__((tls_model("initial-exec")));

static void leave_cancelled(void) {
    for (; cancelled; cancelled--, depth--)
        foreign_leave();
}

__attribute__((used)) static void *begin_transaction(void *caller) {
    static struct pm_other other;
    leave_cancelled();
    depth++;
    if (pm_sections_counted())
        pm_section_begin(pm_section_before(pm_gate()), caller);
    return foreign_next(&other, "_ITM_beginTransaction", caller);
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

FOREIGN_FIND(void, commit, "_ITM_commitTransaction", (void))
void pm_foreign_commit(void) {
    leave_cancelled();
    next_commit(FOREIGN_CALLER)();
    depth--;
    foreign_leave();
}

FOREIGN_FIND(void, commit_handled, "_ITM_commitTransactionEH", (void *exception))
void pm_foreign_commit_handled(void *exception) {
    leave_cancelled();
    next_commit_handled(FOREIGN_CALLER)(exception);
    depth--;
    foreign_leave();
}

// `__transaction_cancel` does not return here, and what the transaction has stored is undone in it.
// So the thread stays counted until its next transaction.
#define OUTER_ABORT 0x10
FOREIGN_FIND(void, abort_one, "_ITM_abortTransaction", (int reason))
void pm_foreign_abort_one(int reason) {
    leave_cancelled();
    cancelled = reason & OUTER_ABORT ? depth : 1;
    next_abort_one(FOREIGN_CALLER)(reason);
}
