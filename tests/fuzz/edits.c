// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "edits.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc.h"
#include "blocks/slab.h"
#include "media/format.h"
#include "media/heap.h"
#include "media/log/log.h"

enum {
    SUPER = PM_ROW_super_file,
    DATA = PM_ROW_data,
    SLABS = PM_ROW_slabs,
    LOG = PM_ROW_log,
    ROOTS = PM_ROW_roots,
    BITMAPS = PM_ROW_bitmaps,
    MORPH = PM_ROW_morph
};
#define EDITS_MAX 64
#define SIZE_MAX_BYTES (16u << 20)

uint64_t take(struct input *in, unsigned bytes) {
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes; i++)
        value |= (uint64_t)(in->at < in->end ? *in->at++ : 0) << 8 * i;
    return value;
}

// A value in few bytes of input: a width, then the value. Widths above 8 stand for constants.
static uint64_t take_value(struct input *in) {
    static const uint64_t constants[] = {
        ~0ull,          PM_HEAP_BASE, PM_HEAP_RANGE,    PM_STATE_CLEAN,
        PM_STATE_DIRTY, 1ull << 63,   (1ull << 48) - 1,
    };
    unsigned width = take(in, 1) & 15;
    return width <= 8 ? take(in, width) : constants[width - 9];
}

static void get(int fd, void *to, size_t len, uint64_t at) {
    memset(to, 0, len);
    if (fd >= 0)
        (void)!pread(fd, to, len, (off_t)at);
}

static void put(int fd, const void *from, size_t len, uint64_t at) {
    if (fd >= 0)
        (void)!pwrite(fd, from, len, (off_t)at);
}

static uint64_t length(int fd) {
    struct stat st;
    return fd >= 0 && fstat(fd, &st) == 0 ? (uint64_t)st.st_size : 0;
}

static void put_word(int fd, uint64_t at, uint64_t value) { put(fd, &value, 8, at); }

// Changes 1 to 8 bytes of a struct, somewhere before its last `tail` bytes.
static void change(struct input *in, void *object, size_t size, size_t tail) {
    size_t at = take(in, 2) % (size - tail);
    uint64_t value = take_value(in);
    size_t width = 1ull << (take(in, 1) & 3);
    width = width > size - tail - at ? size - tail - at : width;
    memcpy((char *)object + at, &value, width);
}

// ---- plain edits --------------------------------------------------------------------------------

static void edit_bytes(struct input *in, const int fd[FILES]) {
    int file = fd[take(in, 1) % FILES];
    uint64_t at = take(in, 3), size = length(file);
    unsigned width = 1 + (take(in, 1) & 7);
    uint64_t value = take(in, width);
    if (size)
        put(file, &value, width, at % size);
}

static void edit_length(struct input *in, const int fd[FILES]) {
    int file = fd[take(in, 1) % FILES];
    static const unsigned units[] = {1, 64, 1024, 4096, 65536};
    uint64_t size = take(in, 2) * units[take(in, 1) % 5];
    if (file >= 0)
        (void)!ftruncate(file, (off_t)(size % SIZE_MAX_BYTES));
}

static void edit_copy(struct input *in, const int fd[FILES]) {
    static const unsigned units[] = {8, 64, 320, 1024, 4096};
    unsigned size = units[take(in, 1) % 5];
    char block[4096];
    int from = fd[take(in, 1) % FILES], to = fd[take(in, 1) % FILES];
    get(from, block, size, take(in, 2) * size);
    uint64_t at = take(in, 2) * size;
    if (at < length(to))
        put(to, block, size, at);
}

static void edit_directory(struct input *in, const char *directory) {
    char path[256], aside[256];
    unsigned file = take(in, 1) % FILES, how = take(in, 1) % 4;
    snprintf(path, sizeof path, "%s/%s", directory, pm_heap_files[file].name);
    snprintf(aside, sizeof aside, "%s/%s", directory, pm_heap_files[take(in, 1) % FILES].name);
    if (how == 0)
        unlink(path);
    else if (how == 1)
        rename(path, aside);
    else if (how == 2 && unlink(path) == 0)
        (void)!symlink(aside, path);
    else if (how == 3 && unlink(path) == 0)
        mkdir(path, 0700);
}

// ---- edits that keep checksums right ------------------------------------------------------------

static void edit_super(struct input *in, const int fd[FILES]) {
    struct pm_superblock s;
    get(fd[SUPER], &s, sizeof s, 0);
    change(in, &s, 256, 0);
    s.crc = pm_crc32c(0, &s, offsetof(struct pm_superblock, crc));
    put(fd[SUPER], &s, sizeof s, 0);
}

#define STATE(field) (offsetof(struct pm_super_file, state) + offsetof(struct pm_state, field))

static void edit_state(struct input *in, const int fd[FILES]) {
    switch (take(in, 1) % 5) {
    case 0:
        put_word(fd[SUPER], STATE(state), take(in, 1) & 1 ? PM_STATE_CLEAN : PM_STATE_DIRTY);
        break;
    case 1:
        put_word(fd[SUPER], STATE(root_epoch),
                 pm_seal((uint32_t)take_value(in), PM_SALT_ROOT_EPOCH));
        break;
    case 2:
        put_word(fd[SUPER], STATE(opens) + take(in, 1) % 6 * 8, take_value(in));
        break;
    case 3: {
        unsigned slot = take(in, 2) % PM_ROOT_SLOTS;
        put_word(fd[SUPER], offsetof(struct pm_super_file, slots) + slot * 8ull,
                 pm_slot_word(slot, take_value(in) & PM_SLOT_MAX));
        break;
    }
    default: {
        struct pm_clean c;
        get(fd[SUPER], &c, sizeof c, STATE(clean));
        change(in, &c, sizeof c, 16);
        c.crc = pm_crc32c(0, &c, offsetof(struct pm_clean, crc));
        put(fd[SUPER], &c, sizeof c, STATE(clean));
    }
    }
}

static void edit_roots(struct input *in, const int fd[FILES]) {
    static struct pm_root_table t;
    uint64_t at = offsetof(struct pm_super_file, roots) + (take(in, 1) & 1) * sizeof t;
    get(fd[SUPER], &t, sizeof t, at);
    change(in, &t, 64 + 3 * sizeof t.root[0], 0);
    size_t from = offsetof(struct pm_root_table, count);
    if (t.count <= PM_ROOT_MAX)
        t.crc = pm_crc32c(0, (char *)&t + from,
                          offsetof(struct pm_root_table, root) + t.count * sizeof t.root[0] - from);
    put(fd[SUPER], &t, 64 + 3 * sizeof t.root[0], at);
}

static uint64_t chunk_offset(uint64_t id) {
    return sizeof(struct pm_log_header) + id * PM_CHUNK_SIZE;
}

static void edit_log_header(struct input *in, const int fd[FILES]) {
    uint32_t id = (uint32_t)take(in, 1), value = (uint32_t)take_value(in);
    switch (take(in, 1) & 3) {
    case 0:
        put_word(fd[LOG], offsetof(struct pm_log_header, epoch), pm_seal(value, PM_SALT_LOG_EPOCH));
        break;
    case 1:
        put_word(fd[LOG], offsetof(struct pm_log_header, chunks),
                 pm_seal(value, PM_SALT_LOG_CHUNKS));
        break;
    case 2:
        put_word(fd[LOG], chunk_offset(id), pm_seal(value, PM_SALT_CHUNK_EPOCH(id)));
        break;
    default:
        put_word(fd[LOG], chunk_offset(id) + 8, pm_seal(value, PM_SALT_CHUNK_GENERATION(id)));
    }
}

// The n-th slot in the order of appending; see pm_entry_slot().
static unsigned slot_of(unsigned k) {
    if (k < 96)
        return k % 16 == 0 ? k / 16 : 6 + (k % 16 - 1) * 8 + k / 16;
    return 6 + (k - 96) % 15 * 8 + 6 + (k - 96) / 15;
}

static void put_entry(int fd, uint32_t id, unsigned slot, uint64_t entry) {
    uint64_t generation;
    get(fd, &generation, 8, chunk_offset(id) + 8);
    uint64_t where = (uint64_t)pm_unseal(generation) << 32 | id << 7 | slot;
    uint64_t check = pm_crc8(pm_crc8(0, where), entry);
    put_word(fd, chunk_offset(id) + 16 + slot * 8, entry | check << PM_ENTRY_CHECK_SHIFT);
}

// Puts a valid entry in place of another one, or after the last one of a chunk.
static void edit_entry(struct input *in, const int fd[FILES]) {
    uint32_t id = (uint32_t)take(in, 1);
    unsigned slot = take(in, 1);
    uint64_t type = take(in, 1) & 3, page = take_value(in), pages = take_value(in);
    if (slot < 128)
        slot %= PM_CHUNK_ENTRIES;
    else
        for (unsigned k = 0; k < PM_CHUNK_ENTRIES; k++) {
            uint64_t there;
            get(fd[LOG], &there, 8, chunk_offset(id) + 16 + slot_of(k) * 8);
            slot = slot_of(k);
            if (!there)
                break;
        }
    if (chunk_offset(id) < length(fd[LOG]))
        put_entry(fd[LOG], id, slot, pages << 38 | (page & 0xfffffff) << 2 | type);
}

static void edit_slab(struct input *in, const int fd[FILES]) {
    struct pm_slab_header h;
    uint32_t slab = (uint32_t)take(in, 1);
    get(fd[SLABS], &h, sizeof h, slab * sizeof h);
    h.magic = PM_SLAB_MAGIC;
    change(in, &h, sizeof h, 4);
    h.crc = pm_slab_header_crc(slab, &h);
    put(fd[SLABS], &h, sizeof h, slab * sizeof h);
}

// Changes the word `current` of a slab header: the slab's class, and the line of its index table.
static void edit_current(struct input *in, const int fd[FILES]) {
    uint32_t slab = (uint32_t)take(in, 1), cls = (uint32_t)take(in, 1) & 63;
    uint32_t line = (uint32_t)take_value(in) & ((1u << PM_CURRENT_SHIFT) - 1);
    if (slab * sizeof(struct pm_slab_header) < length(fd[SLABS]))
        put_word(fd[SLABS], slab * sizeof(struct pm_slab_header) + 8,
                 pm_seal(cls << PM_CURRENT_SHIFT | line, PM_SALT_CURRENT(slab)));
}

// Changes the head of an index table and one of its words.
static void edit_table(struct input *in, const int fd[FILES]) {
    struct pm_morph_table t;
    uint64_t at = take(in, 1) * PM_MORPH_LINE;
    if (at >= length(fd[MORPH]))
        return;
    get(fd[MORPH], &t, sizeof t, at);
    if (take(in, 1) & 1)
        change(in, &t, sizeof t, 4);
    t.crc = pm_crc32c(0, &t, offsetof(struct pm_morph_table, crc));
    put(fd[MORPH], &t, sizeof t, at);
    unsigned word = take(in, 1) & 127;
    put_word(fd[MORPH], at + sizeof t + word * 8,
             pm_seal((uint32_t)take_value(in), PM_SALT_MORPH(t.slab, word)));
}

static void edit_bitmaps(struct input *in, const int fd[FILES]) {
    static char file[65536];
    struct pm_bitmaps_header *h = (void *)file;
    uint64_t size = length(fd[BITMAPS]);
    size = size < sizeof file ? size : sizeof file;
    if (size < sizeof *h)
        return;
    get(fd[BITMAPS], file, size, 0);
    change(in, file, size, 0);
    h->crc = pm_crc32c(0, h + 1, size - sizeof *h);
    h->header_crc = pm_crc32c(0, h, offsetof(struct pm_bitmaps_header, header_crc));
    put(fd[BITMAPS], file, size, 0);
}

// Makes a word of the program's data, or of a captured root, an address in the heap.
static void edit_data(struct input *in, const int fd[FILES]) {
    int file = fd[take(in, 1) & 1 ? DATA : ROOTS];
    uint64_t at = take(in, 3) * 8, value = take_value(in), size = length(file);
    if (size)
        put_word(file, at % size & ~7ull, PM_HEAP_BASE + value);
}

void edits_apply(struct input *in, const char *directory, const int fd[FILES]) {
    static void (*const edits[])(struct input *, const int *) = {
        edit_bytes,   edit_length, edit_copy,       edit_super,   edit_state,
        edit_roots,   edit_entry,  edit_entry,      edit_entry,   edit_slab,
        edit_bitmaps, edit_data,   edit_log_header, edit_current, edit_table,
    };
    const unsigned count = sizeof edits / sizeof edits[0];
    for (unsigned n = 0; n < EDITS_MAX && in->at < in->end; n++) {
        unsigned which = take(in, 1) % (count + 1);
        if (which < count)
            edits[which](in, fd);
        else
            edit_directory(in, directory);
    }
}
