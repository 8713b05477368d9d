// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Boost's lock-free stack: a count in the upper 16 bits of each pointer.
#include <boost/lockfree/stack.hpp>
#include <vector>

#include "container.h"

typedef boost::lockfree::stack<size_t> stack;
stack *store;

static void fill(size_t n) {
    store = new stack(0);
    for (size_t i = 0; i < n; i++)
        store->push(i);
}

static int check(size_t n) {
    std::vector<size_t> all;
    size_t value;
    while (all.size() <= n && store->pop(value))
        all.push_back(value);
    for (size_t i = 0; i < all.size(); i++)
        if (all[i] != n - 1 - i)
            return 0;
    for (size_t i = all.size(); i-- > 0;)
        store->push(all[i]);
    return all.size() == n;
}
