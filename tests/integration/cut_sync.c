// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A library behind the library under test: the process is killed when fsync() is about to be made,
// so that nothing of it has reached the disk.
#include <signal.h>

int fsync(int fd) { return fd >= 0 ? raise(SIGKILL) : -1; }
