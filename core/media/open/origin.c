// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "origin.h"

#include <errno.h>
#include <linux/magic.h>
#include <stddef.h>
#include <string.h>

#include "base/crc.h"
#include "base/os_file.h"
#include "media/backing/file.h"
#include "media/heap.h"
#include "media/persist.h"

// Not in <linux/magic.h>.
#define BCACHEFS_MAGIC 0xca451a4e
#define ZFS_MAGIC 0x2fc12fc1

bool pm_copies_taken;

// Whether a file has the same inode number after the next mount. Others make numbers up (FUSE, FAT,
// SMB), and of those that are not named here it is not known. On overlayfs it depends on the layers
// below, and when a file was made does not.
static bool numbers_last(uint64_t type) {
    switch (type) {
    case EXT4_SUPER_MAGIC:
    case XFS_SUPER_MAGIC:
    case BTRFS_SUPER_MAGIC:
    case F2FS_SUPER_MAGIC:
    case BCACHEFS_MAGIC:
    case ZFS_MAGIC:
    case NFS_SUPER_MAGIC:
    case TMPFS_MAGIC: // not after a reboot, but nor does the heap
    case RAMFS_MAGIC:
        return true;
    default:
        return false;
    }
}

static uint64_t seal_of(const struct pm_origin *o) {
    return pm_seal(pm_crc32c(0, o, offsetof(struct pm_origin, seal)), PM_SALT_ORIGIN);
}

struct pm_origin pm_origin_of(int fd) {
    struct pm_os_file_id id;
    struct pm_origin o = {0};
    uint64_t type = pm_os_fs_type(fd);
    if (!(numbers_last(type) || type == OVERLAYFS_SUPER_MAGIC) || !pm_os_file_id(fd, &id))
        return o;
    o.ino = type == OVERLAYFS_SUPER_MAGIC ? 0 : id.ino;
    o.birth = id.birth;
    o.birth_ns = id.birth_ns;
    o.seal = o.ino || o.birth ? seal_of(&o) : 0;
    return o;
}

// Until the seal is there, what is there is not known. All of it is in one line, so the words
// become durable in this order. The kernel is asked once for each file: a filter that the program
// has installed since may forbid that.
void pm_origin_record(void) {
    struct pm_origin *o = &pm_heap.super->state.origin, now;
    struct pm_file *file = &pm_heap.super_file;
    if (pm_heap.recorded == file->ino || !pm_file_ready(file))
        return;
    pm_heap.recorded = file->ino;
    now = pm_origin_of(file->fd);
    if (memcmp(o, &now, sizeof now) == 0)
        return;
    __atomic_store_n(&o->seal, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&o->ino, now.ino, __ATOMIC_RELEASE);
    __atomic_store_n(&o->birth, now.birth, __ATOMIC_RELEASE);
    __atomic_store_n(&o->birth_ns, now.birth_ns, __ATOMIC_RELEASE);
    __atomic_store_n(&o->reserved, 0, __ATOMIC_RELEASE);
    pm_commit_u64(&o->seal, now.seal);
}

bool pm_origin_is_whole(const struct pm_origin *o) { return !o->seal || o->seal == seal_of(o); }

// The file is compared as it is seen here, also on a file system where nothing would be recorded:
// it may be the same one, by another way (virtiofs, the layer below an overlayfs).
static bool is_another(const struct pm_origin *o, const struct pm_os_file_id *id) {
    bool born = o->birth && id->birth;
    return (o->ino && o->ino != id->ino) ||
           (born && (o->birth != id->birth || o->birth_ns != id->birth_ns));
}

int pm_origin_check(bool at_rest, struct pm_error *err) {
    const struct pm_origin *o = &pm_heap.super->state.origin;
    struct pm_os_file_id id;
    if (!o->seal || !pm_origin_is_whole(o))
        return PM_OK;
    if (!pm_os_file_id(pm_heap.super_file.fd, &id))
        return at_rest || pm_os_is_forbidden(errno)
                   ? PM_OK
                   : pm_fail(err, PM_OPERATIONAL,
                             "%s/superblock: which file it is cannot be read: %s; nothing was "
                             "changed: mend that, and try again",
                             pm_heap.dir, pm_strerror(errno));
    bool another = is_another(o, &id);
    if (!another && o->ino && o->birth == id.birth)
        pm_heap.recorded = pm_heap.super_file.ino;
    if (at_rest || !another)
        return PM_OK;
    pm_heap.copy = true;
    if (pm_copies_taken)
        return PM_OK;
    return pm_fail(err, PM_OPERATIONAL,
                   "%.150s is a copy of a heap that was in use, or whose program was killed: what "
                   "was copied piece by piece need not be of one instant; nothing was changed: "
                   "use the heap itself or a backup (pmalloc-backup copies a heap as of one "
                   "instant, also while it is in use), or take the copy as it is: run "
                   "pmalloc-recover --copy",
                   pm_heap.dir);
}
