// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "persist.h"

#include <cpuid.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "guard.h"
#include "message.h"

#define LINE 64
#define PAGE 4096
#ifndef MAP_SYNC
#define MAP_SYNC 0x80000
#endif

static void nothing_flush(const void *addr, size_t len) {
    (void)addr;
    (void)len;
    atomic_signal_fence(memory_order_seq_cst);
}

static void nothing_drain(void) { atomic_signal_fence(memory_order_seq_cst); }

// Also the compiler barrier: no store may move across a fence.
static void fence_drain(void) { __asm__ volatile("sfence" ::: "memory"); }

#define FLUSH_WITH(name, instruction)                                                              \
    static void name(const void *addr, size_t len) {                                               \
        uintptr_t line = (uintptr_t)addr & ~(uintptr_t)(LINE - 1);                                 \
        for (; line < (uintptr_t)addr + len; line += LINE)                                         \
            __asm__ volatile(instruction " %0" : "+m"(*(volatile char *)line)::"memory");          \
    }
FLUSH_WITH(flush_clwb, "clwb")
FLUSH_WITH(flush_clflushopt, "clflushopt")
FLUSH_WITH(flush_clflush, "clflush")

// MS_SYNC makes the pages durable at once, so there is nothing left to drain. A failing write means that
// the promise "flushed before it is used" cannot be kept any more: stop before anything depends on it.
static void flush_pages(const void *addr, size_t len) {
    int saved = errno;
    uintptr_t first = (uintptr_t)addr & ~(uintptr_t)(PAGE - 1);
    size_t bytes = (uintptr_t)addr + len - first;
    if (len && (pm_guard_asynchronous ? (int)syscall(SYS_msync, first, bytes, MS_SYNC)
                                      : msync((void *)first, bytes, MS_SYNC)) != 0)
        pm_abort("writing heap metadata back failed: %s; the heap is unclean, run pmalloc-recover "
                 "on it once the file system works again",
                 strerror(errno));
    errno = saved;
}

struct pm_persist_ops pm_persist = {nothing_flush, nothing_drain};
enum pm_durability pm_durability = PM_DURABLE_NONE;
_Atomic uint64_t pm_persist_flushes, pm_persist_drains;

static void (*line_flush(void))(const void *, size_t) {
    unsigned a, b = 0, c, d;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        if (b & (1u << 24))
            return flush_clwb;
        if (b & (1u << 23))
            return flush_clflushopt;
    }
    return flush_clflush;
}

// All persistent regions must say that CPU caches survive; the check libpmem's auto-flush test makes.
static int caches_survive(void) {
    int found = 0;
    for (int region = 0; region < 64; region++) {
        char path[96], text[32] = "";
        snprintf(path, sizeof path, "/sys/bus/nd/devices/region%d/persistence_domain", region);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            continue;
        ssize_t got = read(fd, text, sizeof text - 1);
        close(fd);
        if (got <= 0 || strncmp(text, "cpu_cache", 9) != 0)
            return 0;
        found = 1;
    }
    return found;
}

enum pm_durability pm_persist_probe(int fd) {
    struct statfs fs;
    if (fstatfs(fd, &fs) == 0 && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC))
        return PM_DURABLE_NONE;
    void *page = mmap(NULL, PAGE, PROT_READ, MAP_SHARED_VALIDATE | MAP_SYNC, fd, 0);
    if (page == MAP_FAILED)
        return PM_DURABLE_PAGE;
    munmap(page, PAGE);
    return caches_survive() ? PM_DURABLE_CACHE : PM_DURABLE_LINE;
}

void pm_persist_init(int fd, int forced) {
    pm_durability = forced >= 0 ? (enum pm_durability)forced : pm_persist_probe(fd);
    switch (pm_durability) {
    case PM_DURABLE_NONE:
        pm_persist = (struct pm_persist_ops){nothing_flush, nothing_drain};
        break;
    case PM_DURABLE_CACHE:
        pm_persist = (struct pm_persist_ops){nothing_flush, fence_drain};
        break;
    case PM_DURABLE_LINE:
        pm_persist = (struct pm_persist_ops){line_flush(), fence_drain};
        break;
    case PM_DURABLE_PAGE:
        pm_persist = (struct pm_persist_ops){flush_pages, fence_drain};
        break;
    }
}

const char *pm_persist_guarantee(enum pm_durability durability) {
    switch (durability) {
    case PM_DURABLE_NONE:
        return "tmpfs: survives the process, not a reboot or power loss";
    case PM_DURABLE_CACHE:
        return "DAX with caches in the power-fail domain: survives power loss with every store";
    case PM_DURABLE_LINE:
        return "DAX with ADR: the heap survives power loss, the program's data as far as it "
               "flushed";
    case PM_DURABLE_PAGE:
        return "plain file: survives power loss as of the last write-back";
    }
    return "unknown";
}
