// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "rebase.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/message.h"

int rebase(const struct cli_tool *tool, char *const *operand, bool dry, bool good) {
    static char run[PATH_MAX + 16];
    struct stat st;
    ssize_t length = readlink("/proc/self/exe", run, PATH_MAX - 1);
    if (!good)
        cli_wrong(tool, "--rebase needs a program and a heap, and goes with --dry-run alone");
    const char *program = operand[0], *heap = operand[1];
    if (stat(heap, &st) != 0) {
        pm_say("%s: %s", heap, pm_strerror(errno));
        return PM_OPERATIONAL;
    }
    run[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(run, '/');
    snprintf(slash ? slash + 1 : run, 16, "pmalloc-run");
    execl(run, run, "-H", heap, "-s", dry ? "REBASE=look" : "REBASE=only", "--", program,
          (char *)NULL);
    pm_say("%s: %s", run, pm_strerror(errno));
    return PM_OPERATIONAL;
}
