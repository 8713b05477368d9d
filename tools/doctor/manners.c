// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "manners.h"

#include <stdio.h>
#include <string.h>

#include "roots/elf_file.h"
#include "tools/common/target.h"

static bool begins(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

// Whether it takes the function from another object.
static bool calls(const struct pm_elf_table *t, const char *function) {
    ElfW(Sym) symbol;
    for (uint64_t i = 0; i < t->count; i++) {
        const char *name = pm_elf_symbol_at(t, i, &symbol);
        if (name && symbol.st_shndx == SHN_UNDEF && strcmp(name, function) == 0)
            return true;
    }
    return false;
}

static const char *calls_one(const struct pm_elf_table *t, const char *const *functions) {
    for (; *functions; functions++)
        if (calls(t, *functions))
            return *functions;
    return NULL;
}

static void look_at_calls(const struct pm_elf_table *t, struct manners *out) {
    static const char *const modules[] = {"dlopen", "dlmopen", NULL};
    static const char *const forks[] = {"fork", "_Fork", "forkpty", "daemon", NULL};
    static const char *const daemons[] = {"daemon", NULL};
    static const char *const sessions[] = {"setsid", NULL};
    static const char *const rights[] = {"setuid",    "setgid",     "setresuid",
                                         "setresgid", "setreuid",   "setgroups",
                                         "seteuid",   "initgroups", NULL};
    static const char *const answers[] = {"accept", "accept4", NULL};
    out->modules = calls_one(t, modules);
    out->forks = calls_one(t, forks);
    out->daemon = calls_one(t, daemons);
    if (!out->daemon && out->forks)
        out->daemon = calls_one(t, sessions);
    out->rights = calls_one(t, rights);
    out->answers = calls_one(t, answers);
}

// A library with a malloc of its own, or of a language whose objects are not malloc's.
static void look_at_library(const char *needs, struct manners *out) {
    static const char *const mallocs[] = {"libjemalloc.", "libtcmalloc", "libmimalloc",
                                          "libsnmalloc",  "librpmalloc", "libhoard.",
                                          "libtbbmalloc"};
    static const char *const runtimes[][2] = {
        {"libjli.so", "the Java runtime"}, {"libnode.so", "V8"}, {"libmozjs", "SpiderMonkey"},
        {"libluajit", "LuaJIT"},           {"libmono", "Mono"},  {"libhostfxr", ".NET"}};
    for (size_t i = 0; i < sizeof mallocs / sizeof *mallocs; i++)
        if (begins(needs, mallocs[i]))
            snprintf(out->malloc, sizeof out->malloc, "%.60s", needs);
    for (size_t i = 0; i < sizeof runtimes / sizeof *runtimes; i++)
        if (begins(needs, runtimes[i][0]))
            out->runtime = runtimes[i][1];
}

static void find_go(const char *name, uint64_t at, uint64_t size, void *arg) {
    (void)at, (void)size;
    if (strcmp(name, ".gopclntab") == 0)
        ((struct manners *)arg)->runtime = "the Go runtime";
}

// CPython asks malloc only for what is larger than 512 bytes, unless it is told otherwise.
static void look_at_python(const char *name, struct manners *out) {
    if (!begins(name, "python3"))
        return;
    out->runtime = "CPython's own allocator for small objects";
    out->helps = "PYTHONMALLOC=malloc in its environment gives them to malloc";
}

int manners_find(const char *path, const char *name, struct manners *out, struct pm_error *err) {
    struct pm_elf f;
    struct pm_elf_table t;
    const char *needs;
    *out = (struct manners){0};
    if (pm_elf_open(&f, path, err) != PM_OK)
        return err->status;
    if (pm_elf_table(&f, SHT_DYNSYM, &t) > 0)
        look_at_calls(&t, out);
    for (size_t i = 0; (needs = target_needs(&f, i)) != NULL; i++)
        look_at_library(needs, out);
    pm_elf_each_section(&f, find_go, out);
    look_at_python(name, out);
    out->fixed = f.ehdr.e_type == ET_EXEC;
    pm_elf_close(&f);
    return PM_OK;
}
