// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// System calls are made directly: a commit may run in a thread that libc does not know, and libc's
// functions would be cancellation points in a thread of the program's.
#include "journal_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/crc.h"
#include "base/file_limit.h"
#include "base/os.h"
#include "base/os_file.h"
#include "media/backing/dir_held.h"
#include "media/backing/file.h"
#include "media/backing/fixed.h"
#include "media/backing/heap_part.h"
#include "media/backing/journal_part.h"
#include "media/backing/volume.h"
#include "media/backing/work_copy.h"
#include "media/journal/checkpoint.h"
#include "media/journal/page_sums.h"
#include "media/persist.h"

struct pm_journal_opened pm_journal_opened;
bool pm_journal_take_good;

// While a heap is being opened its files are not open yet, so they are opened here, by their names.
// Which volume has a shard's files says the superblock, which may itself be in the journal: so each
// is looked for.
static bool opening, looking;
static int opened[PM_SHARDS * PM_JOURNAL_MEMBERS];

struct pm_file *pm_journal_heap_file(unsigned file) {
    return pm_heap_part(file);
}

static int open_by_name(unsigned file) {
    char name[PM_FILE_NAME];
    const struct pm_file *wanted = pm_journal_heap_file(file);
    for (size_t i = 0; i < PM_HEAP_FILES && opened[file] < 0; i++) {
        if (pm_heap_file(&pm_heap_files[i]) != wanted)
            continue;
        pm_volume_find(pm_heap.dir_fd, &pm_heap_files[i], name);
        opened[file] = openat(pm_heap.dir_fd, name,
                              (looking ? O_RDONLY : O_RDWR) | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        // All that the lap has of its pages follows, and the others are durable.
        if (opened[file] >= 0 && !looking)
            pm_os_forget_pages(opened[file]);
    }
    return opened[file];
}

static struct trust {
    bool on, limit_known;
    bool ours[PM_SHARDS * PM_JOURNAL_MEMBERS]; // the descriptor was looked at
    uint64_t limit;
} trust;

void pm_journal_files_trust(bool on) { trust = (struct trust){.on = on}; }

static int fd_of(unsigned file) {
    if (opening)
        return opened[file] >= 0 ? opened[file] : open_by_name(file);
    struct pm_file *f = pm_journal_heap_file(file);
    if ((trust.on && trust.ours[file]) || pm_file_ready(f)) {
        trust.ours[file] = true;
        return f->fd;
    }
    errno = EBADF;
    return -1;
}

static bool is_within_limit(uint64_t size) {
    if (!trust.on || !trust.limit_known)
        trust.limit = pm_file_limit();
    trust.limit_known = true;
    return size <= trust.limit;
}

// ---- the operations -----------------------------------------------------------------------------

static unsigned failed; // the file that could not be changed last, for a message
bool pm_journal_has_no_room;
static bool lacks_room; // the last write

static bool changed(unsigned file, bool good) {
    if (!good) {
        failed = file;
        pm_journal_has_no_room = lacks_room;
    }
    return good;
}

// The shard whose data file this is, if it has a copy in memory, too.
static const struct pm_shard *copied(unsigned file) {
    const struct pm_shard *s = &pm_heap.shard[file / PM_JOURNAL_MEMBERS];
    bool copy = !opening && file % PM_JOURNAL_MEMBERS == PM_JOURNAL_DATA && pm_work_bytes(s);
    return copy ? s : NULL;
}

static bool has_space(int fd, uint64_t at, uint64_t len) {
    long status;
    do
        status = syscall(SYS_fallocate, fd, 0, at, len);
    while (status != 0 && errno == EINTR);
    return status == 0 || errno == EOPNOTSUPP;
}

static bool is_longer(int fd, uint64_t bytes) {
    struct stat st;
    if (fstat(fd, &st) != 0 || (uint64_t)st.st_size >= bytes)
        return true;
    struct pm_file_room room = pm_file_room(bytes);
    bool good = room.good && syscall(SYS_ftruncate, fd, bytes) == 0;
    pm_file_room_end(room);
    return good;
}

// Beyond RLIMIT_FSIZE a write would be a SIGXFSZ. To lift the limit for all of the writes of a
// commit would lift it for the program's, too. So this stores through a mapping.
static bool store_beyond(int fd, const void *from, size_t len, uint64_t at) {
    size_t before = at & (PM_PAGE_SIZE - 1);
    if (!is_longer(fd, at + len) || !has_space(fd, at, len))
        return false;
    char *map = mmap(pm_os_place(before + len), before + len, PROT_READ | PROT_WRITE, MAP_SHARED,
                     fd, (off_t)(at - before));
    if (map == MAP_FAILED)
        return false;
    memcpy(map + before, from, len);
    munmap(map, before + len);
    return true;
}

typedef bool write_fn(int fd, const void *data, size_t len, uint64_t at);

static bool write_by(write_fn *by, unsigned file, const void *from, size_t len, uint64_t at) {
    int fd = fd_of(file);
    const struct pm_shard *s = copied(file);
    if (s)
        memcpy(pm_work_bytes(s) + at, from, len);
    struct pm_file *part = pm_journal_part(file);
    lacks_room = part && !pm_journal_part_store(part, file, len, &at);
    if (lacks_room)
        return false;
    if (fd >= 0 && !part && !is_within_limit(at + len))
        return store_beyond(fd, from, len, at);
    return fd >= 0 && by(fd, from, len, at);
}

// A commit's pages are not read again, and it waits for them at once: around the cache that takes a
// fifth less time, on a disk whose sync takes 100 microseconds. More than this is read again to be
// brought into the files (pm_journal_each_last_of()).
#define DIRECT_MOST ((size_t)4 << 20)
static bool goes_direct;

static bool write_at(unsigned file, const void *from, size_t len, uint64_t at) {
    bool direct = file == PM_JOURNAL_SELF && goes_direct && len <= DIRECT_MOST;
    return changed(file,
                   write_by(direct ? pm_os_write_anew : pm_os_write_all, file, from, len, at));
}

static bool write_anew_at(unsigned file, const void *from, size_t len, uint64_t at) {
    return changed(file, write_by(pm_os_write_anew, file, from, len, at));
}

bool pm_journal_pread(int fd, void *to, size_t len, uint64_t at) {
    for (char *p = to; len;) {
        long got = syscall(SYS_pread64, fd, p, len, at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == PM_JOURNAL_ENDS) // a disk's word for a bad block
            errno = EIO;
        if (got == 0)
            errno = PM_JOURNAL_ENDS;
        if (got <= 0)
            return false;
        p += got;
        len -= (size_t)got;
        at += (uint64_t)got;
    }
    return true;
}

static bool read_at(unsigned file, void *to, size_t len, uint64_t at) {
    int fd = fd_of(file);
    const struct pm_file *part = pm_journal_part(file);
    return fd >= 0 && (!part || pm_journal_part_load(part, len, &at)) &&
           pm_journal_pread(fd, to, len, at);
}

uint64_t pm_journal_next_data(unsigned file, uint64_t at) {
    bool known = !pm_journal_part(file) && fd_of(file) >= 0;
    return known ? pm_file_next_data(pm_journal_heap_file(file), at) : at;
}

static bool change_space(unsigned file, int mode, uint64_t at, uint64_t len) {
    int fd = fd_of(file);
    long status = -1;
    if (pm_journal_part(file)) {
        errno = EOPNOTSUPP;
        return false;
    }
    while (fd >= 0 && (status = syscall(SYS_fallocate, fd, mode, at, len)) != 0 && errno == EINTR) {
    }
    return status == 0;
}

static bool can_not(void) { return errno == EOPNOTSUPP || pm_os_is_forbidden(errno); }

static bool zero_at(unsigned file, uint64_t at, uint64_t len) {
    static char zeroes[16 * PM_PAGE_SIZE]; // never stored to, so without memory
    const struct pm_shard *s = copied(file);
    if (s)
        pm_work_empty(s, at, len);
    if (change_space(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, len))
        return true;
    bool good = can_not();
    for (size_t part; len && good; at += part, len -= part) {
        part = len < sizeof zeroes ? len : sizeof zeroes;
        good = write_at(file, zeroes, part, at);
    }
    return changed(file, good);
}

// Truncating a data file discards even the pages that a private mapping has copied. A process that
// has such a mapping shares a lock (pm_shard_pin). Then the file stays as long, and is empty there:
// a heap may be longer than its last commit says.
static bool empty_instead(unsigned file, int fd, uint64_t bytes, bool *done) {
    struct stat st;
    if (file % PM_JOURNAL_MEMBERS != PM_JOURNAL_DATA || fstat(fd, &st) != 0 ||
        (uint64_t)st.st_size <= bytes || flock(fd, LOCK_EX | LOCK_NB) == 0)
        return false;
    *done = zero_at(file, bytes, ((uint64_t)st.st_size - bytes) & ~(PM_PAGE_SIZE - 1));
    return true;
}

static bool set_length(unsigned file, uint64_t bytes) {
    int fd = fd_of(file);
    long status = -1;
    bool done;
    struct pm_file *part = pm_journal_part(file);
    if (part)
        return pm_journal_part_set_length(part, file, bytes, zero_at);
    if (empty_instead(file, fd, bytes, &done))
        return done;
    struct pm_file_room room = pm_file_room(bytes);
    while (fd >= 0 && room.good && (status = syscall(SYS_ftruncate, fd, bytes)) != 0 &&
           errno == EINTR) {
    }
    pm_file_room_end(room);
    if (fd >= 0 && file % PM_JOURNAL_MEMBERS == PM_JOURNAL_DATA)
        flock(fd, LOCK_UN);
    return changed(file, status == 0);
}

static bool sync_file(unsigned file) {
    int fd = fd_of(file);
    long status = -1;
    while (fd >= 0 && (status = syscall(SYS_fdatasync, fd)) != 0 && errno == EINTR) {
    }
    if (status != 0)
        pm_fixed_take_reports();
    return changed(file, status == 0);
}

static bool is_in_memory(unsigned file) {
    int fd = fd_of(file);
    return fd >= 0 && !pm_journal_part(file) && pm_os_fs_in_memory(pm_os_fs_type(fd));
}

const struct pm_journal_io pm_journal_files = {.write = write_at,
                                               .read = read_at,
                                               .zero = zero_at,
                                               .set_length = set_length,
                                               .sync = sync_file,
                                               .write_anew = write_anew_at,
                                               .in_memory = is_in_memory};

// ---- space --------------------------------------------------------------------------------------

static bool back_entry(const struct pm_journal_io *io, const struct pm_journal_entry *e,
                       const char *from, void *arg) {
    (void)io, (void)from, (void)arg;
    unsigned file = pm_journal_file(e->member, e->shard);
    uint64_t at = e->first * PM_PAGE_SIZE, len = (uint64_t)e->pages * PM_PAGE_SIZE;
    return e->kind != PM_JOURNAL_PAGE || pm_sums_backed(file, e->first, e->pages) ||
           change_space(file, 0, at, len) || can_not();
}

bool pm_journal_back_with_space(struct pm_journal *j, const struct pm_journal_found *last) {
    return pm_journal_each_last_of(j, last, back_entry, NULL);
}

// ---- the journal of the open heap ---------------------------------------------------------------

// A lap takes at most this part of the medium.
#define LAP_PART 64

static bool sync_dir(void) { return syscall(SYS_fsync, pm_heap.dir_fd) == 0 || errno == EINVAL; }

// In memory syncs cost nothing, and on a small medium room does.
static void limit_lap(int fd) {
    struct pm_os_space space;
    uint64_t most = pm_os_space(fd, &space) && space.all ? space.all / LAP_PART : UINT64_MAX;
    if (is_in_memory(PM_JOURNAL_SELF) || most < PM_CHECKPOINT_LAP_LEAST)
        most = PM_CHECKPOINT_LAP_LEAST;
    if (pm_checkpoint_lap > most)
        pm_checkpoint_lap = most;
}

bool pm_journal_open(void) {
    struct pm_file *file = &pm_heap.journal;
    struct stat st;
    if (file->length)
        return pm_file_ready(file);
    if (!pm_dir_ready())
        return false;
    int fd = openat(pm_heap.dir_fd, file->name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0 || fstat(fd, &st) != 0 || !sync_dir()) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    file->fd = pm_os_fd_high(fd);
    file->dev = st.st_dev;
    file->ino = st.st_ino;
    limit_lap(file->fd);
    goes_direct = !is_in_memory(PM_JOURNAL_SELF);
    return true;
}

void pm_journal_remove(void) {
    if (!pm_heap.journal.length)
        unlinkat(pm_heap.dir_fd, pm_heap.journal.name, 0);
}

// ---- the journal of a heap that is being opened -------------------------------------------------

static void close_all(void) {
    for (size_t i = 0; i < sizeof opened / sizeof opened[0]; i++)
        if (opened[i] >= 0)
            close(opened[i]);
    opening = false;
}

// Nothing was changed, and nothing of it is lost.
static int unreadable(int error, struct pm_error *err) {
    return pm_fail(err, PM_OPERATIONAL,
                   "%s/journal: what was committed cannot be read: %s; nothing of it is lost, and "
                   "nothing was changed: mend that (a bad block? `ulimit -n`?), and try again",
                   pm_heap.dir, pm_strerror(error));
}

static int damaged(const char *how, struct pm_error *err) {
    const struct pm_journal_found *found = &pm_journal_opened.commit;
    char last[48] = "";
    if (found->groups) // libc's functions for dates may allocate
        snprintf(last, sizeof last, " (date -d @%lu)", (unsigned long)(found->time / 1000000000u));
    return pm_fail(err, PM_DAMAGE,
                   "%s/journal is damaged behind its commit %lu%s: %s; restore a backup, or take "
                   "what can be had: `pmalloc-recover --at good%s %s`",
                   pm_heap.dir, (unsigned long)found->commits, last, how,
                   pm_heap.copy ? " --copy" : "", pm_heap.dir);
}

// Whether the journal has all commits that the files have. A cut of the power may take the count
// away, but never a commit that was counted: the journal was durable before.
static int check_applied(struct pm_error *err) {
    uint64_t word = pm_heap.super->state.applied, has = pm_journal_opened.commit.commits;
    char how[128];
    if (word && !pm_sealed(word, PM_SALT_APPLIED))
        return damaged("the superblock's number of commits does not match its check", err);
    if (!word || pm_unseal(word) <= has)
        return PM_OK;
    snprintf(how, sizeof how, "%u commits of it are in the other files; was it cut or removed?",
             pm_unseal(word));
    return damaged(how, err);
}

// It is empty, or not there: after a lap that the files have durably, or because it was cut or
// removed. Before it is removed, the count is 0 durably, and copies of other makes have the count
// 0.
static int check_empty(bool only_look, struct pm_error *err) {
    int status = check_applied(err);
    pm_journal_opened.cut = status == PM_DAMAGE && pm_journal_take_good;
    if (!pm_journal_opened.cut)
        return status;
    if (!only_look)
        pm_commit_u64(&pm_heap.super->state.applied, 0);
    return PM_OK;
}

// A lap belongs to the files that it followed, or to those that have it already.
static int check_time(struct pm_error *err) {
    const struct pm_journal_found *found = &pm_journal_opened.commit;
    uint32_t mark = pm_heap.super->state.lap;
    if (!found->groups || !found->follows || found->follows == mark ||
        pm_journal_mark(found->id) == mark)
        return PM_OK;
    return pm_fail(err, PM_DAMAGE,
                   "%s/journal is of another time than %s/superblock: one of them was restored or "
                   "copied without the other; nothing was changed: if all other files were "
                   "restored, remove the journal; else restore all files, into an empty directory",
                   pm_heap.dir, pm_heap.dir);
}

static int look(const uint8_t uuid[16], void *buffer, struct pm_error *err) {
    int error = pm_journal_look(&pm_journal_files, buffer, uuid, &pm_journal_opened.commit);
    if (error && error != PM_JOURNAL_DAMAGED)
        return unreadable(error, err);
    int status = error ? damaged("a commit there is not whole, but a later one is", err)
                       : check_applied(err);
    if (status == PM_DAMAGE && pm_journal_take_good) {
        pm_journal_opened.cut = true;
        status = PM_OK;
    }
    return status == PM_OK ? check_time(err) : status;
}

static int look_only(void *buffer, struct pm_error *err) {
    struct pm_journal_found *found = &pm_journal_opened.commit;
    int same = found->groups ? pm_journal_applied(&pm_journal_files, buffer, found) : 0;
    if (same < 0)
        return unreadable(errno, err);
    pm_journal_opened.is = !found->groups ? PM_JOURNAL_TORN
                           : same         ? PM_JOURNAL_APPLIED
                                          : PM_JOURNAL_WHOLE;
    return PM_OK;
}

static int recover(void *buffer, struct pm_error *err) {
    struct pm_journal_found *found = &pm_journal_opened.commit;
    if (!pm_journal_recover(&pm_journal_files, buffer, found))
        return pm_fail(err, PM_OPERATIONAL,
                       "%s/journal: its commit cannot be brought into the other files: %s: %s; "
                       "nothing of it is lost: try again once that is mended",
                       pm_heap.dir, pm_journal_heap_file(failed)->name, pm_strerror(errno));
    pm_journal_opened.is = found->groups ? PM_JOURNAL_APPLIED : PM_JOURNAL_TORN;
    pm_journal_remove();
    return PM_OK;
}

// Whether there is one. *error: that cannot be known. Parts of a fixed medium are open already.
static bool has_journal(struct stat *st, int *error) {
    *error = 0;
    *st = (struct stat){.st_mode = S_IFREG, .st_uid = geteuid()};
    if (pm_heap.super_file.length) {
        st->st_size = (off_t)pm_heap.journal.size;
        return pm_heap.journal.length;
    }
    bool found = fstatat(pm_heap.dir_fd, pm_heap.journal.name, st, AT_SYMLINK_NOFOLLOW) == 0;
    *error = found || errno == ENOENT ? 0 : errno;
    return found;
}

bool pm_journal_waits(void) {
    struct stat st;
    int error;
    return pm_heap.super->super.incompat & PM_INCOMPAT_JOURNAL &&
           (has_journal(&st, &error) || error);
}

static int open_journal(const struct stat *st, bool only_look, struct pm_error *err) {
    struct pm_superblock super;
    int status = PM_OK;
    void *buffer = pm_os_reserve(PM_JOURNAL_BUFFER);
    if (!buffer)
        status = pm_fail(err, PM_OPERATIONAL, "%s/journal: no memory to read it", pm_heap.dir);
    else if (!S_ISREG(st->st_mode) || st->st_uid != geteuid())
        status = pm_fail(err, PM_OPERATIONAL, "%s/journal is not a plain file of user %u",
                         pm_heap.dir, (unsigned)geteuid());
    else if (!read_at(PM_JOURNAL_SUPER, &super, sizeof super, 0))
        status = pm_fail(err, errno == PM_JOURNAL_ENDS ? PM_DAMAGE : PM_OPERATIONAL,
                         "%s/superblock cannot be read: %s; nothing was changed", pm_heap.dir,
                         pm_strerror(errno));
    else
        status = look(super.uuid, buffer, err);
    if (status == PM_OK && only_look)
        status = look_only(buffer, err);
    else if (status == PM_OK)
        status = recover(buffer, err);
    if (buffer)
        munmap(buffer, PM_JOURNAL_BUFFER);
    return status;
}

int pm_journal_open_heap(bool only_look, struct pm_error *err) {
    struct stat st;
    int error;
    pm_journal_opened = (struct pm_journal_opened){.is = PM_JOURNAL_NONE};
    for (size_t i = 0; i < sizeof opened / sizeof opened[0]; i++)
        opened[i] = -1;
    if (!has_journal(&st, &error) && error)
        return unreadable(error, err);
    if (st.st_size == 0)
        return check_empty(only_look, err);
    opening = !pm_heap.super_file.length;
    looking = only_look;
    int status = open_journal(&st, only_look, err);
    close_all();
    return status;
}
