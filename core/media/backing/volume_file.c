// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "volume_file.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/crc.h"
#include "base/os_file.h"

struct pm_volume pm_volume_file(const uint8_t uuid[16], unsigned k) {
    struct pm_volume v = {.magic = PM_VOLUME_MAGIC, .number = k};
    memcpy(v.uuid, uuid, sizeof v.uuid);
    v.crc = pm_crc32c(0, &v, offsetof(struct pm_volume, crc));
    return v;
}

bool pm_volume_read_file(int dir_fd, const char *name, void *to, size_t size) {
    int fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t got = pm_os_read_at(fd, to, size, 0);
    int error = got < 0 ? errno : 0;
    close(fd);
    errno = error;
    return got == (ssize_t)size;
}

enum pm_there pm_volume_read(int dir_fd, struct pm_volume *v) {
    if (!pm_volume_read_file(dir_fd, PM_VOLUME_FILE, v, sizeof *v))
        return errno == 0 || errno == ENOENT ? PM_NOT_THERE : PM_CANNOT_TELL;
    bool intact =
        v->magic == PM_VOLUME_MAGIC && v->crc == pm_crc32c(0, v, offsetof(struct pm_volume, crc));
    return intact ? PM_IS_THERE : PM_NOT_THERE;
}

enum pm_there pm_volume_is_one(int dir_fd) {
    struct pm_volume v;
    return pm_volume_read(dir_fd, &v);
}
