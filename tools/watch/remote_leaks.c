// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "remote_leaks.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/os.h"
#include "base/signal_stack.h"
#include "guardian.h"
#include "halt.h"
#include "patience.h"
#include "tools/common/program_status.h"
#include "tracee.h"

// How long threads in the allocator go on alone, and all of them between two tries. Both double.
enum { PATIENCE_MS = 10000, INSIDE_NS = 20000, MOST_NS = 2000000, TRY_NS = 20000000 };
enum { MOST_TRY_NS = 200000000, MARKER_NS = 1000000 };
enum { STATE_ROOM = 65536, STACK = 256 << 10, LOOK_NS = 50000, CALL_TRIES = 100000 };
#define CODE_64 0x33

struct vector_state {
    char bytes[STATE_ROOM];
    size_t len;
};

static struct {
    pid_t pid;
    int memory; // /proc/PID/mem
    const struct pm_leaks_door *door;
    struct halt halt;
    // The thread that works for us, and what it had; and what it is at now.
    struct tracee *worker, running;
    uint64_t mask;
    struct vector_state state;
    // The piece of memory in the process.
    uint64_t piece, piece_bytes;
    uint64_t each, room; // for the registers of a thread, and of how many threads
    uint64_t mine;       // what stands in the piece
    bool beside;         // a marker runs; the piece stays
    struct pm_leaks_asked asked;
    struct remote_leaks *out;
    uint64_t held_ns;
    uint64_t free_ns; // of that, while the whole program went on for a commit
} job;

static enum pm_leaks_answer failed(const char *what) {
    pm_fail(&job.out->err, PM_OPERATIONAL, "process %d: %s", (int)job.pid, what);
    return PM_LEAKS_FAILED;
}

static bool reads(uint64_t at, void *to, size_t len) {
    return pread(job.memory, to, len, (off_t)at) == (ssize_t)len;
}

static bool writes(uint64_t at, const void *from, size_t len) {
    return pwrite(job.memory, from, len, (off_t)at) == (ssize_t)len;
}

// ---- who is inside of the allocator -------------------------------------------------------------

static bool lies_in(uint64_t at, const void *start, const void *end) {
    return at >= (uintptr_t)start && at < (uintptr_t)end;
}

// Read where libc has its thread-local storage. A thread that libc does not know may have anything
// there, or nothing.
static bool is_at_work(const struct tracee *t) {
    uint32_t locks = 0;
    uint64_t at = t->regs.fs_base, stack = 0;
    if (!at)
        return false;
    reads(at + (uint64_t)job.door->locks, &locks, sizeof locks);
    reads(at + (uint64_t)job.door->signal_stack, &stack, sizeof stack);
    return locks || (stack && t->regs.rsp - stack < PM_SIGNAL_STACK);
}

// The threads of PMAlloc's.
struct ours {
    uint32_t own, looker;
};

static struct ours find_ours(void) {
    struct ours ours = {0, 0};
    reads((uintptr_t)job.door->own, &ours.own, sizeof ours.own);
    reads((uintptr_t)job.door->looker, &ours.looker, sizeof ours.looker);
    return ours;
}

// The looker has its maker's thread-local storage, and does nothing with it.
static bool is_inside(const struct tracee *t, struct ours ours) {
    const struct pm_leaks_door *d = job.door;
    if (t->dead || (uint32_t)t->id == ours.looker)
        return false;
    if (is_at_work(t))
        return true;
    return (uint32_t)t->id != ours.own && lies_in(t->regs.rip, d->text, d->text_end) &&
           !lies_in(t->regs.rip, d->inner, d->inner_end);
}

static bool is_inside_now(const struct tracee *t) { return is_inside(t, find_ours()); }

static bool any(const struct tracee *t) { return !t->dead; }

static bool commits(void) {
    uint32_t word = 0;
    return reads((uintptr_t)job.door->commits, &word, sizeof word) && word;
}

static bool is_looker(const struct tracee *t) {
    return !t->dead && (uint32_t)t->id == find_ours().looker;
}

static unsigned continue_those(bool chosen(const struct tracee *)) {
    unsigned count = 0;
    for (size_t i = 0; i < job.halt.count; i++)
        if (job.halt.thread[i].stop && chosen(&job.halt.thread[i])) {
            tracee_go_on(&job.halt.thread[i], PTRACE_CONT);
            count++;
        }
    return count;
}

// Returns how many go on, beside the looker, for whom they may wait.
static unsigned go_on(bool chosen(const struct tracee *)) {
    unsigned count = continue_those(chosen);
    if (count)
        continue_those(is_looker);
    return count;
}

static bool recall(void) {
    struct halt *h = &job.halt;
    for (size_t i = 0; i < h->count; i++)
        tracee_ask(&h->thread[i]);
    for (size_t i = 0; i < h->count; i++)
        if (!h->thread[i].stop && !halt_await(&h->thread[i]) && !h->thread[i].dead)
            return false;
    return true;
}

// They go on alone, until all have come out, for longer and longer. One that waits for a lock waits
// for one of these. One that makes a commit may wait for those that stand still: so all go, and are
// recalled as soon as the commit is over.
static bool let_out(uint64_t patience_ns) {
    uint64_t end = patience_now_ns() + patience_ns;
    for (long run_ns = INSIDE_NS; patience_now_ns() < end;
         run_ns = run_ns < MOST_NS ? run_ns * 2 : MOST_NS) {
        bool waits = commits();
        uint64_t since = patience_now_ns();
        if (!go_on(waits ? any : is_inside_now))
            return true;
        tracee_nap(waits ? INSIDE_NS : run_ns);
        while (waits && commits() && patience_now_ns() < end)
            tracee_nap(INSIDE_NS);
        job.free_ns += waits ? patience_now_ns() - since : 0;
        if (!recall())
            return false;
    }
    return false;
}

// ---- which thread works -------------------------------------------------------------------------

// One with the thread-local storage that the library expects: the first of the process, if it is
// still there.
static bool choose(void) {
    struct ours ours = find_ours();
    job.worker = NULL;
    for (size_t i = 0; i < job.halt.count; i++) {
        struct tracee *t = &job.halt.thread[i];
        bool is_ours = (uint32_t)t->id == ours.own || (uint32_t)t->id == ours.looker;
        if (t->stop == TRACEE_ASKED && !is_ours && t->regs.cs == CODE_64 && t->regs.fs_base &&
            !tracee_in_sequence(t, job.memory) && (!job.worker || t->id == job.pid))
            job.worker = t;
    }
    return job.worker != NULL;
}

// ---- the work -----------------------------------------------------------------------------------

static bool take_state(pid_t id, struct vector_state *s) {
    struct iovec state = {s->bytes, sizeof s->bytes};
    if (ptrace(PTRACE_GETREGSET, id, (void *)NT_X86_XSTATE, &state) != 0 &&
        ptrace(PTRACE_GETREGSET, id, (void *)NT_PRFPREG, &state) != 0)
        return false;
    s->len = state.iov_len;
    return true;
}

static void give_state(pid_t id, struct vector_state *s) {
    struct iovec state = {s->bytes, s->len};
    if (ptrace(PTRACE_SETREGSET, id, (void *)NT_X86_XSTATE, &state) != 0)
        ptrace(PTRACE_SETREGSET, id, (void *)NT_PRFPREG, &state);
}

static bool set(uint64_t rip, uint64_t rsp, long number, uint64_t a, uint64_t b) {
    struct user_regs_struct regs = job.worker->regs;
    regs.rip = rip;
    regs.rsp = rsp;
    regs.rax = (unsigned long)number;
    regs.orig_rax = ~0ull; // no call is to begin again now
    regs.rdi = a;
    regs.rsi = b;
    regs.rdx = PROT_READ | PROT_WRITE;
    regs.r10 = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    regs.r8 = ~0ull;
    regs.r9 = 0;
    regs.eflags = 0x202;
    return ptrace(PTRACE_SETREGS, job.worker->id, NULL, &regs) == 0;
}

enum event { EVENT_NONE, EVENT_STOP, EVENT_FAULT, EVENT_GONE };

// What has happened to the worker since it runs. A signal that is no fault is kept for later.
static enum event look(void) {
    siginfo_t info = {0};
    struct tracee *t = &job.running;
    if (!tracee_look(t))
        return t->dead || tracee_has_ended(t->id) ? EVENT_GONE : EVENT_NONE;
    if (t->stop == TRACEE_ASKED)
        return EVENT_STOP;
    if (t->signal) {
        ptrace(PTRACE_GETSIGINFO, t->id, NULL, &info);
        if (info.si_code > 0)
            return EVENT_FAULT;
        job.worker->signal = t->signal;
        t->signal = 0;
    }
    tracee_go_on(t, PTRACE_CONT);
    return t->dead ? EVENT_GONE : EVENT_NONE;
}

static bool runs(void) {
    job.running.signal = 0;
    tracee_go_on(&job.running, PTRACE_CONT);
    return !job.running.dead;
}

static enum event await_stop(void) {
    enum event event;
    while ((event = look()) == EVENT_NONE)
        tracee_nap(LOOK_NS / 5);
    return event;
}

static enum event stop(void) {
    tracee_ask(&job.running);
    return await_stop();
}

// A system call of the worker's. It is over when the worker is behind the instruction.
static long call(long number, uint64_t a, uint64_t b) {
    struct user_regs_struct regs;
    uint64_t at = (uintptr_t)job.door->call;
    bool good = set(at, job.worker->regs.rsp, number, a, b);
    for (unsigned i = 0; i < CALL_TRIES && good; i++) {
        good = runs();
        tracee_nap(LOOK_NS / 5);
        good = good && stop() == EVENT_STOP &&
               ptrace(PTRACE_GETREGS, job.worker->id, NULL, &regs) == 0;
        if (good && regs.rip != at)
            return (long)regs.rax;
    }
    return -ESRCH;
}

// The worker runs the library's function until that has answered. It may stop before: SIGCONT stops
// a traced thread as a request does, and a request that came while the thread was stopped already
// holds it once more.
static enum event answer(uint32_t command, uint64_t stack_top) {
    uint32_t answer = PM_LEAKS_NONE;
    uint64_t at = job.piece + offsetof(struct pm_leaks_asked, answer);
    if (!writes(job.piece + offsetof(struct pm_leaks_asked, command), &command, sizeof command) ||
        !writes(at, &answer, sizeof answer) ||
        !set((uintptr_t)job.door->answer, stack_top, 0, job.piece, 0) || !runs())
        return EVENT_GONE;
    while (true) {
        tracee_nap(LOOK_NS);
        enum event event = look();
        if (event == EVENT_FAULT || event == EVENT_GONE || !reads(at, &answer, sizeof answer))
            return event == EVENT_FAULT ? event : EVENT_GONE;
        if (answer != PM_LEAKS_NONE)
            return event == EVENT_STOP ? event : stop();
        if (event == EVENT_STOP && !runs())
            return EVENT_GONE;
    }
}

// ---- the piece ----------------------------------------------------------------------------------

static bool write_registers(void) {
    static struct vector_state state;
    uint64_t stacks = (uintptr_t)job.asked.stacks, registers = (uintptr_t)job.asked.registers;
    uint64_t each = job.each;
    for (size_t i = 0, n = 0; i < job.halt.count; i++) {
        const struct tracee *t = &job.halt.thread[i];
        if (t->dead)
            continue;
        uint64_t stack = t->regs.rsp, at = registers + n * each;
        if (!writes(stacks + n++ * sizeof stack, &stack, sizeof stack) ||
            !writes(at, &t->regs, sizeof t->regs))
            return false;
        if (!take_state(t->id, &state) || state.len > each - sizeof t->regs ||
            !writes(at + sizeof t->regs, state.bytes, state.len))
            return false;
    }
    return true;
}

static uint64_t round_up(uint64_t bytes) { return (bytes + 4095) & ~4095ull; }

static uint64_t thread_count(void) {
    uint64_t threads = 0;
    for (size_t i = 0; i < job.halt.count; i++)
        threads += !job.halt.thread[i].dead;
    return threads;
}

// There may be more threads later.
static uint64_t size_piece(void) {
    job.each = (sizeof job.worker->regs + job.state.len + 63) & ~63ull;
    job.room = 2 * thread_count() + 64;
    return round_up(sizeof job.asked) + round_up(job.room * sizeof(uint64_t)) +
           round_up(job.room * job.each) +
           round_up(PM_LEAKS_SITE_ROOM * sizeof(struct pm_leak_row)) + STACK;
}

// Fills the piece: the question, the stack pointers, the registers; then empty, the sites and the
// stack. False: the process is gone.
static bool ask(void) {
    uint64_t stacks = job.piece + round_up(sizeof job.asked);
    uint64_t registers = stacks + round_up(job.room * sizeof(uint64_t));
    uint64_t sites = registers + round_up(job.room * job.each), threads = thread_count();
    job.mine = patience_now_ns() << 20 ^ (uint64_t)getpid();
    job.asked = (struct pm_leaks_asked){.threads = (uint32_t)threads,
                                        .piece_bytes = job.piece_bytes,
                                        .mine = job.mine,
                                        .stacks = (const uintptr_t *)(uintptr_t)stacks,
                                        .registers = (const void *)(uintptr_t)registers,
                                        .register_bytes = threads * job.each,
                                        .sites = (struct pm_leak_row *)(uintptr_t)sites};
    return writes(job.piece, &job.asked, sizeof job.asked) && write_registers();
}

// The same threads and others.
static bool ask_again(void) {
    struct pm_leaks_asked *a = &job.asked;
    a->threads = (uint32_t)thread_count();
    a->register_bytes = a->threads * job.each;
    return a->threads <= job.room &&
           writes(job.piece + offsetof(struct pm_leaks_asked, threads), &a->threads,
                  sizeof a->threads) &&
           writes(job.piece + offsetof(struct pm_leaks_asked, register_bytes), &a->register_bytes,
                  sizeof a->register_bytes) &&
           write_registers();
}

static enum pm_leaks_answer work_in_piece(uint32_t command) {
    uint64_t top = job.piece + job.piece_bytes;
    if (command == PM_LEAKS_FIND ? !ask() : command == PM_LEAKS_FINISH && !ask_again())
        return failed("its registers cannot be read");
    enum event event = answer(command, top);
    if (event == EVENT_FAULT) {
        answer(PM_LEAKS_UNDO, top - STACK / 2);
        return failed("some of its memory could not be read; nothing was changed");
    }
    if (event != EVENT_STOP)
        return failed("it has ended");
    if (command == PM_LEAKS_END)
        return PM_LEAKS_FOUND;
    if (!reads(job.piece, &job.out->found, sizeof job.out->found))
        return failed("it has ended");
    if (job.out->found.answer == PM_LEAKS_FAILED)
        return failed(job.out->found.err.text);
    return (enum pm_leaks_answer)job.out->found.answer;
}

static enum pm_leaks_answer with_piece(uint32_t command) {
    if (command == PM_LEAKS_FIND) {
        job.piece_bytes = size_piece();
        job.piece = (uint64_t)call(SYS_mmap, 0, job.piece_bytes);
        if (job.piece >= -4096ull)
            return failed("it can get no memory to mark with");
    }
    enum pm_leaks_answer found = work_in_piece(command);
    if (found == PM_LEAKS_BEGUN)
        job.beside = true;
    if (!job.beside || command == PM_LEAKS_END) {
        call(SYS_munmap, job.piece, job.piece_bytes);
        job.beside = false;
    }
    return found;
}

// The worker is stopped, all others too, none of them inside of the allocator.
static enum pm_leaks_answer work(uint32_t command) {
    struct tracee *t = job.worker;
    job.running = *t;
    if (!take_state(t->id, &job.state) || !tracee_block(t, &job.mask))
        return failed("its registers cannot be read");
    enum pm_leaks_answer found = with_piece(command);
    give_state(t->id, &job.state);
    tracee_unblock(t, job.mask);
    while (ptrace(PTRACE_SETREGS, t->id, NULL, &t->regs) != 0 && errno != ESRCH)
        tracee_nap(LOOK_NS);
    return found;
}

// ---- the guardian -------------------------------------------------------------------------------

// It may have executed a program: then there is other memory, and another door, or none.
static bool is_the_same(void) {
    uint64_t mine = 0;
    struct pm_leaks_door door;
    int memory = program_memory(job.pid, O_RDWR);
    if (memory < 0)
        return false;
    close(job.memory);
    job.memory = memory;
    return reads((uintptr_t)job.door->self, &door, sizeof door) &&
           memcmp(&door, job.door, sizeof door) == 0 &&
           (!job.beside ||
            (reads(job.piece + offsetof(struct pm_leaks_asked, mine), &mine, sizeof mine) &&
             mine == job.mine));
}

static bool is_alive(void) {
    char state = pm_os_state(job.pid);
    return state && !strchr("ZX", state);
}

// A thread that has come out may have made another one. Where a marker runs, it is to be ended: so
// if threads cannot be stopped now, that is tried again.
static enum pm_leaks_answer try(uint32_t command, long patience_ns) {
    uint64_t began = patience_now_ns();
    enum pm_leaks_answer found = PM_LEAKS_FAILED;
    struct halt *h = &job.halt;
    job.free_ns = 0;
    bool all = false;
    while (!all && halt_begin(h, &job.out->err)) {
        size_t count = h->count;
        found = PM_LEAKS_BUSY;
        if (!let_out((uint64_t)patience_ns))
            break;
        found = PM_LEAKS_FAILED;
        all = halt_begin(h, &job.out->err) && h->count == count;
    }
    if (all && !is_the_same())
        found = failed("it has executed a program");
    else if (all && job.beside && program_is_filtered(job.pid))
        found = failed("it has a seccomp filter now, which may end it for what the tool needs");
    else if (all)
        found = choose() ? work(command) : PM_LEAKS_BUSY;
    else if (h->contended || (job.beside && is_alive()))
        found = PM_LEAKS_BUSY;
    halt_end(h);
    uint64_t held = patience_now_ns() - began - job.free_ns;
    job.held_ns = held > job.held_ns ? held : job.held_ns;
    return found;
}

static bool is_wanted(int tool) {
    char byte;
    return recv(tool, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0;
}

// `wanted`: by whom; -1: it is to be done whoever still wants it.
static enum pm_leaks_answer try_for_long(uint32_t command, int wanted) {
    uint64_t end = patience_now_ns() + PATIENCE_MS * 1000000ull;
    enum pm_leaks_answer found = PM_LEAKS_BUSY;
    long patience = TRY_NS;
    while ((wanted < 0 || is_wanted(wanted)) && (found = try(command, patience)) == PM_LEAKS_BUSY &&
           patience_now_ns() < end) {
        tracee_nap(patience);
        patience = patience < MOST_TRY_NS ? patience * 2 : patience;
    }
    return found;
}

// Until it has marked, or has ended; or the process has. False: nobody wants it any more.
static bool await_marks(int tool) {
    struct pm_marker_seen seen;
    uint64_t at = job.piece + offsetof(struct pm_leaks_asked, marker);
    while (reads(at, &seen, sizeof seen) && seen.alive && seen.stage == PM_MARKER_MARKS) {
        tracee_nap(MARKER_NS);
        if (!is_wanted(tool))
            return false;
    }
    return true;
}

// It ends the record. The process is not halted again while it does.
static void await_end(void) {
    struct pm_marker_seen seen;
    uint64_t at = job.piece + offsetof(struct pm_leaks_asked, marker);
    uint64_t end = patience_now_ns() + PATIENCE_MS * 1000000ull;
    while (reads(at, &seen, sizeof seen) && seen.alive && patience_now_ns() < end)
        tracee_nap(MARKER_NS);
}

static enum pm_leaks_answer finish(int tool) {
    enum pm_leaks_answer found = PM_LEAKS_BEGUN;
    while (found == PM_LEAKS_BEGUN && await_marks(tool))
        found = try_for_long(PM_LEAKS_FINISH, -1);
    if (found == PM_LEAKS_FOUND)
        await_end();
    struct pm_error err = job.out->err;
    try_for_long(PM_LEAKS_END, -1);
    job.out->err = err;
    return found;
}

static void find(int tool) {
    enum pm_leaks_answer found = try_for_long(PM_LEAKS_FIND, tool);
    if (found == PM_LEAKS_BEGUN)
        found = finish(tool);
    if (found == PM_LEAKS_BUSY)
        found = failed(job.halt.contended
                           ? "another tool has stopped it; nothing was changed: try again"
                           : "its threads do not come out of the allocator; nothing was changed: "
                             "try again");
    job.out->found.answer = found;
    job.out->held_ns = job.held_ns;
}

static void send_all(int to, const void *from, size_t len) {
    for (const char *at = from; len > 0;) {
        ssize_t put = send(to, at, len, MSG_NOSIGNAL);
        if (put <= 0)
            return; // nobody reads any more
        at += put;
        len -= (size_t)put;
    }
}

static bool receive_all(int from, void *to, size_t len) {
    for (char *at = to; len > 0;) {
        ssize_t got = read(from, at, len);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        at += got;
        len -= (size_t)got;
    }
    return true;
}

static void work_apart(int end, void *unused) {
    (void)unused;
    job.memory = program_memory(job.pid, O_RDWR);
    if (job.memory < 0)
        job.out->found.answer = failed(pm_strerror(errno));
    else
        find(end);
    send_all(end, job.out, sizeof *job.out);
}

void remote_leaks(pid_t pid, const struct pm_leaks_door *door, struct remote_leaks *out) {
    struct guardian guardian;
    job.pid = pid;
    job.halt.pid = pid;
    job.door = door;
    job.out = out;
    if (!guardian_begin(&guardian, work_apart, NULL)) {
        out->found.answer = failed(pm_strerror(errno));
        return;
    }
    if (!receive_all(guardian.end, out, sizeof *out))
        out->found.answer = failed("the process of this tool that has held it was killed; the "
                                   "program may be broken");
    guardian_end(&guardian);
}
