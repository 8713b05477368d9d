// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The ELF reader, on files made here byte by byte: duplicates, bindings, versions, similar names.
// Then the same file is cut at every length, and random bytes are changed. The reader must never
// crash.
#define _GNU_SOURCE
#include "roots/elf_find.h"
#include "tests/unit/check.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static unsigned char image[8192];
static size_t image_size;
static ElfW(Sym) syms[64];
static size_t sym_count;
static char strings[2048];
static size_t strings_size;
static int fd;
static char path[64];
static struct pm_error err;
static const char *made_by = "a compiler"; // .comment

static void begin(void) {
    static const char first[] = "\0.comment";
    sym_count = 1; // the null symbol
    strings_size = sizeof first;
    memset(syms, 0, sizeof syms);
    memset(strings, 0, sizeof strings);
    memcpy(strings, first, sizeof first);
}

static void add(const char *name, unsigned bind, unsigned type, unsigned shndx, uint64_t value,
                uint64_t size) {
    ElfW(Sym) *s = &syms[sym_count++];
    s->st_name = (uint32_t)strings_size;
    s->st_info = (unsigned char)ELF64_ST_INFO(bind, type);
    s->st_shndx = (uint16_t)shndx;
    s->st_value = value;
    s->st_size = size;
    strcpy(strings + strings_size, name);
    strings_size += strlen(name) + 1;
}

static void variable(const char *name, unsigned bind, uint64_t value) {
    add(name, bind, STT_OBJECT, 1, value, 8);
}

static void write_image(size_t size) {
    CHECK_EQ(ftruncate(fd, 0), 0);
    CHECK_EQ(pwrite(fd, image, size, 0), size);
}

// header | build id note | symbols | strings | comment | sections: null, comment, table, strings
static void finish(uint32_t table_type) {
    struct {
        ElfW(Ehdr) e;
        ElfW(Phdr) p[2];
        ElfW(Nhdr) n;
        char note[4 + 20];
    } h;
    memset(&h, 0, sizeof h);
    memcpy(h.e.e_ident, ELFMAG, SELFMAG);
    h.e.e_ident[EI_CLASS] = __ELF_NATIVE_CLASS == 64 ? ELFCLASS64 : ELFCLASS32;
    h.e.e_ident[EI_DATA] = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ELFDATA2LSB : ELFDATA2MSB;
    h.e.e_type = ET_DYN;
    h.e.e_phoff = offsetof(__typeof__(h), p);
    h.e.e_phentsize = sizeof(ElfW(Phdr));
    h.e.e_phnum = 2;
    h.e.e_shentsize = sizeof(ElfW(Shdr));
    h.e.e_shnum = 4;
    h.e.e_shstrndx = 3;
    h.p[0].p_type = PT_LOAD;
    h.p[1].p_type = PT_NOTE;
    h.p[1].p_offset = offsetof(__typeof__(h), n);
    h.p[1].p_filesz = sizeof h.n + sizeof h.note;
    h.n.n_namesz = 4;
    h.n.n_descsz = 20;
    h.n.n_type = NT_GNU_BUILD_ID;
    memcpy(h.note, "GNU\0ABCDEFGHIJKLMNOPQRST", sizeof h.note);
    size_t at_syms = sizeof h, at_strings = at_syms + sym_count * sizeof syms[0];
    size_t at_comment = at_strings + strings_size, comment = strlen(made_by) + 1;
    h.e.e_shoff = (at_comment + comment + 7) & ~(size_t)7;
    ElfW(Shdr) s[4];
    memset(s, 0, sizeof s);
    s[2].sh_type = table_type;
    s[2].sh_offset = at_syms;
    s[2].sh_size = sym_count * sizeof syms[0];
    s[2].sh_entsize = sizeof syms[0];
    s[2].sh_link = 3;
    s[3].sh_type = SHT_STRTAB;
    s[3].sh_offset = at_strings;
    s[3].sh_size = strings_size;
    s[1].sh_type = SHT_PROGBITS;
    s[1].sh_name = 1;
    s[1].sh_offset = at_comment;
    s[1].sh_size = comment;
    image_size = h.e.e_shoff + sizeof s;
    memset(image, 0, sizeof image);
    memcpy(image, &h, sizeof h);
    memcpy(image + at_syms, syms, s[2].sh_size);
    memcpy(image + at_strings, strings, strings_size);
    memcpy(image + at_comment, made_by, comment);
    memcpy(image + h.e.e_shoff, s, sizeof s);
    write_image(image_size);
}

static struct pm_elf_symbol sym;

static enum pm_elf_verdict find(const char *name) {
    struct pm_elf f;
    err = (struct pm_error){.status = PM_OK};
    if (pm_elf_open(&f, path, &err) != PM_OK)
        return (enum pm_elf_verdict)99;
    int r = pm_elf_find(&f, name, PM_ELF_IN_SYMTAB | PM_ELF_IN_DYNSYM, &sym, &err);
    uint8_t id[PM_BUILD_ID_MAX];
    CHECK(pm_elf_build_id(&f, id) <= PM_BUILD_ID_MAX);
    pm_elf_close(&f);
    return r == 0 ? sym.verdict : (enum pm_elf_verdict)98;
}

static void make_usual(void) {
    begin();
    variable("head", STB_LOCAL, 0x1000);
    variable("head", STB_GLOBAL, 0x2000);
    variable("head", STB_LOCAL, 0x3000);
    variable("twice", STB_LOCAL, 0x10);
    variable("twice", STB_LOCAL, 0x20);
    variable("twice", STB_LOCAL, 0x20);
    variable("alias", STB_GLOBAL, 0x30);
    variable("alias", STB_GLOBAL, 0x30);
    variable("weak", STB_WEAK, 0x40);
    variable("weak", STB_LOCAL, 0x50);
    variable("unique", STB_GNU_UNIQUE, 0x60);
    variable("out@V_1", STB_GLOBAL, 0x70);
    variable("out2@@V_2", STB_GLOBAL, 0x80);
    add("both", STB_LOCAL, STT_FUNC, 1, 1, 8);
    variable("both", STB_LOCAL, 0x90);
    add("fun", STB_GLOBAL, STT_FUNC, 1, 1, 8);
    add("tls", STB_GLOBAL, STT_TLS, 1, 1, 8);
    add("abs", STB_GLOBAL, STT_OBJECT, SHN_ABS, 1, 8);
    add("nosize", STB_GLOBAL, STT_NOTYPE, 1, 0xa0, 0);
    add("asmvar", STB_GLOBAL, STT_NOTYPE, 1, 0xb0, 8);
    add("undef", STB_GLOBAL, STT_OBJECT, SHN_UNDEF, 0, 8);
    add("a.c", STB_LOCAL, STT_FILE, SHN_ABS, 0, 0);
    variable("list_1", STB_GLOBAL, 1);
    variable("list_2", STB_GLOBAL, 2);
    variable("list_3", STB_GLOBAL, 3);
    variable("LIST", STB_GLOBAL, 4);
    finish(SHT_SYMTAB);
}

static void test_verdicts(void) {
    make_usual();
    CHECK_EQ(find("head"), PM_ELF_FOUND);
    CHECK_EQ(sym.value, 0x2000);
    CHECK_EQ(sym.size, 8);
    CHECK(sym.preemptible && sym.have_table);
    CHECK_EQ(find("twice"), PM_ELF_AMBIGUOUS);
    CHECK_EQ(sym.count, 2);
    CHECK_EQ(sym.value, 0x10);
    CHECK_EQ(sym.second_value, 0x20);
    CHECK_EQ(find("alias"), PM_ELF_FOUND);
    CHECK_EQ(find("weak"), PM_ELF_FOUND);
    CHECK_EQ(sym.value, 0x40);
    CHECK_EQ(find("unique"), PM_ELF_FOUND);
    CHECK_EQ(find("out"), PM_ELF_FOUND);
    CHECK_EQ(find("out@V_1"), PM_ELF_FOUND);
    CHECK_EQ(find("out2"), PM_ELF_FOUND);
    CHECK_EQ(find("out@V"), PM_ELF_MISSING);
    CHECK_EQ(find("both"), PM_ELF_FOUND);
    CHECK_EQ(sym.value, 0x90);
    CHECK(!sym.preemptible);
    CHECK_EQ(find("fun"), PM_ELF_FUNCTION);
    CHECK_EQ(find("tls"), PM_ELF_TLS);
    CHECK_EQ(find("abs"), PM_ELF_ABSOLUTE);
    CHECK_EQ(find("nosize"), PM_ELF_NO_SIZE);
    CHECK_EQ(sym.value, 0xa0);
    CHECK_EQ(find("asmvar"), PM_ELF_FOUND);
    CHECK_EQ(find("undef"), PM_ELF_MISSING);
    CHECK_EQ(find("a.c"), PM_ELF_MISSING);
    CHECK_EQ(find(""), PM_ELF_MISSING);
}

static void test_similar_names(void) {
    make_usual();
    CHECK_EQ(find("list"), PM_ELF_MISSING);
    CHECK_EQ(sym.near_count, 3);
    CHECK_STR(sym.near_name[0], "LIST");
    CHECK_STR(sym.near_name[1], "list_1");
    CHECK_STR(sym.near_name[2], "list_2");
    CHECK_EQ(find("list_10"), PM_ELF_MISSING);
    CHECK_STR(sym.near_name[0], "list_1");
    CHECK_EQ(find("FUN"), PM_ELF_MISSING);
    CHECK_EQ(sym.near_count, 0);
}

static void test_parts(void) {
    static const char *const none[] = {"count", "hel", "free", "tate", NULL};
    begin();
    variable("held.body.0", STB_LOCAL, 0x10);
    variable("_ZL5state.init", STB_LOCAL, 0x20);
    variable("count.0", STB_LOCAL, 0x30); // a static of a function, for clang has not signed
    variable("held.bodyguard", STB_LOCAL, 0x40);
    variable("free.x.init", STB_LOCAL, 0x50);
    finish(SHT_SYMTAB);
    CHECK_EQ(find("held"), PM_ELF_MISSING);
    CHECK_STR(sym.part, "held.body.0");
    CHECK_EQ(find("state"), PM_ELF_MISSING);
    CHECK_STR(sym.part, "_ZL5state.init");
    for (size_t i = 0; none[i] != NULL; i++) {
        CHECK_EQ(find(none[i]), PM_ELF_MISSING);
        CHECK_STR(sym.part, "");
    }
}

static void file(const char *name) { add(name, STB_LOCAL, STT_FILE, SHN_ABS, 0, 0); }

static void test_names_of_lto(void) {
    begin();
    file("a.c");
    variable("alone.lto_priv.12", STB_GLOBAL, 0x10);
    variable("pair.llvm.34", STB_GLOBAL, 0x20);
    variable("pair", STB_LOCAL, 0x30);
    variable("head", STB_GLOBAL, 0x40);
    variable("head.llvm.5", STB_GLOBAL, 0x50);
    variable("other.llvm.", STB_LOCAL, 0x60);
    variable("third.lto_priv.1x", STB_LOCAL, 0x70);
    variable("_ZN3appL5stateE.llvm.7", STB_GLOBAL, 0x80);
    finish(SHT_SYMTAB);
    CHECK_EQ(find("alone"), PM_ELF_FOUND);
    CHECK_EQ(sym.value, 0x10);
    CHECK(!sym.preemptible);
    CHECK_STR(sym.name, "alone");
    CHECK_EQ(find("alone.lto_priv.12"), PM_ELF_FOUND);
    CHECK_EQ(find("pair"), PM_ELF_AMBIGUOUS);
    CHECK_EQ(sym.count, 2);
    CHECK_EQ(find("head"), PM_ELF_FOUND); // as without LTO: the other one was local
    CHECK_EQ(sym.value, 0x40);
    CHECK_EQ(find("other"), PM_ELF_MISSING);
    CHECK_EQ(find("third"), PM_ELF_MISSING);
    CHECK_EQ(find("app::state"), PM_ELF_FOUND);
    CHECK_EQ(sym.value, 0x80);
    CHECK_STR(sym.name, "_ZN3appL5stateE");
}

static void make_numbered(void) {
    begin();
    file("gcc.c");
    variable("count", STB_LOCAL, 0x10);
    variable("count.0", STB_LOCAL, 0x20); // a static of a function
    file("");
    variable("table", STB_LOCAL, 0x30);
    variable("table.3", STB_LOCAL, 0x40);
    variable("table.4.init", STB_LOCAL, 0x50);
    variable("table.name", STB_LOCAL, 0x58);
    variable("tables.5", STB_LOCAL, 0x60);
    file("ld-temp.o");
    variable("_ZL5stock", STB_LOCAL, 0x70);
    variable("_ZL5stock.1", STB_LOCAL, 0x80);
    variable("open.2", STB_LOCAL, 0x90);
    variable("far.1", STB_LOCAL, 0xa0);
    file("");
    variable("far", STB_LOCAL, 0xb0);
    variable("open", STB_GLOBAL, 0xc0);
    finish(SHT_SYMTAB);
}

static void test_numbers_of_lto(void) {
    static const char *const found[] = {"count", "open", "far", "tables.5", NULL};
    made_by = "GCC, clang version 14";
    make_numbered();
    CHECK_EQ(find("table"), PM_ELF_AMBIGUOUS);
    CHECK_EQ(sym.count, 3);
    CHECK_EQ(sym.value, 0x30);
    CHECK_EQ(sym.second_value, 0x50);
    CHECK_EQ(find("stock"), PM_ELF_AMBIGUOUS);
    CHECK_EQ(sym.second_value, 0x80);
    CHECK_EQ(find("_ZL5stock"), PM_ELF_AMBIGUOUS);
    for (size_t i = 0; found[i] != NULL; i++)
        CHECK_EQ(find(found[i]), PM_ELF_FOUND);
    made_by = "GCC";
    make_numbered();
    CHECK_EQ(find("table"), PM_ELF_FOUND); // gcc numbers statics of functions
}

// One source has a variable whole, and in another one clang has taken its namesake apart.
static void make_taken_apart(const char *first, const char *second) {
    begin();
    file("crtstuff.c");
    variable("completed.0", STB_LOCAL, 0x08);
    file(first);
    variable("table.1.init", STB_LOCAL, 0x10);
    variable("table.0", STB_LOCAL, 0x18);
    variable("_ZL5stock.0", STB_LOCAL, 0x20);
    variable("open.0", STB_LOCAL, 0x28);
    variable("held", STB_LOCAL, 0x30);
    variable("held.0", STB_LOCAL, 0x38);
    file(second);
    variable("table", STB_LOCAL, 0x40);
    variable("_ZL5stock", STB_LOCAL, 0x50);
    variable("completed", STB_LOCAL, 0x60);
    variable("open", STB_GLOBAL, 0x70);
    variable("lone.llvm.5", STB_GLOBAL, 0x80);
    variable("open.llvm.5", STB_GLOBAL, 0x90);
    finish(SHT_SYMTAB);
}

static void test_taken_apart_elsewhere(void) {
    static const char *const found[] = {"completed", "held", "open", "lone", NULL};
    made_by = "GCC, clang version 19";
    for (unsigned i = 0; i < 3; i++) { // ld-temp.o: only one of the two is compiled with LTO
        make_taken_apart(i == 1 ? "ld-temp.o" : "a.c", i == 2 ? "ld-temp.o" : "b.c");
        CHECK_EQ(find("table"), PM_ELF_AMBIGUOUS);
        CHECK_EQ(sym.count, 2);
        CHECK_EQ(sym.value, 0x40);
        CHECK_EQ(sym.second_value, 0x10);
        CHECK_STR(sym.part, "table.1.init");
        CHECK_EQ(find("stock"), PM_ELF_AMBIGUOUS);
        CHECK_STR(sym.part, "_ZL5stock.0");
        for (size_t j = 0; found[j] != NULL; j++) {
            CHECK_EQ(find(found[j]), i == 1 && j == 1 ? PM_ELF_AMBIGUOUS : PM_ELF_FOUND);
            CHECK_STR(sym.part, "");
        }
    }
    made_by = "GCC";
    make_taken_apart("a.c", "b.c");
    CHECK_EQ(find("table"), PM_ELF_FOUND); // a static of a function
}

static void test_tables(void) {
    make_usual();
    finish(SHT_DYNSYM);
    CHECK_EQ(find("head"), PM_ELF_FOUND);
    CHECK_EQ(find("missing"), PM_ELF_MISSING);
    CHECK(!sym.have_table);
    finish(SHT_PROGBITS);
    CHECK_EQ(find("head"), PM_ELF_MISSING);
    finish(SHT_SYMTAB);
    ElfW(Ehdr) e;
    memcpy(&e, image, sizeof e);
    ElfW(Shdr) s;
    memcpy(&s, image + e.e_shoff, sizeof s);
    s.sh_size = e.e_shnum; // extended numbering
    e.e_shnum = 0;
    memcpy(image + e.e_shoff, &s, sizeof s);
    memcpy(image, &e, sizeof e);
    write_image(image_size);
    CHECK_EQ(find("head"), PM_ELF_FOUND);
    e.e_shoff = 0;
    memcpy(image, &e, sizeof e);
    write_image(image_size);
    CHECK_EQ(find("head"), PM_ELF_MISSING);
    CHECK_STR(err.text, "");
}

static void test_build_id(void) {
    struct pm_elf f;
    uint8_t id[PM_BUILD_ID_MAX];
    make_usual();
    CHECK_EQ(pm_elf_open(&f, path, &err), 0);
    CHECK_EQ(pm_elf_build_id(&f, id), 20);
    CHECK(memcmp(id, "ABCDEFGHIJKLMNOPQRST", 20) == 0);
    char text[2 * PM_BUILD_ID_MAX + 1] = "not yet";
    CHECK(pm_elf_hex(text, id, 2) == text + 4);
    CHECK_STR(text, "4142");
    CHECK(pm_elf_hex(text, (const uint8_t[]){0, 0x0f, 0xf0, 0xff}, 4) == text + 8);
    CHECK_STR(text, "000ff0ff");
    CHECK(pm_elf_hex(text, id, 0) == text);
    CHECK_STR(text, "");
    pm_elf_close(&f);
    ElfW(Nhdr) n[4] = {{4, 0xffffffff, NT_GNU_BUILD_ID}};
    CHECK_EQ(pm_elf_notes_build_id((unsigned char *)n, sizeof n, 4, id), 0);
    n[0].n_namesz = 0xffffffff;
    CHECK_EQ(pm_elf_notes_build_id((unsigned char *)n, sizeof n, 8, id), 0);
    CHECK_EQ(pm_elf_notes_build_id((unsigned char *)n, 3, 4, id), 0);
}

static void test_not_elf(void) {
    struct pm_elf f;
    static const struct {
        const char *path, *part;
    } bad[] = {{"/nonexistent", "/nonexistent: cannot open: No such file"},
               {"/tmp", "not an ELF file"},
               {"/dev/null", "not an ELF file"},
               {"/proc/self/maps", "not an ELF file"},
               {"/etc/passwd", "not an ELF file"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK(pm_elf_open(&f, bad[i].path, &err) != 0);
        CHECK_HAS(err.text, bad[i].part);
    }
    make_usual();
    image[EI_CLASS] ^= 3;
    write_image(image_size);
    CHECK(pm_elf_open(&f, path, &err) != 0);
    CHECK_HAS(err.text, "another architecture");
}

static void test_truncated(void) {
    make_usual();
    CHECK_EQ(find("head"), PM_ELF_FOUND);
    for (size_t size = 0; size < image_size; size++) {
        write_image(size);
        enum pm_elf_verdict v = find("head");
        CHECK(v == 98 || v == 99);
        CHECK(err.text[0] != '\0');
    }
}

// xorshift: the same bytes in every run
static uint64_t random_state = 88172645463325252ull;
static uint64_t rnd(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static void test_damaged(void) {
    static const unsigned char edge[] = {0, 1, 0x7f, 0x80, 0xff, 0xfe};
    static unsigned char good[sizeof image];
    make_usual();
    memcpy(good, image, sizeof good);
    for (int round = 0; round < 20000; round++) {
        // Half of the changes hit the headers, where the offsets are.
        for (uint64_t k = rnd() % 8 + 1; k != 0; k--) {
            size_t tail = 3 * sizeof(ElfW(Shdr));
            size_t at = rnd() % 2 ? rnd() % image_size
                                  : (rnd() % 2 ? rnd() % 192 : image_size - 1 - rnd() % tail);
            if (at >= EI_NIDENT)
                image[at] = rnd() % 2 ? edge[rnd() % sizeof edge] : (unsigned char)rnd();
        }
        CHECK_EQ(pwrite(fd, image, image_size, 0), image_size);
        (void)find(round % 2 ? "head" : "list");
        memcpy(image, good, image_size);
    }
}

int main(void) {
    fd = memfd_create("elf", MFD_CLOEXEC);
    CHECK(fd >= 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    RUN(verdicts);
    RUN(similar_names);
    RUN(parts);
    RUN(names_of_lto);
    RUN(numbers_of_lto);
    RUN(taken_apart_elsewhere);
    RUN(tables);
    RUN(build_id);
    RUN(not_elf);
    RUN(truncated);
    RUN(damaged);
    return CHECK_DONE();
}
