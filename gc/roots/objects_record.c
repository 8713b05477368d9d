// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "objects_record.h"

#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#include "base/crc.h"
#include "base/os.h"
#include "build_of.h"
#include "loaded_object.h"
#include "media/heap.h"
#include "media/outside_format.h"
#include "media/persist.h"
#include "packed_object.h"
#include "program.h"
#include "record_place.h"
#include "twins.h"

#define PLACE (sizeof(struct pm_shard_state) + sizeof(struct pm_outside))
_Static_assert(PLACE + sizeof(struct pm_objects_state) <= sizeof((struct pm_state *)0)->reserved,
               "there is room");

static struct pm_objects_state *state_in(struct pm_state *page) {
    return (struct pm_objects_state *)(void *)(page->reserved + PLACE);
}

uint32_t pm_record_generation(void) {
    uint64_t word = state_in(&pm_heap.super->state)->generation;
    return pm_sealed(word, PM_SALT_OBJECTS) ? pm_unseal(word) : 0;
}

void pm_record_switch(struct pm_state *page, uint32_t generation) {
    state_in(page)->generation = pm_seal(generation, PM_SALT_OBJECTS);
}

bool pm_record_may_be(void) { return pm_record_place_may_be(); }

// ---- what is on record --------------------------------------------------------------------------

static struct pm_objects_entry *entry; // room for PM_OBJECTS_MOST
static unsigned entries;
static uint64_t file_end;
// Of the heap that has them: a forked child may go on with a copy.
static uint64_t heap_ino;
static uint32_t generation_read;

const struct pm_objects_entry *pm_record_entries(unsigned *count) {
    *count = entries;
    return entry;
}

static bool is_whole(const struct pm_objects_entry *e, uint64_t file) {
    return e->at <= file && e->bytes <= file - e->at &&
           e->crc == pm_crc32c(0, e, offsetof(struct pm_objects_entry, crc)) &&
           e->build_id_len <= sizeof e->build_id && memchr(e->path, 0, sizeof e->path) &&
           e->start < e->end;
}

static bool have_room(void) {
    if (!entry)
        entry = pm_os_reserve(PM_OBJECTS_MOST * sizeof *entry);
    return entry != NULL;
}

enum reading { THERE, NONE, DAMAGED, UNREADABLE };

static bool is_head(const struct pm_objects_head *head) {
    return head->magic == PM_OBJECTS_MAGIC && head->generation == pm_record_generation() &&
           head->crc == pm_crc32c(0, head, offsetof(struct pm_objects_head, crc));
}

static bool is_empty(const struct pm_objects_entry *e) {
    const char *bytes = (const char *)e;
    return bytes[0] == 0 && memcmp(bytes, bytes + 1, sizeof *e - 1) == 0;
}

// Zeroes follow the last entry, which may be unfinished: a kill or a power cut came before its crc.
// The next one takes its place.
static enum reading read_list(const struct pm_record_place *p, uint64_t length) {
    struct pm_objects_entry page[16]; // with the head
    bool unfinished = false;
    for (uint64_t at = 0; at < PM_OBJECTS_LIST; at += sizeof page) {
        ssize_t got = pm_record_place_read(p, page, sizeof page, at);
        if (got < 0)
            return UNREADABLE;
        unsigned have = (unsigned)((size_t)got / sizeof page[0]);
        if (at == 0 && (!have || !is_head((const void *)page)))
            return DAMAGED;
        for (unsigned i = at == 0; i < have; i++) {
            if (is_empty(&page[i]))
                return entries ? THERE : DAMAGED;
            if (unfinished || (page[i].crc && !is_whole(&page[i], length)))
                return DAMAGED;
            unfinished = page[i].crc == 0;
            if (!unfinished)
                entry[entries++] = page[i];
        }
        if (have < sizeof page / sizeof page[0])
            return DAMAGED; // the list is as long as ever
    }
    return THERE;
}

static enum reading read_record(void) {
    struct pm_record_place p;
    entries = 0;
    heap_ino = pm_heap.super_file.ino;
    generation_read = pm_record_generation();
    if (!pm_record_may_be() || !generation_read)
        return NONE;
    if (!have_room())
        return UNREADABLE;
    if (!pm_record_place_open(&p, generation_read, PM_RECORD_READ))
        return errno == ENOENT ? NONE : UNREADABLE;
    enum reading r = pm_record_place_length(&p, &file_end) ? read_list(&p, file_end) : UNREADABLE;
    pm_record_place_close(&p);
    return r;
}

bool pm_record_was_read(void) {
    return entries && heap_ino == pm_heap.super_file.ino &&
           generation_read == pm_record_generation();
}

bool pm_record_read(void) { return pm_record_was_read() || read_record() == THERE; }

bool pm_record_lay_at(uint64_t address) {
    const struct pm_state *state = &pm_heap.super->state;
    const struct pm_program *p = &state->program;
    bool read = pm_record_was_read();
    for (unsigned i = 0; read && i < entries; i++)
        if (address - entry[i].start < entry[i].end - entry[i].start)
            return true;
    return !read && state->program_crc == pm_crc32c(0, p, sizeof *p) &&
           (address - p->main_start < p->main_end - p->main_start ||
            address - p->libs_start < p->libs_end - p->libs_start);
}

static enum reading read_packed(void) {
    enum reading r = THERE;
    for (unsigned i = 0; r == THERE && i < entries; i++) {
        errno = 0;
        const void *packed = entry[i].bytes ? pm_record_packed(&entry[i]) : NULL;
        if (entry[i].bytes && !packed)
            r = errno ? UNREADABLE : DAMAGED;
        if (packed)
            munmap((void *)(uintptr_t)packed, entry[i].bytes);
    }
    return r;
}

int pm_record_check(bool all, struct pm_error *err) {
    uint64_t word = state_in(&pm_heap.super->state)->generation;
    enum reading r = pm_record_was_read() ? THERE : read_record();
    if (word && !pm_sealed(word, PM_SALT_OBJECTS))
        r = DAMAGED;
    if (r == THERE && all)
        r = read_packed();
    if (r == UNREADABLE)
        return pm_fail(err, PM_OPERATIONAL, "%.300s/%s cannot be read: %s; nothing was changed",
                       pm_heap.dir, pm_record_place_name(pm_record_generation()),
                       pm_strerror(errno));
    if (r != DAMAGED)
        return PM_OK;
    return pm_fail(err, PM_DAMAGE,
                   "%.300s/%s, which says where the program and its libraries lay, is damaged; if "
                   "they are the same builds as in the last run, %s",
                   pm_heap.dir, pm_record_place_name(pm_record_generation()),
                   pm_heap.objects.length
                       ? "copy the heap to a directory with pmalloc-backup, and remove it there"
                       : "remove it");
}

// Not mapped: on tmpfs that would give space to holes, which a copy may have.
const void *pm_record_packed(const struct pm_objects_entry *e) {
    struct pm_record_place p;
    if (!e->bytes || !pm_record_place_open(&p, pm_record_generation(), PM_RECORD_READ))
        return NULL;
    void *bytes = pm_os_reserve(e->bytes);
    ssize_t got = bytes ? pm_record_place_read(&p, bytes, e->bytes, e->at) : -1;
    bool good = got == (ssize_t)e->bytes;
    if (got >= 0 && !good)
        errno = EIO; // shorter than that by now
    pm_record_place_close(&p);
    if (!good && bytes)
        munmap(bytes, e->bytes);
    if (!good)
        return NULL;
    if (pm_crc32c(0, bytes, e->bytes) == e->packed_crc)
        return bytes;
    munmap(bytes, e->bytes);
    errno = 0;
    return NULL;
}

// ---- what is loaded -----------------------------------------------------------------------------

bool pm_record_is_build_of(const struct pm_objects_entry *e, const struct pm_elf *f) {
    struct pm_objects_entry of = {0};
    pm_build_of_file(f, &of);
    return !pm_build_is_unknown(e) && pm_record_same_build(e, &of);
}

static void cut_path(char out[PM_OBJECTS_PATH], const char *path) {
    size_t n = strlen(path), skip = n < PM_OBJECTS_PATH ? 0 : n - PM_OBJECTS_PATH + 1;
    memcpy(out, path + skip, n - skip);
}

// The same as long as the process lives. "": it cannot be read.
static const char *program_path(void) {
    static char path[PATH_MAX];
    if (!path[0] && !pm_object_program_path(path, sizeof path))
        path[0] = '\0';
    return path;
}

static bool describe(const struct pm_object *o, struct pm_objects_entry *e) {
    *e = (struct pm_objects_entry){.base = o->base, .start = UINT64_MAX};
    if (pm_object_is_vdso(o))
        return false;
    for (size_t i = 0; i < o->phnum; i++) {
        const ElfW(Phdr) *p = &o->phdr[i];
        uint64_t start = o->base + p->p_vaddr, end = start + p->p_memsz;
        if (p->p_type != PT_LOAD)
            continue;
        e->start = start < e->start ? start : e->start;
        e->end = end > e->end ? end : e->end;
    }
    e->start &= ~(uint64_t)(PM_PAGE_SIZE - 1);
    e->end = (e->end + PM_PAGE_SIZE - 1) & ~(uint64_t)(PM_PAGE_SIZE - 1);
    e->flags = (o->is_main ? PM_OBJECT_IS_PROGRAM : 0) |
               (pm_program_is_at_random() ? PM_OBJECT_AT_RANDOM : 0);
    pm_build_of_loaded(o, e);
    cut_path(e->path, o->is_main ? program_path() : o->dl_name);
    return e->start < e->end;
}

struct walk {
    pm_loaded_fn *fn;
    void *arg;
};

static int walk_step(const struct pm_object *o, void *arg) {
    struct walk *w = arg;
    struct pm_objects_entry e;
    return describe(o, &e) && !w->fn(&e, w->arg);
}

void pm_record_each_loaded(pm_loaded_fn *fn, void *arg) {
    struct walk w = {fn, arg};
    pm_object_each(walk_step, &w);
}

static bool is_known(const struct pm_objects_entry *e) {
    for (unsigned i = 0; i < entries; i++)
        if (pm_record_is(&entry[i], e))
            return true;
    return false;
}

// ---- writing ------------------------------------------------------------------------------------

// A record that is being written.
struct writing {
    struct pm_record_place place;
    unsigned count; // entries
    uint64_t end;   // where the next packed object goes
    bool good, only_new, durable;
};

// A crc of 0 says that the entry is unfinished.
static void seal(struct pm_objects_entry *e) {
    do
        e->crc = pm_crc32c(0, e, offsetof(struct pm_objects_entry, crc));
    while (e->crc == 0 && ++e->reserved[0]);
}

// The packed object, then the entry, then its crc: each is there, and durable, before the next.
// Until the record is in force all of it may become so at once.
static bool put_entry(const struct writing *w, const struct pm_objects_entry *e) {
    const struct pm_record_place *p = &w->place;
    const size_t body = offsetof(struct pm_objects_entry, crc);
    uint64_t at = sizeof(struct pm_objects_head) + w->count * sizeof *e;
    bool sync = w->only_new && w->durable;
    if (w->count >= PM_OBJECTS_MOST || (sync && !pm_record_place_sync(p)))
        return false;
    if (!w->only_new)
        return pm_record_place_write(p, e, sizeof *e, at);
    return pm_record_place_write(p, e, body, at) && (!sync || pm_record_place_sync(p)) &&
           pm_record_place_write(p, &e->crc, sizeof e->crc, at + body);
}

static void append(struct writing *w, struct pm_objects_entry *e) {
    seal(e);
    w->good = w->good && put_entry(w, e);
    w->count += w->good;
}

// Writes a packed object, and says in the entry where it is.
static void append_bytes(struct writing *w, struct pm_objects_entry *e, const void *bytes,
                         size_t size) {
    e->at = w->end;
    e->bytes = size;
    e->packed_crc = pm_crc32c(0, bytes, size);
    if (!pm_record_place_write(&w->place, bytes, size, e->at))
        e->at = e->bytes = 0; // an entry without it says less
    else
        w->end = (e->at + size + PM_PAGE_SIZE - 1) & ~(uint64_t)(PM_PAGE_SIZE - 1);
}

static void pack(struct writing *w, struct pm_objects_entry *e) {
    struct pm_elf file;
    if (!pm_object_open_at(e->base, &file))
        return;
    size_t size = pm_packed_size(&file);
    unsigned char *bytes = size ? pm_os_reserve(size) : NULL;
    if (bytes) {
        pm_packed_write(&file, bytes);
        append_bytes(w, e, bytes, size);
        munmap(bytes, size);
    }
    pm_elf_close(&file);
}

// Of an entry of the record in force. False: it has none, or that is not whole.
static bool append_packed(struct writing *w, struct pm_objects_entry *e,
                          const struct pm_objects_entry *of) {
    const void *bytes = pm_record_packed(of);
    if (!bytes)
        return false;
    append_bytes(w, e, bytes, of->bytes);
    munmap((void *)(uintptr_t)bytes, of->bytes);
    return true;
}

static const struct pm_objects_entry *packed_before(const struct pm_objects_entry *e) {
    for (unsigned i = 0; e->build_id_len && i < entries; i++)
        if (entry[i].bytes && pm_record_same_build(&entry[i], e))
            return &entry[i];
    return NULL;
}

// Of the same build a packed object may be there already: in this file, or to be copied.
static bool take_packed(struct writing *w, struct pm_objects_entry *e) {
    const struct pm_objects_entry *before = packed_before(e);
    if (!before || !w->only_new)
        return before && append_packed(w, e, before);
    e->at = before->at;
    e->bytes = before->bytes;
    e->packed_crc = before->packed_crc;
    return true;
}

// Whether it lies over a place where it lay before.
static bool overlaps_itself(const struct pm_objects_entry *e) {
    for (unsigned i = 0; i < entries; i++)
        if (pm_record_overlap(&entry[i], e) &&
            pm_twins_same(entry, entries, &entry[i], e) != PM_SAME_NOT)
            return true;
    return false;
}

static bool append_loaded(const struct pm_objects_entry *loaded, void *arg) {
    struct writing *w = arg;
    struct pm_objects_entry e = *loaded;
    if (w->only_new && is_known(&e))
        return true;
    if (w->only_new && overlaps_itself(&e))
        e.flags |= PM_OBJECT_MIXED;
    if (pm_twins_has(entry, entries, &e))
        e.flags |= PM_OBJECT_TWIN;
    if (!take_packed(w, &e))
        pack(w, &e);
    append(w, &e);
    if (w->only_new && w->good)
        entry[entries++] = e;
    return w->good;
}

static bool write_head(const struct pm_record_place *p, uint32_t generation) {
    struct pm_objects_head head = {.magic = PM_OBJECTS_MAGIC, .generation = generation};
    head.crc = pm_crc32c(0, &head, offsetof(struct pm_objects_head, crc));
    return pm_record_place_clear(p, PM_OBJECTS_LIST) &&
           pm_record_place_write(p, &head, sizeof head, 0);
}

bool pm_record_write_next(uint32_t generation, const bool *keep) {
    struct writing w = {.end = PM_OBJECTS_LIST};
    if (!pm_record_place_open(&w.place, generation, PM_RECORD_MAKE))
        return false;
    w.good = write_head(&w.place, generation);
    for (unsigned i = 0; keep && i < entries && w.good; i++) {
        struct pm_objects_entry e = entry[i];
        e.at = e.bytes = 0;
        if (!keep[i])
            continue;
        append_packed(&w, &e, &entry[i]);
        append(&w, &e);
    }
    if (w.good)
        pm_record_each_loaded(append_loaded, &w);
    w.good = w.good && pm_record_place_sync(&w.place);
    pm_record_place_close(&w.place);
    return w.good;
}

static bool see(const struct pm_objects_entry *e, void *all) {
    pm_twins_see(e);
    *(bool *)all = *(bool *)all && is_known(e);
    return true;
}

bool pm_record_renew(const bool *keep) {
    uint32_t next = pm_record_generation() + 1;
    if (!have_room() || !pm_record_write_next(next, keep))
        return false;
    struct pm_objects_state *state = state_in(&pm_heap.super->state);
    pm_commit_u64(&state->generation, pm_seal(next, PM_SALT_OBJECTS));
    return pm_record_read();
}

void pm_record_drop_other(void) {
    if (pm_record_may_be())
        pm_record_place_remove(pm_record_generation() + 1);
}

bool pm_record_note(bool durable) {
    if (!pm_record_may_be())
        return true;
    bool there = pm_record_read(), all = true;
    pm_record_each_loaded(see, &all);
    if (!there)
        return pm_record_renew(NULL);
    if (all)
        return true;
    struct writing w = {
        .count = entries,
        .end = (file_end + PM_PAGE_SIZE - 1) & ~(uint64_t)(PM_PAGE_SIZE - 1),
        .good = true,
        .only_new = true,
        .durable = durable,
    };
    if (!pm_record_place_open(&w.place, pm_record_generation(), PM_RECORD_APPEND))
        return false;
    pm_record_each_loaded(append_loaded, &w);
    w.good = w.good && (!durable || pm_record_place_sync(&w.place));
    file_end = w.end;
    pm_record_place_close(&w.place);
    return w.good;
}
