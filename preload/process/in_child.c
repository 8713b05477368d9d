// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "in_child.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
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

struct told {
    struct pm_error err;
    int error;
    char result[];
};

static int run(int (*work)(void *result, struct pm_error *err), struct told *told) {
    int status = pm_tables_extend(&told->err);
    if (status == PM_OK)
        status = pm_heap_map(&told->err);
    return status == PM_OK ? work(told->result, &told->err) : status;
}

// The child shares the lock. It may have been made a moment before its parent was killed. A parent
// in another PID namespace is 0.
static void end_with(long parent) {
    syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL);
    long now = syscall(SYS_getppid); // -1 under some filters
    if (now > 0 && now != parent)
        syscall(SYS_exit_group, 0);
}

int pm_in_child(int (*work)(void *result, struct pm_error *err), void *result, size_t size,
                struct pm_error *err) {
    int ended = 0;
    uint64_t all = ~0ull, before; // the program's handlers do not run in the child
    size_t bytes = sizeof(struct told) + size;
    struct told *told =
        mmap(pm_os_place(bytes), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (told != MAP_FAILED)
        memcpy(told->result, result, size);
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, sizeof all);
    long parent = syscall(SYS_getpid);
    long pid = told == MAP_FAILED ? -1 : syscall(SYS_clone, 0L, NULL, NULL, NULL, 0L);
    if (pid == 0) {
        pm_fail(&told->err, PM_OPERATIONAL,
                "%s: the process that was to look at it has another parent; start again",
                pm_heap.dir);
        end_with(parent);
        told->error = EIO;
        pm_bad_reads_tell(&told->err);
        errno = 0;
        told->err.status = run(work, told);
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
        pm_fail(err, PM_OPERATIONAL, "%s: no process can be made to look at it: %s", pm_heap.dir,
                pm_strerror(errno));
    else if (WIFSIGNALED(ended) && WTERMSIG(ended) == SIGKILL)
        pm_fail(err, PM_OPERATIONAL,
                "%s: the process that was to look at it was killed; is there too little memory? "
                "see `dmesg`, and start again",
                pm_heap.dir);
    else if (ended)
        pm_fail(err, PM_DAMAGE, "%s cannot be read; was a file of it cut?", pm_heap.dir);
    else
        *err = told->err;
    if (pid > 0 && !ended && err->status != PM_OK)
        errno = told->error;
    if (pid > 0 && !ended)
        memcpy(result, told->result, size);
    if (told != MAP_FAILED)
        munmap(told, bytes);
    return err->status;
}
