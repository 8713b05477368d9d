// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "seeds.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/crc.h"
#include "base/options.h"
#include "blocks/alloc.h"
#include "blocks/arena.h"
#include "blocks/kinds.h"
#include "blocks/morph.h"
#include "blocks/pinned.h"
#include "blocks/slab.h"
#include "blocks/tables.h"
#include "media/backing/file.h"
#include "media/open/heap_open.h"
#include "media/persist.h"
#include "pages/extent_adopt.h"
#include "pages/extent_take.h"
#include "pages/frontier.h"
#include "recovery/close.h"
#include "recovery/offline.h"
#include "recovery/recover.h"
#include "roots/root_media.h"
#include "roots/root_table.h"

#define PAGES_MAX 1024
#define PAGE 4096

// A file, kept as those of its pages that are not zero.
static struct image {
    bool there;
    off_t size;
    unsigned count;
    unsigned number[PAGES_MAX];
    char (*page)[PAGE];
} images[SEEDS][FILES];

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if (!(call)) {                                                                             \
            fprintf(stderr, "seeds: %s failed\n", #call);                                          \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

// ---- what is in them ----------------------------------------------------------------------------

static void *block(unsigned cls) {
    void *p = NULL;
    MUST(pm_arena_fill(&pm_arenas[0], cls, &p, 1) == 1);
    memset(p, 0, pm_classes[cls].size);
    return p;
}

static void *extent(uint64_t pages) {
    uint32_t index = pm_extent_take(pages, 1);
    MUST(index && pm_extent_publish(index, false));
    return pm_extent_address(&pm_extents[index]);
}

// A list of blocks of several classes. Every fourth block names an extent. Beside the list there
// are garbage blocks and garbage extents.
static void *graph(unsigned length) {
    void **head = NULL;
    for (unsigned i = 0; i < length; i++) {
        void **p = block(2 + i * 5 % (PM_CLASSES - 1));
        p[0] = head;
        p[1] = i % 4 == 0 ? extent(1 + i) : NULL;
        head = p;
        block(1 + i % 3);
        if (i % 8 == 0)
            extent(3);
    }
    return head;
}

static void set_slot(unsigned slot, void *p) {
    pm_heap.super->slots.slot[slot] = pm_slot_word(slot, (uint64_t)(uintptr_t)p);
}

static void root_table(void *p) {
    static const char *const names[] = {"alpha", "beta"};
    struct pm_root_table *t = pm_roots_next_table();
    char page[PAGE] = {0};
    memcpy(page + 16, &p, sizeof p);
    MUST(pwrite(pm_heap.roots.fd, page, PAGE, 0) == PAGE);
    pm_heap.roots.size = PAGE;
    memset(t, 0, sizeof *t);
    for (t->count = 0; t->count < 2; t->count++) {
        struct pm_root *r = &t->root[t->count];
        *r = (struct pm_root){.kind = PM_ROOT_SYMBOL, .length = 64, .image = t->count * 8ull};
        snprintf(r->name, sizeof r->name, "%s", names[t->count]);
    }
    t->area_length = PAGE;
    pm_roots_switch();
}

// Takes and frees extents until the log has been compacted.
static void churn(void) {
    for (uint64_t before = pm_log_stats(&pm_heap.shard[0]).compactions, i = 0;
         pm_log_stats(&pm_heap.shard[0]).compactions == before; i++) {
        uint32_t index = pm_extent_take(1 + i % 3, 1);
        MUST(index && pm_extent_publish(index, false));
        if (i % 20)
            pm_extent_release(index);
    }
}

static void half_resized(uint64_t to) {
    uint32_t index = pm_extent_take(20, 1);
    MUST(index && pm_extent_publish(index, false));
    pm_log_append(&pm_heap.shard[0], pm_entry_make(PM_ENTRY_EXTENT, pm_extents[index].page, to),
                  NULL);
}

// Extends the list by blocks in slabs that hold blocks of two classes.
static void *morphed(void **head) {
    static const unsigned from[] = {4, 20, 12}, to[] = {9, 17, 24};
    for (unsigned n = 0; n < 3; n++) {
        void *old[PM_SLAB_BLOCKS_MAX], *fresh[4];
        uint32_t slab = pm_slab_create(from[n], 0, 0) - 1;
        unsigned all = pm_slab_pop(slab, old, PM_SLAB_BLOCKS_MAX), keep = all / 16;
        for (unsigned i = 0; i < all; i++)
            if (i % 16)
                pm_slab_push(slab, old[i]);
        MUST(pm_morph(slab, 0, to[n]));
        unsigned got = pm_slab_pop(slab, fresh, 4);
        for (unsigned i = 0; i < keep + got; i++) {
            void **p = i < keep ? old[i * 16] : fresh[i - keep];
            memset(p, 0, 16);
            if (i % 3) {
                p[0] = head;
                head = p;
            }
        }
    }
    return head;
}

// Blocks of a kind, small and large, in slabs of their own, some of them of a type. Some are freed
// again.
static void *of_kind(enum pm_kind kind, void *head) {
    static const uint16_t size[] = {16, 48, 200, 1000, 5000, 20000};
    for (unsigned i = 0; i < 60; i++) {
        void **p = pm_alloc_of_kind(
            (struct pm_sort){(uint8_t)kind, (uint16_t)(i % 4 ? 0 : i * 400)}, size[i % 6], 0);
        MUST(p);
        memset(p, 0, 16);
        if (pm_kind_is_pinned(kind))
            pm_pin(p);
        if (i % 7 == 3) {
            pm_alloc_free(p, pm_find_tag(p));
        } else if (i % 3) {
            void **link = block(2);
            link[0] = head;
            link[1] = p;
            head = link;
        }
    }
    return head;
}

static void fill_kinds(void) {
    void *p = of_kind(PM_KIND_POINTER_FREE, graph(8));
    p = of_kind(PM_KIND_PINNED, p);
    set_slot(3, of_kind(PM_KIND_PINNED_POINTER_FREE, p));
}

static void fill(unsigned seed) {
    if (seed == 0)
        return;
    if (seed >= PLAIN_SEEDS) {
        fill_kinds();
        return;
    }
    void **p = graph(seed == 5 ? 12 : 24);
    if (seed == 2 || seed == 4)
        p = morphed(p);
    if (seed >= 3) { // long enough to be marked in pieces
        void **big = extent(100);
        big[50000] = p;
        for (unsigned i = 0; i < 200; i++) { // more blocks than a mark stack holds in this build
            void **wide = block(3 + i % 4);
            *wide = block(5);
            big[i * 250] = wide;
        }
        p = big;
    }
    if (seed != 3)
        set_slot(3, p);
    if (seed == 3 || seed == 4)
        root_table(p);
    if (seed == 5)
        churn();
    if (seed == 4 || seed == 5)
        half_resized(seed == 4 ? 9 : 22);
}

// What differs from run to run. The files are written again and again, each time as other ones.
static void forget_process(void) {
    pm_heap.super->state.owner_pid = 1;
    pm_heap.super->state.origin = (struct pm_origin){0};
}

static void make(unsigned seed, const char *directory) {
    struct pm_error err;
    pm_options_default();
    MUST(pm_tables_reserve(1, 1));
    MUST(pm_heap_open(directory, PM_OPEN_CREATE, false, &err) == PM_OK &&
         pm_heap_map(&err) == PM_OK);
    struct pm_superblock *super = &pm_heap.super->super; // so that seeds are the same in each run
    super->created = 0;
    memset(super->uuid, 0, sizeof super->uuid);
    super->crc = pm_crc32c(0, super, offsetof(struct pm_superblock, crc));
    pm_heap_dirty();
    MUST(pm_log_reset(&pm_heap.shard[0]));
    fill(seed);
    forget_process();
}

static void close_cleanly(unsigned seed, const char *directory) {
    (void)seed;
    struct pm_error err;
    struct pm_recovery found;
    pm_options_default();
    struct pm_recover_options how = {.write = true, .mark.markers = 1};
    MUST(pm_offline_open(directory, PM_OPEN_EXISTING, &err) == PM_OK);
    MUST(pm_recover(&how, &found, &err) == PM_OK && pm_close());
    forget_process();
}

// ---- keeping them -------------------------------------------------------------------------------

static void load(struct image *image, const char *directory, const char *name) {
    static const char zeroes[PAGE];
    char path[256], page[PAGE];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int fd = open(path, O_RDONLY);
    image->there = fd >= 0 && fstat(fd, &st) == 0;
    if (!image->there)
        return;
    image->size = st.st_size;
    image->page = calloc(PAGES_MAX, PAGE);
    for (off_t at = 0; at < st.st_size; at += PAGE) {
        ssize_t got = pread(fd, page, PAGE, at);
        memset(page + got, 0, (size_t)(PAGE - got));
        if (memcmp(page, zeroes, PAGE) == 0)
            continue;
        MUST(image->count < PAGES_MAX);
        memcpy(image->page[image->count], page, PAGE);
        image->number[image->count++] = (unsigned)(at / PAGE);
    }
    close(fd);
    unlink(path);
}

static void in_child(void (*step)(unsigned, const char *), unsigned seed, const char *directory) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        step(seed, directory);
        _exit(0);
    }
    MUST(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

void seeds_make(const char *directory) {
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        in_child(make, seed, directory);
        if (seed == 1 || seed == 3 || seed == 7) // the others stay unclean, as after a kill
            in_child(close_cleanly, seed, directory);
        for (unsigned f = 0; f < FILES; f++)
            load(&images[seed][f], directory, pm_heap_files[f].name);
        rmdir(directory);
    }
}

void seed_write(unsigned seed, const char *directory, int fd[FILES]) {
    char path[256];
    mkdir(directory, 0700);
    for (unsigned f = 0; f < FILES; f++) {
        const struct image *image = &images[seed][f];
        snprintf(path, sizeof path, "%s/%s", directory, pm_heap_files[f].name);
        fd[f] = -1;
        if (!image->there) {
            unlink(path);
            continue;
        }
        fd[f] = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        MUST(fd[f] >= 0 && ftruncate(fd[f], image->size) == 0);
        for (unsigned i = 0; i < image->count; i++) {
            off_t at = (off_t)image->number[i] * PAGE;
            size_t len = image->size - at < PAGE ? (size_t)(image->size - at) : PAGE;
            MUST(pwrite(fd[f], image->page[i], len, at) == (ssize_t)len);
        }
    }
}
