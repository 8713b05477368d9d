// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Critical sections: each thread counts the locks that it holds. While a thread holds one it may
// have something half done. So an instant that is to be whole (commit_gate.h) is one at which no
// other thread is in a section.
//
//   a name that locks      waits at the gate if it is closed  ..  libc's lock  ..  counts
//   a name that unlocks    counts  ..  rings if the gate is closed  ..  libc's unlock
//   where it may refuse    libc's unlock  ..  counts, if it was done  ..  rings
//
// A thread is in a section from the return of libc's lock to the call of libc's unlock. One that
// waits for its first lock is outside: it has done nothing of the section yet. That stays true if
// it is stopped when it has just got the lock. So nobody waits at the gate who holds a lock that
// another section needs.
//
// The count is the thread's own: it needs no atomic instruction. Nothing is counted until
// pm_sections_begin().
//
// A plain mutex is counted before libc's lock, which then returns to the program at once: half of
// the cost is spared. Whether the thread has the mutex or waits for it is told by the owner that
// libc notes in it (pm_sections_inside()).
#ifndef PM_SECTIONS_H
#define PM_SECTIONS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "calls.h"

enum pm_gate_word {
    PM_GATE_OPEN,
    PM_GATE_CLOSED, // who is about to begin a section waits
    PM_GATE_AJAR,   // nobody waits: a section may wait for one who did. The gate closes again
    PM_GATE_NONE,   // nothing is counted
    PM_GATE_ASKED,  // the same, but another process asks for it (sections_door.h)
};
// A futex.
extern _Atomic uint32_t pm_gate_word __attribute__((visibility("hidden")));
static inline uint32_t pm_gate(void) {
    return atomic_load_explicit(&pm_gate_word, memory_order_relaxed);
}

// From here on locks are counted. Calls are recorded (calls.h).
void pm_sections_begin(void);
static inline bool pm_sections_counted(void) { return pm_gate() != PM_GATE_NONE; }

// How many locks a thread holds, and a number of its section, by `sections` of its record.
static inline uint32_t pm_sections_depth(uint64_t sections) { return (uint32_t)sections; }
static inline uint32_t pm_sections_number(uint64_t sections) { return (uint32_t)(sections >> 32); }

// In `lock` of the record: the thread has it, or another one. Else the owner of the mutex tells.
#define PM_SECTION_SURE ((uintptr_t)1)

// The cold parts of the functions below. They keep errno.
void pm_sections_wait(void);
void pm_sections_ring(void);

// Around a lock. What pm_section_begin() stores is ready before: an atomic instruction of libc's
// lies between, and delays what has yet to be loaded. A signal handler that comes between gives
// back what it takes.
struct pm_section {
    struct pm_call_record *own;
    uint64_t sections;
};
static inline struct pm_section pm_section_next(struct pm_call_record *own) {
    uint64_t sections = atomic_load_explicit(&own->sections, memory_order_relaxed) + 1;
    if (__builtin_expect(pm_sections_depth(sections) == 1, 1))
        sections += (uint64_t)1 << 32;
    return (struct pm_section){own, sections};
}
static inline struct pm_section pm_section_before(uint32_t gate) {
    if (__builtin_expect(gate != PM_GATE_OPEN, 0))
        pm_sections_wait();
    return pm_section_next(pm_calls_own ? pm_calls_own : pm_calls_find_own());
}
// The count comes first: a handler that comes between is then within the section. Until the second
// store the program has done nothing in it.
static inline void pm_section_note(struct pm_section s, uintptr_t lock) {
    atomic_store_explicit(&s.own->sections, s.sections, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst);
    atomic_store_explicit(&s.own->lock, lock, memory_order_relaxed);
}
// The thread has the lock.
static inline void pm_section_begin(struct pm_section s, const void *lock) {
    pm_section_note(s, (uintptr_t)lock | PM_SECTION_SURE);
}
// Before it calls libc's lock of a plain mutex. If it holds another one, it is in a section anyway.
static inline void pm_section_begin_in_line(struct pm_section s, const void *lock) {
    if (__builtin_expect(pm_sections_depth(s.sections) == 1, 1))
        pm_section_note(s, (uintptr_t)lock);
    else
        pm_section_begin(s, lock);
}

// Before the thread gives a lock back: all that it does in the section is done. False: the lock was
// taken before locks were counted, or by another thread.
static inline bool pm_section_end(uint32_t gate) {
    struct pm_call_record *own = pm_calls_own;
    uint64_t sections = own ? atomic_load_explicit(&own->sections, memory_order_relaxed) : 0;
    if (__builtin_expect(!pm_sections_depth(sections), 0))
        return false;
    atomic_store_explicit(&own->sections, sections - 1, memory_order_relaxed);
    if (__builtin_expect(gate != PM_GATE_OPEN, 0))
        pm_sections_ring();
    return true;
}
// The thread has the lock again.
static inline void pm_section_again(const void *lock) {
    pm_section_begin(pm_section_before(PM_GATE_OPEN), lock);
}

// Whether another thread is in a section, by its record.
bool pm_sections_inside(pid_t id, const struct pm_call_record *of);

// For commit_gate.c. The bell, a futex, changes when a section ends after pm_sections_listen(true).
extern _Atomic uint32_t pm_sections_bell;
void pm_sections_listen(bool on);
// How many threads wait at the gate.
uint32_t pm_sections_at_gate(void);
// They pass it, though it may be closed again before they find a processor.
void pm_sections_let_through(void);

// A thread holds so many locks, in this section, for so long that nobody waits for it any more.
void pm_sections_excuse(pid_t id, uint64_t sections);
bool pm_sections_excused(pid_t id, uint64_t sections);

// The calling thread does nothing of the program's from here on: no commit waits for it.
void pm_sections_no_more(void);

// In a forked child, before it has a second thread.
void pm_sections_forked(void);

#endif
