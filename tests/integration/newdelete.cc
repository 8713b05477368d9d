// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// C++ on libc's malloc: every form of new and delete, containers, and exceptions. A global with a
// constructor, which must not wipe what was restored.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

struct alignas(256) Wide {
    char bytes[512];
};

struct Holder {
    int *value;
    Holder() : value(nullptr) { std::vector<int> warm(1000, 1); }
};
Holder holder;
int started = 5;

static int forms() {
    for (int i = 0; i < 1000; i++) {
        std::unique_ptr<int> one(new int(i));
        std::unique_ptr<std::string[]> many(new std::string[10]);
        std::unique_ptr<Wide> wide(new Wide);
        if (reinterpret_cast<std::uintptr_t>(wide.get()) % 256)
            return 1;
        void *raw = ::operator new(100), *quiet = ::operator new(100, std::nothrow);
        void *aligned = ::operator new(100, std::align_val_t(4096));
        if (reinterpret_cast<std::uintptr_t>(aligned) % 4096 || !raw || !quiet)
            return 1;
        ::operator delete(raw, std::size_t(100));
        ::operator delete(quiet, std::nothrow);
        ::operator delete(aligned, std::align_val_t(4096));
    }
    try {
        volatile std::size_t huge = SIZE_MAX / 2;
        ::operator delete(::operator new(huge));
        return 1;
    } catch (const std::bad_alloc &) {
    }
    std::map<std::string, std::string> map;
    for (int i = 0; i < 10000; i++)
        map["key " + std::to_string(i)] = std::string(static_cast<std::size_t>(i % 500), 'x');
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++)
        threads.emplace_back([] {
            std::vector<std::string> v;
            for (int i = 0; i < 10000; i++)
                v.push_back(std::string(static_cast<std::size_t>(i % 200), 'y'));
        });
    for (auto &thread : threads)
        thread.join();
    return map.size() == 10000 ? 0 : 1;
}

int main(int argc, char **argv) {
    if (argc > 1 && !std::strcmp(argv[1], "count")) {
        if (!holder.value)
            holder.value = new int(0);
        std::printf("%d %d\n", ++*holder.value, started++);
        return 0;
    }
    return forms();
}
