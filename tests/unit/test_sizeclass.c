// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Size classes: from size to class, division by multiplication, alignment, large sizes.
#include "base/sizeclass.h"

#include "check.h"

static void test_table(void) {
    unsigned seen = 0, below = 0;
    CHECK_EQ(pm_classes[0].size, 0);
    PM_EACH_CLASS(cls) {
        const struct pm_class *c = &pm_classes[cls];
        CHECK(cls <= PM_CLASSES);
        CHECK(c->size > pm_classes[below].size);
        CHECK_EQ(c->size % 16, 0);
        CHECK_EQ(c->blocks, PM_SLAB_SIZE / c->size);
        CHECK(c->blocks <= PM_SLAB_BLOCKS_MAX);
        CHECK(c->tcache_cap >= 4 && c->tcache_cap <= 200);
        CHECK(c->tcache_cap == 4 || c->tcache_cap * c->size <= 65536);
        // over 256 bytes, rounding up loses at most a fifth
        unsigned step = c->size - pm_classes[below].size;
        CHECK(c->size > 256 ? step * 5 <= c->size : step == 16);
        below = cls;
        seen++;
    }
    CHECK_EQ(seen, PM_CLASSES);
    CHECK_EQ(pm_classes[below].size, PM_SMALL_MAX);
}

static void test_smallest_class_that_holds(void) {
    CHECK_EQ(pm_size_to_class(0), 1);
    for (size_t size = 0; size <= PM_SMALL_MAX; size++) {
        unsigned cls = pm_size_to_class(size);
        CHECK(cls >= 1 && cls <= PM_CLASSES);
        CHECK(pm_classes[cls].size >= size);
        for (unsigned i = 1; i <= PM_CLASSES; i++)
            CHECK(pm_classes[i].size < size || pm_classes[i].size >= pm_classes[cls].size);
    }
}

static void test_reciprocal_is_exact(void) {
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++)
        for (uint32_t offset = 0; offset < PM_SLAB_SIZE; offset++)
            if (pm_block_index(cls, offset) != offset / pm_classes[cls].size) {
                CHECK_EQ(pm_block_index(cls, offset), offset / pm_classes[cls].size);
                return;
            }
}

static void test_aligned_class(void) {
    for (size_t align = 16; align <= (size_t)1 << 20; align *= 2)
        for (size_t size = 0; size <= 2 * PM_SMALL_MAX; size += size < 300 ? 1 : 97) {
            unsigned want = 0;
            if (size <= PM_SMALL_MAX)
                for (unsigned cls = 1; cls <= PM_CLASSES; cls++)
                    if (pm_classes[cls].size >= size && pm_classes[cls].size % align == 0 &&
                        (!want || pm_classes[cls].size < pm_classes[want].size))
                        want = cls;
            if (pm_aligned_class(size, align) != want) {
                CHECK_EQ(pm_aligned_class(size, align), want);
                return;
            }
        }
}

static void check_large(size_t size) {
    uint64_t bytes = pm_large_pages(size) << PM_PAGE_SHIFT;
    CHECK(bytes >= size && bytes);
    // rounding up adds at most an eighth, or less than a page
    CHECK(bytes - size < PM_PAGE_SIZE || (bytes - size) * 8 <= size);
    CHECK_EQ(pm_large_pages(bytes), bytes >> PM_PAGE_SHIFT);
    CHECK(pm_large_pages(size + 1) >= pm_large_pages(size) || !pm_large_pages(size + 1));
}

static void test_large_pages(void) {
    CHECK_EQ(pm_large_pages(0), 1);
    CHECK_EQ(pm_large_pages(PM_SMALL_MAX + 1), 5);
    for (size_t size = 1; size < (size_t)8 << 20; size += 1 + size / 50)
        check_large(size);
    for (unsigned shift = 12; shift < 37; shift++)
        for (int d = -1; d <= 1; d++)
            check_large(((size_t)1 << shift) + (size_t)d);
    size_t most = PM_ENTRY_PAGES_MAX << PM_PAGE_SHIFT;
    CHECK_EQ(pm_large_pages(most), PM_ENTRY_PAGES_MAX);
    CHECK_EQ(pm_large_pages(most - 1), PM_ENTRY_PAGES_MAX);
    CHECK_EQ(pm_large_pages(most + 1), 0);
    CHECK_EQ(pm_large_pages(SIZE_MAX), 0);
}

int main(void) {
    RUN(table);
    RUN(smallest_class_that_holds);
    RUN(reciprocal_is_exact);
    RUN(aligned_class);
    RUN(large_pages);
    return CHECK_DONE();
}
