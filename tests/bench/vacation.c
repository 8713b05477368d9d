// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A travel agency: search trees of cars, flights, rooms and customers, and transactions on them.
// Most transactions make reservations, some remove a customer, some change what is offered. Each
// thread serves its own share of the relations, so the answer does not depend on the order in which
// threads run.
#include "bench.h"

enum { RESOURCES = 3, QUERIES = 5 };

static uint64_t relations = 16384, transactions = 600000, span = 90;

struct reservation {
    struct reservation *next;
    uint64_t resource, price;
};

// A node of a treap: a search tree by key and a heap by rank. The rank is the key's hash.
struct node {
    uint64_t key, rank;
    struct node *child[2];
    uint64_t price;
    struct reservation *reservations; // a customer's reservations
};

struct agency {
    struct node *resources[RESOURCES], *customers;
    uint64_t random, span;
};

static struct node *find(struct node *n, uint64_t key) {
    while (n && n->key != key)
        n = n->child[key > n->key];
    return n;
}

// Splits a tree into the keys below and above `key`, which is not in the tree.
static void split(struct node *n, uint64_t key, struct node **below, struct node **above) {
    while (n) {
        struct node ***side = n->key < key ? &below : &above;
        unsigned inner = n->key < key;
        **side = n;
        *side = &n->child[inner];
        n = n->child[inner];
    }
    *below = *above = NULL;
}

static struct node *insert(struct node **link, uint64_t key, uint64_t price) {
    uint64_t rank = bench_mix(key + 1);
    while (*link && (*link)->rank >= rank)
        link = &(*link)->child[key > (*link)->key];
    struct node *n = bench_block(sizeof *n), *rest = *link;
    *n = (struct node){.key = key, .rank = rank, .price = price};
    split(rest, key, &n->child[0], &n->child[1]);
    return *link = n;
}

static struct node *take(struct node **link, uint64_t key) {
    while (*link && (*link)->key != key)
        link = &(*link)->child[key > (*link)->key];
    struct node *n = *link;
    if (!n)
        return NULL;
    struct node *left = n->child[0], *right = n->child[1];
    while (left && right) {
        struct node **higher = left->rank >= right->rank ? &left : &right;
        *link = *higher;
        link = &(*higher)->child[higher == &left];
        *higher = *link;
    }
    *link = left ? left : right;
    return n;
}

static uint64_t drop_customer(struct node *customer) {
    uint64_t bill = 0;
    while (customer->reservations) {
        struct reservation *r = customer->reservations;
        bill += r->price;
        customer->reservations = r->next;
        bench_free(r);
    }
    bench_free(customer);
    return bill;
}

static uint64_t reserve(struct agency *a) {
    struct node *best[RESOURCES] = {NULL};
    uint64_t answer = 0, customer_key = bench_below(&a->random, a->span);
    for (unsigned q = 0; q < QUERIES; q++) {
        unsigned kind = (unsigned)bench_below(&a->random, RESOURCES);
        struct node *n = find(a->resources[kind], bench_below(&a->random, a->span));
        if (n && (!best[kind] || n->price > best[kind]->price))
            best[kind] = n;
    }
    for (unsigned kind = 0; kind < RESOURCES; kind++) {
        if (!best[kind])
            continue;
        struct node *customer = find(a->customers, customer_key);
        if (!customer)
            customer = insert(&a->customers, customer_key, 0);
        struct reservation *r = bench_block(sizeof *r);
        *r = (struct reservation){customer->reservations, best[kind]->key, best[kind]->price};
        customer->reservations = r;
        answer += r->price;
    }
    return answer;
}

static uint64_t change_offer(struct agency *a) {
    uint64_t answer = 0;
    for (unsigned q = 0; q < QUERIES; q++) {
        struct node **tree = &a->resources[bench_below(&a->random, RESOURCES)];
        uint64_t key = bench_below(&a->random, a->span), price = bench_below(&a->random, 500);
        struct node *n = find(*tree, key);
        answer += 7 * (n != NULL);
        if (!n)
            insert(tree, key, price);
        else if (price % 2)
            n->price = price;
        else
            bench_free(take(tree, key));
    }
    return answer;
}

static uint64_t drop_tree(struct node *n) {
    if (!n)
        return 0;
    uint64_t answer = drop_tree(n->child[0]) + drop_tree(n->child[1]) + bench_mix(n->key);
    return answer + n->price + drop_customer(n);
}

static uint64_t work(unsigned worker) {
    uint64_t answer = 0, mine = bench_part(relations, worker);
    struct agency a = {.random = bench_stream(worker), .span = mine * span / 100 + 1};
    for (unsigned kind = 0; kind < RESOURCES; kind++)
        for (uint64_t key = 0; key < mine; key++)
            insert(&a.resources[kind], key, bench_below(&a.random, 500));
    for (uint64_t i = bench_part(transactions, worker); i > 0; i--) {
        uint64_t kind = bench_below(&a.random, 100);
        if (kind < 80) {
            answer += reserve(&a);
        } else if (kind < 90) {
            struct node *customer = take(&a.customers, bench_below(&a.random, a.span));
            answer += customer ? drop_customer(customer) : 0;
        } else {
            answer += change_offer(&a);
        }
    }
    for (unsigned kind = 0; kind < RESOURCES; kind++)
        answer += drop_tree(a.resources[kind]);
    return answer + drop_tree(a.customers);
}

int main(int argc, char **argv) {
    static const struct bench_option options[] = {
        {'r', "relations of each kind, all threads together", &relations},
        {'n', "transactions, all threads together", &transactions},
        {'q', "percentage of the relations that queries look at", &span},
        {0}};
    bench_begin(argc, argv, NULL, options);
    uint64_t answer = 0;
    double seconds = bench_run((unsigned)bench_threads, work, &answer);
    return bench_report(transactions, seconds, answer);
}
