// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Prints all that a program can know of how it was started, a line each, and last whether it lies
// where programs lie without address randomisation. With the argument `child` it prints the
// personality of a program that it starts; with `again` it executes itself, without that argument.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

static void file(const char *path) {
    FILE *from = fopen(path, "re");
    printf("%s:", path);
    for (int c; from && (c = fgetc(from)) != EOF;)
        c > ' ' ? putchar(c) : printf("\\%d", c);
    putchar('\n');
    if (from)
        fclose(from);
}

static void status(const char *name) {
    char line[256];
    FILE *from = fopen("/proc/self/status", "re");
    while (from && fgets(line, sizeof line, from))
        if (strncmp(line, name, strlen(name)) == 0 && strncmp(line, "SigQ", 4) != 0)
            fputs(line, stdout);
    if (from)
        fclose(from);
}

static void strings(const char *what, char **list) {
    for (int i = 0; list[i]; i++)
        printf("%s %d: %s\n", what, i, list[i]);
}

static void descriptors(void) {
    for (int fd = 0; fd < 4096; fd++) {
        char path[64], leads[256];
        int flags = fcntl(fd, F_GETFD);
        if (flags < 0)
            continue;
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(path, leads, sizeof leads - 1);
        leads[length > 0 ? length : 0] = '\0';
        printf("fd %d: %s flags %x %x at %ld\n", fd, leads, (unsigned)flags,
               (unsigned)fcntl(fd, F_GETFL), (long)lseek(fd, 0, SEEK_CUR));
    }
}

static void limits(void) {
    for (int i = 0; i < (int)RLIM_NLIMITS; i++) {
        struct rlimit limit;
        getrlimit((__rlimit_resource_t)i, &limit);
        printf("limit %d: %lx %lx\n", i, limit.rlim_cur, limit.rlim_max);
    }
}

// Of libc. The program itself may be linked to a fixed address.
static int libc_at(struct dl_phdr_info *object, size_t size, void *out) {
    (void)size;
    if (strstr(object->dlpi_name, "libc.so"))
        *(uintptr_t *)out = object->dlpi_addr;
    return 0;
}

int main(int argc, char **argv, char **env) {
    const char *what = argc > 1 ? argv[argc - 1] : "";
    if (strcmp(what, "again") == 0) {
        argv[argc - 1] = NULL;
        execv("/proc/self/exe", argv);
        return 1;
    }
    if (strcmp(what, "child") == 0)
        return system("cat /proc/self/personality") != 0;
    uintptr_t libc = 0;
    char name[32] = "", cwd[512] = "";
    strings("argument", argv);
    strings("variable", environ);
    strings("third", env);
    file("/proc/self/cmdline");
    file("/proc/self/environ");
    file("/proc/self/personality");
    prctl(PR_GET_NAME, name);
    printf("name %s\nfile %s\n", name, (const char *)getauxval(AT_EXECFN));
    printf("cwd %s umask %o\n", getcwd(cwd, sizeof cwd), (unsigned)umask(0));
    status("Sig");
    status("Shd");
    status("Cap");
    status("NoNewPrivs");
    descriptors();
    limits();
    dl_iterate_phdr(libc_at, &libc);
    bool kept = libc >> 28 == 0x7ffff && (uintptr_t)env[0] >> 24 == 0x7fffff;
    printf("%s\n", kept ? "kept" : "random");
    return 0;
}
