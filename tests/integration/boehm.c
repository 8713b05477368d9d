// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program for gc.h, compiled with Debian's headers. The same checks hold with Debian's libgc and
// with libpmalloc_gc.so. The argument names the case; test_boehm.py lists them.
#include "boehm_case.h"

// ---- blocks -------------------------------------------------------------------------------------

struct node *kept;

static void churn(void) {
    kept = tree(14);
    long expected = sum(kept);
    GC_gcollect();
    for (int i = 0; i < 100; i++)
        CHECK(sum(tree(11)) == 4083);
    size_t before = GC_get_heap_size();
    for (int i = 0; i < 900; i++)
        CHECK(sum(tree(11)) == 4083);
    CHECK(GC_get_heap_size() <= 3 * before);
    CHECK(GC_get_gc_no() > 3);
    CHECK(sum(kept) == expected);
    CHECK(GC_get_total_bytes() > 1000ul * 4095 * 24);
}

static void sizes(void) {
    for (size_t size = 0; size < 300000; size = size * 5 / 4 + 1) {
        unsigned char *p = GC_MALLOC(size), *q = GC_MALLOC_ATOMIC(size), *r;
        CHECK(p && q && p != q && (uintptr_t)p % 16 == 0);
        CHECK(GC_size(p) >= size && GC_size(q) >= size);
        CHECK(GC_base(p) == p && GC_base(p + size / 2) == p && GC_is_heap_ptr(p));
        for (size_t i = 0; i < size; i++)
            CHECK(p[i] == 0);
        memset(p, 7, size);
        r = GC_REALLOC(p, size * 2 + 1);
        for (size_t i = 0; i < size * 2 + 1; i++)
            CHECK(r[i] == (i < size ? 7 : 0));
        memset(r, 7, size * 2 + 1);
        r = GC_REALLOC(GC_REALLOC(r, size * 3 / 2 + 1), size * 2 + 1);
        for (size_t i = 0; i < size * 2 + 1; i++)
            CHECK(r[i] == (i < size * 3 / 2 + 1 ? 7 : 0));
        GC_FREE(q);
        GC_FREE(r);
    }
    char *small = GC_MALLOC(100);
    CHECK(GC_size(small + 50) == GC_size(small));
    CHECK(!GC_base(&kept) && !GC_is_heap_ptr(&kept));
    CHECK(!strcmp(GC_STRDUP("text"), "text") && !strcmp(GC_STRNDUP("text", 2), "te"));
    void *aligned = GC_memalign(4096, 100), *too = NULL;
    CHECK((uintptr_t)aligned % 4096 == 0);
    CHECK(GC_posix_memalign(&too, 256, 1000) == 0 && (uintptr_t)too % 256 == 0);
    CHECK(GC_REALLOC(NULL, 10) && !GC_REALLOC(GC_MALLOC(10), 0));
    GC_FREE(NULL);
}

static char **big;
static void large(void) {
    big = GC_MALLOC(1000 * sizeof *big);
    for (int i = 0; i < 1000; i++) {
        big[i % 10] = GC_MALLOC_ATOMIC_IGNORE_OFF_PAGE(1 << 20);
        memset(big[i % 10], i, 1 << 20);
    }
    for (int i = 990; i < 1000; i++)
        CHECK(big[i % 10][12345] == (char)i);
    CHECK(GC_get_heap_size() < 300 << 20);
}

// Only the end of a chain of 100,000 is held.
static struct node *end;
static void chain(void) {
    for (int i = 0; i < 100000; i++) {
        struct node *n = GC_NEW(struct node);
        n->left = end;
        n->value = i;
        end = n;
    }
    collect();
    struct node *n = end;
    for (int i = 99999; i >= 0; i--, n = n->left)
        CHECK(n && n->value == i);
    CHECK(!n);
}

// An interior pointer keeps a block, and so does one to the byte after its last.
static char *interior[2];
static void interiors(void) {
    GC_gcollect();
    interior[0] = (char *)GC_MALLOC_ATOMIC(100000) + 70000;
    memset(interior[0] - 70000, 'i', 100000);
    interior[1] = (char *)GC_MALLOC_ATOMIC(48) + 48;
    memset(interior[1] - 48, 'e', 48);
    for (int i = 0; i < 300; i++) {
        memset(GC_MALLOC_ATOMIC(100000), 'x', 100000);
        memset(GC_MALLOC_ATOMIC(48), 'x', 48);
    }
    collect();
    for (int i = 0; i < 100000; i++)
        CHECK(interior[0][i - 70000] == 'i');
    for (int i = 1; i <= 48; i++)
        CHECK(interior[1][-i] == 'e');
}

// ---- kinds --------------------------------------------------------------------------------------

// Words 0 and 2 are pointers, word 1 is not.
static void **typed_block, **plain_block;
static void fill_typed(void) {
    GC_word bits[] = {5};
    GC_descr descriptor = GC_make_descriptor(bits, 3);
    typed_block = GC_malloc_explicitly_typed(MANY * 24, descriptor);
    for (int i = 0; i < 3; i++)
        typed_block[i] = links[i] = GC_MALLOC(64);
    plain_block = GC_MALLOC_ATOMIC(24);
    plain_block[0] = links[3] = GC_MALLOC(64);
    for (int i = 0; i < 4; i++)
        GC_general_register_disappearing_link(&links[i], links[i]);
}
static void typed(void) {
    links = GC_MALLOC_ATOMIC(4 * sizeof *links);
    aside(fill_typed);
    aside(collect);
    CHECK(links[0] && !links[1] && links[2] && !links[3]);
    CHECK(GC_calloc_explicitly_typed(10, 24, 24));
}

static unsigned custom;
static struct GC_ms_entry *second_only(GC_word *block, struct GC_ms_entry *top,
                                       struct GC_ms_entry *limit, GC_word env) {
    CHECK(env == 3);
    return GC_MARK_AND_PUSH((void *)block[1], top, limit, (void **)&block[1]);
}
static void fill_custom(void) {
    typed_block = GC_generic_malloc(24, (int)custom);
    memset(typed_block, 0, 24);
    typed_block[0] = links[0] = GC_MALLOC(64);
    typed_block[1] = links[1] = GC_MALLOC(64);
    GC_general_register_disappearing_link(&links[0], links[0]);
    GC_general_register_disappearing_link(&links[1], links[1]);
}
static void kinds(void) {
    custom = GC_new_kind(GC_new_free_list(), GC_MAKE_PROC(GC_new_proc(second_only), 3), 0, 1);
    links = GC_MALLOC_ATOMIC(2 * sizeof *links);
    aside(fill_custom);
    aside(collect);
    CHECK(!links[0] && links[1]);

    int free_of_pointers = (int)GC_new_kind(GC_new_free_list(), GC_DS_LENGTH, 0, 1);
    for (int i = 0; i < 100000; i++) {
        unsigned char *p = GC_generic_malloc(64, free_of_pointers);
        for (int j = 0; j < 64; j++)
            CHECK(p[j] == 0);
        memset(p, 7, 64);
    }
}

static void lists(void) {
    void *list = NULL;
    int length = 0;
    GC_generic_malloc_many(64, 1, &list);
    for (void *p = list; p; p = GC_NEXT(p))
        length++;
    CHECK(length >= 1);
    for (void *p = GC_malloc_many(32); p; p = GC_NEXT(p))
        CHECK(GC_base(p) == p);
}

// Blocks without pointers do not keep each other alive while their list is made, when a collection
// may come. A block that has been handed out twice shows in the stamps.
#define LISTS 400u
static void *listed[LISTS][64];
static uint64_t stamp(unsigned n) { return 0x5eed0000u + n; }

static void take_list(unsigned n) {
    void *list = NULL;
    unsigned length = 0;
    for (unsigned i = 0; i < 64 && listed[n][i]; i++)
        ((uint64_t *)listed[n][i])[2] = 0;
    memset(listed[n], 0, sizeof listed[n]);
    GC_generic_malloc_many(32, 0, &list);
    for (void *p = list; p && length < 64; p = GC_NEXT(p))
        listed[n][length++] = p;
    for (unsigned i = 0; i < length; i++)
        ((uint64_t *)listed[n][i])[2] = stamp(n);
}

static void lists_without_pointers(void) {
    for (unsigned round = 0; round < 20000; round++) {
        unsigned other = round * 7919u % LISTS;
        take_list(round % LISTS);
        for (unsigned i = 0; i < 20; i++)
            ((uint64_t *)GC_MALLOC(32))[2] = 1;
        for (unsigned i = 0; i < 64 && listed[other][i]; i++)
            CHECK(((uint64_t *)listed[other][i])[2] == stamp(other));
    }
}

// Memory that only a block of malloc() points to: uncollectable blocks are roots everywhere.
static GC_hidden_pointer hidden;
static void fill_uncollectable(void) {
    struct node **p = GC_MALLOC_UNCOLLECTABLE(sizeof *p);
    *p = tree(8);
    hidden = GC_HIDE_POINTER(p);
}
static void uncollectable(void) {
    aside(fill_uncollectable);
    collect();
    for (int i = 0; i < 100000; i++)
        GC_MALLOC(24);
    struct node **p = GC_REVEAL_POINTER(hidden);
    CHECK(sum(*p) == 502);
    GC_FREE(p);
}

// ---- threads, roots, figures --------------------------------------------------------------------

static void *worker(void *arg) {
    long expected = sum(tree(10));
    struct node *mine[10] = {0};
    CHECK(GC_thread_is_registered());
    for (int i = 0; i < 200; i++) {
        mine[i % 10] = tree(10);
        if (i % 50 == 0)
            usleep(1000);
        if (mine[(i + 1) % 10])
            CHECK(sum(mine[(i + 1) % 10]) == expected);
    }
    return arg;
}
static void threads(void) {
    pthread_t thread[4];
    void *result;
    for (long i = 0; i < 4; i++)
        CHECK(pthread_create(&thread[i], NULL, worker, (void *)i) == 0);
    for (int i = 0; i < 20; i++)
        GC_gcollect();
    for (long i = 0; i < 4; i++)
        CHECK(pthread_join(thread[i], &result) == 0 && result == (void *)i);
}

static void *library;
static void dlopened(void) {
    void **(*slot)(void);
    library = dlopen(getenv("boehm_library"), RTLD_NOW);
    CHECK(library);
    *(void **)&slot = dlsym(library, "slot");
    CHECK(slot);
    *slot() = tree(9);
    long expected = sum(*slot());
    collect();
    for (int i = 0; i < 200000; i++)
        GC_MALLOC(24);
    CHECK(sum(*slot()) == expected);
}

static void *stack_base(struct GC_stack_base *base, void *arg) {
    CHECK(base->mem_base && arg == &kept);
    return arg;
}
static void *locked(void *arg) { return arg; }
static int stop(void) { return 1; }
static int started, events;
static void start(void) { started++; }
static void event(GC_EventType type) { events |= 1 << type; }
static void calls(void) {
    struct GC_stack_base base;
    CHECK(GC_get_stack_base(&base) == GC_SUCCESS && (char *)base.mem_base > (char *)&base);
    CHECK(GC_call_with_stack_base(stack_base, &kept) == &kept);
    CHECK(GC_call_with_alloc_lock(locked, &kept) == &kept);
    CHECK(GC_do_blocking(locked, &kept) == &kept);
    GC_set_start_callback(start);
    GC_set_on_collection_event(event);
    GC_gcollect();
    CHECK(started > 0 && events & 1 << GC_EVENT_MARK_END && events & 1 << GC_EVENT_END);
    CHECK(GC_try_to_collect(stop) == 0);
    GC_word number = GC_get_gc_no();
    GC_disable();
    GC_gcollect();
    for (int i = 0; i < 400000; i++)
        GC_MALLOC(100);
    CHECK(GC_is_disabled() && GC_get_gc_no() == number);
    GC_enable();
    GC_gcollect();
    CHECK(GC_get_gc_no() > number);
    CHECK(GC_get_version() >> 16 == 8 && GC_is_init_called());
    CHECK(GC_get_java_finalization() == 1 && GC_get_all_interior_pointers() == 1);
    CHECK(GC_expand_hp(1 << 20) && GC_get_free_bytes() <= GC_get_heap_size());
    CHECK(GC_same_obj(kept, kept) == kept && GC_is_visible(&kept) == &kept);
}

static int refused;
static void *none(size_t bytes) {
    (void)bytes;
    refused++;
    return NULL;
}
static void limit(void) {
    GC_set_max_heap_size(64 << 20);
    GC_set_oom_fn(none);
    GC_set_warn_proc(GC_ignore_warn_proc);
    big = GC_MALLOC(4096 * sizeof *big);
    int got = 0;
    while (got < 4096 && (big[got] = GC_MALLOC(1 << 20)) != NULL)
        got++;
    CHECK(got > 10 && got < 64 && refused == 1);
    memset(big, 0, 4096 * sizeof *big);
    collect();
    big[0] = GC_MALLOC(1 << 20);
    CHECK(big[0]);
}

static void forked(void) {
    kept = tree(10);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < 50; i++)
            tree(10);
        _exit(sum(kept) == 2036 ? 0 : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    for (int i = 0; i < 50; i++)
        tree(10);
    CHECK(sum(kept) == 2036);
}

// A thread that sleeps is left asleep. Debian's libgc would end the call.
static int rouse[2];
static void *collect_often(void *unused) {
    for (int i = 0; i < 1500; i++) {
        kept = tree(8);
        GC_gcollect();
    }
    CHECK(write(rouse[1], "x", 1) == 1);
    return unused;
}
static void asleep(void) {
    pthread_t thread;
    CHECK(pipe(rouse) == 0);
    CHECK(pthread_create(&thread, NULL, collect_often, NULL) == 0);
    struct pollfd until = {.fd = rouse[0], .events = POLLIN};
    CHECK(poll(&until, 1, -1) == 1);
    CHECK(pthread_join(thread, NULL) == 0);
}

static const struct test cases[] = {
    CASE(churn),         CASE(sizes),     CASE(large),
    CASE(chain),         CASE(interiors), CASE(typed),
    CASE(kinds),         CASE(lists),     CASE(lists_without_pointers),
    CASE(uncollectable), CASE(threads),   CASE(dlopened),
    CASE(calls),         CASE(limit),     CASE(forked),
    CASE(asleep),        {NULL, NULL}};

static bool run_one(const struct test *test, const char *name) {
    for (; test->name; test++)
        if (!strcmp(test->name, name)) {
            test->run();
            return puts("right") > 0;
        }
    return false;
}

int main(int argc, char **argv) {
    GC_INIT();
    GC_allow_register_threads();
    return argc == 2 && (run_one(cases, argv[1]) || run_one(weak_cases, argv[1])) ? 0 : 2;
}
