// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// A program that rests. It obeys the lines of its input, and answers each with one line:
//
//     make SIZE COUNT   allocates COUNT blocks and writes all of each; keeps every 64th in a root,
//                       frees the rest; the answer is how many it keeps
//     trim              malloc_trim(0)
//     check             looks at all that is kept; the answer is how many are as they were
//     more SIZE COUNT   allocates up to COUNT blocks more, writes them and frees them; the answer
//                       is how many there were
//     threads           whether libc says that there is one thread, and how many give back memory
//     alone             the result of a call that needs a process of one thread, and how many
//                       threads give back memory after it
//     signal            whether a blocked signal to the process stays pending
//     fork              a child does as `more`, checks what is kept, and ends; its status, and how
//                       many of its threads give back memory
//     leave             ends the first thread while another one ends by itself
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <sys/single_threaded.h>
#else
static const char __libc_single_threaded = 1;
#endif

#define MOST 100000

struct kept {
    long count;
    size_t size;
    unsigned char *block[];
};
struct kept *kept; // the root

static void fill(unsigned char *block, long stamp) {
    for (size_t i = 0; i < kept->size; i++)
        block[i] = (unsigned char)(stamp + (long)i);
}

static int make(size_t size, long count) {
    unsigned char **all = malloc((size_t)count * sizeof *all);
    kept = malloc(sizeof *kept + (size_t)(count / 64 + 1) * sizeof *kept->block);
    kept->count = 0;
    kept->size = size;
    for (long i = 0; i < count; i++) {
        all[i] = malloc(size);
        fill(all[i], i / 64);
    }
    for (long i = 0; i < count; i++)
        if (i % 64)
            free(all[i]);
        else
            kept->block[kept->count++] = all[i];
    free(all);
    return (int)kept->count;
}

static int check(void) {
    int good = 0;
    for (long i = 0; kept && i < kept->count; i++) {
        size_t at = 0;
        while (at < kept->size && kept->block[i][at] == (unsigned char)(i + (long)at))
            at++;
        good += at == kept->size;
    }
    return good;
}

static int more(size_t size, long count) {
    static void *all[MOST];
    int got = 0;
    for (; got < count && (all[got] = malloc(size)) != NULL; got++)
        memset(all[got], 0x55, size);
    for (int i = 0; i < got; i++)
        free(all[i]);
    return got;
}

// The threads of the process that give back memory.
static int decaying(void) {
    DIR *dir = opendir("/proc/self/task");
    int count = 0;
    for (struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
        int fd = open(path, O_RDONLY);
        if (fd >= 0 && read(fd, name, sizeof name - 1) > 0)
            count += !strcmp(name, "pmalloc-decay\n");
        if (fd >= 0)
            close(fd);
    }
    closedir(dir);
    return count;
}

static void in_one_thread(void) {
    int status = unshare(CLONE_THREAD);
    printf("%d %d\n", status, decaying());
}

static int stays_pending(void) {
    sigset_t one, pending;
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    sigprocmask(SIG_BLOCK, &one, NULL);
    kill(getpid(), SIGUSR1);
    sigpending(&pending);
    return sigismember(&pending, SIGUSR1);
}

static void in_child(void) {
    int pipes[2], seen = 0, status = 0;
    if (pipe(pipes) != 0)
        abort();
    pid_t pid = fork();
    if (pid == 0) {
        int there = decaying();
        int good = more(1000, 5000) == 5000 && check() == kept->count;
        (void)!write(pipes[1], &there, sizeof there);
        exit(!good);
    }
    waitpid(pid, &status, 0);
    (void)!read(pipes[0], &seen, sizeof seen);
    printf("%d %d\n", status, seen);
}

static void *other_thread(void *unused) {
    (void)unused;
    more(1000, 100);
    return NULL;
}

int main(void) {
    char line[100], word[20];
    while (fgets(line, sizeof line, stdin)) {
        long a = 0, b = 0;
        if (sscanf(line, "%19s %ld %ld", word, &a, &b) < 1)
            continue;
        if (!strcmp(word, "make"))
            printf("%d\n", make((size_t)a, b));
        else if (!strcmp(word, "trim"))
            printf("%d\n", malloc_trim(0));
        else if (!strcmp(word, "check"))
            printf("%d\n", check());
        else if (!strcmp(word, "more"))
            printf("%d\n", more((size_t)a, b));
        else if (!strcmp(word, "threads"))
            printf("%d %d\n", __libc_single_threaded != 0, decaying());
        else if (!strcmp(word, "alone"))
            in_one_thread();
        else if (!strcmp(word, "signal"))
            printf("%d\n", stays_pending());
        else if (!strcmp(word, "fork"))
            in_child();
        else if (!strcmp(word, "leave")) {
            pthread_t thread;
            pthread_create(&thread, NULL, other_thread, NULL);
            pthread_detach(thread);
            pthread_exit(NULL);
        }
        fflush(stdout);
    }
    return 0;
}
