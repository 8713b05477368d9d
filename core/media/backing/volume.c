// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "volume.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/nodes.h"
#include "base/os_file.h"
#include "dir_held.h"
#include "file.h"
#include "fixed.h"
#include "media/persist.h"
#include "volume_file.h"
#include "volume_sync.h"

#define FILE_NAME PM_VOLUME_FILE
#define LINK_NAME 24 // volume.7
#define EACH_VOLUME(k)                                                                             \
    unsigned k = 1;                                                                                \
    k < PM_VOLUMES;                                                                                \
    k++

static void link_name(unsigned k, char out[LINK_NAME]) {
    snprintf(out, LINK_NAME, FILE_NAME ".%u", k);
}

static enum pm_there link_exists(int dir_fd, unsigned k) {
    char name[LINK_NAME];
    struct stat st;
    link_name(k, name);
    if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT ? PM_NOT_THERE : PM_CANNOT_TELL;
    return S_ISLNK(st.st_mode) ? PM_IS_THERE : PM_NOT_THERE;
}

// Where the link leads; "?" where it cannot be read.
static void link_target(int dir_fd, unsigned k, char out[PATH_MAX]) {
    char name[LINK_NAME];
    link_name(k, name);
    ssize_t len = readlinkat(dir_fd, name, out, PATH_MAX - 1);
    strcpy(out + (len > 0 ? len : 0), len > 0 ? "" : "?");
}

static int open_link(int dir_fd, unsigned k) {
    char name[LINK_NAME];
    link_name(k, name);
    return openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

// Whether this path is the heap's directory number k.
static bool leads_there(const char *path, unsigned k) {
    struct stat named, own;
    int fd = k ? open_link(pm_heap.dir_fd, k) : pm_heap.dir_fd;
    bool same = fd >= 0 && stat(path, &named) == 0 && fstat(fd, &own) == 0 &&
                named.st_dev == own.st_dev && named.st_ino == own.st_ino;
    if (k && fd >= 0)
        close(fd);
    return same;
}

// ---- names --------------------------------------------------------------------------------------

static size_t first_of(const char *text) { return strcspn(text, ":"); }

size_t pm_volume_first(const char *text) {
    struct stat st;
    size_t first = first_of(text);
    return text[first] && stat(text, &st) == 0 ? strlen(text) : first;
}

// A colon in the name of one directory would make two of it: so further ones have a slash.
int pm_volume_check(const char *text, struct pm_error *err) {
    for (const char *at = text + pm_volume_first(text); *at; at += 1 + first_of(at + 1)) {
        int length = (int)first_of(at + 1);
        if (!memchr(at + 1, '/', (size_t)length))
            return pm_fail(err, PM_USAGE,
                           "%.180s: a colon separates two directories, and '%.*s' names none; the "
                           "name of a new heap has no colon. Is a second directory meant, write "
                           "./%.*s",
                           text, length < 60 ? length : 60, at + 1, length < 60 ? length : 60,
                           at + 1);
    }
    return PM_OK;
}

unsigned pm_volume_count(const char *text) {
    unsigned count = 1;
    for (const char *at = text + pm_volume_first(text); *at; at += 1 + first_of(at + 1))
        count++;
    return count;
}

void pm_volume_file_name(const struct pm_heap_file *f, unsigned volume, char out[PM_FILE_NAME]) {
    size_t at = volume ? (size_t)snprintf(out, PM_FILE_NAME, FILE_NAME ".%u/", volume) : 0;
    memcpy(out + at, f->name, sizeof f->name);
}

void pm_shard_set_volume(unsigned shard, unsigned volume) {
    for (size_t i = 0; i < PM_HEAP_FILES; i++)
        if (pm_heap_files[i].shard == shard && shard)
            pm_volume_file_name(&pm_heap_files[i], volume, pm_heap_file(&pm_heap_files[i])->name);
    pm_heap.shard[shard].volume = volume;
}

bool pm_volume_name(const char *name) {
    return strncmp(name, FILE_NAME ".", sizeof FILE_NAME) == 0 && name[sizeof FILE_NAME] >= '1' &&
           name[sizeof FILE_NAME] < '0' + (int)PM_VOLUMES && !name[sizeof FILE_NAME + 1];
}

// Where the superblock says that a shard lies. Of a shard that was made after the last commit, it
// does not know yet.
static unsigned volume_on_record(int dir_fd, unsigned shard) {
    uint8_t volume = 0;
    const size_t at = offsetof(struct pm_super_file, state.reserved) +
                      offsetof(struct pm_shard_state, volume) + shard;
    if (!shard || link_exists(dir_fd, 1) != PM_IS_THERE)
        return 0;
    int fd = openat(dir_fd, pm_heap.super_file.name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    bool known = fd >= 0 && pm_os_read_at(fd, &volume, sizeof volume, at) == sizeof volume;
    if (fd >= 0)
        close(fd);
    return known && volume < PM_VOLUMES ? volume : 0;
}

bool pm_volume_find(int dir_fd, const struct pm_heap_file *f, char name[PM_FILE_NAME]) {
    unsigned first = volume_on_record(dir_fd, f->shard);
    for (unsigned i = 0; i < (f->shard ? PM_VOLUMES : 1); i++) {
        pm_volume_file_name(f, (first + i) % PM_VOLUMES, name);
        enum pm_there there = pm_os_there(dir_fd, name);
        if (there != PM_NOT_THERE)
            return there == PM_IS_THERE;
    }
    pm_volume_file_name(f, 0, name);
    errno = ENOENT;
    return false;
}

bool pm_volumes_unlink(int dir_fd, const struct pm_heap_file *f) {
    bool good = true;
    for (unsigned volume = 0; volume < (f->shard ? PM_VOLUMES : 1); volume++) {
        char name[PM_FILE_NAME];
        pm_volume_file_name(f, volume, name);
        good &= unlinkat(dir_fd, name, 0) == 0 || errno == ENOENT;
    }
    return good;
}

// ---- whose it is --------------------------------------------------------------------------------

static int check_owner(int fd, const char *path, struct pm_error *err) {
    struct stat st;
    if (fstat(fd, &st) != 0)
        return pm_fail(err, PM_OPERATIONAL, "%s: %s", path, pm_strerror(errno));
    if (st.st_uid != geteuid() || st.st_mode & 022)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s does not belong to user %u alone (mode %03o); refusing to use it as a "
                       "directory of the heap %s",
                       path, (unsigned)geteuid(), (unsigned)st.st_mode & 0777, pm_heap.dir);
    return PM_OK;
}

static int bad_file(const char *path, struct pm_error *err) {
    return pm_fail(err, PM_OPERATIONAL, "%s/" FILE_NAME ": %s", path, pm_strerror(errno));
}

// The whole heap has one guarantee.
static int check_medium(int fd, const char *path, struct pm_error *err) {
    int file = openat(fd, FILE_NAME, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0)
        return bad_file(path, err);
    enum pm_durability here, first;
    bool known = pm_persist_probe(file, &here) && pm_persist_probe(pm_heap.super_file.fd, &first);
    int saved = errno;
    close(file);
    errno = saved;
    if (!known)
        return bad_file(path, err);
    if ((here == PM_DURABLE_NONE) == (first == PM_DURABLE_NONE))
        return PM_OK;
    return pm_fail(err, PM_OPERATIONAL,
                   "%s is %s, but %s is %s: the directories of one heap must survive the same "
                   "failures; name directories of one kind",
                   path, here == PM_DURABLE_NONE ? "on tmpfs" : "not on tmpfs", pm_heap.dir,
                   here == PM_DURABLE_NONE ? "not" : "on tmpfs");
}

static int wrong_volume(const struct pm_volume *v, unsigned k, const char *path,
                        struct pm_error *err) {
    if (!v)
        return pm_fail(err, PM_DAMAGE,
                       "%s/volume.%u leads to %s, which has no intact file 'volume'; is its device "
                       "mounted? If the directory is elsewhere: ln -sfn DIR %s/volume.%u",
                       pm_heap.dir, k, path, pm_heap.dir, k);
    if (memcmp(v->uuid, pm_heap.super->super.uuid, sizeof v->uuid) != 0)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s belongs to another heap than %s; name this heap's directory number %u",
                       path, pm_heap.dir, k + 1);
    return pm_fail(err, PM_OPERATIONAL,
                   "%s is directory number %u of the heap %s, and stands at place %u; name the "
                   "directories in their order, or set the links: ln -sfn DIR %s/volume.%u",
                   path, v->number + 1, pm_heap.dir, k + 1, pm_heap.dir, k);
}

static int check_volume(int fd, unsigned k, const char *path, struct pm_error *err) {
    struct pm_volume v, wanted = pm_volume_file(pm_heap.super->super.uuid, k);
    int status = check_owner(fd, path, err);
    if (status != PM_OK)
        return status;
    enum pm_there is = pm_volume_read(fd, &v);
    if (is == PM_CANNOT_TELL)
        return bad_file(path, err);
    if (is == PM_NOT_THERE || memcmp(&v, &wanted, sizeof v) != 0)
        status = wrong_volume(is == PM_IS_THERE ? &v : NULL, k, path, err);
    return status == PM_OK ? check_medium(fd, path, err) : status;
}

static int check_link(unsigned k, struct pm_error *err) {
    char path[PATH_MAX];
    link_target(pm_heap.dir_fd, k, path);
    int fd = open_link(pm_heap.dir_fd, k);
    if (fd < 0)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s/volume.%u leads to %.300s, which cannot be opened (%s); is its device "
                       "mounted? If the directory is elsewhere: ln -sfn DIR %s/volume.%u",
                       pm_heap.dir, k, path, pm_strerror(errno), pm_heap.dir, k);
    int status = check_volume(fd, k, path, err);
    close(fd);
    return status;
}

// ---- making -------------------------------------------------------------------------------------

// Whether a cut has left a part of this file `volume`: each byte that is there is zero or as
// wanted.
static bool is_torn(int dir, const struct pm_volume *wanted) {
    char found[sizeof *wanted + 1];
    const char *good = (const char *)wanted;
    struct stat st;
    int fd = openat(dir, FILE_NAME, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    bool plain = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    ssize_t len = plain ? pread(fd, found, sizeof found, 0) : -1;
    bool torn = len >= 0 && len <= (ssize_t)sizeof *wanted;
    for (ssize_t i = 0; i < len && torn; i++)
        torn = found[i] == 0 || found[i] == good[i];
    if (fd >= 0)
        close(fd);
    return torn;
}

struct first {
    char name[NAME_MAX + 1];
    bool torn; // there may be a file `volume`
};

static bool first_name(const char *name, void *arg) {
    struct first *first = arg;
    if (first->torn && strcmp(name, FILE_NAME) == 0)
        return true;
    snprintf(first->name, sizeof first->name, "%s", name);
    return false;
}

static int check_empty(int fd, const struct pm_volume *wanted, const char *path,
                       struct pm_error *err) {
    struct first first = {.torn = is_torn(fd, wanted)};
    const char *name = first.name;
    if (!pm_os_each_name(fd, first_name, &first))
        return pm_fail(err, PM_OPERATIONAL, "%s: %s", path, pm_strerror(errno));
    if (!name[0])
        return PM_OK;
    return pm_fail(err, PM_OPERATIONAL,
                   "%s is no directory of the heap %s, and not empty (it holds '%s'); name an "
                   "empty or new directory",
                   path, pm_heap.dir, name);
}

static bool durable(int fd) { return !pm_persist_syncs() || fsync(fd) == 0; }

// The file is there and durable before the link to its directory, and so is the directory's name. A
// file that is there is written again: the process that wrote it may have been killed before its
// sync, or that sync has failed, and a later one would not write it.
static bool write_volume(int dir, const char *path, const struct pm_volume *v) {
    int fd = openat(dir, FILE_NAME, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    bool good = fd >= 0 && pm_os_write_all(fd, v, sizeof *v, 0) && durable(fd);
    if (fd >= 0)
        close(fd);
    return good && durable(dir) && (!pm_persist_syncs() || pm_os_sync_parent(path));
}

static bool make_link(const char *path, unsigned k) {
    char name[LINK_NAME];
    link_name(k, name);
    if (symlinkat(path, pm_heap.dir_fd, name) != 0)
        return false;
    if (durable(pm_heap.dir_fd))
        return true;
    int saved = errno;
    unlinkat(pm_heap.dir_fd, name, 0); // else it would lead to a directory without its file
    errno = saved;
    return false;
}

static int make_volume(const char *path, unsigned k, struct pm_error *err) {
    const struct pm_volume wanted = pm_volume_file(pm_heap.super->super.uuid, k);
    struct pm_volume v;
    if (pm_fixed_check_name(path, err) != PM_OK)
        return err->status;
    bool made = mkdir(path, 0700) == 0, written = false;
    int why = made ? 0 : errno; // ENOENT of open() would hide that the file system is read-only
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return pm_fail(err, PM_OPERATIONAL, "%s: cannot make this directory of the heap: %s", path,
                       pm_strerror(why && why != EEXIST ? why : errno));
    int status = check_owner(fd, path, err);
    enum pm_there is = status == PM_OK ? pm_volume_read(fd, &v) : PM_NOT_THERE;
    if (is == PM_CANNOT_TELL)
        status = bad_file(path, err);
    else if (is == PM_IS_THERE && memcmp(&v, &wanted, sizeof v) != 0)
        status = wrong_volume(&v, k, path, err);
    if (status == PM_OK && is == PM_NOT_THERE) { // else a cut came before its link
        status = check_empty(fd, &wanted, path, err);
        written = status == PM_OK;
    }
    if (status == PM_OK && !write_volume(fd, path, &wanted))
        status = bad_file(path, err);
    if (status == PM_OK)
        status = check_medium(fd, path, err);
    // Another process may have done all of this at the same time.
    if (status == PM_OK && !make_link(path, k) && !(errno == EEXIST && leads_there(path, k)))
        status =
            pm_fail(err, PM_OPERATIONAL, "%s/volume.%u: %s", pm_heap.dir, k, pm_strerror(errno));
    if (status != PM_OK && written) // else it would pass for a directory of a heap that is gone
        unlinkat(fd, FILE_NAME, 0);
    if (status != PM_OK && made)
        rmdir(path);
    close(fd);
    return status;
}

// ---- opening ------------------------------------------------------------------------------------

// The named directory must be the one to which the link leads.
static int check_named(const char *path, unsigned k, struct pm_error *err) {
    char leads[PATH_MAX];
    if (leads_there(path, k))
        return PM_OK;
    link_target(pm_heap.dir_fd, k, leads);
    return pm_fail(err, PM_OPERATIONAL,
                   "%.300s is named as directory number %u of the heap %s, but that is %.300s; "
                   "name the directories in their order or, if it has moved: ln -sfn DIR "
                   "%s/volume.%u",
                   path, k + 1, pm_heap.dir, leads, pm_heap.dir, k);
}

static int use_named(const char *text, size_t len, unsigned k, enum pm_open_mode mode,
                     struct pm_error *err) {
    char path[PATH_MAX] = "";
    if (*text != '/' && (!getcwd(path, sizeof path) || strlen(path) + 1 >= sizeof path))
        return pm_fail(err, PM_OPERATIONAL, "%.300s: %s", text, pm_strerror(errno));
    size_t at = strlen(path);
    if (at)
        path[at++] = '/';
    if (k >= PM_VOLUMES || len == 0 || at + len >= sizeof path)
        return pm_fail(err, PM_OPERATIONAL,
                       "%.300s: a heap has at most %u directories, each with a name", text,
                       PM_VOLUMES);
    memcpy(path + at, text, len);
    if (k < pm_heap.volumes)
        return check_named(path, k, err);
    if (mode != PM_OPEN_CREATE)
        return pm_fail(err, PM_OPERATIONAL, "%s is no directory of the heap %s, which has %u", path,
                       pm_heap.dir, pm_heap.volumes);
    int status = make_volume(path, k, err);
    pm_heap.volumes = status == PM_OK ? k + 1 : pm_heap.volumes;
    return status;
}

static struct pm_shard_state *shard_state(void) {
    return (struct pm_shard_state *)(void *)pm_heap.super->state.reserved;
}

static int place_shards(struct pm_error *err) {
    for (unsigned i = 1; i < pm_heap.shards; i++) {
        unsigned volume = shard_state()->volume[i];
        if (volume >= pm_heap.volumes)
            return pm_fail(err, PM_DAMAGE,
                           "%s/superblock: data file %u lies in directory number %u of the heap, "
                           "but %s/volume.%u is missing",
                           pm_heap.dir, i, volume + 1, pm_heap.dir, volume);
        pm_shard_set_volume(i, volume);
    }
    return PM_OK;
}

int pm_volumes_open(const char *more, enum pm_open_mode mode, struct pm_error *err) {
    int status = PM_OK;
    pm_heap.volumes = 1;
    if (pm_fixed_is_open()) // its media were found and checked with the first
        return PM_OK;
    for (; !pm_heap.created && pm_heap.volumes < PM_VOLUMES; pm_heap.volumes++) {
        enum pm_there link = link_exists(pm_heap.dir_fd, pm_heap.volumes);
        if (link == PM_CANNOT_TELL)
            return pm_fail(err, PM_OPERATIONAL, "%s/volume.%u: %s", pm_heap.dir, pm_heap.volumes,
                           pm_strerror(errno));
        if (link == PM_NOT_THERE)
            break;
    }
    for (unsigned k = 1; k < pm_heap.volumes && status == PM_OK; k++)
        status = check_link(k, err);
    for (unsigned k = 1; *more && status == PM_OK; k++) {
        size_t len = first_of(more);
        status = use_named(more, len, k, mode, err);
        more += len + (more[len] != '\0');
    }
    if (status == PM_OK && !pm_heap.readonly && !pm_heap.created)
        status = pm_volumes_sync(err);
    return status == PM_OK ? place_shards(err) : status;
}

int pm_volume_add(const char *path, unsigned *number, struct pm_error *err) {
    int status = PM_OK, lock = pm_heap.roots.fd;
    while (flock(lock, LOCK_EX) != 0 && errno == EINTR) {
    }
    while (pm_heap.volumes < PM_VOLUMES &&
           link_exists(pm_heap.dir_fd, pm_heap.volumes) == PM_IS_THERE)
        pm_heap.volumes++;
    for (*number = 0; *number < pm_heap.volumes && !leads_there(path, *number);)
        ++*number;
    if (*number == pm_heap.volumes)
        status = use_named(path, strlen(path), *number, PM_OPEN_CREATE, err);
    flock(lock, LOCK_UN);
    return status;
}

unsigned pm_volumes_arrived(void) {
    static _Atomic bool told;
    struct pm_error err;
    unsigned k = pm_heap.volumes;
    if (!pm_heap_on_media() || k == PM_VOLUMES || pm_fixed_is_open() || pm_heap.nameless ||
        !pm_dir_ready() || link_exists(pm_heap.dir_fd, k) != PM_IS_THERE ||
        !pm_file_ready(&pm_heap.super_file))
        return k;
    if (check_link(k, &err) == PM_OK)
        return k + 1;
    if (!atomic_exchange(&told, true))
        pm_event(PM_EV_OPEN_FAILED, "%s; the heap goes on without this directory", err.text);
    return k;
}

// ---- shards -------------------------------------------------------------------------------------

int pm_volume_node(unsigned volume) {
    struct stat st;
    if (pm_heap.volumes == 1)
        return -1;
    int fd = volume ? open_link(pm_heap.dir_fd, volume) : pm_heap.dir_fd;
    int node = fd >= 0 && fstat(fd, &st) == 0 ? pm_node_of_device(st.st_dev) : -1;
    if (volume && fd >= 0)
        close(fd);
    return node;
}

uint64_t pm_volume_addresses(unsigned volume) {
    uint64_t left = 0;
    for (unsigned i = 0; i < pm_heap.shards; i++) {
        const struct pm_shard *s = &pm_heap.shard[i];
        uint64_t frontier = __atomic_load_n(&s->frontier, __ATOMIC_RELAXED);
        left += s->volume == volume && s->limit > frontier ? s->limit - frontier : 0;
    }
    return left;
}

// The one whose shards have the fewest addresses left; among equals they take turns.
static unsigned choose_by_turns(unsigned shard) {
    unsigned best = shard % pm_heap.volumes;
    for (unsigned i = 1; i < pm_heap.volumes; i++) {
        unsigned other = (shard + i) % pm_heap.volumes;
        best = pm_volume_addresses(other) < pm_volume_addresses(best) ? other : best;
    }
    return best;
}

unsigned pm_volume_choose(unsigned shard, unsigned node) {
    if (pm_nodes.count == 1)
        return choose_by_turns(shard);
    for (unsigned k = 0; k < pm_heap.volumes; k++)
        if (pm_volume_node(k) == (int)node)
            return k;
    return node % pm_heap.volumes;
}

void pm_volume_note(unsigned shard, unsigned volume) {
    __atomic_store_n(&shard_state()->volume[shard], (uint8_t)volume, __ATOMIC_RELEASE);
}

void pm_shard_moved(unsigned shard, unsigned volume) {
    uint8_t *word = &shard_state()->volume[shard];
    pm_volume_note(shard, volume);
    pm_make_durable(word, sizeof *word);
}

bool pm_volumes_tidy(void) {
    bool good = true;
    int why = 0;
    for (size_t i = 0; i < pm_heap_file_count() && pm_heap.volumes > 1; i++) {
        const struct pm_heap_file *f = &pm_heap_files[i];
        for (unsigned k = 0; f->shard && k < pm_heap.volumes; k++) {
            char name[PM_FILE_NAME];
            pm_volume_file_name(f, k, name);
            if (k == pm_heap.shard[f->shard].volume || unlinkat(pm_heap.dir_fd, name, 0) == 0 ||
                errno == ENOENT)
                continue;
            good = false;
            why = errno;
        }
    }
    errno = good ? errno : why;
    return good;
}

// ---- removal ------------------------------------------------------------------------------------

// The superblock has one of its two names.
static bool read_uuid(int dir_fd, uint8_t uuid[16]) {
    struct pm_superblock super;
    bool good = pm_volume_read_file(dir_fd, pm_heap.super_file.name, &super, sizeof super) ||
                pm_volume_read_file(dir_fd, pm_heap.new_super.name, &super, sizeof super);
    if (good)
        memcpy(uuid, super.uuid, sizeof super.uuid);
    return good && super.magic == PM_SUPER_MAGIC;
}

// Only a volume of this heap: a link may lead anywhere. Its link stays while that cannot be told.
static bool remove_volume(int dir_fd, unsigned k, const uint8_t uuid[16]) {
    char path[PATH_MAX], name[LINK_NAME];
    link_target(dir_fd, k, path);
    struct pm_volume v, wanted = pm_volume_file(uuid, k);
    int fd = open_link(dir_fd, k);
    bool good = fd >= 0 || errno == ENOENT || errno == ENOTDIR;
    enum pm_there is = fd >= 0 ? pm_volume_read(fd, &v) : PM_NOT_THERE;
    good = good && is != PM_CANNOT_TELL;
    if (is == PM_IS_THERE && memcmp(&v, &wanted, sizeof v) == 0) {
        for (size_t i = 0; i < PM_HEAP_FILES; i++)
            if (pm_heap_files[i].shard)
                good &= unlinkat(fd, pm_heap_files[i].name, 0) == 0 || errno == ENOENT;
        good = good && unlinkat(fd, FILE_NAME, 0) == 0;
        if (good)
            rmdir(path);
    }
    if (fd >= 0)
        close(fd);
    link_name(k, name);
    return good && unlinkat(dir_fd, name, 0) == 0;
}

bool pm_volumes_remove(int dir_fd) {
    uint8_t uuid[16] = {0};
    bool good = true, known = false;
    for (EACH_VOLUME(k)) {
        enum pm_there link = link_exists(dir_fd, k);
        good &= link != PM_CANNOT_TELL;
        if (link != PM_IS_THERE)
            continue;
        known = known || read_uuid(dir_fd, uuid);
        good &= known && remove_volume(dir_fd, k, uuid);
    }
    return good;
}
