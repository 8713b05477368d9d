// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "heap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "crc.h"
#include "options.h"
#include "os.h"
#include "persist.h"
#include "table.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
#ifndef MAP_SYNC
#define MAP_SYNC 0x80000
#endif

#define SLABS_REACH (pm_range / PM_SLAB_SIZE * sizeof(struct pm_slab_header))
#define LOG_REACH (pm_range / 1024)
#define MORPH_REACH (pm_range / 256)
#define RANGE_MIN ((uint64_t)16 << 20)

uint64_t pm_base = PM_HEAP_BASE, pm_range = PM_HEAP_RANGE;
struct pm_heap pm_heap = {
    .dir_fd = -1,
    .super_file = {.name = "superblock", .fd = -1},
    .data = {.name = "heap.0", .fd = -1},
    .slabs = {.name = "slabs.0", .fd = -1},
    .log = {.name = "booklog.0", .fd = -1},
    .roots = {.name = "roots", .fd = -1},
    .morph = {.name = "morph.0", .fd = -1},
};

static struct pm_file *const all_files[] = {&pm_heap.super_file, &pm_heap.data,  &pm_heap.slabs,
                                            &pm_heap.log,        &pm_heap.roots, &pm_heap.morph};
#define FILES (sizeof all_files / sizeof all_files[0])

static bool has_room(size_t bytes, int prot) {
    void *probe = mmap(NULL, bytes, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (probe == MAP_FAILED)
        return false;
    munmap(probe, bytes);
    return true;
}

bool pm_heap_choose_range(void) {
    for (pm_range = PM_HEAP_RANGE; pm_range >= RANGE_MIN; pm_range /= 2) {
        // The tables take a sixteenth and some; a quarter leaves room for the program as well.
        size_t bytes = pm_range + pm_range / 4;
        // Valgrind looks for leaks in all that can be written, and it gives less.
        pm_table_steps = pm_range < PM_HEAP_RANGE || !has_room(bytes, PROT_READ | PROT_WRITE);
        if (!pm_table_steps || has_room(bytes, PROT_NONE))
            return true;
    }
    return false;
}

static int check_superblock(const struct pm_superblock *super, struct pm_error *err) {
    if (super->magic != PM_SUPER_MAGIC)
        return pm_fail(err, PM_DAMAGE, "%s/superblock is not PMAlloc's (magic %016lx)", pm_heap.dir,
                       (unsigned long)super->magic);
    if (super->version != PM_FORMAT_VERSION || super->incompat & ~PM_INCOMPAT_KNOWN)
        return pm_fail(
            err, PM_DAMAGE,
            "%s: format version %u (features %lx) is not this program's version %u; use the "
            "PMAlloc that made the heap",
            pm_heap.dir, super->version, (unsigned long)super->incompat, PM_FORMAT_VERSION);
    if (super->crc != pm_crc32c(0, super, offsetof(struct pm_superblock, crc)))
        return pm_fail(err, PM_DAMAGE, "%s/superblock: checksum is wrong; restore it from a copy",
                       pm_heap.dir);
    if (super->base != PM_HEAP_BASE || super->range != PM_HEAP_RANGE || super->node_count != 1 ||
        super->page_size != PM_PAGE_SIZE || super->slab_size != PM_SLAB_SIZE)
        return pm_fail(err, PM_DAMAGE, "%s: geometry (base %lx, range %lx) is not this program's",
                       pm_heap.dir, (unsigned long)super->base, (unsigned long)super->range);
    return PM_OK;
}

static int check_sizes(struct pm_error *err) {
    if (pm_heap.log.size < sizeof(struct pm_log_header) || pm_heap.log.size > LOG_REACH)
        return pm_fail(err, PM_DAMAGE, "%s/booklog.0 has %zu bytes, too %s for a bookkeeping log",
                       pm_heap.dir, pm_heap.log.size,
                       pm_heap.log.size > LOG_REACH ? "long" : "short");
    if ((pm_heap.log.size - sizeof(struct pm_log_header)) % PM_CHUNK_SIZE)
        return pm_fail(err, PM_DAMAGE,
                       "%s/booklog.0 has %zu bytes, not whole chunks; was it truncated?",
                       pm_heap.dir, pm_heap.log.size);
    if (pm_heap.morph.size > MORPH_REACH)
        return pm_fail(err, PM_DAMAGE, "%s/morph.0 has %zu bytes, too long for index tables",
                       pm_heap.dir, pm_heap.morph.size);
    if (pm_heap.data.size > pm_range || pm_heap.data.size % PM_PAGE_SIZE)
        return pm_fail(err, PM_DAMAGE, "%s/heap.0 has %zu bytes, not whole pages within the range",
                       pm_heap.dir, pm_heap.data.size);
    return PM_OK;
}

// What decides whether there are roots: a mistake here would have the heap emptied.
static int check_state(struct pm_error *err) {
    const struct pm_state *state = &pm_heap.super->state;
    if (state->state != PM_STATE_CLEAN && state->state != PM_STATE_DIRTY)
        return pm_fail(err, PM_DAMAGE,
                       "%s/superblock: state word %016lx is neither clean nor dirty", pm_heap.dir,
                       (unsigned long)state->state);
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

void *pm_file_map(const struct pm_file *file, void *at, size_t len, int prot, int flags,
                  uint64_t offset) {
    void *map = MAP_FAILED;
    if (pm_durability == PM_DURABLE_LINE || pm_durability == PM_DURABLE_CACHE)
        map = mmap(at, len, prot, flags | MAP_SHARED_VALIDATE | MAP_SYNC, file->fd, (off_t)offset);
    if (map == MAP_FAILED) // not DAX, or durability was forced, for a measurement
        map = mmap(at, len, prot, flags | MAP_SHARED, file->fd, (off_t)offset);
    return map;
}

static int map_file(struct pm_file *file, size_t reach, struct pm_error *err) {
    int prot = PROT_READ | (pm_heap.readonly ? 0 : PROT_WRITE);
    void *map = pm_file_map(file, NULL, reach, prot, MAP_NORESERVE, 0);
    if (map == MAP_FAILED)
        return pm_fail(err, PM_OPERATIONAL, "%s/%s: cannot map %zu bytes: %s", pm_heap.dir,
                       file->name, reach, strerror(errno));
    file->map = map;
    file->reach = reach;
    return PM_OK;
}

static int open_files(enum pm_open_mode mode, bool wait, struct pm_error *err) {
    int flags = pm_heap.readonly ? O_RDONLY : O_RDWR;
    int status = PM_OK;
    for (size_t i = 0; i < FILES && status == PM_OK; i++)
        if (all_files[i] != &pm_heap.morph)
            status = pm_file_open(all_files[i], flags, err);
    // A daemon that closes all descriptors takes the directory's lock with them. This one lasts as long as
    // the file is mapped.
    if (status == PM_OK)
        status = pm_dir_lock(pm_heap.super_file.fd, mode, wait, err);
    if (status != PM_OK)
        return status;
    if (pm_heap.super_file.size < sizeof(struct pm_super_file))
        return pm_fail(err, PM_DAMAGE,
                       "%s/superblock has %zu bytes, needs %zu; restore it from a copy",
                       pm_heap.dir, pm_heap.super_file.size, sizeof(struct pm_super_file));
    pm_persist_init(pm_heap.data.fd, (int)pm_options.persist.number - 1);
    status = map_file(&pm_heap.super_file, sizeof(struct pm_super_file), err);
    if (status != PM_OK)
        return status;
    pm_heap.super = (struct pm_super_file *)pm_heap.super_file.map;
    status = check_superblock(&pm_heap.super->super, err);
    if (status == PM_OK && pm_heap_morphs())
        status = pm_file_open(&pm_heap.morph, flags, err);
    if (status == PM_OK)
        status = check_sizes(err);
    return status == PM_OK ? check_state(err) : status;
}

int pm_heap_open(const char *dir, enum pm_open_mode mode, bool wait, struct pm_error *err) {
    pm_heap.busy = pm_heap.created = false;
    pm_heap.readonly = mode == PM_OPEN_READONLY;
    int status = pm_dir_open(dir, mode, wait, err);
    if (status != PM_OK)
        return status;
    status = open_files(mode, wait, err);
    if (status != PM_OK) {
        if (pm_heap.created && !pm_heap.busy)
            pm_heap_remove();
        pm_heap_release();
        return status;
    }
    pm_heap.persistent = true;
    pm_heap.frontier = pm_heap.data.size;
    pm_heap.limit = pm_options.limit.number < pm_range ? pm_options.limit.number : pm_range;
    pm_heap.limit &= ~(PM_REGION_SIZE - 1);
    return PM_OK;
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
    return pm_fail(err, PM_OPERATIONAL, "cannot map the heap's address range at %llx: %s%s",
                   (unsigned long long)pm_base, strerror(saved),
                   saved == ENOMEM ? " (is `ulimit -v` set? unset it)"
                                   : " (under valgrind, set PMALLOC_BACKING=volatile)");
}

static int map_range(int prot, int flags, int fd, struct pm_error *err) {
    void *want = (void *)(uintptr_t)pm_base;
    flags |= MAP_FIXED_NOREPLACE | MAP_NORESERVE;
    void *got = mmap(want, pm_range, prot, flags, fd, 0);
    if (got == want)
        return PM_OK;
    if (got != MAP_FAILED) { // a kernel older than MAP_FIXED_NOREPLACE
        munmap(got, pm_range);
        errno = EEXIST;
    }
    return range_taken(err);
}

int pm_heap_map(struct pm_error *err) {
    bool sync = pm_durability == PM_DURABLE_LINE || pm_durability == PM_DURABLE_CACHE;
    int prot = PROT_READ | (pm_heap.readonly ? 0 : PROT_WRITE);
    int status = PM_OPERATIONAL;
    if (sync)
        status = map_range(prot, MAP_SHARED_VALIDATE | MAP_SYNC, pm_heap.data.fd, err);
    if (status != PM_OK)
        status = map_range(prot, MAP_SHARED, pm_heap.data.fd, err);
    if (status != PM_OK)
        return status;
    pm_heap.data.map = (char *)(uintptr_t)pm_base;
    pm_heap.data.reach = pm_range;
    status = map_file(&pm_heap.slabs, SLABS_REACH, err);
    if (status == PM_OK && pm_heap_morphs())
        status = map_file(&pm_heap.morph, MORPH_REACH, err);
    return status == PM_OK ? map_file(&pm_heap.log, LOG_REACH, err) : status;
}

int pm_heap_volatile(struct pm_error *err) {
    pm_heap.persistent = false;
    pm_heap.limit = pm_options.limit.number < pm_range ? pm_options.limit.number : pm_range;
    pm_heap.limit &= ~(PM_REGION_SIZE - 1);
    pm_heap.frontier = 0;
    int prot = pm_table_steps ? PROT_NONE : PROT_READ | PROT_WRITE;
    uint64_t writable = pm_table_steps ? 0 : pm_range;
    pm_heap_is_anonymous(writable);
    if (map_range(prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, err) == PM_OK)
        return PM_OK;
    // No heap file holds addresses of this memory, so any address will do.
    void *anywhere = mmap(NULL, pm_range, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (anywhere == MAP_FAILED)
        return err->status;
    pm_base = ((uint64_t)(uintptr_t)anywhere + PM_REGION_SIZE - 1) & ~(PM_REGION_SIZE - 1);
    if (pm_heap.limit > pm_range - PM_REGION_SIZE)
        pm_heap.limit = pm_range - PM_REGION_SIZE;
    pm_heap_is_anonymous(writable);
    return PM_OK;
}

// The three words lie in one line, so they become durable in this order. What a killed process stored last may be
// in the caches alone, and power may yet take it back: what this process has read and will build on becomes durable
// with them, here the state and the slots, in pm_log_activate() the log.
void pm_heap_dirty(void) {
    struct pm_state *state = &pm_heap.super->state;
    __atomic_store_n(&state->state, PM_STATE_DIRTY, __ATOMIC_RELEASE);
    __atomic_store_n(&state->opens, state->opens + 1, __ATOMIC_RELEASE);
    __atomic_store_n(&state->owner_pid, (uint64_t)getpid(), __ATOMIC_RELEASE);
    __atomic_store_n(&state->owner_start, pm_os_start_time(getpid()), __ATOMIC_RELEASE);
    pm_make_durable(state, sizeof *state + sizeof(struct pm_slots));
}

bool pm_heap_clean(void) {
    if (!pm_length_known)
        return false;
    if (pm_durability != PM_DURABLE_NONE)
        for (size_t i = 0; i < FILES; i++)
            if ((all_files[i] != &pm_heap.morph || pm_heap_morphs()) &&
                (!pm_file_ready(all_files[i]) || fsync(all_files[i]->fd) != 0))
                return false;
    pm_commit_u64(&pm_heap.super->state.state, PM_STATE_CLEAN);
    return true;
}

// Whether the descriptor is still this file, and not closed by the program or its own by now.
static bool is_ours(const struct pm_file *file) {
    struct stat st;
    return file->fd >= 0 && fstat(file->fd, &st) == 0 && st.st_dev == file->dev &&
           st.st_ino == file->ino;
}

void pm_heap_release(void) {
    for (size_t i = 0; i < FILES; i++) {
        struct pm_file *file = all_files[i];
        if (file->map && file != &pm_heap.data)
            munmap(file->map, file->reach);
        if (is_ours(file))
            close(file->fd);
        file->fd = -1;
        file->map = NULL;
    }
    pm_heap.super = NULL;
    pm_heap.persistent = false;
    pm_dir_close();
}

void pm_heap_remove(void) {
    if (pm_dir_ready() && pm_dir_empty(pm_heap.dir_fd))
        rmdir(pm_heap.dir);
}

bool pm_heap_discard_data(void) {
    static const char fresh[] = "heap.0.new";
    if (!pm_dir_ready())
        return false;
    int fd =
        openat(pm_heap.dir_fd, fresh, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return false;
    close(fd);
    return renameat(pm_heap.dir_fd, fresh, pm_heap.dir_fd, pm_heap.data.name) == 0 &&
           (pm_durability == PM_DURABLE_NONE || fsync(pm_heap.dir_fd) == 0);
}

uint64_t pm_slot_word(unsigned slot, uint64_t pointer) {
    uint64_t both = (uint64_t)slot << 48 | pointer;
    return (uint64_t)(0x8000 | pm_crc32c(0, &both, sizeof both) >> 17) << 48 | pointer;
}

unsigned pm_heap_root_count(void) {
    const struct pm_root_table *t = &pm_heap.super->roots[pm_heap_root_epoch() & 1];
    unsigned count = 0;
    for (uint32_t i = 0; i < t->count && i < PM_ROOT_MAX; i++)
        count += t->root[i].part == 0;
    for (unsigned i = 0; i < PM_ROOT_SLOTS; i++)
        count += pm_heap_slot(i) != 0;
    return count;
}

bool pm_file_ready(struct pm_file *file) {
    struct stat st;
    if (is_ours(file))
        return true;
    // The program closed or replaced our descriptor (a daemon closing all of them): leave the number to
    // its new owner and open the file again by its path.
    char path[sizeof pm_heap.dir + 32];
    snprintf(path, sizeof path, "%s/%s", pm_heap.dir, file->name);
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return false;
    if (fstat(fd, &st) != 0 || st.st_dev != file->dev || st.st_ino != file->ino) {
        close(fd);
        return false;
    }
    file->fd = pm_os_fd_high(fd);
    return true;
}
