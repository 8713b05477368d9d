// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

#define _GNU_SOURCE
#include "gc/elf.h"

#include "gc/elf_object.h"
#include "gc/errline.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/auxv.h>

enum { LIST_LEN = 160 };

// One spec on its way to ranges.
struct query {
    const struct root_spec *spec;
    char text[ROOT_TEXT_LEN]; // of the spec, for messages
    struct root_range *out;
    size_t cap;
    size_t n;
    char *err;
    size_t errlen;
};

// Appends ", item" to a list of the given size; "..." once it does not fit.
static void list_add(char *list, size_t size, const char *item) {
    size_t at = strlen(list), need = strlen(item) + 2;
    if (at >= 3 && strcmp(list + at - 3, "...") == 0)
        return;
    if (at + need + sizeof ", ..." > size)
        item = "...";
    (void)snprintf(list + at, size - at, "%s%s", at != 0 ? ", " : "", item);
}

// Ranges -----------------------------------------------------------------------------------------

static int add_range(struct query *q, const struct elf_object *o, uintptr_t addr, size_t length) {
    if (q->n == q->cap)
        return errline(q->err, q->errlen, "root %s: more than %zu ranges", q->text, q->cap);
    struct root_range *r = &q->out[q->n++];
    memset(r, 0, sizeof *r);
    r->addr = addr;
    r->length = length;
    memcpy(r->object, o->name, sizeof r->object);
    return 0;
}

// What RELRO made read-only after relocation; [0, 0) when there is none. The linker starts at the
// page below, and never beyond the end.
static void relro_of(const struct elf_object *o, uintptr_t *lo, uintptr_t *hi) {
    uintptr_t page = getauxval(AT_PAGESZ);
    *lo = *hi = 0;
    for (size_t i = 0; i < o->phnum; i++)
        if (o->phdr[i].p_type == PT_GNU_RELRO) {
            *hi = o->base + o->phdr[i].p_vaddr + o->phdr[i].p_memsz;
            *lo = (o->base + o->phdr[i].p_vaddr) & ~(page - 1);
        }
}

static int outside_segments(struct query *q, const struct elf_object *o) {
    char list[LIST_LEN] = "", item[64];
    for (size_t i = 0; i < o->phnum; i++) {
        const ElfW(Phdr) *p = &o->phdr[i];
        if (p->p_type != PT_LOAD || (p->p_flags & PF_W) == 0)
            continue;
        (void)snprintf(item, sizeof item, "+0x%lx/%lu", (unsigned long)p->p_vaddr,
                       (unsigned long)p->p_memsz);
        list_add(list, sizeof list, item);
    }
    return errline(q->err, q->errlen, "root %s: not inside one writable segment of %s (%s)",
                   q->text, o->name, list[0] != '\0' ? list : "it has none");
}

// The range at a link-time address, if all of it is a variable's kind of memory.
static int checked_range(struct query *q, const struct elf_object *o, uint64_t offset,
                         uint64_t length) {
    uintptr_t lo, hi, addr = o->base + offset;
    for (size_t i = 0; i < o->phnum; i++) {
        const ElfW(Phdr) *p = &o->phdr[i];
        uint64_t into = offset - p->p_vaddr; // wraps to huge below the segment
        if (p->p_type != PT_LOAD || into > p->p_memsz || length > p->p_memsz - into)
            continue;
        if ((p->p_flags & PF_W) == 0)
            return errline(q->err, q->errlen, "root %s: in read-only memory of %s: a constant",
                           q->text, o->name);
        relro_of(o, &lo, &hi);
        if (addr < hi && addr + length > lo)
            return errline(q->err, q->errlen,
                           "root %s: in memory of %s that is read-only after relocation (RELRO): a "
                           "constant",
                           q->text, o->name);
        return add_range(q, o, addr, length);
    }
    return outside_segments(q, o);
}

static int object_ranges(struct query *q, const struct elf_object *o) {
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
        if (lo < before && add_range(q, o, lo, before - lo) != 0)
            return -1;
        if (after < hi && add_range(q, o, after, hi - after) != 0)
            return -1;
    }
    if (q->n == 0)
        return errline(q->err, q->errlen, "root %s: %s has no writable data", q->text, o->name);
    return 0;
}

// Finding the object -----------------------------------------------------------------------------

struct object_search {
    const char *name;
    unsigned best; // 0 none, 1 up to ".so", 2 base name or soname
    unsigned count;
    struct elf_object found;
    char second[ROOT_OBJECT_LEN];
    char loaded[LIST_LEN];
};

// How well the user's name fits: "libz.so.1.2.13", its soname "libz.so.1", or "libz" or "libz.so".
static unsigned object_match(const struct elf_object *o, const char *name) {
    if (strcmp(o->name, name) == 0 || (!o->is_main && strcmp(elf_object_soname(o), name) == 0))
        return 2;
    const char *so = strstr(o->name, ".so");
    size_t stem = so != NULL ? (size_t)(so - o->name) : 0, len = strlen(name);
    if (stem == 0 || strncmp(o->name, name, len) != 0)
        return 0;
    return len == stem || len == stem + 3;
}

static int match_step(const struct elf_object *o, void *arg) {
    struct object_search *s = arg;
    unsigned m = elf_object_is_vdso(o) ? 0 : object_match(o, s->name);
    if (m > s->best) {
        s->best = m;
        s->count = 1;
        s->found = *o;
    } else if (m != 0 && m == s->best) {
        s->count++;
        memcpy(s->second, o->name, sizeof s->second);
    }
    if (!elf_object_is_vdso(o))
        list_add(s->loaded, sizeof s->loaded, o->name);
    return 0;
}

static int find_object(struct query *q, struct elf_object *out) {
    struct object_search s = {.name = q->spec->object};
    if (s.name[0] == '\0') {
        elf_main_object(out);
        return 0;
    }
    elf_each_object(match_step, &s);
    if (s.count == 0)
        return errline(q->err, q->errlen, "root %s: no program or library %s is loaded; loaded: %s",
                       q->text, s.name, s.loaded);
    if (s.count > 1)
        return errline(q->err, q->errlen, "root %s: %s is both %s and %s; give the full name",
                       q->text, s.name, s.found.name, s.second);
    if (elf_object_is_self(&s.found))
        return errline(q->err, q->errlen, "root %s: %s is PMAlloc itself", q->text, s.found.name);
    *out = s.found;
    return 0;
}

// Symbols ----------------------------------------------------------------------------------------

static int look_up(struct query *q, const struct elf_object *o, const char *name, unsigned tables,
                   struct elf_symbol *sym) {
    struct elf_file f;
    char what[LIST_LEN * 2];
    memset(sym, 0, sizeof *sym);
    if (elf_object_open(o, &f, what, sizeof what) != 0)
        return errline(q->err, q->errlen, "root %s: %s", q->text, what);
    int r = elf_file_find(&f, name, tables, sym, what, sizeof what);
    elf_file_close(&f);
    return r == 0 ? 0 : errline(q->err, q->errlen, "root %s: %s: %s", q->text, o->name, what);
}

static int missing_symbol(struct query *q, const struct elf_object *o,
                          const struct elf_symbol *sym) {
    char list[ELF_NEAR_MAX * (ELF_NEAR_LEN + 8)] = "";
    for (unsigned i = 0; i < sym->near_count; i++)
        list_add(list, sizeof list, sym->near_name[i]);
    if (list[0] != '\0')
        return errline(q->err, q->errlen, "root %s: no such variable in %s; did you mean %s?",
                       q->text, o->name, list);
    if (!sym->have_table)
        return errline(
            q->err, q->errlen,
            "root %s: no such variable in %s, which is stripped; use +OFFSET/LENGTH or *", q->text,
            o->name);
    return errline(q->err, q->errlen, "root %s: no such variable in %s", q->text, o->name);
}

// A static of a function has a guard beside it that says whether it was constructed: it comes back with the
// variable, or the next run would construct it anew over what was restored.
static int guard_range(struct query *q, const struct elf_object *o, const struct elf_symbol *sym) {
    struct elf_symbol guard;
    char name[ELF_NAME_LEN + 4];
    if (strncmp(sym->name, "_Z", 2) != 0)
        return 0;
    (void)snprintf(name, sizeof name, "_ZGV%s", sym->name + 2);
    if (look_up(q, o, name, ELF_IN_SYMTAB | ELF_IN_DYNSYM, &guard) != 0)
        return -1;
    return guard.verdict == ELF_SYM_FOUND ? checked_range(q, o, guard.value, guard.size) : 0;
}

// A symbol that was found in the object: its range, or why it cannot be a root.
static int symbol_range(struct query *q, const struct elf_object *o, const struct elf_symbol *sym) {
    switch (sym->verdict) {
    case ELF_SYM_FOUND:
        return checked_range(q, o, sym->value, sym->size) == 0 ? guard_range(q, o, sym) : -1;
    case ELF_SYM_AMBIGUOUS:
        return errline(q->err, q->errlen,
                       "root %s: %u variables of that name in %s (+0x%lx/%lu, +0x%lx/%lu%s); use "
                       "one of these ranges",
                       q->text, sym->count, o->name, (unsigned long)sym->value,
                       (unsigned long)sym->size, (unsigned long)sym->second_value,
                       (unsigned long)sym->second_size, sym->count > 2 ? ", ..." : "");
    case ELF_SYM_FUNCTION:
        return errline(q->err, q->errlen, "root %s: a function in %s, not a variable", q->text,
                       o->name);
    case ELF_SYM_TLS:
        return errline(q->err, q->errlen,
                       "root %s: thread-local in %s, so there is one in each thread; only plain "
                       "globals can be roots",
                       q->text, o->name);
    case ELF_SYM_ABSOLUTE:
        return errline(q->err, q->errlen, "root %s: an absolute value in %s, not a variable",
                       q->text, o->name);
    case ELF_SYM_NO_SIZE:
        return errline(q->err, q->errlen,
                       "root %s: %s does not say its size; use +0x%lx/LENGTH instead", q->text,
                       o->name, (unsigned long)sym->value);
    case ELF_SYM_MISSING:
        break;
    }
    return missing_symbol(q, o, sym);
}

// The library was named, but the dynamic linker may have bound its exported variable to a copy in
// the main program (a copy relocation, or a definition of the same name), which everybody then uses.
static int named_symbol(struct query *q) {
    struct elf_object o, program;
    struct elf_symbol sym, copy;
    if (find_object(q, &o) != 0 ||
        look_up(q, &o, q->spec->name, ELF_IN_SYMTAB | ELF_IN_DYNSYM, &sym) != 0)
        return -1;
    if (!o.is_main && sym.verdict == ELF_SYM_FOUND && sym.preemptible) {
        elf_main_object(&program);
        if (look_up(q, &program, q->spec->name, ELF_IN_DYNSYM, &copy) != 0)
            return -1;
        if (copy.verdict == ELF_SYM_FOUND)
            return symbol_range(q, &program, &copy);
    }
    return symbol_range(q, &o, &sym);
}

struct symbol_search {
    struct query *q;
    unsigned usable, unusable; // objects
    struct elf_object found;   // the first usable one; until there is one, the first unusable
    struct elf_symbol sym;
    char second[ROOT_OBJECT_LEN];
    bool unreadable;
};

static int symbol_step(const struct elf_object *o, void *arg) {
    struct symbol_search *s = arg;
    struct elf_symbol sym;
    if (o->is_main || elf_object_is_libc(o) || elf_object_is_linker(o) || elf_object_is_vdso(o) ||
        elf_object_is_self(o))
        return 0;
    if (look_up(s->q, o, s->q->spec->name, ELF_IN_SYMTAB | ELF_IN_DYNSYM, &sym) != 0) {
        s->unreadable = true; // its message stands if nothing else is found
        return 0;
    }
    if (sym.verdict == ELF_SYM_MISSING)
        return 0;
    bool usable = sym.verdict == ELF_SYM_FOUND || sym.verdict == ELF_SYM_AMBIGUOUS;
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
    struct elf_object program;
    struct elf_symbol sym;
    elf_main_object(&program);
    if (look_up(q, &program, q->spec->name, ELF_IN_SYMTAB | ELF_IN_DYNSYM, &sym) != 0)
        return -1;
    if (sym.verdict != ELF_SYM_MISSING)
        return symbol_range(q, &program, &sym);
    struct symbol_search s = {.q = q};
    elf_each_object(symbol_step, &s);
    if (s.usable > 1)
        return errline(q->err, q->errlen, "root %s: in both %s and %s; write %s:%s or %s:%s",
                       q->text, s.found.name, s.second, s.found.name, q->spec->name, s.second,
                       q->spec->name);
    if (s.usable + s.unusable != 0)
        return symbol_range(q, &s.found, &s.sym);
    return s.unreadable ? -1 : missing_symbol(q, &program, &sym);
}

int elf_resolve(const struct root_spec *spec, struct root_range *out, size_t cap, size_t *n,
                char *err, size_t errlen) {
    int saved = errno, r = -1;
    struct query q = {.spec = spec, .out = out, .cap = cap, .err = err, .errlen = errlen};
    struct elf_object o;
    if (rootspec_format(spec, q.text, sizeof q.text) < 0)
        (void)snprintf(q.text, sizeof q.text, "(invalid)");
    switch (spec->kind) {
    case ROOT_SYMBOL:
        r = spec->object[0] != '\0' ? named_symbol(&q) : unnamed_symbol(&q);
        break;
    case ROOT_OBJECT:
        r = find_object(&q, &o) != 0 ? -1 : object_ranges(&q, &o);
        break;
    case ROOT_RANGE:
        r = find_object(&q, &o) != 0 ? -1 : checked_range(&q, &o, spec->offset, spec->length);
        break;
    default:
        errline_fill(err, errlen, "not a root");
    }
    *n = r == 0 ? q.n : 0;
    if (r == 0 && err != NULL && errlen != 0)
        err[0] = '\0'; // a library that could not be searched does not matter any more
    errno = saved;
    return r;
}

// Identity ---------------------------------------------------------------------------------------

// Widens [*start, *end), empty where *end is 0, by the object's segments.
static void add_extent(const struct elf_object *o, uint64_t *start, uint64_t *end) {
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

static int identity_step(const struct elf_object *o, void *arg) {
    struct pm_program *id = arg;
    if (o->is_main)
        add_extent(o, &id->main_start, &id->main_end);
    else if (!elf_object_is_vdso(o))
        add_extent(o, &id->libs_start, &id->libs_end);
    if (o->is_main) {
        id->main_base = o->base;
        id->build_id_len = (uint32_t)elf_object_build_id(o, id->build_id);
    } else if (id->libc_base == 0 && elf_object_is_libc(o)) {
        id->libc_base = o->base;
    }
    return 0;
}

int elf_identity(struct pm_program *out) {
    int saved = errno;
    char path[PATH_MAX];
    memset(out, 0, sizeof *out);
    elf_each_object(identity_step, out);
    bool ok = elf_program_path(path, sizeof path);
    size_t len = ok ? strlen(path) : 0, cut = 0;
    if (len >= sizeof out->path)
        cut = len - (sizeof out->path - 1);
    memcpy(out->path, path + cut, len - cut);
    errno = saved;
    return ok ? 0 : -1;
}

// Addresses --------------------------------------------------------------------------------------

struct address_search {
    uintptr_t addr;
    struct elf_object found;
};

static int address_step(const struct elf_object *o, void *arg) {
    struct address_search *s = arg;
    if (!elf_object_holds(o, s->addr))
        return 0;
    s->found = *o;
    return 1;
}

bool elf_object_at(uintptr_t addr, char *name, size_t len, uintptr_t *base) {
    int saved = errno;
    struct address_search s = {.addr = addr};
    bool found = elf_each_object(address_step, &s) != 0;
    if (found) {
        (void)snprintf(name, len, "%s", s.found.name);
        *base = s.found.base;
    }
    errno = saved;
    return found;
}
