// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Disappearing links of gc.h that outlive their program. `boehm_links STEP[=NUMBER] ...` does the
// steps in turn; the last one is usually `kill`.
#include "boehm_case.h"

#include <signal.h>

// The root. Of `count` objects every second one is held. Each has a link: word i is plain or
// hidden, short or long.
struct heap {
    void **weak; // pointer-free
    struct node **held;
    long count;
} heap;
void *variable; // a link in the program's own data, if it is a root
struct scanned {
    struct node *link;
} * scanned;

static bool is_hidden(long i) { return i & 2; }
static bool is_long(long i) { return i % 3 == 0; }
static void *as_stored(long i, void *p) { return is_hidden(i) ? (void *)GC_HIDE_POINTER(p) : p; }

static int enroll(long i, void **link, void *object) {
    return is_long(i) ? GC_register_long_link(link, object)
                      : GC_general_register_disappearing_link(link, object);
}
static int withdraw(long i, void **link) {
    return is_long(i) ? GC_unregister_long_link(link) : GC_unregister_disappearing_link(link);
}
static int move(long i, void **link, void **to) {
    return is_long(i) ? GC_move_long_link(link, to) : GC_move_disappearing_link(link, to);
}

static void fill(void) {
    for (long i = 0; i < heap.count; i++) {
        struct node *n = GC_NEW(struct node);
        n->value = i;
        heap.weak[i] = as_stored(i, n);
        if (i % 2)
            heap.held[i] = n;
        CHECK(enroll(i, &heap.weak[i], n) == GC_SUCCESS);
    }
}
// No collection comes before the kill, so all objects are there then.
static void make(long count) {
    GC_disable();
    heap.weak = GC_MALLOC_ATOMIC(2 * (size_t)count * sizeof *heap.weak);
    memset(heap.weak, 0, 2 * (size_t)count * sizeof *heap.weak);
    heap.held = GC_MALLOC((size_t)count * sizeof *heap.held);
    heap.count = count;
    aside(fill);
}

// Links of held objects hold them; all others are 0.
static void show(long from) {
    long cleared = 0, kept = 0;
    for (long i = from; i < from + heap.count; i++) {
        struct node *n = heap.held[i - from];
        CHECK(!n || n->value == i - from);
        cleared += !heap.weak[i];
        kept += n && heap.weak[i] == as_stored(i - from, n);
    }
    printf("%ld cleared, %ld kept\n", cleared, kept);
}

static void again(long unused) {
    (void)unused;
    for (long i = 1; i < heap.count; i += 2)
        CHECK(enroll(i, &heap.weak[i], heap.held[i]) == GC_DUPLICATE);
}
static void withdraw_all(long unused) {
    (void)unused;
    for (long i = 0; i < heap.count; i++)
        CHECK(withdraw(i, &heap.weak[i]) == (heap.weak[i] != NULL));
}
static void move_all(long unused) {
    (void)unused;
    for (long i = 0; i < heap.count; i++) {
        if (!heap.weak[i])
            continue;
        CHECK(move(i, &heap.weak[i], &heap.weak[heap.count + i]) == GC_SUCCESS);
        CHECK(move(i, &heap.weak[i], &heap.weak[i]) == GC_NOT_FOUND);
        heap.weak[heap.count + i] = heap.weak[i];
        heap.weak[i] = NULL;
    }
}
static void let_go(long unused) {
    (void)unused;
    memset(heap.held, 0, (size_t)heap.count * sizeof *heap.held);
}
static void drop_weak(long unused) {
    (void)unused;
    heap.weak = NULL;
}
static void free_held(long unused) {
    (void)unused;
    for (long i = 1; i < heap.count; i += 2)
        GC_FREE(heap.held[i]);
    let_go(0);
}
// All links are about one object that lives.
static void change_objects(long unused) {
    (void)unused;
    for (long i = 0; i < heap.count; i++)
        CHECK(enroll(i, &heap.weak[i], heap.held[1]) == GC_DUPLICATE);
}
static void overwrite(long value) {
    for (long i = 0; i < heap.count; i++)
        heap.weak[i] = (void *)value;
}
static void *into_place;
static void hide_in_variable(void) {
    variable = GC_NEW(struct node);
    CHECK(GC_general_register_disappearing_link(&variable, variable) == GC_SUCCESS);
    variable = (void *)GC_HIDE_POINTER(variable);
}
static void make_variable(long unused) {
    (void)unused;
    GC_disable();
    aside(hide_in_variable);
}
static void hold_variable(long unused) {
    (void)unused;
    into_place = GC_REVEAL_POINTER((GC_hidden_pointer)variable);
    heap.held[1] = into_place;
}
static void withdraw_variable(long expected) {
    CHECK(GC_unregister_disappearing_link(&variable) == expected);
}
static void show_variable(long unused) {
    (void)unused;
    printf("variable %s\n", variable ? "kept" : "cleared");
}
static void make_scanned_one(void) {
    scanned = GC_NEW(struct scanned);
    scanned->link = GC_NEW(struct node);
    scanned->link->value = 42;
    CHECK(GC_general_register_disappearing_link((void **)&scanned->link, scanned->link) == 0);
}
static void make_scanned(long unused) {
    (void)unused;
    aside(make_scanned_one);
}
static void show_scanned(long unused) {
    (void)unused;
    printf("scanned %ld\n", scanned->link ? scanned->link->value : 0);
}
static void finalize(void *block, void *data) { (void)block, (void)data; }
static void finalizers(long unused) {
    (void)unused;
    GC_set_finalize_on_demand(1);
    for (long i = 0; i < heap.count; i++)
        if (heap.weak[i] && !heap.held[i])
            GC_REGISTER_FINALIZER_NO_ORDER(
                is_hidden(i) ? GC_REVEAL_POINTER((GC_hidden_pointer)heap.weak[i]) : heap.weak[i],
                finalize, NULL, NULL, NULL);
    wipe();
}
static void gather(long unused) {
    (void)unused;
    if (GC_is_disabled())
        GC_enable();
    collect();
}
static void in_child(long unused) {
    (void)unused;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        withdraw_all(0);
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
    {"make", make},
    {"show", show},
    {"again", again},
    {"withdraw", withdraw_all},
    {"move", move_all},
    {"let-go", let_go},
    {"drop-weak", drop_weak},
    {"free", free_held},
    {"change", change_objects},
    {"overwrite", overwrite},
    {"variable", make_variable},
    {"hold-variable", hold_variable},
    {"withdraw-variable", withdraw_variable},
    {"show-variable", show_variable},
    {"scanned", make_scanned},
    {"show-scanned", show_scanned},
    {"finalizers", finalizers},
    {"collect", gather},
    {"fork", in_child},
    {"kill", end_killed},
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
