// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A child of its own reads and checks all that an opening reads before it changes anything: the
// tables of extents cannot be emptied again. The child shares no memory with us, and the kernel
// sends no signal when it ends. So the program notices nothing of it.
#include "open_check.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bad_read.h"
#include "base/os.h"
#include "blocks/tables.h"
#include "media/heap.h"
#include "media/open/heap_open.h"
#include "recovery/recover.h"
#include "roots/root_table.h"

static int check(struct pm_error *err) {
    struct pm_recovery ignored;
    struct pm_recover_options how = {.check = true, .mark = {.markers = 1}};
    int status = pm_tables_extend(err);
    if (status == PM_OK)
        status = pm_heap_map(err);
    return status == PM_OK ? pm_recover(&how, &ignored, err) : status;
}

static int check_in_child(struct pm_error *err) {
    struct told {
        struct pm_error err;
        int error;
    };
    int ended = 0;
    uint64_t all = ~0ull, before; // the program's handlers do not run in the child
    struct told *told = mmap(pm_os_place(sizeof *told), sizeof *told, PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, sizeof all);
    long pid = told == MAP_FAILED ? -1 : syscall(SYS_clone, 0L, NULL, NULL, NULL, 0L);
    if (pid == 0) {
        syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL); // it shares the lock
        told->error = EIO;
        pm_bad_reads_tell(&told->err);
        errno = 0;
        told->err.status = check(&told->err);
        told->error = errno;
        syscall(SYS_exit_group, 0);
    }
    int saved = errno;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof before);
    errno = saved;
    if (pid > 0)
        while (syscall(SYS_wait4, pid, &ended, __WALL, NULL) < 0 && errno == EINTR) {
        }
    if (pid < 0)
        pm_fail(err, PM_OPERATIONAL, "%s: no process can be made to check it: %s", pm_heap.dir,
                pm_strerror(errno));
    else if (ended)
        pm_fail(err, PM_DAMAGE, "%s cannot be read; was a file of it cut?", pm_heap.dir);
    else
        *err = told->err;
    if (pid > 0 && !ended && err->status != PM_OK)
        errno = told->error;
    if (told != MAP_FAILED)
        munmap(told, sizeof *told);
    return err->status;
}

// Variables get what the last run left in them before main alone.
static int has_no_captured_roots(struct pm_error *err) {
    const struct pm_root_table *table = pm_roots_table(err);
    if (!table)
        return err->status;
    if (!table->count)
        return PM_OK;
    errno = ENOTSUP;
    return pm_fail(err, PM_OPERATIONAL,
                   "%s has captured roots, which a program gets back before main alone; name it in "
                   "PMALLOC_HEAP",
                   pm_heap.dir);
}

int pm_open_check(struct pm_error *err) {
    int status = pm_heap.created ? PM_OK : check_in_child(err);
    return status == PM_OK ? has_no_captured_roots(err) : status;
}
