// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "medium.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc.h"
#include "media/backing/fixed_format.h"
#include "media/journal/journal.h"
#include "media/lane_format.h"

#define KIB 1024ull
#define BYTES (16384 * KIB)
#define EDIT 12 // bytes of the input

static const struct part {
    unsigned part, file;
    uint64_t room;
} parts[] = {
    {PM_JOURNAL_SUPER, PM_ROW_super_file, sizeof(struct pm_super_file) + PM_LANES_BYTES},
    {PM_JOURNAL_ROOTS, PM_ROW_roots, 256 * KIB},
    {PM_JOURNAL_SLABS, PM_ROW_slabs, 64 * KIB},
    {PM_JOURNAL_LOG, PM_ROW_log, 256 * KIB},
    {PM_JOURNAL_MORPH, PM_ROW_morph, 128 * KIB},
    {PM_PART_BITMAPS, PM_ROW_bitmaps, 128 * KIB},
    {PM_JOURNAL_SELF, FILES, 512 * KIB},
    {PM_JOURNAL_DATA, PM_ROW_data, BYTES - PM_FIXED_ALIGN},
};

struct input medium_edits(struct input *in) {
    size_t left = (size_t)(in->end - in->at), count = left ? in->end[-1] ^ 0xe0u : 8;
    if (count > 7 || left < 1 + count * EDIT)
        return (struct input){in->end, in->end};
    struct input tail = {in->end - 1 - count * EDIT, in->end - 1};
    in->end = tail.at;
    return tail;
}

// Where the edits have made another file of a part, it stays empty.
static uint64_t copy_part(int to, int from, const struct pm_part_range *r) {
    static char block[65536];
    struct stat st;
    uint64_t at = 0;
    if (from < 0 || fstat(from, &st) != 0 || !S_ISREG(st.st_mode))
        return 0;
    while (at < r->room) {
        size_t want = r->room - at < sizeof block ? r->room - at : sizeof block;
        off_t data = lseek(from, (off_t)at, SEEK_DATA);
        if (data < 0 || (uint64_t)data >= r->room)
            break;
        at = (uint64_t)data & ~(uint64_t)4095;
        want = r->room - at < want ? r->room - at : want;
        ssize_t got = pread(from, block, want, (off_t)at);
        if (got <= 0 || pwrite(to, block, (size_t)got, (off_t)(r->at + at)) != got)
            break;
        at += (uint64_t)got;
    }
    uint64_t size = ((uint64_t)st.st_size + 4095) & ~(uint64_t)4095;
    return size < r->room ? size : r->room;
}

// Each has EDIT bytes: what, which, a value, and how to change by it.
static void apply(struct input *in, struct pm_layout *layout, struct pm_lengths *lengths) {
    unsigned what = (unsigned)take(in, 1), part = (unsigned)take(in, 1) % PM_PARTS;
    uint64_t value = take(in, 8), unit = take(in, 1) & 1 ? 4096 : 1;
    bool change = take(in, 1) & 1;
    uint64_t *words[] = {&layout->part[part].at, &layout->part[part].room, &layout->bytes,
                         &layout->flags};
    uint32_t pages = (uint32_t)value;
    if (what % 8 < 4)
        *words[what % 8] = (change ? *words[what % 8] : 0) + value * unit;
    else if (what % 8 == 4)
        lengths->pages[part] =
            pm_seal(pages + (change ? (uint32_t)lengths->pages[part] : 0), PM_SALT_LENGTH(part));
    else if (what % 8 == 5)
        lengths->grown = pm_seal(pages, PM_SALT_GROWN);
    else if (what % 8 == 6)
        memcpy((char *)lengths + value % (sizeof *lengths - 8), &value, 1 + part % 8);
    else
        memcpy((char *)layout + value % (sizeof *layout - 8), &value, 1 + part % 8);
}

void medium_lay(const char *path, const int fd[FILES], struct input *edits) {
    static struct { // as on media
        struct pm_layout layout;
        struct pm_lengths lengths;
    } head;
    uint64_t at = sizeof head;
    int to = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    memset(&head, 0, sizeof head);
    head.layout = (struct pm_layout){
        PM_LAYOUT_MAGIC, PM_LAYOUT_VERSION,         PM_PARTS,
        BYTES,           .flags = PM_LAYOUT_ZEROED, .place = {.media = 1, .shards = 1}};
    if (to < 0 || ftruncate(to, (off_t)BYTES) != 0)
        abort();
    for (unsigned i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        const struct part *p = &parts[i];
        struct pm_part_range *r = &head.layout.part[p->part];
        at = p->part == PM_JOURNAL_DATA ? PM_FIXED_ALIGN : at;
        *r = (struct pm_part_range){at, (p->room + 4095) & ~(uint64_t)4095};
        at += r->room;
        uint64_t size = p->file < FILES ? copy_part(to, fd[p->file], r) : 0;
        head.lengths.pages[p->part] = pm_seal((uint32_t)(size / 4096), PM_SALT_LENGTH(p->part));
    }
    bool spoilt = false; // an edit may have changed bytes after the last checksum
    while (edits->at < edits->end) {
        spoilt |= *edits->at % 8 == 7 && edits->at[1] & 8;
        apply(edits, &head.layout, &head.lengths);
    }
    if (!spoilt)
        head.layout.crc = pm_crc32c(0, &head.layout, offsetof(struct pm_layout, crc));
    if (pwrite(to, &head, sizeof head, 0) != sizeof head)
        abort();
    close(to);
}
