// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "medium.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/os_file.h"
#include "media/backing/fixed.h"
#include "media/backing/volume.h"
#include "media/heap.h"

// ---- the mount ----------------------------------------------------------------------------------

static bool matters(const char *option) {
    static const char *const names[] = {"ro",        "rw",      "sync",  "dirsync", "dax",
                                        "barrier",   "data",    "huge",  "size",    "sunit",
                                        "nobarrier", "journal", "swidth"};
    size_t len = strcspn(option, "=");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == len && strncmp(option, names[i], len) == 0)
            return true;
    return false;
}

// Adds those options of "a,b,c" that matter and are not in the list yet.
static void add_options(struct medium *m, char *list) {
    char *rest = NULL;
    for (char *option = strtok_r(list, ",\n", &rest); option;
         option = strtok_r(NULL, ",\n", &rest)) {
        size_t have = strlen(m->options);
        char with[64];
        snprintf(with, sizeof with, ",%.60s", option);
        bool known = strcmp(with, ",ro") == 0 ? strncmp(m->options, "ro", 2) == 0
                                              : (have && strstr(m->options, option));
        if (matters(option) && !known)
            snprintf(m->options + have, sizeof m->options - have, "%s", have ? with : option);
    }
}

// Undoes the escapes of mountinfo, which writes a blank in a name as \040.
static void put_name(char *out, size_t size, const char *name) {
    size_t n = 0;
    for (; *name && n + 1 < size; name++) {
        unsigned code;
        if (*name == '\\' && sscanf(name + 1, "%3o", &code) == 1) {
            out[n++] = (char)code;
            name += 3;
        } else {
            out[n++] = *name;
        }
    }
    out[n] = '\0';
}

// The number in mountinfo of the mount that a descriptor is on; -1: the kernel does not say.
static int mount_of(int fd) {
    char path[64], line[256];
    int number = -1;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    FILE *in = fopen(path, "re");
    while (in && number < 0 && fgets(line, sizeof line, in))
        sscanf(line, "mnt_id: %d", &number);
    if (in)
        fclose(in);
    return number;
}

// Reads one line like "36 35 98:0 /root /mounted rw,noatime optional - ext4 /dev/x rw,dax=always".
// `device` becomes 98:0.
static bool read_mount(struct medium *m, char *line, char device[32]) {
    char *field[6], *rest = NULL, *dash = strstr(line, " - ");
    if (!dash)
        return false;
    *dash = '\0';
    for (unsigned i = 0; i < 6; i++)
        if (!(field[i] = strtok_r(i ? NULL : line, " ", &rest)))
            return false;
    char *type = strtok_r(dash + 3, " \n", &rest);
    char *source = strtok_r(NULL, " \n", &rest), *super = strtok_r(NULL, " \n", &rest);
    if (!type || !source)
        return false;
    snprintf(device, 32, "%s", field[2]);
    put_name(m->mounted, sizeof m->mounted, field[4]);
    put_name(m->type, sizeof m->type, type);
    put_name(m->source, sizeof m->source, source);
    add_options(m, field[5]);
    if (super)
        add_options(m, super);
    return true;
}

static void find_mount(struct medium *m, int fd, char device[32]) {
    int wanted = mount_of(fd), number;
    char *line = NULL;
    size_t size = 0;
    bool found = false;
    FILE *in = wanted < 0 ? NULL : fopen("/proc/self/mountinfo", "re");
    while (in && !found && getline(&line, &size, in) > 0)
        found =
            sscanf(line, "%d ", &number) == 1 && number == wanted && read_mount(m, line, device);
    free(line);
    if (in)
        fclose(in);
    if (!found)
        snprintf(m->type, sizeof m->type, "unknown"); // no /proc
}

// ---- persistent memory --------------------------------------------------------------------------

static void read_line(const char *path, char *out, size_t size) {
    *out = '\0';
    FILE *in = fopen(path, "re");
    if (in && !fgets(out, (int)size, in))
        *out = '\0';
    if (in)
        fclose(in);
    out[strcspn(out, "\n")] = '\0';
}

// The region in which the device "98:0" lies. Its path in sysfs names it. -1: none, or one of CXL,
// which has numbers of its own.
static int region_of(const char *device, bool character) {
    char link[64], path[PATH_MAX];
    int number = -1;
    snprintf(link, sizeof link, "/sys/dev/%s/%.31s", character ? "char" : "block", device);
    if (!*device || !realpath(link, path) || (character && !strstr(path, "/ndbus")))
        return -1;
    for (const char *at = path; number < 0 && (at = strstr(at, "/region")) != NULL; at++)
        sscanf(at, "/region%d/", &number);
    return number;
}

static int find_regions(struct medium *m, const char *device, struct pm_error *err) {
    int behind = region_of(device, m->device);
    for (unsigned i = 0; i < MEDIUM_REGIONS; i++) {
        char path[96];
        snprintf(path, sizeof path, "/sys/bus/nd/devices/region%u/persistence_domain", i);
        bool there = access(path, F_OK) == 0;
        if (!there && errno != ENOENT)
            return pm_fail(err, PM_OPERATIONAL, "%s: %s", path, pm_strerror(errno));
        if (!there)
            continue;
        struct medium_region *r = &m->region[m->regions++];
        r->number = i;
        r->behind = (int)i == behind;
        m->on_region |= r->behind;
        read_line(path, r->domain, sizeof r->domain);
    }
    return PM_OK;
}

// ---- MAP_SYNC -----------------------------------------------------------------------------------

static int add_file(struct medium *m, const char *name, int fd, struct pm_error *err) {
    struct medium_file *file = &m->file[m->files++];
    snprintf(file->name, sizeof file->name, "%s", name);
    if (pm_persist_probe(fd, &file->durability))
        return PM_OK;
    return pm_fail(err, PM_OPERATIONAL, "%.300s: the kind of the file system cannot be read: %s",
                   m->path, pm_strerror(errno));
}

static int ask_heap(struct medium *m, int dir, struct pm_error *err) {
    for (unsigned i = 0; i < PM_HEAP_FILES; i++) {
        const struct pm_heap_file *f = &pm_heap_files[i];
        char file[PM_FILE_NAME];
        if (!f->held)
            continue;
        if (!pm_volume_find(dir, f, file) && errno != ENOENT)
            return pm_fail(err, PM_OPERATIONAL, "%.300s/%s: %s", m->path, file, pm_strerror(errno));
        int fd = openat(dir, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (fd < 0 && errno == ENOENT && (f->feature || f->shard))
            continue; // a heap from before there was this feature, or without this shard
        if (fd < 0)
            return pm_fail(err, errno == ENOENT ? PM_DAMAGE : PM_OPERATIONAL, "%.300s/%s: %s",
                           m->path, file, pm_strerror(errno));
        int status = add_file(m, file, fd, err);
        close(fd);
        if (status != PM_OK)
            return status;
    }
    return PM_OK;
}

// For a directory without a heap: makes a temporary file to ask about, which is removed at once.
static int ask_directory(struct medium *m, int dir, struct pm_error *err) {
    const char *name = "a nameless temporary file";
    int fd = openat(dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
        char path[64];
        name = "a temporary file, removed again (nameless ones are not supported there)";
        snprintf(path, sizeof path, ".pmalloc-medium-%d", (int)getpid());
        fd = openat(dir, path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd >= 0)
            unlinkat(dir, path, 0);
    }
    if (fd < 0)
        return pm_fail(err, PM_OPERATIONAL,
                       "%.300s: no file can be made there to ask for MAP_SYNC: %s; name a heap, "
                       "or a directory that can be written",
                       m->path, pm_strerror(errno));
    int status = add_file(m, name, fd, err);
    close(fd);
    return status;
}

static int ask(struct medium *m, int dir, char device[32], struct pm_error *err) {
    enum pm_there heap = pm_os_there(dir, pm_heap.super_file.name);
    if (heap == PM_CANNOT_TELL)
        return pm_fail(err, PM_OPERATIONAL, "%.300s/%s: %s", m->path, pm_heap.super_file.name,
                       pm_strerror(errno));
    m->heap = heap == PM_IS_THERE;
    find_mount(m, dir, device);
    return m->heap ? ask_heap(m, dir, err) : ask_directory(m, dir, err);
}

// ---- one file or device -------------------------------------------------------------------------

static int wrong(const struct medium *m, const char *why, struct pm_error *err) {
    return pm_fail(
        err, PM_OPERATIONAL,
        "%.300s: %s; name a heap, the directory in which one is to be made, or a file or "
        "DAX device for it",
        m->path, why);
}

static int find_heap(struct medium *m, int fd, struct pm_error *err) {
    const struct pm_layout *layout = pm_fixed_peek(fd, m->path);
    if (!layout && errno != ENODATA)
        return wrong(m, pm_strerror(errno), err);
    m->heap = layout && layout->magic == PM_LAYOUT_MAGIC;
    if (layout)
        pm_fixed_unpeek(layout);
    return PM_OK;
}

// A file is asked as others are. A device maps the medium itself, always.
static int ask_fixed(struct medium *m, int fd, char device[32], struct pm_error *err) {
    const char *name = strrchr(m->path, '/');
    struct stat st;
    if (fstat(fd, &st) != 0)
        return wrong(m, pm_strerror(errno), err);
    m->fixed = true;
    m->device = S_ISCHR(st.st_mode);
    if (!S_ISREG(st.st_mode) && !m->device)
        return wrong(m, "it is neither a directory nor a file or device", err);
    if (pm_fixed_bytes(fd) == 0)
        return wrong(m, m->device ? "it is no DAX device" : "it is empty", err);
    if (find_heap(m, fd, err) != PM_OK)
        return err->status;
    if (add_file(m, name ? name + 1 : m->path, fd, err) != PM_OK)
        return err->status;
    if (!m->device) {
        find_mount(m, fd, device);
        return PM_OK;
    }
    m->file[0].durability = pm_persist_probe_device();
    snprintf(m->type, sizeof m->type, "none: device DAX");
    snprintf(device, 32, "%u:%u", major(st.st_rdev), minor(st.st_rdev));
    return PM_OK;
}

// ---- all of it ----------------------------------------------------------------------------------

// Decides as opening a heap does: if MAP_SYNC is refused for one file, it is refused for all.
static enum pm_durability durability_of_all(const struct medium *m) {
    enum pm_durability all = m->file[0].durability;
    for (unsigned i = 1; i < m->files; i++) {
        enum pm_durability one = m->file[i].durability;
        if (all != PM_DURABLE_NONE && one != PM_DURABLE_LINE && one != PM_DURABLE_CACHE)
            all = PM_DURABLE_PAGE;
    }
    return all;
}

int medium_find(const char *path, struct medium *m, struct pm_error *err) {
    char device[32] = "";
    struct stat st;
    struct utsname name;
    static char first[PATH_MAX];
    snprintf(first, sizeof first, "%.*s", (int)pm_volume_first(path), path);
    *m = (struct medium){.path = path = first};
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return pm_fail(err, PM_OPERATIONAL,
                       "%.300s: %s; name a heap, or the directory in which one is to be made", path,
                       pm_strerror(errno));
    int status = fstat(fd, &st) == 0 && S_ISDIR(st.st_mode) ? ask(m, fd, device, err)
                                                            : ask_fixed(m, fd, device, err);
    if (status == PM_OK)
        status = find_regions(m, device, err);
    if (uname(&name) == 0)
        snprintf(m->kernel, sizeof m->kernel, "%s %s", name.sysname, name.release);
    close(fd);
    if (status == PM_OK)
        m->durability = durability_of_all(m);
    return status;
}
