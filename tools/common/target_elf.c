// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Finds out from an ELF file alone whether malloc can be preloaded into the program.
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "roots/elf_find.h"
#include "target.h"

// Returns the string at an address of the loaded program, as the file has it; "": there is none.
static const char *string_at(const struct pm_elf *f, uint64_t address) {
    ElfW(Phdr) p;
    for (size_t i = 0; pm_elf_phdr(f, i, &p); i++) {
        uint64_t at = address - p.p_vaddr;
        if (p.p_type != PT_LOAD || at >= p.p_filesz || p.p_offset > f->size ||
            at >= f->size - p.p_offset)
            continue;
        const char *s = (const char *)f->map + p.p_offset + at;
        return memchr(s, '\0', f->size - p.p_offset - at) ? s : "";
    }
    return "";
}

static bool find_segment(const struct pm_elf *f, uint32_t type, ElfW(Phdr) * out) {
    for (size_t i = 0; pm_elf_phdr(f, i, out); i++)
        if (out->p_type == type && out->p_offset <= f->size &&
            out->p_filesz <= f->size - out->p_offset)
            return true;
    return false;
}

// Entry i of the dynamic section; false: it is after the last one.
static bool dynamic_entry(const struct pm_elf *f, const ElfW(Phdr) * p, size_t i, ElfW(Dyn) * out) {
    if (i >= p->p_filesz / sizeof *out)
        return false;
    memcpy(out, f->map + p->p_offset + i * sizeof *out, sizeof *out);
    return out->d_tag != DT_NULL;
}

const char *target_needs(const struct pm_elf *f, size_t number) {
    ElfW(Phdr) p;
    ElfW(Dyn) d;
    uint64_t strings = 0;
    if (!find_segment(f, PT_DYNAMIC, &p))
        return NULL;
    for (size_t i = 0; dynamic_entry(f, &p, i, &d); i++)
        if (d.d_tag == DT_STRTAB)
            strings = d.d_un.d_ptr;
    for (size_t i = 0; dynamic_entry(f, &p, i, &d); i++)
        if (d.d_tag == DT_NEEDED && number-- == 0)
            return string_at(f, strings + d.d_un.d_val);
    return NULL;
}

// The name of the sanitizer whose library the program is linked with, or NULL.
static const char *sanitizer(const struct pm_elf *f) {
    static const char *const names[][2] = {
        {"libasan.so", "AddressSanitizer"}, {"libclang_rt.asan", "AddressSanitizer"},
        {"libtsan.so", "ThreadSanitizer"},  {"libclang_rt.tsan", "ThreadSanitizer"},
        {"liblsan.so", "LeakSanitizer"},    {"libhwasan.so", "HWAddressSanitizer"}};
    const char *needed;
    for (size_t i = 0; (needed = target_needs(f, i)) != NULL; i++)
        for (size_t n = 0; n < sizeof names / sizeof names[0]; n++)
            if (strncmp(needed, names[n][0], strlen(names[n][0])) == 0)
                return names[n][1];
    return NULL;
}

static bool has_function(const struct pm_elf *f, const char *name) {
    struct pm_elf_symbol symbol;
    struct pm_error ignored;
    return pm_elf_find(f, name, PM_ELF_IN_DYNSYM, &symbol, &ignored) == PM_OK &&
           symbol.verdict == PM_ELF_FUNCTION;
}

static int check_malloc(const struct pm_elf *f, const char *path, char *why, size_t size) {
    const char *what = sanitizer(f);
    // A statically linked sanitizer library is known by the function that starts it.
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

static int check_linker(const struct pm_elf *f, const char *path, char *why, size_t size) {
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
    struct pm_elf f;
    struct pm_error problem;
    if (pm_elf_open(&f, path, &problem) != PM_OK)
        return target_refuse(TARGET_CANNOT_RUN, why, size, "%s", problem.text);
    int status = check_linker(&f, path, why, size);
    if (status == 0)
        status = check_malloc(&f, path, why, size);
    pm_elf_close(&f);
    return status;
}
