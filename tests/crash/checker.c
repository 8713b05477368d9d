// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The checker: the allocator as users get it, with a heap directory of its own. It writes each
// image into the directory, and a forked child opens, recovers and checks the heap.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "verify.h"

#define TIMEOUT 20 // seconds for one image

struct world *world;
static int image_dir = -1, errors = -1;

static void die(const char *what) {
    fprintf(stderr, "crash-check: %s: %s\n", what, strerror(errno));
    exit(2);
}

// ---- the image becomes a directory --------------------------------------------------------------

static bool all_zero(const char *page) { return page[0] == 0 && memcmp(page, page + 1, 4095) == 0; }

// Pages of zeroes stay holes.
static void put_pages(int fd, const char *bytes, uint64_t size, off_t to) {
    for (uint64_t at = 0; at < size;) {
        uint64_t end = at;
        while (end < size && !all_zero(bytes + end))
            end += 4096;
        if (end > at) {
            uint64_t len = (end < size ? end : size) - at;
            if (pwrite(fd, bytes + at, len, to + (off_t)at) != (ssize_t)len)
                die("writing an image");
        }
        at = end + 4096;
    }
}

static int make_file(unsigned file, uint64_t size) {
    int fd = openat(image_dir, file_name(file), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)size) != 0)
        die("writing an image");
    return fd;
}

// A file of the simulated program, mapped as long as it is the same file and has the same length:
// most images have the data of the image before.
struct source {
    ino_t inode;
    uint64_t size;
    const char *bytes;
};

static const char *map_source(unsigned file, int fd) {
    static struct source known[FILES];
    struct source *s = &known[file];
    struct stat st;
    if (fstat(fd, &st) != 0)
        die("looking at the data");
    if (s->bytes && s->inode == st.st_ino && s->size == (uint64_t)st.st_size)
        return s->bytes;
    if (s->bytes)
        munmap((void *)(uintptr_t)s->bytes, s->size);
    *s = (struct source){st.st_ino, (uint64_t)st.st_size, NULL};
    void *bytes = s->size ? mmap(NULL, s->size, PROT_READ, MAP_SHARED, fd, 0) : NULL;
    if (bytes == MAP_FAILED || (bytes && madvise(bytes, s->size, MADV_DONTFORK) != 0))
        die("mapping the data");
    return s->bytes = bytes;
}

// Copies what lies beyond `at` in a file of the simulated program. It is on media as it is, because
// the program's own data are durable at once.
static void copy_data(int to, unsigned file, uint64_t size, off_t at) {
    char path[192];
    snprintf(path, sizeof path, "%s/heap/%s", world->root, file_name(file));
    int from = open(path, O_RDONLY | O_CLOEXEC);
    if (from < 0 || ftruncate(to, (off_t)size) != 0)
        die(path);
    const char *bytes = map_source(file, from);
    while ((at = lseek(from, at, SEEK_DATA)) >= 0) {
        off_t end = lseek(from, at, SEEK_HOLE);
        put_pages(to, bytes + at, (uint64_t)(end - at), at);
        at = end;
    }
    close(from);
}

// An image is the heap that the program uses alone: the files of a directory, or the media.
static bool heap_has(unsigned file) { return world->fixed == is_medium(file); }

static void put_metadata(void) {
    static uint64_t bytes[SHADOW_WORDS + 512];
    const struct request *q = &world->request;
    for (unsigned file = 0; file < SHADOWS; file++) {
        const struct shadow *s = &world->shadow[file];
        if (!s->exists || !heap_has(file)) {
            unlinkat(image_dir, file_name(file), 0);
            continue;
        }
        memcpy(bytes, s->media, (s->size + 4095) & ~4095ull);
        for (uint32_t i = 0; i < q->patch_count; i++)
            if (q->patch[i].file == file)
                bytes[q->patch[i].word] = q->patch[i].value;
        int fd = make_file(file, s->size);
        put_pages(fd, (const char *)bytes, s->size, 0);
        if (is_medium(file))
            copy_data(fd, file, world->medium_bytes[file - F_MEDIUM], s->size);
        close(fd);
    }
}

static void put_data(unsigned file) {
    if (!world->data_exists[file - F_DATA] || world->fixed) {
        unlinkat(image_dir, file_name(file), 0);
        return;
    }
    int to = make_file(file, 0);
    copy_data(to, file, world->data_size[file - F_DATA], 0);
    close(to);
}

// ---- children -----------------------------------------------------------------------------------

static int in_child(int (*check)(char *text, size_t len)) {
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(TIMEOUT);
        dup2(errors, STDERR_FILENO);
        _exit(check(world->request.text, sizeof world->request.text));
    }
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Puts into the answer how a child ended, and what it wrote last to standard error.
static void last_words(const char *step, int status) {
    char *text = world->request.text;
    size_t room = sizeof world->request.text, len = strlen(text);
    snprintf(text + len, room - len, "%s%s: status %d: ", len ? "; " : "", step, status);
    len = strlen(text);
    ssize_t got = pread(errors, text + len, room - 1 - len, 0);
    text[len + (size_t)(got > 0 ? got : 0)] = '\0';
    text[strcspn(text, "\n")] = '\0';
}

static bool check(void) {
    const struct request *q = &world->request;
    world->request.text[0] = '\0';
    put_metadata();
    for (unsigned file = F_DATA; file < FILES; file++)
        put_data(file);
    char path[HEAP_PATH];
    heap_path(path, "image");
    setenv("PMALLOC_HEAP", path, 1);
    setenv("PMALLOC_COLLECT", collect_text(world->expect.collect), 1);
    if (ftruncate(errors, 0) != 0 || lseek(errors, 0, SEEK_SET) != 0)
        die("errors");
    int status = q->look ? in_child(verify_look) : 0;
    if (status) {
        last_words("read-only", status);
        return false;
    }
    status = in_child(verify_image);
    if (status == 0 && q->reopen) {
        status = in_child(verify_again);
        if (status) {
            last_words("opened again", status);
            return false;
        }
    } else if (status) {
        last_words("recovery", status);
        return false;
    }
    return true;
}

int main(int argc, char **argv) {
    char path[192];
    if (argc != 3)
        return 2;
    int fd = atoi(argv[1]), end = atoi(argv[2]);
    world = mmap(NULL, sizeof *world, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (world == MAP_FAILED)
        die("world");
    snprintf(path, sizeof path, "%s/image", world->root);
    image_dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    errors = memfd_create("errors", MFD_CLOEXEC);
    if (image_dir < 0 || errors < 0)
        die(path);
    setenv("PMALLOC_MARKERS", "1", 1);
    setenv("PMALLOC_PERSIST", "cache", 1);
    // It is another program than the one on record. Fixed media have the record; of a directory's
    // files the images do not have it.
    setenv("PMALLOC_REBASE", "report", 1);
    for (char byte; read(end, &byte, 1) == 1;) {
        byte = check() ? '.' : 'x';
        if (write(end, &byte, 1) != 1)
            break;
    }
    return 0;
}
