// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "changed_pages.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/inherited_filter.h"
#include "base/os.h"
#include "base/own_memory.h"
#include "base/proc.h"
#include "journal_files.h"
#include "media/backing/backing.h"
#include "media/backing/careful.h"
#include "media/backing/journal_part.h"
#include "media/backing/marks.h"
#include "media/backing/work_copy.h"
#include "media/journal/page_sums.h"
#include "media/own_pages.h"
#include "stored_pages.h"

#define STRIDE 64u // pages that are looked at together
// A run of at least this number of pages is looked at where it lies. Shorter ones are copied first,
// many by one call: to ask for each whether it can be read would take a call, too.
#define ALONE 16u

// A page of data that no commit of this process has written goes to the journal as it is, up to
// this number of them in a commit: nearly all of them have changed since the program's start, and
// to read each one's file takes a call, and may take a disk. Not a page of zeroes: the kernel may
// have made it with 511 others for one store.
#define UNREAD 4096u

// What a page belongs to.
struct of {
    unsigned file;
    char *start;     // where its first byte would be
    uint64_t length; // under the last commit: it has no bytes beyond
};

static struct looking {
    struct pm_journal *journal;
    struct pm_commit_cost *cost;
    bool drop;
    bool live;       // a round: other threads run
    bool left;       // in a round: pages that could not be looked at
    bool waits;      // short runs of all files are copied by one call
    unsigned unread; // how many more may go unread
    int pagemap;     // of pm_own_open()
    struct of of;
    const char *copy;            // its copy in memory, or NULL
    bool part;                   // of a fixed medium
    uint64_t hole_from, hole_to; // where the file was found to have no data
} looking;

static char *file_buffer, *gathered_buffer; // STRIDE pages each
static struct of *gathered_of;              // STRIDE
static pid_t self;

bool pm_changed_prepare(void) {
    self = getpid();
    file_buffer = file_buffer ? file_buffer : pm_own_reserve(STRIDE * PM_PAGE_SIZE);
    gathered_buffer = gathered_buffer ? gathered_buffer : pm_own_reserve(STRIDE * PM_PAGE_SIZE);
    gathered_of = gathered_of ? gathered_of : pm_own_reserve(STRIDE * sizeof *gathered_of);
    pm_inherited_ends(PM_INHERITED_PROCESS_MADVISE); // the first answer takes a while
    return file_buffer && gathered_buffer && gathered_of;
}

void pm_changed_begin(struct pm_journal *journal, enum pm_changed_when when,
                      struct pm_commit_cost *cost) {
    looking = (struct looking){
        .journal = journal,
        .cost = cost,
        .drop = when == PM_CHANGED_INSTANT_DROP,
        .live = when == PM_CHANGED_ROUND,
        .waits = when == PM_CHANGED_INSTANT,
        .unread = when == PM_CHANGED_AFTER || pm_own_way == PM_OWN_ALL ? 0 : UNREAD,
        .pagemap = when == PM_CHANGED_AFTER ? -1 : pm_own_open()};
}

// ---- what the file has --------------------------------------------------------------------------

static void look_into(const struct of *of) {
    if (of->file != looking.of.file)
        looking.hole_from = looking.hole_to = 0;
    looking.of = *of;
    looking.part = pm_journal_part(of->file);
    looking.copy = of->file % PM_JOURNAL_MEMBERS == PM_JOURNAL_DATA
                       ? pm_work_bytes(&pm_heap.shard[of->file / PM_JOURNAL_MEMBERS])
                       : NULL;
}

// Beyond its end a file has zeroes. A fixed medium that was not empty may have anything where data
// are written first.
static bool is_known(uint64_t end) {
    return end <= looking.of.length || looking.of.file % PM_JOURNAL_MEMBERS != PM_JOURNAL_DATA ||
           pm_heap_fresh_is_zero();
}

// NULL: it cannot be read, or is not known.
static const char *read_file(uint64_t at, size_t len) {
    uint64_t there = at < looking.of.length ? looking.of.length - at : 0;
    if (looking.copy)
        return looking.copy + at;
    if (!is_known(at + len))
        return NULL;
    if (there < len)
        memset(file_buffer + there, 0, len - there);
    bool good = there == 0 ||
                pm_journal_files.read(looking.of.file, file_buffer, there < len ? there : len, at);
    return good ? file_buffer : NULL;
}

// Whether the page has no data in the file, and so is zeroes there. One call serves for all of the
// hole.
static bool is_in_hole(uint64_t at) {
    uint64_t end = at + PM_PAGE_SIZE;
    if (looking.copy || !is_known(end) ||
        atomic_load_explicit(&pm_proc_no_detour, memory_order_relaxed))
        return false;
    if (at >= looking.of.length || (at >= looking.hole_from && end <= looking.hole_to))
        return true;
    looking.hole_from = at;
    looking.hole_to = pm_journal_next_data(looking.of.file, at);
    return end <= looking.hole_to;
}

// Pages that lie in a row. The file is read at the first page that asks for it, to their end.
struct row {
    const char *bytes; // the pages' contents
    size_t len;
    uint64_t offset; // in the file
    const char *file;
    size_t file_from; // file: the file's contents from this page on
    bool file_read;
};

static const char *file_page(struct row *r, size_t from) {
    if (!r->file_read) {
        r->file_read = true;
        r->file_from = from;
        r->file = read_file(r->offset + from, r->len - from);
    }
    return r->file ? r->file + (from - r->file_from) : NULL;
}

// ---- a page -------------------------------------------------------------------------------------

// Pieces that are to be given back by one call, while the threads are held. From Linux 6.15 on a
// process names itself without a descriptor, and may ask this of itself.
#define SELF (-10001) // PIDFD_SELF_THREAD_GROUP, which older headers lack
static struct iovec dropping[STRIDE];
static size_t dropping_runs;

static size_t drop_together(void) {
    static bool refused;
    long got = -1;
    if (dropping_runs > 1 && !refused && !pm_inherited_ends(PM_INHERITED_PROCESS_MADVISE)) {
        got = syscall(SYS_process_madvise, SELF, dropping, dropping_runs, MADV_DONTNEED, 0);
        refused = got < 0;
    }
    return got > 0 ? (size_t)got : 0;
}

static void count_dropped(size_t len) {
    looking.cost->dropped += len / PM_PAGE_SIZE;
    looking.cost->copied -= len / PM_PAGE_SIZE;
}

// The kernel stops at a piece that it cannot give back.
static void drop_gathered(void) {
    size_t done = drop_together(), before = 0;
    for (size_t i = 0; i < dropping_runs; before += dropping[i++].iov_len)
        if (before + dropping[i].iov_len <= done ||
            madvise(dropping[i].iov_base, dropping[i].iov_len, MADV_DONTNEED) == 0)
            count_dropped(dropping[i].iov_len);
    dropping_runs = 0;
}

// The pieces of a run show the file again: each lies in one released range, or in none.
static void drop_piece(char *at, size_t len) {
    enum pm_emptied_is is = PM_EMPTIED_NOT;
    if (pm_heap_offset(at) < pm_range)
        is = pm_emptied_map(pm_heap_offset(at), len);
    if (is == PM_EMPTIED_NOT) {
        dropping[dropping_runs++] = (struct iovec){at, len};
        if (dropping_runs == STRIDE)
            drop_gathered();
    } else if (is != PM_EMPTIED_KEPT) {
        count_dropped(len);
    }
}

static void drop(char *at, size_t len) {
    for (size_t part; looking.drop && len; at += part, len -= part) {
        part = pm_heap_offset(at) < pm_range ? pm_emptied_piece(pm_heap_offset(at), len) : len;
        drop_piece(at, part);
    }
}

// A page that this commit has already must not be dropped: its file lacks it.
enum page_is { SAME, HAD, DIFFERS, ZEROES };

static bool is_empty(const char *page) {
    static const char zeroes[PM_PAGE_SIZE];
    return memcmp(page, zeroes, PM_PAGE_SIZE) == 0;
}

static enum page_is same_or_had(struct row *r, size_t from) {
    return pm_sums_taken(looking.of.file, (r->offset + from) / PM_PAGE_SIZE) ? HAD : SAME;
}

// A data file that was cut, and is long again, has zeroes there. So have the sums: the space was
// released first (pm_journaled_set_length). Where a page may be dropped there is no lap, and what
// the sums say is what the files have durably.
static enum page_is compare(struct row *r, size_t from) {
    const char *page = r->bytes + from;
    switch (pm_sums_ask(looking.of.file, (r->offset + from) / PM_PAGE_SIZE, page)) {
    case PM_SUM_SAME:
        return same_or_had(r, from);
    case PM_SUM_OTHER:
        return DIFFERS;
    case PM_SUM_NONE:
        break;
    }
    bool empty = is_empty(page);
    if (empty && is_in_hole(r->offset + from))
        return SAME;
    if (!empty && !looking.copy && looking.unread &&
        looking.of.file % PM_JOURNAL_MEMBERS == PM_JOURNAL_DATA) {
        looking.unread--;
        return DIFFERS;
    }
    const char *file = file_page(r, from);
    return file && memcmp(page, file, PM_PAGE_SIZE) == 0 ? SAME : DIFFERS;
}

static enum page_is compare_and_take(struct row *r, size_t from) {
    uint64_t page = (r->offset + from) / PM_PAGE_SIZE;
    enum page_is is = compare(r, from);
    if (is == DIFFERS && !pm_sums_taken(looking.of.file, page))
        pm_sums_take(looking.of.file, page, 1, r->bytes + from);
    return is;
}

// On a fixed medium zeroes need little of the journal. Elsewhere they would cost the file the space
// of a block that is in use.
static enum page_is look_at_page(struct row *r, size_t from) {
    enum page_is is = compare_and_take(r, from);
    return is == DIFFERS && looking.part && is_empty(r->bytes + from) ? ZEROES : is;
}

// ---- many pages ---------------------------------------------------------------------------------

// Copied pages whose contents are `bytes`: those that differ go to the journal.
static void look_at_pages(char *at, const char *bytes, size_t len) {
    struct row r = {.bytes = bytes, .len = len, .offset = (uint64_t)(at - looking.of.start)};
    enum page_is is = look_at_page(&r, 0), next = is;
    for (size_t from = 0, to; from < len; from = to, is = next) {
        for (to = from + PM_PAGE_SIZE; to < len; to += PM_PAGE_SIZE)
            if ((next = look_at_page(&r, to)) != is)
                break;
        uint64_t first = (r.offset + from) / PM_PAGE_SIZE, pages = (to - from) / PM_PAGE_SIZE;
        if (is == SAME)
            drop(at + from, to - from);
        else if (is == ZEROES)
            pm_journal_add_zeroes(looking.journal, looking.of.file, first, pages);
        else if (is == DIFFERS)
            pm_journal_add_pages(looking.journal, looking.of.file, first, bytes + from, pages);
    }
}

// At most STRIDE pages. Of a page that cannot be read at all the last commit's contents stay.
static void look_at_stride(char *at, size_t len) {
    bool all = pm_careful_may_load(at, len);
    if (all)
        look_at_pages(at, at, len);
    for (char *page = at; page < at + len && !all; page += PM_PAGE_SIZE) {
        const char *bytes = pm_careful_page(page);
        if (bytes)
            look_at_pages(page, bytes, PM_PAGE_SIZE);
    }
}

// ---- short runs ---------------------------------------------------------------------------------

static struct iovec gathered[STRIDE];
static size_t gathered_runs;
static size_t gathered_bytes;

// Copies them all. How many bytes that went well for: the kernel stops at a page that the program
// may not read.
static size_t copy_gathered(void) {
    struct iovec to = {gathered_buffer, gathered_bytes};
    long got = -1;
    bool worth = looking.live || gathered_runs > 1;
    if (worth && !atomic_load_explicit(&pm_proc_no_detour, memory_order_relaxed))
        got = syscall(SYS_process_vm_readv, self, &to, 1, gathered, gathered_runs, 0L);
    return got > 0 ? (size_t)got : 0;
}

static void look_at_gathered(void) {
    if (!gathered_runs)
        return;
    size_t copied = copy_gathered(), before = 0;
    struct of of = looking.of;
    for (size_t i = 0; i < gathered_runs; before += gathered[i++].iov_len) {
        look_into(&gathered_of[i]);
        if (before + gathered[i].iov_len <= copied)
            look_at_pages(gathered[i].iov_base, gathered_buffer + before, gathered[i].iov_len);
        else if (looking.live)
            looking.left = true;
        else
            look_at_stride(gathered[i].iov_base, gathered[i].iov_len);
    }
    look_into(&of);
    gathered_runs = 0;
    gathered_bytes = 0;
}

static void gather(char *at, size_t len) {
    if (gathered_bytes + len > STRIDE * PM_PAGE_SIZE)
        look_at_gathered();
    gathered_of[gathered_runs] = looking.of;
    gathered[gathered_runs++] = (struct iovec){at, len};
    gathered_bytes += len;
}

// What may be given back is, file by file: the caller asks after each how much that was.
static void end_look(void) {
    if (looking.waits)
        return;
    look_at_gathered();
    drop_gathered();
}

bool pm_changed_end(void) {
    look_at_gathered();
    pm_own_close(looking.pagemap);
    pm_careful_end();
    return !looking.left;
}

static void look_at_part(char *at, size_t len) {
    looking.cost->copied += len / PM_PAGE_SIZE;
    looking.cost->compared += len / PM_PAGE_SIZE;
    for (size_t part; len; at += part, len -= part) {
        part = len < STRIDE * PM_PAGE_SIZE ? len : STRIDE * PM_PAGE_SIZE;
        if (looking.live || part < ALONE * PM_PAGE_SIZE)
            gather(at, part);
        else
            look_at_stride(at, part);
    }
}

// A mapping that the program has made over its blocks is no part of the heap.
static void look_at_run(char *at, size_t len, void *arg) {
    (void)arg;
    uint64_t offset = pm_heap_offset(at), end = offset + len;
    if (offset >= pm_range || !pm_marks_any()) {
        look_at_part(at, len);
        return;
    }
    for (; (len = pm_marks_free_of(PM_MARK_AWAY, &offset, end)) != 0; offset += len)
        look_at_part(pm_heap_at(offset), len);
}

void pm_changed_look(unsigned file, char *at, size_t len, uint64_t offset, uint64_t length) {
    look_into(&(struct of){file, at - offset, length});
    pm_own_pages_by(looking.pagemap, at, len, look_at_run, NULL);
    end_look();
}

struct pieces {
    const struct pm_changed_piece *piece;
    size_t count;
    unsigned file;
    uint64_t length;
};

static void look_at_run_of_pieces(char *at, size_t len, void *pieces) {
    const struct pieces *p = pieces;
    for (size_t i = 0; i < p->count; i++) {
        char *from = p->piece[i].at, *end = from + p->piece[i].len;
        look_into(&(struct of){p->file, from - p->piece[i].offset, p->length});
        from = at > from ? at : from;
        end = at + len < end ? at + len : end;
        if (from < end)
            look_at_run(from, (size_t)(end - from), NULL);
    }
}

void pm_changed_look_pieces(unsigned file, const struct pm_changed_piece *piece, size_t count,
                            uint64_t length) {
    struct pieces pieces = {piece, count, file, length};
    const struct pm_changed_piece *last = &piece[count - 1];
    pm_own_pages_by(looking.pagemap, piece->at, (size_t)(last->at + last->len - piece->at),
                    look_at_run_of_pieces, &pieces);
    end_look();
}

bool pm_changed_find_stored(unsigned file, char *at, size_t len, bool anew) {
    return pm_stored_find(file, looking.pagemap, at, len, anew);
}

// Pages that commits have written are compared by their sums, wherever they lie.
static bool is_known_by_sums(char *at, size_t len) {
    uint64_t first = (uint64_t)(at - looking.of.start) / PM_PAGE_SIZE;
    return pm_sums_known(looking.of.file, first, len / PM_PAGE_SIZE);
}

void pm_changed_look_stored(unsigned file, char *start, uint64_t length, uint64_t from,
                            uint64_t to) {
    look_into(&(struct of){file, start, length});
    pm_stored_each(file, looking.pagemap, from, to, is_known_by_sums, look_at_run, NULL);
    end_look();
}

static void look_at_copies(char *at, size_t len, void *copies) {
    const char **copy = copies;
    looking.cost->compared += len / PM_PAGE_SIZE;
    for (size_t part; len; at += part, len -= part, *copy += part) {
        part = len < STRIDE * PM_PAGE_SIZE ? len : STRIDE * PM_PAGE_SIZE;
        look_at_pages(at, *copy, part);
    }
}

void pm_changed_look_copied(unsigned file, char *start, uint64_t length, const char **copies,
                            uint64_t to) {
    look_into(&(struct of){file, start, length});
    pm_stored_part(file, 0, to, look_at_copies, copies);
}

// ---- pages that were not stored to --------------------------------------------------------------

#define SPAN ((uint64_t)512 * PM_PAGE_SIZE) // looked at in one call

static bool is_had(const char *at) {
    return pm_sums_taken(looking.of.file, (uint64_t)(at - looking.of.start) / PM_PAGE_SIZE);
}

static void drop_rest(char *at, size_t len, void *arg) {
    (void)arg;
    for (size_t i = 0, to; i < len; i = to) {
        bool had = is_had(at + i);
        for (to = i + PM_PAGE_SIZE; to < len && is_had(at + to) == had;)
            to += PM_PAGE_SIZE;
        if (!had)
            drop(at + i, to - i);
    }
}

uint64_t pm_changed_drop_rest(unsigned file, char *start, uint64_t from, uint64_t end,
                              uint64_t until) {
    look_into(&(struct of){file, start, end});
    do {
        uint64_t part = end - from < SPAN ? end - from : SPAN;
        bool told = looking.drop &&
                    pm_stored_not(file, looking.pagemap, start + from, part, drop_rest, NULL);
        from = told ? from + part : end;
        drop_gathered();
    } while (from < end && pm_os_now_ns() < until);
    return from;
}

// ---- released space -----------------------------------------------------------------------------

// A range that was released since the last commit, and what of it is not in use again: zeroes.
static struct zeroing {
    unsigned file;
    uint64_t at, end; // from the file's first byte
    char *start;
} zeroing;

static void zero_up_to(uint64_t to) {
    if (to > zeroing.at)
        pm_journal_add_zeroes(looking.journal, zeroing.file, zeroing.at / PM_PAGE_SIZE,
                              (to - zeroing.at) / PM_PAGE_SIZE);
}

static void step_over(char *at, size_t len, void *arg) {
    (void)arg;
    uint64_t offset = (uint64_t)(at - zeroing.start);
    zero_up_to(offset);
    if (zeroing.at < offset + len)
        zeroing.at = offset + len;
}

// Beyond what is in use no page is looked at, so nothing there is stepped over, though it may be
// reported as copied: the sums would keep what was there before.
void pm_changed_zeroes(const struct pm_emptied *e) {
    const struct pm_shard *s = pm_shard_at(e->offset);
    uint64_t from = e->offset - s->offset, end = from + e->len;
    if (end > s->data.size) // the file may be longer than what is in use
        end = s->data.size > from ? s->data.size : from;
    uint64_t used = s->frontier < end ? s->frontier : end;
    used = used > from ? used : from;
    look_at_gathered();
    zeroing = (struct zeroing){pm_journal_file(PM_JOURNAL_DATA, pm_shard_number(s)), from, end,
                               pm_heap_at(s->offset)};
    pm_own_pages_by(looking.pagemap, pm_heap_at(e->offset), used - from, step_over, NULL);
    zero_up_to(end);
}
