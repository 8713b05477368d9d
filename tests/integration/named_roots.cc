// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc.hpp: roots by name and type, and containers of std::pmr in them.
//
//   named_roots things         makes and drops roots in two threads, for ever; first checks all
//   named_roots tally [N]      appends the next number to each container, for ever or N times
//   named_roots look          checks the roots that are there, and says how many they are
//   named_roots whole          checks what the tallies have, prints the number
//   named_roots other|find|drop|slot|again        what is refused
#include "preload/pmalloc.hpp"

#include <array>
#include <cstdio>
#include <deque>
#include <list>
#include <map>
#include <memory_resource>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {

int failed(const std::string &what) {
    std::printf("wrong: %s\n", what.c_str());
    return 1;
}

// ---- roots that come and go

enum { THINGS = 24, NUMBERS = 300 };

struct thing {
    long mark;
    std::string text;
    std::pmr::vector<long> numbers{pm::resource(PMALLOC_POINTER_FREE)};
    std::unique_ptr<std::map<long, std::string>> more;

    explicit thing(long m)
        : mark(m), text(200, static_cast<char>('a' + m % 26)),
          more(new std::map<long, std::string>) {
        for (long i = 0; i < NUMBERS; i++)
            numbers.push_back(m * i);
        (*more)[m] = text;
    }
    ~thing() { mark = -1; }
    bool is_whole(long m) const {
        bool good = mark == m && text == std::string(200, static_cast<char>('a' + m % 26));
        for (long i = 0; good && i < NUMBERS; i++)
            good = numbers.at(static_cast<std::size_t>(i)) == m * i;
        return good && numbers.size() == NUMBERS && more->at(m) == text;
    }
};

std::string name_of(long number) { return "thing " + std::to_string(number); }

void change_things(long first) {
    for (unsigned long round = 1;; round++) {
        long number = first + static_cast<long>(round * 7 % (THINGS / 2)) * 2;
        if (!pm::drop_root<thing>(name_of(number)))
            pm::root<thing>(name_of(number), number);
    }
}

int things(bool change) {
    int there = 0;
    for (long number = 0; number < THINGS; number++)
        if (const thing *found = pm::find_root<thing>(name_of(number))) {
            if (!found->is_whole(number))
                return failed(name_of(number));
            there++;
        }
    std::printf("ok %d\n", there);
    std::fflush(stdout);
    if (change) {
        std::thread other(change_things, 1);
        change_things(0);
    }
    return 0;
}

// ---- containers

struct tally {
    using resource = std::pmr::memory_resource;
    resource *plain = pm::resource(), *texts = pm::resource(PMALLOC_POINTER_FREE);
    std::pmr::vector<long> numbers{texts};
    std::pmr::list<std::pmr::string> strings{plain};
    std::pmr::map<std::pmr::string, std::pmr::vector<long>> by_name{plain};
    std::pmr::unordered_map<long, std::pmr::string> by_number{plain};
    std::pmr::deque<long> queue{plain};
    std::vector<long, pm::allocator<long>> own;

    static std::string text(long n) { return "a text that is long: " + std::to_string(n); }
    void add() {
        long n = static_cast<long>(numbers.size()) + 1;
        numbers.push_back(n);
        strings.emplace_back(text(n));
        by_name[std::pmr::string(text(n % 10), plain)].push_back(n);
        by_number.emplace(n, text(n));
        queue.push_back(n);
        if (queue.size() > 50)
            queue.pop_front();
        own.push_back(n);
    }
    bool is_whole() const {
        long n = 0, named = 0;
        bool good = strings.size() == numbers.size() && by_number.size() == numbers.size() &&
                    own.size() == numbers.size();
        auto next = strings.begin();
        for (long number : numbers) {
            auto found = by_number.find(number);
            good = good && number == ++n && *next++ == text(n).c_str() &&
                   found != by_number.end() && found->second == text(n).c_str() &&
                   own[static_cast<std::size_t>(n - 1)] == n;
        }
        for (auto &[name, list] : by_name)
            for (long number : list) {
                good = good && name == text(number % 10).c_str();
                named++;
            }
        long first = n > 50 ? n - 49 : 1;
        for (long number : queue)
            good = good && number == first++;
        return good && named == n && first == n + 1;
    }
};

int count(long times) {
    auto &all = pm::root<tally>();
    if (!all.is_whole())
        return failed("the tally");
    for (long i = 0; i < times; i++) {
        all.add();
        std::printf("%zu\n", all.numbers.size());
        std::fflush(stdout);
    }
    return 0;
}

int whole() {
    const auto *all = pm::find_root<tally>();
    if (!all || !all->is_whole() || *all->plain != *pm::resource() || *all->plain == *all->texts)
        return failed("the tally");
    std::printf("%zu\n", all->numbers.size());
    return 0;
}

// ---- what is refused

struct large {
    std::array<char, 100> bytes;
};
struct alignas(64) aligned {
    char bytes[64];
};
struct throwing {
    std::string text = std::string(1000, 'x');
    throwing() { throw std::runtime_error("a constructor that throws"); }
};
struct inner {
    int number = 7;
};
struct outer {
    inner *other = &pm::root<inner>();
    int number = 8;
};

template <class F> std::string thrown_by(F f) {
    try {
        f();
    } catch (const std::exception &e) {
        return e.what();
    }
    return "nothing";
}

// Whoever comes first makes it; the others wait until it is whole.
bool is_one_for_all_threads() {
    std::array<thing *, 8> seen = {};
    std::vector<std::thread> threads;
    for (auto &one : seen)
        threads.emplace_back([&one] { one = &pm::root<thing>("shared", 5L); });
    for (auto &thread : threads)
        thread.join();
    for (const thing *one : seen)
        if (one != seen[0] || !one->is_whole(5))
            return false;
    return true;
}

int basics() {
    if (!is_one_for_all_threads())
        return failed("a root for all threads");
    int &number = pm::root<int>("number", 41);
    if (&pm::root<int>("number", 5) != &number || *pm::find_root<int>("number") != number)
        return failed("a root that is there");
    number++;
    std::string odd("odd\0name", 8), empty;
    pm::root<long>(odd, 3L);
    pm::root<long>(empty, 4L);
    if (pm::find_root<long>("odd") || *pm::find_root<long>(odd) != 3 ||
        *pm::find_root<long>(empty) != 4)
        return failed("names");
    if (reinterpret_cast<std::uintptr_t>(&pm::root<aligned>()) % 64 != 0)
        return failed("alignment");
    if (pm::root<outer>().other != pm::find_root<inner>() || pm::root<outer>().other->number != 7)
        return failed("a root within a root");
    std::string said = thrown_by([] { pm::root<throwing>("throws"); });
    if (said != "a constructor that throws" || pm::find_root<throwing>("throws"))
        return failed(said);
    if (!pm::drop_root<long>(odd) || pm::drop_root<long>(odd) || pm::find_root<long>(odd))
        return failed("a root that is dropped");
    std::printf("number %d\n", number);
    return 0;
}

int refused(const std::string &what) {
    std::string said;
    if (what == "other")
        said = thrown_by([] { pm::root<large>("number"); });
    else if (what == "find")
        said = thrown_by([] { pm::find_root<large>("number"); });
    else if (what == "drop")
        said = thrown_by([] { pm::drop_root<unsigned>("number"); });
    else if (what == "slot")
        pmalloc_set_root(pm::names_slot, std::calloc(1, 64));
    else
        said = thrown_by([] { pm::root<int>("number"); });
    std::printf("%s\n", said.c_str());
    return 0;
}

} // namespace

int main(int argc, char **argv) {
    std::string what = argc > 1 ? argv[1] : "basics";
    if (what == "things" || what == "look")
        return things(what == "things");
    if (what == "tally")
        return count(argc > 2 ? std::atol(argv[2]) : 1L << 40);
    if (what == "whole")
        return whole();
    if (what == "basics")
        return basics();
    return refused(what);
}
