// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Shows how the kernel really maps the heap of this process. Run it under the preload on a DAX file
// system, as root.
//   mapflags [--huge]
// Prints a line and ends with status 1 when a writable shared mapping of the heap lacks MAP_SYNC.
// With --huge also when more than a tenth of the faults for 2 MiB of heap.0 fell back to pages;
// that holds on ext4, and on xfs made with su=2m,sw=1. The kernel's trace events count the faults.
// Some kernels lack these events; then one line says so.
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define TRACING "/sys/kernel/tracing"
#define EVENTS TRACING "/events/fs_dax"
#define BYTES ((size_t)48 << 20)

void **kept; // the root

static bool put(const char *path, const char *text) {
    FILE *out = fopen(path, "w");
    bool good = out && fputs(text, out) >= 0;
    return out && fclose(out) == 0 && good;
}

static bool trace(void) {
    mount("tracefs", TRACING, "tracefs", 0, NULL);
    return put(TRACING "/buffer_size_kb", "16384") && put(TRACING "/trace", "") &&
           put(EVENTS "/dax_pmd_fault_done/enable", "1") &&
           put(EVENTS "/dax_pte_fault_done/enable", "1");
}

// Allocates blocks of many sizes, touches them and links them.
static size_t grow(void) {
    unsigned long seed = 88172645463325252ul;
    size_t total = 0;
    while (total < BYTES) {
        seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
        size_t size = 16 + seed / 128 % (seed % 100 < 95 ? 1000 : 100000);
        void **block = malloc(size);
        if (!block)
            break;
        memset(block, 1, size);
        *block = kept;
        kept = block;
        total += size;
    }
    return total;
}

// Counts the shared writable mappings of the heap's files; *without counts those without MAP_SYNC
// ("sf" in VmFlags).
static unsigned count_mappings(const char *heap, unsigned *without) {
    char line[1024], name[1024] = "";
    unsigned count = 0;
    FILE *in = fopen("/proc/self/smaps", "r");
    *without = 0;
    while (in && fgets(line, sizeof line, in)) {
        unsigned long from, to;
        char prot[8];
        if (sscanf(line, "%lx-%lx %7s", &from, &to, prot) == 3) {
            bool ours = prot[1] == 'w' && prot[3] == 's' && strstr(line, heap);
            strcpy(name, ours ? line : "");
        } else if (*name && strncmp(line, "VmFlags:", 8) == 0) {
            count++;
            if (strstr(line, " sf"))
                continue;
            ++*without;
            printf("mapflags: without MAP_SYNC: %s", name);
        }
    }
    if (in)
        fclose(in);
    return count;
}

struct faults {
    unsigned long huge, fell_back, small;
};

static struct faults read_faults(const char *heap) {
    char line[1024], path[1024], inode[64];
    struct stat st = {0};
    struct faults f = {0};
    snprintf(path, sizeof path, "%s/heap.0", heap);
    stat(path, &st);
    snprintf(inode, sizeof inode, " ino 0x%lx ", (unsigned long)st.st_ino);
    FILE *in = fopen(TRACING "/trace", "r");
    while (in && fgets(line, sizeof line, in)) {
        if (!strstr(line, inode) || !strstr(line, " shared "))
            continue;
        if (strstr(line, "dax_pte_fault_done"))
            f.small++;
        else if (strstr(line, "FALLBACK"))
            f.fell_back++;
        else
            f.huge++;
    }
    if (in)
        fclose(in);
    return f;
}

int main(int argc, char **argv) {
    bool want_huge = argc > 1 && strcmp(argv[1], "--huge") == 0;
    const char *heap = getenv("PMALLOC_HEAP");
    unsigned without, after_fork;
    if (!heap || !getenv("LD_PRELOAD")) {
        puts("mapflags: set PMALLOC_HEAP, PMALLOC_ROOTS=kept and LD_PRELOAD");
        return 2;
    }
    bool traced = trace();
    size_t bytes = grow();
    unsigned count = count_mappings(heap, &without);
    pid_t child = fork(); // the child's private memory must not change the parent's mappings
    if (child == 0)
        _exit(0);
    waitpid(child, NULL, 0);
    count_mappings(heap, &after_fork);
    printf("mapflags: %u mappings of the heap, %u without MAP_SYNC, %u after a fork\n", count,
           without, after_fork);
    bool good = bytes >= BYTES && count >= 5 && !without && !after_fork;
    if (!traced) {
        puts("mapflags: this kernel has no trace events of fs_dax: faults are not counted");
        return !good;
    }
    put(EVENTS "/enable", "0");
    struct faults f = read_faults(heap);
    printf("mapflags: faults on heap.0: %lu by 2 MiB, %lu fell back, %lu by pages\n", f.huge,
           f.fell_back, f.small);
    return !(good && (!want_huge || (f.huge > 0 && f.fell_back * 10 <= f.huge)));
}
