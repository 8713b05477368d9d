// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "type_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc.h"
#include "base/os.h"
#include "base/os_file.h"
#include "media/heap.h"

enum { BYTES_MOST = 32 << 20 }; // more than the limits of the format allow

static enum type_file take(struct type_table *out, char *bytes, size_t size) {
    struct pm_types_head head;
    if (size >= sizeof head) {
        memcpy(&head, bytes, sizeof head);
        if (head.magic == PM_TYPES_MAGIC && head.version != PM_TYPES_VERSION &&
            head.crc == pm_crc32c(0, &head, offsetof(struct pm_types_head, crc)))
            return TYPE_FILE_OTHER;
    }
    return type_table_take(out, bytes, size) ? TYPE_FILE_READ : TYPE_FILE_DAMAGED;
}

enum type_file type_file_read(int dir, struct type_table *out) {
    struct stat st;
    int fd = openat(dir, pm_heap.types.name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? TYPE_FILE_NONE : TYPE_FILE_FAILED;
    enum type_file result = TYPE_FILE_FAILED;
    if (fstat(fd, &st) == 0) {
        size_t size = (size_t)st.st_size;
        bool may_be = S_ISREG(st.st_mode) && size && size <= BYTES_MOST;
        char *bytes = may_be ? malloc(size) : NULL;
        if (!may_be)
            result = TYPE_FILE_DAMAGED;
        else if (bytes && pm_os_read_all(fd, bytes, size, 0))
            result = take(out, bytes, size);
        if (result != TYPE_FILE_READ)
            free(bytes);
    }
    int saved = errno;
    close(fd);
    errno = saved;
    return result;
}

bool type_file_write(int dir, struct type_table *t) {
    const char *new = pm_heap.new_types.name;
    size_t size;
    char *bytes = type_table_bytes(t, &size);
    if (!bytes) {
        errno = ENOMEM;
        return false;
    }
    // What an interruption has left has the name.
    bool free_name = unlinkat(dir, new, 0) == 0 || errno == ENOENT;
    int fd = free_name
                 ? openat(dir, new, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600)
                 : -1;
    bool good = fd >= 0 && pm_os_file_size(size) && pm_os_write_all(fd, bytes, size, 0) &&
                fsync(fd) == 0 && renameat(dir, new, dir, pm_heap.types.name) == 0 &&
                (fsync(dir) == 0 || errno == EINVAL);
    int saved = errno;
    if (fd >= 0)
        close(fd);
    if (fd >= 0 && !good)
        unlinkat(dir, new, 0);
    free(bytes);
    errno = saved;
    return good;
}

const char *type_file_name(void) { return pm_heap.types.name; }

void type_build_of(const struct pm_elf *program, struct type_build *out) {
    *out = (struct type_build){0};
    out->len = (uint32_t)pm_elf_build_id(program, out->id);
    if (out->len)
        return;
    uint64_t size = program->size;
    uint32_t crc = pm_crc32c(0, program->map, program->size);
    memcpy(out->id, &size, sizeof size);
    memcpy(out->id + sizeof size, &crc, sizeof crc);
}
