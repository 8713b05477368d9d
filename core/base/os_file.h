// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Files and directories by their descriptors. None of these allocates, and none goes through a
// stream: they run inside a stranger's process. Where one fails it reports by errno.
#ifndef PM_OS_FILE_H
#define PM_OS_FILE_H

#include <linux/magic.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

// Writes all of it at `at`: goes on after a signal and after a short write. The caller has asked
// pm_os_file_size() where the file grows.
bool pm_os_write_all(int fd, const void *data, size_t len, uint64_t at);
// Reads as much of [at, at + len) as the file has: goes on after a signal and after a short read.
// Returns how many bytes that were; -1 with errno.
ssize_t pm_os_read_at(int fd, void *to, size_t len, uint64_t at);
// All of it. False, with errno; EIO: the file is shorter than that by now.
bool pm_os_read_all(int fd, void *to, size_t len, uint64_t at);
// As pm_os_write_all(), for pages that the kernel may have given up because it could not write them
// (whole pages of 4096 bytes, at such addresses). ext4 keeps such a page in its cache as one whose
// block is in use, and on the disk the block is none of the file's: stored to once more, and synced
// with success, it is zeroes after a power cut (Linux 6.1). So this goes around the cache
// (O_DIRECT), which drops the page. Where the file system cannot do that it is a usual write. If it
// fails, a usual write keeps the contents in memory. Nobody else may write by the descriptor
// meanwhile.
bool pm_os_write_anew(int fd, const void *data, size_t len, uint64_t at);
// The same purpose, before usual writes: drops the pages that an earlier process may have left so.
// For a file of which all that matters is durable, or is about to be written.
void pm_os_forget_pages(int fd);

// Whether the descriptor is this inode. A program may have closed our descriptor, and the number
// may be that of a file of its own by now.
bool pm_os_fd_is(int fd, uint64_t dev, uint64_t ino);
// It asks by statx, without the file's times. From Linux 6.13 on fstat has the next write make a
// new time, and ext4 without a journal of its own then writes the inode, too, at each sync: a
// commit would wait twice for the disk. Where that call would end the process, it is fstat.
extern _Atomic bool pm_os_fd_by_statx;
// Closes a descriptor of ours. In a child that shares the table of descriptors with its parent
// (CLONE_FILES), this would close the parent's: there it does nothing.
extern bool pm_os_descriptors_shared;
void pm_os_close(int fd);
// Whether the path still names what the descriptor is. A link in the last place is not followed.
bool pm_os_fd_at_path(int fd, const char *path);

// Whether a name is there. Only the kernel's "no such file" says that it is not: an error of the
// disk, or a want of memory, tells nothing. Then errno is set. A link in the last place is not
// followed.
enum pm_there { PM_NOT_THERE, PM_IS_THERE, PM_CANNOT_TELL };
enum pm_there pm_os_there(int dir_fd, const char *name);

// Makes durable the name that a directory gives to what lies at `path`. True also where this user
// may not read that directory.
bool pm_os_sync_parent(const char *path);

// Whether a sandbox says so of a call.
bool pm_os_is_forbidden(int error);

// What tells a file from a copy of it, as far as its file system knows.
struct pm_os_file_id {
    uint64_t ino;      // inode number
    uint64_t birth;    // when it was made: seconds since the epoch,
    uint32_t birth_ns; // and nanoseconds; both 0: not known
};
// False, with errno. Of a device all is 0, because there its node in /dev would say that.
bool pm_os_file_id(int fd, struct pm_os_file_id *out);

// The type of the file system, statfs.f_type; 0: it is not known.
uint64_t pm_os_fs_type(int fd);
// Whether files of this type lie in memory: a write is all that can be done for them.
static inline bool pm_os_fs_in_memory(uint64_t type) {
    return type == TMPFS_MAGIC || type == RAMFS_MAGIC;
}

// What a file system has, in bytes. Whoever is not root may take what is free; what only root may
// take is neither that nor used. `all` is 0 where there is no end: a tmpfs without a size.
struct pm_os_space {
    uint64_t all, used, free;
};
// False, with errno.
bool pm_os_space(int fd, struct pm_os_space *out);

// Fills the buffer with the directory's next entries, as many as fit. Returns their bytes, 0 at the
// end, -1 with errno. `size` is at least 512, and the buffer aligned to 8.
ssize_t pm_os_read_entries(int fd, char *buffer, size_t size);
// The name at `*at` of such a buffer, and moves `*at` to the next one. NULL at the end. "." and
// ".." are left out.
const char *pm_os_next_name(const char *buffer, ssize_t got, ssize_t *at);
// Calls `each` for every name in the directory, from where its descriptor stands, until that says
// false. False when the list cannot be read.
bool pm_os_each_name(int fd, bool (*each)(const char *name, void *arg), void *arg);

// The lowest id of another process that has this inode open, among those that this user may look
// at. 0: there is none, or it cannot be found out.
pid_t pm_os_who_has_open(uint64_t dev, uint64_t ino);

#endif
