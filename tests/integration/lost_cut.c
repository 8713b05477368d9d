// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The disk of lost_writes.h from outside:
//
//   lost_cut begin    all is durable as it is
//   lost_cut count    no sync has been made
//   lost_cut cut      a power failure: the tree becomes what the disk has, each file the same inode
#include "lost_writes.h"

static void stage_name(int dir, const char *path, const char *name, unsigned char type, void *arg) {
    char below[PATH], stage[PATH + 128];
    snprintf(below, sizeof below, "%s/%s", path, name);
    snprintf(stage, sizeof stage, "%s/%s.stage", disk, key_at(dir, name, 0).text);
    if (type == DT_DIR)
        each_name(below, stage_name, arg);
    else if ((type == DT_REG ? rename(below, stage) : unlink(below)) != 0)
        die("cannot move", below);
}

static void remove_empty(int dir, const char *path, const char *name, unsigned char type,
                         void *arg) {
    char below[PATH];
    (void)dir;
    snprintf(below, sizeof below, "%s/%s", path, name);
    if (type != DT_DIR)
        return;
    each_name(below, remove_empty, arg);
    rmdir(below);
}

// What was allocated stays so: that is the journal's, too.
static void put_file(const char *path, struct key key) {
    static char bytes[CHUNK], now[CHUNK];
    char stage[PATH + 128];
    snprintf(stage, sizeof stage, "%s/%s.stage", disk, key.text);
    rename(stage, path); // else no name led to it any more
    int out = open_raw(path, O_RDWR | O_CREAT), in = open_side(key, "disk", O_RDONLY);
    struct stat st = {0};
    if (out < 0 || (in >= 0 && fstat(in, &st) != 0) || ftruncate(out, st.st_size) != 0)
        die("cannot write", path);
    uint64_t size = (uint64_t)st.st_size;
    for (uint64_t at = 0; at < size; at += CHUNK) {
        uint64_t part = size - at < CHUNK ? size - at : CHUNK;
        load(in, bytes, part, at);
        load(out, now, part, at);
        if (memcmp(bytes, now, part) != 0)
            store(out, bytes, part, at);
    }
    close_raw(out);
    close_raw(in);
}

static void put_dir(const char *path, struct key key) {
    char names[PATH + 128], below[PATH], name[256], link[PATH], type;
    struct key child;
    snprintf(names, sizeof names, "%s/%s.names", disk, key.text);
    FILE *in = fopen(names, "r");
    while (in && fscanf(in, "%c %63s %255s %2047[^\n]\n", &type, child.text, name, link) == 4) {
        snprintf(below, sizeof below, "%s/%s", path, name);
        if (type == 'f')
            put_file(below, child);
        else if (type == 'l' && symlink(link, below) != 0)
            die("cannot link", below);
        else if (type == 'd' && mkdir(below, 0700) != 0 && errno != EEXIST)
            die("cannot make", below);
        if (type == 'd')
            put_dir(below, child);
    }
    if (in)
        fclose(in);
}

static void forget(int dir, const char *path, const char *name, unsigned char type, void *arg) {
    (void)path, (void)type, (void)arg;
    if (unlinkat(dir, name, 0) != 0)
        die("cannot remove", name);
}

static void begin(void) {
    each_name(disk, forget, NULL);
    sync_tree(root);
}

static void cut(void) {
    struct key key = key_at(AT_FDCWD, root, 0);
    each_name(root, stage_name, NULL);
    put_dir(root, key);
    each_name(root, remove_empty, NULL); // those that no durable name leads to are empty
    begin();
}

int main(int argc, char **argv) {
    const char *what = argc == 2 ? argv[1] : "";
    if (!is_set())
        die("set", "LOST_ROOT and LOST_DISK");
    if (strcmp(what, "begin") == 0)
        begin();
    else if (strcmp(what, "cut") == 0)
        cut();
    else if (strcmp(what, "count") == 0)
        close_raw((ftruncate(lock(), 0), -1));
    else
        die("unknown:", what);
    return 0;
}
