// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "manager.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int connect_to(const char *name) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    size_t length = strlen(name);
    if ((*name != '/' && *name != '@') || length < 2 || length >= sizeof at.sun_path) {
        errno = EAFNOSUPPORT; // vsock: of a manager outside of this machine
        return -1;
    }
    memcpy(at.sun_path, name, length);
    if (*name == '@')
        at.sun_path[0] = '\0';
    int made = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    if (made >= 0 && connect(made, (struct sockaddr *)&at, size) != 0) {
        int error = errno;
        close(made);
        errno = error;
        made = -1;
    }
    return made;
}

int manager_find(struct manager *m, struct pm_error *err) {
    const char *name = getenv("NOTIFY_SOCKET"), *each = getenv("WATCHDOG_USEC"),
               *whose = getenv("WATCHDOG_PID");
    *m = (struct manager){.socket = -1};
    if (!name || !*name)
        return PM_OK;
    if (each && (!whose || strtol(whose, NULL, 10) == getpid()))
        m->watchdog_us = strtoull(each, NULL, 10);
    m->socket = connect_to(name);
    if (m->socket < 0)
        return pm_fail(err, PM_OPERATIONAL,
                       "--notify: NOTIFY_SOCKET=%.200s: %s; nothing could be said to the service "
                       "manager. A container needs that socket mounted (podman run "
                       "--sdnotify=container); without --notify the program starts",
                       name, strerror(errno));
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
    return PM_OK;
}

void manager_tell(const struct manager *m, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (length > 0 && (size_t)length < sizeof text)
        send(m->socket, text, (size_t)length, MSG_NOSIGNAL);
}
