// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "close.h"

#include "blocks/bitmaps.h"
#include "media/log/log.h"
#include "media/open/close_record.h"
#include "media/open/heap_dir.h"
#include "media/open/heap_open.h"
#include "roots/root_table.h"

static bool vouch(bool empty, const uint32_t *images_crc) {
    pm_close_record_write(empty, images_crc);
    return pm_heap_clean();
}

bool pm_close(void) {
    struct pm_error ignored;
    uint32_t images_crc;
    return pm_bitmaps_write() && pm_roots_images_crc(&images_crc, &ignored) &&
           vouch(false, &images_crc);
}

bool pm_close_rootless(void) {
    bool good = true;
    for (unsigned i = 0; i < pm_heap.shards && good; i++)
        good = pm_log_reset(&pm_heap.shard[i]);
    return good && pm_heap_discard_data() && vouch(true, NULL);
}
