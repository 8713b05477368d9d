// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The target of libFuzzer for backups: edited records and ledgers go through verification, folding,
// and verification again. What must hold for each:
//
//   verified   folding accepts it, and it verifies afterwards
//   refused    in one line; where folding finds damage, too, no file has changed
//   folded     a second folding of the same backup, after one that was cut short, gives the same
//
// An input is a list of edits. Afterwards the checksums of all records and ledgers are put right,
// unless the last byte says otherwise.
#include <fcntl.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc.h"
#include "base/os_file.h"
#include "media/backup/backup.h"
#include "media/heap_files.h"
#include "tools/backup/backup_target.h"
#include "tools/backup/backup_verify.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { BLOCK = PM_BACKUP_BLOCK, ROUNDS = 3, FILES = 3, LIMIT = 64 * BLOCK, DESCRIPTORS = 64 };

static char root[64], dir[96];
static bool open_before[DESCRIPTORS];

static int drop(const char *path, const struct stat *st, int flag, struct FTW *ftw) {
    (void)st, (void)flag;
    return ftw->level ? remove(path) : 0;
}

static void clean_up(void) {
    nftw(root, drop, 16, FTW_DEPTH | FTW_PHYS);
    rmdir(root);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    snprintf(root, sizeof root, "/dev/shm/pmalloc-fuzz-XXXXXX");
    if (!mkdtemp(root))
        abort();
    snprintf(dir, sizeof dir, "%s/backup", root);
    atexit(clean_up);
    for (int fd = 0; fd < DESCRIPTORS; fd++)
        open_before[fd] = fcntl(fd, F_GETFD) >= 0;
    return 0;
}

static void wrong(const char *what, const struct pm_error *err) {
    fprintf(stderr, "fuzz_backup: %s: %s\n", what, err->text);
    abort();
}

// ---- the backup ---------------------------------------------------------------------------------

// The files of the seed: names, and length and stores of each round. heap.0 shrinks and grows, and
// bitmaps.0 ends within a block, comes, goes and comes again.
static const struct {
    const char *name;
    uint64_t length[ROUNDS + 1]; // PM_BACKUP_GONE: it is not there
} files[FILES] = {
    {"superblock", {2 * BLOCK, 2 * BLOCK, 2 * BLOCK, 2 * BLOCK}},
    {"heap.0", {6 * BLOCK, 8 * BLOCK, 4 * BLOCK, 7 * BLOCK}},
    {"bitmaps.0", {1784, 5000, PM_BACKUP_GONE, 900}},
};

// What a block holds since a round; 0: nothing.
static void fill(char block[BLOCK], size_t file, uint64_t number, unsigned round) {
    unsigned kind = (unsigned)(file * 7 + number * 5 + round * 3) % 4;
    memset(block, kind ? (int)(1 + file + number * 4 + round * 32) & 0x7f : 0, BLOCK);
}

static bool changes(uint64_t number, unsigned round) { return (number + round) % 3 != 0; }

static uint64_t blocks_of(uint64_t length) { return pm_backup_align(length) / BLOCK; }

// The contents of a file after each round, to find what differs.
static char now[FILES][10 * BLOCK], was[FILES][10 * BLOCK];

static void step(size_t f, unsigned round) {
    uint64_t length = files[f].length[round];
    memcpy(was[f], now[f], sizeof now[f]);
    if (length == PM_BACKUP_GONE)
        length = 0;
    for (uint64_t b = 0; b < blocks_of(length); b++)
        if (!round || changes(b, round))
            fill(now[f] + b * BLOCK, f, b, round);
    memset(now[f] + length, 0, sizeof now[f] - length);
}

struct image {
    char bytes[LIMIT];
    size_t size;
};
static struct image checksums, increments;

static void *append(struct image *i, size_t bytes) {
    void *at = i->bytes + i->size;
    i->size += bytes;
    if (i->size > LIMIT)
        abort();
    return at;
}

static void align(struct image *i) { i->size = pm_backup_align(i->size); }

static void make_record(struct image *i, unsigned round) {
    struct pm_backup_record *head = append(i, sizeof *head);
    *head = (struct pm_backup_record){.magic = PM_BACKUP_MAGIC, .uuid = "fuzz", .round = round + 1};
    head->files = FILES;
    head->ledger = i == &checksums;
    struct pm_backup_file *row = append(i, FILES * sizeof *row);
    for (size_t f = 0; f < FILES; f++) {
        step(f, round);
        snprintf(row[f].name, sizeof row[f].name, "%s", files[f].name);
        row[f].length = files[f].length[round];
        uint64_t count = row[f].length == PM_BACKUP_GONE ? 0 : blocks_of(row[f].length);
        for (uint64_t b = 0; b < count; b++) {
            uint64_t sum = pm_backup_sum(now[f] + b * BLOCK);
            if (sum == (round ? pm_backup_sum(was[f] + b * BLOCK) : 0))
                continue;
            struct pm_backup_entry *e = append(i, sizeof *e);
            e->block = (uint32_t)b | (sum ? 0 : PM_BACKUP_HOLE);
            e->sum[0] = (uint32_t)sum;
            e->sum[1] = (uint32_t)(sum >> 32);
            row[f].entries++;
        }
        head->entries += row[f].entries;
    }
    align(i);
    const struct pm_backup_entry *e = (const void *)(row + FILES);
    for (size_t f = 0; f < FILES && round; f++)
        for (uint64_t k = 0; k < row[f].entries; k++, e++)
            if (!(e->block & PM_BACKUP_HOLE))
                memcpy(append(i, BLOCK), now[f] + (uint64_t)e->block * BLOCK, BLOCK);
}

// ---- edits --------------------------------------------------------------------------------------

struct input {
    const uint8_t *at, *end; // reads as zeroes after `end`
};

static uint64_t take(struct input *in, unsigned bytes) {
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes; i++)
        value |= (uint64_t)(in->at < in->end ? *in->at++ : 0) << i * 8;
    return value;
}

// The number that lies there becomes another.
static void change(struct input *in, void *at, unsigned size) {
    uint64_t old = 0, value;
    memcpy(&old, at, size);
    uint8_t how = (uint8_t)take(in, 1);
    switch (how % 5) {
    case 0:
        value = old + 1 + how / 5;
        break;
    case 1:
        value = old - 1 - how / 5;
        break;
    case 2:
        value = old ^ 1ull << how / 5 % (size * 8);
        break;
    case 3:
        value = take(in, 2);
        break;
    default:
        value = take(in, size);
    }
    memcpy(at, &value, size);
}

static const char *const names[] = {"superblock", "heap.0", "bitmaps.0", "roots", "slabs.0"};

static void edit_row(struct input *in, struct pm_backup_file *f) {
    switch (take(in, 1) % 4) {
    case 0:
        memset(f->name, 0, sizeof f->name);
        snprintf(f->name, sizeof f->name, "%s", names[take(in, 1) % 5]);
        break;
    case 1:
        change(in, &f->entries, 8);
        break;
    default:
        change(in, &f->length, 8);
    }
}

static void edit_record(struct input *in, struct pm_backup_record *head) {
    struct pm_backup_file *row = (void *)(head + 1);
    uint64_t entries = head->entries < 256 ? head->entries : 256;
    uint32_t count = head->files < 8 ? head->files : 8;
    struct pm_backup_entry *e = (void *)(row + count);
    uint8_t what = (uint8_t)take(in, 1);
    if (what % 8 == 0)
        change(in, &head->round, 8);
    else if (what % 8 == 1)
        change(in, &head->entries, 8);
    else if (what % 8 == 2)
        change(in, &head->files, 4);
    else if (what % 8 < 5 && count)
        edit_row(in, &row[what / 8 % count]);
    else if (entries)
        change(in, &e[take(in, 1) % entries].block, 4);
}

// Where each record begins, as the seed has them.
static size_t begins[ROUNDS + 1];

static struct pm_backup_ledger *slot_of(unsigned slot) {
    size_t at = pm_backup_align(begins[0] + sizeof(struct pm_backup_record)); // one block
    return (void *)(checksums.bytes + at + slot % 2 * PM_BACKUP_LEDGER_STRIDE);
}

static void edit(struct input *in) {
    uint8_t what = (uint8_t)take(in, 1);
    unsigned record = what / 8 % (ROUNDS + 1);
    struct image *i = record ? &increments : &checksums;
    struct pm_backup_ledger *slot = slot_of(record);
    switch (what % 8) {
    case 0: // any bytes
        change(in, i->bytes + take(in, 2) % (i->size - 8), 8);
        break;
    case 1:
        i->size = 64 + take(in, 2) % (LIMIT - 64);
        break;
    case 2:
        change(in, take(in, 1) % 2 ? &slot->round : &slot->end, 8);
        break;
    default:
        edit_record(in, (void *)(i->bytes + begins[record]));
    }
}

// ---- putting checksums right --------------------------------------------------------------------

static uint32_t seal(struct image *i, size_t at) {
    struct pm_backup_record *head = (void *)(i->bytes + at);
    uint64_t bytes = 0;
    if (head->entries < LIMIT && head->files < LIMIT)
        bytes = pm_backup_record_bytes(head->files, head->entries);
    if (bytes && bytes <= LIMIT - at)
        head->index_crc = pm_crc32c(0, head + 1, bytes - sizeof *head);
    head->crc = pm_crc32c(0, head, offsetof(struct pm_backup_record, crc));
    return head->crc;
}

static void seal_all(void) {
    uint32_t crc[ROUNDS + 1];
    for (unsigned r = 0; r <= ROUNDS; r++)
        crc[r] = seal(r ? &increments : &checksums, begins[r]);
    for (unsigned s = 0; s < PM_BACKUP_LEDGER_SLOTS; s++) {
        struct pm_backup_ledger *slot = slot_of(s);
        slot->head_crc = slot->round >= 2 && slot->round <= ROUNDS + 1 ? crc[slot->round - 1] : 0;
        slot->crc = pm_crc32c(0, slot, offsetof(struct pm_backup_ledger, crc));
    }
}

// ---- files --------------------------------------------------------------------------------------

static void write_file(const char *name, const void *bytes, size_t size) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || !pm_os_write_all(fd, bytes, size, 0))
        abort();
    close(fd);
}

static void make_seed(void) {
    memset(now, 0, sizeof now);
    memset(&checksums, 0, sizeof checksums);
    memset(&increments, 0, sizeof increments);
    make_record(&checksums, 0);
    for (size_t f = 0; f < FILES; f++)
        write_file(f ? files[f].name : PM_BACKUP_SUPERBLOCK, now[f], files[f].length[0]);
    for (unsigned r = 1; r <= ROUNDS; r++) {
        begins[r] = increments.size;
        make_record(&increments, r);
    }
    checksums.size += BLOCK;
    for (unsigned round = ROUNDS; round <= ROUNDS + 1; round++) {
        size_t end = round == ROUNDS ? begins[ROUNDS] : increments.size;
        *slot_of(round) =
            (struct pm_backup_ledger){PM_BACKUP_LEDGER_MAGIC, "fuzz", round, end, 0, {0}, 0};
    }
}

// Contents and names of all files but backup.*.
static uint64_t fingerprint(void) {
    static uint64_t block[BLOCK / 8];
    uint64_t sum = 0;
    for (size_t row = 0; row <= PM_HEAP_FILES; row++) {
        char path[160];
        snprintf(path, sizeof path, "%s/%s", dir,
                 row == PM_HEAP_FILES ? PM_BACKUP_SUPERBLOCK : pm_heap_files[row].name);
        int fd = open(path, O_RDONLY);
        if (fd < 0)
            continue;
        off_t at = 0, end = lseek(fd, 0, SEEK_END);
        sum = (sum + row + (uint64_t)end) * 0x9e3779b97f4a7c15ull;
        while ((at = lseek(fd, at, SEEK_DATA)) >= 0) {
            memset(block, 0, sizeof block);
            ssize_t got = pread(fd, block, sizeof block, at);
            for (ssize_t i = 0; i * 8 < got; i++)
                sum += block[i] ? (block[i] ^ (uint64_t)(at / 8 + i) << 32) * 0x9e3779b97f4a7c15ull
                                : 0;
            at += got;
        }
        close(fd);
    }
    return sum;
}

// ---- the tools ----------------------------------------------------------------------------------

// A tool holds its locks until it ends.
static void close_locks(void) {
    for (int fd = 0; fd < DESCRIPTORS; fd++)
        if (!open_before[fd] && fcntl(fd, F_GETFD) >= 0)
            close(fd);
}

static int verify(struct pm_error *err) {
    struct target t;
    uint64_t read;
    int status = target_open(dir, &t, err);
    if (status == PM_OK)
        status = backup_verify(&t, NULL, &read, err);
    kept_free(&t.kept);
    close_locks();
    return status;
}

static int fold(struct pm_error *err) {
    int fd = open(dir, O_RDONLY | O_DIRECTORY);
    int status = pm_backup_fold(fd, dir, err);
    close(fd);
    return status;
}

// A fold that was cut short at its end: all is written, and the superblock is still set aside.
static void fold_again(void) {
    struct pm_error err = {0};
    uint64_t before = fingerprint();
    char from[160], to[160];
    snprintf(from, sizeof from, "%s/superblock", dir);
    snprintf(to, sizeof to, "%s/" PM_BACKUP_SUPERBLOCK, dir);
    if (rename(from, to) != 0 || verify(&err) != PM_OK)
        wrong("folded and cut short, but it does not verify", &err);
    if (fold(&err) != PM_OK || fingerprint() != before)
        wrong("a second folding differs", &err);
}

static bool one_line(const struct pm_error *err) {
    size_t length = strnlen(err->text, sizeof err->text);
    return length > 0 && length < sizeof err->text && !strchr(err->text, '\n');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input in = {data, data + (size ? size - 1 : 0)};
    struct pm_error first = {0}, second = {0};
    bool sealed = !size || data[size - 1] % 16 != 15;
    mkdir(dir, 0700);
    nftw(dir, drop, 16, FTW_DEPTH | FTW_PHYS);
    make_seed();
    if (!sealed)
        seal_all();
    for (unsigned n = 0; n < 12 && in.at < in.end; n++)
        edit(&in);
    if (sealed)
        seal_all();
    write_file(PM_BACKUP_CHECKSUMS, checksums.bytes, checksums.size);
    write_file(PM_BACKUP_INCREMENTS, increments.bytes, increments.size);
    uint64_t before = fingerprint();
    int verified = verify(&first);
    if (fingerprint() != before)
        wrong("verification changed the files", &first);
    int folded = fold(&second);
    if ((verified != PM_OK && !one_line(&first)) || (folded != PM_OK && !one_line(&second)))
        wrong("the refusal is not one line", &first);
    if (verified == PM_OK && folded != PM_OK)
        wrong("verified, but it cannot be folded in", &second);
    if (folded == PM_DAMAGE && fingerprint() != before)
        wrong("refused, but the files have changed", &second);
    if (verified == PM_OK && verify(&first) != PM_OK)
        wrong("verified and folded in, but it does not verify any more", &first);
    if (verified == PM_OK)
        fold_again();
    if (!size && verified != PM_OK)
        wrong("the seed does not verify", &first);
    return 0;
}
