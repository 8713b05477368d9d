// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program whose global container is emptied by its destructor. It ends in difficult company:
// among other threads, in signal handlers, while it is traced.
//
//     ending MODE     prints how many entries there are, adds 100, ends with status 7
//
// Exit status 3: an entry is not whole.
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>

#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

namespace {

const int added = 100;

std::string value_of(int key) {
    return std::string(30 + key % 50, static_cast<char>('a' + key % 26));
}

} // namespace

// In memory that the process shares with its tracer.
struct Late {
    std::atomic<bool> ended, let_go;
} * late;

struct Kept {
    std::map<int, std::string> entries;
    char *volatile block;
    ~Kept() {
        if (late) {
            late->ended = true;
            while (!late->let_go)
                usleep(1000);
            usleep(30000); // for the thread that was let go
        }
        for (auto &entry : entries)
            entry.second.assign(entry.second.size(), '?');
        entries.clear();
        block = new char[1 << 20];
        delete[] block;
    }
} kept;

namespace {

int count() {
    int n = 0;
    for (auto &entry : kept.entries)
        if (entry.first != n++ || entry.second != value_of(entry.first))
            std::exit(3);
    return n;
}

void must(bool good) {
    if (!good) {
        perror("ending");
        _exit(9);
    }
}

std::atomic<int> started, begun;

// The thread calls begin() once it is in the state that the mode asks for.
void begin() { begun++; }

void start(void (*run)()) {
    started++;
    new std::thread(run);
    while (begun < started)
        usleep(100);
}

// Blocks signals by the system call, which can block libc's own signals, too.
void block(uint64_t mask) { must(syscall(SYS_rt_sigprocmask, SIG_BLOCK, &mask, nullptr, 8) == 0); }

volatile long sink;

void churn() {
    begin();
    for (unsigned i = 0;; i++) {
        auto *p = new char[16 + i % 3000];
        memset(p, 1, 16);
        sink = p[3];
        delete[] p;
    }
}

void churn_unheard() {
    block(1ull << 32 | 1ull << 33);
    churn();
}

void churn_deaf() {
    block(~0ull);
    churn();
}

// Stores to one block, again and again.
void scribble() {
    begin();
    auto *p = new volatile char[100];
    for (;;)
        p[5] = p[5] + 1;
}

// The child lives until its parent has ended. Its thread waits for it in the kernel all the time.
void vforks() {
    pid_t parent = getpid();
    begin();
    pid_t child = vfork();
    if (child == 0) {
        while (getppid() == parent)
            usleep(1000);
        _exit(0);
    }
}

// The child lives until its input ends.
void vforks_for_long() {
    char byte;
    begin();
    pid_t child = vfork();
    if (child == 0) {
        while (read(STDIN_FILENO, &byte, 1) > 0) {
        }
        _exit(0);
    }
}

volatile pid_t scribbler;

void traced() {
    scribbler = static_cast<pid_t>(syscall(SYS_gettid));
    scribble();
}

// Holds a lock of the allocator nearly all the time, because it gives pages back.
void traced_locks() {
    begin();
    for (;;) {
        static char *block[200];
        for (auto &p : block) {
            p = new char[40000];
            p[7] = p[20000] = 1;
        }
        for (int i = 0; i < 200; i += 2)
            delete[] block[i];
        scribbler = static_cast<pid_t>(syscall(SYS_gettid));
        malloc_trim(0);
        for (int i = 1; i < 200; i += 2)
            delete[] block[i];
        malloc_trim(0);
    }
}

void scribble_unheard() {
    scribbler = static_cast<pid_t>(syscall(SYS_gettid));
    block(1ull << 32 | 1ull << 33);
    scribble();
}

// The thread meets unwritable memory, if it gets a core in time. It has the signal for that only
// after the program's end.
void delay_fault() {
    int status;
    pid_t met = 0;
    while (!late->ended) {
        if (!met)
            met = waitpid(scribbler, &status, __WALL | WNOHANG);
        usleep(1000);
    }
    must(!met || (met == scribbler && WSTOPSIG(status) == SIGSEGV &&
                  ptrace(PTRACE_CONT, scribbler, 0, SIGSEGV) == 0));
    late->let_go = true;
}

void interrupt() {
    must(ptrace(PTRACE_INTERRUPT, scribbler, 0, 0) == 0);
    must(waitpid(scribbler, nullptr, __WALL) == scribbler);
}

// Another process traces the thread, as a debugger does.
void trace(void (*run)(), void (*at_once)(), void (*then)()) {
    int traced[2];
    char byte;
    must(pipe(traced) == 0 && prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0) <= 0);
    start(run);
    while (!scribbler)
        usleep(100);
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        must(ptrace(PTRACE_SEIZE, scribbler, 0, 0) == 0);
        at_once();
        must(write(traced[1], "", 1) == 1);
        then();
        while (getppid() == parent)
            usleep(1000);
        _exit(0);
    }
    must(read(traced[0], &byte, 1) == 1);
}

void limit(int resource, rlim_t value) {
    rlimit l = {value, RLIM_INFINITY};
    must(getrlimit(static_cast<__rlimit_resource_t>(resource), &l) == 0);
    l.rlim_cur = value;
    must(setrlimit(static_cast<__rlimit_resource_t>(resource), &l) == 0);
}

// A column of /proc/PID/statm: 0 is all that is mapped, 5 is data and stack.
rlim_t mapped_now(int column) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    must(file);
    for (int i = 0; i <= column; i++)
        must(fscanf(file, "%ld", &pages) == 1);
    fclose(file);
    return static_cast<rlim_t>(pages) << 12;
}

// Maps until the kernel allows no more mappings.
void take_mappings() {
    for (int i = 0; i < 1 << 20; i++)
        if (mmap(nullptr, 4096, i % 2 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                 0) == MAP_FAILED)
            return;
    must(false);
}

void leave(int) { exit(7); }

// A signal ends the program in the middle of an allocation, mostly one that takes locks.
void end_in_handler() {
    static char *block[64];
    itimerval in = {};
    signal(SIGALRM, leave);
    in.it_value.tv_usec = 1 + static_cast<suseconds_t>(count() * 7 % 3000);
    must(setitimer(ITIMER_REAL, &in, nullptr) == 0);
    for (unsigned i = 0;; i++) {
        free(block[i % 64]);
        block[i % 64] = static_cast<char *>(malloc(20000 + i % 7 * 100000));
    }
}

void end_on_heap_stack() {
    static ucontext_t here, there;
    const size_t size = 256 << 10;
    must(getcontext(&there) == 0);
    there.uc_stack.ss_sp = malloc(size);
    there.uc_stack.ss_size = size;
    there.uc_link = &here;
    makecontext(
        &there, [] { exit(7); }, 0);
    swapcontext(&here, &there);
}

const struct {
    const char *name;
    void (*run)();
} mode[] = {
    {"alone", [] {}},
    {"churn", [] { start(churn); }},
    {"unheard", [] { start(churn_unheard); }},
    {"deaf", [] { start(churn_deaf); }},
    {"vfork", [] { start(vforks); }},
    {"vfork-stays", [] { start(vforks_for_long); }},
    {"traced", [] { trace(traced, interrupt, [] {}); }},
    {"traced-locks", [] { trace(traced_locks, interrupt, [] {}); }},
    {"late",
     [] {
         void *shared =
             mmap(nullptr, sizeof *late, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
         must(shared != MAP_FAILED);
         late = new (shared) Late();
         trace(
             scribble_unheard, [] {}, delay_fault);
     }},
    {"thousand",
     [] {
         for (int i = 0; i < 1000; i++) // those that rest first: the others take all cores
             start(i < 997 ? [] { begin(); pause(); } : churn);
     }},
    {"space",
     [] {
         start(churn);
         usleep(3000);
         limit(RLIMIT_AS, mapped_now(0));
     }},
    {"no-space",
     [] {
         start(churn);
         limit(RLIMIT_AS, 1 << 20);
     }},
    {"data",
     [] {
         start(churn);
         limit(RLIMIT_DATA, 1 << 20);
     }},
    {"alone-tight",
     [] {
         static char *volatile block = static_cast<char *>(malloc(64 << 20));
         memset(block, 1, 64 << 20);
         limit(RLIMIT_DATA, mapped_now(5) + (8 << 20));
     }},
    {"alone-data", [] { limit(RLIMIT_DATA, 1 << 20); }},
    {"descriptors",
     [] {
         start(churn);
         limit(RLIMIT_NOFILE, 0);
     }},
    {"signals",
     [] {
         start(churn);
         limit(RLIMIT_SIGPENDING, 0);
     }},
    {"mappings",
     [] {
         start(churn);
         take_mappings();
     }},
    {"handler", end_in_handler},
    {"handler-churn",
     [] {
         start(churn);
         start(churn_unheard);
         end_in_handler();
     }},
    {"stack",
     [] {
         start(churn);
         end_on_heap_stack();
     }},
    {"stack-unheard",
     [] {
         start(churn_unheard);
         usleep(3000);
         end_on_heap_stack();
     }},
};

} // namespace

int main(int argc, char **argv) {
    int n = count();
    printf("%d\n", n);
    for (int i = n; i < n + added; i++)
        kept.entries[i] = value_of(i);
    for (auto &m : mode)
        if (argc > 1 && strcmp(argv[1], m.name) == 0) {
            m.run();
            usleep(3000);
            return 7;
        }
    return 2;
}
