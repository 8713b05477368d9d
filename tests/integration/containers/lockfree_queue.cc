// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Boost's lock-free queue: a count in the upper 16 bits of each pointer.
#include <boost/lockfree/queue.hpp>

#include "container.h"

typedef boost::lockfree::queue<size_t *> queue;
queue *store;

static void fill(size_t n) {
    store = new queue(0);
    for (size_t i = 0; i < n; i++)
        store->push(new size_t(i));
}

// Each goes round once.
static int check(size_t n) {
    size_t *value;
    for (size_t i = 0; i < n; i++) {
        if (!store->pop(value) || *value != i)
            return 0;
        store->push(value);
    }
    return 1;
}
