// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "heap_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"
#include "base/os_file.h"
#include "fixed_open.h"
#include "heap_lock.h"
#include "heap_make.h"
#include "media/backing/file.h"
#include "media/backing/nameless.h"
#include "media/backing/volume.h"
#include "media/backing/volume_file.h"
#include "media/backing/volume_sync.h"
#include "media/backup/backup.h"

#define SUPERBLOCK pm_heap.super_file.name
#define NEW_SUPERBLOCK pm_heap.new_super.name
#define REMOVALS 1000

static bool look_at_name(const char *name, void *arg) {
    struct pm_dir_names *names = arg;
    names->volumes |= pm_volume_name(name);
    if (pm_backup_name(name)) {
        names->backup = true;
        return true;
    }
    for (size_t i = 0; i < PM_HEAP_FILES; i++)
        if (pm_volume_name(name) || strcmp(name, pm_heap_files[i].name) == 0) {
            if (names->shards <= pm_heap_files[i].shard)
                names->shards = pm_heap_files[i].shard + 1;
            return true;
        }
    strcpy(names->stranger, name);
    return false;
}

bool pm_dir_stranger(int fd, char name[NAME_MAX + 1]) {
    struct pm_dir_names names = {0};
    if (lseek(fd, 0, SEEK_SET) == 0)
        pm_os_each_name(fd, look_at_name, &names);
    strcpy(name, names.stranger);
    return *name;
}

// Refuses to make a heap in a directory that cannot be read, or that has a file which is not one of
// a heap's.
static int refuse_strangers(struct pm_dir_names *names, struct pm_error *err) {
    if (lseek(pm_heap.dir_fd, 0, SEEK_SET) < 0 ||
        !pm_os_each_name(pm_heap.dir_fd, look_at_name, names))
        return pm_make_reason(err, ".");
    if (!names->stranger[0])
        return PM_OK;
    return pm_fail(err, PM_OPERATIONAL,
                   "%s is not a PMAlloc heap and not empty (it holds '%s'); name an empty or new "
                   "directory",
                   pm_heap.dir, names->stranger);
}

// Refuses a heap that has lost its superblock: its data is there, and no superblock.new. With a
// superblock.new it is a remnant. Looks at the first `shards` data files.
static int refuse_headless(int fd, unsigned shards, struct pm_error *err) {
    struct stat st;
    if (fstatat(fd, NEW_SUPERBLOCK, &st, AT_SYMLINK_NOFOLLOW) == 0)
        return PM_OK;
    if (errno != ENOENT)
        return pm_make_reason(err, NEW_SUPERBLOCK);
    for (unsigned i = 0; i < shards; i++) {
        const char *name = pm_heap.shard[i].data.name;
        errno = ENOENT;
        if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_size)
            return pm_fail(err, PM_DAMAGE,
                           "%s/superblock is missing, but %s holds data; restore the file, or "
                           "empty the directory",
                           pm_heap.dir, name);
        if (errno != ENOENT)
            return pm_make_reason(err, name);
    }
    return PM_OK;
}

bool pm_dir_is_remnant(int fd) {
    struct pm_error ignored;
    return pm_os_there(fd, SUPERBLOCK) == PM_NOT_THERE && pm_volume_is_one(fd) == PM_NOT_THERE &&
           pm_backup_state_headless(fd) == PM_BACKUP_IS_NONE &&
           refuse_headless(fd, PM_SHARDS, &ignored) == PM_OK;
}

static bool unlink_file(int fd, const char *name) {
    return unlinkat(fd, name, 0) == 0 || errno == ENOENT;
}

struct seen {
    bool name[PM_HEAP_FILES], volumes;
};

static bool note_name(const char *name, void *arg) {
    struct seen *seen = arg;
    seen->volumes |= pm_volume_name(name);
    for (size_t i = 0; i < PM_HEAP_FILES; i++)
        seen->name[i] |= strcmp(name, pm_heap_files[i].name) == 0;
    return true;
}

// Most names are those of no file: one look costs less than to try them all.
static void look_at_names(int fd, struct seen *seen) {
    memset(seen, 0, sizeof *seen);
    if (lseek(fd, 0, SEEK_SET) < 0 || !pm_os_each_name(fd, note_name, seen))
        memset(seen, true, sizeof *seen);
}

// Unlinks every file of the first `shards` shards but the superblock. superblock.new, the mark of a
// remnant, comes last, and only if all other files are gone.
static bool unlink_files(int fd, unsigned shards, uint64_t features) {
    struct seen seen;
    look_at_names(fd, &seen);
    bool good = !seen.volumes || pm_volumes_remove(fd);
    for (size_t i = 0; i < PM_FIRST_FILES + PM_SHARD_FILES * (shards - 1u); i++) {
        const struct pm_heap_file *f = &pm_heap_files[i];
        bool may_be = seen.name[i] && (!f->feature || (f->feature & features));
        const struct pm_file *file = pm_heap_file(f);
        if (may_be && file != &pm_heap.super_file && file != &pm_heap.new_super)
            good &= unlink_file(fd, f->name);
    }
    return good && unlink_file(fd, NEW_SUPERBLOCK);
}

static bool dir_made; // by this process

// Removes what a failed making has left.
static void unmake_files(void) {
    int saved = errno;
    unlinkat(pm_heap.dir_fd, SUPERBLOCK, 0);
    unlink_files(pm_heap.dir_fd, PM_SHARDS, ~0ull);
    if (dir_made)
        rmdir(pm_heap.dir);
    errno = saved;
}

static bool empty_dir(int fd, unsigned shards, uint64_t features) {
    // This one step makes the heap a remnant. So an interruption, or an unlink that fails, leaves
    // either the whole heap or a remnant.
    if (renameat(fd, SUPERBLOCK, fd, NEW_SUPERBLOCK) != 0 && errno != ENOENT)
        return false;
    return unlink_files(fd, shards, features);
}

bool pm_dir_empty(int fd) { return empty_dir(fd, PM_SHARDS, ~0ull); }

void pm_dir_close(void) {
    pm_fixed_close();
    if (pm_dir_is_held()) // else the program has closed it, and may use its number
        pm_os_close(pm_heap.dir_fd);
    pm_heap.dir_fd = -1;
}

static bool no_dir; // the heap lies on fixed media

static int check_dir(struct pm_error *err) {
    struct stat st;
    if (no_dir)
        return PM_OK;
    if (fstat(pm_heap.dir_fd, &st) != 0)
        return pm_make_reason(err, ".");
    pm_dir_note(&st);
    if (st.st_uid != geteuid())
        return pm_fail(err, PM_OPERATIONAL,
                       "%s belongs to user %u, not to user %u; refusing to use it%s", pm_heap.dir,
                       (unsigned)st.st_uid, (unsigned)geteuid(),
                       geteuid() ? "" : ", even as root: do it as that user (setpriv --reuid)");
    if (!(st.st_mode & 022))
        return PM_OK;
    enum pm_there super = pm_os_there(pm_heap.dir_fd, SUPERBLOCK);
    if (super == PM_CANNOT_TELL)
        return pm_make_reason(err, SUPERBLOCK);
    if (super == PM_NOT_THERE)
        return pm_fail(
            err, PM_OPERATIONAL,
            "%s can be written by others (mode %03o) and is no heap; name a directory of "
            "your own",
            pm_heap.dir, (unsigned)st.st_mode & 0777);
    return pm_fail(err, PM_OPERATIONAL,
                   "%s can be written by others (mode %03o); run: chmod 700 '%s'", pm_heap.dir,
                   (unsigned)st.st_mode & 0777, pm_heap.dir);
}

// What to do next, if the directory cannot be made or opened for this reason.
static int say_dir(const char *what, int error, struct pm_error *err) {
    const char *slash = strrchr(pm_heap.dir, '/');
    int parent = slash && slash > pm_heap.dir ? (int)(slash - pm_heap.dir) : 0;
    bool make = *what == 'm';
    int status = pm_fail(err, PM_OPERATIONAL, "%.300s: cannot %s the heap directory: %s",
                         pm_heap.dir, what, pm_strerror(error));
    size_t at = strlen(err->text), room = sizeof err->text - at;
    if (error == ENOENT && make && parent)
        snprintf(err->text + at, room, "; make its parent first: mkdir -p '%.*s'", parent,
                 pm_heap.dir);
    else if (error == ENOENT)
        snprintf(err->text + at, room,
                 "; is the name right? The first program that is started on "
                 "a heap makes it");
    else if (error == EACCES || error == EPERM)
        snprintf(err->text + at, room, "; user %u may not: %s", (unsigned)geteuid(),
                 make ? "name a directory in one of your own"
                      : "a heap belongs to one user, name "
                        "one of your own");
    else if (error == EROFS)
        snprintf(err->text + at, room, "; name a directory on a file system that can be written");
    return status;
}

static int say_link(struct pm_error *err) {
    char to[300];
    ssize_t len = readlink(pm_heap.dir, to, sizeof to - 1);
    to[len > 0 ? len : 0] = '\0';
    return pm_fail(err, PM_OPERATIONAL,
                   "%.150s: cannot open the heap directory: it is a symbolic link, which is not "
                   "followed; name what it points to%s%s",
                   pm_heap.dir, *to ? ": " : "", to);
}

// Makes the directory, but not its parents: a mistyped path must not make a whole tree.
static int open_dir_fd(const char *more, enum pm_open_mode mode, struct pm_error *err) {
    int fd = -1;
    no_dir = false;
    if (mode == PM_OPEN_CREATE && pm_fixed_check_name(pm_heap.dir, err) != PM_OK)
        return err->status;
    // Another process may remove the directory between our mkdir and our open: its owner, or one
    // that takes it for a remnant. Then try again.
    for (unsigned tries = 0; fd < 0 && tries < REMOVALS; tries++) {
        dir_made = mode == PM_OPEN_CREATE && mkdir(pm_heap.dir, 0700) == 0;
        if (mode == PM_OPEN_CREATE && !dir_made && errno != EEXIST)
            return say_dir("make", errno, err);
        fd = open(pm_heap.dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 && (mode != PM_OPEN_CREATE || errno != ENOENT))
            break;
    }
    if (fd < 0) {
        // With O_DIRECTORY the kernel says ENOTDIR for a symbolic link.
        int saved = errno;
        struct stat st;
        bool link = lstat(pm_heap.dir, &st) == 0 && S_ISLNK(st.st_mode);
        int status = dir_made || saved != ENOTDIR || link
                         ? PM_NO_FIXED
                         : pm_fixed_find(more, pm_open_reads(mode), &fd, err);
        no_dir = status != PM_NO_FIXED;
        if (no_dir) {
            pm_dir_adopt(fd);
            return status;
        }
        if (dir_made)
            rmdir(pm_heap.dir);
        return link ? say_link(err) : say_dir("open", saved, err);
    }
    pm_heap.dir_fd = pm_os_fd_high(fd);
    return PM_OK;
}

// The owner may have removed the directory between our open and our lock.
static bool still_there(void) {
    return no_dir ? pm_fixed_still_there() : pm_os_fd_at_path(pm_heap.dir_fd, pm_heap.dir);
}

// One reader after the other folds. Each gives up its shared lock to get the exclusive one, so none
// waits for a lock that the other keeps. The first one does it, for all.
static int fold_backup(enum pm_open_mode mode, struct pm_error *err) {
    struct stat st;
    int fd = pm_heap.dir_fd, status = PM_OK;
    if (mode == PM_OPEN_READONLY && pm_dir_lock(fd, PM_OPEN_EXISTING, true, err) != PM_OK)
        return err->status;
    bool folded = fstatat(fd, SUPERBLOCK, &st, AT_SYMLINK_NOFOLLOW) == 0;
    if (!folded && errno != ENOENT)
        return pm_make_reason(err, SUPERBLOCK);
    pm_heap.changed |= !folded;
    if (!folded)
        status = pm_backup_fold(fd, pm_heap.dir, err);
    if (mode == PM_OPEN_READONLY && status == PM_OK)
        status = pm_dir_lock(fd, mode, true, err);
    return status;
}

static int open_backup(enum pm_backup_state state, enum pm_open_mode mode, struct pm_error *err) {
    if (state == PM_BACKUP_IS_UNKNOWN)
        return pm_make_reason(err, ".");
    if (state == PM_BACKUP_IS_LAYERED && mode < PM_OPEN_LOOK)
        return fold_backup(mode, err);
    return pm_fail(err, PM_OPERATIONAL,
                   "%s is an unfinished backup: run pmalloc-backup into it again, or remove the "
                   "directory",
                   pm_heap.dir);
}

static int need_heap(enum pm_open_mode mode, struct pm_error *err) {
    struct stat st;
    if (no_dir)
        return pm_fixed_open(err);
    if (fstatat(pm_heap.dir_fd, SUPERBLOCK, &st, AT_SYMLINK_NOFOLLOW) == 0)
        return PM_OK;
    if (errno != ENOENT)
        return pm_make_reason(err, SUPERBLOCK);
    struct pm_dir_names names = {.shards = 1};
    bool change = mode == PM_OPEN_CREATE || mode == PM_OPEN_DEAD;
    int listed = change ? refuse_strangers(&names, err) : PM_OK;
    enum pm_backup_state backup =
        change && !names.backup ? PM_BACKUP_IS_NONE : pm_backup_state_headless(pm_heap.dir_fd);
    if (backup != PM_BACKUP_IS_NONE)
        return open_backup(backup, mode, err);
    enum pm_there volume =
        listed != PM_OK || !change ? pm_volume_is_one(pm_heap.dir_fd) : PM_NOT_THERE;
    if (volume == PM_CANNOT_TELL)
        return pm_make_reason(err, PM_VOLUME_FILE);
    if (volume == PM_IS_THERE)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s is a further directory of a heap, which has its superblock in its "
                       "first one; name that first",
                       pm_heap.dir);
    int status = listed;
    if (change && status == PM_OK)
        status = refuse_headless(pm_heap.dir_fd, names.shards, err);
    if (status != PM_OK)
        return status;
    if (mode != PM_OPEN_CREATE) {
        if (mode == PM_OPEN_DEAD)
            pm_heap_remove();
        else if (refuse_headless(pm_heap.dir_fd, names.shards, err) != PM_OK)
            return err->status = PM_OPERATIONAL; // whose files these are is not known
        return pm_fail(err, PM_OPERATIONAL,
                       "%s is not a PMAlloc heap (it has no superblock); is the name right?",
                       pm_heap.dir);
    }
    if (!pm_heap.nameless)
        status = pm_make_files(&names, err);
    else
        status = pm_dir_empty(pm_heap.dir_fd) ? pm_make_names(err) : pm_make_reason(err, ".");
    if (status != PM_OK)
        unmake_files();
    return status;
}

// Makes the path absolute: files are opened again after the program may have changed its directory.
static int remember_path(const char *dir, struct pm_error *err) {
    size_t length = dir == pm_heap.dir ? strlen(dir) : pm_volume_first(dir), before = 0;
    while (length > 1 && dir[length - 1] == '/') // O_NOFOLLOW follows a link that ends in a slash
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
    const char *more = dir + pm_volume_first(dir);
    more += dir != pm_heap.dir && *more;
    if ((dir != pm_heap.dir && pm_volume_check(dir, err) != PM_OK) ||
        remember_path(dir, err) != PM_OK)
        return err->status;
    for (;;) {
        int status = open_dir_fd(more, mode, err);
        if (status != PM_OK) {
            pm_dir_close();
            return status;
        }
        status = check_dir(err);
        if (status == PM_OK)
            status = no_dir ? pm_fixed_lock(mode, wait, err)
                            : pm_dir_lock(pm_heap.dir_fd, mode, wait, err);
        if (status == PM_OK && !still_there()) {
            pm_dir_close();
            continue;
        }
        if (status == PM_OK)
            status = need_heap(mode, err);
        // Only with the lock, because another process may be making its heap here. rmdir() removes
        // an empty directory only.
        int saved = errno;
        if (status != PM_OK && dir_made && !pm_is_busy(err))
            rmdir(pm_heap.dir);
        if (status != PM_OK)
            pm_dir_close();
        errno = saved;
        return status;
    }
}

// Another process may be making or removing its heap at `dir`, or has it: then the heap is busy.
int pm_dir_name(const char *dir, struct pm_error *err) {
    struct pm_lock *lock = &pm_heap.shard[0].lock;
    pm_lock(lock);
    pm_heap.created = false;
    int status = pm_dir_open(dir, PM_OPEN_CREATE, false, err);
    if (status == PM_OK && !pm_heap.created) {
        pm_dir_close();
        status = pm_fail(err, PM_OPERATIONAL, "%s is a heap already", dir);
        err->why = PM_WHY_BUSY;
    }
    pm_heap.created = true;
    pm_heap.nameless = status != PM_OK;
    if (pm_heap.nameless)
        pm_nameless_describe();
    pm_unlock(lock);
    return status;
}

// ---- removal ------------------------------------------------------------------------------------

// An open heap has mostly no files but its shards' (pm_shards_tidy) and its features'.
void pm_heap_remove(void) {
    bool held = pm_heap_is_held();
    unsigned shards = held ? pm_heap.shards : PM_SHARDS;
    uint64_t features = held ? pm_heap.super->super.incompat : ~0ull;
    if (pm_dir_ready() && empty_dir(pm_heap.dir_fd, shards, features) && rmdir(pm_heap.dir) != 0)
        pm_heap_remove_at(pm_heap.dir_fd, pm_heap.dir);
}

void pm_heap_remove_at(int dir_fd, const char *dir) {
    if (pm_dir_empty(dir_fd))
        rmdir(dir);
}

// ---- new data files -----------------------------------------------------------------------------

// A part of a fixed medium stays as long, and what is in it. Nothing in the log speaks of it.
static bool discard_data(const struct pm_shard *s) {
    if (s->data.length)
        return true;
    const char *fresh = s->new_data.name;
    if (!pm_dir_ready())
        return false;
    int fd =
        openat(pm_heap.dir_fd, fresh, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return false;
    close(fd);
    return renameat(pm_heap.dir_fd, fresh, pm_heap.dir_fd, s->data.name) == 0 &&
           pm_volume_sync(s->volume);
}

bool pm_heap_discard_data(void) {
    bool good = true;
    for (unsigned i = 0; i < pm_heap.shards && good; i++)
        good = discard_data(&pm_heap.shard[i]);
    return good;
}
