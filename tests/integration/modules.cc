// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Libraries that are loaded and unloaded while threads run. They have thread-local data, for which
// the loader asks malloc, and thread-local objects whose constructors and destructors allocate.
// Built as a library (LIBRARY) and as the program that loads copies of it: `modules MODE ROUNDS
// LIBRARY...`.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#ifdef LIBRARY
namespace {
// Leaves memory to its destructor, which allocates again. Both run while the thread ends.
struct Words {
    std::vector<std::string> list;
    Words() {
        for (int i = 0; i < 50; i++)
            list.push_back(std::string(static_cast<size_t>(10 + i * 20), 'w'));
    }
    ~Words() {
        std::vector<std::string> other(list.rbegin(), list.rend());
        for (const auto &word : other)
            if (word.find_first_not_of('w') != std::string::npos)
                abort();
    }
};
thread_local Words words;
thread_local char
    large[100000]; // the loader takes a block of this size per thread that touches it
thread_local long counter = 42;
} // namespace

extern "C" long module_touch() {
    for (size_t i = 0; i < sizeof large; i += 1000)
        if (large[i] != static_cast<char>(counter == 42 ? 0 : 7))
            return -1;
    memset(large, 7, sizeof large);
    return static_cast<long>(words.list.size()) * 1000 + counter++;
}
#else
#include <atomic>
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <thread>
#include <unistd.h>

void *keep;

namespace {
using touch_fn = long();

void wrong(const char *what) {
    fprintf(stderr, "modules: %s\n", what);
    _exit(3);
}

long number(const char *file, const char *name) {
    char line[512];
    long value = 0;
    FILE *in = fopen(file, "r");
    while (fgets(line, sizeof line, in))
        if (!name)
            value++;
        else if (strncmp(line, name, strlen(name)) == 0)
            value = atol(line + strlen(name));
    fclose(in);
    return value;
}

void say_size(const char *when) {
    malloc_trim(0);
    struct mallinfo2 m = mallinfo2();
    printf("%s rss=%ld maps=%ld used=%zu\n", when, number("/proc/self/status", "VmRSS:"),
           number("/proc/self/maps", nullptr), m.uordblks + m.hblkhd);
}

struct Loaded {
    void *handle;
    touch_fn *touch;
};

std::vector<Loaded> load(int count, char **names) {
    std::vector<Loaded> all;
    for (int i = 0; i < count; i++) {
        Loaded l{dlopen(names[i], RTLD_NOW | RTLD_LOCAL), nullptr};
        if (!l.handle)
            wrong(dlerror());
        l.touch = reinterpret_cast<touch_fn *>(dlsym(l.handle, "module_touch"));
        all.push_back(l);
    }
    return all;
}

void touch_all(const std::vector<Loaded> &all, long want) {
    for (const auto &l : all)
        if (l.touch() != want)
            wrong("thread-local data of a module are not what they were");
}

// A thread that is older than the libraries uses them as they come and go, and so do threads that
// start while they are loaded. A library stays loaded while a thread-local object of it waits for
// its destructor, so the thread is a new one in each round.
void round(int count, char **names) {
    std::atomic<int> step{0};
    std::vector<Loaded> all;
    std::thread before([&] {
        while (step.load() < 1)
            std::this_thread::yield();
        touch_all(all, 50042);
        step.store(2);
        while (step.load() < 3)
            std::this_thread::yield();
        touch_all(all, 50043);
    });
    all = load(count, names);
    step.store(1);
    while (step.load() < 2)
        std::this_thread::yield();
    std::thread after([&] { touch_all(all, 50042); });
    after.join();
    step.store(3);
    before.join();
    for (auto &l : all)
        if (dlclose(l.handle) != 0)
            wrong(dlerror());
}

// The main thread touches no thread-local object, so that it keeps no library loaded.
void plain_round(int count, char **names) {
    for (auto &l : load(count, names))
        if (dlclose(l.handle) != 0)
            wrong(dlerror());
}

// Threads that end in all their destructors while the library stays loaded.
void thread_rounds(int rounds, int count, char **names) {
    auto all = load(count, names);
    for (int i = 0; i < rounds; i++) {
        std::vector<std::thread> crowd;
        for (int k = 0; k < 4; k++)
            crowd.emplace_back([&] { touch_all(all, 50042); });
        for (auto &thread : crowd)
            thread.join();
        if (i == rounds / 10)
            say_size("before");
    }
}
} // namespace

int main(int argc, char **argv) {
    if (argc < 4)
        wrong("which libraries?");
    const char *mode = argv[1];
    int rounds = atoi(argv[2]), count = argc - 3;
    static char buffer[4096];
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    keep = malloc(100);
    if (!strcmp(mode, "threads"))
        thread_rounds(rounds, count, argv + 3);
    else
        for (int i = 0; i < rounds; i++) {
            (!strcmp(mode, "plain") ? plain_round : round)(count, argv + 3);
            if (i == rounds / 10)
                say_size("before");
        }
    say_size("after");
    malloc_info(0, stdout);
    return 0;
}
#endif
