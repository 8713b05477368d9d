// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "locate.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>

#include "elf_find.h"
#include "loaded_object.h"

enum { LIST_LEN = 160 };

// The locations found so far for one spec.
struct query {
    const struct pm_spec *spec;
    struct pm_location *out;
    size_t cap;
    size_t n;
    struct pm_error *err; // pm_locate() adds the spec's text
};

// Appends ", item" to a list of the given size. If it does not fit, "..." ends the list.
static void list_add(char *list, size_t size, const char *item) {
    size_t at = strlen(list), need = strlen(item) + 2;
    if (at >= 3 && strcmp(list + at - 3, "...") == 0)
        return;
    if (at + need + sizeof ", ..." > size)
        item = "...";
    (void)snprintf(list + at, size - at, "%s%s", at != 0 ? ", " : "", item);
}

// ---- ranges -------------------------------------------------------------------------------------

static int add_range(struct query *q, const struct pm_object *o, uintptr_t addr, size_t length) {
    if (q->n == q->cap)
        return pm_fail(q->err, PM_USAGE, "more than %zu ranges", q->cap);
    struct pm_location *r = &q->out[q->n++];
    memset(r, 0, sizeof *r);
    r->addr = addr;
    r->length = length;
    memcpy(r->object, o->name, sizeof r->object);
    return 0;
}

// The memory that RELRO has made read-only after relocation; [0, 0): none. The dynamic linker
// rounds its start down to a page.
static void relro_of(const struct pm_object *o, uintptr_t *lo, uintptr_t *hi) {
    uintptr_t page = getauxval(AT_PAGESZ);
    *lo = *hi = 0;
    for (size_t i = 0; i < o->phnum; i++)
        if (o->phdr[i].p_type == PT_GNU_RELRO) {
            *hi = o->base + o->phdr[i].p_vaddr + o->phdr[i].p_memsz;
            *lo = (o->base + o->phdr[i].p_vaddr) & ~(page - 1);
        }
}

static int outside_segments(struct query *q, const struct pm_object *o) {
    char list[LIST_LEN] = "", item[64];
    for (size_t i = 0; i < o->phnum; i++) {
        const ElfW(Phdr) *p = &o->phdr[i];
        if (p->p_type != PT_LOAD || (p->p_flags & PF_W) == 0)
            continue;
        (void)snprintf(item, sizeof item, "+0x%lx/%lu", (unsigned long)p->p_vaddr,
                       (unsigned long)p->p_memsz);
        list_add(list, sizeof list, item);
    }
    return pm_fail(q->err, PM_USAGE, "not inside one writable segment of %s (%s)", o->name,
                   list[0] != '\0' ? list : "it has none");
}

// Adds the range at a link-time address, if all of it lies in memory where variables lie.
static int checked_range(struct query *q, const struct pm_object *o, uint64_t offset,
                         uint64_t length) {
    uintptr_t lo, hi, addr = o->base + offset;
    for (size_t i = 0; i < o->phnum; i++) {
        const ElfW(Phdr) *p = &o->phdr[i];
        uint64_t into = offset - p->p_vaddr; // below the segment it wraps to a huge number
        if (p->p_type != PT_LOAD || into > p->p_memsz || length > p->p_memsz - into)
            continue;
        if ((p->p_flags & PF_W) == 0)
            return pm_fail(q->err, PM_USAGE, "in read-only memory of %s: a constant", o->name);
        relro_of(o, &lo, &hi);
        if (addr < hi && addr + length > lo)
            return pm_fail(q->err, PM_USAGE,
                           "in memory of %s that is read-only after relocation (RELRO): a "
                           "constant",
                           o->name);
        return add_range(q, o, addr, length);
    }
    return outside_segments(q, o);
}

static int object_ranges(struct query *q, const struct pm_object *o) {
    uintptr_t relro_lo, relro_hi;
    relro_of(o, &relro_lo, &relro_hi);
    for (size_t i = 0; i < o->phnum; i++) {
        const ElfW(Phdr) *p = &o->phdr[i];
        uintptr_t lo = o->base + p->p_vaddr, hi = lo + p->p_memsz;
        if (p->p_type != PT_LOAD || (p->p_flags & PF_W) == 0 || hi <= lo)
            continue;
        uintptr_t before = hi < relro_lo ? hi : relro_lo, after = lo > relro_hi ? lo : relro_hi;
        if (relro_hi == 0) // no RELRO: one piece
            before = lo, after = lo;
        int status = lo < before ? add_range(q, o, lo, before - lo) : PM_OK;
        if (status == PM_OK && after < hi)
            status = add_range(q, o, after, hi - after);
        if (status != PM_OK)
            return status;
    }
    if (q->n == 0)
        return pm_fail(q->err, PM_USAGE, "%s has no writable data", o->name);
    return 0;
}

// ---- finding the object -------------------------------------------------------------------------

struct object_search {
    const char *name;
    unsigned best; // 0 none, 1 up to ".so", 2 base name or soname
    unsigned count;
    struct pm_object found;
    char second[PM_ROOT_OBJECT_LEN];
    char loaded[LIST_LEN];
};

// How well the name given fits the object, as in struct object_search. For libz these fit:
// "libz.so.1.2.13", its soname "libz.so.1", "libz.so" and "libz".
static unsigned object_match(const struct pm_object *o, const char *name) {
    if (strcmp(o->name, name) == 0 || (!o->is_main && strcmp(pm_object_soname(o), name) == 0))
        return 2;
    const char *so = strstr(o->name, ".so");
    size_t stem = so != NULL ? (size_t)(so - o->name) : 0, len = strlen(name);
    if (stem == 0 || strncmp(o->name, name, len) != 0)
        return 0;
    return len == stem || len == stem + 3;
}

static int match_step(const struct pm_object *o, void *arg) {
    struct object_search *s = arg;
    unsigned m = pm_object_is_vdso(o) ? 0 : object_match(o, s->name);
    if (m > s->best) {
        s->best = m;
        s->count = 1;
        s->found = *o;
    } else if (m != 0 && m == s->best) {
        s->count++;
        memcpy(s->second, o->name, sizeof s->second);
    }
    if (!pm_object_is_vdso(o))
        list_add(s->loaded, sizeof s->loaded, o->name);
    return 0;
}

static int find_object(struct query *q, struct pm_object *out) {
    struct object_search s = {.name = q->spec->object};
    if (s.name[0] == '\0') {
        pm_object_main(out);
        return 0;
    }
    pm_object_each(match_step, &s);
    if (s.count == 0)
        return pm_fail(
            q->err, PM_USAGE,
            "no program or library %s is loaded; loaded: %s (a variable of a C++ scope is "
            "%s::%s)",
            s.name, s.loaded, s.name, *q->spec->name ? q->spec->name : "NAME");
    if (s.count > 1)
        return pm_fail(q->err, PM_USAGE, "%s is both %s and %s; give the full name", s.name,
                       s.found.name, s.second);
    if (pm_object_is_self(&s.found))
        return pm_fail(q->err, PM_USAGE, "%s is PMAlloc itself", s.found.name);
    *out = s.found;
    return 0;
}

// ---- symbols ------------------------------------------------------------------------------------

static int look_up(struct query *q, const struct pm_object *o, const char *name, unsigned tables,
                   struct pm_elf_symbol *sym) {
    struct pm_elf f;
    memset(sym, 0, sizeof *sym);
    int status = pm_object_open(o, &f, q->err);
    if (status != PM_OK)
        return status;
    status = pm_elf_find(&f, name, tables, sym, q->err);
    pm_elf_close(&f);
    return status == PM_OK ? PM_OK : pm_fail_in(q->err, "%s", o->name);
}

// A member path, such as server.db: the process itself knows no types.
static int member_path(struct query *q, const struct pm_object *o) {
    struct pm_elf_symbol variable;
    char head[PM_ROOT_NAME_LEN];
    const char *name = q->spec->name;
    size_t len = strcspn(name, ".");
    if (name[len] == '\0')
        return PM_OK;
    memcpy(head, name, len);
    head[len] = '\0';
    if (look_up(q, o, head, PM_ELF_IN_SYMTAB | PM_ELF_IN_DYNSYM, &variable) != PM_OK ||
        variable.verdict == PM_ELF_MISSING)
        return PM_OK;
    return pm_fail(q->err, PM_USAGE,
                   "no such variable in %s, but %s is one; pmalloc-run resolves members of the "
                   "program that it starts: start it so, or write %s+OFFSET/LENGTH",
                   o->name, head, head);
}

static int missing_symbol(struct query *q, const struct pm_object *o,
                          const struct pm_elf_symbol *sym) {
    char list[PM_ELF_NEAR_MAX * (PM_ELF_NEAR_LEN + 8)] = "";
    if (member_path(q, o) != PM_OK)
        return q->err->status;
    if (*sym->part)
        return pm_fail(q->err, PM_USAGE,
                       "no such variable in %s, for the compiler has made %s of it; declare it "
                       "__attribute__((used)), and compile %s again",
                       o->name, sym->part, o->name);
    for (unsigned i = 0; i < sym->near_count; i++)
        list_add(list, sizeof list, sym->near_name[i]);
    if (list[0] != '\0')
        return pm_fail(q->err, PM_USAGE, "no such variable in %s; did you mean %s?", o->name, list);
    if (strchr(q->spec->name, '.') != NULL)
        return pm_fail(q->err, PM_USAGE,
                       "no such variable in %s; pmalloc-run resolves members of the program's "
                       "variables, if it is built with -g or its debug symbols are installed (a "
                       "-dbgsym package); else write SYMBOL+OFFSET/LENGTH or +OFFSET/LENGTH",
                       o->name);
    if (!sym->have_table)
        return pm_fail(q->err, PM_USAGE,
                       "no such variable in %s, which is stripped; name a range, +OFFSET/LENGTH, "
                       "which is restored (`pmalloc-run --roots` lists them); * is not restored, "
                       "it only keeps alive what it reaches",
                       o->name);
    return pm_fail(q->err, PM_USAGE,
                   "no such variable in %s; `pmalloc-run --roots PROGRAM` lists what can be named",
                   o->name);
}

// Adds the guard of a static of a function. The guard says whether the static was constructed. It
// is restored with the static; else the next run would construct the static again, over its
// restored contents.
static int guard_range(struct query *q, const struct pm_object *o,
                       const struct pm_elf_symbol *sym) {
    struct pm_elf_symbol guard;
    char name[PM_ELF_NAME_LEN + 4];
    if (strncmp(sym->name, "_Z", 2) != 0)
        return 0;
    (void)snprintf(name, sizeof name, "_ZGV%s", sym->name + 2);
    int status = look_up(q, o, name, PM_ELF_IN_SYMTAB | PM_ELF_IN_DYNSYM, &guard);
    return status == PM_OK && guard.verdict == PM_ELF_FOUND
               ? checked_range(q, o, guard.value, guard.size)
               : status;
}

static int several_variables(struct query *q, const struct pm_object *o,
                             const struct pm_elf_symbol *sym) {
    if (*sym->part)
        return pm_fail(q->err, PM_USAGE,
                       "the compiler has made %s of another variable of that name in %s; declare "
                       "that one __attribute__((used)), and compile it again, or use +0x%lx/%lu, "
                       "the one that is whole",
                       sym->part, o->name, (unsigned long)sym->value, (unsigned long)sym->size);
    return pm_fail(q->err, PM_USAGE,
                   "%u variables of that name in %s (+0x%lx/%lu, +0x%lx/%lu%s); use one of these "
                   "ranges",
                   sym->count, o->name, (unsigned long)sym->value, (unsigned long)sym->size,
                   (unsigned long)sym->second_value, (unsigned long)sym->second_size,
                   sym->count > 2 ? ", ..." : "");
}

// Adds the range of a symbol that was searched in the object, or says why it cannot be a root.
static int symbol_range(struct query *q, const struct pm_object *o,
                        const struct pm_elf_symbol *sym) {
    int status;
    switch (sym->verdict) {
    case PM_ELF_FOUND:
        status = checked_range(q, o, sym->value, sym->size);
        return status == PM_OK ? guard_range(q, o, sym) : status;
    case PM_ELF_AMBIGUOUS:
        return several_variables(q, o, sym);
    case PM_ELF_FUNCTION:
        return pm_fail(q->err, PM_USAGE, "a function in %s, not a variable", o->name);
    case PM_ELF_TLS:
        return pm_fail(q->err, PM_USAGE,
                       "thread-local in %s, so there is one in each thread; only plain "
                       "globals can be roots",
                       o->name);
    case PM_ELF_ABSOLUTE:
        return pm_fail(q->err, PM_USAGE, "an absolute value in %s, not a variable", o->name);
    case PM_ELF_NO_SIZE:
        return pm_fail(q->err, PM_USAGE, "%s does not say its size; use +0x%lx/LENGTH instead",
                       o->name, (unsigned long)sym->value);
    case PM_ELF_MISSING:
        break;
    }
    return missing_symbol(q, o, sym);
}

// Finds a symbol of a named object. The main program may have a variable of the same name as an
// exported one of a library (a copy relocation, or its own definition). Then the dynamic linker
// lets all objects use the program's variable.
static int named_symbol(struct query *q) {
    struct pm_object o, program;
    struct pm_elf_symbol sym, copy;
    int status = find_object(q, &o);
    if (status == PM_OK)
        status = look_up(q, &o, q->spec->name, PM_ELF_IN_SYMTAB | PM_ELF_IN_DYNSYM, &sym);
    if (status != PM_OK)
        return status;
    if (!o.is_main && sym.verdict == PM_ELF_FOUND && sym.preemptible) {
        pm_object_main(&program);
        status = look_up(q, &program, q->spec->name, PM_ELF_IN_DYNSYM, &copy);
        if (status != PM_OK)
            return status;
        if (copy.verdict == PM_ELF_FOUND)
            return symbol_range(q, &program, &copy);
    }
    return symbol_range(q, &o, &sym);
}

struct symbol_search {
    struct query *q;
    unsigned usable, unusable; // objects
    struct pm_object found;    // the first with a usable symbol; if none, the first with another
    struct pm_elf_symbol sym;
    char second[PM_ROOT_OBJECT_LEN];
    bool unreadable;
};

static int symbol_step(const struct pm_object *o, void *arg) {
    struct symbol_search *s = arg;
    struct pm_elf_symbol sym;
    if (o->is_main || pm_object_is_libc(o) || pm_object_is_linker(o) || pm_object_is_vdso(o) ||
        pm_object_is_self(o))
        return 0;
    if (look_up(s->q, o, s->q->spec->name, PM_ELF_IN_SYMTAB | PM_ELF_IN_DYNSYM, &sym) != PM_OK) {
        s->unreadable = true; // its message stands if nothing else is found
        return 0;
    }
    if (sym.verdict == PM_ELF_MISSING)
        return 0;
    bool usable = sym.verdict == PM_ELF_FOUND || sym.verdict == PM_ELF_AMBIGUOUS;
    if (usable ? s->usable == 0 : s->usable + s->unusable == 0) {
        s->found = *o;
        s->sym = sym;
    } else if (usable) {
        memcpy(s->second, o->name, sizeof s->second);
    }
    *(usable ? &s->usable : &s->unusable) += 1;
    return 0;
}

static int unnamed_symbol(struct query *q) {
    struct pm_object program;
    struct pm_elf_symbol sym;
    pm_object_main(&program);
    int status = look_up(q, &program, q->spec->name, PM_ELF_IN_SYMTAB | PM_ELF_IN_DYNSYM, &sym);
    if (status != PM_OK)
        return status;
    if (sym.verdict != PM_ELF_MISSING)
        return symbol_range(q, &program, &sym);
    struct symbol_search s = {.q = q};
    pm_object_each(symbol_step, &s);
    if (s.usable > 1)
        return pm_fail(q->err, PM_USAGE, "in both %s and %s; write %s:%s or %s:%s", s.found.name,
                       s.second, s.found.name, q->spec->name, s.second, q->spec->name);
    if (s.usable + s.unusable != 0)
        return symbol_range(q, &s.found, &s.sym);
    return s.unreadable ? q->err->status : missing_symbol(q, &program, &sym);
}

static void note_build(const struct pm_object *o, struct pm_location *out) {
    uint8_t id[PM_BUILD_ID_MAX] = {0};
    pm_object_build_id(o, id);
    memcpy(out->build, id, sizeof out->build);
}

// A part of a variable. In another build that may be another part, if the variable has another
// size: so that stands in the place of the build id.
static int part_range(struct query *q, const struct pm_spec *spec) {
    struct pm_spec whole = *spec;
    whole.kind = PM_ROOT_SYMBOL;
    q->spec = &whole;
    int status = whole.object[0] != '\0' ? named_symbol(q) : unnamed_symbol(q);
    uint64_t size = status == PM_OK ? q->out->length : 0;
    if (status != PM_OK)
        return status;
    if (spec->offset >= size || spec->length > size - spec->offset)
        return pm_fail(q->err, PM_USAGE, "the variable has %lu bytes", (unsigned long)size);
    q->out->addr += spec->offset;
    q->out->length = spec->length;
    memset(q->out->build, 0, sizeof q->out->build);
    memcpy(q->out->build, &size, sizeof size);
    q->n = 1; // without a guard
    return PM_OK;
}

int pm_locate(const struct pm_spec *spec, struct pm_location *out, size_t cap, size_t *n,
              struct pm_error *err) {
    int saved = errno, status;
    char text[PM_SPEC_TEXT_LEN];
    struct query q = {.spec = spec, .out = out, .cap = cap, .err = err};
    struct pm_object o;
    if (spec->kind == PM_ROOT_SYMBOL) {
        status = spec->object[0] != '\0' ? named_symbol(&q) : unnamed_symbol(&q);
    } else if (spec->kind == PM_ROOT_RANGE && spec->name[0] != '\0') {
        status = part_range(&q, spec);
    } else {
        status = find_object(&q, &o);
        if (status == PM_OK)
            status = spec->kind == PM_ROOT_OBJECT
                         ? object_ranges(&q, &o)
                         : checked_range(&q, &o, spec->offset, spec->length);
        if (status == PM_OK && spec->kind == PM_ROOT_RANGE)
            note_build(&o, out);
    }
    if (status != PM_OK && pm_spec_format(spec, text, sizeof text) >= 0)
        pm_fail_in(err, "root %s", text);
    *n = status == PM_OK ? q.n : 0;
    errno = saved;
    return status;
}

// ---- the program --------------------------------------------------------------------------------

// Widens [*start, *end), which is empty if *end is 0, to include the object's segments.
static void add_extent(const struct pm_object *o, uint64_t *start, uint64_t *end) {
    for (size_t i = 0; i < o->phnum; i++) {
        uint64_t from = o->base + o->phdr[i].p_vaddr, to = from + o->phdr[i].p_memsz;
        if (o->phdr[i].p_type != PT_LOAD)
            continue;
        if (*end == 0 || from < *start)
            *start = from;
        if (to > *end)
            *end = to;
    }
}

static int identity_step(const struct pm_object *o, void *arg) {
    struct pm_program *id = arg;
    if (o->is_main)
        add_extent(o, &id->main_start, &id->main_end);
    else if (!pm_object_is_vdso(o))
        add_extent(o, &id->libs_start, &id->libs_end);
    if (o->is_main) {
        id->main_base = o->base;
        id->build_id_len = (uint32_t)pm_object_build_id(o, id->build_id);
    } else if (id->libc_base == 0 && pm_object_is_libc(o)) {
        id->libc_base = o->base;
    }
    return 0;
}

bool pm_locate_program(struct pm_program *out) {
    int saved = errno;
    char path[PATH_MAX];
    memset(out, 0, sizeof *out);
    pm_object_each(identity_step, out);
    bool ok = pm_object_program_path(path, sizeof path);
    size_t len = ok ? strlen(path) : 0, cut = 0;
    if (len >= sizeof out->path)
        cut = len - (sizeof out->path - 1);
    memcpy(out->path, path + cut, len - cut);
    errno = saved;
    return ok;
}
