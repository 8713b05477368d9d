// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What a preloaded malloc cannot get into, by the ELF file alone.
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "gc/elf_file.h"
#include "target.h"

// What the file holds at an address of the loaded program: a string within it, or "".
static const char *string_at(const struct elf_file *f, uint64_t address) {
    ElfW(Phdr) p;
    for (size_t i = 0; elf_file_phdr(f, i, &p); i++) {
        uint64_t at = address - p.p_vaddr;
        if (p.p_type != PT_LOAD || at >= p.p_filesz || p.p_offset > f->size ||
            at >= f->size - p.p_offset)
            continue;
        const char *s = (const char *)f->map + p.p_offset + at;
        return memchr(s, '\0', f->size - p.p_offset - at) ? s : "";
    }
    return "";
}

static bool find_segment(const struct elf_file *f, uint32_t type, ElfW(Phdr) * out) {
    for (size_t i = 0; elf_file_phdr(f, i, out); i++)
        if (out->p_type == type && out->p_offset <= f->size &&
            out->p_filesz <= f->size - out->p_offset)
            return true;
    return false;
}

// The i-th entry of the dynamic section; false behind the last one.
static bool dynamic_entry(const struct elf_file *f, const ElfW(Phdr) * p, size_t i,
                          ElfW(Dyn) * out) {
    if (i >= p->p_filesz / sizeof *out)
        return false;
    memcpy(out, f->map + p->p_offset + i * sizeof *out, sizeof *out);
    return out->d_tag != DT_NULL;
}

// The sanitizer whose runtime library the program is linked with, or NULL.
static const char *sanitizer(const struct elf_file *f) {
    static const char *const names[][2] = {
        {"libasan.so", "AddressSanitizer"}, {"libclang_rt.asan", "AddressSanitizer"},
        {"libtsan.so", "ThreadSanitizer"},  {"libclang_rt.tsan", "ThreadSanitizer"},
        {"liblsan.so", "LeakSanitizer"},    {"libhwasan.so", "HWAddressSanitizer"}};
    ElfW(Phdr) p;
    ElfW(Dyn) d;
    uint64_t strings = 0;
    if (!find_segment(f, PT_DYNAMIC, &p))
        return NULL;
    for (size_t i = 0; dynamic_entry(f, &p, i, &d); i++)
        if (d.d_tag == DT_STRTAB)
            strings = d.d_un.d_ptr;
    for (size_t i = 0; dynamic_entry(f, &p, i, &d); i++) {
        const char *needed = d.d_tag == DT_NEEDED ? string_at(f, strings + d.d_un.d_val) : "";
        for (size_t n = 0; n < sizeof names / sizeof names[0]; n++)
            if (strncmp(needed, names[n][0], strlen(names[n][0])) == 0)
                return names[n][1];
    }
    return NULL;
}

static bool has_function(const struct elf_file *f, const char *name) {
    struct elf_symbol symbol;
    char ignored[300];
    return elf_file_find(f, name, ELF_IN_DYNSYM, &symbol, ignored, sizeof ignored) == 0 &&
           symbol.verdict == ELF_SYM_FUNCTION;
}

static int check_malloc(const struct elf_file *f, const char *path, char *why, size_t size) {
    const char *what = sanitizer(f);
    // A runtime that is linked in statically shows by its entry point.
    if (!what && has_function(f, "__asan_init"))
        what = "AddressSanitizer";
    if (!what && has_function(f, "__tsan_init"))
        what = "ThreadSanitizer";
    if (what)
        return target_refuse(TARGET_CANNOT_RUN, why, size,
                             "%.300s is built with %s, whose malloc goes first; build it without "
                             "-fsanitize to run it on a heap",
                             path, what);
    if (has_function(f, "malloc"))
        return target_refuse(TARGET_CANNOT_RUN, why, size,
                             "%.300s brings its own malloc, which goes before a preloaded one; "
                             "build it without that to run it on a heap",
                             path);
    return 0;
}

static int check_linker(const struct elf_file *f, const char *path, char *why, size_t size) {
    ElfW(Phdr) p;
    if (!find_segment(f, PT_INTERP, &p) || p.p_filesz == 0 ||
        f->map[p.p_offset + p.p_filesz - 1] != '\0')
        return target_refuse(TARGET_CANNOT_RUN, why, size,
                             "%.300s is statically linked; the heap cannot be preloaded into it: "
                             "link it dynamically",
                             path);
    const char *linker = (const char *)f->map + p.p_offset;
    const char *slash = strrchr(linker, '/');
    if (strncmp(slash ? slash + 1 : linker, "ld-musl", 7) == 0)
        return target_refuse(TARGET_CANNOT_RUN, why, size,
                             "%.300s is linked with musl, and this library with glibc; build one "
                             "with make CC=musl-gcc BUILD=build-musl and set LD_PRELOAD to it",
                             path);
    if (access(linker, X_OK) != 0)
        return target_refuse(TARGET_CANNOT_RUN, why, size,
                             "%.300s needs the dynamic linker %.200s: %s", path, linker,
                             strerror(errno));
    return 0;
}

int target_check_elf(const char *path, char *why, size_t size) {
    struct elf_file f;
    char problem[400];
    if (elf_file_open(&f, path, problem, sizeof problem) != 0)
        return target_refuse(TARGET_CANNOT_RUN, why, size, "%s", problem);
    int status = check_linker(&f, path, why, size);
    if (status == 0)
        status = check_malloc(&f, path, why, size);
    elf_file_close(&f);
    return status;
}
