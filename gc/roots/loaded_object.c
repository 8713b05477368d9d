// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "loaded_object.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/proc.h"

const char *pm_base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static void copy_cut(char *dst, size_t size, const char *src) {
    size_t n = strnlen(src, size - 1);
    memcpy(dst, src, n);
    memset(dst + n, 0, size - n);
}

// ---- /proc/thread-self/maps ---------------------------------------------------------------------

struct mapping {
    uint64_t ino; // 0: no file
    char path[PATH_MAX];
};

// Reads a hexadecimal or decimal number and moves *p past it.
static uint64_t field(const char **p, unsigned base) {
    uint64_t v = 0;
    for (;; (*p)++) {
        char c = **p;
        unsigned d = c >= '0' && c <= '9'   ? (unsigned)(c - '0')
                     : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a' + 10)
                                            : 16;
        if (d >= base)
            return v;
        v = v * base + d;
    }
}

static void skip_field(const char **p) {
    while (**p != ' ' && **p != '\0')
        (*p)++;
    while (**p == ' ')
        (*p)++;
}

// Reads one line "start-end perms offset dev inode   path" if its mapping contains the address.
// Returns whether it does.
static bool parse_mapping(const char *line, uintptr_t addr, struct mapping *m) {
    uint64_t start = field(&line, 16);
    if (*line != '-')
        return false;
    line++;
    uint64_t end = field(&line, 16);
    if (addr < start || addr >= end)
        return false;
    skip_field(&line);
    for (int i = 0; i < 3; i++)
        skip_field(&line);
    m->ino = field(&line, 10);
    while (*line == ' ')
        line++;
    copy_cut(m->path, sizeof m->path, line[0] == '/' ? line : "");
    return true;
}

static bool mapping_at(uintptr_t addr, struct mapping *m) {
    char buf[PATH_MAX + 512]; // at least one whole line
    size_t have = 0;
    bool found = false;
    int fd = pm_proc_open("thread-self/maps", O_RDONLY);
    if (fd < 0)
        return false;
    while (!found) {
        ssize_t r = pm_proc_read(fd, buf + have, sizeof buf - 1 - have);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            break;
        have += (size_t)r;
        char *line = buf, *eol;
        while (!found && (eol = memchr(line, '\n', have - (size_t)(line - buf))) != NULL) {
            *eol = '\0';
            found = parse_mapping(line, addr, m);
            line = eol + 1;
        }
        have -= (size_t)(line - buf);
        memmove(buf, line, have);
    }
    pm_proc_close(fd);
    return found;
}

// ---- objects ------------------------------------------------------------------------------------

// Whether /proc/self/exe is the program. It is the dynamic linker if that was started with the
// program as its argument.
static bool exe_is_program(void) { return getauxval(AT_BASE) != 0; }

static uintptr_t first_address(const struct pm_object *o) {
    for (size_t i = 0; i < o->phnum; i++)
        if (o->phdr[i].p_type == PT_LOAD)
            return o->base + o->phdr[i].p_vaddr;
    return o->base;
}

// Removes " (deleted)", which the kernel appends to the path of a mapped file that is no longer
// there.
static void cut_deleted(char *path) {
    static const char gone[] = " (deleted)";
    size_t n = strlen(path), g = sizeof gone - 1;
    if (n > g && strcmp(path + n - g, gone) == 0)
        path[n - g] = '\0';
}

static bool main_path(const struct pm_object *o, char *path, size_t len) {
    struct stat st;
    if (!exe_is_program()) {
        struct mapping m;
        if (!mapping_at(first_address(o), &m) || m.path[0] == '\0' || strlen(m.path) >= len)
            return false;
        copy_cut(path, len, m.path);
        if (access(path, F_OK) != 0)
            cut_deleted(path);
        return true;
    }
    ssize_t n = readlink("/proc/self/exe", path, len);
    if (n < 0 && errno == ENOENT) // /proc is not mounted
        n = snprintf(path, len, "%s", (const char *)getauxval(AT_EXECFN));
    if (n <= 0 || (size_t)n >= len)
        return false;
    path[n] = '\0';
    if (stat("/proc/self/exe", &st) == 0 && st.st_nlink == 0)
        cut_deleted(path);
    return true;
}

struct walk {
    pm_object_visit *visit;
    void *arg;
    bool later;
};

static int walk_step(struct dl_phdr_info *info, size_t size, void *arg) {
    struct walk *w = arg;
    struct pm_object o = {.base = info->dlpi_addr,
                          .phdr = info->dlpi_phdr,
                          .phnum = info->dlpi_phdr != NULL ? info->dlpi_phnum : 0,
                          .dl_name = info->dlpi_name != NULL ? info->dlpi_name : "",
                          .is_main = !w->later};
    if (size >= offsetof(struct dl_phdr_info, dlpi_subs) + sizeof info->dlpi_subs)
        o.unloads = info->dlpi_subs;
    w->later = true;
    if (o.is_main) {
        char path[PATH_MAX];
        copy_cut(o.name, sizeof o.name,
                 main_path(&o, path, sizeof path) ? pm_base_name(path) : "(program)");
    } else {
        copy_cut(o.name, sizeof o.name, pm_base_name(o.dl_name));
    }
    return w->visit(&o, w->arg);
}

int pm_object_each(pm_object_visit *visit, void *arg) {
    struct walk w = {visit, arg, false};
    return dl_iterate_phdr(walk_step, &w);
}

static int take_first(const struct pm_object *o, void *arg) {
    *(struct pm_object *)arg = *o;
    return 1;
}

void pm_object_main(struct pm_object *out) {
    memset(out, 0, sizeof *out);
    pm_object_each(take_first, out);
}

const void *pm_object_bytes(const struct pm_object *o, uintptr_t addr, size_t n) {
    for (size_t i = 0; i < o->phnum; i++) {
        const ElfW(Phdr) *p = &o->phdr[i];
        if (p->p_type != PT_LOAD || (p->p_flags & PF_R) == 0)
            continue;
        uintptr_t off = addr - (o->base + p->p_vaddr); // wraps to huge below the segment
        if (off <= p->p_memsz && n <= p->p_memsz - off)
            return (const void *)addr; // NOLINT(performance-no-int-to-ptr)
    }
    return NULL;
}

bool pm_object_holds(const struct pm_object *o, uintptr_t addr) {
    for (size_t i = 0; i < o->phnum; i++)
        if (o->phdr[i].p_type == PT_LOAD &&
            addr - (o->base + o->phdr[i].p_vaddr) < o->phdr[i].p_memsz)
            return true;
    return false;
}

static const ElfW(Dyn) * dynamic_of(const struct pm_object *o, size_t *count) {
    for (size_t i = 0; i < o->phnum; i++)
        if (o->phdr[i].p_type == PT_DYNAMIC) {
            *count = o->phdr[i].p_memsz / sizeof(ElfW(Dyn));
            return pm_object_bytes(o, o->base + o->phdr[i].p_vaddr, *count * sizeof(ElfW(Dyn)));
        }
    return NULL;
}

bool pm_object_has_entry(const struct pm_object *o, ElfW(Sxword) tag) {
    size_t n;
    const ElfW(Dyn) *d = dynamic_of(o, &n);
    for (size_t k = 0; d != NULL && k < n && d[k].d_tag != DT_NULL; k++)
        if (d[k].d_tag == tag)
            return true;
    return false;
}

const char *pm_object_soname(const struct pm_object *o) {
    uintptr_t strings = 0;
    size_t name = 0, size = 0, n;
    const ElfW(Dyn) *d = dynamic_of(o, &n);
    for (size_t k = 0; d != NULL && k < n && d[k].d_tag != DT_NULL; k++) {
        if (d[k].d_tag == DT_SONAME)
            name = d[k].d_un.d_val;
        else if (d[k].d_tag == DT_STRTAB)
            strings = d[k].d_un.d_ptr;
        else if (d[k].d_tag == DT_STRSZ)
            size = d[k].d_un.d_val;
    }
    // The dynamic linker adds the base to this pointer in place, except if the section is read-only
    // (vdso).
    if (strings < o->base)
        strings += o->base;
    const char *table = size != 0 ? pm_object_bytes(o, strings, size) : NULL;
    if (table == NULL || name == 0 || name >= size ||
        memchr(table + name, '\0', size - name) == NULL)
        return "";
    return table + name;
}

size_t pm_object_build_id(const struct pm_object *o, uint8_t id[PM_BUILD_ID_MAX]) {
    for (size_t i = 0, len; i < o->phnum; i++) {
        const ElfW(Phdr) *p = &o->phdr[i];
        if (p->p_type != PT_NOTE)
            continue;
        const void *notes = pm_object_bytes(o, o->base + p->p_vaddr, p->p_memsz);
        if (notes != NULL && (len = pm_elf_notes_build_id(notes, p->p_memsz, p->p_align, id)) != 0)
            return len;
    }
    return 0;
}

static bool has_prefix(const char *s, const char *prefix) {
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

bool pm_object_is_libc(const struct pm_object *o) {
    return !o->is_main &&
           (has_prefix(pm_object_soname(o), "libc.so.") || has_prefix(o->name, "libc.so."));
}

bool pm_object_is_linker(const struct pm_object *o) {
    return !o->is_main &&
           (o->base == getauxval(AT_BASE) || has_prefix(o->name, "ld-linux") ||
            has_prefix(pm_object_soname(o), "ld-linux") || has_prefix(o->name, "ld64.so"));
}

bool pm_object_is_vdso(const struct pm_object *o) {
    uintptr_t vdso = getauxval(AT_SYSINFO_EHDR);
    return !o->is_main && vdso != 0 && pm_object_holds(o, vdso);
}

bool pm_object_is_self(const struct pm_object *o) {
    static const char here;
    return !o->is_main && pm_object_holds(o, (uintptr_t)&here);
}

bool pm_object_program_path(char *path, size_t len) {
    struct pm_object o;
    pm_object_main(&o);
    return o.phdr != NULL && main_path(&o, path, len);
}

// ---- files --------------------------------------------------------------------------------------

// Whether the file's segments are the loaded ones.
static bool same_segments(const struct pm_object *o, const struct pm_elf *f) {
    ElfW(Phdr) p;
    if (f->ehdr.e_phnum != o->phnum)
        return false;
    for (size_t i = 0; i < o->phnum; i++) {
        const ElfW(Phdr) *q = &o->phdr[i];
        if (!pm_elf_phdr(f, i, &p) || p.p_type != q->p_type)
            return false;
        if (p.p_type == PT_LOAD &&
            (p.p_vaddr != q->p_vaddr || p.p_memsz != q->p_memsz || p.p_flags != q->p_flags))
            return false;
    }
    return true;
}

static bool same_build_id(const struct pm_object *o, const struct pm_elf *f, bool *have) {
    uint8_t a[PM_BUILD_ID_MAX], b[PM_BUILD_ID_MAX];
    size_t n = pm_object_build_id(o, a);
    *have = n != 0;
    return pm_elf_build_id(f, b) == n && memcmp(a, b, n) == 0;
}

// Whether the file is the one that was loaded. An upgrade or a new build may have replaced it, and
// addresses from the new file would be wrong. Segments and build id must agree. If there is no
// build id, it must be the inode that is mapped. The device number is not compared, because
// overlayfs and btrfs report another one in `maps` than in stat().
static bool is_loaded_file(const struct pm_object *o, const struct pm_elf *f, uint64_t ino) {
    bool have_id;
    if (!same_segments(o, f) || !same_build_id(o, f, &have_id))
        return false;
    return have_id || f->ino == ino;
}

int pm_object_open(const struct pm_object *o, struct pm_elf *f, struct pm_error *err) {
    struct mapping m = {.ino = 0};
    const char *path = m.path;
    bool by_exe = o->is_main && exe_is_program(); // the kernel's own link to the mapped file
    if (by_exe)
        path = access("/proc/self/exe", F_OK) == 0 ? "/proc/self/exe"
                                                   : (const char *)getauxval(AT_EXECFN);
    else if (!mapping_at(first_address(o), &m) || m.path[0] == '\0')
        path = o->dl_name;
    else if (access(m.path, F_OK) != 0)
        cut_deleted(m.path); // the file that has the name now is checked like any other
    int status = pm_elf_open(f, path, err);
    if (status != PM_OK || is_loaded_file(o, f, by_exe ? f->ino : m.ino))
        return status;
    pm_elf_close(f);
    return pm_fail(err, PM_OPERATIONAL, "%s was replaced since the program started; start it again",
                   by_exe ? o->name : path);
}

struct at_base {
    uintptr_t base;
    struct pm_elf *file;
    bool open;
};

static int open_if_it_is(const struct pm_object *o, void *arg) {
    struct at_base *at = arg;
    struct pm_error ignored;
    if (o->base != at->base)
        return 0;
    at->open = pm_object_open(o, at->file, &ignored) == PM_OK;
    return 1;
}

bool pm_object_open_at(uintptr_t base, struct pm_elf *f) {
    struct at_base at = {base, f, false};
    pm_object_each(open_if_it_is, &at);
    return at.open;
}
