// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "progress.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "message.h"
#include "os.h"
#include "recover.h"

enum { INTERVAL_MS = 100, BAR = 30 };

static uint64_t shown_at; // 0: nothing is on the terminal
static uint64_t started;

static void show(const char *stage, uint64_t done, uint64_t total) {
    uint64_t now = pm_os_now_ms();
    // A recovery that takes no time needs no picture of it.
    if (now - started < INTERVAL_MS || now - shown_at < INTERVAL_MS)
        return;
    shown_at = now;
    double share = total == 0     ? 0
                   : done < total ? (double)done / (double)total
                                  : 1; // the total is an estimate
    char bar[BAR + 1];
    for (unsigned i = 0; i < BAR; i++)
        bar[i] = i < (unsigned)(share * BAR) ? '#' : '.';
    bar[BAR] = '\0';
    fprintf(stderr, "\r%s: %-5s [%s] %3.0f%%\033[K", pm_message_prefix, stage, bar, 100 * share);
}

void progress_start(void) {
    if (!isatty(STDERR_FILENO))
        return;
    started = pm_os_now_ms();
    pm_recover_progress = show;
}

void progress_end(void) {
    pm_recover_progress = NULL;
    if (shown_at)
        fputs("\r\033[K", stderr);
    shown_at = 0;
}
