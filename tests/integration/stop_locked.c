// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A library that is preloaded: the process stops itself (SIGSTOP) once, before it locks a file that
// it has locked before.
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int flock(int fd, int operation) {
    static ino_t locked;
    static int stopped;
    struct stat st = {0};
    fstat(fd, &st);
    if (operation & LOCK_EX && st.st_ino == locked && !stopped) {
        stopped = 1;
        kill(getpid(), SIGSTOP);
    }
    int status = (int)syscall(SYS_flock, fd, operation);
    if (status == 0 && operation & LOCK_EX && !locked)
        locked = st.st_ino;
    return status;
}
