// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What /proc says of a thread of another process, and the memory of that process.
#ifndef PM_TOOLS_PROGRAM_STATUS_H
#define PM_TOOLS_PROGRAM_STATUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

// Reads a file of a thread into `out`, with a 0 behind it. False: it cannot be read, with errno.
bool program_text(pid_t pid, pid_t thread, const char *file, char *out, size_t len);
// The number behind this name at the beginning of a line of such a text.
int64_t program_number(const char *text, const char *name, int64_t otherwise);
// The letter of the thread's state, and the kernel's flags of it; 0: it is no more.
char program_state(pid_t pid, pid_t thread, unsigned long *flags);
// A filter may end the program for a system call that a tool has it make. Filters that this process
// has, too, were there before either of the two.
bool program_is_filtered(pid_t pid);
// Bytes that the kernel makes anew whenever the process executes a program. False: there are none.
bool program_random(pid_t pid, unsigned char bytes[16]);
// Opens /proc/PID/mem. -1 with errno.
int program_memory(pid_t pid, int how);

#endif
