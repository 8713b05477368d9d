// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// A heap's files under power failure: what is durable, and what is only cached. A page has versions
// since the last sync of its file. A power failure leaves any version of each sector of 512 bytes:
// a prefix, a suffix or any mixture, each page by itself. A new length may be durable or not.
//
// A world may be an image of another one, made by a cut. It then holds only what differs, so images
// of images (a cut during recovery, and during the recovery after that) are cheap.
#ifndef PMALLOC_TESTS_UNIT_PAGE_CACHE_H
#define PMALLOC_TESTS_UNIT_PAGE_CACHE_H

#include <stdlib.h>
#include <string.h>

#include "heap_fixture.h"
#include "media/journal/journal.h"

#define SECTOR 512u
#define SECTORS (PM_PAGE_SIZE / SECTOR)
#define VERSIONS 4u
#define FILES PM_JOURNAL_MEMBERS // PM_JOURNAL_SELF, and the members of shard 0
#define LARGEST ((uint64_t)32 << 20)
#define MOST_PAGES (LARGEST / PM_PAGE_SIZE)
#define DEPTH 4u // a world, and images of images

// A page of a pool has the hash of its contents behind it, once somebody has asked; 0: nobody has.
struct pooled {
    unsigned char bytes[PM_PAGE_SIZE];
    uint64_t hash;
};

struct cached {
    unsigned char *version[VERSIONS]; // 0 is durable; NULL: as the world has it that was cut
    uint32_t life;                    // of the world; else there is nothing here
    uint8_t versions;
    bool lost; // a sync has failed to write it; no later one tries, until it is written to again
};
struct cached_file {
    uint64_t size, durable_size;
    struct cached *page;      // MOST_PAGES
    uint32_t *known, *number; // pages that this world has, and how many
};
struct world {
    const struct world *from; // what this is an image of
    uint32_t life;
    struct cached_file file[FILES];
    bool named, name_durable; // the journal
    unsigned char *pool;      // pages
    size_t used;
};

static struct world worlds[DEPTH];
static const unsigned char zero_page[PM_PAGE_SIZE];

#define POOL ((size_t)2 << 30) // address space; of the outermost world pages are used again
static unsigned char *free_pages[1 << 16];
static unsigned free_count;

static unsigned char *new_page(struct world *w) {
    unsigned char *page = w->pool + w->used;
    if (w == &worlds[0] && free_count) {
        page = free_pages[--free_count];
    } else {
        MUST(w->used + sizeof(struct pooled) <= POOL);
        w->used += sizeof(struct pooled);
    }
    ((struct pooled *)(void *)page)->hash = 0;
    return page;
}

static uint64_t hash_of(const unsigned char *bytes) {
    uint64_t hash = 1, word;
    for (unsigned at = 0; at < PM_PAGE_SIZE; at += sizeof word) {
        memcpy(&word, bytes + at, sizeof word);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
        hash ^= hash >> 29;
    }
    return hash | 1;
}

// Of a page that changes no more.
static uint64_t page_hash(const unsigned char *page) {
    static uint64_t zero_hash;
    uint64_t *hash = page == zero_page ? &zero_hash : &((struct pooled *)(uintptr_t)page)->hash;
    if (!*hash)
        *hash = hash_of(page);
    return *hash;
}

static void drop_page(struct world *w, unsigned char *page) {
    if (w == &worlds[0] && page && free_count < sizeof free_pages / sizeof free_pages[0])
        free_pages[free_count++] = page;
}

static void *reserve_memory(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MUST(at != MAP_FAILED);
    return at;
}

static void worlds_make(void) {
    for (unsigned d = 0; d < DEPTH; d++) {
        struct world *w = &worlds[d];
        w->life = 1;
        w->named = w->name_durable = true;
        w->pool = reserve_memory(POOL);
        for (unsigned i = 0; i < FILES; i++) {
            w->file[i].page = reserve_memory(MOST_PAGES * sizeof(struct cached));
            w->file[i].known = reserve_memory((MOST_PAGES + 1) * sizeof(uint32_t));
            w->file[i].number = &w->file[i].known[MOST_PAGES];
        }
    }
}

static const unsigned char *durable_page(const struct world *w, unsigned file, uint64_t page) {
    for (; w; w = w->from) {
        const struct cached *c = &w->file[file].page[page];
        if (c->life == w->life && c->version[0])
            return c->version[0];
    }
    return zero_page;
}

static const unsigned char *page_now(const struct world *w, unsigned file, uint64_t page) {
    const struct cached *c = &w->file[file].page[page];
    if (c->life == w->life && c->versions > 1)
        return c->version[c->versions - 1];
    return durable_page(w, file, page);
}

static struct cached *entry_of(struct world *w, unsigned file, uint64_t page) {
    struct cached_file *f = &w->file[file];
    MUST(page < MOST_PAGES);
    struct cached *c = &f->page[page];
    if (c->life != w->life) {
        *c = (struct cached){.life = w->life, .versions = 1};
        f->known[(*f->number)++] = (uint32_t)page;
    }
    return c;
}

// The page's next version, a copy of the last one. If there are too many, an early one is
// forgotten.
static unsigned char *next_version(struct world *w, unsigned file, uint64_t page) {
    unsigned char *fresh = new_page(w);
    memcpy(fresh, page_now(w, file, page), PM_PAGE_SIZE);
    struct cached *c = entry_of(w, file, page);
    if (c->versions == VERSIONS) {
        drop_page(w, c->version[1]);
        memmove(&c->version[1], &c->version[2], (VERSIONS - 2) * sizeof c->version[0]);
        c->versions--;
    }
    c->lost = false;
    return c->version[c->versions++] = fresh;
}

// ---- what happens to files ----------------------------------------------------------------------

// `from` NULL: zeroes.
static void cache_write(struct world *w, unsigned file, const void *from, uint64_t len,
                        uint64_t at) {
    uint64_t end = at + len;
    for (uint64_t part; len; len -= part, at += part) {
        uint64_t in = at % PM_PAGE_SIZE;
        part = PM_PAGE_SIZE - in < len ? PM_PAGE_SIZE - in : len;
        unsigned char *page = next_version(w, file, at / PM_PAGE_SIZE) + in;
        if (from)
            memcpy(page, from, part), from = (const char *)from + part;
        else
            memset(page, 0, part);
    }
    if (from && w->file[file].size < end)
        w->file[file].size = end;
}

static void cache_set_length(struct world *w, unsigned file, uint64_t bytes) {
    struct cached_file *f = &w->file[file];
    if (bytes < f->size)
        cache_write(w, file, NULL, f->size - bytes, bytes);
    f->size = bytes;
}

// A sync that fails. The kernel takes its pages for written; of each the medium has any version.
static void cache_lose(struct world *w, unsigned file) {
    struct cached_file *f = &w->file[file];
    for (uint32_t i = 0; i < *f->number; i++)
        f->page[f->known[i]].lost |= f->page[f->known[i]].versions > 1;
}

static void cache_sync(struct world *w, unsigned file) {
    struct cached_file *f = &w->file[file];
    for (uint32_t i = 0; i < *f->number; i++) {
        struct cached *c = &f->page[f->known[i]];
        if (c->versions == 1 || c->lost)
            continue;
        for (unsigned v = 0; v + 1 < c->versions; v++)
            drop_page(w, c->version[v]);
        c->version[0] = c->version[c->versions - 1];
        c->versions = 1;
    }
    f->durable_size = f->size;
}

static bool cache_read(const struct world *w, unsigned file, void *to, uint64_t len, uint64_t at) {
    errno = PM_JOURNAL_ENDS;
    if (at + len > w->file[file].size)
        return false;
    for (uint64_t part; len; len -= part, at += part, to = (char *)to + part) {
        uint64_t in = at % PM_PAGE_SIZE;
        part = PM_PAGE_SIZE - in < len ? PM_PAGE_SIZE - in : len;
        memcpy(to, page_now(w, file, at / PM_PAGE_SIZE) + in, part);
    }
    return true;
}

// ---- images -------------------------------------------------------------------------------------

// A page with several versions: none of the later ones, the last one, or a mixture.
static void choose_page(const struct world *from, unsigned file, uint64_t page, unsigned how,
                        unsigned char *to) {
    const struct cached *c = &from->file[file].page[page];
    unsigned cut = (unsigned)rnd(SECTORS + 1), last = c->versions - 1u;
    for (unsigned sector = 0; sector < SECTORS; sector++) {
        unsigned v = 0;
        switch (how == 5 ? rnd(5) : how) {
        case 1:
            v = last;
            break;
        case 2:
            v = sector < cut ? last : 0;
            break;
        case 3:
            v = sector < cut ? 0 : last;
            break;
        case 4:
            v = (unsigned)rnd(last + 1u);
        }
        const unsigned char *source = v ? c->version[v] : durable_page(from, file, page);
        memcpy(to + sector * SECTOR, source + sector * SECTOR, SECTOR);
    }
}

static struct world *image_begin(const struct world *from) {
    struct world *w = &worlds[from - worlds + 1];
    MUST(w < &worlds[DEPTH]);
    w->from = from;
    w->life++;
    w->used = 0;
    w->named = w->name_durable = from->name_durable || (from->named && rnd(2));
    for (unsigned i = 0; i < FILES; i++)
        *w->file[i].number = 0;
    return w;
}

// A file that becomes longer again shows zeroes there, whatever its pages were.
static void empty_beyond_end(struct world *w, unsigned file, uint64_t end) {
    struct cached_file *f = &w->file[file];
    for (uint64_t page = (f->size + PM_PAGE_SIZE - 1) / PM_PAGE_SIZE; page * PM_PAGE_SIZE < end;
         page++) {
        if (durable_page(w, file, page) == zero_page)
            continue;
        unsigned char *empty = new_page(w);
        memset(empty, 0, PM_PAGE_SIZE);
        entry_of(w, file, page)->version[0] = empty;
    }
}

// What a power failure at this moment may leave.
static struct world *image_of(const struct world *from) {
    struct world *w = image_begin(from);
    unsigned way = (unsigned)rnd(6); // all pages old, all new, a part of the file, or as it comes
    for (unsigned i = 0; i < FILES; i++) {
        const struct cached_file *f = &from->file[i];
        bool durable = way == 0 || (way > 1 && rnd(2));
        uint64_t limit = rnd(f->size / PM_PAGE_SIZE + 1);
        w->file[i].size = w->file[i].durable_size = durable ? f->durable_size : f->size;
        for (uint32_t k = 0; k < *f->number; k++) {
            uint64_t page = f->known[k];
            if (f->page[page].versions == 1)
                continue;
            unsigned char *chosen = new_page(w);
            unsigned how = way < 2 ? way : (unsigned)rnd(6);
            if (way == 2 || way == 3)
                how = (page < limit) == (way == 2);
            choose_page(from, i, page, how, chosen);
            entry_of(w, i, page)->version[0] = chosen;
        }
        empty_beyond_end(w, i, f->size > f->durable_size ? f->size : f->durable_size);
    }
    if (!w->named)
        w->file[PM_JOURNAL_SELF].size = w->file[PM_JOURNAL_SELF].durable_size = 0;
    return w;
}

// What a kill leaves: all that is cached, and nothing of it more durable than before.
static struct world *inherited_from(const struct world *from) {
    struct world *w = image_begin(from);
    w->named = from->named;
    for (unsigned i = 0; i < FILES; i++) {
        const struct cached_file *f = &from->file[i];
        w->file[i].size = f->size;
        w->file[i].durable_size = f->durable_size;
        for (uint32_t k = 0; k < *f->number; k++) {
            const struct cached *c = &f->page[f->known[k]];
            if (c->versions > 1) {
                struct cached *to = entry_of(w, i, f->known[k]);
                memcpy(to->version, c->version, sizeof to->version);
                to->versions = c->versions;
                to->lost = c->lost;
            }
        }
    }
    return w;
}

#endif
