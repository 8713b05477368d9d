// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// System calls are made directly: a commit may run in a thread that libc does not know, and libc's
// functions would be cancellation points in a thread of the program's.
#include "journal_files.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/os.h"
#include "base/os_file.h"
#include "file.h"
#include "heap_dir.h"
#include "heap_part.h"
#include "journal_part.h"
#include "volume.h"
#include "work_copy.h"

struct pm_journal_opened pm_journal_opened;

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
    }
    return opened[file];
}

static int fd_of(unsigned file) {
    if (opening)
        return opened[file] >= 0 ? opened[file] : open_by_name(file);
    struct pm_file *f = pm_journal_heap_file(file);
    if (pm_file_ready(f))
        return f->fd;
    errno = EBADF;
    return -1;
}

// ---- the operations -----------------------------------------------------------------------------

// The shard whose data file this is, if it has a copy in memory, too.
static const struct pm_shard *copied(unsigned file) {
    const struct pm_shard *s = &pm_heap.shard[file / PM_JOURNAL_MEMBERS];
    bool copy = !opening && file % PM_JOURNAL_MEMBERS == PM_JOURNAL_DATA && pm_work_bytes(s);
    return copy ? s : NULL;
}

static bool write_at(unsigned file, const void *from, size_t len, uint64_t at) {
    int fd = fd_of(file);
    const struct pm_shard *s = copied(file);
    if (s)
        memcpy(pm_work_bytes(s) + at, from, len);
    struct pm_file *part = pm_journal_part(file);
    if (part && !pm_journal_part_store(part, file, len, &at))
        return false;
    // Beyond RLIMIT_FSIZE there would be a SIGXFSZ.
    return fd >= 0 && pm_os_file_size(at + len) && pm_os_write_all(fd, from, len, at);
}

static bool read_at(unsigned file, void *to, size_t len, uint64_t at) {
    int fd = fd_of(file);
    const struct pm_file *part = pm_journal_part(file);
    if (fd < 0 || (part && !pm_journal_part_load(part, len, &at)))
        return false;
    for (char *p = to; len;) {
        long got = syscall(SYS_pread64, fd, p, len, at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got == 0)
            errno = EIO;
        if (got <= 0)
            return false;
        p += got;
        len -= (size_t)got;
        at += (uint64_t)got;
    }
    return true;
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

static bool can_not(void) {
    return errno == EOPNOTSUPP || errno == EPERM || errno == EACCES || errno == ENOSYS;
}

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
    return good;
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
    while (fd >= 0 && pm_os_file_size(bytes) && (status = syscall(SYS_ftruncate, fd, bytes)) != 0 &&
           errno == EINTR) {
    }
    if (fd >= 0 && file % PM_JOURNAL_MEMBERS == PM_JOURNAL_DATA)
        flock(fd, LOCK_UN);
    return status == 0;
}

static bool sync_file(unsigned file) {
    int fd = fd_of(file);
    long status = -1;
    while (fd >= 0 && (status = syscall(SYS_fdatasync, fd)) != 0 && errno == EINTR) {
    }
    return status == 0;
}

const struct pm_journal_io pm_journal_files = {write_at, read_at, zero_at, set_length, sync_file};

// ---- space --------------------------------------------------------------------------------------

static bool back_entry(const struct pm_journal_io *io, const struct pm_journal_entry *e,
                       const char *from, void *arg) {
    (void)io, (void)from, (void)arg;
    unsigned file = pm_journal_file(e->member, e->shard);
    return e->kind != PM_JOURNAL_PAGE ||
           change_space(file, 0, e->first * PM_PAGE_SIZE, (uint64_t)e->pages * PM_PAGE_SIZE) ||
           can_not();
}

bool pm_journal_back_with_space(void *buffer, const struct pm_journal_found *found) {
    return pm_journal_each(&pm_journal_files, buffer, found, back_entry, NULL);
}

// ---- the journal of the open heap ---------------------------------------------------------------

static bool sync_dir(void) { return syscall(SYS_fsync, pm_heap.dir_fd) == 0 || errno == EINVAL; }

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

static void look_only(const uint8_t uuid[16], void *buffer) {
    struct pm_journal_found *found = &pm_journal_opened.commit;
    if (!pm_journal_look(&pm_journal_files, buffer, uuid, found))
        pm_journal_opened.is = PM_JOURNAL_TORN;
    else if (pm_journal_applied(&pm_journal_files, buffer, found))
        pm_journal_opened.is = PM_JOURNAL_APPLIED;
    else
        pm_journal_opened.is = PM_JOURNAL_WHOLE;
}

static int recover(const uint8_t uuid[16], void *buffer, struct pm_error *err) {
    struct pm_journal_found *found = &pm_journal_opened.commit;
    if (!pm_journal_recover(&pm_journal_files, buffer, uuid, found))
        return pm_fail(err, PM_OPERATIONAL,
                       "%s/journal: its commit cannot be brought into the other files: %s; "
                       "nothing of it is lost: try again once that is mended",
                       pm_heap.dir, pm_strerror(errno));
    pm_journal_opened.is = found->groups ? PM_JOURNAL_APPLIED : PM_JOURNAL_TORN;
    pm_journal_remove();
    return PM_OK;
}

// Whether there is one, and it is not empty. Parts of a fixed medium are open already.
static bool has_journal(struct stat *st) {
    if (!pm_heap.super_file.length)
        return fstatat(pm_heap.dir_fd, pm_heap.journal.name, st, AT_SYMLINK_NOFOLLOW) == 0 &&
               st->st_size != 0;
    *st = (struct stat){.st_mode = S_IFREG, .st_uid = geteuid()};
    return pm_heap.journal.length && pm_heap.journal.size != 0;
}

int pm_journal_open_heap(bool look, struct pm_error *err) {
    struct pm_superblock super;
    struct stat st;
    pm_journal_opened = (struct pm_journal_opened){.is = PM_JOURNAL_NONE};
    for (size_t i = 0; i < sizeof opened / sizeof opened[0]; i++)
        opened[i] = -1;
    if (!has_journal(&st))
        return PM_OK;
    opening = !pm_heap.super_file.length;
    looking = look;
    void *buffer = pm_os_reserve(PM_JOURNAL_BUFFER);
    int status = PM_OK;
    if (!buffer)
        status = pm_fail(err, PM_OPERATIONAL, "%s/journal: no memory to read it", pm_heap.dir);
    else if (!S_ISREG(st.st_mode) || st.st_uid != geteuid())
        status = pm_fail(err, PM_OPERATIONAL, "%s/journal is not a plain file of user %u",
                         pm_heap.dir, (unsigned)geteuid());
    else if (!read_at(PM_JOURNAL_SUPER, &super, sizeof super, 0))
        status = pm_fail(err, PM_DAMAGE, "%s/superblock cannot be read: %s", pm_heap.dir,
                         pm_strerror(errno));
    else if (looking)
        look_only(super.uuid, buffer);
    else
        status = recover(super.uuid, buffer, err);
    if (buffer)
        munmap(buffer, PM_JOURNAL_BUFFER);
    close_all();
    return status;
}
