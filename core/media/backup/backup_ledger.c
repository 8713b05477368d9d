// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The ledger of a backup: which rounds are in force, beside the increments themselves.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backup.h"
#include "base/crc.h"
#include "base/os_file.h"

enum { WHAT = 512 };

static bool is_slot(const struct pm_backup_ledger *l, const uint8_t uuid[16], uint64_t base,
                    unsigned slot) {
    return l->magic == PM_BACKUP_LEDGER_MAGIC && memcmp(l->uuid, uuid, sizeof l->uuid) == 0 &&
           l->crc == pm_crc32c(0, l, offsetof(struct pm_backup_ledger, crc)) && l->round >= base &&
           l->round % PM_BACKUP_LEDGER_SLOTS == slot && (l->end != 0) == (l->round > base);
}

static int read_failed(const char *what, struct pm_error *err) {
    return pm_fail(err, PM_OPERATIONAL, "%s: %s", what, pm_strerror(errno));
}

// A slot that cannot be read may be the newest one.
static int read_slots(int fd, const char *what, struct pm_backup_rounds *r, struct pm_error *err) {
    struct pm_backup_ledger slot;
    bool found = false;
    for (unsigned i = 0; i < PM_BACKUP_LEDGER_SLOTS; i++) {
        ssize_t got =
            pm_os_read_at(fd, &slot, sizeof slot, r->at + i * (uint64_t)PM_BACKUP_LEDGER_STRIDE);
        if (got < 0)
            return read_failed(what, err);
        if (got != (ssize_t)sizeof slot || !is_slot(&slot, r->uuid, r->base, i) ||
            (found && slot.round < r->ledger.round))
            continue;
        r->ledger = slot;
        found = true;
    }
    return found ? PM_OK : pm_backup_damaged(what, r->at, "the ledger of its rounds is wrong", err);
}

static int read_rounds(int fd, const char *what, struct pm_backup_rounds *r, struct pm_error *err) {
    struct pm_backup_record head;
    ssize_t got = pm_os_read_at(fd, &head, sizeof head, 0);
    if (got < 0)
        return read_failed(what, err);
    if (got != (ssize_t)sizeof head || head.magic != PM_BACKUP_MAGIC ||
        head.crc != pm_crc32c(0, &head, offsetof(struct pm_backup_record, crc)))
        return pm_backup_damaged(what, 0, "the header of the checksums is wrong", err);
    memcpy(r->uuid, head.uuid, sizeof r->uuid);
    r->base = head.round;
    r->when = head.when;
    r->known = head.ledger != 0;
    r->at = pm_backup_align(pm_backup_record_bytes(head.files, head.entries));
    return r->known ? read_slots(fd, what, r, err) : PM_OK;
}

int pm_backup_read_rounds(int dir_fd, const char *dir, struct pm_backup_rounds *r,
                          struct pm_error *err) {
    char what[WHAT];
    *r = (struct pm_backup_rounds){0};
    snprintf(what, sizeof what, "%.400s/" PM_BACKUP_CHECKSUMS, dir);
    int fd = openat(dir_fd, PM_BACKUP_CHECKSUMS, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return pm_backup_damaged(what, 0, "the file is missing", err);
    if (fd < 0)
        return read_failed(what, err);
    int status = read_rounds(fd, what, r, err);
    close(fd);
    return status;
}

// Increments that are in the checksums already may lie there after a cut.
int pm_backup_check_round(const struct pm_backup_rounds *r, const struct pm_backup_index *x,
                          uint64_t before, uint64_t at, const char *what, struct pm_error *err) {
    const struct pm_backup_ledger *l = &r->ledger;
    uint64_t round = x->head.round;
    bool fits = memcmp(x->head.uuid, r->uuid, sizeof r->uuid) == 0 &&
                (before ? round == before + 1 : round <= r->base + 1);
    if (fits && r->known)
        fits = round <= l->round + 1 && (round != l->round || round == r->base ||
                                         (x->next == l->end && x->head.crc == l->head_crc));
    return fits ? PM_OK : pm_backup_damaged(what, at, "this round does not belong there", err);
}

int pm_backup_check_last(const struct pm_backup_rounds *r, uint64_t last, uint64_t at,
                         const char *what, struct pm_error *err) {
    if (!r->known || r->ledger.round == r->base || last >= r->ledger.round)
        return PM_OK;
    char why[64];
    snprintf(why, sizeof why, "round %lu, which was made, is missing", (unsigned long)last + 1);
    return pm_backup_damaged(what, at, why, err);
}

bool pm_backup_write_ledger(int fd, uint64_t at, const uint8_t uuid[16], uint64_t round,
                            uint64_t end, uint32_t head_crc) {
    struct pm_backup_ledger l = {
        .magic = PM_BACKUP_LEDGER_MAGIC, .round = round, .end = end, .head_crc = head_crc};
    memcpy(l.uuid, uuid, sizeof l.uuid);
    l.crc = pm_crc32c(0, &l, offsetof(struct pm_backup_ledger, crc));
    at += round % PM_BACKUP_LEDGER_SLOTS * PM_BACKUP_LEDGER_STRIDE;
    return pm_os_write_all(fd, &l, sizeof l, at);
}
