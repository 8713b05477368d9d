// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Other threads' caches are emptied, running or not, and their owners go on.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "blocks/alloc.h"
#include "blocks/stats.h"
#include "blocks/take_back.h"
#include "blocks/tcache.h"
#include "blocks/verify.h"
#include "heap_fixture.h"

static void start(void) {
    pm_options_default();
    fixture_new_heap();
}

static void *take(struct pm_tcache *t, unsigned cls) {
    void *p = pm_tcache_pop(t, cls);
    if (!p && pm_tcache_refill(t, cls))
        p = pm_tcache_pop(t, cls);
    return p;
}

static void test_other_caches_are_emptied(void) {
    start();
    struct pm_tcache *mine = pm_tcache_create(), *other = pm_tcache_create();
    pm_tcache = mine;
    void *p = take(other, 9), *q = take(other, 20);
    CHECK(p && take(mine, 9) && pm_tcache_held(20) > 0);
    uint64_t held = pm_tcache_held(9) - mine->stack[9].n + pm_tcache_held(20);
    // A request of class 20 is interrupted.
    uint64_t n = other->stack[20].n;
    CHECK(pm_stack_seize(&other->stack[20]));
    CHECK(pm_take_back());
    CHECK_EQ(pm_take_back_counters.blocks, held - n);
    CHECK_EQ(pm_tcache_held(9), 0);
    CHECK_EQ(pm_tcache_held(20), n);
    pm_stack_leave(&other->stack[20]);
    // For the hot path the stack is neither full nor empty; the slow path opens it.
    CHECK(!pm_tcache_push(other, p) && !pm_tcache_pop(other, 9));
    CHECK(pm_take_back()); // of class 20 alone
    CHECK_EQ(pm_take_back_counters.blocks, held);
    CHECK(pm_tcache_free_to_use(other, 9));
    CHECK(pm_tcache_push(other, p) && pm_tcache_pop(other, 9) == p);
    CHECK(pm_tcache_free_to_use(other, 20) && pm_tcache_push(other, q));
}

// A handler comes between the two instructions of a look at a stack that has been emptied.
static void test_an_emptied_stack_is_opened_once(void) {
    start();
    struct pm_tcache *mine = pm_tcache_create(), *other = pm_tcache_create();
    pm_tcache = mine;
    CHECK(take(other, 9) && pm_take_back());
    struct pm_stack *s = &other->stack[9];
    CHECK(!pm_stack_seize(s));               // its look is over
    s->seized--;                             // the first instruction of the next
    CHECK(!pm_tcache_free_to_use(other, 9)); // the handler
    s->seized++;
    CHECK(pm_tcache_free_to_use(other, 9) && s->n == 0 && s->seized == 0);
    CHECK_EQ(other->emptied[0], 0);
}

static void test_a_thread_ends_after_its_cache_was_emptied(void) {
    start();
    struct pm_tcache *mine = pm_tcache_create(), *other = pm_tcache_create();
    pm_tcache = mine;
    void *p = take(other, 9);
    CHECK(pm_take_back());
    pm_tcache_destroy(other);
    CHECK_EQ(pm_tcache_create(), other);
    CHECK_EQ(other->stack[9].n, 0);
    CHECK(take(other, 9) != p);
    struct pm_stats s;
    pm_stats_get(&s);
    CHECK_EQ(s.cls[9].used, 2);
}

// Without membarrier(2) the owner does it at its next request, which a free is for certain.
static void test_owners_are_asked(void) {
    const struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const struct sock_fprog program = {4, (struct sock_filter *)(uintptr_t)filter};
    start();
    struct pm_tcache *mine = pm_tcache_create(), *other = pm_tcache_create();
    void *p = take(other, 9);
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    pm_tcache = mine;
    errno = 5;
    CHECK(!pm_take_back() && errno == 5);
    CHECK_EQ(pm_take_back_counters.asked, 1);
    CHECK(pm_tcache_held(9) > 0);
    pm_tcache = other;
    CHECK(!pm_tcache_push(other, p));
    pm_tcache_answer(other);
    CHECK_EQ(pm_tcache_held(9), 0);
    CHECK(pm_tcache_push(other, p));
}

// Each block has one owner, whatever the moment at which a cache is emptied.
enum { OWNERS = 3, HELD = 300, EMPTYINGS = 100000 };

// A third of the blocks is pointer-free.
static unsigned tag_of(unsigned i) { return 3 + i % 2 + (i % 3 ? 0 : PM_TAG_POINTER_FREE); }

static void *allocate(unsigned tag) {
    if (pm_tag_is_class(tag))
        return pm_alloc_small(tag);
    void *p = pm_tcache_pop(pm_tcache, tag);
    size_t size = pm_classes[pm_tag_class(tag)].size;
    return p ? p : pm_alloc_of_kind((struct pm_sort){PM_KIND_POINTER_FREE, 0}, size, 0);
}

static _Atomic bool over;
static _Atomic unsigned two_owners;

static void *own_blocks(void *arg) {
    void *held[HELD] = {0};
    uintptr_t me = (uintptr_t)arg;
    unsigned seed = (unsigned)me;
    pm_tcache = pm_tcache_create();
    while (!over) {
        unsigned i = (unsigned)rand_r(&seed) % HELD, tag = tag_of(i);
        if (held[i]) {
            two_owners += *(uintptr_t *)held[i] != me + i || *pm_tag_at(held[i]) != tag;
            pm_alloc_free(held[i], tag);
            held[i] = NULL;
        } else if ((held[i] = allocate(tag))) {
            *(uintptr_t *)held[i] = me + i;
        }
    }
    struct pm_tcache *t = pm_tcache;
    for (unsigned i = 0; i < HELD; i++)
        if (held[i])
            pm_alloc_free(held[i], tag_of(i));
    pm_tcache = &pm_no_tcache;
    pm_tcache_destroy(t);
    return NULL;
}

static void test_caches_are_emptied_while_in_use(void) {
    start();
    void *first =
        pm_alloc_of_kind((struct pm_sort){PM_KIND_POINTER_FREE, 0}, 16, 0); // makes the arenas
    pm_alloc_free(first, PM_TAG_POINTER_FREE + 1);
    pthread_t owner[OWNERS];
    for (uintptr_t i = 0; i < OWNERS; i++)
        MUST(pthread_create(&owner[i], NULL, own_blocks, (void *)((i + 1) << 16)) == 0);
    for (unsigned i = 0; i < EMPTYINGS; i++)
        pm_take_back();
    over = true;
    for (unsigned i = 0; i < OWNERS; i++)
        pthread_join(owner[i], NULL);
    CHECK_EQ(two_owners, 0);
    CHECK(pm_take_back_counters.blocks > 0);
    struct pm_stats s;
    struct pm_error err = {0};
    pm_stats_get(&s);
    CHECK_EQ(s.small_used_bytes, 0);
    CHECK_EQ(s.cached_bytes, 0);
    CHECK_EQ(pm_verify(true, &err), PM_OK);
}

int main(void) {
    RUN_CHILD(other_caches_are_emptied);
    RUN_CHILD(an_emptied_stack_is_opened_once);
    RUN_CHILD(a_thread_ends_after_its_cache_was_emptied);
    RUN_CHILD(owners_are_asked);
    RUN_CHILD(caches_are_emptied_while_in_use);
    return CHECK_DONE();
}
