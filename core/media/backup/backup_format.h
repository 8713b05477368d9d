// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The format of backups; the rules of format.h apply. A backup is the directory of a heap with
// these files more (backup.h says which are there when):
//
//   backup.checksums     a record: every block that has data, as the first round copied it
//   backup.increments    a record for each later round, and after it the blocks that had changed
//   backup.superblock    the superblock, while increments have to be folded into the other files
//   backup.unfinished    the superblock, while the first round is being copied
//
// A record begins on a block: header, files, entries of the first file, entries of the second, ...
// In backup.increments the data of those entries that are no hole begin on the next block, in the
// order of the entries, each a whole block. The magic number is the commit word of the round: until
// everything else is durable it is zero, and the record is not in force.
//
// A record that reads as zero is therefore no proof that its round was never made. So after its
// commit word each round is entered in the ledger of backup.checksums, which begins on the block
// after the record there: two slots in sectors of their own, written in turn, so that a torn one
// leaves the other. A round may be missing there that the increments have, because the tool was
// killed in between; never the other way around.
//
// A third sector there has the stamp: when the heap was last looked at by a round that succeeded,
// also by one that found nothing to write. It is for people, and nothing is decided by it: a backup
// without one is as old as its checksums.
#ifndef PM_BACKUP_FORMAT_H
#define PM_BACKUP_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#define PM_BACKUP_MAGIC 0x3150554b4341424dull // "MBACKUP1"
#define PM_BACKUP_BLOCK 4096u

struct pm_backup_record {
    uint64_t magic;
    uint8_t uuid[16]; // of the heap
    uint64_t round;   // from 1 on, each one more than the round before
    uint64_t when;    // seconds since the epoch
    uint64_t entries; // of all files together
    uint32_t files;
    uint32_t ledger;    // of backup.checksums: 1 if a ledger follows it. Older versions wrote 0
    uint32_t index_crc; // of files and entries
    uint32_t crc;       // of all bytes before it
};
_Static_assert(sizeof(struct pm_backup_record) == 64, "within one sector");

#define PM_BACKUP_GONE UINT64_MAX
struct pm_backup_file {
    char name[16];   // superblock, heap.0, ...
    uint64_t length; // of the file; PM_BACKUP_GONE: it is no longer there
    uint64_t entries;
};
_Static_assert(sizeof(struct pm_backup_file) == 32, "frozen");

#define PM_BACKUP_HOLE 0x80000000u
struct pm_backup_entry {
    uint32_t block; // of the file; with PM_BACKUP_HOLE it has only zeroes, and no data here
    uint32_t sum[2];
};
_Static_assert(sizeof(struct pm_backup_entry) == 12, "frozen");

#define PM_BACKUP_LEDGER_MAGIC 0x3152454744454c4dull // "MLEDGER1"
#define PM_BACKUP_LEDGER_SLOTS 2u
#define PM_BACKUP_LEDGER_STRIDE 512u
struct pm_backup_ledger {
    uint64_t magic;
    uint8_t uuid[16];  // of the heap
    uint64_t round;    // the last one in force; its slot is the one of its lowest bit
    uint64_t end;      // where its increment ends in backup.increments; 0: it has none
    uint32_t head_crc; // of its increment
    uint32_t reserved[4];
    uint32_t crc; // of all bytes before it
};
_Static_assert(sizeof(struct pm_backup_ledger) == 64, "within one sector");

#define PM_BACKUP_STAMP_MAGIC 0x31504d415453424dull // "MBSTAMP1"
struct pm_backup_stamp {
    uint64_t magic;
    uint8_t uuid[16]; // of the heap
    uint64_t round;
    uint64_t when; // seconds since the epoch: when the round began
    uint64_t reserved[2];
    uint32_t reserved_tail;
    uint32_t crc; // of all bytes before it
};
_Static_assert(sizeof(struct pm_backup_stamp) == 64, "within one sector");

#endif
