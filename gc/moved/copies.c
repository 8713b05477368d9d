// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "copies.h"

#include <string.h>

#include "media/heap.h"
#include "media/persist.h"
#include "pages/extent_take.h"
#include "recovery/recover.h"

// Each string has its length before it and its end behind it, and begins where any constant may:
// its program may load it by sixteen bytes.
#define HEAD 16u
static uint32_t room_for(uint32_t size) { return HEAD + (size + HEAD) / HEAD * HEAD; }

// Where `text` has it, behind its length; 0: nowhere.
static uint32_t find(const struct pm_copies *c, const char *text, uint64_t size) {
    uint32_t length;
    for (uint32_t at = 0; at < c->bytes; at += room_for(length)) {
        memcpy(&length, c->text + at, sizeof length);
        if (length == size && memcmp(c->text + at + HEAD, text, size) == 0)
            return at + HEAD;
    }
    return 0;
}

bool pm_copy_add(struct pm_copies *c, const char *text, uint64_t size) {
    if (find(c, text, size))
        return true;
    if (size > PM_COPIES_BYTES || c->bytes + room_for((uint32_t)size) > PM_COPIES_BYTES)
        return false;
    uint32_t length = (uint32_t)size;
    memcpy(c->text + c->bytes, &length, sizeof length);
    memcpy(c->text + c->bytes + HEAD, text, length);
    c->text[c->bytes + HEAD + length] = '\0';
    c->bytes += room_for(length);
    c->count++;
    return true;
}

uint64_t pm_copy_of(const struct pm_copies *c, const char *text, uint64_t size) {
    uint32_t into = c->at ? find(c, text, size) : 0;
    return into ? c->at + into : 0;
}

void pm_copies_check(struct pm_copies *c) {
    if (c->at && c->opens != pm_heap.super->state.opens)
        c->at = c->count = c->bytes = 0;
}

int pm_copies_make(struct pm_copies *c, struct pm_error *err) {
    struct pm_recovery ignored;
    int status = pm_recover(&(struct pm_recover_options){.write = true}, &ignored, err);
    if (status != PM_OK)
        return status;
    uint32_t extent = pm_extent_allocate((c->bytes + PM_PAGE_SIZE - 1) / PM_PAGE_SIZE, 1);
    if (!extent)
        return pm_fail(err, PM_OPERATIONAL,
                       "%.300s: no room for %u strings that this build lacks; nothing was changed: "
                       "make room, or go on with the old build",
                       pm_heap.dir, c->count);
    char *at = pm_extent_address(&pm_extents[extent]);
    memcpy(at, c->text, c->bytes);
    pm_make_durable(at, c->bytes);
    c->at = (uint64_t)(uintptr_t)at;
    c->opens = pm_heap.super->state.opens;
    return PM_OK;
}
