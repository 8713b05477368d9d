// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Disappearing links of gc.h in a heap, whose program is killed. `boehm_links STEP[=NUMBER] ...`
// does the steps in turn; the last one is usually `kill`.
#include "boehm_case.h"

#include <dlfcn.h>
#include <signal.h>

// The root. Of `count` objects every second one is held. Each has a link: word i is plain or
// hidden, short or long.
struct heap {
    void **weak; // pointer-free
    struct node **held;
    long count;
} heap;

static bool is_long(long i) { return i % 3 == 0; }
static void *as_stored(long i, void *p) { return i & 2 ? (void *)GC_HIDE_POINTER(p) : p; }

static void **dropped; // what heap.weak was

static int enroll(long i, void *object) {
    return is_long(i) ? GC_register_long_link(&heap.weak[i], object)
                      : GC_general_register_disappearing_link(&heap.weak[i], object);
}
static int withdraw(long i) {
    void **link = (heap.weak ? heap.weak : dropped) + i;
    return is_long(i) ? GC_unregister_long_link(link) : GC_unregister_disappearing_link(link);
}

static void fill(void) {
    for (long i = 0; i < heap.count; i++) {
        struct node *n = GC_NEW(struct node);
        n->value = i;
        heap.weak[i] = as_stored(i, n);
        if (i % 2)
            heap.held[i] = n;
        CHECK(enroll(i, n) == GC_SUCCESS);
    }
}
// No collection comes before the kill, so all objects are there then.
static void make(long count) {
    GC_disable();
    heap.weak = GC_MALLOC_ATOMIC((size_t)count * sizeof *heap.weak);
    heap.held = GC_MALLOC((size_t)count * sizeof *heap.held);
    heap.count = count;
    aside(fill);
}

static void show(long unused) {
    long cleared = 0, kept = 0;
    (void)unused;
    for (long i = 0; i < heap.count; i++) {
        struct node *n = heap.held[i];
        CHECK(!n || n->value == i);
        cleared += !heap.weak[i];
        kept += n && heap.weak[i] == as_stored(i, n);
    }
    printf("%ld cleared, %ld kept\n", cleared, kept);
}

// Those of held objects: `expected` is GC_SUCCESS or GC_DUPLICATE.
static void again(long expected) {
    for (long i = 1; i < heap.count; i += 2)
        CHECK(enroll(i, heap.held[i]) == expected);
}
static void withdraw_all(long expected) {
    for (long i = 1; i < heap.count; i += 2)
        CHECK(withdraw(i) == expected);
}
static void let_go(long unused) {
    (void)unused;
    memset(heap.held, 0, (size_t)heap.count * sizeof *heap.held);
}
static void free_held(long unused) {
    (void)unused;
    for (long i = 1; i < heap.count; i += 2)
        GC_FREE(heap.held[i]);
    let_go(0);
}
static void drop_weak(long unused) {
    (void)unused;
    dropped = heap.weak;
    heap.weak = NULL;
}
static void gather(long unused) {
    (void)unused;
    if (GC_is_disabled())
        GC_enable();
    collect();
}
// What earlier runs have left is freed by this alone.
static void gather_old(long unused) {
    (void)unused;
    int (*collect_old)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "pmalloc_collect");
    CHECK(collect_old && collect_old() == 0);
}
static void in_child(long unused) {
    (void)unused;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        withdraw_all(1);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}
static void end_killed(long unused) {
    (void)unused;
    fflush(stdout);
    raise(SIGKILL);
}

static const struct step {
    const char *name;
    void (*run)(long number);
} steps[] = {
    {"make", make},           {"show", show},       {"again", again},
    {"let-go", let_go},       {"free", free_held},  {"withdraw", withdraw_all},
    {"collect", gather},      {"fork", in_child},   {"collect-old", gather_old},
    {"drop-weak", drop_weak}, {"kill", end_killed},
};

int main(int argc, char **argv) {
    GC_INIT();
    for (int i = 1; i < argc; i++) {
        char *number = strchr(argv[i], '=');
        size_t length = number ? (size_t)(number - argv[i]) : strlen(argv[i]);
        const struct step *s = steps;
        while (strncmp(s->name, argv[i], length) != 0 || s->name[length])
            s++;
        s->run(number ? atol(number + 1) : 0);
    }
    return 0;
}
