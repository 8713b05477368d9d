// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Boost.Interprocess's offset_ptr, in Boost's intrusive tree: distances instead of addresses.
#include <boost/interprocess/offset_ptr.hpp>
#include <boost/intrusive/set.hpp>

#include "container.h"

namespace bi = boost::intrusive;
typedef bi::set_base_hook<bi::void_pointer<boost::interprocess::offset_ptr<void>>> hook;

struct node : public hook {
    size_t value;
    explicit node(size_t v) : value(v) {}
    bool operator<(const node &other) const { return value < other.value; }
};

typedef bi::set<node> tree;
tree *store;

static void fill(size_t n) {
    store = new tree;
    for (size_t i = 0; i < n; i++)
        store->insert(*new node(i * 7919 % n));
}

static int check(size_t n) {
    size_t i = 0;
    for (const node &x : *store)
        if (i == n || x.value != i++)
            return 0;
    return i == n;
}
