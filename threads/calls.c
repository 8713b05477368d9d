// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "calls.h"

#include <linux/futex.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

#include "base/bare_thread.h"
#include "base/here.h"
#include "base/lock.h"
#include "base/os.h"
#include "tasks.h"

// libc's function for a call keeps less than this on the stack. The frame of a signal handler needs
// more: so a handler that sleeps is not taken for the call that it interrupted.
#define FRAME 1024u
// What a call's frames on the stack may store: libc's below, the caller's own record above.
#define STACK_BYTES 4096u
// Of its own variables, to both sides of the thread pointer: errno, and what cancellation needs.
#define VARIABLE_BYTES 4096u

_Atomic uint32_t pm_calls_word;
__thread struct pm_call_record *pm_calls_own;
bool pm_calls_recorded;
long pm_calls_process;
static struct pm_call_record *_Atomic record; // by thread id
static long holder_process, holder;
static uint64_t blocked; // while threads are held
static bool settles;     // a thread's processor time tells whether it has run
static bool trusted;     // what is on record is exact
// How many wait at the word, so that nobody is woken where nobody waits. Each adds itself before it
// reads the word, and the holder changes the word before it reads this: sequentially consistent.
static _Atomic uint32_t waiting;
// Of a forked child: the locks that its one thread held already.
static uint64_t inherited;

// The processor time that a thread of the process has used, in nanoseconds. 0: that cannot be
// known. uapi/linux/time.h has no name for such a clock; glibc makes the same of a pthread_t.
uint64_t pm_calls_used(pid_t id) {
    struct timespec used;
    long clock = (long)(~(unsigned)id << 3 | 6);
    if (pm_bare_call(SYS_clock_gettime, (int)clock, (long)&used, 0, 0) != 0)
        return 0;
    uint64_t ran = (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
    return ran ? ran : 1; // it has found no processor yet
}

// Whether what a thread does for some hundred nanoseconds shows in its time. Where the kernel has
// no steady clock it may not.
static bool time_is_fine(void) {
    pid_t self = (pid_t)pm_bare_call(SYS_gettid, 0, 0, 0, 0);
    uint64_t before = pm_calls_used(self), now = 0;
    for (unsigned i = 0; i < 16 && before && (now = pm_calls_used(self)) > before; i++)
        before = now;
    return before && now == before;
}

// A child of vfork() does not come here.
static void note_process(void) {
    static _Atomic uint32_t noted; // its pm_here_number()
    uint32_t number = pm_here_number();
    if (number && number == atomic_load_explicit(&noted, memory_order_relaxed))
        return;
    pm_calls_process = pm_bare_call(SYS_getpid, 0, 0, 0, 0);
    atomic_store_explicit(&noted, number, memory_order_relaxed);
}

bool pm_calls_have_records(void) {
    struct pm_call_record *none = NULL, *fresh;
    if (!record && (fresh = pm_os_reserve(PM_TASKS * sizeof *fresh)) &&
        !atomic_compare_exchange_strong(&record, &none, fresh))
        pm_bare_call(SYS_munmap, (long)fresh, PM_TASKS * sizeof *fresh, 0, 0);
    note_process();
    return record != NULL;
}

bool pm_calls_record(void) {
    if (!pm_calls_recorded)
        settles = time_is_fine();
    pm_calls_recorded = pm_calls_have_records();
    return pm_calls_recorded;
}

// ---- the mark -----------------------------------------------------------------------------------

// glibc registers a struct rseq for each thread at this offset from the thread pointer (2.35).
extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned __rseq_size __attribute__((weak));
#define RSEQ_CPU_ID 4  // negative: not registered
#define RSEQ_SECTION 8 // rseq_cs

// A section of one instruction that nobody runs. The kernel checks what it reads: where the section
// would be left to, and that glibc's signature stands before that.
__asm__(".section .text\n.balign 4\n.long 0x53053053\n"
        ".hidden pm_call_left\n.globl pm_call_left\npm_call_left: ud2\n"
        ".hidden pm_call_section\n.globl pm_call_section\npm_call_section: ud2\n"
        ".section .data.rel.ro,\"aw\"\n.balign 32\n.hidden pm_call_mark\n.globl pm_call_mark\n"
        ".type pm_call_mark, @object\n.size pm_call_mark, 32\n"
        "pm_call_mark: .quad 0, pm_call_section, 1, pm_call_left\n.previous\n.text\n");

static _Atomic uint64_t *find_mark(void) {
    if (!&__rseq_offset || !&__rseq_size || !__rseq_size)
        return NULL;
    char *rseq = (char *)__builtin_thread_pointer() + __rseq_offset;
    return *(volatile int32_t *)(rseq + RSEQ_CPU_ID) < 0
               ? NULL
               : (_Atomic uint64_t *)(rseq + RSEQ_SECTION);
}

// Whether the mark stands: read by a call that can fail, because the thread may have ended.
static enum pm_call_look look_at_mark(const struct pm_call_record *of, pid_t id) {
    uint64_t found = 0;
    bool gone = false;
    if (!of->mark || !pm_task_peek(id, of->mark, &found, sizeof found, &gone))
        return gone ? PM_CALL_GONE : PM_CALL_AWAKE;
    return found == (uintptr_t)pm_call_mark ? PM_CALL_ASLEEP : PM_CALL_AWAKE;
}

// ---- calls and holds ----------------------------------------------------------------------------

pid_t pm_calls_self(void) {
    return pm_calls_own ? (pid_t)(pm_calls_own - record)
                        : (pid_t)pm_bare_call(SYS_gettid, 0, 0, 0, 0);
}

struct pm_call_record *pm_calls_find_own(void) {
    static struct pm_call_record nobodys;
    if (!record)
        return &nobodys;
    struct pm_call_record *own = &record[pm_bare_call(SYS_gettid, 0, 0, 0, 0)];
    own->mark = find_mark();
    own->thread_pointer = __builtin_thread_pointer();
    // An earlier thread with this id may have ended inside a call.
    atomic_store_explicit(&own->call, NULL, memory_order_relaxed);
    atomic_store_explicit(&own->used, 0, memory_order_relaxed);
    atomic_store_explicit(&own->shared, false, memory_order_relaxed);
    atomic_store_explicit(&own->answers, false, memory_order_relaxed);
    atomic_store_explicit(&own->sections, inherited, memory_order_relaxed);
    inherited = 0;
    pm_calls_own = own;
    return own;
}

struct pm_call_record *const _Atomic *pm_calls_records(void) {
    return &record;
}

struct pm_call_record *pm_calls_of(pid_t id) {
    return &record[id];
}

// The parent's threads are none of the child's, which may get their ids for its own.
void pm_calls_forked(void) {
    struct pm_call_record *parents = pm_calls_own;
    if (parents)
        inherited = atomic_load_explicit(&parents->sections, memory_order_relaxed);
    if (record) {
        pm_calls_process = pm_bare_call(SYS_getpid, 0, 0, 0, 0);
        pm_bare_call(SYS_madvise, (long)record, PM_TASKS * sizeof *record, MADV_DONTNEED, 0);
    }
    pm_calls_own = NULL;
    atomic_store_explicit(&pm_calls_word, 0, memory_order_relaxed);
    atomic_store_explicit(&waiting, 0, memory_order_relaxed);
}

// A child that shares this memory or has a copy of it (vfork, _Fork) is none of the threads that
// the holder knows. It may not wait for ever: in a copy the word stays odd.
static bool is_child(void) { return pm_bare_call(SYS_getpid, 0, 0, 0, 0) != holder_process; }

static bool is_holder(void) { return pm_bare_call(SYS_gettid, 0, 0, 0, 0) == holder; }

// No handler may run while memory stands still, so signals are blocked. One that the holder
// has sent to this thread before it saw the call is delivered at the end of this function.
bool pm_calls_rest(struct pm_call_record *own) {
    const struct timespec patience = {0, 50000000};
    uint64_t mask = blocked, before = 0;
    uint32_t now;
    if (is_holder())
        return false;
    if (is_child()) {
        atomic_fetch_add(&waiting, 1);
        now = atomic_load(&pm_calls_word);
        if (now & 1)
            pm_bare_call(SYS_futex, (long)&pm_calls_word, FUTEX_WAIT, now, (long)&patience);
        atomic_fetch_sub(&waiting, 1);
        return false;
    }
    pm_bare_call(SYS_rt_sigprocmask, SIG_BLOCK, (long)&mask, (long)&before, sizeof mask);
    // Release: the holder that sees the flag also sees what this thread has stored.
    atomic_store_explicit(&own->resting, true, memory_order_release);
    atomic_fetch_add(&waiting, 1);
    while ((now = atomic_load(&pm_calls_word)) & 1)
        pm_bare_call(SYS_futex, (long)&pm_calls_word, FUTEX_WAIT, now, 0);
    atomic_fetch_sub(&waiting, 1);
    atomic_store_explicit(&own->resting, false, memory_order_release);
    pm_bare_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&before, 0, sizeof before);
    return true;
}

void pm_calls_rest_in(struct pm_call_record *own, struct pm_call *call) {
    for (bool waits = true; waits && pm_calls_held();) {
        pm_calls_set(own, call);
        waits = pm_calls_rest(own);
        pm_calls_set(own, call->outer);
    }
}

struct pm_call *pm_calls_step_out(void) {
    struct pm_call_record *own = pm_calls_own;
    struct pm_call *call = own ? atomic_load_explicit(&own->call, memory_order_relaxed) : NULL;
    for (bool waits = call != NULL; call;) {
        pm_calls_set(own, NULL);
        if (!waits || !pm_calls_held())
            break;
        pm_calls_set(own, call);
        waits = pm_calls_rest(own);
    }
    return call;
}

void pm_calls_step_in(struct pm_call *call) { pm_calls_set(pm_calls_own, call); }

void pm_calls_share(void) {
    if (!pm_calls_recorded)
        return;
    struct pm_call_record *own = pm_calls_own ? pm_calls_own : pm_calls_find_own();
    atomic_store_explicit(&own->shared, true, memory_order_relaxed);
}

void pm_calls_trust(bool exact) { trusted = exact; }

void pm_calls_hold(uint64_t mask) {
    blocked = mask;
    holder = pm_calls_self();
    holder_process = pm_is_here() ? pm_calls_process : pm_bare_call(SYS_getpid, 0, 0, 0, 0);
    atomic_fetch_add(&pm_calls_word, 1);
}

void pm_calls_release(void) {
    atomic_fetch_add(&pm_calls_word, 1);
    if (atomic_load(&waiting))
        pm_bare_call(SYS_futex, (long)&pm_calls_word, FUTEX_WAKE, 1 << 30, 0);
}

// What the thread does in the system call whose frame is right below this one's. The kernel shows
// "running", or the number, six arguments, the stack pointer and the program counter.
//
// A handler may have left the call by longjmp(), and the thread may sleep at this depth again: in a
// lock, or in another call that is never recorded. A call that has begun again after a stop, by a
// debugger or SIGSTOP, is shown as restart_syscall whatever it was; locks never are.
static bool is_other(long number, bool by_futex) {
    if (number == SYS_restart_syscall)
        return false;
    return (number == SYS_futex) != by_futex || number == SYS_flock || number == SYS_fcntl ||
           number == SYS_openat;
}

static enum pm_call_look look_below(const struct pm_call_record *of, pid_t id, uintptr_t frame) {
    char text[256];
    bool gone, by_futex = atomic_load_explicit(&of->by_futex, memory_order_relaxed);
    if (!pm_task_read(id, "syscall", text, sizeof text, &gone))
        return gone ? PM_CALL_GONE : look_at_mark(of, id);
    const char *at = strrchr(text, ' ');
    if (text[0] < '0' || text[0] > '9' || !at)
        return PM_CALL_AWAKE;
    while (at > text && at[-1] != ' ')
        at--;
    uintptr_t stack = strtoull(at, NULL, 16);
    bool below = stack <= frame && frame - stack < FRAME;
    return below && !is_other(atol(text), by_futex) ? PM_CALL_ASLEEP : PM_CALL_NONE;
}

// Whether a thread spends its time in the program's code and not in the kernel: the call is no
// more, or a signal handler runs for long. The first look in a hold notes the time.
#define TICKS 2u
#define TICK_BITS 20u
static bool spends_time_outside(struct pm_call_record *of, pid_t id) {
    char text[512];
    bool gone;
    uint32_t hold = atomic_load_explicit(&pm_calls_word, memory_order_relaxed) << TICK_BITS;
    if (!pm_task_read(id, "stat", text, sizeof text, &gone))
        return !gone; // it cannot be known, so the thread is asked, and its call may end with EINTR
    uint32_t ticks = pm_os_stat_number(text, PM_STAT_USER) & ((1u << TICK_BITS) - 1);
    if ((of->looked_at - hold) >> TICK_BITS)
        of->looked_at = hold + ticks;
    return ticks - (of->looked_at - hold) >= TICKS;
}

// A thread that was seen asleep in the kernel, and has used no processor time since the moment
// before that look, has not left the kernel: it is in the same call. To ask for its time takes a
// hundredth of a look. A thread that begins to run meanwhile meets the word or a gate, as one that
// wakes after a look does.
static enum pm_call_look look_at(struct pm_call_record *of, pid_t id, const struct pm_call *call) {
    if (trusted && !atomic_load_explicit(&of->does_more, memory_order_relaxed) &&
        !atomic_load_explicit(&of->shared, memory_order_relaxed))
        return PM_CALL_ASLEEP;
    uint64_t used = settles ? pm_calls_used(id) : 0;
    if (used && atomic_load_explicit(&of->used, memory_order_relaxed) == used)
        return PM_CALL_ASLEEP;
    enum pm_call_look look = look_below(of, id, (uintptr_t)call);
    atomic_store_explicit(&of->used, look == PM_CALL_ASLEEP ? used : 0, memory_order_relaxed);
    return look;
}

enum pm_call_look pm_calls_look(pid_t id, bool thorough) {
    struct pm_call_record *of = record ? &record[id] : NULL;
    if (!of)
        return PM_CALL_NONE;
    const struct pm_call *call = atomic_load(&of->call);
    enum pm_call_look look = PM_CALL_ASLEEP;
    if (!atomic_load_explicit(&of->resting, memory_order_acquire))
        look = call ? look_at(of, id, call) : PM_CALL_NONE;
    if (look == PM_CALL_AWAKE && thorough && spends_time_outside(of, id))
        look = PM_CALL_NONE;
    of->asleep_in =
        look == PM_CALL_ASLEEP ? atomic_load_explicit(&pm_calls_word, memory_order_relaxed) : 0;
    return look;
}

void pm_calls_resting(bool rests) {
    if (pm_calls_own)
        atomic_store_explicit(&pm_calls_own->resting, rests, memory_order_release);
}

void pm_calls_tidy(const void *stack) {
    if (!record)
        return;
    struct pm_call_record *own = &record[pm_bare_call(SYS_gettid, 0, 0, 0, 0)];
    const char *call = (const char *)atomic_load_explicit(&own->call, memory_order_relaxed);
    if (call && (!pm_calls_own || call < (const char *)stack))
        atomic_store_explicit(&own->call, NULL, memory_order_relaxed);
}

void pm_calls_interrupted(bool asleep) {
    if (pm_calls_recorded) {
        struct pm_call_record *own = pm_calls_own ? pm_calls_own : pm_calls_find_own();
        atomic_store_explicit(&own->was_asleep, asleep, memory_order_relaxed);
    }
}

bool pm_calls_within(const void *stack) {
    if (!pm_calls_own)
        return false;
    const char *call =
        (const char *)atomic_load_explicit(&pm_calls_own->call, memory_order_relaxed);
    return call && (uintptr_t)call - (uintptr_t)stack < FRAME;
}

bool pm_calls_waits(pid_t id) {
    const struct pm_call *call = record ? atomic_load(&record[id].call) : NULL;
    return call && !call->outer && call->kind == PM_CALL_WAITS;
}

bool pm_calls_says(pid_t id) {
    const struct pm_call *call = record ? atomic_load(&record[id].call) : NULL;
    return call && (call->kind == PM_CALL_SAYS || call->kind == PM_CALL_TELLS);
}

int pm_calls_reads(pid_t id) {
    const struct pm_call *call = record ? atomic_load(&record[id].call) : NULL;
    return call && call->kind == PM_CALL_READS ? call->fd : -1;
}

struct memory {
    void (*each)(void *at, size_t len, void *arg);
    void *arg;
};

static void each_vector(const struct memory *m, const struct iovec *vectors, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (vectors[i].iov_len)
            m->each(vectors[i].iov_base, vectors[i].iov_len, m->arg);
}

static void each_of_call(const struct memory *m, const struct pm_call *call) {
    m->each((char *)(uintptr_t)call - STACK_BYTES, STACK_BYTES + sizeof *call, m->arg);
    each_vector(m, call->memory, sizeof call->memory / sizeof *call->memory);
    each_vector(m, call->vectors, call->vector_count);
    for (size_t i = 0; i < call->message_count; i++) {
        const struct msghdr *message = &call->messages[i].msg_hdr;
        const struct iovec parts[] = {{(void *)(uintptr_t)message, sizeof *message},
                                      {message->msg_name, message->msg_namelen},
                                      {message->msg_control, message->msg_controllen}};
        each_vector(m, parts, 3);
        each_vector(m, message->msg_iov, message->msg_iovlen);
    }
}

const void *pm_calls_frame(pid_t id) {
    return atomic_load_explicit(&record[id].call, memory_order_acquire);
}

void pm_calls_each_memory(pid_t id, void (*each)(void *at, size_t len, void *arg), void *arg) {
    const struct memory memory = {each, arg};
    uint32_t now = atomic_load_explicit(&pm_calls_word, memory_order_relaxed);
    bool asleep = record[id].asleep_in == now;
    struct pm_call *call = asleep ? atomic_load(&record[id].call) : NULL;
    if (call)
        each(record[id].thread_pointer - VARIABLE_BYTES, 2 * VARIABLE_BYTES, arg);
    for (; call; call = call->outer)
        each_of_call(&memory, call);
}

void pm_calls_wait_us(_Atomic uint32_t *word, uint32_t seen, uint64_t us, enum pm_call_kind kind) {
    struct pm_call call = {.by_futex = true, .kind = (uint8_t)kind};
    bool recorded = pm_calls_recorded;
    if (recorded)
        pm_call_enter(&call);
    pm_futex_wait_us(word, seen, us);
    if (recorded)
        pm_call_leave(&call);
}
