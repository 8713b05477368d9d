// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What a program's file tells of its manners, before it runs: by the functions that it calls
// itself, and by the libraries that it names. What these call in turn is not looked at.
#ifndef PM_TOOLS_MANNERS_H
#define PM_TOOLS_MANNERS_H

#include <stdbool.h>

#include "base/message.h"

struct manners {
    // The first function of each kind that it calls; NULL: none.
    const char *modules, *forks, *daemon, *rights, *answers;
    char malloc[64];     // a library with a malloc, which gives way; "": none
    const char *runtime; // whose objects lie outside of malloc, and what helps; NULL: none is known
    const char *helps;   // NULL: nothing
    bool fixed;          // not position-independent
};

// `name`: what the program is called.
int manners_find(const char *path, const char *name, struct manners *out, struct pm_error *err);

#endif
