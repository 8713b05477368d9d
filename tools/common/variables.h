// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Where a program and its libraries have their variables, and what a word there is called as a
// root.
#ifndef PM_TOOLS_VARIABLES_H
#define PM_TOOLS_VARIABLES_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "member_name.h"
#include "program_types.h"
#include "root_names.h"
#include "roots/elf_file.h"

enum { VARIABLES_RANGES = 8 };

struct module {
    char path[PATH_MAX];
    char object[PM_ROOT_OBJECT_LEN]; // as a root names it; "": the main program
    uint64_t base;                   // what loading added to its addresses
    struct pm_elf elf;
    uint64_t environment; // the variable `environ` in the process. 0: it has none
    unsigned ranges;
    struct {
        uint64_t from, to; // writable, in the process
    } range[VARIABLES_RANGES];
    struct root_names names;     // once they were asked for
    struct program_types *types; // NULL: there are none
    bool named;
};

// The program and its libraries, as a process has mapped them, without PMAlloc. `*modules` is the
// caller's. Returns how many; 0: `err` says why. What cannot be read is left out.
unsigned modules_of_process(pid_t pid, struct module **modules, struct pm_error *err);
// The program alone that a heap has on record. False: it cannot be read, or is another build.
bool module_of_program(struct module *m, const struct pm_program *on_record);
// The bytes from an address of its variables on, as PMALLOC_ROOTS takes them.
void module_range_text(struct module *m, uint64_t address, uint64_t length, char *out, size_t len);

// What C calls them: "server.db"; `out` has MEMBER_NAME bytes. False: its types are not known, or
// no members begin or end there.
bool module_member_text(struct module *m, uint64_t address, uint64_t length, char *out);

#endif
