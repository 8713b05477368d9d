// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "program_status.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool program_text(pid_t pid, pid_t thread, const char *file, char *out, size_t len) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d/%s", (int)pid, (int)thread, file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, out, len - 1);
    int saved = errno;
    if (fd >= 0)
        close(fd);
    errno = saved;
    out[got > 0 ? got : 0] = '\0';
    return got > 0;
}

int64_t program_number(const char *text, const char *name, int64_t otherwise) {
    size_t len = strlen(name);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, len) == 0 && line[len] == ':')
            return strtoll(line + len + 1, NULL, 10);
    }
    return otherwise;
}

char program_state(pid_t pid, pid_t thread, unsigned long *flags) {
    char text[1024], state = 0;
    program_text(pid, thread, "stat", text, sizeof text);
    const char *at = strrchr(text, ')');
    if (!at || sscanf(at + 1, " %c %*d %*d %*d %*d %*d %lu", &state, flags) != 2)
        return 0;
    return state;
}

bool program_is_filtered(pid_t pid) {
    char own[4096], text[4096];
    program_text(getpid(), getpid(), "status", own, sizeof own);
    program_text(pid, pid, "status", text, sizeof text);
    int64_t mode = program_number(text, "Seccomp", -1);
    int64_t filters = program_number(text, "Seccomp_filters", -1);
    return mode == 1 || filters > program_number(own, "Seccomp_filters", -1) ||
           (filters < 0 && mode > program_number(own, "Seccomp", -1));
}

int program_memory(pid_t pid, int how) {
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/mem", (int)pid);
    return open(path, how | O_CLOEXEC);
}

// A program that the process executes amid this has another memory, or other bytes there.
bool program_random(pid_t pid, unsigned char bytes[16]) {
    Elf64_auxv_t item[64] = {0};
    int memory = program_memory(pid, O_RDONLY);
    ssize_t got = 0;
    program_text(pid, pid, "auxv", (char *)item, sizeof item);
    for (size_t i = 0; memory >= 0 && i < sizeof item / sizeof item[0]; i++)
        if (item[i].a_type == AT_RANDOM)
            got = pread(memory, bytes, 16, (off_t)item[i].a_un.a_val);
    if (memory >= 0)
        close(memory);
    return got == 16;
}
