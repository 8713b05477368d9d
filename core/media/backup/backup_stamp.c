// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The stamp of a backup: how old it is.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backup.h"
#include "base/crc.h"
#include "base/os_file.h"

#define PLACE (PM_BACKUP_LEDGER_SLOTS * (uint64_t)PM_BACKUP_LEDGER_STRIDE)
_Static_assert(PLACE + sizeof(struct pm_backup_stamp) <= PM_BACKUP_BLOCK, "in the ledger's block");

static uint32_t crc_of(const struct pm_backup_stamp *s) {
    return pm_crc32c(0, s, offsetof(struct pm_backup_stamp, crc));
}

bool pm_backup_write_stamp(int fd, const struct pm_backup_rounds *r, uint64_t round,
                           uint64_t when) {
    struct pm_backup_stamp s = {.magic = PM_BACKUP_STAMP_MAGIC, .round = round, .when = when};
    memcpy(s.uuid, r->uuid, sizeof s.uuid);
    s.crc = crc_of(&s);
    return pm_os_write_all(fd, &s, sizeof s, r->at + PLACE);
}

static bool is_stamp(const struct pm_backup_stamp *s, const struct pm_backup_rounds *r) {
    return s->magic == PM_BACKUP_STAMP_MAGIC && memcmp(s->uuid, r->uuid, sizeof s->uuid) == 0 &&
           s->crc == crc_of(s) && s->round >= r->base;
}

// It may be written just now.
static bool read_stamp(int fd, const struct pm_backup_rounds *r, struct pm_backup_stamp *s) {
    for (unsigned i = 0; i < 3; i++)
        if (pm_os_read_at(fd, s, sizeof *s, r->at + PLACE) == (ssize_t)sizeof *s && is_stamp(s, r))
            return true;
    return false;
}

static int refuse(const char *dir, const char *why, struct pm_error *err) {
    return pm_fail(err, PM_OPERATIONAL, "%.300s %s", dir, why);
}

int pm_backup_age(int dir_fd, const char *dir, struct pm_backup_age *age, struct pm_error *err) {
    struct pm_backup_rounds r;
    struct pm_backup_stamp s;
    enum pm_backup_state state = pm_backup_state(dir_fd);
    if (state == PM_BACKUP_IS_UNKNOWN)
        return refuse(dir, pm_strerror(errno), err);
    if (state == PM_BACKUP_IS_NONE)
        return refuse(dir, "is no backup", err);
    if (state == PM_BACKUP_IS_UNFINISHED)
        return refuse(dir, "is an unfinished backup: run pmalloc-backup HEAP DIR again", err);
    if (pm_backup_read_rounds(dir_fd, dir, &r, err) != PM_OK)
        return err->status;
    int fd = openat(dir_fd, PM_BACKUP_CHECKSUMS, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return refuse(dir, pm_strerror(errno), err);
    memcpy(age->uuid, r.uuid, sizeof age->uuid);
    age->round = r.known && r.ledger.round > r.base ? r.ledger.round : r.base;
    age->when = r.when;
    if (read_stamp(fd, &r, &s) && s.when > age->when) {
        age->round = s.round;
        age->when = s.when;
    }
    close(fd);
    return PM_OK;
}
