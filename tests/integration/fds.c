// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Opens as many descriptors as it can, and closes all from some number on, also in a forked child.
// Prints what it finds, which is the same with each malloc.
// fds check: prints what the root holds.
// fds low: prints how many low numbers were open already, and is killed.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 8192
#define NR_CLOSE_RANGE 436

char *root;

int pmalloc_commit(void) __attribute__((weak));

static void open_all(void) {
    static int fd[MOST];
    int count = 0, error;
    while (count < MOST && (fd[count] = open("/dev/null", O_RDONLY)) >= 0)
        count++;
    error = errno;
    for (int i = 0; i < count; i++)
        close(fd[i]);
    printf("opened %d, %s\n", count, error == EMFILE ? "EMFILE" : "");
}

// Which are open, beside the one that reads the list.
static int list(char *open_ones) {
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;
    memset(open_ones, 0, MOST);
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        int fd = atoi(e->d_name);
        if (e->d_name[0] != '.' && fd != dirfd(dir) && fd < MOST) {
            open_ones[fd] = 1;
            count++;
        }
    }
    closedir(dir);
    return count;
}

static void close_from(int how, int low) {
    if (how == 0)
        closefrom(low);
    else if (how == 1)
        close_range((unsigned)low, ~0u, 0);
    else if (how == 2)
        for (int fd = low; fd < MOST; fd++)
            close(fd);
    else
        syscall(NR_CLOSE_RANGE, low, ~0u, 0);
}

// What was not opened here stays, and what was is closed.
static void close_all(void) {
    static char before[MOST], after[MOST];
    for (int how = 0; how < 4; how++) {
        list(before);
        int low = open("/dev/null", O_RDONLY);
        for (int i = 0; i < 20; i++)
            open("/dev/null", O_RDONLY);
        close_from(how, low);
        list(after);
        printf("closed %d %d\n", fcntl(low + 10, F_GETFD), memcmp(before, after, MOST));
        root = realloc(root, 100000u * (unsigned)(how + 2));
        memset(root, 'a' + how, 100000);
    }
    close_range(40, 50, 0);
    printf("a part %d\n", memcmp(before, after, MOST));
}

static void in_child(void) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid != 0) {
        waitpid(pid, NULL, 0);
        return;
    }
    close_all();
    fflush(stdout);
    _exit(0);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "check") == 0) {
        printf("%d\n", root ? root[0] : 0);
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "low") == 0) {
        static char open_ones[MOST];
        list(open_ones);
        printf("%td\n", strlen(open_ones));
        fflush(stdout);
        for (int i = 0; i < 300000; i++) { // a collection takes its time
            char **block = malloc(64);
            *block = root;
            root = (char *)block;
        }
        pmalloc_commit();
        return raise(SIGKILL);
    }
    root = malloc(100000);
    open_all();
    close_all();
    in_child();
    open_all();
    return 0;
}
