// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "bitmaps.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "crc.h"
#include "extent.h"
#include "morph.h"
#include "os.h"
#include "persist.h"
#include "slab.h"

#define NAME "bitmaps.0"

// A buffered writer: records go out in file order, the header, which needs their checksum, last.
struct writer {
    int fd;
    bool good;
    uint32_t crc;
    uint64_t bytes, slabs;
    size_t fill;
    char buffer[16384];
};

static void flush_writer(struct writer *w) {
    w->good = w->good && pm_os_file_size(sizeof(struct pm_bitmaps_header) + w->bytes);
    for (size_t done = 0; done < w->fill && w->good;) {
        ssize_t put = write(w->fd, w->buffer + done, w->fill - done);
        w->good = put > 0;
        done += put > 0 ? (size_t)put : 0;
    }
    w->fill = 0;
}

static void emit(struct writer *w, const void *data, size_t len) {
    w->crc = pm_crc32c(w->crc, data, len);
    w->bytes += len;
    if (w->fill + len > sizeof w->buffer)
        flush_writer(w);
    memcpy(w->buffer + w->fill, data, len);
    w->fill += len;
}

static void emit_record(struct writer *w, uint32_t slab, unsigned cls, unsigned flag,
                        const uint64_t *allocated) {
    unsigned words = pm_slab_words(cls);
    struct pm_bitmap_record record = {slab, (uint16_t)(cls | flag), (uint16_t)words};
    emit(w, &record, sizeof record);
    emit(w, allocated, words * sizeof allocated[0]);
    w->slabs++;
}

static void emit_slab(struct writer *w, uint32_t slab) {
    const struct pm_vslab *v = &pm_vslabs[slab];
    unsigned blocks = pm_classes[v->size_class].blocks, words = pm_slab_words(v->size_class);
    uint64_t allocated[PM_BITMAP_WORDS], blocked[PM_BITMAP_WORDS] = {0};
    if (v->old_class)
        pm_morph_blocked(v, blocked);
    for (unsigned i = 0; i < words; i++)
        allocated[i] = ~(v->free[i] | blocked[i]);
    if (blocks % 64)
        allocated[words - 1] &= (1ull << blocks % 64) - 1;
    emit_record(w, slab, v->size_class, 0, allocated);
    if (v->old_class)
        emit_record(w, slab, v->old_class, PM_BITMAP_OLD, pm_morph_live(v));
}

bool pm_bitmaps_write(void) {
    struct writer w = {.good = pm_dir_ready()};
    if (!w.good)
        return false;
    w.fd = openat(pm_heap.dir_fd, NAME, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (w.fd < 0 || lseek(w.fd, sizeof(struct pm_bitmaps_header), SEEK_SET) < 0) {
        if (w.fd >= 0)
            close(w.fd);
        return false;
    }
    for (uint64_t slab = 0; slab < pm_heap.frontier >> PM_SLAB_SHIFT; slab++)
        if (pm_vslabs[slab].size_class)
            emit_slab(&w, (uint32_t)slab);
    flush_writer(&w);
    struct pm_bitmaps_header h = {.magic = PM_BITMAPS_MAGIC,
                                  .tag = pm_heap.super->state.opens,
                                  .slabs = w.slabs,
                                  .bytes = w.bytes,
                                  .crc = w.crc};
    h.header_crc = pm_crc32c(0, &h, offsetof(struct pm_bitmaps_header, header_crc));
    w.good = w.good && pwrite(w.fd, &h, sizeof h, 0) == (ssize_t)sizeof h &&
             (pm_durability == PM_DURABLE_NONE || fsync(w.fd) == 0);
    close(w.fd);
    if (w.good) // durable with the clean state, which goes to the same line behind it
        __atomic_store_n(&pm_heap.super->state.bitmaps_tag, h.tag, __ATOMIC_RELEASE);
    else
        unlinkat(pm_heap.dir_fd, NAME, 0);
    return w.good;
}

static const char *next_record(const char *at, const char *end, struct pm_bitmap_record *record) {
    if ((size_t)(end - at) < sizeof *record)
        return NULL;
    memcpy(record, at, sizeof *record);
    at += sizeof *record;
    // A slab has blocks up to some bit of its last word; what is set behind them would be allocated nowhere.
    unsigned cls = record->size_class & ~PM_BITMAP_OLD;
    bool good = cls >= 1 && cls <= PM_CLASSES && record->slab < PM_SLABS &&
                record->words == pm_slab_words(cls) &&
                (size_t)(end - at) >= record->words * sizeof(uint64_t);
    unsigned last = good ? pm_classes[cls].blocks % 64 : 0;
    if (last) {
        uint64_t word;
        memcpy(&word, at + (record->words - 1) * sizeof word, sizeof word);
        good = word >> last == 0;
    }
    return good ? at : NULL;
}

static bool whole(const struct pm_bitmaps_header *h, size_t size) {
    if (size < sizeof *h || h->magic != PM_BITMAPS_MAGIC ||
        h->header_crc != pm_crc32c(0, h, offsetof(struct pm_bitmaps_header, header_crc)) ||
        h->tag != pm_heap.super->state.bitmaps_tag || h->bytes != size - sizeof *h ||
        h->crc != pm_crc32c(0, h + 1, h->bytes))
        return false;
    const char *at = (const char *)(h + 1), *end = at + h->bytes;
    uint64_t slabs = 0, next = 0; // slabs rise, so that none stands for another
    bool may_be_old = false;      // an old record comes right behind its slab's own, and only one
    for (struct pm_bitmap_record record; at < end; slabs++) {
        at = next_record(at, end, &record);
        bool old = at && record.size_class & PM_BITMAP_OLD;
        if (!at || (old ? !may_be_old || record.slab + 1ull != next : record.slab < next))
            return false;
        next = record.slab + 1ull;
        may_be_old = !old;
        at += record.words * sizeof(uint64_t);
    }
    return slabs == h->slabs;
}

bool pm_bitmaps_read(void (*each)(uint32_t slab, unsigned cls, const uint64_t *words, void *arg),
                     void *arg) {
    struct stat st;
    int fd = openat(pm_heap.dir_fd, NAME, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return false;
    size_t size = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? (size_t)st.st_size : 0;
    void *map = size ? mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    close(fd);
    if (map == MAP_FAILED)
        return false;
    const struct pm_bitmaps_header *h = map;
    bool good = whole(h, size);
    if (good) {
        struct pm_bitmap_record record;
        const char *at = (const char *)(h + 1), *end = at + h->bytes;
        while (at < end) {
            at = next_record(at, end, &record);
            each(record.slab, record.size_class, (const uint64_t *)(const void *)at, arg);
            at += record.words * sizeof(uint64_t);
        }
    }
    munmap(map, size);
    return good;
}
