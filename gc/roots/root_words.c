// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "root_words.h"

#include <stddef.h>
#include <string.h>

#include "base/crc.h"
#include "media/backing/file.h"
#include "media/heap.h"
#include "media/log/lanes.h"
#include "media/persist.h"
#include "root_media.h"
#include "root_table.h"

static uint32_t name_of(const struct pm_root *r) {
    const size_t first = offsetof(struct pm_root, object);
    uint32_t crc = pm_crc32c(0, r, offsetof(struct pm_root, length));
    return pm_crc32c(crc, r->object, offsetof(struct pm_root, reserved) - first);
}

static const struct pm_root_table *table(void) {
    struct pm_error ignored;
    return pm_heap_is_held() ? pm_roots_table(&ignored) : NULL;
}

static const struct pm_root *find(struct pm_root_word word) {
    const struct pm_root_table *t = table();
    for (uint32_t i = 0; t && i < t->count; i++) {
        const struct pm_root *r = &t->root[i];
        if (r->kind != PM_ROOT_OBJECT && word.at + sizeof(uint64_t) <= r->length &&
            name_of(r) == word.root)
            return r;
    }
    return NULL;
}

bool pm_root_word_of(const void *p, struct pm_root_word *word) {
    const struct pm_root_table *t = pm_roots_captured(p) ? table() : NULL;
    for (uint32_t i = 0; t && i < t->count; i++) {
        const struct pm_root *r = &t->root[i];
        uint64_t at = (uintptr_t)p - r->address;
        if (r->kind == PM_ROOT_OBJECT || at >= r->length || r->length - at < sizeof(uint64_t))
            continue;
        *word = (struct pm_root_word){name_of(r), at};
        return true;
    }
    return false;
}

void *pm_root_word_address(struct pm_root_word word) {
    const struct pm_root *r = find(word);
    void *p = r ? (void *)(uintptr_t)(r->address + word.at) : NULL;
    return p && pm_roots_captured(p) ? p : NULL;
}

bool pm_root_word_exists(struct pm_root_word word) { return find(word) != NULL; }

bool pm_root_word_load(struct pm_root_word word, uint64_t *value) {
    const struct pm_root_table *t = table();
    const struct pm_root *r = find(word);
    const void *here = pm_root_word_address(word);
    const char *images = here ? NULL : pm_roots_images(t);
    if (!r || !(here || images))
        return false;
    memcpy(value, here ? here : images + (r->image - t->area_offset) + word.at, sizeof *value);
    if (images)
        pm_file_unmap(&pm_heap.roots, images, t->area_length);
    return true;
}

bool pm_root_word_store(struct pm_root_word word, uint64_t value) {
    const struct pm_root *r = find(word);
    uint64_t *here = pm_root_word_address(word);
    if (!r || !here)
        return r && pm_image_store(r->image + word.at, value);
    __atomic_store_n(here, value, __ATOMIC_RELEASE);
    pm_flush(here, sizeof *here);
    return true;
}
