// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Calls of the program that may sleep in the kernel: poll, read, sem_wait, sleep and their kin. A
// thread that sleeps in one rests there, without a signal. It is enough that it waits when the call
// is over, before it returns to the program. So nobody disturbs the call: it returns no EINTR,
// transfers no less than it would, and its timeout runs on as it should.
//
//   thread     pm_call_enter .. the call, asleep ............. pm_call_leave, waits .. goes on
//   holder             pm_calls_hold .. looks .. [ memory stands still ] .. pm_calls_release
//
// The handshake is Dekker's. A thread that enters or leaves stores its call, then reads the word;
// the holder stores the word, then reads the calls. So a thread that the holder finds outside of a
// call sees the word before it sleeps: it waits in pm_call_enter(), and a signal for it comes
// before the call or not at all. One found in a call sees the word before it is back in the
// program.
//
// A signal handler is another way out of a call, and from there longjmp() or the end of the thread.
// A handler that is the program's runs by pm_postponing() (postpone.h), which does what the end of
// a call does, also where the handler comes in the middle of that end. As long as there is no other
// one, a call on record is all that the holder needs to know, and it asks the kernel nothing about
// the thread (pm_calls_trust()).
//
// Else, or where libc does more in the call than to sleep, the holder reads in /proc whether the
// thread sleeps there. Where /proc cannot be read a mark says it: while a thread is in a call, its
// rseq_cs names a section that it never runs. The kernel takes the mark away when it delivers a
// signal, or when the thread returns to the program after another one had its core (rseq(2)). So a
// thread whose mark stands runs no signal handler.
//
// The kernel may store what a call returns while threads are held, and libc some bytes of its own
// around the call. pm_calls_each_memory() tells where.
#ifndef PM_CALLS_H
#define PM_CALLS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

// What the call means to PMALLOC_COMMIT=idle and =output (preload/commit/triggers.h).
enum pm_call_kind {
    PM_CALL_OTHER,
    PM_CALL_WAITS, // while it lasts, nothing of the thread's work is half done
    PM_CALL_LOOKS, // does not wait, but tells whether something has come
    PM_CALL_READS, // the same, if `fd` is no file
    PM_CALL_SAYS,  // something leaves the process by `fd`, if somebody hears it there
    PM_CALL_TELLS, // something leaves the process in any case, or a file is made durable
};

// What a call says whose bytes may leave later (preload/commit/outbox.h): `count` bytes or pieces,
// or a message.
struct pm_said {
    const void *bytes;
    const struct iovec *vector;
    size_t count;
    const struct msghdr *message;
    bool sends; // by a function of sockets alone
    int flags;  // of that
};

struct pm_call {
    // The call that was interrupted by a signal handler which has made this one.
    struct pm_call *outer;
    // Where the call may store. `vectors` and `messages` are the program's arrays that name more.
    struct iovec memory[4];
    const struct iovec *vectors;
    size_t vector_count;
    const struct mmsghdr *messages;
    size_t message_count;
    bool by_futex;  // the call sleeps in a futex, as semaphores do
    bool does_more; // than to sleep: libc may allocate in it, or use memory that is not named here
    bool naps;      // it sleeps for a time
    uint8_t kind;   // an enum pm_call_kind
    int fd;
    const struct pm_said *said; // NULL: it has to be made in any case
    long result;                // of a call that was taken
    // What the program kept in the registers that calls preserve: in the kernel, it would be out of
    // sight for the live collector (gc/live).
    uintptr_t preserved[6];
};

// Of one thread. It is reached by the thread's id, and stays when the thread ends.
struct pm_call_record {
    _Atomic(struct pm_call *) call; // NULL: the thread is in no call
    _Atomic bool resting;           // the thread waits for the end of a hold
    _Atomic bool was_asleep;        // the hold has interrupted it in a call that is not recorded
    uint32_t looked_at;             // the holder's, in pm_calls_look()
    uint32_t asleep_in;             // the holder's: the hold in which the thread was found asleep
    _Atomic bool by_futex;          // of the call, which may lie on a stack that is no more
    _Atomic bool does_more;         // of the call
    _Atomic bool shared;            // a child that shares the thread's memory may store here, too
    _Atomic bool answers;           // it is at something that leaves the process (commit_gate.h)
    _Atomic uint64_t used;          // the holder's: processor time, when it was seen asleep; or 0
    _Atomic uint64_t *mark;         // the thread's rseq_cs, NULL: it has none
    char *thread_pointer;           // where its own variables lie, libc's among them
    // Of sections.h. The lower half: how many locks the thread holds. The upper half: how
    // often it has begun to hold one. `lock`: the last one.
    _Atomic uint64_t sections;
    _Atomic uintptr_t lock;
} __attribute__((aligned(64)));
// Each thread writes its own line only.
_Static_assert(sizeof(struct pm_call_record) == 64, "one line");

// Odd while threads are held. A futex.
extern _Atomic uint32_t pm_calls_word;
// The calling thread's record. NULL: it has made no call yet.
extern __thread struct pm_call_record *pm_calls_own __attribute__((tls_model("initial-exec")));

// Whether calls are recorded. Off until somebody may want to hold threads.
extern bool pm_calls_recorded;
// The process whose threads they are: not that of a vfork()'s child.
extern long pm_calls_process;
// The calling thread's id. The kernel is asked for it only if the thread has made no call yet. Not
// for a child that shares this memory, and its thread-local variables.
pid_t pm_calls_self(void);
// Whether there is a record for each thread. May be called by several at once.
bool pm_calls_have_records(void);
// Where the address of the records is, by thread id. For another process (sections_door.h).
struct pm_call_record *const _Atomic *pm_calls_records(void);
// Switches it on for good. A call that a thread sleeps in already stays unknown. False: no memory.
bool pm_calls_record(void);

// What the mark is: a struct rseq_cs.
extern const uint64_t pm_call_mark[4];

// The cold parts of the two functions below. They store no errno. The holder itself goes on
// (false), and so does the child of a vfork() after a little.
struct pm_call_record *pm_calls_find_own(void);
bool pm_calls_rest(struct pm_call_record *own);

// For a thread that leaves the call: while threads are held, it is in it and waits.
void pm_calls_rest_in(struct pm_call_record *own, struct pm_call *call);

// Sequentially consistent, as pm_calls_hold(): see above.
static inline void pm_calls_set(struct pm_call_record *own, struct pm_call *call) {
    if (call) {
        atomic_store_explicit(&own->by_futex, call->by_futex, memory_order_relaxed);
        atomic_store_explicit(&own->does_more, call->does_more, memory_order_relaxed);
    }
    atomic_store(&own->call, call);
}

// Whether threads are held. Sequentially consistent, too.
static inline bool pm_calls_held(void) { return atomic_load(&pm_calls_word) & 1; }

// A frame between the call's and its outer one that longjmp() has left is forgotten.
static inline void pm_call_enter(struct pm_call *call) {
    __asm__ volatile("movq %%rbx, 0(%0)\n\tmovq %%rbp, 8(%0)\n\tmovq %%r12, 16(%0)\n\t"
                     "movq %%r13, 24(%0)\n\tmovq %%r14, 32(%0)\n\tmovq %%r15, 40(%0)"
                     :
                     : "r"(call->preserved)
                     : "memory");
    struct pm_call_record *own = pm_calls_own;
    if (__builtin_expect(!own, 0))
        own = pm_calls_find_own();
    struct pm_call *outer = atomic_load_explicit(&own->call, memory_order_relaxed);
    call->outer = outer && outer <= call && call - outer < (1 << 16) ? NULL : outer;
    pm_calls_set(own, call);
    while (__builtin_expect(pm_calls_held(), 0) && pm_calls_rest(own)) {
    }
    // Last: a handler that comes before this is over when the mark stands.
    if (own->mark)
        atomic_store_explicit(own->mark, (uintptr_t)pm_call_mark, memory_order_release);
}

// After a call during which the holder may have taken this thread for asleep.
static inline void pm_call_leave(struct pm_call *call) {
    struct pm_call_record *own = pm_calls_own;
    if (own->mark)
        atomic_store_explicit(own->mark, 0, memory_order_release);
    pm_calls_set(own, call->outer);
    if (__builtin_expect(pm_calls_held(), 0))
        pm_calls_rest_in(own, call);
}

// A futex wait of our own, in a call on record if calls are: to hold this thread takes no signal
// then, and it is at rest.
void pm_calls_wait_us(_Atomic uint32_t *word, uint32_t seen, uint64_t us, enum pm_call_kind kind);

// Whether this thread is in a call that is on record.
static inline bool pm_calls_in_one(void) {
    struct pm_call_record *own = pm_calls_own;
    return own && atomic_load_explicit(&own->call, memory_order_relaxed);
}
// Around a handler of the program's that has interrupted this thread: pm_calls_step_out() returns
// the call that the thread was in (NULL: none), after the end of a hold. The thread is in none
// then, until a handler that returns there steps in again.
struct pm_call *pm_calls_step_out(void);
void pm_calls_step_in(struct pm_call *call);

// A child that shares the memory and the variables of this thread is about to be made: its calls
// will look like this thread's.
void pm_calls_share(void);

// For the holder, one at a time. From here on a thread waits where it enters or leaves a call, and
// blocks these signals.
void pm_calls_hold(uint64_t mask);
void pm_calls_release(void);
// Whether a call on record is enough to know that the thread is in it: all handlers step out.
void pm_calls_trust(bool exact);

enum pm_call_look {
    PM_CALL_NONE,   // the thread is in no call, or in one that is not recorded
    PM_CALL_ASLEEP, // it sleeps in one, or waits for the end of the hold
    PM_CALL_AWAKE,  // it is in one, and does something: maybe it runs a signal handler
    PM_CALL_GONE,   // it has ended
};
// What another thread does, between hold and release. ASLEEP stays true until the release, as long
// as no signal handler runs in the thread. Only thorough looks find a call whose thread has left it
// by longjmp().
enum pm_call_look pm_calls_look(pid_t id, bool thorough);
// For a signal handler that itself waits for the end of the hold.
void pm_calls_resting(bool rests);
// For a signal handler that interrupted code with this stack pointer: forgets a call whose frame is
// no more, because longjmp() or the end of an earlier thread with this id has left it.
void pm_calls_tidy(const void *stack);
// For such a handler, too, before the thread rests: whether it has interrupted a system call. It is
// none that is on record, for there the thread is left alone.
void pm_calls_interrupted(bool asleep);
// For such a handler, too: whether that code is libc's or the kernel's part of the thread's call.
bool pm_calls_within(const void *stack);
// Whether the thread, which rests, is in a call of the kind PM_CALL_WAITS, and the call has not
// interrupted another one.
bool pm_calls_waits(pid_t id);
// The same: in one of the kinds PM_CALL_SAYS and PM_CALL_TELLS.
bool pm_calls_says(pid_t id);
// The descriptor, if it is in one of the kind PM_CALL_READS, or -1.
int pm_calls_reads(pid_t id);
// The frame of the call that another thread sleeps in, or waits at; NULL: it is in none. All that
// the program has on this stack lies at and above it.
const void *pm_calls_frame(pid_t id);
// The memory that the thread's calls may store to meanwhile, if pm_calls_look() has found it asleep
// in this hold.
void pm_calls_each_memory(pid_t id, void (*each)(void *at, size_t len, void *arg), void *arg);

// The thread's record. It can be read at any time. Calls are recorded.
struct pm_call_record *pm_calls_of(pid_t id);
// Nanoseconds that the thread has run; 0: that cannot be known.
uint64_t pm_calls_used(pid_t id);

// In a forked child, before it has a second thread.
void pm_calls_forked(void);

#endif
