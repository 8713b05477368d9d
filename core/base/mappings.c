// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "mappings.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

struct search {
    uint64_t from, to;
    pm_mapping_fn *fn;
    void *arg;
    char line[64]; // the start of the line, the only part that is read
    unsigned len;
    bool done; // what follows lies behind
};

// "from-to rwxp ..."
static void take(struct search *s) {
    char *at;
    uint64_t from = strtoull(s->line, &at, 16), to = *at == '-' ? strtoull(at + 1, &at, 16) : 0;
    if (*at != ' ' || strlen(at) < 4)
        return;
    int access = (at[1] == 'r' ? PROT_READ : 0) | (at[2] == 'w' ? PROT_WRITE : 0) |
                 (at[3] == 'x' ? PROT_EXEC : 0);
    s->done = from >= s->to;
    from = from > s->from ? from : s->from;
    to = to < s->to ? to : s->to;
    if (from < to)
        s->fn(from, to, access, s->arg);
}

static void take_text(struct search *s, const char *text, size_t len) {
    for (size_t i = 0; i < len && !s->done; i++) {
        if (text[i] != '\n') {
            if (s->len < sizeof s->line - 1)
                s->line[s->len++] = text[i];
            continue;
        }
        s->line[s->len] = '\0';
        s->len = 0;
        take(s);
    }
}

static int open_here(const char *path, int flags) {
    (void)path;
    return (int)syscall(SYS_openat, AT_FDCWD, "/proc/thread-self/maps", flags | O_CLOEXEC);
}

static ssize_t read_here(int fd, void *to, size_t size) { return syscall(SYS_read, fd, to, size); }

static void close_here(int fd) {
    if (fd >= 0)
        syscall(SYS_close, fd);
}

static const struct pm_mappings_door here = {open_here, read_here, close_here};
const struct pm_mappings_door *pm_mappings_door = &here;

bool pm_mappings_each(uint64_t from, uint64_t to, pm_mapping_fn *fn, void *arg) {
    struct search s = {.from = from, .to = to, .fn = fn, .arg = arg};
    char text[1024];
    int saved = errno;
    ssize_t got = -1;
    const struct pm_mappings_door *door = pm_mappings_door;
    int fd = door->open("thread-self/maps", O_RDONLY);
    while (fd >= 0 && !s.done && (got = door->read(fd, text, sizeof text)) > 0)
        take_text(&s, text, (size_t)got);
    door->close(fd);
    errno = saved;
    return s.done || got == 0;
}
