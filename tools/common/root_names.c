// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "root_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "debug_info.h"
#include "roots/elf_find.h"
#include "roots/made_names.h"
#include "roots/spec.h"

enum { POINTER = sizeof(void *), CONTAINER_MAX = 256 };

struct finder {
    const struct pm_elf *f;
    struct root_names *out;
    struct dwarf *types;
    uint64_t copied; // the end of the variables that it shares with libc, in .bss
    bool full;
};

static struct root_name *add(struct finder *s) {
    struct root_names *n = s->out;
    if ((n->count & (n->count - 1)) == 0) {
        struct root_name *more = realloc(n->name, (n->count ? 2 * n->count : 1) * sizeof *more);
        s->full |= !more;
        if (!more)
            return NULL;
        n->name = more;
    }
    n->name[n->count] = (struct root_name){0};
    return &n->name[n->count++];
}

// ---- places -------------------------------------------------------------------------------------

// Whether variables may lie there: memory that stays writable.
static bool is_writable(const struct pm_elf *f, uint64_t at, uint64_t size, bool *zero) {
    ElfW(Phdr) p;
    bool found = false;
    for (size_t i = 0; pm_elf_phdr(f, i, &p); i++) {
        bool overlaps = at < p.p_vaddr + p.p_memsz && p.p_vaddr < at + size;
        if (p.p_type == PT_GNU_RELRO && overlaps)
            return false;
        if (p.p_type != PT_LOAD || !(p.p_flags & PF_W) || at < p.p_vaddr ||
            at - p.p_vaddr > p.p_memsz || size > p.p_memsz - (at - p.p_vaddr))
            continue;
        uint64_t into = at - p.p_vaddr, stored = into < p.p_filesz ? p.p_filesz - into : 0;
        stored = stored < size ? stored : size;
        found = true;
        *zero = true;
        for (uint64_t b = 0; b < stored && *zero; b++)
            *zero = p.p_offset + into + b < f->size && f->map[p.p_offset + into + b] == 0;
    }
    return found;
}

// ---- variables ----------------------------------------------------------------------------------

// What the compiler and libc put there for themselves.
static bool is_runtime(const char *name) {
    static const char *const prefixes[] = {
        "__",       "_IO_",   "_ZGV", "_ZT", "_ZSt", "completed.", "DW.ref.", "program_invocation_",
        "obstack_", "error_", "argp_"};
    static const char *const names[] = {"stdin",  "stdout", "stderr",           "environ",
                                        "optarg", "optind", "opterr",           "optopt",
                                        "_end",   "_edata", "re_syntax_options"};
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return strchr(name, '@') != NULL;
}

static void judge(struct finder *s, struct root_name *r, bool cxx) {
    struct dwarf_entry variable;
    bool typed = s->types && dw_variable(s->types, r->offset, &variable);
    bool could = r->size >= POINTER && r->offset % POINTER == 0 && r->size % POINTER == 0;
    if (typed)
        dw_name(s->types, variable.type, r->note, sizeof r->note);
    r->likely = r->zero && could &&
                (typed ? dw_points(s->types, variable.type)
                       : r->size == POINTER || (cxx && r->size <= CONTAINER_MAX));
    s->out->typed |= typed;
}

static void take_symbol(const char *symbol, uint64_t value, uint64_t size, void *arg) {
    struct finder *s = arg;
    char plain[256] = "";
    struct pm_spec spec;
    struct pm_error ignored;
    bool zero;
    if (is_runtime(symbol) || !is_writable(s->f, value, size, &zero))
        return;
    bool cxx = pm_made_plain(symbol, strlen(symbol) + 1, plain, sizeof plain);
    const char *text = cxx ? plain : symbol;
    if (pm_spec_parse_one(text, strlen(text), &spec, &ignored) != PM_OK)
        text = symbol;
    struct root_name *r = add(s);
    if (!r)
        return;
    snprintf(r->text, sizeof r->text, "%s", text);
    char *dot = strchr(r->text, '.');
    if (dot && pm_is_lto_suffix(dot, strlen(dot) + 1))
        *dot = '\0';
    r->offset = value;
    r->size = size;
    r->zero = zero;
    judge(s, r, cxx || strncmp(symbol, "_Z", 2) == 0);
}

// What clang's LTO has numbered is shown by the name that it has in its source, if that is of two.
static void take_back_number(const struct finder *s, struct root_name *r) {
    char head[sizeof r->text], plain[PM_ELF_NAME_LEN] = "";
    struct pm_elf_symbol sym;
    struct pm_error ignored;
    const char *dot = strrchr(r->text, '.');
    size_t digits = dot ? strspn(dot + 1, "0123456789") : 0;
    if (!digits || dot[1 + digits])
        return;
    snprintf(head, sizeof head, "%.*s", (int)(dot - r->text), r->text);
    const char *name = pm_made_plain(head, sizeof head, plain, sizeof plain) ? plain : head;
    if (pm_elf_find(s->f, name, PM_ELF_IN_SYMTAB, &sym, &ignored) == PM_OK &&
        sym.verdict == PM_ELF_AMBIGUOUS)
        snprintf(r->text, sizeof r->text, "%s", name);
}

static int by_text(const void *a, const void *b) {
    const struct root_name *x = a, *y = b;
    int order = strcmp(x->text, y->text);
    return order ? order : x->offset < y->offset ? -1 : x->offset > y->offset;
}

static int by_place(const void *a, const void *b) {
    const struct root_name *x = a, *y = b;
    if (x->likely != y->likely)
        return y->likely - x->likely;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

// Aliases are one variable. Two variables of one name can only be named by their places.
static void tell_apart(struct root_names *n) {
    size_t kept = 0;
    qsort(n->name, n->count, sizeof *n->name, by_text);
    for (size_t i = 0; i < n->count; i++)
        if (kept == 0 || strcmp(n->name[kept - 1].text, n->name[i].text) != 0 ||
            n->name[kept - 1].offset != n->name[i].offset)
            n->name[kept++] = n->name[i];
    n->count = kept;
    for (size_t i = 0, end; i < n->count; i = end) {
        char shared[sizeof n->name->text];
        snprintf(shared, sizeof shared, "%s", n->name[i].text);
        for (end = i + 1; end < n->count && strcmp(n->name[end].text, shared) == 0; end++) {
        }
        for (size_t at = i; at < end && end - i > 1; at++) {
            struct root_name *r = &n->name[at];
            char type[sizeof r->note];
            snprintf(type, sizeof type, "%s", r->note);
            snprintf(r->note, sizeof r->note, "%.60s%s%.60s", shared, *type ? ": " : "", type);
            snprintf(r->text, sizeof r->text, "+0x%lx/%lu", (unsigned long)r->offset,
                     (unsigned long)r->size);
        }
    }
    qsort(n->name, n->count, sizeof *n->name, by_place);
}

// ---- a stripped program -------------------------------------------------------------------------

static void note_copied(const char *symbol, uint64_t value, uint64_t size, void *arg) {
    struct finder *s = arg;
    (void)symbol;
    if (value + size > s->copied)
        s->copied = value + size;
}

// Libc's variables come first in .bss.
static void take_section(const char *name, uint64_t at, uint64_t size, void *arg) {
    struct finder *s = arg;
    bool zero, bss = strcmp(name, ".bss") == 0, shared = s->copied > at && s->copied < at + size;
    if (bss && shared) {
        uint64_t skipped = ((s->copied + POINTER - 1) & ~(uint64_t)(POINTER - 1)) - at;
        at += skipped;
        size -= skipped < size ? skipped : size;
    }
    struct root_name *r = size && is_writable(s->f, at, size, &zero) ? add(s) : NULL;
    if (!r)
        return;
    snprintf(r->text, sizeof r->text, "+0x%lx/%lu", (unsigned long)at, (unsigned long)size);
    snprintf(r->note, sizeof r->note, "section %.60s%s", name,
             bss && shared ? " after libc's variables" : "");
    r->offset = at;
    r->size = size;
    r->zero = zero;
}

// ---- all of it ----------------------------------------------------------------------------------

int root_names_find(const char *path, struct root_names *out, struct pm_error *err) {
    struct pm_elf *f = malloc(sizeof *f); // the types go on reading it
    struct finder s = {.f = f, .out = out};
    *out = (struct root_names){0};
    int status = f ? pm_elf_open(f, path, err) : pm_fail(err, PM_OPERATIONAL, "no memory");
    if (status != PM_OK)
        return status;
    s.types = dw_open(path, f);
    bool exported = false;
    char apart[DWARF_PATH];
    struct pm_elf debug;
    struct pm_error ignored;
    status = pm_elf_each_variable(f, PM_ELF_IN_SYMTAB, take_symbol, &s, err);
    if (status == PM_OK && !pm_elf_has_symtab(f) && dw_debug_file(f, apart, sizeof apart) &&
        pm_elf_open(&debug, apart, &ignored) == PM_OK) {
        status = pm_elf_each_variable(&debug, PM_ELF_IN_SYMTAB, take_symbol, &s, err);
        pm_elf_close(&debug);
    }
    if (status == PM_OK && out->count == 0) {
        pm_elf_each_variable(f, PM_ELF_IN_DYNSYM, note_copied, &s, err);
        status = pm_elf_each_variable(f, PM_ELF_IN_DYNSYM, take_symbol, &s, err);
        exported = true;
    }
    if (status == PM_OK && exported && !pm_elf_has_symtab(f)) {
        out->stripped = true;
        pm_elf_each_section(f, take_section, &s);
    }
    if (status == PM_OK && s.full)
        status = pm_fail(err, PM_OPERATIONAL, "no memory");
    if (status != PM_OK)
        return pm_fail_in(err, "%s", path);
    out->cooperates = pm_elf_imports(f, "pmalloc_");
    for (size_t i = 0; i < out->count && pm_made_by_clang(f); i++)
        take_back_number(&s, &out->name[i]);
    tell_apart(out);
    for (size_t i = 0; i < out->count; i++)
        out->likely += out->name[i].likely;
    return PM_OK;
}

void root_names_likely(const struct root_names *names, char *out, size_t size) {
    size_t at = 0;
    *out = '\0';
    for (size_t i = 0; i < names->likely; i++) {
        const char *text = names->name[i].text;
        size_t need = strlen(text) + 2;
        if (at + need + sizeof ", ..." > size) {
            snprintf(out + at, size - at, "%s...", at ? ", " : "");
            return;
        }
        at += (size_t)snprintf(out + at, size - at, "%s%s", at ? ", " : "", text);
    }
}

static void print_row(const struct root_name *r) {
    printf("%10lu  %-4s  ", (unsigned long)r->size, r->zero ? "zero" : "");
    if (*r->note)
        printf("%-26s  %.70s\n", r->text, r->note);
    else
        puts(r->text);
}

void root_names_print(const struct root_names *names, const char *program) {
    const char *types = names->typed ? "" : "; their types are not known: build it with -g";
    if (names->likely) {
        printf("likely roots of %s, pointers and containers that are zero at the start%s:\n",
               program, types);
        for (size_t i = 0; i < names->likely; i++)
            print_row(&names->name[i]);
    }
    if (names->stripped)
        printf("%s is stripped: beside what it exports, only ranges can be named. A range is "
               "restored, and `*` is not: it only keeps alive what it reaches\n",
               program);
    else if (names->count > names->likely)
        printf("other variables of %s%s:\n", program, names->likely ? "" : types);
    for (size_t i = names->likely; i < names->count; i++)
        print_row(&names->name[i]);
    if (names->count == 0)
        printf("%s has no variables that could be roots\n", program);
}
