// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Slabs, arenas and the allocation bitmaps of a clean close.
#include "base/crc.h"
#include "blocks/bitmaps.h"
#include "blocks/stats.h"
#include "blocks/take_back.h"
#include "heap_fixture.h"

static void start(void) {
    pm_options_default();
    fixture_new_heap();
}

static struct pm_slab_header *media(uint32_t slab) {
    return (struct pm_slab_header *)pm_heap.shard[0].slabs.map + slab;
}

// ---- slabs --------------------------------------------------------------------------------------

static void test_create_pop_push(void) {
    start();
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++) {
        uint32_t slab = pm_slab_create(cls, 1, 0) - 1;
        const struct pm_vslab *v = &pm_vslabs[slab];
        CHECK(slab != UINT32_MAX && v->size_class == cls && v->arena == 1);
        CHECK_EQ(v->free_count, pm_classes[cls].blocks);
        CHECK_EQ((uintptr_t)pm_slab_start(slab) % PM_SLAB_SIZE, 0);
        CHECK(media(slab)->size_class == cls && media(slab)->magic == PM_SLAB_MAGIC);
        CHECK_EQ(media(slab)->crc, pm_slab_header_crc(slab, media(slab)));
        static void *blocks[PM_SLAB_BLOCKS_MAX + 1];
        unsigned first = pm_slab_pop(slab, blocks, 3);
        unsigned all = first + pm_slab_pop(slab, blocks + first, PM_SLAB_BLOCKS_MAX + 1 - first);
        CHECK_EQ(all, pm_classes[cls].blocks);
        CHECK_EQ(v->free_count, 0);
        CHECK_EQ(pm_slab_pop(slab, blocks + all, 1), 0);
        for (unsigned i = 0; i < all; i++)
            CHECK_EQ((char *)blocks[i] - pm_slab_start(slab), (size_t)i * pm_classes[cls].size);
        for (unsigned i = 0; i < all; i += 2)
            pm_slab_push(slab, blocks[i]);
        CHECK_EQ(v->free_count, (all + 1) / 2);
        static void *again[PM_SLAB_BLOCKS_MAX];
        CHECK_EQ(pm_slab_pop(slab, again, PM_SLAB_BLOCKS_MAX), (all + 1) / 2);
        for (unsigned i = 0; i < (all + 1) / 2; i++)
            CHECK(again[i] == blocks[2 * i]);
        for (unsigned i = 0; i < all; i++)
            pm_slab_push(slab, blocks[i]);
        uint64_t active = pm_extent_stats().active;
        pm_slab_destroy(slab);
        CHECK_EQ(pm_extent_stats().active, active - 1);
        CHECK_EQ(v->size_class, 0);
    }
    CHECK_EQ(pm_log_stats(&pm_heap.shard[0]).live, 0);
}

static void test_adopt(void) {
    start();
    struct pm_error err = {0};
    uint32_t slab = pm_slab_create(7, 0, 0) - 1, extent = pm_vslabs[slab].extent;
    memset(&pm_vslabs[slab], 0, sizeof pm_vslabs[slab]);
    CHECK_EQ(pm_slab_adopt(slab, extent, &err), PM_OK);
    CHECK(pm_vslabs[slab].size_class == 7 && pm_vslabs[slab].free_count == 0);
    // One flipped bit anywhere is noticed.
    for (unsigned bit = 0; bit < 512; bit++) {
        ((uint8_t *)media(slab))[bit / 8] ^= (uint8_t)(1 << bit % 8);
        CHECK_EQ(pm_slab_adopt(slab, extent, &err), PM_DAMAGE);
        ((uint8_t *)media(slab))[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    CHECK_HAS(err.text, "slabs.0");
    struct pm_slab_header good = *media(slab), strange[] = {good, good, good, good};
    strange[0].size_class = 0;
    strange[1].size_class = PM_CLASSES + 1;
    strange[2].current = 0;
    strange[3].data_offset = 64;
    for (unsigned i = 0; i < 4; i++) {
        strange[i].crc = pm_slab_header_crc(slab, &strange[i]);
        *media(slab) = strange[i];
        CHECK_EQ(pm_slab_adopt(slab, extent, &err), PM_DAMAGE);
        CHECK_HAS(err.text, i == 2 ? "damaged" : "cannot have");
    }
    *media(slab) = good;
    // the checksum of the neighbour's header
    media(slab)->crc = pm_slab_header_crc(slab + 1, &good);
    CHECK_EQ(pm_slab_adopt(slab, extent, &err), PM_DAMAGE);
    *media(slab) = good;
    pm_heap.shard[0].slabs.size = (slab + 1) * sizeof good - 1;
    CHECK_EQ(pm_slab_adopt(slab, extent, &err), PM_DAMAGE);
    CHECK_HAS(err.text, "truncated");
}

// ---- arenas -------------------------------------------------------------------------------------

static void test_join_the_least_used(void) {
    start();
    struct pm_arena *a = pm_arena_join(0), *b = pm_arena_join(0), *c = pm_arena_join(0);
    CHECK(a != b && (c == a || c == b));
    pm_arena_leave(b);
    CHECK(c != a || pm_arena_join(0) == b);
}

static void test_fill_and_flush(void) {
    start();
    enum { MANY = 3000 };
    static void *blocks[MANY];
    unsigned cls = 10, got = 0, per_slab = pm_classes[cls].blocks;
    while (got < MANY) {
        unsigned n = pm_arena_fill(&pm_arenas[got / 40 % 2], cls, blocks + got,
                                   MANY - got < 40 ? MANY - got : 40);
        CHECK(n > 0);
        for (unsigned i = got + 1; i < got + n; i++)
            CHECK((char *)blocks[i] > (char *)blocks[i - 1] ||
                  pm_slab_of(blocks[i]) != pm_slab_of(blocks[i - 1]));
        got += n;
    }
    for (unsigned i = 0; i < MANY; i++)
        memset(blocks[i], (int)(i % 251), pm_classes[cls].size);
    for (unsigned i = 0; i < MANY; i++)
        CHECK(((uint8_t *)blocks[i])[0] == i % 251 &&
              ((uint8_t *)blocks[i])[pm_classes[cls].size - 1] == i % 251);
    uint32_t slabs = pm_arenas[0].bin[cls].slabs + pm_arenas[1].bin[cls].slabs;
    CHECK(slabs >= MANY / per_slab && slabs <= MANY / per_slab + 2);
    CHECK_EQ(pm_extent_stats().slab_pages, slabs * 16);
    for (unsigned i = 0; i < MANY; i++) { // in any order, and blocks of both arenas in one call
        unsigned j = (unsigned)rnd(MANY);
        void *t = blocks[i];
        blocks[i] = blocks[j], blocks[j] = t;
    }
    for (unsigned i = 0; i < MANY; i += 50)
        pm_arena_return(cls, blocks + i, 50);
    for (unsigned a = 0; a < 2; a++) // the next batch may want them
        CHECK_EQ(pm_arenas[a].bin[cls].empty, pm_arenas[a].bin[cls].slabs);
    CHECK_EQ(pm_extent_stats().slab_pages, slabs * 16);
    CHECK_EQ(pm_arenas_drop_empty(), slabs);
    CHECK_EQ(pm_arenas[0].bin[cls].slabs + pm_arenas[1].bin[cls].slabs, 0);
    CHECK_EQ(pm_extent_stats().slab_pages, 0);
    CHECK_EQ(pm_arenas_drop_empty(), 0);
}

// ---- empty slabs --------------------------------------------------------------------------------

#define DECAY_MS 3600000u

// Leaves `slabs` empty slabs of a class in arena 0.
static struct pm_bin *make_empty(unsigned cls, unsigned slabs) {
    static void *blocks[16 * PM_SLAB_BLOCKS_MAX];
    unsigned count = slabs * pm_classes[cls].blocks, got = 0;
    while (got < count)
        got += pm_arena_fill(&pm_arenas[0], cls, blocks + got, count - got);
    pm_arena_return(cls, blocks, count);
    struct pm_bin *bin = &pm_arenas[0].bin[cls];
    MUST(bin->empty == slabs);
    return bin;
}

static void look_at_all(void) {
    for (unsigned i = 0; i < pm_arena_count * PM_CLASSES; i++)
        pm_arenas_age();
}

static void test_empty_slabs_stay_an_interval(void) {
    start();
    pm_options.decay_ms.number = DECAY_MS;
    struct pm_bin *bin = make_empty(24, 8);
    look_at_all();
    CHECK_EQ(bin->empty, 8);
    // Of 8, 3 are needed once in the interval: 5 go at its end.
    void *blocks[3 * PM_SLAB_BLOCKS_MAX];
    unsigned count = 3 * pm_classes[24].blocks, got = 0;
    bin->idle = bin->empty;
    while (got < count)
        got += pm_arena_fill(&pm_arenas[0], 24, blocks + got, count - got);
    CHECK_EQ(bin->empty, 5);
    pm_arena_return(24, blocks, count);
    CHECK_EQ(bin->empty, 8);
    bin->looked_ms -= DECAY_MS;
    look_at_all();
    CHECK_EQ(bin->empty, 3);
    CHECK_EQ(bin->slabs, 3);
    bin->looked_ms -= DECAY_MS; // nothing was needed since: all but one go
    look_at_all();
    CHECK_EQ(bin->empty, 1);
    look_at_all();
    CHECK_EQ(bin->empty, 1);
    CHECK_EQ(pm_extent_stats().slab_pages, 16);
}

static void test_empty_slabs_go_at_once_without_decay(void) {
    start();
    pm_options.decay_ms.number = 0;
    static void *blocks[8 * PM_SLAB_BLOCKS_MAX];
    unsigned count = 8 * pm_classes[24].blocks, got = 0;
    while (got < count)
        got += pm_arena_fill(&pm_arenas[0], 24, blocks + got, count - got);
    pm_arena_return(24, blocks, count);
    CHECK_EQ(pm_arenas[0].bin[24].empty, 1);
    CHECK_EQ(pm_extent_stats().slab_pages, 16);
}

static void check_serving_others(const char *morph) {
    struct pm_error err;
    pm_options_default();
    MUST(pm_option_set("PMALLOC_MORPH", morph, &err) == PM_OK);
    fixture_new_heap();
    pm_options.decay_ms.number = DECAY_MS;
    struct pm_bin *bin = make_empty(24, 4), *other = &pm_arenas[0].bin[10];
    uint64_t pages = pm_extent_stats().slab_pages;
    void *blocks[PM_SLAB_BLOCKS_MAX];
    for (unsigned i = 0; i < 3; i++)
        for (unsigned got = 0; got < pm_classes[10].blocks;)
            got += pm_arena_fill(&pm_arenas[0], 10, blocks, pm_classes[10].blocks - got);
    CHECK_EQ(other->slabs, 3);
    CHECK_EQ(bin->slabs, 1); // its last one stays
    CHECK_EQ(pm_extent_stats().slab_pages, pages);
    struct pm_stats stats;
    pm_stats_get(&stats);
    CHECK_EQ(stats.morphs, strcmp(morph, "0") == 0 ? 0 : 3);
}

static void test_empty_slabs_serve_other_classes(void) { check_serving_others("20"); }

static void test_empty_slabs_serve_without_morphing(void) { check_serving_others("0"); }

static void test_empty_slabs_are_found_when_memory_is_out(void) {
    struct pm_error err;
    pm_options_default();
    MUST(pm_option_set("PMALLOC_LIMIT", "4M", &err) == PM_OK);
    MUST(pm_option_set("PMALLOC_MORPH", "0", &err) == PM_OK);
    fixture_new_heap();
    static void *blocks[64 * 4];
    unsigned got = 0, n;
    while ((n = pm_arena_fill(&pm_arenas[0], 40, blocks + got, 4)) > 0)
        got += n;
    pm_arena_return(40, blocks, got);
    CHECK(pm_arenas[0].bin[40].empty > 8);
    unsigned other = 0;
    CHECK_EQ(pm_arena_fill(&pm_arenas[1], 39, blocks, 4), 0); // none morphs
    CHECK(pm_take_back());
    while (other < 64 * 3 && (n = pm_arena_fill(&pm_arenas[1], 39, blocks + other, 4)) > 0)
        other += n;
    CHECK_EQ(other, 64 * 3);
}

static void test_no_memory(void) {
    struct pm_error err;
    unsigned largest = pm_size_to_class(PM_SMALL_MAX);
    pm_options_default();
    MUST(pm_option_set("PMALLOC_LIMIT", "4M", &err) == PM_OK);
    fixture_new_heap();
    static void *blocks[64 * 4];
    unsigned got = 0, n;
    while ((n = pm_arena_fill(&pm_arenas[0], largest, blocks + got, 3)) > 0)
        got += n;
    CHECK_EQ(got, 64 * 4);
    pm_arena_return(largest, blocks + 7, 1);
    CHECK_EQ(pm_arena_fill(&pm_arenas[0], largest, blocks + 7, 3), 1);
    CHECK_EQ(pm_arena_fill(&pm_arenas[1], 1, blocks + 8, 1), 0);
}

// The tags of a recovered slab are written when they are first needed.
static void test_adopted_slabs(void) {
    start();
    uint32_t slab = pm_slab_create(4, 0, 0) - 1;
    void *blocks[10];
    pm_slab_pop(slab, blocks, 10);
    pm_arena_adopt(slab);
    const struct pm_vslab *v = &pm_vslabs[slab];
    CHECK(v->untagged && v->arena == 2); // of the recovered slabs
    CHECK_EQ(*pm_tag_at(blocks[3]), PM_TAG_NONE);
    CHECK(pm_arena_write_tags(slab));
    CHECK(!pm_arena_write_tags(slab));
    for (unsigned i = 0; i < 10; i++)
        CHECK_EQ(*pm_tag_at(blocks[i]), 4);
    CHECK_EQ(*pm_tag_at((char *)blocks[9] + 64), PM_TAG_NONE);
    void *more;
    CHECK_EQ(pm_arena_fill(&pm_arenas[1], 4, &more, 1), 1);
    CHECK_EQ(v->arena, 1); // who asks first has it
    CHECK(more == (char *)blocks[9] + 64);
    CHECK(!pm_arena_write_tags(slab + 1));
}

// Blocks that a thread cache takes from a recovered slab do not count as live before the program
// has them.
static void test_adopted_slabs_fill_first(void) {
    start();
    uint32_t slab = pm_slab_create(4, 0, 0) - 1;
    void *blocks[10], *fresh[5];
    pm_slab_pop(slab, blocks, 10);
    pm_arena_adopt(slab);
    CHECK_EQ(pm_arena_fill(&pm_arenas[0], 4, fresh, 5), 5);
    CHECK(!pm_arena_write_tags(slab));
    for (unsigned i = 0; i < 10; i++)
        CHECK_EQ(*pm_tag_at(blocks[i]), 4);
    for (unsigned i = 0; i < 5; i++)
        CHECK_EQ(*pm_tag_at(fresh[i]), PM_TAG_NONE);
}

// ---- bitmaps ------------------------------------------------------------------------------------

static unsigned records;
static uint32_t last_slab;
static uint64_t allocated;

static void count(const struct pm_population *p, const uint64_t *words, void *arg) {
    unsigned cls = p->cls;
    uint32_t slab = p->slab;
    const uint64_t *free = pm_free_bits(&pm_vslabs[slab]);
    CHECK(!p->old && p->bits == free);
    CHECK(arg == &records && (records == 0 || slab > last_slab));
    CHECK_EQ(cls, pm_vslabs[slab].size_class);
    for (unsigned i = 0; i < pm_classes[cls].blocks; i++) {
        bool is = words[i / 64] >> i % 64 & 1, is_free = free[i / 64] >> i % 64 & 1;
        CHECK(is != is_free);
        allocated += is;
    }
    if (pm_classes[cls].blocks % 64)
        CHECK_EQ(words[pm_classes[cls].blocks / 64] >> pm_classes[cls].blocks % 64, 0);
    last_slab = slab;
    records++;
}

static bool read_bitmaps(void) {
    records = 0;
    allocated = 0;
    return pm_bitmaps_read(count, &records);
}

static uint64_t some_slabs(void) {
    uint64_t used = 0;
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++) {
        void *blocks[100];
        unsigned want = 1 + (unsigned)rnd(99);
        for (unsigned got = 0; got < want;)
            got += pm_arena_fill(&pm_arenas[0], cls, blocks + got, want - got);
        used += want;
    }
    return used;
}

static void ignore(const struct pm_population *p, const uint64_t *words, void *arg) {
    (void)p, (void)words, (void)arg;
}

static void test_bitmaps(void) {
    start();
    CHECK(!read_bitmaps()); // no close has written any
    CHECK(pm_bitmaps_write());
    CHECK(read_bitmaps());
    CHECK_EQ(records, 0);
    uint64_t used = some_slabs();
    CHECK(pm_bitmaps_write());
    CHECK(read_bitmaps());
    CHECK_EQ(allocated, used);
    CHECK_EQ(records, pm_extent_stats().slab_pages / 16);
}

static void test_damaged_bitmaps(void) {
    start();
    some_slabs();
    CHECK(pm_bitmaps_write());
    int fd = openat(pm_heap.dir_fd, "bitmaps.0", O_RDWR);
    struct stat st;
    MUST(fd >= 0 && fstat(fd, &st) == 0);
    CHECK_EQ(st.st_mode & 07777, 0600);
    for (off_t at = 0; at < st.st_size; at += at < 40 ? 1 : 61) {
        uint8_t byte, other;
        MUST(pread(fd, &byte, 1, at) == 1);
        other = byte ^ 0x10;
        MUST(pwrite(fd, &other, 1, at) == 1);
        if (at < 40 || at >= 64) { // no check covers the bytes between
            CHECK(!read_bitmaps());
            CHECK_EQ(records, 0);
        }
        MUST(pwrite(fd, &byte, 1, at) == 1);
    }
    CHECK(read_bitmaps());
    static const off_t lengths[] = {0, 1, 63, 64, 100};
    for (unsigned i = 0; i < 5; i++) {
        MUST(ftruncate(fd, lengths[i]) == 0);
        CHECK(!read_bitmaps());
        CHECK_EQ(records, 0);
    }
    MUST(ftruncate(fd, st.st_size) == 0); // the bytes now read as zeroes
    CHECK(!read_bitmaps());
    CHECK(pm_bitmaps_write());
    pm_heap.super->state.bitmaps_tag++; // the tag of another close
    CHECK(!read_bitmaps());
    pm_heap.super->state.bitmaps_tag--;
    CHECK(read_bitmaps());
    MUST(unlinkat(pm_heap.dir_fd, "bitmaps.0", 0) == 0);
    MUST(symlinkat("roots", pm_heap.dir_fd, "bitmaps.0") == 0);
    CHECK(!read_bitmaps());
    uint64_t tag = pm_heap.super->state.bitmaps_tag++;
    CHECK(pm_bitmaps_write()); // without them
    CHECK_EQ(pm_heap.super->state.bitmaps_tag, tag + 1);
    CHECK(!read_bitmaps());
}

// Bitmaps with right checksums and wrong content.
static void test_forged_bitmaps(void) {
    static char file[65536];
    start();
    MUST(pm_slab_create(3, 0, 0) && pm_slab_create(3, 0, 0)); // 48 bytes: 1365 blocks in 22 words
    CHECK(pm_bitmaps_write());
    int fd = openat(pm_heap.dir_fd, "bitmaps.0", O_RDWR);
    ssize_t size = pread(fd, file, sizeof file, 0);
    struct pm_bitmaps_header *h = (void *)file;
    struct pm_bitmap_record *first = (void *)(h + 1);
    uint64_t *words = (void *)(first + 1);
    struct pm_bitmap_record *second = (void *)(words + 22);
    MUST(size > 0 && h->slabs == 2 && second->size_class == 3);
    // By round: the slabs in right order, the same slab twice, the slabs in falling order.
    const uint32_t numbers[] = {second->slab, first->slab, second->slab};
    for (unsigned round = 0; round < 4; round++) {
        second->slab = round < 3 ? numbers[round] : numbers[0];
        first->slab = round == 2 ? numbers[0] + 1 : numbers[1];
        words[21] = round == 3 ? 1ull << 1365 % 64 : 0; // after the slab's last block
        h->crc = pm_crc32c(0, first, h->bytes);
        h->header_crc = pm_crc32c(0, h, offsetof(struct pm_bitmaps_header, header_crc));
        MUST(pwrite(fd, file, (size_t)size, 0) == size);
        bool good = pm_bitmaps_read(ignore, NULL);
        CHECK_EQ(good, round == 0);
    }
}

int main(void) {
    RUN_CHILD(create_pop_push);
    RUN_CHILD(adopt);
    RUN_CHILD(join_the_least_used);
    RUN_CHILD(fill_and_flush);
    RUN_CHILD(empty_slabs_stay_an_interval);
    RUN_CHILD(empty_slabs_go_at_once_without_decay);
    RUN_CHILD(empty_slabs_serve_other_classes);
    RUN_CHILD(empty_slabs_serve_without_morphing);
    RUN_CHILD(empty_slabs_are_found_when_memory_is_out);
    RUN_CHILD(no_memory);
    RUN_CHILD(adopted_slabs);
    RUN_CHILD(adopted_slabs_fill_first);
    RUN_CHILD(bitmaps);
    RUN_CHILD(damaged_bitmaps);
    RUN_CHILD(forged_bitmaps);
    return CHECK_DONE();
}
