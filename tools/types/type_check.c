// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "type_check.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc.h"
#include "base/options.h"
#include "base/os_file.h"
#include "media/backing/fixed.h"
#include "media/backing/volume.h"
#include "media/heap.h"
#include "media/open/heap_dir.h"
#include "media/open/heap_open.h"
#include "roots/root_table.h"
#include "roots/spec.h"
#include "tools/common/figures.h"
#include "tools/common/info_print.h"
#include "tools/common/program_types.h"
#include "tools/common/root_path.h"
#include "type_blocks.h"
#include "type_compare.h"
#include "type_file.h"
#include "type_walk.h"

struct check {
    const char *program;
    char heap[PATH_MAX];
    bool ignore;
    int dir; // of the heap; -1: there is none yet
    bool exists, known;
    bool used;       // this build is the heap's last one; or the heap has no data
    bool look, only; // PMALLOC_REBASE
    struct type_build build;
    struct pm_spec root[2 * PM_ROOT_MAX]; // of the heap and of PMALLOC_ROOTS
    size_t roots;
    enum type_file found;
    int error; // why the table cannot be read
    struct type_table old, new;
    struct program_types types;
};

static bool rebase_is(int how) { return pm_options.rebase.number == (uint64_t)how; }

__attribute__((format(printf, 1, 2))) static void say_more(const char *format, ...) {
    char text[600];
    va_list args;
    if (!pm_options.verbose.number)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    pm_say("types: %s", text);
}

// ---- what is to be compared ---------------------------------------------------------------------

static void take_spec(struct check *c, const struct pm_spec *spec) {
    for (size_t i = 0; i < c->roots; i++)
        if (pm_spec_same(&c->root[i], spec))
            return;
    if (c->roots < sizeof c->root / sizeof c->root[0])
        c->root[c->roots++] = *spec;
}

static void take_root(const struct pm_root *root, const char *text, void *arg) {
    struct pm_spec spec;
    struct pm_error ignored;
    if (!pm_root_is_dropped(root) &&
        pm_spec_parse_one(text, strlen(text), &spec, &ignored) == PM_OK)
        take_spec(arg, &spec);
}

static void take_named_roots(struct check *c) {
    static struct pm_spec specs[PM_ROOT_MAX];
    struct pm_error ignored;
    size_t count = 0;
    if (pm_spec_parse(pm_options.roots.text, specs, PM_ROOT_MAX, &count, &ignored) == PM_OK)
        for (size_t i = 0; i < count; i++)
            take_spec(c, &specs[i]);
}

// Where the members lie in this build that were roots.
static void take_old_members(struct check *c) {
    for (uint32_t i = 0; c->found == TYPE_FILE_READ && i < c->old.head.roots; i++) {
        const char *name = type_text(&c->old, c->old.root[i].variable);
        struct pm_spec spec;
        struct pm_error ignored;
        if (*name && root_path_read(&c->types, name, strlen(name), &spec, NULL, &ignored) == PM_OK)
            take_spec(c, &spec);
    }
}

static bool find_types(struct check *c) {
    take_old_members(c);
    return type_walk(&c->types, &c->build, c->root, c->roots, &c->new);
}

// What the superblock says; its owner may go on meanwhile. If it cannot be read, opening the heap
// will say why.
static void look_at_heap(struct check *c, const struct pm_elf *program) {
    struct pm_program on_record;
    struct pm_error ignored;
    if (pm_heap_open(c->heap, PM_OPEN_LOOK, false, &ignored) != PM_OK)
        return;
    c->known = true;
    pm_roots_list(take_root, c);
    c->used = c->build.len && info_program(&on_record) && program_is_recorded(program, &on_record);
    // Nothing of it will be found again.
    c->used |= !pm_heap_has_roots() || pm_heap_roots_are_dropped();
    pm_heap_release();
}

// The same of a heap that nothing waits for: its roots, by a few reads. The root table that is read
// may be that of an instant ago, so this serves only to find out that nothing is to be done.
static bool read_roots(struct check *c) {
    static struct pm_root_table table;
    const size_t head = offsetof(struct pm_root_table, root);
    struct pm_state state;
    char text[PM_SPEC_TEXT_LEN];
    int fd =
        openat(c->dir, pm_heap.super_file.name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    bool good =
        fd >= 0 && pm_os_read_all(fd, &state, sizeof state, offsetof(struct pm_super_file, state));
    uint64_t at = offsetof(struct pm_super_file, roots[state.root_epoch & 1]);
    good = good && pm_os_read_all(fd, &table, head, at) && table.count <= PM_ROOT_MAX &&
           pm_os_read_all(fd, table.root, table.count * sizeof *table.root, at + head);
    if (fd >= 0)
        close(fd);
    size_t checked = offsetof(struct pm_root_table, count);
    good = good && table.crc == pm_crc32c(0, &table.count,
                                          head - checked + table.count * sizeof *table.root);
    for (uint32_t i = 0; good && i < table.count; i++) {
        if (table.root[i].part)
            continue;
        pm_root_text(&table.root[i], text, sizeof text);
        take_root(&table.root[i], text, c);
    }
    return good;
}

// A heap in a directory, which has a name.
static bool find_heap(struct check *c) {
    const struct pm_options *o = &pm_options;
    const char *name = *o->heap.text ? o->heap.text : o->commit_dir.text;
    struct pm_error ignored;
    char stranger[NAME_MAX + 1];
    snprintf(c->heap, sizeof c->heap, "%.*s", (int)pm_volume_first(name), name);
    if (!*name || o->backing.number == PM_BACKING_VOLATILE)
        return false;
    c->dir = open(c->heap, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (c->dir < 0)
        return errno == ENOENT && pm_fixed_check_name(c->heap, &ignored) == PM_OK;
    c->exists = !pm_dir_is_remnant(c->dir);
    return c->exists || !pm_dir_stranger(c->dir, stranger); // the library will say so
}

// Whether there is a root of which something may be known.
static bool has_variables(const struct check *c) {
    for (size_t i = 0; i < c->roots; i++)
        if (c->root[i].kind != PM_ROOT_OBJECT)
            return true;
    return false;
}

// Whether the heap's table says all of this build that it can say.
static bool is_up_to_date(const struct check *c) {
    char text[PM_SPEC_TEXT_LEN];
    if (c->found != TYPE_FILE_READ || !type_table_is_of(&c->old, &c->build))
        return false;
    for (size_t i = 0; i < c->roots; i++) {
        type_root_text(&c->root[i], text);
        if (!type_table_root(&c->old, text))
            return false;
    }
    return true;
}

// ---- what is written ----------------------------------------------------------------------------

// Another program, or one that says less of its types, does not take the place of what is known.
static bool says_as_much(const struct check *c) {
    for (uint32_t i = 0; c->found == TYPE_FILE_READ && i < c->old.head.roots; i++) {
        const struct pm_types_root *old = &c->old.root[i];
        const struct pm_types_root *new = type_table_root(&c->new, type_text(&c->old, old->text));
        if (old->is == PM_TYPES_ROOT_TYPED && new &&new->is != PM_TYPES_ROOT_TYPED)
            return false;
    }
    return true;
}

// A name that is no variable of the program may be misspelt: the library will say so, and what is
// not there shall not be made before.
static bool has_all_roots(const struct type_table *t) {
    for (uint32_t i = 0; i < t->head.roots; i++)
        if (t->root[i].is == PM_TYPES_ROOT_LIBRARY)
            return false;
    return true;
}

// In use, it is not written to: the program will be refused, or wait.
static void write_table(struct check *c) {
    bool wanted = !c->look && pm_options.open.number != PM_OPEN_PRIVATE &&
                  !rebase_is(PM_REBASE_REPORT) && says_as_much(c) && (c->exists || !c->only);
    if (wanted && c->dir < 0 && has_all_roots(&c->new) && mkdir(c->heap, 0700) == 0)
        c->dir = open(c->heap, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (!wanted || c->dir < 0 || flock(c->dir, LOCK_EX | LOCK_NB) != 0)
        return;
    if (!type_file_write(c->dir, &c->new))
        pm_say("note: %.300s/%s cannot be written, so another build's types will not be compared "
               "with these: %s",
               c->heap, type_file_name(), pm_strerror(errno));
    flock(c->dir, LOCK_UN);
}

// ---- what is said -------------------------------------------------------------------------------

static int say_differences(const struct check *c, const struct type_differences *d,
                           struct pm_error *err) {
    bool goes_on = c->ignore || rebase_is(PM_REBASE_REPORT);
    char blocks[128];
    for (unsigned i = 0; i < d->count && i < TYPE_DIFFERENCES; i++)
        pm_say("%s%s%s", goes_on ? "note: " : "", d->one[i].text,
               type_blocks_text(c->heap, goes_on ? 0 : d->one[i].old_size, blocks, sizeof blocks));
    if (d->count > TYPE_DIFFERENCES)
        pm_say("%s%u more differences", goes_on ? "note: " : "", d->count - TYPE_DIFFERENCES);
    if (goes_on)
        return PM_OK;
    return pm_fail(err, PM_OPERATIONAL,
                   "%.300s: its data are of types that this build of %.200s has in another way; "
                   "nothing was changed: go on with the old build, or give --types=ignore if the "
                   "program reads the data all the same",
                   c->heap, c->program);
}

static int compare(struct check *c, struct pm_error *err) {
    static struct type_differences d;
    type_compare(&c->old, &c->new, &d);
    if (d.failed)
        return pm_fail(err, PM_OPERATIONAL, "no memory to compare types");
    say_more("%u types that %u roots reach were compared with those of the build before, %u differ",
             d.types, d.roots, d.count);
    return d.count ? say_differences(c, &d, err) : PM_OK;
}

// Nothing says which types the heap has.
static int cannot_be_read(const struct check *c, struct pm_error *err) {
    bool damaged = c->found == TYPE_FILE_DAMAGED;
    const char *why = damaged ? "is damaged" : pm_strerror(c->error);
    if (c->used || c->ignore || !c->exists) {
        pm_say("note: %.300s/%s: %s, so types are not compared", c->heap, type_file_name(), why);
        return PM_OK;
    }
    return pm_fail(err, damaged ? PM_DAMAGE : PM_OPERATIONAL,
                   "%.300s/%s, which says of which types the data are: %s; nothing was changed: "
                   "start the build that it was, or give --types=ignore",
                   c->heap, type_file_name(), why);
}

static bool is_unreadable(const struct check *c) {
    return c->found == TYPE_FILE_DAMAGED || c->found == TYPE_FILE_FAILED;
}

// The build that has used the heap last needs no comparison. Nor does anything tell what to compare
// another one with, where there is no table; it gets one at its second start.
static int compare_or_not(struct check *c, struct pm_error *err) {
    if (is_unreadable(c) && cannot_be_read(c, err) != PM_OK)
        return err->status;
    if (c->exists && !c->used && c->found == TYPE_FILE_READ && compare(c, err) != PM_OK)
        return err->status;
    bool unknown = c->exists && !c->used && c->found != TYPE_FILE_READ && !c->ignore;
    if (unknown)
        say_more("nothing is on record of the build before, so nothing was compared");
    else
        write_table(c);
    return PM_OK;
}

// Of debug information, as it lies in the file.
static uint64_t debug_bytes(const struct pm_elf *f) {
    ElfW(Shdr) section;
    for (size_t i = 0; f && pm_elf_shdr(f, i, &section); i++)
        if (strcmp(pm_elf_section_name(f, &section), ".debug_info") == 0)
            return section.sh_size;
    return 0;
}

// A start waits for no more than that. 30 MiB take about a second.
#define MUCH ((uint64_t)64 << 20)
#define TOO_MUCH ((uint64_t)512 << 20)

static bool is_too_much(struct check *c) {
    uint64_t own = debug_bytes(&c->types.program);
    uint64_t bytes = own ? own : debug_bytes(program_types_apart(&c->types));
    char size[32];
    if (bytes >= TOO_MUCH)
        pm_say("note: %.300s has %s of debug information, which is too much to read at a start, so "
               "types are not compared",
               c->program, figure_bytes(bytes, size));
    else if (bytes >= MUCH)
        pm_say("note: %s of debug information of %.300s are read, once for this build",
               figure_bytes(bytes, size), c->program);
    return bytes >= TOO_MUCH;
}

static int have_no_types(struct check *c, struct pm_error *err) {
    if (is_unreadable(c))
        return cannot_be_read(c, err);
    if (c->exists && !c->used && c->found == TYPE_FILE_READ)
        pm_say("note: %.200s has no debug information (build it with -g), so its types are not "
               "compared with those of the build before",
               c->program);
    else if (c->exists && !c->used)
        say_more("%.200s has no debug information (build it with -g), so nothing was compared",
                 c->program);
    return PM_OK;
}

// Nothing is to be done for a program that the table is of, and for roots that restore no variable.
static bool needs_nothing(struct check *c) {
    take_named_roots(c);
    if (c->found == TYPE_FILE_READ && type_table_is_of(&c->old, &c->build) && read_roots(c) &&
        is_up_to_date(c))
        return true;
    if (c->exists)
        look_at_heap(c, &c->types.program);
    return !has_variables(c) || (c->exists && !c->known);
}

int type_check(const char *program, bool ignore, struct pm_error *err) {
    static struct check c;
    struct pm_error ignored;
    c = (struct check){.program = program, .ignore = ignore, .dir = -1};
    c.look = rebase_is(PM_REBASE_LOOK);
    c.only = rebase_is(PM_REBASE_ONLY);
    if (!find_heap(&c) || program_types_of(&c.types, program, &ignored) != PM_OK)
        return PM_OK;
    int status = PM_OK;
    type_build_of(&c.types.program, &c.build);
    c.found = c.dir >= 0 ? type_file_read(c.dir, &c.old) : TYPE_FILE_NONE;
    c.error = errno;
    if (needs_nothing(&c) || is_up_to_date(&c) || is_too_much(&c))
        status = PM_OK;
    else if (!program_types_load(&c.types))
        status = have_no_types(&c, err);
    else if (!find_types(&c))
        status = pm_fail(err, PM_OPERATIONAL, "no memory for the types of %.300s", program);
    else
        status = compare_or_not(&c, err);
    if (c.dir >= 0)
        close(c.dir);
    return status;
}
