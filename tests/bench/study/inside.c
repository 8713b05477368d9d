// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A part of study builds of the library (scripts/study.mk), and of no other. It lets watch.c flush
// in the library's place, where that is preloaded. Where BENCH_COURSE names a file, a thread writes
// a line there every BENCH_COURSE_MS milliseconds (5): what the log and the slabs look like.
//   MS chunks=N active=N live=N dropped=N compacted=N low=N middle=N high=N morphing=N changed=N
//   ended=N
// Slabs are counted by how much of them is in use: under 30%, under 70%, more. Nothing is locked:
// what changes meanwhile may be a little off.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/os.h"
#include "base/sizeclass.h"
#include "blocks/morph.h"
#include "blocks/slab.h"
#include "media/heap.h"
#include "media/log/log.h"
#include "media/log/log_chunks.h"
#include "media/log/log_entry.h"
#include "media/persist.h"

// Of watch.c; libpmem's interface.
__attribute__((weak)) void pmem_flush(const void *addr, size_t len);
__attribute__((weak)) void pmem_drain(void);

struct bands {
    unsigned long low, middle, high, morphing;
};

static void look_at_slabs(struct bands *b) {
    for (uint32_t slab = 0; slab < pm_heap.length >> PM_SLAB_SHIFT; slab++) {
        const struct pm_vslab *v = &pm_vslabs[slab];
        unsigned cls = pm_home_class(pm_slab_home(v));
        if (!cls)
            continue;
        uint64_t used = pm_classes[cls].blocks - v->free_count - v->blocked;
        uint64_t bytes = used * pm_classes[cls].size + v->old_live * pm_classes[v->old_class].size;
        unsigned percent = (unsigned)(bytes * 100 / PM_SLAB_SIZE);
        ++*(percent < 30 ? &b->low : percent < 70 ? &b->middle : &b->high);
        b->morphing += v->old_class != 0;
    }
}

static void say(int fd, uint64_t ms) {
    struct bands b = {0};
    struct pm_log_stats log = pm_log_stats_sum();
    look_at_slabs(&b);
    dprintf(fd,
            "%lu chunks=%lu active=%lu live=%lu dropped=%lu compacted=%lu low=%lu middle=%lu "
            "high=%lu morphing=%lu changed=%lu ended=%lu\n",
            ms, log.chunks, log.active, log.live, log.chunk_drops, log.compactions, b.low, b.middle,
            b.high, b.morphing, pm_morph_counters.begun, pm_morph_counters.ended);
}

// In a build without a log (PM_NO_LOG) a word for each extent is flushed, in a table, in place of
// the log's entry.
void pm_study_put(struct pm_shard *s, uint64_t *at, uint64_t word, uint64_t entry);
void pm_study_put(struct pm_shard *s, uint64_t *at, uint64_t word, uint64_t entry) {
    enum { PAGES = 1 << 24 };
    static uint64_t in_place[PAGES];
    __atomic_store_n(at, word, __ATOMIC_RELEASE);
    pm_log_pos pos = (pm_log_pos)pm_entry_page(entry);
    bool ends = pm_entry_type(entry) == PM_ENTRY_TOMBSTONE;
    uint64_t of = ends ? pm_entry_at(s, pos >> PM_POS_SHIFT, pos & 127) : entry;
    pm_commit_u64(&in_place[pm_entry_page(of) % PAGES], word);
}

static useconds_t pause_us = 5000;
static uint64_t began;
static int course = -1; // the file

static void *follow(void *argument) {
    (void)argument;
    for (;;) {
        usleep(pause_us);
        say(course, pm_os_now_ms() - began);
    }
    return NULL;
}

// It is linked last, so it runs after the heap has been opened.
__attribute__((constructor)) static void begin(void) {
    if (!pm_heap_on_media())
        return;
    if (pmem_flush && pmem_drain && pm_durability == PM_DURABLE_LINE)
        pm_persist = (struct pm_persist_ops){pmem_flush, pmem_drain};
    const char *file = getenv("BENCH_COURSE"), *ms = getenv("BENCH_COURSE_MS");
    course = file ? open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;
    if (course < 0)
        return;
    began = pm_os_now_ms();
    say(course, 0); // a short program may end before the thread has run
    if (ms && atoi(ms) > 0)
        pause_us = (useconds_t)atoi(ms) * 1000;
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, NULL, follow, NULL) != 0)
        abort();
    pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

// It runs before the heap is closed.
__attribute__((destructor)) static void end(void) {
    if (course >= 0 && pm_heap_on_media())
        say(course, pm_os_now_ms() - began);
}
