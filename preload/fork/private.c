// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "private.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/message.h"
#include "base/os.h"
#include "media/backing/backing.h"
#include "media/backing/careful.h"
#include "media/backing/data_pin.h"
#include "media/backing/file.h"
#include "media/backing/fixed.h"
#include "media/backing/marks.h"
#include "media/core_dump.h"
#include "media/heap.h"
#include "media/open/shard_make.h"
#include "pages/extent.h"

static struct pm_private_run runs[PM_PRIVATE_RUNS_MAX];
static unsigned run_count;

const struct pm_private_run *pm_private_runs(unsigned *count) {
    *count = run_count;
    return runs;
}

void pm_private_forget(void) { run_count = 0; }

// ---- the runs: which parts of the file are in use -----------------------------------------------

static bool add_one(uint64_t offset, uint64_t len) {
    struct pm_private_run *last = run_count ? &runs[run_count - 1] : NULL;
    if (last && last->offset + last->len == offset) {
        last->len += len;
        return true;
    }
    if (run_count == PM_PRIVATE_RUNS_MAX)
        return false;
    runs[run_count++] = (struct pm_private_run){offset, len};
    return true;
}

// A mapping that the program has made over its blocks is no part of the heap: it stays as it is.
// Without the locks that is not known.
static bool marks_known;

// As pm_marks_free_of() for what is away.
static uint64_t next_ours(uint64_t *at, uint64_t end) {
    if (!marks_known)
        return *at < end ? end - *at : 0;
    return pm_marks_free_of_locked(PM_MARK_AWAY, at, end);
}

static bool add_run(uint64_t offset, uint64_t len) {
    bool good = true;
    for (uint64_t end = offset + len; good && (len = next_ours(&offset, end)) != 0; offset += len)
        good = add_one(offset, len);
    return good;
}

// Of a lazily reserved extent only what was ever written is a run. To read its holes through a
// mapping would take space on the file system, and the file's owner may fill them later.
typedef uint64_t pm_next_data_fn(struct pm_written *known, uint64_t *offset, uint64_t end);

static bool add_extent(const struct pm_extent *e, struct pm_written *known) {
    uint64_t offset = e->page << PM_PAGE_SHIFT, end = offset + pm_extent_bytes(e), part;
    if (e->backed)
        return add_run(offset, end - offset);
    // Under PMALLOC_COMMIT the pages that the process has stored to are its own already.
    pm_next_data_fn *next = pm_heap_is_journaled() ? pm_heap_next_in_file : pm_heap_next_data;
    for (; offset < end && (part = next(known, &offset, end)) != 0; offset += part)
        if (!add_run(offset, part))
            return false;
    return true;
}

// Of one shard. False: there are too many.
static bool find_runs(const struct pm_shard *s, bool others) {
    uint64_t end = pm_shard_end(s);
    struct pm_written known = {0};
    for (uint64_t page = s->offset >> PM_PAGE_SHIFT; page < end;) {
        const struct pm_extent *e = &pm_extents[*pm_page_extent(page)];
        if (!e->pages) // extents do not tile here; copy_all() does not need them to
            return false;
        bool used = e->state == PM_EXTENT_ACTIVE && (others || !pm_extent_is_cached(e));
        if (used && !add_extent(e, &known))
            return false;
        page = e->page + e->pages;
    }
    return true;
}

bool pm_private_find(bool others) {
    bool good = true;
    run_count = 0;
    marks_known = true;
    for (unsigned i = 0; i < pm_heap.shards && good; i++)
        good = find_runs(&pm_heap.shard[i], others);
    return good;
}

// ---- the mappings -------------------------------------------------------------------------------

// Where each shard's extents ended, from pm_base, when the process began to part: an operation
// under way may move a frontier. Pages from there on need not be writable. They should not be:
// mlockall(MCL_FUTURE) provides memory for every writable page at once.
static uint64_t shard_end[PM_SHARDS];

static void note_ends(bool tables_whole) {
    marks_known = tables_whole;
    for (unsigned i = 0; i < pm_heap.shards; i++)
        shard_end[i] = pm_heap.shard[i].offset + pm_heap.shard[i].frontier;
}

static bool map_ours(uint64_t offset, uint64_t len, int prot, int fd) {
    int flags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE | (fd < 0 ? MAP_ANONYMOUS : 0);
    const struct pm_shard *s = pm_shard_at(offset);
    off_t at = fd < 0 ? 0 : (off_t)(s->data.at + offset - s->offset);
    return mmap(pm_heap_at(offset), len, prot, flags, fd, at) != MAP_FAILED;
}

// Maps a private piece of a shard's file; anonymous memory if `fd` is -1.
static bool map_piece(uint64_t offset, uint64_t end, int prot, int fd) {
    bool good = true;
    for (uint64_t len; good && (len = next_ours(&offset, end)) != 0; offset += len)
        good = map_ours(offset, len, prot, fd);
    return good;
}

// Maps the runs of a shard from *run on, which moves, and empty memory between them. Without `fd`,
// the empty memory alone. Piece by piece, so that after a failure every byte can still be read at
// its place.
static bool map_runs(const struct pm_shard *s, unsigned *run, int fd) {
    const int prot = PROT_READ | PROT_WRITE;
    uint64_t at = s->offset, last = shard_end[pm_shard_number(s)];
    for (; *run < run_count && runs[*run].offset < last; ++*run) {
        uint64_t from = runs[*run].offset, end = from + runs[*run].len;
        if (!map_piece(at, from, prot, -1) || (fd >= 0 && !map_piece(from, end, prot, fd)))
            return false;
        at = end;
    }
    return map_piece(at, last, prot, -1);
}

// A device cannot be mapped private. The kernel says so after it has unmapped what was there.
static bool may_map(void) { return !pm_fixed_device(); }

static bool map_files(bool others) {
    unsigned run = 0;
    bool good = may_map() && pm_private_find(others);
    for (unsigned i = 0; i < pm_heap.shards && good; i++) {
        int fd = pm_shard_pin(&pm_heap.shard[i]);
        good = fd >= 0 && map_runs(&pm_heap.shard[i], &run, fd);
        if (fd >= 0)
            close(fd);
    }
    return good;
}

struct copying {
    char *fresh[PM_SHARDS]; // for each shard's bytes
    struct pm_written known;
};

// Of a page that cannot be read zeroes are the copy.
static void copy_part(char *to, uint64_t offset, uint64_t len) {
    char *from = pm_heap_at(offset);
    if (!marks_known || pm_careful_may_load(from, len)) {
        memcpy(to, from, len);
        return;
    }
    for (uint64_t at = 0; at < len; at += PM_PAGE_SIZE) {
        const char *page = pm_careful_page(from + at);
        if (page)
            memcpy(to + at, page, PM_PAGE_SIZE);
    }
    pm_careful_end();
}

static bool copy_range(uint64_t offset, uint64_t len, void *arg) {
    struct copying *c = arg;
    const struct pm_shard *s = pm_shard_at(offset);
    char *fresh = c->fresh[pm_shard_number(s)];
    uint64_t end = offset + len, part;
    for (; offset < end && (part = pm_heap_next_data(&c->known, &offset, end)) != 0; offset += part)
        copy_part(fresh + (offset - s->offset), offset, part);
    return true;
}

static size_t shard_size(unsigned i) { return shard_end[i] - pm_heap.shard[i].offset; }

static bool reserve_copies(struct copying *c) {
    for (unsigned i = 0; i < pm_heap.shards; i++)
        if (shard_size(i) && !(c->fresh[i] = pm_os_reserve(shard_size(i))))
            return false;
    return true;
}

static unsigned moved; // shards whose copies are in their places

static bool move_copy(uint64_t from, char *fresh, uint64_t end) {
    bool good = true;
    for (uint64_t at = from, len; good && (len = next_ours(&at, end)) != 0; at += len)
        good = mremap(fresh + (at - from), len, len, MREMAP_MAYMOVE | MREMAP_FIXED,
                      pm_heap_at(at)) != MAP_FAILED;
    return good;
}

static bool move_copies(struct copying *c) {
    for (unsigned i = moved = 0; i < pm_heap.shards; moved = ++i)
        if (c->fresh[i] && !move_copy(pm_heap.shard[i].offset, c->fresh[i], shard_end[i]))
            return false;
    return true;
}

// False: the first `moved` shards are private and whole, the others as they were.
static bool copy_all(void) {
    struct copying copying = {.known = {0}};
    run_count = moved = 0;
    bool good = reserve_copies(&copying) && pm_extent_each_active(copy_range, &copying) &&
                move_copies(&copying);
    for (unsigned i = 0; i < pm_heap.shards; i++)
        if (copying.fresh[i]) // what has moved is mapped no more
            munmap(copying.fresh[i], shard_size(i));
    return good;
}

// Memory below the end of each shard is private now. The rest of its addresses become empty memory.
// If that cannot be mapped, it is not used any more. `tables_whole`: nobody uses pages after the
// end.
static void be_private(bool tables_whole) {
    int prot = tables_whole ? PROT_NONE : PROT_READ | PROT_WRITE;
    for (unsigned i = 0; i < pm_heap.shards; i++) {
        struct pm_shard *s = &pm_heap.shard[i];
        // One call for the rest of the last shard and what lies behind it.
        uint64_t rest = i + 1 < pm_heap.shards ? s->offset + PM_SHARD_RANGE : pm_range;
        uint64_t writable = tables_whole ? shard_size(i) : pm_shard_reach();
        if (s->data.length)
            s->limit = pm_shard_room(); // not the medium's
        if (!map_piece(shard_end[i], rest, prot, -1))
            s->limit = writable = shard_size(i);
        pm_shard_is_anonymous(s, writable);
        s->data.map = NULL;
    }
    if (pm_heap_on_media())
        pm_heap_become(PM_HEAP_PARTED);
}

// While these mappings exist nobody makes the files shorter, which would take copied pages, too.
static bool pin_files(void) {
    bool good = true;
    for (unsigned i = 0; i < pm_heap.shards && good; i++) {
        int fd = pm_shard_pin(&pm_heap.shard[i]);
        good = fd >= 0 && mmap(pm_os_place(PM_PAGE_SIZE), PM_PAGE_SIZE, PROT_NONE, MAP_PRIVATE, fd,
                               0) != MAP_FAILED;
        if (fd >= 0)
            close(fd);
    }
    return good;
}

// Under PMALLOC_COMMIT all is mapped private already.
static bool map_privately(bool others) {
    return pm_heap_is_journaled() ? pm_private_find(others) && pin_files() : map_files(others);
}

bool pm_private_enter(bool others) {
    note_ends(true);
    if (!map_privately(others) && !copy_all())
        return false;
    be_private(true);
    return true;
}

void pm_private_keep(bool tables_whole) {
    note_ends(tables_whole);
    run_count = 0;
    be_private(tables_whole);
}

// ---- at the end of the program ------------------------------------------------------------------

bool pm_private_hold(bool on) {
    int prot = on ? PROT_READ : PROT_READ | PROT_WRITE;
    bool good = true;
    for (unsigned i = 0; i < pm_heap.shards && good; i++)
        good =
            mprotect(pm_heap_at(pm_heap.shard[i].offset), pm_heap.shard[i].data.reach, prot) == 0;
    return good;
}

// Maps anonymous memory over what is free, so that it reads as zeroes and takes no space in the
// file. If the kernel refuses more mappings, the rest stays mapped from the file. Nothing is lost.
static void free_gaps(void) {
    unsigned run = 0;
    for (unsigned i = 0; i < pm_heap.shards; i++)
        if (!map_runs(&pm_heap.shard[i], &run, -1))
            return;
}

// ---- parting while memory is counted (ulimit -d, vm.overcommit_memory=2) ------------------------

#define PIECE ((uint64_t)256 << 10)

// Memory below the ends of the shards becomes writable at the first store to it.
static struct sigaction before_fault;

static bool open_around(uint64_t offset, uint64_t len) {
    uint64_t from = offset & ~(len - 1), rest = shard_end[offset >> PM_SHARD_SHIFT] - from;
    return mprotect(pm_heap_at(from), rest < len ? rest : len, PROT_READ | PROT_WRITE) == 0;
}

// The handler of SIGSEGV. A fault with another cause happens again at once, under the program's own
// action.
static void open_piece(int number, siginfo_t *info, void *context) {
    (void)context;
    int saved = errno;
    uint64_t offset = pm_heap_offset(info->si_addr);
    bool ours = offset < pm_range && offset < shard_end[offset >> PM_SHARD_SHIFT];
    if (!ours || info->si_code != SEGV_ACCERR)
        sigaction(number, &before_fault, NULL);
    else if (!open_around(offset, PIECE) && !open_around(offset, PM_PAGE_SIZE))
        pm_abort(PM_EV_END_CUT_SHORT,
                 "no memory is left for what the program does after its end; the heap %s is kept "
                 "as it was there",
                 pm_heap.dir);
    errno = saved;
}

// ---- the cut ------------------------------------------------------------------------------------

static bool map_shared(struct pm_shard *s) {
    bool good = pm_file_ready(&s->data);
    uint64_t at = s->offset, end = at + s->data.reach;
    for (uint64_t len; good && (len = next_ours(&at, end)) != 0; at += len)
        good = pm_file_map(&s->data, pm_heap_at(at), len, PROT_READ | PROT_WRITE,
                           MAP_FIXED | MAP_NORESERVE, at - s->offset) != MAP_FAILED;
    return good;
}

// The first `count` shards are private already. Nobody has stored to them since.
static void mend(unsigned count) {
    for (unsigned i = 0; i < count; i++)
        if (!map_shared(&pm_heap.shard[i]))
            pm_abort(PM_EV_END_CUT_SHORT, "the heap %s cannot be mapped again; it is kept as it is",
                     pm_heap.dir);
    if (count)
        pm_heap_dump_used();
}

// One mapping replaces one mapping. That takes no memory, and it happens as a whole or not at all.
// A process that has reached its limit of mappings can replace all of the shard, but not a part of
// it.
static bool part_file(struct pm_shard *s, int prot) {
    uint64_t end = shard_end[pm_shard_number(s)];
    int pin = pm_shard_pin(s); // fails where no descriptor is free
    int fd = pin < 0 && pm_file_ready(&s->data) ? s->data.fd : pin;
    bool good = fd >= 0 &&
                (map_piece(s->offset, end, prot, fd) ||
                 (prot & PROT_WRITE && map_piece(s->offset, s->offset + s->data.reach, prot, fd)));
    if (pin >= 0)
        close(pin);
    return good;
}

// All shards or none.
static bool part_files(int prot) {
    unsigned count = pm_heap.shards, done = 0;
    if (!may_map())
        return false;
    while (done < count && part_file(&pm_heap.shard[done], prot))
        done++;
    if (done < count)
        mend(done);
    return done == count;
}

static bool part_thriftily(void) {
    struct sigaction ours = {.sa_sigaction = open_piece, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    if (!part_files(PROT_READ))
        return false;
    // If not even one piece can be made writable, this does not help.
    if (open_around(0, PIECE) && sigaction(SIGSEGV, &ours, &before_fault) == 0)
        return true;
    mend(pm_heap.shards);
    return false;
}

static void whole_shards_are_runs(void) {
    run_count = 0;
    for (unsigned i = 0; i < pm_heap.shards; i++)
        if (shard_size(i))
            runs[run_count++] = (struct pm_private_run){pm_heap.shard[i].offset, shard_size(i)};
}

bool pm_private_part(bool known, bool tables_whole, bool alone) {
    note_ends(tables_whole);
    moved = 0;
    bool parted = part_files(PROT_READ | PROT_WRITE) || (alone && part_thriftily());
    if (parted && known) {
        free_gaps();
    } else if (parted) {
        whole_shards_are_runs();
    } else if (!tables_whole || !copy_all()) {
        mend(moved); // nobody has stored to the copies
        return false;
    }
    // An interrupted allocation may go on to use pages beyond the frontier.
    be_private(tables_whole);
    return true;
}
