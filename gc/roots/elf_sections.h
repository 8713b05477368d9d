// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Which sections of an ELF file have what a program's data lead to.
#ifndef PM_ELF_SECTIONS_H
#define PM_ELF_SECTIONS_H

#include <stdbool.h>

#include "elf_file.h"

// Whether it is in memory, and holds code, variables or constants: not what the linker and the
// loader have for themselves.
bool pm_section_is_led_to(const struct pm_elf *f, const ElfW(Shdr) * s);
// Of these: whether it has constants, whose bytes are in the file.
static inline bool pm_section_is_constant(const ElfW(Shdr) * s) {
    return s->sh_type == SHT_PROGBITS && !(s->sh_flags & (SHF_EXECINSTR | SHF_WRITE | SHF_TLS));
}

#endif
