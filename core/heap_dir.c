// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The heap directory: whose it is, whether it is one, who has it open, and its making.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "booklog.h"
#include "crc.h"
#include "heap.h"
#include "os.h"
#include "persist.h"

#define NEW_SUPERBLOCK "superblock.new"
#define REMOVALS 1000

static int reason(struct pm_error *err, const char *what) {
    return pm_fail(err, PM_OPERATIONAL, "%s/%s: %s", pm_heap.dir, what, strerror(errno));
}

int pm_file_open(struct pm_file *file, int flags, struct pm_error *err) {
    struct stat st;
    // O_NONBLOCK: a pipe in the file's place must not make us wait for its other end.
    int fd = openat(pm_heap.dir_fd, file->name, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (fd < 0 && errno == ENOENT)
        return pm_fail(err, PM_DAMAGE, "%s/%s is missing; the heap is incomplete, restore the file",
                       pm_heap.dir, file->name);
    if (fd < 0 || fstat(fd, &st) != 0)
        return reason(err, file->name);
    if (!S_ISREG(st.st_mode) || st.st_uid != geteuid()) {
        close(fd);
        return pm_fail(err, PM_OPERATIONAL,
                       "%s/%s is not a plain file of user %u; refusing to use it", pm_heap.dir,
                       file->name, (unsigned)geteuid());
    }
    file->fd = pm_os_fd_high(fd);
    file->dev = st.st_dev;
    file->ino = st.st_ino;
    file->size = (size_t)st.st_size;
    return PM_OK;
}

static bool is_ours(const char *entry) {
    static const char *const ours[] = {
        ".",     "..",        "heap.0",     "slabs.0",      "booklog.0",
        "roots", "bitmaps.0", "heap.0.new", NEW_SUPERBLOCK, "morph.0"};
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
        if (strcmp(entry, ours[i]) == 0)
            return true;
    return false;
}

// A directory is made a heap only when it holds nothing but the leavings of an interrupted making, and when
// that can be seen.
static int refuse_strangers(struct pm_error *err) {
    char buffer[2048] __attribute__((aligned(8)));
    long got;
    if (lseek(pm_heap.dir_fd, 0, SEEK_SET) < 0)
        return reason(err, ".");
    while ((got = syscall(SYS_getdents64, pm_heap.dir_fd, buffer, sizeof buffer)) > 0)
        for (long at = 0; at < got;) {
            uint16_t reclen;
            memcpy(&reclen, buffer + at + 16, sizeof reclen);
            const char *entry = buffer + at + 19;
            if (!is_ours(entry))
                return pm_fail(err, PM_OPERATIONAL,
                               "%s is not a PMAlloc heap and not empty (it holds '%s'); name an "
                               "empty or new directory",
                               pm_heap.dir, entry);
            at += reclen;
        }
    return got == 0 ? PM_OK : reason(err, ".");
}

// Data without a superblock is a heap that has lost it; only a removal that was cut short has a superblock.new.
static int refuse_headless(struct pm_error *err) {
    struct stat st;
    if (fstatat(pm_heap.dir_fd, NEW_SUPERBLOCK, &st, AT_SYMLINK_NOFOLLOW) == 0)
        return PM_OK;
    if (errno != ENOENT)
        return reason(err, NEW_SUPERBLOCK);
    if (fstatat(pm_heap.dir_fd, "heap.0", &st, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT ? PM_OK : reason(err, "heap.0");
    return st.st_size == 0 ? PM_OK
                           : pm_fail(err, PM_DAMAGE,
                                     "%s/superblock is missing, but heap.0 holds data; restore "
                                     "the file, or empty the directory",
                                     pm_heap.dir);
}

static void fill_superblock(struct pm_superblock *super) {
    memset(super, 0, sizeof *super);
    super->magic = PM_SUPER_MAGIC;
    super->version = PM_FORMAT_VERSION;
    super->incompat = PM_INCOMPAT_MORPH;
    super->node_count = 1;
    super->base = PM_HEAP_BASE;
    super->range = PM_HEAP_RANGE;
    super->page_size = PM_PAGE_SIZE;
    super->slab_size = PM_SLAB_SIZE;
    super->created = (uint64_t)time(NULL);
    if (getrandom(super->uuid, sizeof super->uuid, GRND_NONBLOCK) != (ssize_t)sizeof super->uuid)
        memcpy(super->uuid, &super->created, sizeof super->created);
    super->node[0] = (struct pm_node_range){0, PM_HEAP_RANGE};
    super->crc = pm_crc32c(0, super, offsetof(struct pm_superblock, crc));
}

static bool write_all(int fd, const void *data, size_t len, off_t at) {
    for (const char *p = data; len;) {
        ssize_t put = pwrite(fd, p, len, at);
        if (put <= 0)
            return false;
        p += put, len -= (size_t)put, at += put;
    }
    return true;
}

// The superblock gets its name last, complete: a directory either is a heap or is not.
static int make_files(struct pm_error *err) {
    static const char *const empty[] = {"heap.0", "slabs.0", "booklog.0", "roots", "morph.0"};
    static const char page[PM_PAGE_SIZE]; // of the root tables, which opening reads
    struct pm_superblock super;
    struct pm_log_header log;
    struct pm_slots slots;
    uint64_t state[2] = {PM_STATE_DIRTY, pm_seal(0, PM_SALT_ROOT_EPOCH)};
    if (!pm_os_file_size(sizeof(struct pm_super_file)))
        return reason(err, NEW_SUPERBLOCK);
    pm_log_header_init(&log);
    for (unsigned i = 0; i < PM_ROOT_SLOTS; i++)
        slots.slot[i] = pm_slot_word(i, 0);
    unlinkat(pm_heap.dir_fd, "bitmaps.0", 0);
    unlinkat(pm_heap.dir_fd, "heap.0", 0); // rather than cut: a forked child may still map it
    for (size_t i = 0; i < sizeof empty / sizeof empty[0]; i++) {
        int fd = openat(pm_heap.dir_fd, empty[i],
                        O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
        bool good = fd >= 0 && (i != 2 || write_all(fd, &log, sizeof log, 0));
        if (fd >= 0)
            close(fd);
        if (!good)
            return reason(err, empty[i]);
    }
    fill_superblock(&super);
    int fd = openat(pm_heap.dir_fd, NEW_SUPERBLOCK,
                    O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    bool good = fd >= 0 && write_all(fd, &super, sizeof super, 0) &&
                write_all(fd, state, sizeof state, offsetof(struct pm_super_file, state)) &&
                write_all(fd, &slots, sizeof slots, offsetof(struct pm_super_file, slots)) &&
                write_all(fd, page, sizeof page, offsetof(struct pm_super_file, roots[0])) &&
                write_all(fd, page, sizeof page, offsetof(struct pm_super_file, roots[1])) &&
                ftruncate(fd, sizeof(struct pm_super_file)) == 0 &&
                (pm_persist_probe(fd) == PM_DURABLE_NONE || (fsync(fd) == 0 && syncfs(fd) == 0));
    if (fd >= 0)
        close(fd);
    // The name must last before the first store that counts on it: a heap without it would be made anew.
    if (!good || renameat(pm_heap.dir_fd, NEW_SUPERBLOCK, pm_heap.dir_fd, "superblock") != 0 ||
        (pm_persist_probe(pm_heap.dir_fd) != PM_DURABLE_NONE && fsync(pm_heap.dir_fd) != 0)) {
        reason(err, NEW_SUPERBLOCK);
        unlinkat(pm_heap.dir_fd, NEW_SUPERBLOCK, 0);
        return err->status;
    }
    pm_heap.created = true;
    return PM_OK;
}

static bool dir_made; // by this process

// What a making that failed has left; the error's errno is in its text already.
static void unmake_files(void) {
    static const char *const made[] = {"superblock", "heap.0", "slabs.0",
                                       "booklog.0",  "roots",  "morph.0"};
    for (size_t i = 0; i < sizeof made / sizeof made[0]; i++)
        unlinkat(pm_heap.dir_fd, made[i], 0);
    if (dir_made)
        rmdir(pm_heap.dir);
}

static dev_t dir_dev;
static ino_t dir_ino;

static bool is_our_dir(int fd) {
    struct stat st;
    return fd >= 0 && fstat(fd, &st) == 0 && st.st_dev == dir_dev && st.st_ino == dir_ino;
}

void pm_dir_adopt(int fd) {
    struct stat st;
    if (fstat(fd, &st) == 0) {
        dir_dev = st.st_dev;
        dir_ino = st.st_ino;
    }
    pm_heap.dir_fd = fd;
}

bool pm_dir_empty(int fd) {
    static const char *const names[] = {"roots",   "booklog.0", "slabs.0",    "heap.0",
                                        "morph.0", "bitmaps.0", "heap.0.new", "superblock.new"};
    // One step makes it a remnant, which says so by its superblock.new: an interruption, or an unlink that
    // fails, leaves the whole heap or what may be made anew, but never a heap that lacks files.
    if (renameat(fd, "superblock", fd, "superblock.new") != 0 && errno != ENOENT)
        return false;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (unlinkat(fd, names[i], 0) != 0 && errno != ENOENT)
            return false;
    return true;
}

void pm_dir_close(void) {
    if (is_our_dir(pm_heap.dir_fd)) // the number may be the program's by now
        close(pm_heap.dir_fd);
    pm_heap.dir_fd = -1;
}

bool pm_dir_ready(void) {
    if (is_our_dir(pm_heap.dir_fd))
        return true;
    int fd = open(pm_heap.dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (!is_our_dir(fd)) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    pm_heap.dir_fd = pm_os_fd_high(fd);
    return true;
}

static int check_dir(struct pm_error *err) {
    struct stat st;
    if (fstat(pm_heap.dir_fd, &st) != 0)
        return reason(err, ".");
    dir_dev = st.st_dev;
    dir_ino = st.st_ino;
    if (st.st_uid != geteuid())
        return pm_fail(err, PM_OPERATIONAL,
                       "%s belongs to user %u, not to user %u; refusing to use it", pm_heap.dir,
                       (unsigned)st.st_uid, (unsigned)geteuid());
    if (!(st.st_mode & 022))
        return PM_OK;
    if (faccessat(pm_heap.dir_fd, "superblock", F_OK, AT_SYMLINK_NOFOLLOW) != 0)
        return pm_fail(
            err, PM_OPERATIONAL,
            "%s can be written by others (mode %03o) and is no heap; name a directory of "
            "your own",
            pm_heap.dir, (unsigned)st.st_mode & 0777);
    return pm_fail(err, PM_OPERATIONAL,
                   "%s can be written by others (mode %03o); run: chmod 700 '%s'", pm_heap.dir,
                   (unsigned)st.st_mode & 0777, pm_heap.dir);
}

// Who has the heap, by the superblock: for the message, and for descendants of the owner.
static void find_holder(void) {
    struct pm_state state;
    int fd = openat(pm_heap.dir_fd, "superblock", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    bool known = fd >= 0 && pread(fd, &state, sizeof state,
                                  offsetof(struct pm_super_file, state)) == (ssize_t)sizeof state;
    if (fd >= 0)
        close(fd);
    pm_heap.busy_pid = known ? (pid_t)state.owner_pid : 0;
    pm_heap.busy_start = known ? state.owner_start : 0;
}

// Read-only looks share the lock among themselves; everybody else is alone.
int pm_dir_lock(int fd, enum pm_open_mode mode, bool wait, struct pm_error *err) {
    int operation = mode == PM_OPEN_READONLY ? LOCK_SH : LOCK_EX;
    while (flock(fd, operation | (wait ? 0 : LOCK_NB)) != 0) {
        if (errno == EINTR)
            continue;
        if (errno != EWOULDBLOCK)
            return reason(err, "lock");
        pm_heap.busy = true;
        find_holder();
        return pm_fail(
            err, PM_OPERATIONAL,
            "%s is in use by process %d; wait for it to end, set PMALLOC_BUSY=wait, or use "
            "another heap",
            pm_heap.dir, (int)pm_heap.busy_pid);
    }
    return PM_OK;
}

// Makes the directory, not its parents: a mistyped path must not grow a tree.
static int open_dir_fd(enum pm_open_mode mode, struct pm_error *err) {
    int fd = -1;
    // Again where another process removes it, as its owner or as what looked dead, before we have it open.
    for (unsigned tries = 0; fd < 0 && tries < REMOVALS; tries++) {
        dir_made = mode == PM_OPEN_CREATE && mkdir(pm_heap.dir, 0700) == 0;
        if (mode == PM_OPEN_CREATE && !dir_made && errno != EEXIST)
            return pm_fail(err, PM_OPERATIONAL, "%s: cannot make the heap directory: %s",
                           pm_heap.dir, strerror(errno));
        fd = open(pm_heap.dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 && (mode != PM_OPEN_CREATE || errno != ENOENT))
            break;
    }
    if (fd < 0) {
        // With O_DIRECTORY a symbolic link gives ENOTDIR.
        int saved = errno;
        struct stat st;
        bool link = lstat(pm_heap.dir, &st) == 0 && S_ISLNK(st.st_mode);
        if (dir_made)
            rmdir(pm_heap.dir);
        return pm_fail(err, PM_OPERATIONAL, "%s: cannot open the heap directory: %s", pm_heap.dir,
                       link ? "it is a symbolic link, which is not followed" : strerror(saved));
    }
    pm_heap.dir_fd = pm_os_fd_high(fd);
    return PM_OK;
}

// The owner may have removed the directory between our open and our lock.
static bool still_there(void) {
    struct stat by_fd, by_path;
    return fstat(pm_heap.dir_fd, &by_fd) == 0 && lstat(pm_heap.dir, &by_path) == 0 &&
           by_fd.st_ino == by_path.st_ino && by_fd.st_dev == by_path.st_dev;
}

static int is_heap(enum pm_open_mode mode, struct pm_error *err) {
    struct stat st;
    if (fstatat(pm_heap.dir_fd, "superblock", &st, AT_SYMLINK_NOFOLLOW) == 0)
        return PM_OK;
    if (errno != ENOENT)
        return reason(err, "superblock");
    int status = PM_OK;
    bool change = mode == PM_OPEN_CREATE || mode == PM_OPEN_DEAD;
    if (change && (status = refuse_strangers(err)) == PM_OK)
        status = refuse_headless(err);
    if (status != PM_OK)
        return status;
    if (mode != PM_OPEN_CREATE) {
        if (mode == PM_OPEN_DEAD)
            pm_heap_remove();
        return pm_fail(err, PM_OPERATIONAL, "%s is not a PMAlloc heap (it has no superblock)",
                       pm_heap.dir);
    }
    if ((status = make_files(err)) != PM_OK)
        unmake_files();
    return status;
}

// Absolute, for files that are opened again after the program has changed its directory.
static int remember_path(const char *dir, struct pm_error *err) {
    size_t length = strlen(dir), before = 0;
    while (length > 1 && dir[length - 1] == '/') // behind a slash, O_NOFOLLOW would follow
        length--;
    if (dir != pm_heap.dir && *dir != '/' && getcwd(pm_heap.dir, sizeof pm_heap.dir)) {
        before = strlen(pm_heap.dir);
        if (before > 1 && before + 1 < sizeof pm_heap.dir)
            pm_heap.dir[before++] = '/';
    }
    if (before + length >= sizeof pm_heap.dir)
        return pm_fail(err, PM_OPERATIONAL, "%.60s...: the path is too long", dir);
    memmove(pm_heap.dir + before, dir, length);
    pm_heap.dir[before + length] = '\0';
    return PM_OK;
}

int pm_dir_open(const char *dir, enum pm_open_mode mode, bool wait, struct pm_error *err) {
    if (remember_path(dir, err) != PM_OK)
        return err->status;
    for (;;) {
        int status = open_dir_fd(mode, err);
        if (status != PM_OK)
            return status;
        status = check_dir(err);
        if (status == PM_OK)
            status = pm_dir_lock(pm_heap.dir_fd, mode, wait, err);
        if (status == PM_OK && !still_there()) {
            pm_dir_close();
            continue;
        }
        if (status == PM_OK)
            status = is_heap(mode, err);
        // While we have the lock, or another process makes its heap in it; and only where it is empty.
        if (status != PM_OK && dir_made && !pm_heap.busy)
            rmdir(pm_heap.dir);
        if (status != PM_OK)
            pm_dir_close();
        return status;
    }
}
