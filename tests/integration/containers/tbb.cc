// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// oneTBB's containers, with the memory of operator new.
#include <memory>
#include <string>
#include <tbb/concurrent_hash_map.h>
#include <tbb/concurrent_map.h>
#include <tbb/concurrent_queue.h>
#include <tbb/concurrent_unordered_map.h>
#include <tbb/concurrent_vector.h>

#include "container.h"

typedef std::pair<const size_t, std::string> entry;
typedef std::allocator<entry> memory;

struct all {
    tbb::concurrent_hash_map<size_t, std::string, tbb::tbb_hash_compare<size_t>, memory> hash;
    tbb::concurrent_unordered_map<size_t, std::string, std::hash<size_t>, std::equal_to<size_t>,
                                  memory>
        unordered;
    tbb::concurrent_map<size_t, std::string, std::less<size_t>, memory> ordered;
    tbb::concurrent_vector<size_t *, std::allocator<size_t *>> vector;
};
all *store;

static std::string text(size_t i) { return "a string that needs a block: " + std::to_string(i); }

static void fill(size_t n) {
    store = new all;
    for (size_t i = 0; i < n; i++) {
        store->hash.insert({i, text(i)});
        store->unordered.insert({i, text(i)});
        store->ordered.insert({i, text(i)});
        store->vector.push_back(new size_t(i));
    }
}

static int check(size_t n) {
    for (size_t i = 0; i < n; i++) {
        decltype(store->hash)::const_accessor found;
        if (!store->hash.find(found, i) || found->second != text(i))
            return 0;
        auto at = store->unordered.find(i);
        if (at == store->unordered.end() || at->second != text(i))
            return 0;
        auto other = store->ordered.find(i);
        if (other == store->ordered.end() || other->second != text(i) || *store->vector[i] != i)
            return 0;
    }
    return store->hash.size() == n && store->vector.size() == n;
}
