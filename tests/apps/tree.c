// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A treap for each shard, updated by copying the path. An update makes new versions of the nodes
// from the root down to the change; old and new version share all other subtrees. One store of the
// root publishes the new version. Only then are the replaced nodes freed. A priority follows from
// the key, so the shape depends on the keys alone.
#include "workload.h"

enum { DEPTH_LIMIT = 256 };

struct node {
    struct node *left, *right;
    struct payload *payload;
    uint32_t key;
};

struct state {
    struct node *root[SHARDS];
    struct model model[SHARDS];
};

struct state *tree_state;

// An update under way: the nodes it replaces, and the payload it displaces.
struct update {
    struct node *replaced[2 * DEPTH_LIMIT];
    unsigned count;
    struct payload *displaced;
};

static void build(void) {
    struct state *s = must(calloc(1, sizeof *s));
    PUBLISH(&tree_state, s);
}

static struct model *model(unsigned s) { return tree_state ? &tree_state->model[s] : NULL; }

// Different keys have different priorities, because odd factors and xor-shifts are invertible.
static uint32_t priority(uint32_t key) {
    key = (key ^ key >> 16) * 0x85ebca6bu;
    key = (key ^ key >> 13) * 0xc2b2ae35u;
    return key ^ key >> 16;
}

static bool walk_node(const struct node *n, int64_t *last, unsigned depth, unsigned s,
                      struct census *c) {
    if (!n)
        return true;
    if (depth >= DEPTH_LIMIT)
        return census_fail(c, "shard %u: deeper than %u", s, DEPTH_LIMIT);
    if (!walk_node(n->left, last, depth + 1, s, c))
        return false;
    if (n->key <= *last)
        return census_fail(c, "shard %u: key %u after %lld", s, n->key, (long long)*last);
    if ((n->left && priority(n->left->key) >= priority(n->key)) ||
        (n->right && priority(n->right->key) >= priority(n->key)))
        return census_fail(c, "shard %u: key %u below one of lower priority", s, n->key);
    *last = n->key;
    census_block(c, n, sizeof *n);
    return census_entry(c, s, n->key, n->payload) && walk_node(n->right, last, depth + 1, s, c);
}

static bool walk(unsigned s, struct census *c) {
    int64_t last = -1;
    if (s == 0)
        census_block(c, tree_state, sizeof *tree_state);
    return walk_node(tree_state->root[s], &last, 0, s, c);
}

static struct node *node_new(uint32_t key, struct payload *p, struct node *left,
                             struct node *right) {
    struct node *n = must(malloc(sizeof *n));
    *n = (struct node){.left = left, .right = right, .payload = p, .key = key};
    return n;
}

static void replaces(struct update *u, struct node *n) {
    if (u->count == 2 * DEPTH_LIMIT)
        die("the tree is too deep");
    u->replaced[u->count++] = n;
}

// Splits a tree into the nodes below `key` and those above it. `key` itself is not in the tree.
static void split(struct update *u, struct node *n, uint32_t key, struct node **low,
                  struct node **high) {
    if (!n) {
        *low = *high = NULL;
        return;
    }
    replaces(u, n);
    struct node *copy = node_new(n->key, n->payload, n->left, n->right);
    if (n->key < key) {
        split(u, n->right, key, &copy->right, high);
        *low = copy;
    } else {
        split(u, n->left, key, low, &copy->left);
        *high = copy;
    }
}

static struct node *merge(struct update *u, struct node *low, struct node *high) {
    if (!low || !high)
        return low ? low : high;
    if (priority(low->key) > priority(high->key)) {
        replaces(u, low);
        return node_new(low->key, low->payload, low->left, merge(u, low->right, high));
    }
    replaces(u, high);
    return node_new(high->key, high->payload, merge(u, low, high->left), high->right);
}

static struct node *with(struct update *u, struct node *n, uint32_t key, struct payload *p) {
    if (!n || priority(key) > priority(n->key)) {
        struct node *fresh = node_new(key, p, NULL, NULL);
        split(u, n, key, &fresh->left, &fresh->right);
        return fresh;
    }
    replaces(u, n);
    if (n->key == key) {
        u->displaced = n->payload;
        return node_new(key, p, n->left, n->right);
    }
    if (key < n->key)
        return node_new(n->key, n->payload, with(u, n->left, key, p), n->right);
    return node_new(n->key, n->payload, n->left, with(u, n->right, key, p));
}

static struct node *without(struct update *u, struct node *n, uint32_t key) {
    if (!n)
        return NULL;
    replaces(u, n);
    if (n->key == key) {
        u->displaced = n->payload;
        return merge(u, n->left, n->right);
    }
    if (key < n->key)
        return node_new(n->key, n->payload, without(u, n->left, key), n->right);
    return node_new(n->key, n->payload, n->left, without(u, n->right, key));
}

static struct payload *publish(unsigned s, struct node *root, struct update *u) {
    PUBLISH(&tree_state->root[s], root);
    while (u->count)
        free(u->replaced[--u->count]);
    return u->displaced;
}

static struct payload *put(unsigned s, uint32_t key, struct payload *p) {
    struct update u;
    u.count = 0;
    u.displaced = NULL;
    return publish(s, with(&u, tree_state->root[s], key, p), &u);
}

static struct payload *drop(unsigned s, uint32_t key) {
    struct update u;
    u.count = 0;
    u.displaced = NULL;
    return publish(s, without(&u, tree_state->root[s], key), &u);
}

int main(int argc, char **argv) {
    static const struct structure tree = {
        .name = "tree",
        .build = build,
        .model = model,
        .walk = walk,
        .put = put,
        .drop = drop,
    };
    return workload_main(&tree, argc, argv);
}
