// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Capture: the pages of a root become shared mappings of the heap's file `roots`. From then on the
// program's own stores to them are as durable as its heap.
//
//   process pages   [ other | head | other ]     fresh from the executable and the constructors
//   old image       [ ....  | HEAD | ....  ]     as the last process left it
//   new image       [ other | HEAD | other ]     in the file, and then mapped in the process
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fcntl.h>

#include "base/options.h"
#include "base/os.h"
#include "carried.h"
#include "locate.h"
#include "media/adopt.h"
#include "media/backing/file.h"
#include "media/backing/file_space.h"
#include "media/backing/fixed.h"
#include "media/commit/commit.h"
#include "media/heap.h"
#include "media/persist.h"
#include "parts.h"
#include "program.h"
#include "root_media.h"
#include "root_table.h"
#include "threads/threads.h"

// Adjacent captured pages.
struct run {
    uintptr_t start, end;
    uint64_t image; // offset in the roots file
};

static struct run *runs; // room for PM_ROOT_MAX
static unsigned run_count;
static uint64_t carried_image; // where images of carried roots begin: behind the images of the runs

static bool late; // the time of the late roots has come, and all threads are held

#define PAGE_MASK (~(uintptr_t)(PM_PAGE_SIZE - 1))

static bool waits(const struct pm_root *root) {
    const struct pm_part *part = pm_part_of(root);
    return part && pm_part_waits(part);
}

static bool is_carried(const struct pm_root *root) {
    return pm_root_is_dropped(root) || waits(root);
}

// ---- capture ------------------------------------------------------------------------------------

// Finds the runs of pages that hold all parts, sorted and merged; `waiting`: also those that wait.
// There are few parts, so insertion sort will do.
static void find_runs(bool waiting) {
    run_count = 0;
    for (unsigned i = 0; i < pm_part_count; i++) {
        const struct pm_part *p = &pm_parts[i];
        struct run r = {p->address & PAGE_MASK,
                        (p->address + p->length + PM_PAGE_SIZE - 1) & PAGE_MASK, 0};
        if (pm_part_waits(p) && !waiting)
            continue;
        unsigned at = run_count++;
        for (; at > 0 && runs[at - 1].start > r.start; at--)
            runs[at] = runs[at - 1];
        runs[at] = r;
    }
    unsigned kept = 0;
    for (unsigned i = 1; i < run_count; i++)
        if (runs[i].start <= runs[kept].end) {
            if (runs[i].end > runs[kept].end)
                runs[kept].end = runs[i].end;
        } else {
            runs[++kept] = runs[i];
        }
    run_count = run_count ? kept + 1 : 0;
}

static uint64_t runs_length(void) {
    uint64_t length = 0;
    for (unsigned i = 0; i < run_count; i++)
        length += runs[i].end - runs[i].start;
    return length;
}

static uint64_t place_behind(const struct pm_root_table *old, uint64_t length) {
    return old->area_offset >= length ? 0 : old->area_offset + old->area_length;
}

// Places the new area at the start of the file if it fits before the old one, else after the old
// one. The old one stays in force until the switch. Returns the area's length.
static uint64_t place_area(const struct pm_root_table *old, uint64_t *offset) {
    uint64_t length = pm_carried_length(old, is_carried) + runs_length();
    *offset = place_behind(old, length);
    uint64_t at = *offset;
    for (unsigned i = 0; i < run_count; i++) {
        runs[i].image = at;
        at += runs[i].end - runs[i].start;
    }
    carried_image = at;
    return length;
}

static uint64_t image_of(uintptr_t address) {
    for (unsigned i = 0; i < run_count; i++)
        if (address >= runs[i].start && address < runs[i].end)
            return runs[i].image + (address - runs[i].start);
    return 0; // not reached: every part lies in a run
}

static void fill_table(const struct pm_root_table *old, struct pm_root_table *next, uint64_t offset,
                       uint64_t length) {
    next->count = 0;
    next->area_offset = offset;
    next->area_length = length;
    for (unsigned i = 0; i < pm_part_count; i++) {
        const struct pm_part *p = &pm_parts[i];
        if (pm_part_waits(p))
            continue;
        struct pm_root *r = &next->root[next->count++];
        memset(r, 0, sizeof *r);
        r->kind = (uint32_t)p->spec.kind;
        r->part = p->number;
        r->spec_offset = p->spec.kind == PM_ROOT_RANGE ? p->spec.offset : 0;
        r->length = p->length;
        r->image = image_of(p->address);
        r->address = p->address;
        memcpy(r->object, p->spec.object, sizeof r->object);
        memcpy(r->name, p->spec.name, sizeof r->name);
        memcpy(r->build, p->build, sizeof r->build);
        r->when = (uint8_t)p->spec.when;
    }
    uint32_t captured = next->count;
    pm_carried_add(old, is_carried, next, carried_image);
    for (uint32_t i = captured; i < next->count; i++)
        if (waits(&next->root[i])) {
            next->root[i].when = (uint8_t)pm_part_of(&next->root[i])->spec.when;
            next->root[i].waits = 1;
        }
}

// The first byte of a guard says whether the static is constructed. The other bytes say which
// thread is constructing it (in libstdc++ and libc++abi). If that was a thread of an earlier run,
// they are cleared, so that this run constructs the static.
static void reset_guard(char *guard, uint64_t length) {
    if (!guard[0] && pm_options.locks.number == PM_LOCKS_RESET)
        memset(guard, 0, length);
}

static bool is_guard(const struct pm_root *root) {
    return root->kind == PM_ROOT_SYMBOL && (root->part == 1 || !strncmp(root->name, "_ZGV", 4));
}

// Where the old bytes of a root are to go. NULL: nowhere. Whole objects are not restored, and when
// the time of the late roots comes, only these are.
static const struct pm_part *restored(const struct pm_root *root) {
    const struct pm_part *part = pm_part_of(root);
    bool now = part && !pm_part_waits(part) && (part->spec.when || !late);
    return root->kind != PM_ROOT_OBJECT && now ? part : NULL;
}

// Copies the old bytes of roots over the fresh ones: in the new images or, if `area` is NULL, in
// the process.
static void restore_bytes(const struct pm_root_table *old, const char *old_images, char *area,
                          uint64_t offset) {
    for (uint32_t i = 0; i < old->count; i++) {
        const struct pm_root *root = &old->root[i];
        const struct pm_part *part = restored(root);
        if (!part)
            continue;
        char *to =
            area ? area + (image_of(part->address) - offset) : (char *)(uintptr_t)part->address;
        memcpy(to, old_images + (root->image - old->area_offset), root->length);
        if (is_guard(root))
            reset_guard(to, root->length);
    }
}

// The bytes that restore_bytes() copies may contain locks that an earlier run held. Makes them
// known as old memory.
static int tell_old(const struct pm_root_table *old, struct pm_error *err) {
    int status = PM_OK;
    for (uint32_t i = 0; i < old->count && status == PM_OK; i++) {
        const struct pm_part *part = restored(&old->root[i]);
        if (part)
            status = pm_old_root(part->address, part->length, err);
    }
    return status;
}

static int write_images(const struct pm_root_table *old, uint64_t offset, uint64_t length,
                        struct pm_error *err) {
    const char *old_images = pm_roots_images(old);
    // Shared also under PMALLOC_COMMIT: nothing is in force there before the table.
    char *area = pm_file_map_shared(&pm_heap.roots, length, offset);
    if (area == MAP_FAILED || (old->area_length && !old_images))
        return pm_roots_unmapped(err);
    for (unsigned i = 0; i < run_count; i++)
        memcpy(area + (runs[i].image - offset), (const void *)runs[i].start,
               runs[i].end - runs[i].start);
    if (old_images) {
        restore_bytes(old, old_images, area, offset);
        pm_carried_copy(old, is_carried, old_images, area + (carried_image - offset));
        pm_file_unmap(&pm_heap.roots, old_images, old->area_length);
    }
    // pm_roots_switch() drains after this flush and before the commit.
    pm_flush(area, length);
    pm_file_unmap(&pm_heap.roots, area, length);
    return PM_OK;
}

static int map_runs(struct pm_error *err) {
    pm_commit_forget_roots();
    for (unsigned i = 0; i < run_count; i++) {
        if (pm_file_map(&pm_heap.roots, (void *)runs[i].start, runs[i].end - runs[i].start,
                        PROT_READ | PROT_WRITE, MAP_FIXED, runs[i].image) == MAP_FAILED)
            return pm_fail(err, PM_OPERATIONAL, "cannot map the root pages at %lx: %s",
                           (unsigned long)runs[i].start, pm_strerror(errno));
        pm_commit_add_root((void *)runs[i].start, runs[i].end - runs[i].start, runs[i].image);
    }
    return PM_OK;
}

// The next start needs as much space again, beside this area. If it needs at most KEPT_READY, that
// space is kept allocated. Else a heap that has filled its file system could not be opened any
// more, not even to free something.
#define KEPT_READY ((uint64_t)1 << 20)

static void tidy_images(uint64_t offset, uint64_t length, uint64_t gone, uint64_t gone_len) {
    uint64_t next = offset >= length ? 0 : offset + length; // where place_area() will put it
    bool keep = length <= KEPT_READY;
    // Under PMALLOC_COMMIT the old area is in force until the first commit. The next start writes
    // there.
    if (gone_len && !pm_heap_is_journaled() && !pm_heap.roots.length &&
        !(keep && gone == next && gone_len == length)) // best effort
        (void)!fallocate(pm_heap.roots.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)gone,
                         (off_t)gone_len);
    if (keep && pm_file_grow(&pm_heap.roots, next + length))
        pm_file_back_with_space(&pm_heap.roots, next, length);
}

// Copies the pages to the roots file, then maps the file in their place. A store in between would
// be lost, so no other thread may store to them. What is durable before what: the images, and the
// file's length and blocks, before the table's epoch.
static int move_pages(const struct pm_root_table *old, uint64_t offset, uint64_t length,
                      struct pm_error *err) {
    int status = pm_options.locks.number == PM_LOCKS_RESET ? tell_old(old, err) : PM_OK;
    if (status == PM_OK)
        status = write_images(old, offset, length, err);
    if (status != PM_OK)
        return status;
    if (pm_persist_syncs() && !pm_file_sync(&pm_heap.roots))
        return pm_fail(err, PM_OPERATIONAL, "%s/roots: cannot be written back: %s", pm_heap.dir,
                       pm_strerror(errno));
    fill_table(old, pm_roots_next_table(), offset, length);
    pm_roots_switch();
    if (late && pm_heap_is_journaled())
        pm_commit_whole_roots(carried_image, offset + length - carried_image);
    return map_runs(err);
}

// Constructors may have started threads, so these are stopped first. If one does not stop, the
// pages are made read-only, and it waits at its first store to them. But if that thread blocks
// SIGSEGV, such a store would end the process. So it is not stopped, and a store of it to these
// pages may be lost. That is better than a program that does not start.
static int move_pages_among_others(const struct pm_root_table *old, uint64_t offset,
                                   uint64_t length, struct pm_error *err) {
    bool held = pm_threads_stop() == PM_THREADS_RUN && pm_threads_catch() && pm_roots_hold(true);
    int status = move_pages(old, offset, length, err);
    if (held && status != PM_OK)
        pm_roots_hold(false);
    pm_threads_resume();
    return status;
}

// A store of this thread's while its pages move would be lost. musl puts the first thread's
// variables into a gap of the program's last page where it has no other place for them.
static bool own_memory_moves(void) {
    static __thread char own __attribute__((tls_model("initial-exec")));
    for (unsigned i = 0; i < run_count; i++)
        if ((uintptr_t)&own >= runs[i].start && (uintptr_t)&own < runs[i].end)
            return true;
    return false;
}

// Whether the table in force does not say yet that a root of it waits.
static bool some_wait_anew(const struct pm_root_table *old) {
    for (uint32_t i = 0; i < old->count; i++)
        if (waits(&old->root[i]) && !old->root[i].waits)
            return true;
    return false;
}

// Before main, and not once more at the moment of the late roots: PMAlloc's own thread, which has
// none of libc's variables of a thread, comes here then.
static void record_program(void) {
    if (!late && (pm_part_count || (pm_heap_has_roots() && !pm_heap_roots_are_dropped())))
        pm_program_record();
}

static int make_room(uint64_t offset, uint64_t length, uint32_t count, struct pm_error *err) {
    pm_heap.roots.reach = SIZE_MAX; // the file is mapped in pieces, so no mapping limits its growth
    if (!pm_file_grow(&pm_heap.roots, offset + length) ||
        !pm_file_back_with_space(&pm_heap.roots, offset, length))
        return pm_fail(err, PM_OPERATIONAL,
                       "%s/roots: no room can be made for %lu bytes of captured roots: %s",
                       pm_heap.dir, (unsigned long)length, pm_strerror(errno));
    return pm_roots_back_table(count, err);
}

// Room for all roots, which are captured at the moment of the late ones. Where there is none, the
// start is refused: at that moment it would be too late.
static int make_room_for_late(uint64_t length, struct pm_error *err) {
    const struct pm_root_table *now = pm_roots_table(err);
    if (!now)
        return err->status;
    length += pm_carried_length(now, pm_root_is_dropped);
    return make_room(place_behind(now, length), length,
                     pm_part_count + pm_carried_count(now, pm_root_is_dropped), err);
}

// What does not wait.
static int capture_runs(const struct pm_root_table *old, struct pm_error *err) {
    if (!run_count && !some_wait_anew(old))
        return PM_OK;
    if (own_memory_moves())
        return pm_fail(err, PM_OPERATIONAL,
                       "libc has put the thread-local variables of this thread into a page with "
                       "roots; nothing was changed: set the roots by pmalloc_set_root(), or use "
                       "fewer thread-local variables");
    uint64_t offset, length = place_area(old, &offset);
    uint64_t gone = old->area_offset, gone_len = old->area_length;
    int status = make_room(offset, length, pm_part_count + pm_carried_count(old, is_carried), err);
    if (status == PM_OK)
        status = (late || pm_threads_none() ? move_pages : move_pages_among_others)(old, offset,
                                                                                    length, err);
    if (status == PM_OK)
        tidy_images(offset, length, gone, gone_len);
    return status;
}

int pm_roots_capture(struct pm_error *err) {
    const struct pm_root_table *old = pm_roots_table(err);
    if (!old)
        return err->status;
    record_program();
    if (!pm_part_count)
        return pm_carried_map(is_carried, err);
    if (pm_heap.roots.length && pm_medium_of(&pm_heap.roots)->granule > PM_PAGE_SIZE)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s is mapped in units of %lu KiB, and captured roots need pages of 4 KiB: "
                       "make the device with an alignment of 4096, or set roots by "
                       "pmalloc_set_root()",
                       pm_heap.dir, (unsigned long)pm_medium_of(&pm_heap.roots)->granule >> 10);
    if (!runs && !(runs = pm_os_reserve(PM_ROOT_MAX * sizeof *runs)))
        return pm_fail(err, PM_OPERATIONAL,
                       "%s: no memory for the roots; see `ulimit -v` and `ulimit -d`", pm_heap.dir);
    find_runs(true);
    uint64_t all = runs_length();
    find_runs(false);
    bool room = all == runs_length(); // none waits
    int status = capture_runs(old, err);
    if (status == PM_OK && !room)
        status = make_room_for_late(all, err);
    return status == PM_OK ? pm_carried_map(is_carried, err) : status;
}

int pm_roots_capture_late(struct pm_error *err) {
    late = true;
    pm_parts_ready();
    int status = pm_heap_on_media() ? pm_roots_capture(err) : pm_roots_restore(err);
    late = false;
    return status;
}

int pm_roots_restore(struct pm_error *err) {
    const struct pm_root_table *old = pm_roots_table(err);
    if (!old)
        return err->status;
    record_program();
    if (!pm_part_count || !old->area_length)
        return PM_OK;
    const char *images = pm_roots_images(old);
    if (!images)
        return pm_roots_unmapped(err);
    int status = pm_options.locks.number == PM_LOCKS_RESET ? tell_old(old, err) : PM_OK;
    if (status == PM_OK)
        restore_bytes(old, images, NULL, 0);
    pm_file_unmap(&pm_heap.roots, images, old->area_length);
    return status;
}

void pm_roots_each_captured(void (*fn)(const void *at, uint64_t len, const char *name, void *arg),
                            void *arg) {
    for (unsigned i = 0; run_count && i < pm_part_count; i++) {
        const struct pm_part *part = &pm_parts[i];
        char name[PM_SPEC_TEXT_LEN];
        if (part->spec.kind != PM_ROOT_OBJECT && !pm_part_waits(part) &&
            pm_spec_format(&part->spec, name, sizeof name) >= 0)
            fn((const void *)part->address, part->length, name, arg);
    }
}

bool pm_roots_captured(const void *p) {
    for (unsigned i = 0; run_count && i < pm_part_count; i++)
        if (!pm_part_waits(&pm_parts[i]) && (uintptr_t)p - pm_parts[i].address < pm_parts[i].length)
            return true;
    return false;
}

bool pm_roots_image_of(const void *p, uint64_t *offset) {
    for (unsigned i = 0; pm_roots_captured(p) && i < run_count; i++)
        if ((uintptr_t)p - runs[i].start < runs[i].end - runs[i].start) {
            *offset = runs[i].image + ((uintptr_t)p - runs[i].start);
            return true;
        }
    return false;
}

// ---- fork ---------------------------------------------------------------------------------------

// Copies the pages of all runs. All copies are made before any is used, so that if memory is out
// nothing has changed.
static bool copy_runs(void **copy) {
    for (unsigned i = 0; i < run_count; i++) {
        size_t len = runs[i].end - runs[i].start;
        copy[i] = pm_os_reserve(len);
        if (!copy[i])
            return false;
        memcpy(copy[i], (const void *)runs[i].start, len);
    }
    return true;
}

static unsigned moved; // how many runs are private memory now

bool pm_roots_privatise(void) {
    void *copy[PM_ROOT_MAX] = {NULL};
    bool good = copy_runs(copy);
    for (moved = 0; good && moved < run_count; moved += good) {
        size_t len = runs[moved].end - runs[moved].start;
        good = mremap(copy[moved], len, len, MREMAP_MAYMOVE | MREMAP_FIXED,
                      (void *)runs[moved].start) != MAP_FAILED;
    }
    for (unsigned i = moved; i < run_count && copy[i]; i++)
        munmap(copy[i], runs[i].end - runs[i].start);
    return good;
}

// ---- the end of the program ---------------------------------------------------------------------

bool pm_roots_hold(bool on) {
    for (unsigned i = 0; i < run_count; i++)
        if (mprotect((void *)runs[i].start, runs[i].end - runs[i].start,
                     on ? PROT_READ : PROT_READ | PROT_WRITE) != 0)
            return false;
    return true;
}

// Replaces the mappings one by one, which takes no memory. Then makes the kernel copy every page at
// once: a child that is forked after this may still run when the next process writes the file.
bool pm_roots_part(void) {
    bool device =
        pm_heap.roots.length && pm_medium_of(&pm_heap.roots)->device; // cannot be mapped private
    if (device || !pm_file_ready(&pm_heap.roots))
        return pm_roots_privatise();
    for (moved = 0; moved < run_count; moved++) {
        const struct run *run = &runs[moved];
        if (mmap((void *)run->start, run->end - run->start, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, pm_heap.roots.fd,
                 (off_t)(pm_heap.roots.at + run->image)) == MAP_FAILED)
            return false;
    }
    for (unsigned i = 0; i < run_count; i++)
        for (uintptr_t page = runs[i].start; page < runs[i].end; page += PM_PAGE_SIZE)
            pm_os_copy_page((void *)page);
    return true;
}

bool pm_roots_rejoin(void) {
    struct pm_error ignored;
    return moved == 0 || (pm_file_ready(&pm_heap.roots) && map_runs(&ignored) == PM_OK);
}

int pm_roots_remap(struct pm_error *err) { return map_runs(err); }

bool pm_roots_fork_exclude(bool on) {
    bool good = true;
    for (unsigned i = 0; i < run_count; i++)
        good &= pm_os_advise((void *)runs[i].start, runs[i].end - runs[i].start,
                             on ? MADV_DONTFORK : MADV_DOFORK);
    return good;
}
