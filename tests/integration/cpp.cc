// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// An ordinary C++ program whose state is in globals with constructors and destructors. It knows
// nothing of persistence. Each run adds one to every container and prints how many elements there
// are.
//
//     cpp [END]     END: return (the default), exit, thread, quick, kill, signal, busy
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <unistd.h>
#include <unordered_map>
#include <vector>

namespace app {
std::map<std::string, std::vector<int>> store;
struct Shape {
    virtual ~Shape() = default;
    virtual int sides() const = 0;
};
std::vector<std::unique_ptr<Shape>> shapes;
std::string title;
} // namespace app

namespace {
struct Square : app::Shape {
    int sides() const override { return 4; }
};
struct Triangle : app::Shape {
    int sides() const override { return 3; }
};
std::unordered_map<int, std::string> names; // file-local
std::unique_ptr<std::map<int, int>> owner;

// How often the function-local static was constructed in this process.
int constructed;
struct Log {
    std::vector<std::string> line{"first"};
    Log() { constructed++; }
    ~Log() { line.clear(); }
};
} // namespace

// Outside the unnamed namespace, so that its symbol is short.
Log &log_of() {
    static Log log;
    return log;
}

// The program's own handler still reaches the heap.
static void last_entry() { app::store["exit"].push_back(1); }

static int add() {
    auto &runs = app::store["runs"];
    int n = static_cast<int>(runs.size());
    for (int i = 0; i < n; i++)
        if (runs[i] != i * i)
            return -1;
    runs.push_back(n * n);
    for (int i = 0; i < 100; i++)
        app::store["key " + std::to_string(n * 100 + i)] = {i};
    app::title = app::title.empty()
                     ? "short"
                     : app::title + (n < 2 ? "!" : " and no longer in the object itself");
    names[n] = "a name that is too long to be stored in the object, " + std::to_string(n);
    if (!owner)
        owner = std::make_unique<std::map<int, int>>();
    (*owner)[n] = n;
    if (n % 2)
        app::shapes.push_back(std::make_unique<Triangle>());
    else
        app::shapes.push_back(std::make_unique<Square>());
    log_of().line.push_back("line " + std::to_string(n));
    return n + 1;
}

static void end(const char *how) {
    if (!strcmp(how, "exit"))
        exit(0);
    if (!strcmp(how, "quick"))
        quick_exit(0);
    if (!strcmp(how, "kill"))
        raise(SIGKILL);
    if (!strcmp(how, "thread"))
        std::thread([] { exit(0); }).join();
    if (!strcmp(how, "signal")) {
        signal(SIGTERM, [](int) { exit(0); });
        raise(SIGTERM);
    }
    if (!strcmp(how, "busy")) // threads still work when main returns
        for (int i = 0; i < 3; i++)
            std::thread([] {
                for (;;)
                    std::string(100, 'x').append(5000, 'y');
            }).detach();
}

int main(int argc, char **argv) {
    atexit(last_entry);
    int count = add(), sides = 0;
    for (auto &shape : app::shapes)
        sides += shape->sides();
    printf("runs=%d keys=%zu names=%zu owned=%zu shapes=%zu sides=%d exits=%zu lines=%zu built=%d "
           "title=%s\n",
           count, app::store.size(), names.size(), owner->size(), app::shapes.size(), sides,
           app::store["exit"].size(), log_of().line.size(), constructed, app::title.c_str());
    fflush(stdout);
    end(argc > 1 ? argv[1] : "return");
    return 0;
}
