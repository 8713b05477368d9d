// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Reads and writes of libc's streams, for PMALLOC_COMMIT=idle and =output. Inside libc they do not
// come by the names read and write.
//
// In glibc each stream has a table of functions (its vtable). The tables are data, read-only after
// relocation, and only there may a stream's table lie: glibc checks its address at each call. So
// the tables stay where they are, and two of their words are replaced: the addresses of the
// exported functions _IO_file_read and _IO_file_write. They are found by their value, so that no
// layout of a table is assumed. Streams of program's own functions (fopencookie) have other words.
//
// In musl each stream has its functions in itself, so there is nothing to replace.
#include "streams.h"

#include <dlfcn.h>
#include <link.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>

#include "base/geometry.h"
#include "base/message.h"
#include "commit/commits.h"
#include "commit/triggers.h"
#include "export.h"

static void say_not_covered(void) {
    pm_event(PM_EV_STREAMS_NOT_COVERED,
             "PMALLOC_COMMIT=%s: what the program %s by stdio is not covered: this libc's streams "
             "cannot be followed; other calls are",
             pm_commits_mode() == PM_COMMITS_IDLE ? "idle" : "output",
             pm_commits_mode() == PM_COMMITS_IDLE ? "waits for" : "says");
}

#ifdef __GLIBC__
typedef ssize_t stream_read(FILE *, void *, ssize_t);
typedef ssize_t stream_write(FILE *, const void *, ssize_t);

static stream_read *libc_read;
static stream_write *libc_write;

static ssize_t read_stream(FILE *stream, void *to, ssize_t len) {
    struct pm_call call = {
        .memory = {{to, (size_t)len}}, .kind = PM_CALL_READS, .fd = stream->_fileno};
    pm_trigger_before(&call);
    pm_call_enter(&call);
    ssize_t result = libc_read(stream, to, len);
    pm_call_leave(&call);
    pm_trigger_after(&call);
    return result;
}

static ssize_t write_stream(FILE *stream, const void *from, ssize_t len) {
    struct pm_call call = {.kind = PM_CALL_SAYS, .fd = stream->_fileno};
    pm_trigger_before(&call);
    return libc_write(stream, from, len);
}

struct tables {
    uintptr_t base;  // of libc
    uintptr_t *from; // its data that are read-only after relocation
    size_t words;
};

static int find_tables(struct dl_phdr_info *object, size_t size, void *arg) {
    struct tables *t = arg;
    (void)size;
    for (unsigned i = 0; object->dlpi_addr == t->base && i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        if (part->p_type != PT_GNU_RELRO)
            continue;
        t->from = (uintptr_t *)(t->base + (part->p_vaddr & ~(sizeof(uintptr_t) - 1)));
        t->words = part->p_memsz / sizeof(uintptr_t);
    }
    return t->words != 0;
}

// A single store: other threads may call by the word meanwhile.
static bool replace(uintptr_t *word, uintptr_t by) {
    void *page = (void *)((uintptr_t)word & ~(PM_PAGE_SIZE - 1));
    if (mprotect(page, PM_PAGE_SIZE, PROT_READ | PROT_WRITE) != 0)
        return false;
    __atomic_store_n(word, by, __ATOMIC_RELEASE);
    return mprotect(page, PM_PAGE_SIZE, PROT_READ) == 0;
}

// How many words were replaced.
static unsigned replace_all(const struct tables *t, uintptr_t old, uintptr_t by) {
    unsigned count = 0;
    for (size_t i = 0; i < t->words; i++)
        count += t->from[i] == old && replace(&t->from[i], by);
    return count;
}

void pm_streams_cover(void) {
    struct tables t = {0};
    struct link_map *libc;
    Dl_info info;
    if (!pm_triggers_on)
        return;
    void *table = dlsym(RTLD_NEXT, "_IO_file_jumps");
    *(void **)&libc_read = dlsym(RTLD_NEXT, "_IO_file_read");
    *(void **)&libc_write = dlsym(RTLD_NEXT, "_IO_file_write");
    bool found = table && libc_read && libc_write &&
                 dladdr1(table, &info, (void **)&libc, RTLD_DL_LINKMAP) != 0;
    if (found) {
        t.base = libc->l_addr;
        dl_iterate_phdr(find_tables, &t);
    }
    if (!replace_all(&t, (uintptr_t)libc_read, (uintptr_t)read_stream) ||
        !replace_all(&t, (uintptr_t)libc_write, (uintptr_t)write_stream))
        say_not_covered();
}

// From glibc 2.37 on these write without a stream.
extern int __vdprintf_chk(int fd, int flag, const char *format, va_list args);
extern int __dprintf_chk(int fd, int flag, const char *format, ...);

static int print(int fd, int flag, const char *format, va_list args) {
    typedef int plain_fn(int, const char *, va_list);
    typedef int checked_fn(int, int, const char *, va_list);
    plain_fn *plain;
    checked_fn *checked;
    struct pm_call call = {.kind = PM_CALL_SAYS, .fd = fd};
    pm_trigger_before(&call);
    *(void **)&plain = dlsym(RTLD_NEXT, "vdprintf");
    *(void **)&checked = flag < 0 ? NULL : dlsym(RTLD_NEXT, "__vdprintf_chk");
    return checked ? checked(fd, flag, format, args) : plain(fd, format, args);
}

EXPORT int vdprintf(int fd, const char *format, va_list args) {
    return print(fd, -1, format, args);
}

EXPORT int __vdprintf_chk(int fd, int flag, const char *format, va_list args) {
    return print(fd, flag, format, args);
}

EXPORT int dprintf(int fd, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int result = print(fd, -1, format, args);
    va_end(args);
    return result;
}

EXPORT int __dprintf_chk(int fd, int flag, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int result = print(fd, flag, format, args);
    va_end(args);
    return result;
}
#else
void pm_streams_cover(void) {
    if (pm_triggers_on)
        say_not_covered();
}
#endif
