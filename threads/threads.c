// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "threads.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "action.h"
#include "base/lock.h"
#include "base/os.h"
#include "base/signal_stack.h"
#include "calls.h"
#include "gates.h"
#include "postpone.h"
#include "roll.h"
#include "tasks.h"

// A signal that hardly any program sends or blocks, because the C library uses it for itself.
#ifdef __GLIBC__
#include <sys/single_threaded.h>
#define SIGNAL 33 // SIGSETXID
#else
#define SIGNAL 34 // SIGSYNCCALL of musl
static const bool __libc_single_threaded; // musl has no such variable: false means "not known"
#endif
#define PATIENCE_MS 200
#define LONGEST_PAUSE_NS 1000000
#define LONG_PAUSE_MS 50 // longer than any pause of ours

// By thread id, what was asked of the thread. 0: nothing. 2 * T: to wait in turn T. 2 * T + 1: to
// wait in turn T, and the thread has heard it. The memory is never freed: a thread may run the
// handler long after its turn.
static _Atomic uint32_t *thread;
// The number of the turn; a futex. It is odd while threads are to wait.
static _Atomic uint32_t turn;
// The thread whose turn it is, 0: nobody's. A futex.
static _Atomic uint32_t owner;
// How many wait at the two: none is woken where none waits. Each adds itself before it reads the
// word, and the word changes before this is read: sequentially consistent.
static _Atomic uint32_t waiting_turn, waiting_owner;
// In a turn of pm_threads_hold(): whether a thread may wait where it was interrupted. Else NULL.
static _Atomic(pm_threads_rests *) may_rest;
// No handler of the program's runs in the holder either, which may have seen to that itself.
static uint64_t holders_mask;
static bool holder_masked;
static _Atomic pid_t deaf;

// ---- which threads there are --------------------------------------------------------------------

// Another thread that was alive at the last look, so that they need not be listed again.
static _Atomic pid_t living;

static bool is_dead(pid_t id, void *all) {
    *(bool *)all = pm_task_is_dead(id);
    if (!*(bool *)all)
        atomic_store_explicit(&living, id, memory_order_relaxed);
    return *(bool *)all;
}

static bool is_another(pid_t id, pid_t own) {
    return id && id != own && id != (pid_t)syscall(SYS_gettid) && !pm_task_is_dead(id);
}

// libc does not know PMAlloc's own thread: its answer does not include that thread.
bool pm_threads_none(void) {
    bool dead = true;
    uint32_t own = atomic_load_explicit(&pm_os_own_thread, memory_order_acquire);
    if (__libc_single_threaded && (!own || syscall(SYS_gettid) != (long)own))
        return true;
    if (is_another(atomic_load_explicit(&living, memory_order_relaxed), (pid_t)own))
        return false;
    return pm_tasks_each_other_until(is_dead, &dead) && dead;
}

static void find_stopped(pid_t id, void *arg) {
    bool gone;
    char state = pm_task_state(id, &gone);
    *(bool *)arg |= state == 'T' || state == 't';
}

bool pm_threads_stopped(void) {
    bool stopped = false;
    return pm_tasks_each_other(find_stopped, &stopped) && stopped;
}

// ---- standing still -----------------------------------------------------------------------------

static struct pm_action before_fault;
// What libc does at the signal, where our handler lies in its place.
static _Atomic(void (*)(int, siginfo_t *, void *)) libcs;
static struct pm_action before;
static bool owed; // a thread may yet run our handler because of an earlier turn

__asm__(".text\n.hidden pm_threads_return\n.globl pm_threads_return\n"
        ".type pm_threads_return, @function\npm_threads_return:\n"
        "mov $15, %eax\nsyscall\n.size pm_threads_return, . - pm_threads_return\n"); // rt_sigreturn

static void wait_for_end_of(uint32_t now) {
    atomic_fetch_add(&waiting_turn, 1);
    while ((now & 1) && atomic_load(&turn) == now)
        pm_futex_wait(&turn, now);
    atomic_fetch_sub(&waiting_turn, 1);
}

static void wake(_Atomic uint32_t *word, _Atomic uint32_t *waiting) {
    if (atomic_load(waiting))
        pm_futex_wake(word, 1 << 30);
}

// Where threads may be held, our signal has a code of its own. libc may put its handler in the
// place of ours at any moment: glibc in the first pthread_create(), musl in setuid() and its kin.
// Their handlers ignore a signal with this code, and our handler knows theirs.
static long signal_to(pid_t id) {
    pid_t self = getpid();
    siginfo_t info = {.si_signo = SIGNAL, .si_code = SI_QUEUE};
    info.si_pid = self;
    info.si_value.sival_ptr = &thread;
    return pm_calls_recorded ? syscall(SYS_rt_tgsigqueueinfo, self, id, SIGNAL, &info)
                             : syscall(SYS_tgkill, self, id, SIGNAL);
}

static bool is_ours(const siginfo_t *info) {
    return info->si_code == SI_QUEUE && info->si_value.sival_ptr == &thread;
}

static void pass_on(int number, siginfo_t *info, void *context) {
    void (*handler)(int, siginfo_t *, void *) = atomic_load_explicit(&libcs, memory_order_acquire);
    if ((uintptr_t)handler > 1) // SIG_DFL, SIG_IGN
        handler(number, info, context);
}

// What becomes of the question is decided with what the holder has asked for last: a late signal of
// an earlier turn must not let a thread rest in this one where it may not.
// Release: a thread that sees "heard" (in ask) also sees everything that this thread has stored.
static bool answers(pid_t id, uint32_t *asked, void *context) {
    *asked = atomic_load_explicit(&thread[id], memory_order_acquire);
    while (*asked && !(*asked & 1)) {
        pm_threads_rests *rests = atomic_load_explicit(&may_rest, memory_order_acquire);
        if (rests)
            pm_calls_tidy((void *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RSP]);
        // A thread that may not wait here goes on, and is asked again.
        bool good = !rests || rests(context);
        if (atomic_compare_exchange_strong_explicit(&thread[id], asked, good ? *asked | 1 : 0,
                                                    memory_order_acq_rel, memory_order_acquire))
            return good;
    }
    return false;
}

// The handler. libc's own signal goes on to libc's handler.
static void hear(int number, siginfo_t *info, void *context) {
    int saved = errno;
    bool ours = is_ours(info);
    uint32_t asked = 0;
    if ((ours || !pm_calls_recorded) && answers((pid_t)syscall(SYS_gettid), &asked, context))
        wait_for_end_of(asked >> 1);
    else if (!ours)
        pass_on(number, info, context);
    pm_postpone_repeats(context);
    errno = saved;
}

static struct pm_action listening = {
    .handler = hear,
    .flags = PM_SA_RESTORER | SA_SIGINFO | SA_RESTART | SA_ONSTACK,
    .restorer = pm_threads_return,
};

static void note(const struct pm_action *old) {
    if (old->handler == hear)
        return;
    before = *old;
    atomic_store_explicit(&libcs, old->handler, memory_order_release);
}

// Puts our handler in its place. First it notes whose was there, because ours may need that at
// once, and then once more, because libc may have put another one there meanwhile.
static bool put_in_turn;  // in this turn it was put
static uint64_t put_mask; // as it was put last; 0: never

static bool put_handler(void) {
    struct pm_action old;
    if (pm_action_set(SIGNAL, NULL, &old) != 0)
        return false;
    note(&old);
    if (pm_action_set(SIGNAL, &listening, &old) != 0)
        return false;
    note(&old);
    put_in_turn = true;
    put_mask = listening.mask;
    return true;
}

// Where threads are held again and again the handler is there already. A turn that asks no thread
// needs it only for a late signal of an earlier turn, and then with this turn's mask.
static bool put_if_needed(bool hold) {
    put_in_turn = false;
    return (hold && put_mask == listening.mask) || put_handler();
}

// Whether the thread is in the kernel and our signal is pending for it, so that it runs our handler
// before it does anything else in the program. Until then the kernel may still store the result of
// one system call. That does no harm, because the thread stores nothing after it.
//
// In a hold the store of the kernel's would do harm, and a stopped thread may hold a lock. So a
// thread may only be in vfork or clone then, where it waits until its child executes.
static bool waits_for_child(pid_t id) {
    char text[256];
    bool gone;
    if (!pm_task_read(id, "syscall", text, sizeof text, &gone))
        return gone;
    long number = text[0] >= '0' && text[0] <= '9' ? atol(text) : -1;
    return number == SYS_vfork || number == SYS_clone || number == SYS_clone3;
}

struct look {
    bool deaf;    // blocks SIGSEGV
    bool lost;    // our signal is not pending any more
    bool unheard; // it is pending, and blocked
};

static bool is_held(pid_t id, bool hold, struct look *look) {
    char text[4096];
    bool gone;
    *look = (struct look){0};
    if (!pm_task_read(id, "status", text, sizeof text, &gone)) {
        look->lost = !gone; // it cannot be known
        return gone;
    }
    const char *state = strstr(text, "\nState:\t"), *pending = strstr(text, "\nSigPnd:\t");
    const char *blocked = strstr(text, "\nSigBlk:\t");
    if (!state || !pending || !blocked)
        return false;
    uint64_t deaf_to = strtoull(blocked + 9, NULL, 16), waiting = strtoull(pending + 9, NULL, 16);
    look->deaf = deaf_to >> (SIGSEGV - 1) & 1;
    look->lost = !(waiting >> (SIGNAL - 1) & 1);
    look->unheard = waiting & deaf_to & 1ull << (SIGNAL - 1);
    return strchr("DTt", state[8]) && (waiting & ~deaf_to) >> (SIGNAL - 1) & 1 &&
           (!hold || (state[8] == 'D' && waits_for_child(id)));
}

struct round {
    uint32_t turn;
    unsigned running;
    bool deaf;     // one of the running threads blocks SIGSEGV
    bool unheard;  // one of those that do not blocks our signal, or it could not be sent
    bool thorough; // looks in /proc at threads that have not answered
    bool last;     // no more time
    bool hold;     // threads that sleep in a call are left alone
    bool dead;     // a thread on the roll has ended, or may have
};

static void ask(pid_t id, void *arg) {
    struct round *r = arg;
    enum pm_call_look look = r->hold ? pm_calls_look(id, r->thorough) : PM_CALL_NONE;
    uint32_t seen = atomic_load_explicit(&thread[id], memory_order_acquire), asked = r->turn << 1;
    if (look == PM_CALL_ASLEEP) { // maybe it was asked before it went to rest
        owed |= seen && !(seen & 1);
        return;
    }
    if (look == PM_CALL_GONE || (look == PM_CALL_AWAKE && r->thorough && pm_task_is_dead(id))) {
        r->dead = true;
        return;
    }
    if (look == PM_CALL_AWAKE) {
        r->running++;
        return;
    }
    if (seen == (asked | 1))
        return;
    bool on_its_way = seen && !(seen & 1); // a signal is pending, maybe of an earlier turn
    struct look about = {0};
    if (!put_in_turn && !put_handler()) {
        r->running++;
        return;
    }
    if (seen != asked &&
        atomic_compare_exchange_strong_explicit(&thread[id], &seen, asked, memory_order_acq_rel,
                                                memory_order_acquire) &&
        !on_its_way && signal_to(id) != 0) {
        atomic_store_explicit(&thread[id], 0, memory_order_release);
        r->dead |= errno == ESRCH;
        r->running += errno != ESRCH;
        r->unheard |= errno == EAGAIN;
        return;
    }
    if (r->thorough && pm_task_is_dead(id)) {
        r->dead = true;
        return;
    }
    if (r->thorough && is_held(id, r->hold, &about)) {
        owed = r->dead = true;
        return;
    }
    // Libc's handler has met the signal, or the signal was for an earlier thread with this id. So
    // the next round asks again. Our handler may have begun, too: it is called once more then.
    if (about.lost && pm_calls_recorded)
        atomic_compare_exchange_strong_explicit(&thread[id], &asked, 0, memory_order_acq_rel,
                                                memory_order_acquire);
    r->deaf |= about.deaf;
    r->unheard |= about.unheard && !about.deaf;
    r->running++;
}

// A look at a thread in /proc takes longer than most threads need to answer.
#define LOOK_EVERY 16

// A debugger, a backup or SIGSTOP stops all threads, this one too. Time in which it could not run
// is left out: the others had none to answer in. How much this thread has run it asks when it has
// to wait: most holds are over before.
struct patience {
    uint64_t end;        // milliseconds
    uint64_t seen, used; // at the last look: the time, and how much this thread had run
    bool looks;          // `used` is known
    uint64_t whole;      // milliseconds
};

static uint64_t used_ms(void) {
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (uint64_t)used.tv_sec * 1000 + (uint64_t)used.tv_nsec / 1000000;
}

static struct patience patience_of(uint64_t ms) {
    uint64_t now = pm_os_now_ms();
    return (struct patience){.end = now + ms, .seen = now, .whole = ms};
}

static bool is_over(struct patience *p) {
    uint64_t now = pm_os_now_ms(), passed = now - p->seen;
    if (!p->looks && passed <= LONG_PAUSE_MS)
        return now >= p->end;
    uint64_t used = used_ms(), ran = p->looks ? used - p->used : 0;
    if (passed > ran + LONG_PAUSE_MS)
        p->end += passed - ran;
    p->seen = now;
    p->used = used;
    p->looks = true;
    return now >= p->end;
}

static void begin_to_wait(struct patience *p) {
    p->used = p->looks ? p->used : used_ms();
    p->looks = true;
}

// What the last round of a hold that found nobody running has seen in /proc.
static struct pm_tasks_state state;
static bool state_known;

// Whether the roll has all threads. While one runs, nothing else is asked.
static bool is_whole(const struct round *r) {
    state_known = r->hold && !r->running && pm_tasks_look(&state);
    return pm_roll_counts(state_known ? state.threads : pm_tasks_count()) && !r->dead;
}

static enum pm_threads_ears not_heard; // at the end of the last one that was in vain

enum pm_threads_ears pm_threads_unheard(void) { return not_heard; }

// A thread that is not listed yet can only have been made by one that runs. So when two rounds in a
// row find no running thread, there is none. One is enough where the roll is whole (roll.h).
static enum pm_threads ask_all(uint32_t now, struct patience *patience, bool hold) {
    struct timespec pause = {0, 50000};
    struct round r = {.turn = now};
    for (unsigned quiet = 0, rounds = 0; !r.last; rounds++) {
        bool last = is_over(patience);
        bool thorough = last || rounds % LOOK_EVERY >= LOOK_EVERY - 2;
        r = (struct round){.turn = now, .last = last, .thorough = thorough, .hold = hold};
        if (thorough)
            pm_roll_doubt();
        if ((thorough && !put_handler()) || !pm_roll_each(ask, &r))
            return PM_THREADS_RUN;
        bool whole = is_whole(&r);
        quiet = r.running ? 0 : quiet + 1;
        if (quiet == 2 || (quiet && whole))
            return PM_THREADS_STILL;
        if (quiet || r.dead)
            pm_roll_doubt();
        if (!r.running)
            continue;
        begin_to_wait(patience);
        syscall(SYS_nanosleep, &pause, NULL);
        if (hold && rounds % LOOK_EVERY == 0 && pause.tv_nsec < LONGEST_PAUSE_NS)
            pause.tv_nsec *= 2;
    }
    not_heard = r.deaf ? PM_THREADS_NOT_SURE : r.unheard ? PM_THREADS_UNHEARD : PM_THREADS_HEAR;
    return r.deaf ? PM_THREADS_DEAF : PM_THREADS_RUN;
}

static bool is_owner(uint32_t id) {
    return atomic_load_explicit(&owner, memory_order_relaxed) == id;
}

bool pm_threads_holder(void) { return is_owner((uint32_t)syscall(SYS_gettid)); }

// A long collection is no reason to give up. Who has the turn and sleeps may wait for a lock of the
// thread that waits for the turn.
static void wait_for_work(struct patience *patience, uint32_t who) {
    bool gone;
    char does = who ? pm_task_state((pid_t)who, &gone) : '\0';
    if (does == 'R' || does == 'D')
        patience->end = pm_os_now_ms() + patience->whole;
}

// Takes the turn, or waits for it as long as patience lasts (NULL: for ever). A hold waits in a
// call, so that another hold needs no signal for this thread. A program that holds its own threads
// (hold.h) may end, or execute another program.
static bool take_turn(struct patience *patience, bool hold) {
    uint32_t nobody = 0, self = (uint32_t)pm_calls_self();
    struct pm_call call = {.by_futex = true};
    if (is_owner(self))
        pm_threads_release();
    while (!atomic_compare_exchange_strong_explicit(&owner, &nobody, self, memory_order_acquire,
                                                    memory_order_relaxed)) {
        const struct timespec look = {0, 10000000};
        if (patience && is_over(patience))
            return false;
        if (patience) {
            wait_for_work(patience, nobody);
            begin_to_wait(patience);
        }
        if (hold)
            pm_call_enter(&call);
        atomic_fetch_add(&waiting_owner, 1);
        syscall(SYS_futex, &owner, FUTEX_WAIT_PRIVATE, nobody, &look, NULL, 0L);
        atomic_fetch_sub(&waiting_owner, 1);
        if (hold)
            pm_call_leave(&call);
        nobody = 0;
    }
    return true;
}

bool pm_threads_prepare(void) {
    if (!thread)
        thread = pm_os_reserve(PM_TASKS * sizeof *thread);
    return thread != NULL;
}

// Set by the holder: the program had a handler that does not step out of a call.
static bool strangers = true;

// The strangers have gates by now: none begins, but one may have begun.
static enum pm_threads hold_all(uint32_t now, struct patience *patience, uint64_t ignored) {
    pm_calls_trust(!strangers);
    enum pm_threads result = ask_all(now, patience, true);
    if (result != PM_THREADS_STILL)
        return result;
    enum pm_gates gates = pm_gates_close(SIGNAL, ignored, state_known ? &state : NULL);
    if (gates == PM_GATES_LATE)
        return PM_THREADS_RUN;
    bool again = strangers || gates == PM_GATES_CLOSED;
    strangers = gates == PM_GATES_CLOSED;
    pm_calls_trust(!strangers);
    return again ? ask_all(now, patience, true) : result;
}

static enum pm_threads begin_turn(struct patience *patience, uint64_t ignored, bool hold) {
    uint32_t now = atomic_fetch_add_explicit(&turn, 1, memory_order_release) + 1;
    listening.mask = ~ignored;
    if (!pm_threads_prepare() || !put_if_needed(hold))
        return PM_THREADS_RUN;
    enum pm_threads result =
        hold ? hold_all(now, patience, ignored) : ask_all(now, patience, false);
    owed |= result != PM_THREADS_STILL;
    return result;
}

static void end_turn(void) {
    // Where threads are held again and again our handler stays: so it cannot take the place of one
    // that libc puts there. It stays, too, while a signal of ours may yet arrive.
    if (thread && !owed && !pm_calls_recorded)
        pm_action_set(SIGNAL, &before, NULL);
    atomic_fetch_add(&turn, 1);
    wake(&turn, &waiting_turn);
    atomic_store(&owner, 0);
    wake(&owner, &waiting_owner);
}

enum pm_threads pm_threads_stop(void) {
    take_turn(NULL, false);
    struct patience patience = patience_of(PATIENCE_MS);
    return begin_turn(&patience, pm_signals_ignored(), false);
}

bool pm_threads_hold(uint64_t timeout_ms, pm_threads_rests *rests) {
    struct patience patience = patience_of(timeout_ms);
    if (!pm_calls_record() || !take_turn(&patience, true))
        return false;
    uint64_t ignored = pm_signals_ignored(), blocked = ~ignored;
    holder_masked = atomic_load_explicit(&deaf, memory_order_relaxed) != pm_calls_self();
    if (holder_masked)
        syscall(SYS_rt_sigprocmask, SIG_BLOCK, &blocked, &holders_mask, sizeof blocked);
    atomic_store_explicit(&may_rest, rests, memory_order_release);
    pm_calls_hold(~ignored);
    if (begin_turn(&patience, ignored, true) == PM_THREADS_STILL)
        return true;
    pm_threads_release();
    return false;
}

void pm_threads_release(void) {
    uint64_t mask = holders_mask;
    bool masked = holder_masked;
    pm_gates_open();
    atomic_store_explicit(&may_rest, NULL, memory_order_release);
    pm_calls_release();
    end_turn();
    if (masked)
        syscall(SYS_rt_sigprocmask, SIG_SETMASK, &mask, NULL, sizeof mask);
}

void pm_threads_deaf(bool is) {
    atomic_store_explicit(&deaf, is ? pm_calls_self() : 0, memory_order_relaxed);
}

bool pm_threads_some(void) { return pm_roll_has_any(); }

// A signal that was sent before the turn ended is delivered at the end of a system call.
bool pm_threads_keep_off(void) {
    if (pm_calls_process != pm_bare_call(SYS_getpid, 0, 0, 0, 0) || !take_turn(NULL, true))
        return false;
    pm_bare_call(SYS_getpid, 0, 0, 0, 0);
    return true;
}

void pm_threads_let_on(void) {
    int saved = errno;
    atomic_store(&owner, 0);
    wake(&owner, &waiting_owner);
    errno = saved;
}

void pm_threads_forked(void) {
    atomic_store_explicit(&may_rest, NULL, memory_order_relaxed);
    atomic_store_explicit(&owner, 0, memory_order_relaxed);
    atomic_store_explicit(&deaf, 0, memory_order_relaxed);
    atomic_store_explicit(&waiting_turn, 0, memory_order_relaxed);
    atomic_store_explicit(&waiting_owner, 0, memory_order_relaxed);
    turn += turn & 1;
    pm_gates_open();
    pm_roll_doubt();
    pm_calls_forked();
    pm_signal_stack_forked();
}

// A thread that has met unwritable memory may be delayed on its way to the handler, until after the
// end of the turn. So the handler stays. It lets this number of threads repeat their store; a fault
// with another reason comes again at once, uses them up, and then meets the program's own handler.
#define LATE_FAULTS 4096
static _Atomic int late_faults;

// The SIGSEGV handler: waits, then lets the thread repeat its store. A SIGSEGV that a process has
// sent would not come again, so it is sent again.
static void fault(int number, siginfo_t *info, void *context) {
    (void)context;
    int saved = errno;
    bool sent = info->si_code <= 0;
    uint32_t now = atomic_load_explicit(&turn, memory_order_acquire);
    if (now & 1)
        wait_for_end_of(now);
    else if (sent || atomic_fetch_sub_explicit(&late_faults, 1, memory_order_relaxed) <= 0)
        pm_action_set(SIGSEGV, &before_fault, NULL);
    if (sent)
        syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), number);
    errno = saved;
}

bool pm_threads_catch(void) {
    const struct pm_action ours = {fault, PM_SA_RESTORER | SA_SIGINFO | SA_RESTART | SA_ONSTACK,
                                   pm_threads_return, ~0ull};
    struct pm_action old;
    if (pm_action_set(SIGSEGV, NULL, &old) != 0)
        return false;
    if (old.handler != fault)
        before_fault = old;
    atomic_store_explicit(&late_faults, LATE_FAULTS, memory_order_relaxed);
    return pm_action_set(SIGSEGV, &ours, NULL) == 0;
}

void pm_threads_resume(void) { end_turn(); }
