// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// libcds's Michael set and skip list under hazard pointers: flags in the low bits of pointers.
#include <cds/gc/hp.h>
#include <cds/init.h>

#include <cds/container/michael_kvlist_hp.h>
#include <cds/container/michael_map.h>
#include <cds/container/skip_list_map_hp.h>

#include "container.h"

typedef cds::container::MichaelKVList<cds::gc::HP, size_t, size_t> bucket;
typedef cds::container::MichaelHashMap<cds::gc::HP, bucket> hash_map;
typedef cds::container::SkipListMap<cds::gc::HP, size_t, size_t> skip_map;

struct all {
    hash_map hash;
    skip_map skip;
    explicit all(size_t n) : hash(n, 4) {}
};
all *store;

// The library's own state belongs to the process.
struct library {
    cds::gc::HP *hazards;
    library() {
        cds::Initialize();
        hazards = new cds::gc::HP(70);
        cds::threading::Manager::attachThread();
    }
};

static void begin() { static library once; }

static void fill(size_t n) {
    begin();
    store = new all(n);
    for (size_t i = 0; i < n; i++) {
        store->hash.insert(i, i + 1);
        store->skip.insert(i * 7919 % n, i);
    }
}

static int check(size_t n) {
    begin();
    size_t seen = 0;
    for (size_t i = 0; i < n; i++) {
        hash_map::guarded_ptr found = store->hash.get(i);
        if (!found || found->second != i + 1)
            return 0;
        seen += store->skip.contains(i);
    }
    return seen == n;
}
