// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A disk that fails for a moment: lost_writes.c is preloaded, lost_cut.c cuts the power.
//
// Linux reports a failed write-back once, and takes the pages for written: the page cache has them,
// the disk has not, and a later sync that succeeds does not write them. So beside a tree of files
// lies what the disk has of it. A sync that succeeds brings there the pages that were stored to
// since the last sync; one that fails forgets them. Names and lengths are the journal's: a sync
// that fails leaves them for the next one. A directory's own sync makes its names durable, and
// nothing else does.
//
//   LOST_ROOT=DIR    the tree
//   LOST_DISK=DIR    what the disk has, on the same file system; nothing else may lie there
//   LOST_FAIL=N      the N-th sync fails with EIO, counted over all processes since `count`
//   LOST_KILL=1      the process is killed there instead, before the sync
//   LOST_ONLY=TEXT   only syncs of paths that end so count
//
// Pages count as stored to if they were written by a call, differ from what the last sync saw, or
// are dirty to the kernel (cachestat(2), Linux 6.5): so does what is stored again with the same
// bytes. A page that was stored through a mapping with the same bytes is missed if another process
// makes the kernel write it (syncfs(2) of the same file system) before its own sync.
#ifndef LOST_WRITES_H
#define LOST_WRITES_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "raw_call.h"

enum { PAGE = 4096, CHUNK = 64 * PAGE, PATH = 2048 };
#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

static char root[PATH], disk[PATH], only[256];
static long fail_at;
static bool kills;

static _Noreturn void die(const char *what, const char *path) {
    char text[PATH + 200];
    int len = snprintf(text, sizeof text, "lost_writes: %s %s: %s\n", what, path, strerror(errno));
    raw(SYS_write, 2, (long)text, len, 0, 0, 0);
    raw(SYS_exit_group, 99, 0, 0, 0, 0, 0);
    __builtin_unreachable();
}

static const char *variable(const char *text, long have, const char *name) {
    size_t len = strlen(name);
    for (const char *at = text; at < text + have; at += strlen(at) + 1)
        if (strncmp(at, name, len) == 0 && at[len] == '=')
            return at + len + 1;
    return "";
}

static int open_raw(const char *path, int flags) {
    return (int)done(raw(SYS_openat, AT_FDCWD, (long)path, flags | O_CLOEXEC, 0600, 0, 0));
}
static void close_raw(int fd) { raw(SYS_close, fd, 0, 0, 0, 0, 0); }

// Whether there is a tree. Settings are read from the environment as the kernel gave it.
static bool is_set(void) {
    static char text[65536];
    if (!root[0]) {
        int fd = open_raw("/proc/self/environ", O_RDONLY);
        long have = 0, got;
        while (fd >= 0 && have < (long)sizeof text - 1 &&
               (got = raw(SYS_read, fd, (long)(text + have), (long)sizeof text - 1 - have, 0, 0,
                          0)) > 0)
            have += got;
        close_raw(fd);
        snprintf(disk, sizeof disk, "%s", variable(text, have, "LOST_DISK"));
        snprintf(only, sizeof only, "%s", variable(text, have, "LOST_ONLY"));
        fail_at = strtol(variable(text, have, "LOST_FAIL"), NULL, 10);
        kills = variable(text, have, "LOST_KILL")[0] == '1';
        snprintf(root, sizeof root, "%s", variable(text, have, "LOST_ROOT"));
        if (!root[0])
            strcpy(root, "/nothing");
    }
    return disk[0] != '\0';
}

static int lock(void) {
    char path[PATH + 32];
    snprintf(path, sizeof path, "%s/lock", disk);
    int fd = open_raw(path, O_RDWR | O_CREAT);
    if (fd < 0 || raw(SYS_flock, fd, LOCK_EX, 0, 0, 0, 0) != 0)
        die("cannot lock", path);
    return fd;
}

// ---- what a file is -----------------------------------------------------------------------------

// An inode's number is used again; its time of birth is not.
struct key {
    char text[64];
};

static struct key key_at(int dir, const char *name, int flags) {
    struct statx st;
    struct key key;
    if (raw(SYS_statx, dir, (long)name, flags | AT_SYMLINK_NOFOLLOW, STATX_INO | STATX_BTIME,
            (long)&st, 0) != 0)
        die("cannot look at", name);
    snprintf(key.text, sizeof key.text, "%llx-%llx.%x", (unsigned long long)st.stx_ino,
             (unsigned long long)st.stx_btime.tv_sec, st.stx_btime.tv_nsec);
    return key;
}

static int open_side(struct key key, const char *what, int flags) {
    char path[PATH + 128];
    snprintf(path, sizeof path, "%s/%s.%s", disk, key.text, what);
    return open_raw(path, flags);
}

// ---- files --------------------------------------------------------------------------------------

static bool any_dirty(int fd, uint64_t at, uint64_t len) {
    uint64_t range[2] = {at, len}, found[5] = {0};
    return raw(SYS_cachestat, fd, (long)range, (long)found, 0, 0, 0) == 0 && found[1];
}

// Behind the end there are zeroes.
static void load(int fd, char *to, uint64_t len, uint64_t at) {
    long got = raw(SYS_pread64, fd, (long)to, (long)len, (long)at, 0, 0);
    if (got < 0)
        die("cannot read", "a file");
    memset(to + got, 0, len - (uint64_t)got);
}

static void store(int fd, const char *from, uint64_t len, uint64_t at) {
    if (raw(SYS_pwrite64, fd, (long)from, (long)len, (long)at, 0, 0) != (long)len)
        die("cannot write", disk);
}

struct sides {
    int file, seen, disk, again; // again: a byte for each page, 1 where a call has written
    bool good;
};

static void sync_chunk(const struct sides *s, uint64_t at, uint64_t len) {
    static char now[CHUNK], seen[CHUNK], again[CHUNK / PAGE];
    static const char none[CHUNK / PAGE];
    bool dirty = any_dirty(s->file, at, len);
    load(s->file, now, len, at);
    load(s->seen, seen, len, at);
    load(s->again, again, len / PAGE, at / PAGE);
    store(s->again, none, len / PAGE, at / PAGE);
    for (uint64_t i = 0; i < len; i += PAGE) {
        if (memcmp(now + i, seen + i, PAGE) == 0 && !again[i / PAGE] &&
            !(dirty && any_dirty(s->file, at + i, PAGE)))
            continue;
        store(s->seen, now + i, PAGE, at + i);
        if (s->good)
            store(s->disk, now + i, PAGE, at + i);
    }
}

// What the file system keeps as a hole is zeroes, and that is the journal's.
static void sync_hole(const struct sides *s, uint64_t from, uint64_t to) {
    const int punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    if (to <= from)
        return;
    raw(SYS_fallocate, s->seen, punch, (long)from, (long)(to - from), 0, 0);
    if (s->good)
        raw(SYS_fallocate, s->disk, punch, (long)from, (long)(to - from), 0, 0);
}

// The pages of [from, to), and the length.
static void sync_file(int file, struct key key, uint64_t from, uint64_t to, bool good) {
    struct sides s = {file, open_side(key, "seen", O_RDWR | O_CREAT),
                      open_side(key, "disk", O_RDWR | O_CREAT),
                      open_side(key, "again", O_RDWR | O_CREAT), good};
    struct stat st;
    if (s.seen < 0 || s.disk < 0 || s.again < 0 || fstat(file, &st) != 0)
        die("cannot open", disk);
    uint64_t size = (uint64_t)st.st_size, whole = (size + PAGE - 1) / PAGE * PAGE;
    to = to < whole ? to : whole;
    for (uint64_t at = from, data, end; at < to; at = end) {
        long found = raw(SYS_lseek, file, (long)at, SEEK_DATA, 0, 0, 0);
        data = found < 0 ? to : (uint64_t)found / PAGE * PAGE;
        data = data < at ? at : data > to ? to : data;
        sync_hole(&s, at, data);
        end = data;
        if (data == to)
            break;
        long hole = raw(SYS_lseek, file, (long)data, SEEK_HOLE, 0, 0, 0);
        end = hole < 0 ? to : ((uint64_t)hole + PAGE - 1) / PAGE * PAGE;
        end = end > to ? to : end;
        for (uint64_t part; data < end; data += part) {
            part = end - data < CHUNK ? end - data : CHUNK;
            sync_chunk(&s, data, part);
        }
    }
    raw(SYS_ftruncate, s.seen, (long)size, 0, 0, 0, 0);
    if (good)
        raw(SYS_ftruncate, s.disk, (long)size, 0, 0, 0, 0);
    close_raw(s.seen);
    close_raw(s.disk);
    close_raw(s.again);
    if (to > from) // what was looked at is clean now, whether the disk has it or not
        raw(SYS_sync_file_range, file, (long)from, (long)(to - from), 7, 0, 0);
}

// ---- directories --------------------------------------------------------------------------------

typedef void each_fn(int dir, const char *path, const char *name, unsigned char type, void *arg);

static void each_name(const char *path, each_fn *each, void *arg) {
    _Alignas(8) char entries[8192];
    int dir = open_raw(path, O_RDONLY | O_DIRECTORY);
    if (dir < 0)
        die("cannot open", path);
    for (long got, at;
         (got = raw(SYS_getdents64, dir, (long)entries, sizeof entries, 0, 0, 0)) > 0;)
        for (at = 0; at < got;) {
            struct dirent64 *e = (void *)(entries + at);
            at += e->d_reclen;
            if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
                each(dir, path, e->d_name, e->d_type, arg);
        }
    close_raw(dir);
}

// A line a name: its type, the key, the name, and where a link leads.
static void write_name(int dir, const char *path, const char *name, unsigned char type, void *arg) {
    char line[PATH + 512], link[PATH] = "-";
    (void)path;
    long len =
        type == DT_LNK ? raw(SYS_readlinkat, dir, (long)name, (long)link, PATH - 1, 0, 0) : 1;
    link[len > 0 ? len : 0] = '\0';
    int bytes = snprintf(line, sizeof line, "%c %s %s %s\n",
                         type == DT_DIR   ? 'd'
                         : type == DT_LNK ? 'l'
                                          : 'f',
                         key_at(dir, name, 0).text, name, link);
    raw(SYS_write, *(int *)arg, (long)line, bytes, 0, 0, 0);
}

static void sync_dir(const char *path, struct key key) {
    int out = open_side(key, "names", O_WRONLY | O_CREAT | O_TRUNC);
    if (out < 0)
        die("cannot write names", disk);
    each_name(path, write_name, &out);
    close_raw(out);
}

static void sync_tree(const char *path);

static void sync_name(int dir, const char *path, const char *name, unsigned char type, void *arg) {
    char below[PATH];
    (void)arg;
    snprintf(below, sizeof below, "%s/%s", path, name);
    if (type == DT_DIR)
        sync_tree(below);
    if (type != DT_REG)
        return;
    int fd = open_raw(below, O_RDONLY);
    if (fd < 0)
        die("cannot open", below);
    sync_file(fd, key_at(dir, name, 0), 0, UINT64_MAX / 2, true);
    close_raw(fd);
}

static void sync_tree(const char *path) {
    sync_dir(path, key_at(AT_FDCWD, path, 0));
    each_name(path, sync_name, NULL);
}

#endif
