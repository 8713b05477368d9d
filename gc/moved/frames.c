// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "frames.h"

#include <string.h>

#include "base/os.h"

// .eh_frame_hdr has a table of them, which the linker has sorted: pairs of the start and the place
// of its description, each as the distance from the section's start in 32 bits.
#define IS_SORTED_TABLE 0x3b // DW_EH_PE_datarel | DW_EH_PE_sdata4
#define COUNT_UDATA4 0x03
#define POINTER_BYTES 4 // of the encodings that linkers use here, all but DW_EH_PE_absptr

struct header {
    uint8_t version, pointer_encoding, count_encoding, table_encoding;
};

static bool is_header(const struct pm_elf *f, const ElfW(Shdr) * s) {
    return strcmp(pm_elf_section_name(f, s), ".eh_frame_hdr") == 0 && s->sh_type == SHT_PROGBITS;
}

static uint32_t load32(const unsigned char *at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static const unsigned char *find_table(const struct pm_elf *f, ElfW(Shdr) * s, uint32_t *count) {
    struct header head;
    size_t before = sizeof head + POINTER_BYTES + sizeof *count;
    for (size_t i = 0; pm_elf_shdr(f, i, s); i++) {
        const unsigned char *bytes =
            is_header(f, s) ? pm_elf_bytes(f, s->sh_offset, s->sh_size) : NULL;
        if (!bytes || s->sh_size < before)
            continue;
        memcpy(&head, bytes, sizeof head);
        *count = load32(bytes + sizeof head + POINTER_BYTES);
        bool known = head.version == 1 && (head.pointer_encoding & 0x0f) == 0x0b &&
                     head.count_encoding == COUNT_UDATA4 && head.table_encoding == IS_SORTED_TABLE;
        return known && *count <= (s->sh_size - before) / 8 ? bytes + before : NULL;
    }
    return NULL;
}

bool pm_frames_starts(const struct pm_elf *f, uint64_t **start, uint32_t *count) {
    ElfW(Shdr) s;
    const unsigned char *table = find_table(f, &s, count);
    *start = NULL;
    if (!table || !*count) {
        *count = 0;
        return true;
    }
    *start = pm_os_reserve(*count * sizeof **start);
    if (!*start)
        return false;
    for (uint32_t i = 0; i < *count; i++)
        (*start)[i] = s.sh_addr + (uint64_t)(int64_t)(int32_t)load32(table + (size_t)i * 8);
    return true;
}
