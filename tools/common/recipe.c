// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "recipe.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "roots/elf_find.h"
#include "roots/spec.h"

#define SUFFIX ".recipe"
#define PLACES (sizeof((struct recipe_places *)0)->dir / sizeof(char *))

struct reading {
    struct recipe *r;
    const struct pm_elf *elf; // NULL: the recipe is only listed
    const char *file;         // of the program
    char id[2 * PM_BUILD_ID_MAX + 1];
    char builds[RECIPE_TEXT]; // all that it knows
    unsigned line;
    bool mine;     // what follows is for the build of `elf`
    bool any;      // and for any other that has the variables
    bool found;    // and some was
    bool by_names; // what was found is what any build may have
};

// ---- lines --------------------------------------------------------------------------------------

static int wrong(const struct reading *s, const char *why, struct pm_error *err) {
    return pm_fail(err, PM_OPERATIONAL, "%.300s:%u: %s", s->r->path, s->line, why);
}

static void append(char *to, size_t size, const char *between, const char *text) {
    size_t used = strlen(to);
    snprintf(to + used, size - used, "%s%s", used ? between : "", text);
}

static int add_line(const struct reading *s, char **list, size_t *count, const char *text,
                    struct pm_error *err) {
    if (*count == RECIPE_LINES)
        return wrong(s, "too many lines of this kind", err);
    list[*count] = strdup(text);
    return list[(*count)++] ? PM_OK : wrong(s, "no memory", err);
}

static void forget_roots(struct reading *s) {
    s->r->roots[0] = '\0';
    s->found = false;
}

// A number by which nobody takes another build for this one. Returns its length, 0: it is none.
static size_t take_id(const char *text, const char **rest) {
    size_t digits = strspn(text, "0123456789abcdef");
    *rest = text + digits + strspn(text + digits, " \t");
    bool whole = isspace((unsigned char)text[digits]) && **rest;
    return digits < 16 || digits % 2 || !whole ? 0 : digits;
}

static int take_build(struct reading *s, const char *text, struct pm_error *err) {
    const char *name;
    size_t digits = take_id(text, &name);
    if (!digits)
        return wrong(s, "write: build ID NAME, with the build id as `file` prints it", err);
    append(s->builds, sizeof s->builds, ", ", name);
    s->any = false;
    s->mine = strlen(s->id) == digits && strncmp(s->id, text, digits) == 0;
    if (s->mine && s->by_names)
        forget_roots(s); // what is for this build alone is better
    if (s->mine && !s->found)
        snprintf(s->r->build, sizeof s->r->build, "%s", name);
    return PM_OK;
}

static void write_id(const struct pm_elf *elf, char *to) {
    uint8_t id[PM_BUILD_ID_MAX];
    pm_elf_hex(to, id, pm_elf_build_id(elf, id));
}

// One that the program would load in main: its variables are roots only if it is there before.
static int take_library(struct reading *s, const char *text, struct pm_error *err) {
    struct pm_elf elf;
    const char *path;
    char id[2 * PM_BUILD_ID_MAX + 1], *to = s->r->library;
    size_t digits = take_id(text, &path);
    if (!digits)
        return wrong(s, "write: library ID PATH, with 16 digits or more of its build id", err);
    if (!s->mine || !s->elf)
        return PM_OK;
    const char *slash = *path == '/' ? NULL : strrchr(s->file, '/');
    if (snprintf(to, sizeof s->r->library, "%.*s%s", slash ? (int)(slash + 1 - s->file) : 0,
                 s->file, path) >= (int)sizeof s->r->library)
        return wrong(s, "too long a path", err);
    if (pm_elf_open(&elf, to, err) != PM_OK)
        return pm_fail_in(err, "%.300s:%u", s->r->path, s->line);
    write_id(&elf, id);
    pm_elf_close(&elf);
    if (strncmp(id, text, digits) == 0)
        return PM_OK;
    return pm_fail(err, PM_OPERATIONAL, "%.300s is a build (%.40s) that %.300s does not know", to,
                   *id ? id : "without a build id", s->r->path);
}

// For any build that has these variables under these names.
static void take_any(struct reading *s, const char *name) {
    s->any = true;
    s->mine = !s->found;
    if (s->mine)
        snprintf(s->r->build, sizeof s->r->build, "%s", *name ? name : "any build");
}

// Those of other objects are looked up at the start.
static bool has_variable(const struct reading *s, const struct pm_spec *spec) {
    struct pm_elf_symbol symbol;
    struct pm_error ignored;
    return !spec->name[0] || spec->object[0] || !s->elf ||
           (pm_elf_find(s->elf, spec->name, PM_ELF_IN_SYMTAB | PM_ELF_IN_DYNSYM, &symbol,
                        &ignored) == PM_OK &&
            symbol.verdict == PM_ELF_FOUND);
}

// Of another build they are only read, so that a mistake is found wherever the file is used.
static int take_roots(struct reading *s, const char *text, struct pm_error *err) {
    static struct pm_spec spec[PM_ROOT_MAX];
    struct pm_error why;
    size_t count;
    if (pm_spec_parse(text, spec, PM_ROOT_MAX, &count, &why) != PM_OK)
        return wrong(s, why.text, err);
    for (size_t i = 0; i < count && s->any; i++)
        if (spec[i].kind == PM_ROOT_RANGE)
            return wrong(s, "for any build only whole variables can be named", err);
    for (size_t i = 0; i < count && s->mine; i++)
        if (!has_variable(s, &spec[i])) {
            s->mine = false;
            forget_roots(s); // of an earlier line: half of them are worse than none
        }
    if (!s->mine)
        return PM_OK;
    s->found = true;
    s->by_names = s->any;
    append(s->r->roots, sizeof s->r->roots, ",", text);
    return strlen(s->r->roots) + 1 == sizeof s->r->roots ? wrong(s, "too many roots", err) : PM_OK;
}

static int take_line(struct reading *s, const char *key, const char *value, struct pm_error *err) {
    struct recipe *r = s->r;
    if (strcmp(key, "program") == 0)
        snprintf(r->program, sizeof r->program, "%s", value);
    else if (strcmp(key, "keeps") == 0)
        append(r->keeps, sizeof r->keeps, " ", value);
    else if (strcmp(key, "loses") == 0)
        append(r->loses, sizeof r->loses, " ", value);
    else if (strcmp(key, "build") == 0)
        return take_build(s, value, err);
    else if (strcmp(key, "library") == 0)
        return take_library(s, value, err);
    else if (strcmp(key, "any") == 0)
        take_any(s, value);
    else if (strcmp(key, "roots") == 0)
        return take_roots(s, value, err);
    else if (strcmp(key, "set") == 0)
        return strchr(value, '=') ? add_line(s, r->setting, &r->settings, value, err)
                                  : wrong(s, "write: set NAME=VALUE", err);
    else if (strcmp(key, "argument") == 0)
        return add_line(s, r->argument, &r->arguments, value, err);
    else if (strcmp(key, "tried") != 0)
        return wrong(s, "unknown word at the beginning of a line; docs/recipes.md lists them", err);
    return PM_OK;
}

static int read_lines(struct reading *s, FILE *f, struct pm_error *err) {
    char line[RECIPE_ROOTS];
    int status = PM_OK;
    while (status == PM_OK && fgets(line, sizeof line, f)) {
        s->line++;
        size_t length = strcspn(line, "\r\n");
        if (line[length] == '\0' && length + 1 == sizeof line)
            return wrong(s, "too long a line", err);
        while (length > 0 && isspace((unsigned char)line[length - 1]))
            length--;
        line[length] = '\0';
        char *key = line + strspn(line, " \t");
        if (!*key || *key == '#')
            continue;
        char *end = key + strcspn(key, " \t"), *value = end + strspn(end, " \t");
        *end = '\0';
        status = take_line(s, key, value, err);
    }
    if (status == PM_OK && ferror(f))
        status = pm_fail(err, PM_OPERATIONAL, "%.300s: %s", s->r->path, pm_strerror(errno));
    return status;
}

static int read_recipe(struct reading *s, struct pm_error *err) {
    FILE *f = fopen(s->r->path, "re");
    if (!f)
        return pm_fail(err, PM_OPERATIONAL, "%.300s: %s", s->r->path, pm_strerror(errno));
    int status = read_lines(s, f, err);
    fclose(f);
    return status;
}

// ---- the one for a program ----------------------------------------------------------------------

static int explain_none(const struct recipe_places *places, const char *name,
                        struct pm_error *err) {
    char looked[300] = "";
    for (size_t i = 0; i < PLACES; i++)
        if (places->dir[i])
            append(looked, sizeof looked, ", ", places->dir[i]);
    return pm_fail(err, PM_OPERATIONAL,
                   "there is no recipe for %.100s in %s; `pmalloc-info --holders` of it while it "
                   "runs shows what to name (docs/recipes.md)",
                   name, looked);
}

static bool is_there(const char *path) {
    FILE *f = fopen(path, "re");
    if (f)
        fclose(f);
    return f || errno != ENOENT; // reading it says why
}

// The first directory that has a recipe for this build decides.
static int find(struct reading *s, const struct recipe_places *places, const char *name,
                struct pm_error *err) {
    char path[PATH_MAX];
    int status = PM_OK;
    for (size_t i = 0; i < PLACES && !s->found && status == PM_OK; i++) {
        snprintf(path, sizeof path, "%.3800s/%.200s" SUFFIX, places->dir[i] ? places->dir[i] : "",
                 name);
        if (!places->dir[i] || !is_there(path))
            continue;
        *s->r = (struct recipe){0};
        memcpy(s->r->path, path, sizeof path);
        s->line = 0;
        s->mine = s->any = s->by_names = false;
        status = read_recipe(s, err);
    }
    return status;
}

int recipe_find(const struct recipe_places *places, const char *name, const char *path,
                struct recipe *out, struct pm_error *err) {
    struct pm_elf elf;
    struct reading s = {.r = out, .elf = &elf, .file = path};
    *out = (struct recipe){0};
    if (pm_elf_open(&elf, path, err) != PM_OK)
        return err->status;
    write_id(&elf, s.id);
    int status = find(&s, places, name, err);
    pm_elf_close(&elf);
    if (status != PM_OK || s.found)
        return status;
    if (!*out->path)
        return explain_none(places, name, err);
    return pm_fail(err, PM_OPERATIONAL,
                   "%.150s is a build (%.40s) that %.150s does not know; it knows %.80s. "
                   "`pmalloc-info --holders` of it while it runs shows what to name "
                   "(docs/recipes.md)",
                   path, *s.id ? s.id : "without a build id", out->path,
                   *s.builds ? s.builds : "none");
}

// ---- all of them --------------------------------------------------------------------------------

static int is_recipe(const struct dirent *e) {
    size_t length = strlen(e->d_name), suffix = sizeof SUFFIX - 1;
    return length > suffix && strcmp(e->d_name + length - suffix, SUFFIX) == 0;
}

static int list_one(const char *dir, const char *file, struct pm_error *err) {
    static struct recipe r;
    struct reading s = {.r = &r};
    r = (struct recipe){0};
    snprintf(r.path, sizeof r.path, "%.3800s/%.250s", dir, file);
    int status = read_recipe(&s, err);
    if (status == PM_OK)
        printf("%-16s %s\n%-16s keeps %s\n", r.program, s.builds, "", r.keeps);
    return status;
}

int recipe_list(const struct recipe_places *places, struct pm_error *err) {
    int status = PM_OK;
    for (size_t i = 0; i < PLACES; i++) {
        struct dirent **entry;
        int count = places->dir[i] ? scandir(places->dir[i], &entry, is_recipe, alphasort) : -1;
        for (int k = 0; k < count && status == PM_OK; k++)
            status = list_one(places->dir[i], entry[k]->d_name, err);
    }
    return status;
}
