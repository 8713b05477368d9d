// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "elf_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"
#include "base/similar.h"
#include "cxxname.h"

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
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || (uint64_t)st.st_size < sizeof f->ehdr) {
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

// Whether the string is the name, perhaps with @VERSION after it. `room` bytes of the string are in
// the table.
static bool name_matches(const char *s, uint64_t room, const char *name, size_t len) {
    return room > len && memcmp(s, name, len) == 0 && (s[len] == '\0' || s[len] == '@');
}

static unsigned rank_of(const ElfW(Sym) * s) {
    switch (ELF64_ST_BIND(s->st_info)) {
    case STB_GLOBAL:
    case STB_GNU_UNIQUE:
        return 3;
    case STB_WEAK:
        return 2;
    default:
        return 1;
    }
}

static enum pm_elf_verdict judge(const ElfW(Sym) * s) {
    switch (ELF64_ST_TYPE(s->st_info)) {
    case STT_TLS:
        return PM_ELF_TLS;
    case STT_FUNC:
    case STT_GNU_IFUNC:
        return PM_ELF_FUNCTION;
    case STT_OBJECT:
    case STT_COMMON:
    case STT_NOTYPE: // assembler and linker-script variables
        if (s->st_shndx == SHN_ABS)
            return PM_ELF_ABSOLUTE;
        return s->st_size != 0 ? PM_ELF_FOUND : PM_ELF_NO_SIZE;
    default: // sections, files
        return PM_ELF_MISSING;
    }
}

// Takes the symbol if it is better than the one found so far. A usable variable is better than
// anything else, then a higher binding, then the one found first. Aliases (same place and size) are
// one variable.
static void consider(struct pm_elf_symbol *out, const ElfW(Sym) * s) {
    enum pm_elf_verdict v = judge(s);
    unsigned rank = rank_of(s);
    bool had = out->verdict == PM_ELF_FOUND || out->verdict == PM_ELF_AMBIGUOUS;
    if (v == PM_ELF_MISSING || (v != PM_ELF_FOUND && out->verdict != PM_ELF_MISSING))
        return;
    if (v == PM_ELF_FOUND && had) {
        if (rank < out->rank ||
            (rank == out->rank && out->value == s->st_value && out->size == s->st_size))
            return;
        if (rank == out->rank) {
            if (out->count > 1 && out->second_value == s->st_value)
                return;
            out->verdict = PM_ELF_AMBIGUOUS;
            out->second_value = s->st_value;
            out->second_size = s->st_size;
            out->count++;
            return;
        }
    }
    out->verdict = v;
    out->value = s->st_value;
    out->size = s->st_size;
    out->rank = rank;
    out->count = 1;
    out->preemptible = rank > 1 && ELF64_ST_VISIBILITY(s->st_other) == STV_DEFAULT;
}

// Remembers a variable whose name is like the one asked for: it differs in case only (these come
// first), or one of the two begins with the other.
static void consider_near(struct pm_elf_symbol *out, const char *s, uint64_t room, const char *name,
                          size_t len) {
    size_t n = strnlen(s, room < PM_ELF_NEAR_LEN ? room : PM_ELF_NEAR_LEN);
    if (n == PM_ELF_NEAR_LEN || n == room || n < 2 || len < 2)
        return;
    bool same = n == len && strncasecmp(s, name, n) == 0;
    if (!same &&
        (out->near_count == PM_ELF_NEAR_MAX || strncasecmp(s, name, n < len ? n : len) != 0))
        return;
    for (unsigned i = 0; i < out->near_count; i++)
        if (memcmp(out->near_name[i], s, n + 1) == 0)
            return;
    unsigned at = out->near_count;
    if (same) {
        at = 0;
        memmove(out->near_name[1], out->near_name[0], (PM_ELF_NEAR_MAX - 1) * PM_ELF_NEAR_LEN);
    }
    memcpy(out->near_name[at], s, n + 1);
    if (out->near_count < PM_ELF_NEAR_MAX)
        out->near_count++;
}

// The same for a C++ variable in a scope, if the name asked for is its name without the scope.
static void consider_scoped(struct pm_elf_symbol *out, const char *plain, const char *name,
                            size_t len) {
    size_t n = strlen(plain);
    if (n > len + 2 && n < PM_ELF_NEAR_LEN && strcmp(plain + n - len, name) == 0 &&
        memcmp(plain + n - len - 2, "::", 2) == 0)
        consider_near(out, plain, n + 1, plain, n);
}

static void keep_name(struct pm_elf_symbol *out, const char *s, uint64_t room) {
    size_t n = strnlen(s, room < PM_ELF_NAME_LEN ? room : PM_ELF_NAME_LEN);
    bool fits = n < PM_ELF_NAME_LEN && n < room;
    memcpy(out->name, fits ? s : "", fits ? n + 1 : 1);
    char *version = strchr(out->name, '@');
    if (version != NULL)
        *version = '\0';
}

// Compares every symbol of a table with the name. `plain`: compares C++ names instead of symbols.
static void scan_table(const struct pm_elf_table *t, const char *name, bool plain,
                       struct pm_elf_symbol *out) {
    size_t len = strlen(name);
    ElfW(Sym) s;
    for (uint64_t i = 1; i < t->count; i++) {
        memcpy(&s, t->syms + i * sizeof s, sizeof s);
        if (s.st_shndx == SHN_UNDEF || s.st_name == 0 || s.st_name >= t->strings_size)
            continue;
        const char *str = t->strings + s.st_name;
        uint64_t room = t->strings_size - s.st_name, before = out->value;
        bool object = ELF64_ST_TYPE(s.st_info) == STT_OBJECT && s.st_size != 0;
        char cxx[PM_ELF_NAME_LEN] = "";
        if (plain && !(object && pm_cxxname_plain(str, room, cxx, sizeof cxx)))
            continue;
        if (plain ? strcmp(cxx, name) == 0 : name_matches(str, room, name, len)) {
            consider(out, &s);
            if (out->count == 1 && (out->value != before || out->name[0] == '\0'))
                keep_name(out, str, room);
        } else if (plain) {
            consider_scoped(out, cxx, name, len);
        } else if (object) {
            consider_near(out, str, room, name, len);
        }
    }
}

// Only where the name was not found: looks for those that it may be misspelt for.
static void scan_similar(const struct pm_elf_table *t, const char *name,
                         struct pm_elf_symbol *out) {
    ElfW(Sym) s;
    for (uint64_t i = 1; i < t->count && out->near_count < PM_ELF_NEAR_MAX; i++) {
        memcpy(&s, t->syms + i * sizeof s, sizeof s);
        if (s.st_shndx == SHN_UNDEF || s.st_name == 0 || s.st_name >= t->strings_size ||
            ELF64_ST_TYPE(s.st_info) != STT_OBJECT || s.st_size == 0)
            continue;
        const char *str = t->strings + s.st_name;
        uint64_t room = t->strings_size - s.st_name;
        char cxx[PM_ELF_NAME_LEN] = "";
        if (strnlen(str, room) == room)
            continue;
        const char *text = pm_cxxname_plain(str, room, cxx, sizeof cxx) ? cxx : str;
        if (strlen(text) < PM_ELF_NEAR_LEN && pm_similar(text, name))
            consider_near(out, text, strlen(text) + 1, text, strlen(text));
    }
}

static void find_similar(const struct pm_elf *f, const char *name, unsigned tables,
                         struct pm_elf_symbol *out) {
    struct pm_elf_table t;
    if ((tables & PM_ELF_IN_SYMTAB) && pm_elf_table(f, SHT_SYMTAB, &t) > 0)
        scan_similar(&t, name, out);
    if ((tables & PM_ELF_IN_DYNSYM) && pm_elf_table(f, SHT_DYNSYM, &t) > 0)
        scan_similar(&t, name, out);
}

// ---- parts --------------------------------------------------------------------------------------

// Whether clang has compiled some of it: every compiler puts its name into .comment.
static bool signed_by_clang(const struct pm_elf *f) {
    ElfW(Shdr) s;
    for (size_t i = 0; pm_elf_shdr(f, i, &s); i++) {
        if (strcmp(pm_elf_section_name(f, &s), ".comment") != 0)
            continue;
        const unsigned char *text = bytes_at(f, s.sh_offset, s.sh_size);
        return text != NULL && memmem(text, s.sh_size, "clang", 5) != NULL;
    }
    return false;
}

// clang takes a variable apart whose address nobody has: each member that is used is a variable of
// its own, NAME.0, NAME.1. gcc has such a name for a whole static of a function. Where one
// allocation alone is stored in a pointer, clang has that memory in the program, NAME.body, and
// remembers by NAME.init that the program has asked for it; the data is then on no heap.
static bool is_part(const char *suffix, bool clang) {
    bool sure = clang;
    size_t len;
    if (*suffix != '.')
        return false;
    for (; *suffix == '.'; suffix += len) {
        len = strcspn(++suffix, ".");
        bool word = len == 4 && (memcmp(suffix, "init", 4) == 0 || memcmp(suffix, "body", 4) == 0);
        if (!word && (len == 0 || strspn(suffix, "0123456789") != len))
            return false;
        sure = sure || word;
    }
    return sure;
}

// What is behind the name in a symbol, which may be a C++ name; NULL: the symbol is of another one.
static const char *behind_name(const char *s, const char *name) {
    char symbol[PM_ELF_NAME_LEN], cxx[PM_ELF_NAME_LEN];
    size_t len = strlen(name), head = strcspn(s, ".");
    if (strncmp(s, name, len) == 0)
        return s + len;
    if (head >= sizeof symbol)
        return NULL;
    memcpy(symbol, s, head);
    symbol[head] = '\0';
    return pm_cxxname_plain(symbol, sizeof symbol, cxx, sizeof cxx) && strcmp(cxx, name) == 0
               ? s + head
               : NULL;
}

struct part_search {
    const char *name;
    bool clang;
    struct pm_elf_symbol *out;
};

static void take_part(const char *symbol, uint64_t value, uint64_t size, void *arg) {
    struct part_search *q = arg;
    const char *suffix = *q->out->part ? NULL : behind_name(symbol, q->name);
    (void)value, (void)size;
    if (suffix != NULL && is_part(suffix, q->clang) && strlen(symbol) < sizeof q->out->part)
        memcpy(q->out->part, symbol, strlen(symbol) + 1);
}

static void find_part(const struct pm_elf *f, const char *name, unsigned tables,
                      struct pm_elf_symbol *out) {
    struct part_search q = {name, signed_by_clang(f), out};
    struct pm_error ignored;
    if (tables & PM_ELF_IN_SYMTAB)
        pm_elf_each_variable(f, PM_ELF_IN_SYMTAB, take_part, &q, &ignored);
}

// ---- one name -----------------------------------------------------------------------------------

int pm_elf_find(const struct pm_elf *f, const char *name, unsigned tables,
                struct pm_elf_symbol *out, struct pm_error *err) {
    static const struct {
        unsigned bit;
        uint32_t type;
    } order[] = {{PM_ELF_IN_SYMTAB, SHT_SYMTAB}, {PM_ELF_IN_DYNSYM, SHT_DYNSYM}};
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < 4 && out->verdict == PM_ELF_MISSING; i++) {
        struct pm_elf_table t;
        bool plain = i >= 2;
        int have = (tables & order[i % 2].bit) != 0 ? pm_elf_table(f, order[i % 2].type, &t) : 0;
        if (have < 0)
            return pm_fail(err, PM_OPERATIONAL, "truncated or damaged ELF file (symbol table)");
        if (have == 0)
            continue;
        if (order[i % 2].bit == PM_ELF_IN_SYMTAB || tables == PM_ELF_IN_DYNSYM)
            out->have_table = true; // .dynsym alone has only what is exported
        scan_table(&t, name, plain, out);
    }
    if (out->verdict == PM_ELF_MISSING && out->near_count == 0)
        find_similar(f, name, tables, out);
    if (out->verdict == PM_ELF_MISSING)
        find_part(f, name, tables, out);
    return PM_OK;
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
            ELF64_ST_TYPE(s.st_info) != STT_OBJECT || judge(&s) != PM_ELF_FOUND ||
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
