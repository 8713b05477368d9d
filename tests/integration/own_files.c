// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// own_files [hard]: limits the size of its files (RLIMIT_FSIZE), takes more memory than that, and
// writes a file of its own. `hard`: gives up the right to lift the limit.
// own_files check: prints what the blocks hold.
#include <errno.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LIMIT (4u << 20)
#define BLOCKS 24
#define SIZE (1u << 20)

char *root[BLOCKS];

static void limit_files(int hard) {
    struct rlimit limit = {LIMIT, hard ? LIMIT : RLIM_INFINITY};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0)
        exit(3);
    signal(SIGXFSZ, SIG_IGN);
    if (!hard)
        return;
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    syscall(SYS_capget, &head, data);
    data[0].effective &= ~(1u << CAP_SYS_RESOURCE);
    data[0].permitted &= ~(1u << CAP_SYS_RESOURCE);
    syscall(SYS_capset, &head, data);
}

static void say_limit(void) {
    struct rlimit limit;
    int file = memfd_create("own", 0);
    char byte = 0;
    getrlimit(RLIMIT_FSIZE, &limit);
    printf("limit %llu,", (unsigned long long)limit.rlim_cur);
    printf(" below %d,", (int)pwrite(file, &byte, 1, LIMIT - 1));
    errno = 0;
    printf(" above %d", (int)pwrite(file, &byte, 1, LIMIT));
    printf(" %s\n", errno == EFBIG ? "EFBIG" : "");
}

static unsigned take(void) {
    unsigned got = 0;
    for (unsigned i = 0; i < BLOCKS; i++) {
        root[i] = malloc(SIZE);
        got += root[i] != NULL;
        if (root[i])
            memset(root[i], 'a' + (int)i, SIZE);
    }
    return got;
}

static int check(void) {
    for (unsigned i = 0; i < BLOCKS; i++)
        for (unsigned at = 0; at < SIZE; at++)
            if (!root[i] || root[i][at] != (char)('a' + i))
                return printf("block %u\n", i) < 0;
    puts("all blocks");
    return 0;
}

int main(int argc, char **argv) {
    int hard = argc > 1 && strcmp(argv[1], "hard") == 0;
    if (argc > 1 && strcmp(argv[1], "check") == 0)
        return check();
    limit_files(hard);
    unsigned got = take();
    printf("%s\n", got == BLOCKS ? "all" : got ? "some" : "none");
    if (got == BLOCKS) { // zeroes, far behind the limit
        madvise((char *)(((size_t)root[BLOCKS - 1] + 8191) & ~4095ul), 65536, MADV_DONTNEED);
        memset(root[BLOCKS - 1], 'a' + BLOCKS - 1, SIZE);
    }
    say_limit();
    return 0;
}
