// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Recipes: files that say which variables of a program are roots, and what else it needs to go on
// with its data. docs/recipes.md describes the format.
#ifndef PM_TOOLS_RECIPE_H
#define PM_TOOLS_RECIPE_H

#include <limits.h>
#include <stddef.h>

#include "base/message.h"

enum { RECIPE_LINES = 32, RECIPE_ROOTS = 4096, RECIPE_TEXT = 512 };

struct recipe {
    char path[PATH_MAX];
    char program[NAME_MAX + 1];
    char build[RECIPE_TEXT]; // which build, as a person calls it
    char roots[RECIPE_ROOTS];
    char library[PATH_MAX];      // to be loaded at the start; "" or a path
    char *setting[RECIPE_LINES]; // NAME=VALUE
    size_t settings;
    char *argument[RECIPE_LINES]; // before those of the user
    size_t arguments;
    char keeps[RECIPE_TEXT], loses[RECIPE_TEXT];
};

// Where recipes are looked for, in this order. NULL: there is no such directory.
struct recipe_places {
    const char *dir[3];
};

// Finds the recipe for the program of the file `path`, which is called `name`. PM_OPERATIONAL:
// there is none for that program or this build of it, or it cannot be read.
int recipe_find(const struct recipe_places *places, const char *name, const char *path,
                struct recipe *out, struct pm_error *err);
// Prints a line for each recipe that there is.
int recipe_list(const struct recipe_places *places, struct pm_error *err);

#endif
