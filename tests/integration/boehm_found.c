// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What collections have found, who is asked before a block goes, and threads that the program holds
// itself: gc_disclaim.h, gc_mark.h, javaxfc.h. The same checks hold with Debian's libgc. The
// argument names the case; test_boehm_found.py lists them.
#include "boehm_case.h"

#include <gc/gc_disclaim.h>
#include <sched.h>

struct node *kept;
static bool is_pmalloc;

#define HIDE(p) (~(uintptr_t)(p))
#define OBJECTS 1000
#define MAGIC 0x5ca1ab1e

static void *with_lock(GC_fn_type fn, void *arg) { return GC_call_with_alloc_lock(fn, arg); }
static void *marked(void *p) { return (void *)(uintptr_t)GC_is_marked(p); }
static void *mark(void *p) {
    GC_set_mark_bit(p);
    return NULL;
}
static void *unmark(void *p) {
    GC_clear_mark_bit(p);
    return NULL;
}
static bool is_marked(void *p) { return with_lock(marked, p) != NULL; }

// ---- blocks with a finalizer --------------------------------------------------------------------

struct guarded {
    long number;
    long *partner; // only this object leads to it
    char rest[40];
};
static struct guarded *held[OBJECTS / 10];
static int called[OBJECTS], freed_by_hand;
static char key;

static void guarded_dies(void *object, void *data) {
    struct guarded *g = object;
    CHECK(data == &key && g->number >= 0 && g->number < OBJECTS);
    CHECK(g->partner && *g->partner == MAGIC + g->number);
    CHECK(GC_base(object) == (char *)object - sizeof(GC_word));
    called[g->number]++;
}

// The closure is a block, too. Nothing but the object keeps it.
static struct guarded *guarded(long number) {
    struct GC_finalizer_closure *c = GC_MALLOC(sizeof *c);
    c->proc = guarded_dies;
    c->cd = &key;
    struct guarded *g = GC_finalized_malloc(sizeof *g, c);
    CHECK(g && !g->number && !g->partner && !g->rest[39]);
    CHECK(GC_size(GC_base(g)) >= sizeof *g + sizeof(GC_word));
    g->number = number;
    g->partner = GC_MALLOC_ATOMIC(sizeof(long));
    *g->partner = MAGIC + number;
    return g;
}
static void make_guarded(void) {
    for (long i = 0; i < OBJECTS; i++) {
        struct guarded *g = guarded(i);
        if (i % 10 == 0)
            held[i / 10] = g;
        if (i % 10 == 1) {
            GC_FREE(GC_base(g));
            freed_by_hand++;
        }
    }
}
static void finalized(void) {
    GC_init_finalized_malloc();
    GC_init_finalized_malloc();
    aside(make_guarded);
    collect();
    int calls = 0;
    for (int i = 0; i < OBJECTS; i++) {
        CHECK(called[i] <= (i % 10 > 1));
        calls += called[i];
    }
    CHECK(freed_by_hand == OBJECTS / 10 && calls >= OBJECTS * 7 / 10);
    for (long i = 0; i < OBJECTS / 10; i++)
        CHECK(held[i]->number == i * 10 && *held[i]->partner == MAGIC + i * 10);
}

// ---- a kind that is asked -----------------------------------------------------------------------

struct asked {
    long number, asked;
    struct asked *next; // one after the other
};
static int asked_times[OBJECTS], let_go[OBJECTS];
static struct asked *asked_held[10];
static unsigned asked_kind;

// libgc also asks about blocks that are free. Their first word is an address or 0, so it is even.
static bool is_filled(const void *block) { return *(const long *)block & 1; }

// Each object is let go when it is asked about for the second time.
static int ask(void *block) {
    struct asked *a = block;
    if (!is_filled(block))
        return 0;
    long i = a->number / 2;
    CHECK(i >= 0 && i < OBJECTS && a->asked == asked_times[i] && !let_go[i]);
    a->asked = ++asked_times[i];
    let_go[i] = asked_times[i] == 2;
    return !let_go[i];
}
static void make_asked(void) {
    for (long i = 0; i < OBJECTS; i++) {
        struct asked *a = GC_generic_malloc(sizeof *a, (int)asked_kind);
        a->number = 2 * i + 1;
        if (i % 100 == 0)
            asked_held[i / 100] = a;
    }
}
static void disclaim(void) {
    asked_kind = GC_new_kind(GC_new_free_list(), 0, 1, 1);
    GC_register_disclaim_proc((int)asked_kind, ask, 0);
    aside(make_asked);
    for (int i = 0; i < 4; i++) {
        collect();
        for (int j = 0; j < 2 * OBJECTS; j++) // libgc asks when blocks of the kind are needed
            GC_generic_malloc(sizeof(struct asked), (int)asked_kind);
    }
    int gone = 0;
    for (int i = 0; i < OBJECTS; i++) {
        CHECK(asked_times[i] <= 2 && (i % 100 || !asked_times[i]));
        gone += let_go[i];
    }
    CHECK(gone > OBJECTS * 9 / 10);
    for (int i = 0; i < 10; i++)
        CHECK(asked_held[i]->number == i * 200 + 1 && !asked_held[i]->asked);
}

// What is dead keeps what it reaches, so each collection frees but the first of a chain.
static void make_chain(void) {
    struct asked *first = NULL;
    for (long i = 0; i < 20; i++) {
        struct asked *a = GC_generic_malloc(sizeof *a, (int)asked_kind);
        a->number = 2 * (20 - i) + 1;
        a->next = first;
        first = a;
    }
}
static int count_chain(void *block) {
    struct asked *a = block;
    if (!is_filled(block))
        return 0;
    if (a->next)
        CHECK(a->next->number == a->number + 2 && !let_go[a->next->number / 2]);
    let_go[a->number / 2] = 1;
    return 0;
}
static void chain_of_asked(void) {
    asked_kind = GC_new_kind(GC_new_free_list(), 0, 1, 1);
    GC_register_disclaim_proc((int)asked_kind, count_chain, 1);
    aside(make_chain);
    for (int i = 0; i < 30; i++)
        collect();
    int gone = 0;
    for (int i = 1; i <= 20; i++)
        gone += let_go[i];
    CHECK(gone >= 18);
}

// ---- marks --------------------------------------------------------------------------------------

static long *first_block, *fresh;
static void marks(void) {
    first_block = GC_MALLOC(64);
    long *uncollectable = GC_MALLOC_UNCOLLECTABLE(64);
    collect();
    CHECK(is_marked(first_block) && is_marked(uncollectable));
    fresh = GC_MALLOC(64);
    CHECK(!is_marked(fresh));
    *first_block = *fresh = MAGIC;
    with_lock(unmark, first_block);
    CHECK(!is_marked(first_block));
    with_lock(mark, first_block);
    CHECK(is_marked(first_block));
    with_lock(unmark, first_block);
    collect();
    CHECK(is_marked(first_block) && is_marked(fresh));
    CHECK(*first_block == MAGIC && *fresh == MAGIC);
}

// Blocks that the program finds by hidden addresses are taken back before the sweep comes to them.
static uintptr_t hidden[OBJECTS];
static int removed[OBJECTS];
static int forget(void *block) {
    if (is_filled(block))
        removed[*(const long *)block / 2]++;
    return 0;
}
static void make_hidden(void) {
    for (long i = 0; i < OBJECTS; i++) {
        long *p = GC_generic_malloc(64, (int)asked_kind);
        p[0] = 2 * i + 1;
        p[7] = MAGIC + i;
        hidden[i] = HIDE(p);
    }
}
static void *take_back(void *count) {
    for (long i = 0; i < OBJECTS; i++) {
        long *p = (long *)HIDE(hidden[i]);
        if (removed[i] || GC_is_marked(p))
            continue;
        CHECK(p[0] == 2 * i + 1 && p[7] == MAGIC + i);
        GC_set_mark_bit(p);
        hidden[i] = (uintptr_t)p; // the table holds it from here on
        *(int *)count += 1;
    }
    return NULL;
}
static int never(void) { return 0; }
static void taken_back(void) {
    int count = 0;
    asked_kind = GC_new_kind(GC_new_free_list(), 0, 1, 1);
    GC_register_disclaim_proc((int)asked_kind, forget, 1);
    aside(make_hidden);
    wipe();
    CHECK(GC_try_to_collect(never));
    with_lock(take_back, &count);
    CHECK(!is_pmalloc || count > OBJECTS / 2); // libgc has asked already
    for (int i = 0; i < 20000; i++)
        memset(GC_generic_malloc(64, GC_I_NORMAL), 0x77, 64);
    collect();
    for (long i = 0; i < OBJECTS; i++) {
        long *p = (long *)hidden[i];
        CHECK(removed[i] <= 1);
        if (!removed[i] && GC_base(p) == p)
            CHECK(p[0] == 2 * i + 1 && p[7] == MAGIC + i);
    }
}

// ---- all that is reached ------------------------------------------------------------------------

static struct node *nodes[OBJECTS];
static uintptr_t dropped[OBJECTS];
static int visits[OBJECTS], visits_dropped, visits_uncollectable;
static void *lasting;

static void make_nodes(void) {
    for (int i = 0; i < OBJECTS; i++) {
        nodes[i] = GC_MALLOC(i % 100 ? 48 : 100000);
        nodes[i]->value = i;
        dropped[i] = HIDE(GC_MALLOC(48));
    }
}
static void visit(void *block, size_t size, void *data) {
    CHECK(data == &key && size >= 16 && GC_base(block) == block && GC_size(block) >= size);
    const struct node *n = block;
    if (size >= 48 && n->value >= 0 && n->value < OBJECTS && nodes[n->value] == n)
        visits[n->value]++;
    for (int i = 0; i < OBJECTS; i++)
        visits_dropped += dropped[i] == HIDE(block);
    visits_uncollectable += block == lasting;
}
static void *enumerate(void *data) {
    GC_enumerate_reachable_objects_inner(visit, data);
    return NULL;
}
static void reached(void) {
    lasting = GC_MALLOC_UNCOLLECTABLE(32);
    aside(make_nodes);
    collect();
    for (int turn = 1; turn <= 2; turn++) {
        visits_dropped = visits_uncollectable = 0;
        with_lock(enumerate, &key);
        for (int i = 0; i < OBJECTS; i++)
            CHECK(visits[i] == turn);
        CHECK(visits_uncollectable == 1);
        // libgc visits free blocks, too, that the next requests will get.
        CHECK(!is_pmalloc || visits_dropped < OBJECTS / 10);
    }
}

// ---- one thread ---------------------------------------------------------------------------------

static volatile long counters[4];
static volatile bool over;
static int sleepers[2];

static void *count(void *which) {
    volatile long *counter = &counters[(intptr_t)which];
    struct node *own = tree(5); // only this thread's stack leads to it
    while (!over) {
        GC_MALLOC(40);
        free(malloc(60));
        ++*counter;
    }
    CHECK(sum(own) == 57);
    return NULL;
}
static void await_more(volatile long *counter) {
    for (long seen = *counter; *counter == seen;)
        sched_yield();
}
static void suspended(void) {
    pthread_t t;
    CHECK(pthread_create(&t, NULL, count, NULL) == 0);
    await_more(&counters[0]);
    for (int i = 0; i < 100; i++) {
        CHECK(!GC_is_thread_suspended(t));
        GC_suspend_thread(t);
        GC_suspend_thread(t);
        CHECK(GC_is_thread_suspended(t));
        long seen = counters[0];
        GC_gcollect();
        kept = tree(9);
        CHECK(counters[0] == seen);
        GC_resume_thread(t);
        GC_resume_thread(t);
        CHECK(!GC_is_thread_suspended(t));
        await_more(&counters[0]);
    }
    over = true;
    CHECK(pthread_join(t, NULL) == 0);
}

static void *ends(void *unused) { return unused; }
static void *sleeps(void *unused) {
    char c;
    CHECK(read(sleepers[0], &c, 1) == 1 && c == 'r');
    counters[0]++;
    CHECK(read(sleepers[0], &c, 1) == 1 && c == 's');
    return unused;
}
static void *resumes_first(void *first) {
    while (!GC_is_thread_suspended(*(pthread_t *)first))
        sched_yield();
    GC_gcollect();
    over = true;
    GC_resume_thread(*(pthread_t *)first);
    return NULL;
}
static void suspended_asleep(void) {
    pthread_t t, self = pthread_self();
    CHECK(pipe(sleepers) == 0 && pthread_create(&t, NULL, sleeps, NULL) == 0);
    GC_suspend_thread(t);
    CHECK(write(sleepers[1], "r", 1) == 1);
    GC_gcollect();
    CHECK(counters[0] == 0 && GC_is_thread_suspended(t));
    GC_resume_thread(t);
    while (!counters[0])
        sched_yield();
    CHECK(write(sleepers[1], "s", 1) == 1 && pthread_join(t, NULL) == 0);
    // One that has ended can be suspended until it is joined. This one suspends itself.
    CHECK(pthread_create(&t, NULL, ends, NULL) == 0);
    GC_suspend_thread(t);
    CHECK(GC_is_thread_suspended(t));
    GC_resume_thread(t);
    CHECK(pthread_join(t, NULL) == 0);
    CHECK(pthread_create(&t, NULL, resumes_first, &self) == 0);
    GC_suspend_thread(self);
    CHECK(over && !GC_is_thread_suspended(self) && pthread_join(t, NULL) == 0);
}

// ---- all threads --------------------------------------------------------------------------------

static void start_counting(pthread_t t[4]) {
    for (intptr_t i = 0; i < 4; i++) {
        CHECK(pthread_create(&t[i], NULL, count, (void *)i) == 0);
        await_more(&counters[i]);
    }
}
static void stopped(void) {
    pthread_t t[4];
    start_counting(t);
    for (int turn = 0; turn < 50; turn++) {
        long seen[4];
        GC_stop_world_external();
        for (int i = 0; i < 4; i++)
            seen[i] = counters[i];
        for (int i = 0; i < 100000; i++)
            CHECK(memcmp(seen, (long *)counters, sizeof seen) == 0);
        GC_start_world_external();
        await_more(&counters[turn % 4]);
    }
    over = true;
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(t[i], NULL) == 0);
}

// The program says things, allocates and ends meanwhile.
static void ends_stopped(void) {
    pthread_t t[4];
    start_counting(t);
    GC_stop_world_external();
    for (int i = 0; i < 20000; i++)
        free(malloc(i % 3000));
    CHECK(puts("stopped") > 0 && fflush(stdout) == 0);
    exit(3);
}

// ---- what is said -------------------------------------------------------------------------------

static void *leak_held;
static void leak(void) {
    leak_held = GC_MALLOC(48);
    guarded(1);
    for (int i = 0; i < 50; i++) {
        GC_MALLOC(48);
        GC_MALLOC_ATOMIC(200);
    }
}
static void leaks(void) {
    GC_set_find_leak(1);
    GC_init_finalized_malloc();
    aside(leak);
    collect();
    printf("held %p, called %d\n", leak_held, called[1]);
}

static void free_list(void) {
    static void *block[20];
    for (int i = 0; i < 20; i++)
        block[i] = GC_MALLOC(90);
    for (int i = 0; i < 20; i += 2) {
        printf("freed %p, held %p\n", block[i], block[i + 1]);
        GC_FREE(block[i]);
    }
    GC_print_free_list(GC_I_NORMAL, 6);
}

static const struct test cases[] = {CASE(finalized), CASE(disclaim),   CASE(chain_of_asked),
                                    CASE(marks),     CASE(taken_back), CASE(reached),
                                    CASE(stopped),   CASE(suspended),  CASE(suspended_asleep),
                                    CASE(leaks),     CASE(free_list),  CASE(ends_stopped)};

int main(int argc, char **argv) {
    GC_INIT();
    GC_allow_register_threads();
    is_pmalloc = getenv("boehm_is_pmalloc") != NULL;
    for (size_t i = 0; argc == 2 && i < sizeof cases / sizeof cases[0]; i++)
        if (!strcmp(cases[i].name, argv[1])) {
            cases[i].run();
            return puts("right") < 0;
        }
    return 2;
}
