// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "heap_open.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc.h"
#include "base/lazy_table.h"
#include "base/nodes.h"
#include "base/options.h"
#include "base/os.h"
#include "base/os_file.h"
#include "fixed_open.h"
#include "heap_dir.h"
#include "heap_lock.h"
#include "heap_make.h"
#include "media/backing/backing.h"
#include "media/backing/file.h"
#include "media/backing/volume.h"
#include "media/backing/work_copy.h"
#include "media/backup/backup.h"
#include "media/commit/doubt.h"
#include "media/commit/journal_files.h"
#include "media/commit/journal_over.h"
#include "media/core_dump.h"
#include "media/feature.h"
#include "media/lane_format.h"
#include "media/persist.h"
#include "media/shard_place.h"
#include "origin.h"
#include "shard_make.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

// The exact size, in the largest unit that allows it: 2 TiB, 4 KiB, 4097.
static const char *size_text(uint64_t bytes, char out[32]) {
    static const char *const units[] = {"", " KiB", " MiB", " GiB", " TiB", " PiB"};
    unsigned unit = 0;
    while (bytes && bytes % 1024 == 0 && unit < 5) {
        bytes /= 1024;
        unit++;
    }
    snprintf(out, 32, "%lu%s", (unsigned long)bytes, units[unit]);
    return out;
}

// A heap that this build cannot use is not damaged. The message names the first difference.
static int check_build(const struct pm_superblock *super, const char *dir, struct pm_error *err) {
    const struct {
        const char *what;
        uint64_t its, ours;
        bool size;
    } made[] = {{"format version", super->version, PM_FORMAT_VERSION, false},
                {"set of features", super->incompat, super->incompat & PM_INCOMPAT_KNOWN, false},
                {"range", super->range, PM_HEAP_RANGE, true},
                {"number of nodes", super->node_count, 1, false},
                {"base address", super->base, PM_HEAP_BASE, false},
                {"page size", super->page_size, PM_PAGE_SIZE, true},
                {"slab size", super->slab_size, PM_SLAB_SIZE, true}};
    for (size_t i = 0; i < sizeof made / sizeof made[0]; i++) {
        char its[32], ours[32];
        if (made[i].its == made[i].ours)
            continue;
        snprintf(its, sizeof its, "%#lx", (unsigned long)made[i].its);
        snprintf(ours, sizeof ours, "%#lx", (unsigned long)made[i].ours);
        pm_fail(err, PM_OPERATIONAL,
                "%s was made by another build of PMAlloc: its %s is %s, this one has %s; it is not "
                "damaged, and nothing was changed: use the PMAlloc that made it, or another heap",
                dir, made[i].what, made[i].size ? size_text(made[i].its, its) : its,
                made[i].size ? size_text(made[i].ours, ours) : ours);
        err->why = PM_WHY_FOREIGN;
        return err->status;
    }
    return PM_OK;
}

// Page 0 has its magic and its checksum at the same places in every version. So damage can be told
// from another build's heap.
int pm_superblock_check(const struct pm_superblock *super, const char *dir, struct pm_error *err) {
    if (super->magic != PM_SUPER_MAGIC)
        return pm_fail(err, PM_DAMAGE, "%s/superblock is not PMAlloc's (magic %016lx)", dir,
                       (unsigned long)super->magic);
    if (!pm_superblock_is_whole(super))
        return pm_fail(err, PM_DAMAGE, "%s/superblock: checksum is wrong; restore it from a copy",
                       dir);
    return check_build(super, dir, err);
}

// A heap may be longer than this process has address space for. Then the heap is not damaged.
static int check_room(const struct pm_file *file, size_t reach, struct pm_error *err) {
    char needs[32], room[32];
    if (file->size <= reach)
        return PM_OK;
    return pm_fail(err, PM_OPERATIONAL,
                   "%s/%s has %s, more than the %s for which this process has address space; is "
                   "`ulimit -v` set? unset it",
                   pm_heap.dir, file->name, size_text(file->size, needs), size_text(reach, room));
}

static int check_shard(const struct pm_shard *s, struct pm_error *err) {
    const struct pm_file *log = &s->log, *data = &s->data;
    if (log->size < sizeof(struct pm_log_header))
        return pm_fail(err, PM_DAMAGE, "%s/%s has %zu bytes, too short for a bookkeeping log",
                       pm_heap.dir, log->name, log->size);
    if ((log->size - sizeof(struct pm_log_header)) % PM_CHUNK_SIZE)
        return pm_fail(err, PM_DAMAGE, "%s/%s has %zu bytes, not whole chunks; was it truncated?",
                       pm_heap.dir, log->name, log->size);
    if (data->size > PM_SHARD_RANGE || data->size % PM_PAGE_SIZE)
        return pm_fail(err, PM_DAMAGE, "%s/%s has %zu bytes, not whole pages within the range",
                       pm_heap.dir, data->name, data->size);
    return check_room(data, pm_shard_reach(), err);
}

static int check_sizes(struct pm_error *err) {
    int status = PM_OK;
    for (unsigned i = 0; i < pm_heap.shards && status == PM_OK; i++)
        status = check_shard(&pm_heap.shard[i], err);
    for (size_t i = 0; i < pm_heap_file_count() && status == PM_OK; i++) {
        const struct pm_heap_file *f = &pm_heap_files[i];
        // A heap that was longer once has more slab headers than it needs; nobody reads those.
        if (!f->share || !pm_heap_holds(f) || pm_heap_file(f) == &pm_heap.shard[f->shard].slabs)
            continue;
        if (pm_heap_file(f)->size > PM_SHARD_RANGE / f->share)
            return pm_fail(err, PM_DAMAGE, "%s/%s has %zu bytes, too long for a heap of any size",
                           pm_heap.dir, f->name, pm_heap_file(f)->size);
        status = check_room(pm_heap_file(f), pm_shard_reach() / f->share, err);
    }
    return status;
}

// Checks the words that say whether there are roots. If a wrong word passed, the heap would be
// emptied.
static int check_state(struct pm_error *err) {
    const struct pm_state *state = &pm_heap.super->state;
    if (state->state != PM_STATE_CLEAN && state->state != PM_STATE_DIRTY)
        return pm_fail(err, PM_DAMAGE,
                       "%s/superblock: state word %016lx is neither clean nor dirty", pm_heap.dir,
                       (unsigned long)state->state);
    if (!pm_origin_is_whole(&state->origin))
        return pm_fail(err, PM_DAMAGE,
                       "%s/superblock: the record of which file it is does not match its check",
                       pm_heap.dir);
    if (!pm_sealed(state->root_epoch, PM_SALT_ROOT_EPOCH))
        return pm_fail(err, PM_DAMAGE,
                       "%s/superblock: the root table's epoch %016lx does not match its check",
                       pm_heap.dir, (unsigned long)state->root_epoch);
    for (unsigned i = 0; i < PM_ROOT_SLOTS; i++)
        if (pm_heap.super->slots.slot[i] != pm_slot_word(i, pm_heap_slot(i)))
            return pm_fail(err, PM_DAMAGE,
                           "%s/superblock: root slot %u (%016lx) does not match its check",
                           pm_heap.dir, i, (unsigned long)pm_heap.super->slots.slot[i]);
    return PM_OK;
}

static int map_file(struct pm_file *file, size_t reach, struct pm_error *err) {
    if (file->length)
        return PM_OK; // with the head of its medium
    int prot = PROT_READ | (pm_heap.readonly ? 0 : PROT_WRITE);
    void *map = pm_file_map(file, NULL, reach, prot, MAP_NORESERVE, 0);
    if (map == MAP_FAILED)
        return pm_fail(err, PM_OPERATIONAL, "%s/%s: cannot map %zu bytes: %s", pm_heap.dir,
                       file->name, reach, pm_strerror(errno));
    file->map = map;
    file->reach = reach;
    return PM_OK;
}

// Opens the files that stay open: the ones that every heap has or, with `by_superblock`, the ones
// of the superblock's features and of the shards after the first.
static int open_held(bool by_superblock, struct pm_error *err) {
    int flags = pm_heap.readonly ? O_RDONLY : O_RDWR, status = PM_OK;
    for (size_t i = 0; i < pm_heap_file_count() && status == PM_OK; i++) {
        const struct pm_heap_file *f = &pm_heap_files[i];
        bool always = f->held && !f->feature && f->shard == 0;
        if (by_superblock ? !always && pm_heap_holds(f) : always)
            status = pm_file_open(pm_heap_file(f), flags, err);
    }
    return status;
}

// The journal may have changed the lengths of files that are open already.
static int measure(struct pm_error *err) {
    struct stat st;
    for (size_t i = 0; i < PM_FIRST_FILES; i++) {
        struct pm_file *file = pm_heap_file(&pm_heap_files[i]);
        if (file->fd < 0 || file->length)
            continue;
        if (fstat(file->fd, &st) != 0)
            return pm_fail(err, PM_OPERATIONAL, "%s/%s: %s", pm_heap.dir, file->name,
                           pm_strerror(errno));
        file->size = (size_t)st.st_size;
    }
    return pm_fixed_is_open() ? pm_fixed_measure(err) : PM_OK;
}

// A backup of which a later round is in its increments, and an older superblock beside it: either
// is of another time than the other. A clean heap that was opened before is not looked at: it costs
// a system call.
static int check_layers(bool clean, struct pm_error *err) {
    if ((clean && pm_heap.super->state.origin.seal) || pm_fixed_is_open() ||
        pm_os_there(pm_heap.dir_fd, PM_BACKUP_SUPERBLOCK) != PM_IS_THERE)
        return PM_OK;
    return pm_fail(err, PM_OPERATIONAL,
                   "%s has a backup's %s beside a superblock: a backup was laid over other files; "
                   "nothing was changed: restore it into an empty directory, or remove "
                   "%s/superblock if all other files are the backup's",
                   pm_heap.dir, PM_BACKUP_SUPERBLOCK, pm_heap.dir);
}

// The journal comes before all else: its pages take the place of the files' pages. But that of
// another build's heap, or of a copy, is not touched. A page that is torn does not say which build
// made it.
static int first_step(enum pm_open_mode mode, struct pm_error *err) {
    const struct pm_superblock *super = &pm_heap.super->super;
    if (pm_superblock_is_whole(super) && pm_superblock_check(super, pm_heap.dir, err) != PM_OK)
        return err->status;
    bool changed = pm_heap.changed, look = pm_open_reads(mode);
    // With a journal, the state in the file may be younger than what the journal will make of it.
    bool at_rest = pm_heap_is_clean() && !pm_journal_waits();
    pm_heap.settled = at_rest;
    int status = check_layers(at_rest, err);
    if (status == PM_OK)
        status = pm_origin_check(at_rest, err);
    // The bit is there in whatever a torn page of the superblock may have.
    if (status != PM_OK || !(super->incompat & PM_INCOMPAT_JOURNAL))
        return status;
    pm_heap.changed |= !look;
    status = pm_journal_open_heap(look, err);
    if (status == PM_OK && pm_journal_opened.is == PM_JOURNAL_NONE)
        pm_heap.changed = changed;
    if (status == PM_OK)
        status = measure(err);
    return status == PM_OK ? pm_journal_over_super(err) : status;
}

// Reads it without the mapping, where a bad block would be a SIGBUS. Populating the mapping would
// say the same, but on tmpfs it fills holes.
static bool can_read(const struct pm_file *file, uint64_t len) {
    char buffer[PM_PAGE_SIZE];
    for (uint64_t at = 0; at < len;) {
        uint64_t part = len - at < sizeof buffer ? len - at : sizeof buffer;
        if (!pm_os_read_all(file->fd, buffer, part, file->at + at))
            return false;
        at += part;
    }
    return true;
}

static int open_files(const char *more, enum pm_open_mode mode, bool wait, struct pm_error *err) {
    int status = open_held(false, err);
    // A daemon that closes all descriptors also closes the directory, and its lock is gone. The
    // lock on the superblock lasts for as long as the file is mapped.
    if (status == PM_OK && !pm_heap.super_file.length) // the head of a fixed medium does the same
        status = pm_dir_lock(pm_heap.super_file.fd, mode, wait, err);
    if (status != PM_OK)
        return status;
    if (pm_heap.super_file.size < sizeof(struct pm_super_file))
        return pm_fail(err, PM_DAMAGE,
                       "%s/superblock has %zu bytes, needs %zu; restore it from a copy",
                       pm_heap.dir, pm_heap.super_file.size, sizeof(struct pm_super_file));
    if (!pm_heap.super_file.length &&
        pm_persist_init(pm_heap.shard[0].data.fd, (int)pm_options.persist.number - 1, pm_heap.dir,
                        err) != PM_OK)
        return err->status;
    // With room for the lanes, which a heap may get later.
    status = map_file(&pm_heap.super_file, sizeof(struct pm_super_file) + PM_LANES_BYTES, err);
    if (status != PM_OK)
        return status;
    pm_heap.super = (struct pm_super_file *)pm_heap.super_file.map;
    pm_persist_failed = pm_doubt_raise;
    if (pm_heap.careful && !can_read(&pm_heap.super_file, sizeof *pm_heap.super))
        return pm_fail(err, PM_OPERATIONAL,
                       "%s/superblock cannot be read: %s; nothing was changed: mend the disk and "
                       "try again, or restore the heap from a backup",
                       pm_heap.dir, pm_strerror(errno));
    pm_heap_become(PM_HEAP_SHARED);
    if (mode != PM_OPEN_LOOK)
        status = first_step(mode, err);
    if (status == PM_OK)
        status = pm_superblock_check(&pm_heap.super->super, pm_heap.dir, err);
    if (status == PM_OK)
        status = pm_shards_read(err);
    if (status == PM_OK)
        status = pm_volumes_open(more, mode, err);
    if (status == PM_OK)
        status = open_held(true, err);
    if (status == PM_OK)
        status = pm_journal_over_sizes(err);
    if (status == PM_OK)
        status = check_sizes(err);
    return status == PM_OK ? check_state(err) : status;
}

static void forget(bool readonly) {
    pm_heap.created = pm_heap.nameless = pm_heap.changed = pm_heap.copy = false;
    pm_heap.settled = false;
    pm_heap.recorded = 0;
    pm_heap.readonly = readonly;
    pm_journal_opened.is = PM_JOURNAL_NONE;
}

static int open_here(const char *more, enum pm_open_mode mode, bool wait, struct pm_error *err) {
    int status = open_files(more, mode, wait, err);
    if (status != PM_OK) {
        if (pm_heap.created && !pm_is_busy(err))
            pm_heap_remove();
        pm_heap_release();
        return status;
    }
    pm_shards_limit();
    if (pm_heap.created) {
        int node = pm_volume_node(0);
        pm_shard_node_begins(node >= 0 ? (unsigned)node : pm_node_now());
    }
    pm_heap.length = 0;
    for (unsigned i = 0; i < pm_heap.shards; i++)
        pm_heap.length += pm_heap.shard[i].frontier = pm_heap.shard[i].data.size;
    return PM_OK;
}

int pm_heap_open(const char *dir, enum pm_open_mode mode, bool wait, struct pm_error *err) {
    forget(pm_open_reads(mode));
    int status = pm_dir_open(dir, mode, wait, err);
    if (status != PM_OK)
        return status;
    const char *more = dir + pm_volume_first(dir);
    return open_here(more + (*more != '\0'), mode, wait, err);
}

int pm_heap_open_nameless(const char *where, const char *what, struct pm_error *err) {
    forget(false);
    int status = pm_make_nameless(where, what, err);
    return status == PM_OK ? open_here("", PM_OPEN_CREATE, false, err) : status;
}

static int range_taken(struct pm_error *err) {
    int saved = errno;
    char who[256];
    pm_os_who_maps(pm_base, pm_range, who, sizeof who);
    if (who[0])
        return pm_fail(
            err, PM_OPERATIONAL,
            "the heap's address range at %llx is taken by: %.180s; the program cannot use "
            "a persistent heap",
            (unsigned long long)pm_base, who);
    return pm_fail(err, PM_OPERATIONAL, "%.300s: cannot map the heap's address range at %llx: %s%s",
                   pm_heap.dir, (unsigned long long)pm_base, pm_strerror(saved),
                   saved == ENOMEM ? "" : " (under valgrind, set PMALLOC_BACKING=volatile)");
}

// Maps anonymous memory over the range, if nothing lies in it.
static int take_range(int prot, struct pm_error *err) {
    void *want = (void *)(uintptr_t)pm_base;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE | MAP_NORESERVE;
    void *got = mmap(want, pm_range, prot, flags, -1, 0);
    if (got == want)
        return PM_OK;
    if (got != MAP_FAILED) { // a kernel older than MAP_FIXED_NOREPLACE
        munmap(got, pm_range);
        errno = EEXIST;
    }
    return range_taken(err);
}

// In two steps, because the kernel refuses MAP_FIXED_NOREPLACE together with MAP_SYNC.
static int map_data(struct pm_error *err) {
    int prot = PROT_READ | (pm_heap.readonly ? 0 : PROT_WRITE);
    int status = take_range(PROT_NONE, err);
    for (unsigned i = 0; i < pm_heap.shards && status == PM_OK; i++) {
        struct pm_shard *s = &pm_heap.shard[i];
        void *want = pm_heap_at(s->offset);
        s->data.reach = s->data.length ? s->data.room : pm_shard_reach();
        s->data.map =
            pm_file_map(&s->data, want, s->data.reach, prot, MAP_FIXED | MAP_NORESERVE, 0);
        if (s->data.map != MAP_FAILED)
            continue;
        s->data.map = NULL;
        status = pm_fail(err, PM_OPERATIONAL, "%s/%s: cannot map it at %p: %s", pm_heap.dir,
                         s->data.name, want, pm_strerror(errno));
        munmap(pm_heap_at(0), pm_range);
    }
    return status;
}

// The superblock is mapped already. Here the kernel is asked for MAP_SYNC for every other file,
// before the first store. It grants MAP_SYNC file by file. So one page is enough for the roots,
// which are mapped piece by piece.
int pm_heap_map(struct pm_error *err) {
    int status = map_data(err);
    for (size_t i = 0; i < pm_heap_file_count() && status == PM_OK; i++) {
        const struct pm_heap_file *f = &pm_heap_files[i];
        if (f->share && pm_heap_holds(f))
            status = map_file(pm_heap_file(f), pm_shard_reach() / f->share, err);
    }
    if (status == PM_OK && !pm_file_try(&pm_heap.roots))
        status = pm_fail(err, PM_OPERATIONAL, "%s/roots: cannot map it: %s", pm_heap.dir,
                         pm_strerror(errno));
    if (status == PM_OK)
        status = pm_journal_over_files(err);
    pm_persist_promise(true);
    if (status == PM_OK)
        pm_heap_dump_used();
    for (unsigned i = 0; i < pm_heap.shards && status == PM_OK; i++)
        pm_shard_place(&pm_heap.shard[i]);
    return status;
}

int pm_heap_volatile(struct pm_error *err) {
    pm_heap_become(PM_HEAP_VOLATILE);
    struct pm_shard *s = &pm_heap.shard[0];
    pm_shards_limit();
    pm_heap.shards = 1;
    pm_heap.length = s->frontier = 0;
    pm_shard_is_anonymous(s, 0);
    pm_shard_node_begins(pm_node_now());
    if (take_range(PROT_NONE, err) == PM_OK) {
        pm_heap_dump_used();
        pm_shard_place(s);
        return PM_OK;
    }
    // Nothing keeps addresses of volatile memory, so any address will do.
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *anywhere = mmap(NULL, pm_range, PROT_NONE, flags, -1, 0);
    if (anywhere == MAP_FAILED)
        return err->status;
    pm_base = ((uint64_t)(uintptr_t)anywhere + PM_REGION_SIZE - 1) & ~(PM_REGION_SIZE - 1);
    struct pm_shard *last = &pm_heap.shard[pm_shards_most() - 1];
    if (last->limit > pm_shard_reach() - PM_REGION_SIZE)
        last->limit = pm_shard_reach() - PM_REGION_SIZE;
    pm_shard_is_anonymous(s, 0);
    pm_heap_dump_used();
    pm_shard_place(s);
    return PM_OK;
}

// The words lie in one cache line, so they become durable in this order. A killed process may have
// left its last stores in the caches only, so everything that this process has read is made durable
// before it builds on it: the state page and the slots here, the log in pm_log_activate().
void pm_heap_dirty(void) {
    struct pm_state *state = &pm_heap.super->state;
    pm_fixed_settle();
    pm_origin_record();
    __atomic_store_n(&state->state, PM_STATE_DIRTY, __ATOMIC_RELEASE);
    __atomic_store_n(&state->opens, state->opens + 1, __ATOMIC_RELEASE);
    __atomic_store_n(&state->owner_pid, (uint64_t)getpid(), __ATOMIC_RELEASE);
    __atomic_store_n(&state->owner_start, pm_os_start_time(getpid()), __ATOMIC_RELEASE);
    pm_shards_note_nodes();
    pm_make_durable(state, sizeof *state + sizeof(struct pm_slots));
}

bool pm_heap_clean(void) {
    for (unsigned i = 0; i < pm_heap.shards; i++)
        if (pm_heap.shard[i].length_unknown)
            return false;
    if (pm_durability != PM_DURABLE_NONE && !pm_doubt_settle_end())
        return false;
    pm_commit_u64(&pm_heap.super->state.state, PM_STATE_CLEAN);
    return true;
}

void pm_heap_release(void) {
    if (pm_heap_is_held())
        pm_heap_become(pm_heap_on_media() ? PM_HEAP_CLOSED : PM_HEAP_PRIVATE);
    for (size_t i = 0; i < pm_heap_file_count(); i++) {
        struct pm_file *file = pm_heap_file(&pm_heap_files[i]);
        if (file->map && pm_heap_files[i].holds != PM_FILE_DATA)
            pm_file_unmap(file, file->map, file->reach);
        pm_file_close(file);
        file->map = NULL;
    }
    pm_heap.super = NULL;
    pm_heap.nameless = false;
    for (unsigned i = 0; i < pm_heap.shards; i++)
        pm_work_drop(&pm_heap.shard[i]);
    for (unsigned i = 1; i < pm_heap.shards; i++)
        pm_shard_set_volume(i, 0);
    pm_heap.volumes = 1;
    if (pm_heap_state() == PM_HEAP_CLOSED)
        pm_heap.shards = 1;
    pm_dir_close();
}
