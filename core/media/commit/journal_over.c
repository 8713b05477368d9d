// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "journal_over.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"
#include "journal_files.h"
#include "media/backing/file.h"
#include "media/heap.h"

// From this number of pages on, fresh memory takes the place of pages that are to be zeroes.
enum { ZERO_BY_MAPPING = 16 };

// A private mapping of a part of a file.
static struct window {
    char *at; // NULL: there is none
    uint64_t offset, len;
    uint64_t end; // of the part that has memory: beyond the file's end a mapping has none
    uint64_t full_from, full_to; // of the file: there is no hole
} window[PM_JOURNAL_FILES];

static uint64_t most[PM_JOURNAL_FILES]; // the largest length on the way; 0: no commit names it

static uint64_t page_up(uint64_t bytes) { return (bytes + PM_PAGE_SIZE - 1) & ~(PM_PAGE_SIZE - 1); }

static bool is_there(void) {
    return pm_heap.readonly &&
           (pm_journal_opened.is == PM_JOURNAL_WHOLE || pm_journal_opened.is == PM_JOURNAL_APPLIED);
}
static bool is_over(void) { return pm_heap.readonly && pm_journal_opened.is == PM_JOURNAL_WHOLE; }

// Nobody changes the journal meanwhile: the heap is locked.
static bool each(pm_journal_fn *fn) {
    struct pm_file *journal = &pm_heap.journal;
    struct pm_error ignored;
    void *buffer = pm_os_reserve(PM_JOURNAL_BUFFER);
    bool good = buffer && pm_file_open(journal, O_RDONLY, &ignored) == PM_OK &&
                pm_journal_each(&pm_journal_files, buffer, &pm_journal_opened.commit, fn, NULL);
    int saved = errno;
    if (buffer)
        munmap(buffer, PM_JOURNAL_BUFFER);
    if (!journal->length) {
        if (journal->fd >= 0)
            close(journal->fd);
        journal->fd = -1;
    }
    errno = saved;
    return good;
}

static int failed(struct pm_error *err) {
    return pm_fail(err, PM_OPERATIONAL,
                   "%s/journal: its commits cannot be laid over the other files: %s (see also "
                   "vm.max_map_count)",
                   pm_heap.dir, pm_strerror(errno));
}

// ---- the contents -------------------------------------------------------------------------------

static bool fresh(const struct window *w, uint64_t from, uint64_t to) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
    return from >= to ||
           mmap(w->at + from, to - from, PROT_READ | PROT_WRITE, flags, -1, 0) != MAP_FAILED;
}

static bool reach_to(struct window *w, uint64_t to) {
    uint64_t from = w->end;
    to = page_up(to);
    if (to <= from)
        return true;
    w->end = to;
    return fresh(w, from, to);
}

static bool cut(struct window *w, uint64_t at) {
    uint64_t next = page_up(at);
    if (at < w->end)
        memset(w->at + at, 0, next - at);
    return fresh(w, next, w->end) && reach_to(w, at);
}

// A store to a hole would make the kernel fill the hole in the file, if that lies in memory. tmpfs
// looks at each page up to the next hole. So the answer is kept.
static bool has_hole(unsigned file, uint64_t at, uint64_t len) {
    struct window *w = &window[file];
    if (at < w->full_from || at + len > w->full_to) {
        const struct pm_file *f = pm_journal_heap_file(file);
        off_t hole = lseek(f->fd, (off_t)(f->at + at), SEEK_HOLE);
        w->full_from = at;
        w->full_to = hole < 0 ? at : (uint64_t)hole - f->at;
    }
    return at + len > w->full_to;
}

static bool lay_pages(unsigned file, const struct pm_journal_entry *e, const char *from) {
    struct window *w = &window[file];
    uint64_t first = e->first * PM_PAGE_SIZE, end = first + (uint64_t)e->pages * PM_PAGE_SIZE;
    uint64_t start = first > w->offset ? first : w->offset;
    bool zeroes = e->kind == PM_JOURNAL_ZERO;
    end = end < w->offset + w->len ? end : w->offset + w->len;
    if (zeroes && end > w->offset + w->end)
        end = w->offset + w->end; // what comes there later is zeroes anyway
    if (start >= end)
        return true;
    char *to = w->at + (start - w->offset);
    bool replace = (zeroes && e->pages >= ZERO_BY_MAPPING) || has_hole(file, start, end - start);
    if (!reach_to(w, end - w->offset) || (replace && !fresh(w, start - w->offset, end - w->offset)))
        return false;
    if (!zeroes)
        memcpy(to, from + (start - first), end - start);
    else if (!replace)
        memset(to, 0, end - start);
    return true;
}

// Space that heap.0 of a fixed medium gives back stays in it, with what it has.
static bool keeps_length(unsigned file) {
    return file % PM_JOURNAL_MEMBERS == PM_JOURNAL_DATA && pm_journal_heap_file(file)->length;
}

static bool lay(const struct pm_journal_io *io, const struct pm_journal_entry *e, const char *from,
                void *arg) {
    (void)io, (void)arg;
    unsigned file = pm_journal_file(e->member, e->shard);
    struct window *w = &window[file];
    if (!w->at)
        return true;
    if (e->kind != PM_JOURNAL_LENGTH)
        return lay_pages(file, e, from);
    if (keeps_length(file))
        return true;
    uint64_t limit = w->offset + w->len, at = e->first < limit ? e->first : limit;
    return cut(w, at > w->offset ? at - w->offset : 0);
}

// A part of the file that is mapped private from now on.
static bool open_window(unsigned file, char *at, uint64_t offset, uint64_t len) {
    const struct pm_file *f = pm_journal_heap_file(file);
    struct stat st;
    const int flags = MAP_PRIVATE | MAP_NORESERVE | (at ? MAP_FIXED : 0);
    void *map = mmap(at, len, PROT_READ | PROT_WRITE, flags, f->fd, (off_t)(f->at + offset));
    if (map == MAP_FAILED || fstat(f->fd, &st) != 0)
        return false;
    uint64_t there = f->length ? f->room : page_up((uint64_t)st.st_size);
    there = there > offset ? there - offset : 0;
    window[file] =
        (struct window){.at = map, .offset = offset, .len = len, .end = there < len ? there : len};
    return true;
}

static bool lay_over(bool writable) {
    bool good = each(lay);
    for (unsigned file = 0; file < PM_JOURNAL_FILES && good; file++)
        if (window[file].at && !writable)
            good = mprotect(window[file].at, window[file].len, PROT_READ) == 0;
    memset(window, 0, sizeof window);
    return good;
}

int pm_journal_over_super(struct pm_error *err) {
    const struct pm_file *f = &pm_heap.super_file;
    if (!is_over() || (open_window(PM_JOURNAL_SUPER, f->map, 0, f->reach) && lay_over(false)))
        return PM_OK;
    return failed(err);
}

int pm_journal_over_files(struct pm_error *err) {
    bool good = true;
    if (!is_over())
        return PM_OK;
    for (unsigned file = 0; file < PM_JOURNAL_FILES && good; file++) {
        const struct pm_file *f = pm_journal_heap_file(file);
        uint64_t len = page_up(most[file]);
        if (file != PM_JOURNAL_SUPER && len && f->map)
            good = open_window(file, f->map, 0, len < f->reach ? len : f->reach);
    }
    return good && lay_over(false) ? PM_OK : failed(err);
}

bool pm_journal_over_borrowed(void) {
    bool good = !is_over() ||
                open_window(PM_JOURNAL_SUPER, pm_heap.super_file.map, 0, pm_heap.super_file.reach);
    for (unsigned i = 0; i < pm_heap.shards && good && is_over(); i++) {
        const struct pm_file *f = &pm_heap.shard[i].data;
        good = f->size == 0 ||
               open_window(pm_journal_file(PM_JOURNAL_DATA, i), f->map, 0, page_up(f->size));
    }
    return good && (!is_over() || lay_over(true));
}

const void *pm_journal_over_map_roots(uint64_t offset, uint64_t len) {
    if (!is_over())
        return pm_file_view(&pm_heap.roots, len, offset);
    if (!open_window(PM_JOURNAL_ROOTS, NULL, offset, len))
        return NULL;
    void *map = window[PM_JOURNAL_ROOTS].at;
    if (lay_over(false))
        return map;
    munmap(map, len);
    return NULL;
}

// ---- the lengths --------------------------------------------------------------------------------

// What pm_journal_write_through() would do to the length. Pages of a part do not make it longer.
static bool lengthen(const struct pm_journal_io *io, const struct pm_journal_entry *e,
                     const char *from, void *arg) {
    (void)io, (void)from, (void)arg;
    unsigned file = pm_journal_file(e->member, e->shard);
    struct pm_file *f = pm_journal_heap_file(file);
    uint64_t end = (e->first + e->pages) * PM_PAGE_SIZE;
    if (f->fd < 0)
        return true;
    if (e->kind == PM_JOURNAL_LENGTH && (e->first > f->size || !keeps_length(file)))
        f->size = f->length ? page_up(e->first) : e->first;
    else if (e->kind == PM_JOURNAL_PAGE && end > f->size && !f->length)
        f->size = end;
    most[file] = most[file] > f->size ? most[file] : f->size;
    return true;
}

int pm_journal_over_sizes(struct pm_error *err) {
    memset(most, 0, sizeof most);
    if (!is_there() || each(lengthen))
        return PM_OK;
    return failed(err);
}
