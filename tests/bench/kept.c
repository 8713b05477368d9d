// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A list that a killed process leaves, of nodes of 64 to 128 bytes, by an adapter that can open a
// pool again (README.md). `make` makes it and ends by SIGKILL. `open` prints the seconds until the
// allocator has recovered and gives a first block; then it follows the list, which has the same
// answer. It ends by SIGKILL, too, because what an allocator does at a good end is no part of this.
#include "bench.h"

#include <signal.h>
#include <unistd.h>

struct node {
    void *next; // as the adapter stores it
    uint64_t position, size;
};

static uint64_t nodes = 100000;
static void *(*root)(void), *(*linked)(void **at);
static void (*link_to)(void **at, void *to);

static void *adapter(void) {
    const char *path = getenv("BENCH_ALLOCATOR"), *library = getenv("BENCH_LIBRARY");
    // Loading a library is no recovery.
    if (library)
        dlopen(library, RTLD_NOW | RTLD_LOCAL);
    void *object = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!object)
        bench_exit(BENCH_USAGE, "BENCH_ALLOCATOR: %s", path ? dlerror() : "is not set");
    root = (void *(*)(void))bench_symbol(object, path, "bench_root", true);
    linked = (void *(*)(void **))bench_symbol(object, path, "bench_linked", true);
    link_to = (void (*)(void **, void *))bench_symbol(object, path, "bench_link", true);
    return object;
}

static void grow(void **head) {
    uint64_t state = bench_stream(0);
    link_to(head, NULL);
    for (uint64_t i = 1; i <= nodes; i++) {
        uint64_t size = 64 + bench_below(&state, 9) * 8;
        struct node *node = bench_block(size);
        memset(node, 0x33, size);
        node->position = i;
        node->size = size;
        link_to(&node->next, linked(head));
        link_to(head, node);
    }
}

static uint64_t walk(void **head, uint64_t *found) {
    uint64_t answer = 0;
    for (struct node *node = linked(head); node; node = linked(&node->next), ++*found) {
        const unsigned char *bytes = (const unsigned char *)node;
        for (uint64_t i = sizeof *node; i < node->size; i++)
            if (bytes[i] != 0x33)
                bench_exit(BENCH_WRONG, "wrong: node %llu", (unsigned long long)node->position);
        answer += bench_mix(node->position << 32 | node->size);
    }
    return answer;
}

int main(int argc, char **argv) {
    static const char *const modes[] = {"make", "open", NULL};
    static const struct bench_option options[] = {{'n', "nodes", &nodes}, {0}};
    bench_name = argv[0];
    bench_opening = argc > 1 && strcmp(argv[1], "open") == 0 ? "bench_reopen" : "bench_setup";
    adapter();
    bench_mark(BENCH_ZERO);
    double start = bench_clock();
    if (bench_begin(argc, argv, modes, options) == 1) {
        bench_block(64);
    } else {
        grow(root());
    }
    double seconds = bench_clock() - start;
    bench_mark(BENCH_OFF);
    uint64_t found = 0, answer = walk(root(), &found);
    bench_teardown = NULL;
    bench_report(found, seconds, answer);
    fflush(NULL);
    kill(getpid(), SIGKILL);
    return 0;
}
