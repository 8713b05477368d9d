// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Locks of C++. The first run is killed while it holds all of them, and while a function-local
// static is under construction.
//
//   locks_cxx hold|use
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <unistd.h>

struct Locks {
    std::mutex mutex;
    std::recursive_mutex recursive;
    std::timed_mutex timed;
    std::shared_mutex shared;
    std::shared_timed_mutex shared_timed;
    std::once_flag once;
    int runs = 0;
};

Locks *in_heap; // a root
bool hold;

struct Slow {
    int value;
    Slow() {
        if (hold)
            kill(getpid(), SIGKILL);
        value = 42;
    }
};

Slow &slow() {
    static Slow instance; // a root
    return instance;
}

int main(int argc, char **argv) {
    hold = argc > 1 && strcmp(argv[1], "hold") == 0;
    alarm(3);
    if (!in_heap)
        in_heap = new Locks;
    Locks &l = *in_heap;
    l.mutex.lock();
    l.recursive.lock();
    if (!l.timed.try_lock_for(std::chrono::seconds(1)))
        return 1;
    l.shared.lock_shared();
    if (!l.shared_timed.try_lock_for(std::chrono::seconds(1)))
        return 1;
    std::call_once(l.once, [&l] {
        if (hold)
            slow();
        l.runs++;
    });
    printf("ok runs=%d value=%d\n", l.runs, slow().value);
    return 0;
}
