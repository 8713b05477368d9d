// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "own_names.h"

#include <features.h>

#ifdef __GLIBC__
#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "base/bare_thread.h"

#define LIBC "libc.so.6"
#define VERSION_MASK 0x7fffu // of a version index; the bit above says "hidden"
#define PAGE 4096ul

// Of an object in memory. glibc has relocated these addresses, but not the vDSO's.
struct object {
    uintptr_t base;
    const ElfW(Sym) * symbol;
    const char *string;
    const uint32_t *hash;
    const ElfW(Half) * version; // of each symbol
    const ElfW(Verdef) * defines;
    const ElfW(Verneed) * needs;
    const ElfW(Rela) * relocation[2];
    size_t count[2];
    const char *name;
};

extern const char __ehdr_start[] __attribute__((visibility("hidden")));

static bool same(const char *a, const char *b) {
    while (*a && *a == *b)
        a++, b++;
    return *a == *b;
}

static void read_object(struct object *o, uintptr_t base, const ElfW(Dyn) * dyn) {
    uintptr_t soname = 0;
    *o = (struct object){.base = base};
    for (; dyn->d_tag != DT_NULL; dyn++) {
        uintptr_t where = dyn->d_un.d_ptr;
        const void *at = (const void *)(where < base ? base + where : where);
        switch (dyn->d_tag) {
        case DT_SYMTAB:
            o->symbol = at;
            break;
        case DT_STRTAB:
            o->string = at;
            break;
        case DT_GNU_HASH:
            o->hash = at;
            break;
        case DT_VERSYM:
            o->version = at;
            break;
        case DT_VERDEF:
            o->defines = at;
            break;
        case DT_VERNEED:
            o->needs = at;
            break;
        case DT_RELA:
            o->relocation[0] = at;
            break;
        case DT_RELASZ:
            o->count[0] = dyn->d_un.d_val / sizeof(ElfW(Rela));
            break;
        case DT_JMPREL:
            o->relocation[1] = at;
            break;
        case DT_PLTRELSZ:
            o->count[1] = dyn->d_un.d_val / sizeof(ElfW(Rela));
            break;
        case DT_SONAME:
            soname = dyn->d_un.d_val;
        }
    }
    o->name = o->string ? o->string + soname : "";
}

// The program's segments, as the kernel has told the loader behind the environment.
struct program {
    const ElfW(Phdr) * segment;
    size_t count;
    uintptr_t base;
};

static bool find_program(struct program *p, char **env) {
    *p = (struct program){0};
    while (*env)
        env++;
    for (const ElfW(auxv_t) *a = (const void *)(env + 1); a->a_type != AT_NULL; a++) {
        if (a->a_type == AT_PHDR)
            p->segment = (const void *)a->a_un.a_val;
        if (a->a_type == AT_PHNUM)
            p->count = a->a_un.a_val;
    }
    for (size_t i = 0; p->segment && i < p->count; i++)
        if (p->segment[i].p_type == PT_PHDR)
            p->base = (uintptr_t)p->segment - p->segment[i].p_vaddr;
    return p->segment;
}

// The list of what is loaded. The loader's own name for it, _r_debug, would make the loader another
// library that this one needs.
static const struct link_map *loaded(const struct program *p) {
    for (size_t i = 0; i < p->count; i++) {
        const ElfW(Dyn) *dyn = (const void *)(p->base + p->segment[i].p_vaddr);
        for (; p->segment[i].p_type == PT_DYNAMIC && dyn->d_tag != DT_NULL; dyn++)
            if (dyn->d_tag == DT_DEBUG && dyn->d_un.d_ptr)
                return ((const struct r_debug *)dyn->d_un.d_ptr)->r_map;
    }
    return NULL;
}

static bool find_libc(const struct program *p, struct object *libc) {
    for (const struct link_map *l = loaded(p); l; l = l->l_next) {
        read_object(libc, l->l_addr, l->l_ld);
        if (libc->string && same(libc->name, LIBC))
            return libc->symbol && libc->hash && libc->version && libc->defines;
    }
    return false;
}

static bool is_in(const struct program *p, uintptr_t address) {
    for (size_t i = 0; i < p->count; i++)
        if (p->segment[i].p_type == PT_LOAD &&
            address - (p->base + p->segment[i].p_vaddr) < p->segment[i].p_memsz)
            return true;
    return false;
}

static const char *needed_version(const struct object *o, size_t symbol) {
    unsigned wanted = o->version ? o->version[symbol] & VERSION_MASK : 0;
    const ElfW(Verneed) *file = o->needs;
    while (file && wanted > VER_NDX_GLOBAL) {
        const ElfW(Vernaux) *v = (const void *)((const char *)file + file->vn_aux);
        for (unsigned i = 0; i < file->vn_cnt; i++) {
            if ((v->vna_other & VERSION_MASK) == wanted)
                return o->string + v->vna_name;
            v = (const void *)((const char *)v + v->vna_next);
        }
        file = file->vn_next ? (const void *)((const char *)file + file->vn_next) : NULL;
    }
    return NULL;
}

static bool defines_version(const struct object *o, size_t symbol, const char *version) {
    unsigned index = o->version[symbol] & VERSION_MASK;
    for (const ElfW(Verdef) *d = o->defines;; d = (const void *)((const char *)d + d->vd_next)) {
        const ElfW(Verdaux) *aux = (const void *)((const char *)d + d->vd_aux);
        if (d->vd_ndx == index)
            return same(o->string + aux->vda_name, version);
        if (!d->vd_next)
            return false;
    }
}

static uint32_t hash_of(const char *name) {
    uint32_t h = 5381;
    while (*name)
        h = h * 33 + (uint8_t)*name++;
    return h;
}

// The value of a function of this name and version; 0: there is none.
static uintptr_t find(const struct object *o, const char *name, const char *version) {
    uint32_t buckets = o->hash[0], first = o->hash[1], words = o->hash[2], h = hash_of(name);
    const uint32_t *bucket = o->hash + 4 + words * (sizeof(ElfW(Addr)) / sizeof *o->hash);
    const uint32_t *chain = bucket + buckets;
    for (uint32_t i = bucket[h % buckets]; i >= first; i++) {
        const ElfW(Sym) *s = &o->symbol[i];
        if ((chain[i - first] | 1) == (h | 1) && s->st_shndx != SHN_UNDEF &&
            same(o->string + s->st_name, name) && defines_version(o, i, version)) {
            uintptr_t value = o->base + s->st_value;
            return ELF64_ST_TYPE(s->st_info) == STT_GNU_IFUNC ? ((uintptr_t(*)(void))value)()
                                                              : value;
        }
        if (chain[i - first] & 1)
            break;
    }
    return 0;
}

// The table of imports is read-only once it is relocated (RELRO).
static void replace(uintptr_t *slot, uintptr_t value) {
    uintptr_t page = (uintptr_t)slot & -PAGE;
    if (pm_bare_call6(SYS_mprotect, (long)page, PAGE, PROT_READ | PROT_WRITE, 0, 0, 0) != 0)
        return;
    *slot = value;
    pm_bare_call6(SYS_mprotect, (long)page, PAGE, PROT_READ, 0, 0, 0);
}

static void avoid(const struct object *own, const struct program *program, const ElfW(Rela) * r) {
    static struct object libc; // looked for once
    const size_t index = ELF64_R_SYM(r->r_info);
    const ElfW(Sym) *s = &own->symbol[index];
    uintptr_t *slot = (uintptr_t *)(own->base + r->r_offset);
    const char *version;
    if (!index || s->st_shndx != SHN_UNDEF || ELF64_ST_TYPE(s->st_info) != STT_FUNC || !*slot ||
        !is_in(program, *slot) || !(version = needed_version(own, index)) ||
        (!libc.symbol && !find_libc(program, &libc)))
        return;
    uintptr_t value = find(&libc, own->string + s->st_name, version);
    if (value)
        replace(slot, value);
}

void pm_own_names_avoid(char **env) {
    struct object own;
    struct program program;
    if (!find_program(&program, env))
        return;
    read_object(&own, (uintptr_t)__ehdr_start, _DYNAMIC);
    for (unsigned table = 0; table < 2; table++)
        for (size_t i = 0; i < own.count[table]; i++)
            avoid(&own, &program, &own.relocation[table][i]);
}
#else
// musl's linker leaves its own names alone.
void pm_own_names_avoid(char **env) { (void)env; }
#endif
