// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Bad pointers. Each is noticed and named in one line. PMALLOC_CHECK says whether it ends the
// program or is ignored.
#include "heap_fixture.h"
#include "process/entry.h"

static char said[2048]; // what the last attempt wrote to standard error

// Runs `fn` under PMALLOC_CHECK=`check` and keeps its standard error in `said`. Returns what
// in_child() does.
static int attempt(const char *check, void (*fn)(void)) {
    int out[2];
    MUST(pipe(out) == 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(out[1], STDERR_FILENO);
        setenv("PMALLOC_BACKING", "volatile", 1);
        setenv("PMALLOC_CHECK", check, 1);
        fn();
        _exit(0);
    }
    close(out[1]);
    size_t have = 0;
    ssize_t got;
    while ((got = read(out[0], said + have, sizeof said - 1 - have)) > 0)
        have += (size_t)got;
    said[have] = '\0';
    close(out[0]);
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void one_line(const char *begin, const char *part) {
    CHECK(strncmp(said, begin, strlen(begin)) == 0);
    CHECK_HAS(said, part);
    const char *end = strchr(said, '\n');
    CHECK(end && end[1] == '\0');
}

// `fn` ends with the line and abort(). Under `report` it prints the line and goes on.
static void misused(void (*fn)(void), const char *begin, const char *part) {
    CHECK_EQ(attempt("abort", fn), 128 + SIGABRT);
    one_line(begin, part);
    CHECK_EQ(attempt("strict", fn), 128 + SIGABRT);
    one_line(begin, part);
    CHECK_EQ(attempt("report", fn), 0);
    one_line(begin, part);
    CHECK_HAS(said, "ignored");
}

static void double_free(void) {
    char *p = pm_malloc(100);
    pm_free(p);
    pm_free(p);
}
static void double_free_uncached(void) {
    void *block[200];
    for (int i = 0; i < 200; i++)
        block[i] = pm_malloc(10000);
    for (int i = 0; i < 200; i++)
        pm_free(block[i]);
    pm_free(block[0]);
}
static void interior(void) {
    char *p = pm_malloc(1000);
    pm_free(p + 512);
}
static void misaligned(void) {
    char *p = pm_malloc(1000);
    pm_free(p + 8);
}
static void off_by_one(void) {
    char *p = pm_malloc(1000);
    pm_free(p + 1);
}
static void large_twice(void) {
    char *next, *p = pm_malloc(100000);
    next = pm_malloc(100000);
    pm_free(p);
    pm_free(p);
    pm_free(next);
}
static void large_interior(void) {
    char *p = pm_malloc(100000);
    pm_free(p + 4096);
}
static void unused_range(void) {
    char *p = pm_malloc(100);
    pm_free(p + (1 << 30));
}
static void realloc_freed(void) {
    char *p = pm_malloc(100);
    pm_free(p);
    if (pm_realloc(p, 200) != NULL)
        _exit(3);
}
static void realloc_interior(void) {
    char *p = pm_malloc(100000);
    if (pm_realloc(p + 16, 200) != NULL)
        _exit(3);
}
static void usable_freed(void) {
    char *p = pm_malloc(100);
    pm_free(p);
    if (pm_usable_size(p) != 0)
        _exit(3);
}

static void test_free(void) {
    misused(double_free, "pmalloc: free(0x", "double free");
    misused(double_free_uncached, "pmalloc: free(0x", "free already");
    misused(interior, "pmalloc: free(0x", "middle of a block");
    misused(misaligned, "pmalloc: free(0x", "misaligned");
    misused(off_by_one, "pmalloc: free(0x", "misaligned");
    misused(large_twice, "pmalloc: free(0x", "free already");
    misused(large_interior, "pmalloc: free(0x", "middle");
    misused(unused_range, "pmalloc: free(0x", "unused range");
}

static void test_realloc_and_usable_size(void) {
    misused(realloc_freed, "pmalloc: realloc(0x", "free already");
    misused(realloc_interior, "pmalloc: realloc(0x", "middle");
    misused(usable_freed, "pmalloc: malloc_usable_size(0x", "free already");
}

// A pointer to memory outside the heap is left alone and reported once. Under `strict` it ends the
// program.
static void foreign(void) {
    static char mine[64];
    char on_stack[64];
    pm_free(pm_malloc(1)); // the settings are read with the first request
    for (int i = 0; i < 3; i++) {
        pm_free(mine + 16);
        pm_free(on_stack);
        pm_free((void *)8);
    }
    if (pm_usable_size(mine) != 0 || pm_realloc(mine, 10) != NULL)
        _exit(3);
}

static void test_foreign(void) {
    CHECK_EQ(attempt("abort", foreign), 0);
    one_line("pmalloc: free(0x", "outside the heap");
    CHECK_EQ(attempt("report", foreign), 0);
    one_line("pmalloc: free(0x", "outside the heap");
    CHECK_EQ(attempt("strict", foreign), 128 + SIGABRT);
    one_line("pmalloc: free(0x", "outside the heap");
}

// Requests that are ignored harm nothing: the heap goes on serving.
static void report_and_go_on(void) {
    char *p = pm_malloc(64);
    memset(p, 9, 64);
    pm_free(p + 16);
    pm_free(p + 8);
    for (int i = 0; i < 64; i++)
        if (p[i] != 9)
            _exit(3);
    pm_free(p);
    char *q = pm_malloc(64), *r = pm_malloc(64);
    if (!q || !r || q == r)
        _exit(4);
    pm_free(q);
    pm_free(q);
    char *a = pm_malloc(64), *b = pm_malloc(64);
    if (a == b)
        _exit(5);
}

static void test_report_leaves_the_heap_whole(void) {
    CHECK_EQ(attempt("report", report_and_go_on), 0);
    unsigned lines = 0;
    for (const char *at = said; (at = strchr(at, '\n')) != NULL; at++)
        lines++;
    CHECK_EQ(lines, 3);
}

static void nothing(void) { pm_free(pm_malloc(1)); }

static void test_a_bad_setting_refuses_to_start(void) {
    CHECK_EQ(attempt("perhaps", nothing), 125);
    one_line("pmalloc: PMALLOC_CHECK=perhaps: ", "abort|report|strict");
}

int main(void) {
    RUN(free);
    RUN(realloc_and_usable_size);
    RUN(foreign);
    RUN(report_leaves_the_heap_whole);
    RUN(a_bad_setting_refuses_to_start);
    return CHECK_DONE();
}
