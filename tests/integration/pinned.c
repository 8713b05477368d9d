// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Lists whose nodes no plain pointer reaches, so their nodes are pinned. Each change is a publish.
// A node has a text, which only a plain pointer in the node reaches.
//
//   pinned xor|tagged check     checks all lists, and that no pinned block is in none
//   pinned xor|tagged run N     checks them, says "ready", and N threads change them until killed
//   pinned xor|tagged forks     as run 1, and children check and change what they inherit
//   pinned xor|tagged daemon    as run 1, in a child whose parent ends
//   pinned xor|tagged hang      checks them, and waits for its end
//   pinned xor|tagged leave     checks them, changes them for a while, and ends
//   pinned xor|tagged empty     removes all nodes
//
// xor: a node's link is the address before XOR the address after. tagged: two offsets from the
// list, each with a tag in its low bits, inverted.
#include "preload/pmalloc.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define LISTS 4
#define NODES 300 // about so many in a list
#define END 0xaaaaaaaaaaaaaaaaull

struct node {
    uint64_t link[2];
    uint64_t key, check;
    char *text;
};

struct list {
    uint64_t count, sum, changes;
    uint64_t end[2]; // the first node and the last
    uint64_t unused; // it makes this as long as its block, so no bytes of an older block are left
};

static bool tagged;
static struct list *known[LISTS]; // a forked child on private memory has no root slots

static void wrong(const char *what, uint64_t found, uint64_t want) {
    printf("wrong: %s: %lu, %lu\n", what, (unsigned long)found, (unsigned long)want);
    _exit(1);
}

static uint64_t mixed(uint64_t x) { return (x + 1) * 0x9e3779b97f4a7c15ull; }

// ---- words that do not look like pointers -------------------------------------------------------

static uint64_t plain(const struct node *n) { return n ? (uint64_t)(uintptr_t)n : END; }

static uint64_t hidden(const struct list *l, const struct node *n) {
    if (!tagged)
        return n ? plain(n) ^ END : 0;
    return n ? ~((plain(n) - (uint64_t)(uintptr_t)l) << 16 | (mixed(plain(n)) & 0xffff)) : 0;
}

static struct node *found(const struct list *l, uint64_t word) {
    if (!word)
        return NULL;
    if (!tagged)
        return (struct node *)(uintptr_t)(word ^ END);
    struct node *n =
        (struct node *)(uintptr_t)((uint64_t)(uintptr_t)l + (uint64_t)((int64_t)~word >> 16));
    if (word != hidden(l, n))
        wrong("a tag", word, hidden(l, n));
    return n;
}

// The neighbour of a node; `to` is 1: the one after it. `from` is the neighbour on the other side.
static struct node *neighbour(const struct list *l, const struct node *n, unsigned to,
                              const struct node *from) {
    if (tagged)
        return found(l, n->link[to]);
    uint64_t word = n->link[0] ^ plain(from);
    return word == END ? NULL : (struct node *)(uintptr_t)word;
}

// ---- changes ------------------------------------------------------------------------------------

struct change {
    pmalloc_op op[24];
    size_t n;
};

static void set(struct change *c, void *where, uint64_t value) {
    if (pmalloc_store(&c->op[c->n++], where, value) != 0)
        wrong("a store is refused", 0, 0);
}

static void *take(struct change *c, size_t size, unsigned flags) {
    void *p = pmalloc_reserve(&c->op[c->n++], size, 0, flags);
    if (!p)
        wrong("no memory", size, flags);
    return p;
}

static void publish(struct change *c, struct list *l) {
    set(c, &l->changes, l->changes + 1);
    if (pmalloc_publish(c->op, c->n) != 0)
        wrong("a publish fails", c->n, 0);
}

// The neighbour of `n` on one side was `old`, and becomes `fresh`. `n` is NULL at an end.
static void relink(struct change *c, struct list *l, struct node *n, unsigned side,
                   const struct node *old, const struct node *fresh) {
    if (!n)
        set(c, &l->end[!side], hidden(l, fresh));
    else if (tagged)
        set(c, &n->link[side], hidden(l, fresh));
    else
        set(c, &n->link[0], n->link[0] ^ plain(old) ^ plain(fresh));
}

static void append(struct list *l, unsigned *seed) {
    struct change c = {.n = 0};
    struct node *last = found(l, l->end[1]);
    size_t more = rand_r(seed) % 64 ? (size_t)rand_r(seed) % 300 : (size_t)rand_r(seed) % 90000;
    struct node *n = take(&c, sizeof *n + more, PMALLOC_PINNED);
    n->key = (uint64_t)rand_r(seed);
    n->check = mixed(n->key);
    n->link[0] = tagged ? hidden(l, last) : plain(last) ^ END;
    n->link[1] = 0;
    n->text = take(&c, 24 + (size_t)rand_r(seed) % 200, PMALLOC_POINTER_FREE);
    snprintf(n->text, 24, "%lu", (unsigned long)n->key);
    relink(&c, l, last, 1, NULL, n);
    relink(&c, l, NULL, 0, last, n);
    set(&c, &l->count, l->count + 1);
    set(&c, &l->sum, l->sum + n->key);
    publish(&c, l);
}

// Removes the node that so many others precede.
static void drop(struct list *l, unsigned at) {
    struct change c = {.n = 0};
    struct node *before = NULL, *n = found(l, l->end[0]), *after;
    while ((after = neighbour(l, n, 1, before)) && at--)
        before = n, n = after;
    relink(&c, l, before, 1, n, after);
    relink(&c, l, after, 0, n, before);
    set(&c, &l->count, l->count - 1);
    set(&c, &l->sum, l->sum - n->key);
    pmalloc_defer_free(&c.op[c.n++], n->text);
    pmalloc_defer_free(&c.op[c.n++], n);
    publish(&c, l);
}

// Now and then something is reserved and not used.
static void step(struct list *l, unsigned *seed) {
    if ((uint64_t)rand_r(seed) % (2 * NODES) < l->count)
        drop(l, (unsigned)rand_r(seed) % 40);
    else
        append(l, seed);
    if (rand_r(seed) % 32)
        return;
    struct change c = {.n = 0};
    take(&c, 100, PMALLOC_PINNED);
    pmalloc_cancel(c.op, c.n);
    (void)pmalloc_commit();
}

// ---- checks -------------------------------------------------------------------------------------

static void check_node(const struct node *n) {
    char said[24];
    snprintf(said, sizeof said, "%lu", (unsigned long)n->key);
    if (n->check != mixed(n->key) || strcmp(n->text, said) != 0)
        wrong("a node", n->check, mixed(n->key));
}

static uint64_t check_list(const struct list *l) {
    for (unsigned to = 0; to < 2; to++) {
        uint64_t count = 0, sum = 0;
        const struct node *from = NULL, *n = found(l, l->end[!to]);
        while (n) {
            check_node(n);
            count++;
            sum += n->key;
            const struct node *next = neighbour(l, n, to, from);
            from = n, n = next;
        }
        if (count != l->count || sum != l->sum || from != found(l, l->end[to]))
            wrong("a list", count, l->count);
    }
    return l->count;
}

static int count_pinned(void *p, size_t size, unsigned flags, void *count) {
    (void)p, (void)size;
    *(uint64_t *)count += (flags & PMALLOC_PINNED) != 0;
    return 0;
}

static void check(void) {
    uint64_t nodes = 0, changes = 0, pinned = 0;
    for (unsigned slot = 0; slot < LISTS; slot++) {
        const struct list *l = known[slot] ? known[slot] : pmalloc_get_root(slot);
        nodes += l ? check_list(l) : 0;
        changes += l ? l->changes : 0;
    }
    pmalloc_walk(count_pinned, &pinned);
    if (pinned != nodes)
        wrong("pinned blocks, and nodes", pinned, nodes);
    printf("ok %lu nodes %lu changes\n", (unsigned long)nodes, (unsigned long)changes);
}

// ---- the program --------------------------------------------------------------------------------

static struct list *list_in(unsigned slot) {
    pmalloc_op op[2];
    struct list *l = known[slot] ? known[slot] : pmalloc_get_root(slot);
    if (l)
        return known[slot] = l;
    l = pmalloc_reserve(&op[0], sizeof *l, 0, PMALLOC_ZERO);
    if (!l || pmalloc_store_root(&op[1], slot, l) != 0 || pmalloc_publish(op, 2) != 0)
        wrong("no list", slot, 0);
    return known[slot] = l;
}

static unsigned seed_of(unsigned slot) { return slot + (unsigned)pmalloc_generation() * 8; }

static void *work(void *arg) {
    unsigned slot = (unsigned)(uintptr_t)arg, seed = seed_of(slot);
    for (struct list *l = list_in(slot);;)
        step(l, &seed);
    return NULL;
}

static void run(unsigned threads) {
    pthread_t thread;
    printf("ready %d\n", (int)getpid());
    for (uintptr_t i = 1; i < threads && i < LISTS; i++)
        pthread_create(&thread, NULL, work, (void *)i);
    work(NULL);
}

static void some(unsigned count, unsigned seed) {
    while (count--)
        step(list_in(count % LISTS), &seed);
}

// A child ends as a program does, so that a heap of its own is closed.
static void fork_and_go_on(unsigned number) {
    pid_t pid = fork();
    if (pid == 0) {
        check();
        some(50, number);
        check();
        exit(0);
    }
    int status;
    if (waitpid(pid, &status, 0) != pid || status != 0)
        wrong("a child", (uint64_t)status, 0);
    some(50, number + 1);
}

int main(int argc, char **argv) {
    const char *what = argc > 2 ? argv[2] : "check";
    static char line[BUFSIZ]; // stdio's own would be a leak
    setvbuf(stdout, line, _IOLBF, sizeof line);
    tagged = argc > 1 && strcmp(argv[1], "tagged") == 0;
    if (strcmp(what, "daemon") == 0 && fork() != 0)
        _exit(0);
    check();
    if (strcmp(what, "run") == 0 || strcmp(what, "daemon") == 0)
        run(argc > 3 ? (unsigned)atoi(argv[3]) : 1);
    for (unsigned slot = 0; slot < LISTS && strcmp(what, "forks") == 0; slot++)
        list_in(slot); // before there is a child
    if (strcmp(what, "forks") == 0)
        printf("ready %d\n", (int)getpid());
    for (unsigned i = 0; strcmp(what, "forks") == 0; i++)
        fork_and_go_on(i);
    if (strcmp(what, "hang") == 0)
        pause();
    if (strcmp(what, "leave") == 0)
        some(2000, seed_of(0));
    for (unsigned slot = 0; slot < LISTS && strcmp(what, "empty") == 0; slot++)
        while (list_in(slot)->count)
            drop(list_in(slot), 0);
    return 0;
}
