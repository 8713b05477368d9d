// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "elf_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define NATIVE_DATA ELFDATA2LSB
#else
#define NATIVE_DATA ELFDATA2MSB
#endif
#define NATIVE_CLASS (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32)

// The only access to the mapping: returns the `len` bytes at `off`, or NULL if they are not all in
// the file.
static const unsigned char *bytes_at(const struct pm_elf *f, uint64_t off, uint64_t len) {
    return off <= f->size && len <= f->size - off ? f->map + off : NULL;
}

// Copies out entry i of a table at `off` whose entries have `size` bytes. i < 2^32, so i * size
// does not wrap.
static bool entry_at(const struct pm_elf *f, uint64_t off, uint64_t i, void *out, size_t size) {
    uint64_t at;
    if (__builtin_add_overflow(off, i * size, &at))
        return false;
    const unsigned char *p = bytes_at(f, at, size);
    if (p != NULL)
        memcpy(out, p, size);
    return p != NULL;
}

static const char *header_problem(const struct pm_elf *f) {
    const ElfW(Ehdr) *e = &f->ehdr;
    if (memcmp(e->e_ident, ELFMAG, SELFMAG) != 0)
        return "not an ELF file";
    if (e->e_ident[EI_CLASS] != NATIVE_CLASS || e->e_ident[EI_DATA] != NATIVE_DATA)
        return "an ELF file of another architecture";
    if (e->e_type != ET_EXEC && e->e_type != ET_DYN)
        return "neither a program nor a shared library";
    if (e->e_phentsize != sizeof(ElfW(Phdr)) ||
        (e->e_shoff != 0 && e->e_shentsize != sizeof(ElfW(Shdr))))
        return "damaged (size of its headers)";
    if (bytes_at(f, e->e_phoff, (uint64_t)e->e_phnum * sizeof(ElfW(Phdr))) == NULL)
        return "truncated or damaged (program headers)";
    return NULL;
}

int pm_elf_open(struct pm_elf *f, const char *path, struct pm_error *err) {
    struct stat st;
    memset(f, 0, sizeof *f);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return pm_fail(err, PM_OPERATIONAL, "%s: cannot open: %s", path, pm_strerror(errno));
    if (fstat(fd, &st) != 0) {
        int problem = errno;
        close(fd);
        return pm_fail(err, PM_OPERATIONAL, "%s: cannot look at it: %s", path,
                       pm_strerror(problem));
    }
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size < sizeof f->ehdr) {
        close(fd);
        return pm_fail(err, PM_OPERATIONAL, "%s: not an ELF file", path);
    }
    void *map =
        mmap(pm_os_place((size_t)st.st_size), (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    int problem = errno;
    close(fd);
    if (map == MAP_FAILED)
        return pm_fail(err, PM_OPERATIONAL, "%s: cannot map: %s", path, pm_strerror(problem));
    const char *what = pm_elf_take(f, map, (size_t)st.st_size);
    f->ino = st.st_ino;
    if (what == NULL)
        return 0;
    pm_elf_close(f);
    return pm_fail(err, PM_OPERATIONAL, "%s: %s", path, what);
}

const char *pm_elf_take(struct pm_elf *f, const void *bytes, size_t size) {
    *f = (struct pm_elf){.map = bytes, .size = size};
    if (size < sizeof f->ehdr)
        return "not an ELF file";
    memcpy(&f->ehdr, bytes, sizeof f->ehdr);
    return header_problem(f);
}

void pm_elf_close(struct pm_elf *f) {
    if (f->map != NULL)
        munmap((void *)(uintptr_t)f->map, f->size);
    f->map = NULL;
    f->size = 0;
}

bool pm_elf_phdr(const struct pm_elf *f, size_t i, ElfW(Phdr) * out) {
    return i < f->ehdr.e_phnum && entry_at(f, f->ehdr.e_phoff, i, out, sizeof *out);
}

bool pm_elf_shdr(const struct pm_elf *f, size_t i, ElfW(Shdr) * out) {
    return i < f->ehdr.e_shnum && f->ehdr.e_shoff != 0 &&
           entry_at(f, f->ehdr.e_shoff, i, out, sizeof *out);
}

const unsigned char *pm_elf_bytes(const struct pm_elf *f, uint64_t offset, uint64_t len) {
    return bytes_at(f, offset, len);
}

const char *pm_elf_section_name(const struct pm_elf *f, const ElfW(Shdr) * section) {
    ElfW(Shdr) names;
    uint64_t at;
    if (!pm_elf_shdr(f, f->ehdr.e_shstrndx, &names) ||
        __builtin_add_overflow(names.sh_offset, section->sh_name, &at))
        return "";
    const unsigned char *name = bytes_at(f, at, 1);
    return name && memchr(name, 0, f->size - at) ? (const char *)name : "";
}

size_t pm_elf_notes_build_id(const unsigned char *notes, size_t size, size_t p_align,
                             uint8_t id[PM_BUILD_ID_MAX]) {
    size_t mask = (p_align == 8 ? 8 : 4) - 1;
    ElfW(Nhdr) h;
    for (size_t at = 0; size - at >= sizeof h;) {
        memcpy(&h, notes + at, sizeof h);
        // The sizes have 32 bits, the sums 64: nothing wraps.
        uint64_t name = at + sizeof h;
        uint64_t desc = (name + h.n_namesz + mask) & ~(uint64_t)mask;
        uint64_t next = (desc + h.n_descsz + mask) & ~(uint64_t)mask;
        if (desc + h.n_descsz > size)
            return 0;
        if (h.n_type == NT_GNU_BUILD_ID && h.n_namesz == 4 && memcmp(notes + name, "GNU", 4) == 0) {
            size_t len = h.n_descsz < PM_BUILD_ID_MAX ? h.n_descsz : PM_BUILD_ID_MAX;
            memcpy(id, notes + desc, len);
            return len;
        }
        if (next > size)
            return 0;
        at = (size_t)next;
    }
    return 0;
}

size_t pm_elf_build_id(const struct pm_elf *f, uint8_t id[PM_BUILD_ID_MAX]) {
    ElfW(Phdr) p;
    for (size_t i = 0, len; pm_elf_phdr(f, i, &p); i++) {
        if (p.p_type != PT_NOTE)
            continue;
        const unsigned char *notes = bytes_at(f, p.p_offset, p.p_filesz);
        if (notes != NULL && (len = pm_elf_notes_build_id(notes, p.p_filesz, p.p_align, id)) != 0)
            return len;
    }
    return 0;
}

char *pm_elf_hex(char *out, const uint8_t *bytes, size_t count) {
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < count; i++) {
        *out++ = digits[bytes[i] >> 4];
        *out++ = digits[bytes[i] & 15];
    }
    *out = '\0';
    return out;
}

// ---- symbol tables ------------------------------------------------------------------------------

int pm_elf_table(const struct pm_elf *f, uint32_t type, struct pm_elf_table *t) {
    const ElfW(Ehdr) *e = &f->ehdr;
    ElfW(Shdr) s, str;
    uint64_t count = e->e_shnum;
    if (e->e_shoff == 0)
        return 0;
    if (!entry_at(f, e->e_shoff, 0, &s, sizeof s))
        return -1;
    if (count == 0) // there are more sections than e_shnum can have
        count = s.sh_size < UINT32_MAX ? s.sh_size : 0;
    for (uint64_t i = 0; i < count; i++) {
        if (!entry_at(f, e->e_shoff, i, &s, sizeof s))
            return -1;
        if (s.sh_type != type)
            continue;
        if (s.sh_entsize != sizeof(ElfW(Sym)) || s.sh_link >= count ||
            !entry_at(f, e->e_shoff, s.sh_link, &str, sizeof str) || str.sh_type != SHT_STRTAB)
            return -1;
        t->syms = bytes_at(f, s.sh_offset, s.sh_size);
        t->count = s.sh_size / sizeof(ElfW(Sym));
        t->strings = (const char *)bytes_at(f, str.sh_offset, str.sh_size);
        t->strings_size = str.sh_size;
        return t->syms != NULL && t->strings != NULL ? 1 : -1;
    }
    return 0;
}

const char *pm_elf_symbol_at(const struct pm_elf_table *t, uint64_t i, ElfW(Sym) * out) {
    memcpy(out, t->syms + i * sizeof *out, sizeof *out);
    bool named = out->st_name != 0 && out->st_name < t->strings_size &&
                 memchr(t->strings + out->st_name, 0, t->strings_size - out->st_name);
    return named ? t->strings + out->st_name : NULL;
}

// ---- all of them --------------------------------------------------------------------------------

int pm_elf_each_variable(const struct pm_elf *f, unsigned tables, pm_elf_variable *visit, void *arg,
                         struct pm_error *err) {
    struct pm_elf_table t;
    ElfW(Sym) s;
    int have = pm_elf_table(f, tables == PM_ELF_IN_SYMTAB ? SHT_SYMTAB : SHT_DYNSYM, &t);
    if (have < 0)
        return pm_fail(err, PM_OPERATIONAL, "truncated or damaged ELF file (symbol table)");
    for (uint64_t i = 1; have && i < t.count; i++) {
        memcpy(&s, t.syms + i * sizeof s, sizeof s);
        if (s.st_shndx == SHN_UNDEF || s.st_name == 0 || s.st_name >= t.strings_size ||
            ELF64_ST_TYPE(s.st_info) != STT_OBJECT || s.st_shndx == SHN_ABS || s.st_size == 0 ||
            !memchr(t.strings + s.st_name, 0, t.strings_size - s.st_name))
            continue;
        visit(t.strings + s.st_name, s.st_value, s.st_size, arg);
    }
    return PM_OK;
}

void pm_elf_each_section(const struct pm_elf *f, pm_elf_section *visit, void *arg) {
    ElfW(Shdr) s;
    for (size_t i = 0; pm_elf_shdr(f, i, &s); i++) {
        const char *name = s.sh_flags & SHF_ALLOC ? pm_elf_section_name(f, &s) : "";
        if (*name)
            visit(name, s.sh_addr, s.sh_size, arg);
    }
}

bool pm_elf_has_symtab(const struct pm_elf *f) {
    struct pm_elf_table t;
    return pm_elf_table(f, SHT_SYMTAB, &t) > 0;
}

bool pm_elf_imports(const struct pm_elf *f, const char *prefix) {
    struct pm_elf_table t;
    ElfW(Sym) s;
    size_t len = strlen(prefix);
    int have = pm_elf_table(f, SHT_DYNSYM, &t);
    for (uint64_t i = 1; have > 0 && i < t.count; i++) {
        memcpy(&s, t.syms + i * sizeof s, sizeof s);
        if (s.st_shndx == SHN_UNDEF && s.st_name < t.strings_size &&
            t.strings_size - s.st_name > len && memcmp(t.strings + s.st_name, prefix, len) == 0)
            return true;
    }
    return false;
}
