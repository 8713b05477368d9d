// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "elf_sections.h"

#include <string.h>

static bool begins_with(const char *name, const char *start) {
    return strncmp(name, start, strlen(start)) == 0;
}

// A packed object says of most of these that they have no bytes, and no type of their own.
static bool is_of_linker(const char *name) {
    static const char *const own[] = {".interp",   ".dynsym",           ".dynstr",  ".dynamic",
                                      ".eh_frame", ".gcc_except_table", ".plt.got", ".hash"};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (strcmp(name, own[i]) == 0)
            return true;
    return begins_with(name, ".rel.") || begins_with(name, ".rela.") ||
           begins_with(name, ".relr.") || begins_with(name, ".gnu.") ||
           begins_with(name, ".note") || begins_with(name, ".got") ||
           begins_with(name, ".eh_frame_hdr");
}

bool pm_section_is_led_to(const struct pm_elf *f, const ElfW(Shdr) * s) {
    bool data = s->sh_type == SHT_PROGBITS || s->sh_type == SHT_NOBITS ||
                s->sh_type == SHT_INIT_ARRAY || s->sh_type == SHT_FINI_ARRAY;
    return data && s->sh_flags & SHF_ALLOC && !(s->sh_flags & SHF_TLS) &&
           !is_of_linker(pm_elf_section_name(f, s));
}
