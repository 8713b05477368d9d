// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "progress.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "base/message.h"
#include "base/os.h"

enum { INTERVAL_MS = 100, BAR = 30 };

static uint64_t shown_at; // 0: nothing is on the terminal
static uint64_t started;

static void show(const char *stage, uint64_t done, uint64_t total) {
    uint64_t now = pm_os_now_ms();
    // Show nothing for a recovery that ends soon.
    if (now - started < INTERVAL_MS || now - shown_at < INTERVAL_MS)
        return;
    shown_at = now;
    double share = total == 0     ? 0
                   : done < total ? (double)done / (double)total
                                  : 1; // `total` is an estimate, so `done` may exceed it
    char bar[BAR + 1];
    for (unsigned i = 0; i < BAR; i++)
        bar[i] = i < (unsigned)(share * BAR) ? '#' : '.';
    bar[BAR] = '\0';
    fprintf(stderr, "\r%s: %-5s [%s] %3.0f%%\033[K", pm_message_prefix, stage, bar, 100 * share);
}

pm_progress *progress_start(void) {
    if (!isatty(STDERR_FILENO))
        return NULL;
    started = pm_os_now_ms();
    return show;
}

void progress_end(void) {
    if (shown_at)
        fputs("\r\033[K", stderr);
    shown_at = 0;
}
