// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Extent caches: a freed large block is handed out again without the log; what ends its entry; that
// nothing is lost, handed out twice or out of reach.
#include "blocks/extent_cache.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <ucontext.h>

#include "base/cancel.h"
#include "base/os.h"
#include "blocks/stats.h"
#include "blocks/tcache.h"
#include "blocks/verify.h"
#include "heap_fixture.h"
#include "process/entry.h"
#include "process/start.h"

#define KB 1024u

static unsigned flushes;

static void count_flush(const void *addr, size_t len) {
    (void)addr, (void)len;
    flushes++;
}
static void no_drain(void) {}

static void start_with(const char *decay_ms) {
    setenv("PMALLOC_HEAP", fixture_dir, 1);
    setenv("PMALLOC_LIMIT", "64M", 1);
    setenv("PMALLOC_DECAY_MS", decay_ms, 1);
    pm_process_start();
    pm_persist = (struct pm_persist_ops){count_flush, no_drain};
    pm_free(pm_malloc(32 * KB)); // the first look at the clock
    flushes = 0;
}

// Ages count in tenths of an hour: nothing leaves by age.
static void start(void) { start_with("3600000"); }

static uint64_t cached(void) { return pm_extent_stats().cached; }

static void verify(void) {
    struct pm_error err = {0};
    if (pm_verify(true, &err) != PM_OK) {
        CHECK(!"the heap is whole");
        printf("  %s\n", err.text);
    }
}

// Frees blocks until one looks at the clock. They go to the cache, whatever it had.
static void look(void) {
    for (unsigned i = 0; i < 65; i++)
        pm_free(pm_malloc(500 * KB));
}

static void test_steady_state_touches_no_media(void) {
    start();
    char *p = pm_malloc(100 * KB), *q = p;
    memset(p, 1, 100 * KB);
    uint64_t live = pm_log_stats(&pm_heap.shard[0]).live;
    flushes = 0;
    for (unsigned i = 0; i < 1000; i++) {
        pm_free(q);
        CHECK_EQ(cached() >= 1, true);
        CHECK_EQ(*pm_tag_at(p), PM_TAG_NONE);
        q = pm_malloc(100 * KB);
        CHECK(q == p);
    }
    CHECK_EQ(flushes, 0);
    CHECK_EQ(pm_log_stats(&pm_heap.shard[0]).live, live);
    verify();
}

// Whoever holds the lock gets a block all the same, as a handler does that has interrupted it.
static void test_the_cached_path_takes_no_lock(void) {
    start();
    char *p = pm_malloc(100 * KB);
    look();
    p = pm_malloc(100 * KB);
    pm_lock(&pm_heap.shard[0].lock);
    for (unsigned i = 0; i < 40; i++) {
        pm_free(p);
        CHECK_EQ(*pm_tag_at(p), PM_TAG_NONE);
        CHECK(pm_malloc(100 * KB) == p);
    }
    pm_unlock(&pm_heap.shard[0].lock);
    verify();
}

// What a handler had to leave is freed with the next large block, cached or not.
static void test_deferred_frees(void) {
    start();
    char *p = pm_malloc(100 * KB), *small[8];
    for (unsigned i = 0; i < 8; i++)
        small[i] = pm_malloc(16000);
    look();
    pm_lock(&pm_heap.shard[0].lock);
    for (unsigned i = 0; i < 8; i++)
        pm_free(small[i]);
    pm_unlock(&pm_heap.shard[0].lock);
    CHECK(pm_tcache->deferred_count > 0);
    pm_free(p);
    CHECK_EQ(pm_tcache->deferred_count, 0);
    verify();
}

// A thread that has slept since it read the head must not take it for the same list.
static void test_no_head_comes_back(void) {
    start();
    static pm_extent_list list;
    uint32_t a = 0, b = 0;
    MUST((a = pm_extent_allocate(5, 1)) != 0 && (b = pm_extent_allocate(5, 1)) != 0);
    pm_list_push(&list, b, &pm_extents[b]);
    pm_list_push(&list, a, &pm_extents[a]);
    uint64_t seen = list;
    CHECK_EQ(pm_list_pop(&list, &pm_extents), a);
    CHECK_EQ(pm_list_pop(&list, &pm_extents), b);
    pm_list_push(&list, a, &pm_extents[a]);
    CHECK(list != seen);
    CHECK_EQ(pm_list_seize(&list), a);
    CHECK_EQ(pm_list_pop(&list, &pm_extents), 0);
}

#define TRAP_FLAG 0x100ul

static struct pm_extent_cache fresh;
static struct pm_extent *fresh_extents;
static unsigned instructions_left;

static void single_step(bool on) {
    __asm__ volatile("pushfq\n\tandq %0, (%%rsp)\n\torq %1, (%%rsp)\n\tpopfq" ::"r"(~TRAP_FLAG),
                     "r"(on ? TRAP_FLAG : 0)
                     : "cc", "memory");
}

static void first_free(int sig, siginfo_t *info, void *context) {
    (void)sig, (void)info;
    if (--instructions_left)
        return;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~(greg_t)TRAP_FLAG;
    fresh.extents = fresh_extents;
    pm_list_push(&fresh.list[5], 5, fresh_extents + 5);
}

// The first free of an arena fills in its cache. A request that looks into this cache meanwhile may
// be at any instruction.
static void test_the_first_free_amid_a_request(void) {
    struct sigaction action = {.sa_sigaction = first_free, .sa_flags = SA_SIGINFO | SA_NODEFER};
    MUST((fresh_extents = pm_os_reserve(PM_PAGE_SIZE)) != NULL);
    MUST(sigaction(SIGTRAP, &action, NULL) == 0);
    for (unsigned at = 1; at < 100; at++) {
        fresh = (struct pm_extent_cache){0};
        instructions_left = at;
        single_step(true);
        uint32_t index = pm_cached_take(&fresh, 5);
        single_step(false);
        CHECK(index == 0 || index == 5);
    }
}

static void free_deferred(int sig, siginfo_t *info, void *context) {
    (void)sig, (void)info;
    if (--instructions_left)
        return;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~(greg_t)TRAP_FLAG;
    if (!pm_nested())
        pm_free_deferred();
}

// A handler frees what was deferred while the interrupted code does: nothing is freed twice.
static void test_deferred_frees_are_freed_once(void) {
    struct sigaction action = {.sa_sigaction = free_deferred, .sa_flags = SA_SIGINFO | SA_NODEFER};
    start();
    MUST(sigaction(SIGTRAP, &action, NULL) == 0);
    for (unsigned at = 1; at < 300; at++) {
        for (unsigned i = 0; i < 2; i++)
            MUST((pm_tcache->deferred[i] = pm_malloc(32 * KB)) != NULL);
        pm_tcache->deferred_count = 2;
        instructions_left = at;
        single_step(true);
        pm_free_deferred();
        single_step(false);
        CHECK_EQ(pm_tcache->deferred_count, 0);
        CHECK_EQ(pm_extent_stats().active, cached());
    }
    verify();
}

// The range may move until the heap is open.
static void test_volatile_memory_elsewhere(void) {
    setenv("PMALLOC_BACKING", "volatile", 1);
    MUST(mmap((void *)PM_HEAP_BASE, PM_PAGE_SIZE, PROT_NONE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != MAP_FAILED);
    pm_process_start();
    MUST(pm_base != PM_HEAP_BASE);
    char *p = pm_malloc(100 * KB);
    pm_free(p);
    CHECK_EQ(cached(), 1);
    CHECK(pm_malloc(100 * KB) == p);
    verify();
}

static void test_lengths(void) {
    start();
    char *p = pm_malloc(100 * KB);
    size_t length = pm_usable_size(p);
    pm_free(p);
    CHECK(pm_malloc(2 * length) != p);
    CHECK(pm_malloc(length + 1) != p);
    CHECK(pm_malloc(length / 2) != p);
    char *q = pm_malloc(length * 7 / 8); // an eighth less
    CHECK(q == p);
    CHECK_EQ(pm_usable_size(q), length);
    CHECK(pm_realloc(q, length * 7 / 8 - 1) == q); // and it stays
    CHECK_EQ(pm_usable_size(q), length);
    memset(q, 1, length);
    pm_free(q);
    q = pm_calloc(1, length);
    CHECK(q == p);
    for (size_t i = 0; i < length; i++)
        if (q[i]) {
            CHECK(!"calloc gives zeroes");
            break;
        }
    verify();
}

// Every size in its list, at both ends of each length.
static void test_every_length(void) {
    start();
    for (size_t size = PM_SMALL_MAX + 1; pm_large_pages(size) < PM_HUGE_PAGES;) {
        uint64_t bytes = pm_large_pages(size) << PM_PAGE_SHIFT;
        CHECK_EQ(pm_large_list(size), pm_size_list(pm_large_pages(size)));
        CHECK_EQ(pm_large_list(bytes), pm_size_list(pm_large_pages(size)));
        char *p = pm_malloc(size);
        CHECK(p && pm_usable_size(p) >= size);
        pm_free(p);
        char *q = pm_malloc(bytes > size ? size + 1 : size);
        CHECK(q && pm_usable_size(q) >= size);
        CHECK(q == p);
        pm_free(q);
        pm_trim(); // there is no room for one of each length
        size = bytes + 1;
    }
    verify();
    // Just under 2 MiB a block is huge, although its extent would belong to the longest list.
    char *p = pm_malloc(481 << PM_PAGE_SHIFT), *q;
    pm_free(p);
    q = pm_malloc(511 << PM_PAGE_SHIFT);
    CHECK(pm_usable_size(q) >= 511 << PM_PAGE_SHIFT);
}

static void test_alignment(void) {
    start();
    static char *odd[16];
    for (unsigned i = 0; i < 16; i++)
        odd[i] = pm_malloc(20 * KB);
    for (unsigned i = 0; i < 16; i++)
        pm_free(odd[i]);
    char *p = pm_memalign(256 * KB, 20 * KB);
    CHECK_EQ((uintptr_t)p % (256 * KB), 0);
    pm_free(p);
    CHECK(pm_memalign(256 * KB, 20 * KB) == p);
    verify();
}

static void test_another_arena_finds_them(void) {
    start();
    MUST(pm_arena_count >= 2);
    struct pm_extent_cache *other = pm_extent_cache_of(pm_tcache->arena->number ? 0 : 1);
    pm_extent_cache_look(other);
    char *p = pm_malloc(100 * KB);
    CHECK(pm_extent_cache_free(other, p));
    CHECK(pm_malloc(100 * KB) == p);
    struct pm_extent_cache_stats s;
    pm_extent_cache_stats(&s);
    CHECK_EQ(s.stolen, 1);
    verify();
}

#define MANY 300

static void fill(char **block, size_t size) {
    for (unsigned i = 0; i < MANY; i++)
        CHECK((block[i] = pm_malloc(size)) != NULL);
}

static void drop(char **block) {
    for (unsigned i = 0; i < MANY; i++)
        pm_free(block[i]);
}

static char *block[MANY];

// What a program frees all at once, however much of its heap, it finds again.
static void test_all_that_is_freed_is_cached(void) {
    start();
    fill(block, 120 * KB);
    uint64_t others = cached();
    drop(block);
    CHECK_EQ(cached(), others + MANY);
    fill(block, 120 * KB);
    CHECK_EQ(cached(), others); // none came from elsewhere
    verify();
}

static void test_need(void) {
    start();
    fill(block, 120 * KB); // 36 of 64 MB
    drop(block);
    CHECK(cached() > 100);
    CHECK(pm_malloc(50 << 20) != NULL); // they have merged
    CHECK_EQ(cached(), 0);
    CHECK(pm_malloc(50 << 20) == NULL);
    verify();
}

// At the limit even the least that is cached is wanted.
static void test_need_at_the_limit(void) {
    start();
    char *p;
    unsigned count = 0;
    while (count < MANY && (p = pm_malloc(500 * KB)) != NULL)
        block[count++] = p;
    CHECK(count < MANY && count > 20);
    while (pm_malloc(20 * KB))
        ;
    for (unsigned i = 10; i < 14; i++)
        pm_free(block[i]);
    CHECK(cached() > 0 && pm_extent_stats().cached_pages < 1024);
    CHECK(pm_malloc(1200 * KB) != NULL);
    verify();
}

// The heap does not grow while a region or more is cached.
static void test_need_of_slabs(void) {
    start();
    fill(block, 120 * KB);
    drop(block);
    uint64_t frontier = pm_heap.shard[0].frontier;
    for (unsigned i = 0; i < 30000; i++)
        CHECK(pm_malloc(1000) != NULL);
    CHECK(pm_heap.shard[0].frontier <= frontier + (8 << 20));
    CHECK_EQ(cached(), 0);
    verify();
}

static void test_trim(void) {
    start();
    fill(block, 50 * KB);
    drop(block);
    CHECK(cached() > 0);
    uint64_t live = pm_log_stats(&pm_heap.shard[0]).live;
    uint64_t left = cached();
    CHECK(pm_trim());
    CHECK_EQ(cached(), 0);
    CHECK_EQ(pm_log_stats(&pm_heap.shard[0]).live, live - left);
    verify();
}

// Waits for the coarse clock, which the test itself cannot move.
static void wait_ms(uint64_t ms) {
    uint64_t until = pm_os_now_ms() + ms;
    while (pm_os_now_ms() < until)
        sched_yield();
}

static void test_age(void) {
    start_with("200"); // a tick is 20 ms
    fill(block, 50 * KB);
    drop(block);
    uint64_t many = cached();
    CHECK(many > 0);
    wait_ms(25);
    look();
    wait_ms(50);
    look();
    CHECK(cached() <= 2); // what look() itself uses stays
    struct pm_extent_cache_stats s;
    pm_extent_cache_stats(&s);
    CHECK(s.aged >= many - 2);
    verify();
}

static void test_nothing_is_cached_without_decay(void) {
    start_with("0");
    for (unsigned i = 0; i < 200; i++) {
        pm_free(pm_malloc(20 * KB + i * KB));
        CHECK_EQ(cached(), 0);
    }
    verify();
}

static void test_end_finds_what_is_lost(void) {
    start();
    fill(block, 50 * KB);
    char *kept = pm_malloc(70 * KB);
    drop(block);
    uint64_t many = cached(), live = pm_log_stats(&pm_heap.shard[0]).live;
    pm_extent_cache_orphans();
    CHECK_EQ(cached(), many); // by their tags
    verify();
    CHECK(pm_malloc(50 * KB) != NULL);
    pm_extent_cache_end();
    CHECK_EQ(cached(), 0);
    CHECK_EQ(pm_log_stats(&pm_heap.shard[0]).live, live - many + 1);
    CHECK_EQ(*pm_tag_at(kept), PM_TAG_EXTENT);
    verify();
}

static void test_figures_add_up(void) {
    struct pm_stats s;
    start();
    fill(block, 50 * KB);
    for (unsigned i = 0; i < MANY / 2; i++)
        pm_free(block[i]);
    pm_stats_get(&s);
    CHECK(s.large_cached > 0 && s.large_cached <= MANY / 2 + 1);
    CHECK_EQ(s.large_blocks, MANY / 2);
    CHECK_EQ(s.heap_bytes, pm_heap.shard[0].frontier);
}

// ---- threads ------------------------------------------------------------------------------------

#define SLOTS 64
#define THREADS 4
static _Atomic(uint64_t *) shared[SLOTS];
static _Atomic uint64_t wrong;

// Each block has its own address and length at both ends. Blocks move between threads.
static void *hammer(void *arg) {
    uint64_t seed = (uint64_t)(uintptr_t)arg * 0x9e3779b97f4a7c15u + 1;
    for (unsigned i = 0; i < 20000; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        uint64_t words = 2100 + (seed >> 33) % 3000 * (seed >> 60);
        uint64_t *p = pm_malloc(words * 8), *q;
        if (p) {
            p[0] = words;
            p[1] = p[words - 1] = (uint64_t)(uintptr_t)p ^ words;
        }
        q = atomic_exchange(&shared[seed >> 40 & (SLOTS - 1)], p);
        if (q && (q[1] != ((uintptr_t)q ^ q[0]) || q[q[0] - 1] != q[1]))
            atomic_fetch_add(&wrong, 1);
        if (q)
            q[1] = 0;
        pm_free(q);
        if ((seed >> 20) % 2048 == 0)
            pm_trim();
    }
    return NULL;
}

static void test_threads(void) {
    pthread_t id[THREADS];
    start_with("10"); // a tick is a millisecond
    for (uintptr_t i = 0; i < THREADS; i++)
        MUST(pthread_create(&id[i], NULL, hammer, (void *)(i + 1)) == 0);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(id[i], NULL);
    CHECK_EQ(wrong, 0);
    for (unsigned i = 0; i < SLOTS; i++)
        pm_free(shared[i]);
    verify();
    pm_trim();
    struct pm_stats s;
    pm_stats_get(&s);
    CHECK_EQ(s.large_blocks, 0);
    CHECK_EQ(s.large_cached, 0);
    verify();
}

int main(void) {
    RUN_CHILD(steady_state_touches_no_media);
    RUN_CHILD(the_cached_path_takes_no_lock);
    RUN_CHILD(deferred_frees);
    RUN_CHILD(no_head_comes_back);
    RUN_CHILD(the_first_free_amid_a_request);
    RUN_CHILD(deferred_frees_are_freed_once);
    RUN_CHILD(volatile_memory_elsewhere);
    RUN_CHILD(lengths);
    RUN_CHILD(every_length);
    RUN_CHILD(alignment);
    RUN_CHILD(another_arena_finds_them);
    RUN_CHILD(all_that_is_freed_is_cached);
    RUN_CHILD(need);
    RUN_CHILD(need_at_the_limit);
    RUN_CHILD(need_of_slabs);
    RUN_CHILD(trim);
    RUN_CHILD(age);
    RUN_CHILD(nothing_is_cached_without_decay);
    RUN_CHILD(end_finds_what_is_lost);
    RUN_CHILD(figures_add_up);
    RUN_CHILD(threads);
    return check_failures != 0;
}
