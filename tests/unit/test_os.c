// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The functions that ask something of the kernel.
#include "base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

extern char **environ;

static void test_reserve(void) {
    char *p = pm_os_reserve((size_t)64 << 30); // more address space than the machine has memory
    CHECK(p != NULL);
    if (!p)
        return;
    CHECK(p[0] == 0 && p[((size_t)64 << 30) - 1] == 0);
    p[(size_t)40 << 30] = 1;
    munmap(p, (size_t)64 << 30);
    CHECK(pm_os_reserve((size_t)1 << 60) == NULL);
}

static void test_fd_high(void) {
    int pair[2];
    CHECK_EQ(pipe(pair), 0);
    errno = 77;
    int high = pm_os_fd_high(pair[0]);
    CHECK_EQ(errno, 77);
    CHECK(high >= 64 && high != pair[0]);
    CHECK(fcntl(high, F_GETFD) & FD_CLOEXEC);
    CHECK(fcntl(pair[0], F_GETFD) < 0); // the low number is free again
    char byte = 0;
    CHECK(write(pair[1], "z", 1) == 1 && read(high, &byte, 1) == 1 && byte == 'z');
    CHECK_EQ(pm_os_fd_high(-1), -1);
    close(high);
    close(pair[1]);
}

// Above the soft limit, which stays. Where the hard one allows no high number, the low one stays.
static void fds_under_limits(void) {
    struct rlimit low, after;
    getrlimit(RLIMIT_NOFILE, &low);
    low.rlim_cur = 40;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
    CHECK_EQ(pm_os_fd_high(dup(1)), 40);
    CHECK_EQ(pm_os_fd_high(dup(1)), 41);
    getrlimit(RLIMIT_NOFILE, &after);
    CHECK(after.rlim_cur == 40 && after.rlim_max == low.rlim_max);
    low.rlim_max = 40;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
    int fd = dup(1);
    CHECK_EQ(pm_os_fd_high(fd), fd);
}

static void test_fds_under_limits(void) {
    int status = -1;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        fds_under_limits();
        _exit(check_failures != 0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

static void test_who_maps(void) {
    char who[256];
    void *p = mmap(NULL, 3 * 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t at = (uint64_t)(uintptr_t)p;
    pm_os_who_maps(at + 4096, 1, who, sizeof who);
    CHECK_HAS(who, "-");
    CHECK(strtoull(who, NULL, 16) <= at);
    pm_os_who_maps((uint64_t)(uintptr_t)&test_who_maps, 16, who, sizeof who);
    CHECK_HAS(who, "test_os");
    pm_os_who_maps((uint64_t)(uintptr_t)who, 16, who, sizeof who);
    CHECK_HAS(who, "[stack]"); // near the end of /proc/self/maps
    CHECK(strchr(who, '\n') == NULL);
    pm_os_who_maps(0x400000000000, 4096, who, sizeof who);
    CHECK_STR(who, "");
    char small[8];
    pm_os_who_maps(at, 4096, small, sizeof small);
    CHECK_EQ(strlen(small), 7);
    munmap(p, 3 * 4096);
}

static void test_clock_and_cores(void) {
    uint64_t before = pm_os_now_ms();
    usleep(30000);
    uint64_t passed = pm_os_now_ms() - before;
    CHECK(passed >= 20 && passed < 5000);
    cpu_set_t all, one;
    sched_getaffinity(0, sizeof all, &all);
    CHECK_EQ(pm_os_cores(), CPU_COUNT(&all));
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &all))
            CPU_SET(cpu, &one);
    CHECK_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    CHECK_EQ(pm_os_cores(), 1);
    sched_setaffinity(0, sizeof all, &all);
}

static void test_ancestors(void) {
    CHECK(pm_os_start_time(getpid()) != 0);
    CHECK(pm_os_is_ancestor(getppid(), pm_os_start_time(getppid())));
    CHECK(!pm_os_is_ancestor(getppid(), pm_os_start_time(getppid()) + 1));
    CHECK(!pm_os_is_ancestor(getpid(), pm_os_start_time(getpid())));
    pid_t me = getpid(), sleeper = fork();
    if (sleeper == 0) {
        pause();
        _exit(0);
    }
    CHECK(!pm_os_is_ancestor(sleeper, pm_os_start_time(sleeper)));
    pid_t child = fork();
    if (child == 0) {
        pid_t grandchild = fork();
        if (grandchild == 0)
            _exit(pm_os_is_ancestor(me, pm_os_start_time(me)) &&
                          !pm_os_is_ancestor(sleeper, pm_os_start_time(sleeper))
                      ? 7
                      : 8);
        int status = 0;
        waitpid(grandchild, &status, 0);
        _exit(WEXITSTATUS(status));
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    kill(sleeper, SIGKILL);
    waitpid(sleeper, NULL, 0);
}

static void test_program_name(void) {
    char name[64], small[4];
    pm_os_program_name(name, sizeof name);
    CHECK_STR(name, "test_os");
    pm_os_program_name(small, sizeof small);
    CHECK_STR(small, "tes");
}

static int has(char *const *list, const char *text) {
    for (; *list; list++)
        if (strcmp(*list, text) == 0)
            return 1;
    return 0;
}

static void test_environment(const char *self) {
    CHECK(pm_os_environ() == environ);
    setenv("PMALLOC_TEST_OS", "a=b c", 1);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        execl(self, self, "environ", (char *)NULL);
        _exit(9);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    unsetenv("PMALLOC_TEST_OS");
}

// Before libc has set `environ`, the environment is read from the kernel. This pretends that
// moment.
static int read_from_kernel(void) {
    char **kept = environ;
    environ = NULL;
    char *const *list = pm_os_environ();
    environ = kept;
    size_t count = 0, want = 0;
    if (!list || list == (char *const *)kept || !has(list, "PMALLOC_TEST_OS=a=b c"))
        return 1;
    while (list[count])
        count++;
    while (kept[want])
        want++;
    return count != want;
}

static void wait_for_state(pid_t pid, char state) {
    while (pm_os_state(pid) != state)
        usleep(1000);
}

// A stopped process is alive. One that was killed and not yet waited for is ending. After that
// there is none.
static void test_ending(void) {
    CHECK(!pm_os_is_ending(getpid()));
    pid_t child = fork();
    if (child == 0)
        for (;;)
            pause();
    CHECK(!pm_os_is_ending(child));
    kill(child, SIGSTOP);
    wait_for_state(child, 'T');
    CHECK(!pm_os_is_ending(child));
    kill(child, SIGKILL);
    wait_for_state(child, 'Z');
    CHECK(pm_os_is_ending(child));
    waitpid(child, NULL, 0);
    CHECK(!pm_os_is_ending(child));
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "environ") == 0)
        return read_from_kernel();
    RUN(reserve);
    RUN(fd_high);
    RUN(fds_under_limits);
    RUN(who_maps);
    RUN(clock_and_cores);
    RUN(ancestors);
    RUN(ending);
    RUN(program_name);
    test_environment("/proc/self/exe");
    return CHECK_DONE();
}
