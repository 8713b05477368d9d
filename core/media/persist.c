// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "persist.h"

#include <cpuid.h>
#include <emmintrin.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/message.h"
#include "base/os.h"
#include "base/os_file.h"

#define LINE 64
#define PAGE 4096

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

static const char *heap_dir = "the heap"; // of the open heap

static _Atomic(const char *) forbidden; // the first call that a sandbox forbids

bool pm_persist_forbidden(const char *call) {
    const char *none = NULL;
    int why = errno;
    if (!pm_os_is_forbidden(why))
        return false;
    if (atomic_compare_exchange_strong(&forbidden, &none, call))
        pm_event(
            PM_EV_SYNC_FORBIDDEN,
            "a sandbox forbids %s (%s), so after a power failure %.300s may be damaged (under "
            "PMALLOC_COMMIT only if it was being opened or closed); a kill does no harm; allow "
            "%s, or keep the heap on tmpfs",
            call, pm_strerror(why), heap_dir, call);
    return true;
}

int pm_persist_exit;
void (*pm_persist_failed)(void);

void pm_sync_failed(void) {
    if (pm_persist_failed)
        pm_persist_failed();
}

// Metadata that must be durable is not. So the process ends here, before anything depends on it.
__attribute__((noreturn, noinline)) static void give_up(int error) {
    static const char text[] = "%.300s: writing its metadata back failed: %s; it is dirty, and "
                               "nothing of it is lost: once the file system works again, start the "
                               "program again or run pmalloc-recover";
    pm_sync_failed();
    if (!pm_persist_exit)
        pm_abort(PM_EV_WRITE_FAILED, text, heap_dir, pm_strerror(error));
    pm_event(PM_EV_WRITE_FAILED, text, heap_dir, pm_strerror(error));
    _exit(pm_persist_exit);
}

// MS_SYNC makes the pages durable at once, so the drain has nothing left to do.
static void flush_pages(const void *addr, size_t len) {
    int saved = errno;
    uintptr_t first = (uintptr_t)addr & ~(uintptr_t)(PAGE - 1);
    size_t bytes = (uintptr_t)addr + len - first;
    if (len &&
        (pm_cancel_asynchronous ? (int)syscall(SYS_msync, first, bytes, MS_SYNC)
                                : msync((void *)first, bytes, MS_SYNC)) != 0 &&
        !pm_persist_forbidden("msync"))
        give_up(errno);
    errno = saved;
}

struct pm_persist_ops pm_persist = {nothing_flush, nothing_drain};
enum pm_durability pm_durability = PM_DURABLE_NONE;
struct pm_persist_count pm_persist_others;
__thread struct pm_persist_count *pm_persist_mine __attribute__((tls_model("initial-exec"))) =
    &pm_persist_others;

#define PAST_CACHES ((size_t)1 << 20)

static void zero_past_caches(char *at, char *end) {
    const __m128i zeroes = _mm_setzero_si128();
    for (; at < end; at += LINE)
        for (unsigned i = 0; i < LINE; i += sizeof zeroes)
            _mm_stream_si128((__m128i *)(void *)(at + i), zeroes);
    _mm_sfence();
}

void pm_zero(void *addr, size_t len) {
    bool dax = pm_durability == PM_DURABLE_LINE || pm_durability == PM_DURABLE_CACHE;
    char *from = addr, *to = from + len;
    if (!dax || len < PAST_CACHES) {
        memset(from, 0, len);
        return;
    }
    size_t before = -(uintptr_t)from % LINE, after = (uintptr_t)to % LINE;
    memset(from, 0, before);
    zero_past_caches(from + before, to - after);
    memset(to - after, 0, after);
}

struct line_flush {
    void (*flush)(const void *, size_t);
    const char *name;
};

static struct line_flush line_flush(void) {
    unsigned a, b = 0, c, d;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        if (b & (1u << 24))
            return (struct line_flush){flush_clwb, "clwb"};
        if (b & (1u << 23))
            return (struct line_flush){flush_clflushopt, "clflushopt"};
    }
    return (struct line_flush){flush_clflush, "clflush"};
}

// True if every persistent region says that CPU caches survive. libpmem's test for auto-flush asks
// the same.
static bool caches_survive(void) {
    bool found = false;
    for (int region = 0; region < 64; region++) {
        char path[96], text[32] = "";
        snprintf(path, sizeof path, "/sys/bus/nd/devices/region%d/persistence_domain", region);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 && errno == ENOENT)
            continue;
        if (fd < 0)
            return false; // a region of which nothing is known
        ssize_t got = read(fd, text, sizeof text - 1);
        close(fd);
        if (got <= 0 || strncmp(text, "cpu_cache", 9) != 0)
            return false;
        found = true;
    }
    return found;
}

// Where a sandbox forbids to ask, we take it for a disk: to flush is right everywhere.
static bool is_memory(int fd, bool *memory) {
    struct statfs fs = {0};
    int status;
    do
        status = fstatfs(fd, &fs);
    while (status != 0 && errno == EINTR);
    *memory = status == 0 && pm_os_fs_in_memory((uint64_t)fs.f_type);
    return status == 0 || errno == EPERM || errno == ENOSYS;
}

bool pm_persist_probe(int fd, enum pm_durability *found) {
    bool memory;
    if (!is_memory(fd, &memory))
        return false;
    *found = PM_DURABLE_NONE;
    if (memory)
        return true;
    *found = PM_DURABLE_PAGE;
    void *page = mmap(pm_os_place(PAGE), PAGE, PROT_READ, MAP_SHARED_VALIDATE | MAP_SYNC, fd, 0);
    if (page == MAP_FAILED)
        return true;
    munmap(page, PAGE);
    *found = pm_persist_probe_device();
    return true;
}

enum pm_durability pm_persist_probe_device(void) {
    return caches_survive() ? PM_DURABLE_CACHE : PM_DURABLE_LINE;
}

static void use(enum pm_durability durability) {
    pm_durability = durability;
    switch (durability) {
    case PM_DURABLE_NONE:
        pm_persist = (struct pm_persist_ops){nothing_flush, nothing_drain};
        break;
    case PM_DURABLE_CACHE:
        pm_persist = (struct pm_persist_ops){nothing_flush, fence_drain};
        break;
    case PM_DURABLE_LINE:
        pm_persist = (struct pm_persist_ops){line_flush().flush, fence_drain};
        break;
    case PM_DURABLE_PAGE:
        pm_persist = (struct pm_persist_ops){flush_pages, fence_drain};
        break;
    }
}

// What a refusal of MAP_SYNC means: nothing, less durability for all files, or an error.
static enum { SYNC_OPTIONAL, SYNC_HOPED, SYNC_PROMISED } sync_is = SYNC_OPTIONAL;
static enum pm_durability medium; // what the data file's medium seemed to give
static const char *refused_file;  // the first file that was refused MAP_SYNC
static char row[320];
static bool journaled; // PMALLOC_COMMIT is at work

static void init(enum pm_durability found, int forced, const char *heap) {
    heap_dir = heap;
    medium = found;
    refused_file = NULL;
    sync_is = forced >= 0 ? SYNC_OPTIONAL : SYNC_HOPED;
    use(forced >= 0 ? (enum pm_durability)forced : medium);
}

int pm_persist_init(int fd, int forced, const char *heap, struct pm_error *err) {
    enum pm_durability found;
    if (!pm_persist_probe(fd, &found))
        return pm_fail(err, PM_OPERATIONAL,
                       "%s: the kind of the file system cannot be read: %s; mend that, and try "
                       "again",
                       heap, pm_strerror(errno));
    init(found, forced, heap);
    return PM_OK;
}

void pm_persist_init_device(int forced, const char *heap) {
    init(pm_persist_probe_device(), forced, heap);
}

bool pm_persist_refused(const char *file) {
    if (sync_is == SYNC_PROMISED)
        return false;
    if (!refused_file)
        refused_file = file;
    if (sync_is == SYNC_HOPED)
        use(PM_DURABLE_PAGE);
    return true;
}

void pm_persist_promise(bool promised) {
    if (sync_is != SYNC_OPTIONAL)
        sync_is = promised ? SYNC_PROMISED : SYNC_HOPED;
}

void pm_persist_journaled(bool on) {
    static enum pm_durability found;
    journaled = on;
    if (on)
        found = pm_durability;
    use(on ? PM_DURABLE_NONE : found);
}

bool pm_persist_syncs(void) { return pm_durability != PM_DURABLE_NONE || journaled; }

bool pm_persist_dax(void) {
    return (medium == PM_DURABLE_LINE || medium == PM_DURABLE_CACHE) && !refused_file;
}

const char *pm_persist_row(void) {
    static const char *const forced[] = {"none", "cache", "line", "page"};
    if (journaled)
        return medium == PM_DURABLE_NONE
                   ? "commit mode on tmpfs: a kill goes back to the last commit; a reboot or power "
                     "loss leaves nothing"
               : pm_persist_dax()
                   ? "commit mode on DAX, by writes and fsync: a kill or power loss goes back to "
                     "the last commit, one instant of all threads"
                   : "commit mode: a kill or power loss goes back to the last commit, one instant "
                     "of all threads";
    const char *text = pm_persist_guarantee(pm_durability);
    if (pm_durability == PM_DURABLE_PAGE && atomic_load(&forbidden))
        return "plain file, and a sandbox forbids to sync it: survives the process; a power loss "
               "may damage it";
    if (sync_is != SYNC_OPTIONAL && refused_file)
        snprintf(row, sizeof row, "%s (no DAX: MAP_SYNC is refused for %s)", text, refused_file);
    else if (sync_is != SYNC_OPTIONAL || pm_durability == medium)
        return text;
    else if (pm_persist_dax() && pm_durability == PM_DURABLE_CACHE)
        snprintf(row, sizeof row, "%s (PMALLOC_PERSIST=cache says so, the kernel does not)", text);
    else
        snprintf(row, sizeof row,
                 "PMALLOC_PERSIST=%s: for measurements; survives the process; nothing is promised "
                 "for power loss",
                 forced[pm_durability]);
    return row;
}

const char *pm_persist_flush_name(enum pm_durability durability) {
    switch (durability) {
    case PM_DURABLE_LINE:
        return line_flush().name;
    case PM_DURABLE_PAGE:
        return "msync";
    case PM_DURABLE_NONE:
    case PM_DURABLE_CACHE:
        break;
    }
    return "none";
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
        return "plain file: the heap survives power loss, the program's data page by page, "
               "whatever had been written back: not one instant";
    }
    return "unknown";
}
