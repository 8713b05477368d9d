// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "doctor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/options.h"
#include "lines.h"
#include "manners.h"
#include "place.h"
#include "roots/elf_find.h"
#include "roots/loaded_object.h"
#include "roots/spec.h"
#include "tools/common/root_names.h"
#include "tools/common/root_path.h"
#include "tools/common/target.h"
#include "tools/common/wrapper.h"

// More likely roots than this are not all meant.
enum { FEW_ROOTS = 3 };

static struct {
    char *const *command;
    const char *called, *path; // the program that gets the heap: its name here, and its file
    struct target target;
    struct manners manners;
    struct recipe recipe;
    bool has_recipe, good;
    char roots[512];     // for the line that starts it; "": none
    char heap[PATH_MAX]; // likewise
} c;

// ---- the program --------------------------------------------------------------------------------

static int look_at_program(void) {
    char why[512];
    const char *program = c.command[0];
    enum wrapper_kind wrapper = wrapper_find(c.command, &program);
    if (wrapper == WRAPPER_NONE)
        program = c.command[0];
    int status = target_find(program, &c.target, why, sizeof why);
    if (status != 0) {
        line("served", "no: %s", why);
        return status;
    }
    c.called = pm_base_name(program);
    c.path = *c.target.interpreter && !*c.target.env_program ? c.target.interpreter : c.target.path;
    if (*c.target.env_program) {
        static struct target inner;
        status = target_find(c.target.env_program, &inner, why, sizeof why);
        c.path = inner.path;
    }
    line("program", "%s", c.target.path);
    if (*c.target.interpreter)
        line_go_on("a script: the heap is that of its interpreter, %s", c.path);
    if (wrapper == WRAPPER_STARTS)
        line_go_on("%s only starts it, and gets no heap", pm_base_name(c.command[0]));
    if (wrapper == WRAPPER_CLEARS)
        line_go_on("%s clears the environment, and with it the settings: write it before "
                   "pmalloc-run",
                   pm_base_name(c.command[0]));
    return status;
}

static void tell_served(void) {
    const struct manners *m = &c.manners;
    if (!m->runtime)
        line("served", "yes: what it gets from malloc lies in the heap");
    else
        line("served",
             "in part: %s has most of its objects outside of malloc, and so outside of "
             "the heap%s%s",
             m->runtime, m->helps ? "; " : "", m->helps ? m->helps : "");
    if (*m->malloc)
        line_go_on("the malloc of %s gives way to PMAlloc's", m->malloc);
}

// ---- roots --------------------------------------------------------------------------------------

static void tell_recipe(void) {
    line("roots", "there is a recipe for it, %s (%s): give --recipe", pm_base_name(c.recipe.path),
         c.recipe.build);
    line_go_on("it keeps %s", c.recipe.keeps);
    if (*c.recipe.loses)
        line_go_on("it does not keep %s", c.recipe.loses);
}

// Its libraries are not looked at, and a name that the program lacks may be theirs.
static int look_for_root(const struct pm_elf *f, const struct pm_spec *spec, struct pm_error *err) {
    struct pm_elf_symbol symbol;
    if (!*spec->name || *spec->object)
        return PM_OK;
    int status = pm_elf_find(f, spec->name, PM_ELF_IN_SYMTAB | PM_ELF_IN_DYNSYM, &symbol, err);
    if (status != PM_OK || symbol.verdict == PM_ELF_FOUND || symbol.verdict == PM_ELF_AMBIGUOUS)
        return status;
    line("roots", "%s is no variable of %s itself%s%s; the start will look in its libraries, too",
         spec->name, c.path, symbol.near_count ? ": perhaps you mean " : "",
         symbol.near_count ? symbol.near_name[0] : "");
    return PM_OK;
}

static int look_for_roots(const char *text, struct pm_error *err) {
    static struct pm_spec specs[PM_ROOT_MAX];
    struct pm_elf f;
    size_t count;
    int status = pm_spec_parse(text, specs, PM_ROOT_MAX, &count, err);
    if (status != PM_OK || pm_elf_open(&f, c.path, err) != PM_OK)
        return err->status;
    for (size_t i = 0; i < count && status == PM_OK; i++)
        status = look_for_root(&f, &specs[i], err);
    pm_elf_close(&f);
    return status;
}

static void tell_given(void) {
    struct pm_error err;
    char *resolved = NULL;
    snprintf(c.roots, sizeof c.roots, "%s", pm_options.roots.text);
    int status = root_paths_read(pm_options.roots.text, c.path, &resolved, &err);
    if (status == PM_OK)
        status = look_for_roots(resolved ? resolved : pm_options.roots.text, &err);
    line("roots", "%s%s", status == PM_OK ? "as given: " : "",
         status == PM_OK ? c.roots : err.text);
    c.good &= status == PM_OK;
    free(resolved);
}

static void tell_holders(const char *why) {
    line("roots",
         "%s: start it, let it have some data, and ask `pmalloc-info --holders PID` which "
         "variables lead to them",
         why);
}

static void tell_likely(const struct root_names *names) {
    char likely[sizeof c.roots];
    root_names_likely(names, likely, sizeof likely);
    line("roots", "likely: %s%s", likely,
         names->typed ? "" : " (its types are not known; build it with -g)");
    line_go_on("`pmalloc-run --roots %s` lists all %zu variables that can be named; `pmalloc-info "
               "--holders PID`, of the running program, says which lead to how much",
               c.path, names->count);
    if (names->likely > FEW_ROOTS)
        return;
    for (size_t i = 0; i < names->likely; i++)
        snprintf(c.roots + strlen(c.roots), sizeof c.roots - strlen(c.roots), "%s%s", i ? "," : "",
                 names->name[i].text);
}

static void tell_roots(void) {
    struct root_names names;
    struct pm_error err;
    if (*pm_options.roots.text)
        tell_given();
    else if (c.has_recipe)
        tell_recipe();
    else if (*c.target.interpreter)
        tell_holders("they are the interpreter's variables");
    else if (root_names_find(c.path, &names, &err) != PM_OK)
        line("roots", "%s", err.text);
    else if (names.cooperates)
        line("roots", "it calls functions of pmalloc.h, and may name its roots itself");
    else if (names.likely)
        tell_likely(&names);
    else
        tell_holders(names.stripped
                         ? "it is stripped, so none can be told by its name"
                         : "none of its variables is a pointer that is zero at the start");
}

// ---- what to expect -----------------------------------------------------------------------------

static void tell_commits(void) {
    const char *given = pm_options.commit.text;
    if (*given)
        line("commits", "%s", given);
    else if (c.has_recipe && !*pm_options.roots.text)
        line("commits", "as the recipe says, unless -s COMMIT=MODE says otherwise");
    else if (c.manners.answers)
        line("commits",
             "none are asked for. It answers others (%s): with -s COMMIT=output nothing "
             "that it has answered is lost, and nothing is half done",
             c.manners.answers);
    else
        line("commits", "none are asked for: after a kill each store is there, perhaps half an "
                        "operation; few programs can go on with that. -s COMMIT=output, or a time "
                        "such as 1s, goes back to one instant instead");
}

static bool follows(void) { return pm_options.fork.number == PM_FORK_FOLLOW; }

static void tell_manners(void) {
    const struct manners *m = &c.manners;
    if (m->daemon)
        line("processes", "it may go into the background (%s): %s", m->daemon,
             follows() ? "the heap goes with it (FORK=follow)"
                       : "then keep it in the foreground by its option for that, or give -s "
                         "FORK=follow");
    else if (m->forks)
        line("processes", "it may fork (%s): %s", m->forks,
             follows() ? "the first child gets the heap (FORK=follow)"
                       : "a child works on a private copy; -s FORK=copy or follow changes that");
    if (m->rights)
        line("rights", "it may change its user (%s): the heap stays that of the user who starts it",
             m->rights);
    if (m->modules)
        line("modules",
             "it may load some (%s): words of the heap that lead into one are changed "
             "where it has come to lie elsewhere",
             m->modules);
}

// ---- the line that starts it --------------------------------------------------------------------

static void put_word(const char *word) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_@%+=:,./-";
    if (*word && word[strspn(word, plain)] == '\0') {
        printf(" %s", word);
        return;
    }
    fputs(" '", stdout);
    for (; *word; word++)
        if (*word == '\'')
            fputs("'\\''", stdout);
        else
            putchar(*word);
    putchar('\'');
}

// Settings that were given are in the environment or in options: both stay as they were typed.
static void put_settings(void) {
    if (!*pm_options.commit.text && c.manners.answers && !c.has_recipe)
        fputs(" -s COMMIT=output", stdout);
    else if (*pm_options.commit.text)
        printf(" -s COMMIT=%s", pm_options.commit.text);
    if (follows())
        fputs(" -s FORK=follow", stdout);
}

static void put_start(void) {
    fputs("start       pmalloc-run", stdout);
    if (c.has_recipe && !*pm_options.roots.text)
        fputs(" --recipe", stdout);
    fputs(" -H", stdout);
    put_word(c.heap);
    if (*c.roots) {
        fputs(" -r", stdout);
        put_word(c.roots);
    } else if (!c.has_recipe) {
        fputs(" -r ROOTS", stdout);
    }
    put_settings();
    if (*c.command[0] == '-')
        fputs(" --", stdout);
    for (size_t i = 0; c.command[i]; i++)
        put_word(c.command[i]);
    putchar('\n');
}

int doctor(char *const *command, const struct recipe_places *places) {
    struct pm_error err;
    const char *given = *pm_options.heap.text ? pm_options.heap.text : pm_options.commit_dir.text;
    c.command = command;
    c.good = true;
    int status = look_at_program();
    if (status != 0)
        return status;
    if (manners_find(c.path, pm_base_name(c.path), &c.manners, &err) != PM_OK) {
        line("served", "no: %s", err.text);
        return TARGET_CANNOT_RUN;
    }
    tell_served();
    c.has_recipe = recipe_find(places, c.called, c.target.path, &c.recipe, &err) == PM_OK;
    if (*given)
        snprintf(c.heap, sizeof c.heap, "%s", given);
    else
        snprintf(c.heap, sizeof c.heap, "/dev/shm/%s", pm_base_name(c.path));
    tell_roots();
    c.good &= place_heap(c.heap);
    tell_commits();
    place_addresses(c.manners.fixed);
    tell_manners();
    place_limits();
    if (c.good)
        put_start();
    return c.good ? 0 : 1;
}
