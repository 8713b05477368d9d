// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// liburcu's lock-free hash table: flags in the low bits of each pointer. The table names functions
// of the library, so both runs need the same addresses.
#include <urcu/urcu-memb.h>
#include <urcu/rculfhash.h>

#include "container.h"

struct item {
    struct cds_lfht_node node;
    size_t value;
};
struct cds_lfht *store;

static unsigned long hash_of(size_t i) { return i * 0x9e3779b97f4a7c15u >> 16; }

static int match(struct cds_lfht_node *node, const void *key) {
    return caa_container_of(node, struct item, node)->value == *(const size_t *)key;
}

static void fill(size_t n) {
    urcu_memb_register_thread();
    size_t buckets = 1024;
    while (buckets < n / 4)
        buckets *= 2;
    store = cds_lfht_new_flavor(buckets, 1, 0, 0, &urcu_memb_flavor, NULL);
    for (size_t i = 0; i < n; i++) {
        struct item *item = calloc(1, sizeof *item);
        item->value = i;
        urcu_memb_read_lock();
        cds_lfht_add(store, hash_of(i), &item->node);
        urcu_memb_read_unlock();
    }
    urcu_memb_unregister_thread();
}

static int check(size_t n) {
    size_t i = 0;
    urcu_memb_register_thread();
    urcu_memb_read_lock();
    for (; i < n; i++) {
        struct cds_lfht_iter iter;
        cds_lfht_lookup(store, hash_of(i), match, &i, &iter);
        if (!cds_lfht_iter_get_node(&iter))
            break;
    }
    urcu_memb_read_unlock();
    urcu_memb_unregister_thread();
    return i == n;
}
