// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "bitmaps.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc.h"
#include "base/file_limit.h"
#include "base/os.h"
#include "base/os_file.h"
#include "base/populate.h"
#include "media/backing/dir_held.h"
#include "media/backing/fixed.h"
#include "media/persist.h"

// The `size_class` field of a population's record.
static uint16_t class_word(const struct pm_population *p) {
    return (uint16_t)(p->cls | (p->old ? PM_BITMAP_OLD : 0));
}

// A buffered writer. Records are written in file order. The header needs their checksum, so it is
// written last.
struct writer {
    int fd;
    const struct pm_file *part; // of a fixed medium: it is written there; or NULL
    bool good;
    uint32_t crc;
    uint64_t bytes, slabs;
    uint64_t at; // where the buffer goes
    size_t fill;
    char buffer[16384];
};

static bool write_at(const struct writer *w, const void *from, size_t len, uint64_t at) {
    if (!w->part) {
        struct pm_file_room room = pm_file_room(at + len);
        bool good = room.good && pm_os_write_all(w->fd, from, len, at);
        pm_file_room_end(room);
        return good;
    }
    if (at + len > w->part->room)
        return false;
    memcpy(w->part->map + at, from, len);
    pm_flush(w->part->map + at, len);
    return true;
}

static void write_buffer(struct writer *w) {
    w->good = w->good && write_at(w, w->buffer, w->fill, w->at);
    w->at += w->fill;
    w->fill = 0;
}

static void emit(struct writer *w, const void *data, size_t len) {
    w->crc = pm_crc32c(w->crc, data, len);
    w->bytes += len;
    if (w->fill + len > sizeof w->buffer)
        write_buffer(w);
    memcpy(w->buffer + w->fill, data, len);
    w->fill += len;
}

static void emit_population(struct writer *w, uint32_t slab, const struct pm_population *p) {
    uint64_t used[PM_BITMAP_WORDS];
    unsigned words = pm_slab_words(p->cls);
    struct pm_bitmap_record record = {pm_slab_on_media(slab), class_word(p), (uint16_t)words};
    pm_population_used(&pm_vslabs[slab], p, used);
    emit(w, &record, sizeof record);
    emit(w, used, words * sizeof used[0]);
    w->slabs++;
}

static void emit_slab(struct writer *w, uint32_t slab) {
    struct pm_population population[2];
    unsigned count = pm_slab_populations(&pm_vslabs[slab], population);
    for (unsigned i = 0; i < count; i++)
        emit_population(w, slab, &population[i]);
}

static uint32_t first_slab(const struct pm_shard *s) {
    return (uint32_t)(s->offset >> PM_SLAB_SHIFT);
}

static bool write_records(struct writer *w, const struct pm_shard *s) {
    for (uint64_t slab = 0; slab < s->frontier >> PM_SLAB_SHIFT; slab++)
        emit_slab(w, first_slab(s) + (uint32_t)slab);
    write_buffer(w);
    struct pm_bitmaps_header h = {.magic = PM_BITMAPS_MAGIC,
                                  .tag = pm_heap.super->state.opens,
                                  .slabs = w->slabs,
                                  .bytes = w->bytes,
                                  .crc = w->crc};
    h.header_crc = pm_crc32c(0, &h, offsetof(struct pm_bitmaps_header, header_crc));
    return w->good && write_at(w, &h, sizeof h, 0);
}

static bool write_shard(struct pm_shard *s) {
    struct writer w = {.good = true, .at = sizeof(struct pm_bitmaps_header)};
    const int flags = O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC;
    w.fd = openat(pm_heap.dir_fd, s->bitmaps.name, flags, 0600);
    if (w.fd < 0)
        return false;
    bool good = write_records(&w, s) && (pm_durability == PM_DURABLE_NONE || fsync(w.fd) == 0);
    close(w.fd);
    if (!good)
        unlinkat(pm_heap.dir_fd, s->bitmaps.name, 0);
    return good;
}

// The state is dirty, so what is overwritten is not in force. It is synced with the other parts,
// which all come before the state. Where it has too little room, its tag is not this close's.
static bool write_part(struct pm_shard *s) {
    struct writer w = {.good = true, .part = &s->bitmaps, .at = sizeof(struct pm_bitmaps_header)};
    bool good = s->bitmaps.length && write_records(&w, s) && pm_fixed_set_length(&s->bitmaps, w.at);
    pm_drain();
    return good;
}

bool pm_bitmaps_write(void) {
    struct pm_state *state = &pm_heap.super->state;
    bool fixed = pm_fixed_is_open();
    if (!fixed && !pm_dir_ready())
        return false;
    for (unsigned i = 0; i < pm_heap.shards; i++)
        if (!(fixed ? write_part : write_shard)(&pm_heap.shard[i]))
            return true; // too little room: after this clean close recovery marks, too
    // The files are durable here. The tag needs no flush of its own: it lies in the cache line of
    // the state word, which is stored and flushed later. Stores to one line become durable in their
    // order, so a state word "clean" on media has the tag beside it.
    __atomic_store_n(&state->bitmaps_tag, state->opens, __ATOMIC_RELEASE);
    return true;
}

static const char *next_record(const char *at, const char *end, struct pm_bitmap_record *record) {
    if ((size_t)(end - at) < sizeof *record)
        return NULL;
    memcpy(record, at, sizeof *record);
    at += sizeof *record;
    // In the last word, bits after the slab's last block name no block, so they must be 0.
    unsigned cls = record->size_class & ~PM_BITMAP_OLD;
    bool good = cls >= 1 && cls <= PM_CLASSES && record->slab < PM_SHARD_SLABS &&
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

// A part of a fixed medium has whole pages.
static bool fills(const struct pm_bitmaps_header *h, size_t size, bool part) {
    size_t room = size - sizeof *h;
    return part ? h->bytes <= room : h->bytes == room;
}

static bool whole(const struct pm_bitmaps_header *h, size_t size, bool part) {
    if (size < sizeof *h || h->magic != PM_BITMAPS_MAGIC ||
        h->header_crc != pm_crc32c(0, h, offsetof(struct pm_bitmaps_header, header_crc)) ||
        h->tag != pm_heap.super->state.bitmaps_tag || !fills(h, size, part) ||
        h->crc != pm_crc32c(0, h + 1, h->bytes))
        return false;
    const char *at = (const char *)(h + 1), *end = at + h->bytes;
    // Slab numbers rise, so that no slab has two records of one kind. A record of old blocks comes
    // directly after the record of its slab's current class.
    uint64_t slabs = 0, next = 0;
    bool may_be_old = false;
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

// Calls `each` for the population that a record names. The slab may be of another class now, or
// gone; then the record names none.
static void read_record(const struct pm_shard *s, const struct pm_bitmap_record *record,
                        const uint64_t *words, pm_bitmaps_fn *each, void *arg) {
    struct pm_population population[2];
    const struct pm_vslab *v = &pm_vslabs[first_slab(s) + record->slab];
    for (unsigned n = pm_slab_populations(v, population); n-- > 0;)
        if (class_word(&population[n]) == record->size_class)
            each(&population[n], words, arg);
}

// The bitmaps only save work: without them what is in use is found by marking. But then the small
// leaks are not counted, so the user hears why.
static const struct pm_bitmaps_header *cannot_read(const struct pm_shard *s, int error) {
    static bool said;
    if (!said)
        pm_event(
            PM_EV_BITMAPS_UNREAD,
            "%.300s/%s cannot be read: %s; what is in use is found by marking instead, and small "
            "leaked blocks are not counted",
            pm_heap.dir, s->bitmaps.name, pm_strerror(error));
    said = true;
    return NULL;
}

// So that a bad block is an error, with errno.
static bool populate(void *map, size_t size) {
    long result = pm_populate(map, size, MADV_POPULATE_READ);
    if (pm_populate_refused(result))
        errno = (int)-result;
    return !pm_populate_refused(result);
}

// Of a file whose header does not fit, no more is read, and no memory is taken.
static bool can_read(void *map, size_t size) {
    if (size < sizeof(struct pm_bitmaps_header) || !populate(map, 1))
        return size < sizeof(struct pm_bitmaps_header);
    return !fills(map, size, false) || populate(map, size);
}

// The file of a shard, mapped; NULL: there is none, or it is damaged or cannot be read.
static const struct pm_bitmaps_header *map_shard(const struct pm_shard *s) {
    struct stat st;
    const int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    const void *part = s->bitmaps.map;
    if (s->bitmaps.length)
        return whole(part, s->bitmaps.size, true) ? part : NULL;
    int fd = openat(pm_heap.dir_fd, s->bitmaps.name, flags);
    if (fd < 0) // ELOOP: somebody has put a link there, which is as good as nothing
        return errno == ENOENT || errno == ELOOP ? NULL : cannot_read(s, errno);
    bool known = fstat(fd, &st) == 0;
    size_t size = known && S_ISREG(st.st_mode) ? (size_t)st.st_size : 0;
    void *map = size ? mmap(pm_os_place(size), size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    int error = !known || (size && map == MAP_FAILED) ? errno : 0;
    close(fd);
    if (map == MAP_FAILED)
        return error ? cannot_read(s, error) : NULL;
    bool there = can_read(map, size);
    if (there && whole(map, size, false))
        return map;
    munmap(map, size);
    return there ? NULL : cannot_read(s, EIO);
}

static void read_shard(const struct pm_shard *s, const struct pm_bitmaps_header *h,
                       pm_bitmaps_fn *each, void *arg) {
    struct pm_bitmap_record record;
    const char *at = (const char *)(h + 1), *end = at + h->bytes;
    while (at < end) {
        at = next_record(at, end, &record);
        read_record(s, &record, (const uint64_t *)(const void *)at, each, arg);
        at += record.words * sizeof(uint64_t);
    }
}

bool pm_bitmaps_read(pm_bitmaps_fn *each, void *arg) {
    const struct pm_bitmaps_header *h[PM_SHARDS];
    unsigned mapped = 0;
    while (mapped < pm_heap.shards && (h[mapped] = map_shard(&pm_heap.shard[mapped])) != NULL)
        mapped++;
    bool good = mapped == pm_heap.shards;
    for (unsigned i = 0; i < mapped; i++) {
        if (good)
            read_shard(&pm_heap.shard[i], h[i], each, arg);
        if (!pm_heap.shard[i].bitmaps.length)
            munmap((void *)(uintptr_t)h[i], sizeof *h[i] + h[i]->bytes);
    }
    return good;
}
