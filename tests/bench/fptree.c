// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A key-value store of B+-trees with 8-byte keys. A leaf holds, unsorted, for each key a
// fingerprint, the key and a pointer to a pair of 128 bytes. After a warm-up that is not timed,
// half of the operations insert and half delete, or as the options say. Leaves and pairs come from
// the allocator under test. Inner nodes come from malloc, because they can be made anew from the
// leaves. Threads share the trees, but each has its own keys, so the answer does not depend on the
// order in which they run.
#include "bench.h"

enum { FANOUT = 64, TREES = 64, DEPTH = 16, PAIR = 128 };

struct leaf {
    uint64_t used; // bit i is set while slot i holds a pair
    struct leaf *previous, *next;
    uint8_t prints[FANOUT];
    uint64_t keys[FANOUT];
    void *pairs[FANOUT];
};

// keys[i] is the lower bound of child i and the upper bound of child i - 1. keys[0] is not used.
struct inner {
    unsigned count;
    uint64_t keys[FANOUT];
    void *children[FANOUT];
};

static struct tree {
    pthread_mutex_t lock;
    unsigned height; // 0 when the root is a leaf
    void *root;
} trees[TREES];

static uint64_t warm = 400000, operations = 1500000, inserts = 50, finds;

static uint8_t print_of(uint64_t key) { return (uint8_t)(bench_mix(key) >> 56); }

static struct leaf *leaf_new(void) {
    struct leaf *l = bench_block(sizeof *l);
    l->used = 0;
    l->previous = l->next = NULL;
    return l;
}

static struct inner *inner_new(void) {
    struct inner *n = malloc(sizeof *n);
    if (!n)
        bench_exit(BENCH_WRONG, "out of memory");
    n->count = 0;
    return n;
}

static int leaf_find(const struct leaf *l, uint64_t key) {
    uint8_t print = print_of(key);
    for (uint64_t rest = l->used; rest; rest &= rest - 1) {
        int i = __builtin_ctzll(rest);
        if (l->prints[i] == print && l->keys[i] == key)
            return i;
    }
    return -1;
}

static void leaf_put(struct leaf *l, uint64_t key, void *pair) {
    int i = __builtin_ctzll(~l->used);
    l->prints[i] = print_of(key);
    l->keys[i] = key;
    l->pairs[i] = pair;
    l->used |= 1ULL << i;
}

static int key_order(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

// Moves the upper half of a full leaf into a new leaf. *bound gets the smallest key of the new
// leaf.
static struct leaf *leaf_split(struct leaf *l, uint64_t *bound) {
    uint64_t sorted[FANOUT];
    memcpy(sorted, l->keys, sizeof sorted);
    qsort(sorted, FANOUT, sizeof sorted[0], key_order);
    *bound = sorted[FANOUT / 2];
    struct leaf *upper = leaf_new();
    for (int i = 0; i < FANOUT; i++)
        if (l->keys[i] >= *bound) {
            leaf_put(upper, l->keys[i], l->pairs[i]);
            l->used &= ~(1ULL << i);
        }
    upper->previous = l;
    upper->next = l->next;
    if (l->next)
        l->next->previous = upper;
    l->next = upper;
    return upper;
}

static struct inner *inner_split(struct inner *n, uint64_t *bound) {
    struct inner *upper = inner_new();
    unsigned half = n->count / 2;
    upper->count = n->count - half;
    memcpy(upper->keys, n->keys + half, upper->count * sizeof n->keys[0]);
    memcpy(upper->children, n->children + half, upper->count * sizeof n->children[0]);
    n->count = half;
    *bound = upper->keys[0];
    return upper;
}

// Returns the child whose range contains the key.
static unsigned inner_find(const struct inner *n, uint64_t key) {
    unsigned low = 0, high = n->count;
    while (high - low > 1) {
        unsigned middle = (low + high) / 2;
        if (n->keys[middle] <= key)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void inner_insert(struct inner *n, unsigned at, uint64_t key, void *child) {
    unsigned rest = n->count++ - at;
    memmove(n->keys + at + 1, n->keys + at, rest * sizeof n->keys[0]);
    memmove(n->children + at + 1, n->children + at, rest * sizeof n->children[0]);
    n->keys[at] = key;
    n->children[at] = child;
}

static void inner_remove(struct inner *n, unsigned at) {
    unsigned rest = --n->count - at;
    memmove(n->keys + at, n->keys + at + 1, rest * sizeof n->keys[0]);
    memmove(n->children + at, n->children + at + 1, rest * sizeof n->children[0]);
}

static void *split_if_full(void *node, unsigned height, uint64_t *bound) {
    if (height == 0)
        return ((struct leaf *)node)->used == UINT64_MAX ? leaf_split(node, bound) : NULL;
    return ((struct inner *)node)->count == FANOUT ? inner_split(node, bound) : NULL;
}

// Descends to the leaf for a key. It splits every full node on the way, so that a parent always has
// room.
static struct leaf *leaf_with_room(struct tree *t, uint64_t key) {
    uint64_t bound;
    void *upper = split_if_full(t->root, t->height, &bound);
    if (upper) {
        struct inner *root = inner_new();
        root->count = 2;
        root->children[0] = t->root;
        root->children[1] = upper;
        root->keys[1] = bound;
        t->root = root;
        t->height++;
    }
    void *node = t->root;
    for (unsigned height = t->height; height > 0; height--) {
        struct inner *n = node;
        unsigned at = inner_find(n, key);
        upper = split_if_full(n->children[at], height - 1, &bound);
        if (upper) {
            inner_insert(n, at + 1, bound, upper);
            at += key >= bound;
        }
        node = n->children[at];
    }
    return node;
}

// Removes an empty leaf from its parent, and then every parent that has no child left.
static void remove_leaf(struct tree *t, struct leaf *l, struct inner **path, unsigned *places) {
    if (l->previous)
        l->previous->next = l->next;
    if (l->next)
        l->next->previous = l->previous;
    bench_free(l);
    for (unsigned up = t->height; up-- > 0;) { // path[0] is the root
        inner_remove(path[up], places[up]);
        if (path[up]->count)
            break;
        free(path[up]);
    }
    while (t->height > 0 && ((struct inner *)t->root)->count == 1) {
        struct inner *root = t->root;
        t->root = root->children[0];
        t->height--;
        free(root);
    }
}

// Returns the pair that the new one replaces, or NULL.
static void *tree_insert(struct tree *t, uint64_t key, void *pair) {
    struct leaf *l = leaf_with_room(t, key);
    int i = leaf_find(l, key);
    if (i < 0) {
        leaf_put(l, key, pair);
        return NULL;
    }
    void *old = l->pairs[i];
    l->pairs[i] = pair;
    return old;
}

static void *tree_delete(struct tree *t, uint64_t key) {
    struct inner *path[DEPTH];
    unsigned places[DEPTH];
    void *node = t->root;
    for (unsigned depth = 0; depth < t->height; depth++) {
        path[depth] = node;
        places[depth] = inner_find(node, key);
        node = path[depth]->children[places[depth]];
    }
    struct leaf *l = node;
    int i = leaf_find(l, key);
    if (i < 0)
        return NULL;
    void *old = l->pairs[i];
    l->used &= ~(1ULL << i);
    if (!l->used && t->height > 0)
        remove_leaf(t, l, path, places);
    return old;
}

static struct leaf *leaf_of(const struct tree *t, uint64_t key) {
    void *node = t->root;
    for (unsigned depth = 0; depth < t->height; depth++) {
        struct inner *n = node;
        node = n->children[inner_find(n, key)];
    }
    return node;
}

// Looks a key up. Returns its share of the answer.
static uint64_t find(uint64_t key) {
    struct tree *t = &trees[bench_mix(key) % TREES];
    pthread_mutex_lock(&t->lock);
    const struct leaf *l = leaf_of(t, key);
    int i = leaf_find(l, key);
    uint64_t size = i < 0 ? 0 : bench_size(l->pairs[i]);
    pthread_mutex_unlock(&t->lock);
    return size;
}

// Makes one operation. Returns its share of the answer.
static uint64_t operate(uint64_t key, bool insert) {
    struct tree *t = &trees[bench_mix(key) % TREES];
    void *pair = insert ? bench_new(PAIR, (uint32_t)key) : NULL;
    pthread_mutex_lock(&t->lock);
    void *old = insert ? tree_insert(t, key, pair) : tree_delete(t, key);
    pthread_mutex_unlock(&t->lock);
    return insert + (old ? bench_drop(old) : 0);
}

static uint64_t key_of(uint64_t *random, unsigned worker) {
    return bench_below(random, 2 * warm / bench_threads + 1) * bench_threads + worker;
}

static uint64_t warm_up(unsigned worker) {
    uint64_t random = ~bench_stream(worker), answer = 0;
    for (uint64_t i = bench_part(warm, worker); i > 0; i--)
        answer += operate(key_of(&random, worker), true);
    return answer;
}

static uint64_t work(unsigned worker) {
    uint64_t random = bench_stream(worker), answer = 0;
    for (uint64_t i = bench_part(operations, worker); i > 0; i--) {
        uint64_t key = key_of(&random, worker);
        uint64_t choice = bench_below(&random, 100);
        answer += choice < finds ? find(key) : operate(key, choice >= 100 - inserts);
    }
    return answer;
}

static void free_inner(void *node, unsigned height) {
    if (height == 0)
        return;
    struct inner *n = node;
    for (unsigned i = 0; i < n->count; i++)
        free_inner(n->children[i], height - 1);
    free(n);
}

// Frees a tree, leaf by leaf. The keys of the leaves must rise.
static uint64_t tree_drop(struct tree *t) {
    uint64_t answer = 0, highest = 0;
    void *node = t->root;
    for (unsigned height = t->height; height > 0; height--)
        node = ((struct inner *)node)->children[0];
    free_inner(t->root, t->height);
    for (struct leaf *l = node, *next; l; l = next) {
        uint64_t here = highest;
        for (uint64_t rest = l->used; rest; rest &= rest - 1) {
            int i = __builtin_ctzll(rest);
            if (l->keys[i] < highest)
                bench_exit(BENCH_WRONG, "wrong: a key is in the wrong leaf");
            here = l->keys[i] > here ? l->keys[i] : here;
            answer += bench_drop(l->pairs[i]);
        }
        highest = here;
        next = l->next;
        bench_free(l);
    }
    return answer;
}

int main(int argc, char **argv) {
    static const struct bench_option options[] = {
        {'w', "pairs inserted before the measurement", &warm},
        {'n', "operations, all threads together", &operations},
        {'i', "percentage of them that insert", &inserts},
        {'f', "percentage that only look; the rest deletes", &finds},
        {0}};
    bench_begin(argc, argv, NULL, options);
    if (inserts + finds > 100)
        bench_exit(BENCH_USAGE, "-i and -f are 100 at most, together");
    for (unsigned i = 0; i < TREES; i++) {
        pthread_mutex_init(&trees[i].lock, NULL);
        trees[i].root = leaf_new();
    }
    uint64_t answer = 0;
    bench_run((unsigned)bench_threads, warm_up, &answer);
    double seconds = bench_run((unsigned)bench_threads, work, &answer);
    for (unsigned i = 0; i < TREES; i++)
        answer += tree_drop(&trees[i]);
    return bench_report(operations, seconds, answer);
}
