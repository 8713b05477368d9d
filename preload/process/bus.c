// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "bus.h"

#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "media/backing/fixed.h"
#include "media/full.h"
#include "media/heap.h"

bool pm_bus_watched;

// A fault comes again at once, and then ends the process. A signal that was sent is sent again.
static void on_bus(int number, siginfo_t *info, void *context) {
    const struct sigaction plain = {.sa_handler = SIG_DFL};
    int saved = errno;
    (void)context;
    if (info->si_code == BUS_ADRERR)
        pm_full_explains(info->si_addr);
    sigaction(number, &plain, NULL);
    if (info->si_code <= 0)
        syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), number);
    errno = saved;
}

void pm_bus_watch(void) {
    struct sigaction before, ours = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    int saved = errno;
    if (!pm_heap_on_media())
        return;
    pm_bus_watched = true;
    bool stores_fault = !pm_heap_is_journaled() && pm_reserve_is_lazy();
    if (stores_fault && sigaction(SIGBUS, NULL, &before) == 0 && !(before.sa_flags & SA_SIGINFO) &&
        before.sa_handler == SIG_DFL)
        sigaction(SIGBUS, &ours, NULL);
    errno = saved;
}

void pm_bus_forbid(void) { pm_bus_watched = true; }
