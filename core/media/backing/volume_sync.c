// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "volume_sync.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "media/persist.h"

static int open_volume(unsigned volume) {
    char link[24];
    snprintf(link, sizeof link, "volume.%u", volume);
    return openat(pm_heap.dir_fd, volume ? link : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

bool pm_volume_sync(unsigned volume) {
    if (!pm_persist_syncs())
        return true;
    int fd = open_volume(volume);
    bool good = fd >= 0 && fsync(fd) == 0;
    int saved = errno;
    if (fd >= 0)
        close(fd);
    errno = saved;
    return good;
}

int pm_volumes_sync(struct pm_error *err) {
    for (unsigned k = 0; k < pm_heap.volumes; k++)
        if (!pm_volume_sync(k) && !pm_persist_forbidden("fsync"))
            return pm_fail(err, PM_OPERATIONAL,
                           "%s: the names in its directory number %u cannot be made durable: %s; "
                           "nothing is lost: try again once that is mended",
                           pm_heap.dir, k + 1, pm_strerror(errno));
    return PM_OK;
}
