// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// A program with several things of one name, which compilers number. Its block leads to one that
// its first argument names, and each run says which one it is. What the macros change is another
// build. With -DOTHER the same file is another one of the program.
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined LATER && !defined OTHER // all else lies elsewhere then
const char spare[4000] = "spare";
long spare_too[64] = {1};
#endif

struct node {
    char who[16];
    long uses;
};
void *other_table(void);
void *other_helper(void);

#ifdef OTHER
#define FILE_NAME "second"
#else
#define FILE_NAME "first"
#endif

#if defined APART && !defined OTHER // clang makes each member a variable: table.0, table.1
static struct { long uses, calls; } table;
long apart(int which);
__attribute__((noinline)) long apart(int which) { return which ? table.uses++ : table.calls++; }
__attribute__((noinline)) static const char *helper(void) { return FILE_NAME; }
#define CHOSEN_TABLE ((void *)apart)
#else
static struct node table = {FILE_NAME, 0};
__attribute__((noinline)) static const char *helper(void) {
    table.uses++;
    return FILE_NAME;
}
#define CHOSEN_TABLE (&table)
#endif

#ifdef OTHER
void *other_table(void) { return &table; }
void *other_helper(void) { return (void *)(unsigned long)&helper; }
#else

void *volatile used[2];
struct box {
    void *what;
} * box;

#define HAS_ANCHOR(function, text)                                                                 \
    __attribute__((noinline)) static void *function(int constant) {                                \
        static struct node anchor = {text, 0};                                                     \
        static const char word[] = text " has it";                                                 \
        anchor.uses++;                                                                             \
        return constant ? (void *)(unsigned long)word : &anchor;                                   \
    }
#if ORDER == 1
HAS_ANCHOR(one, "one")
HAS_ANCHOR(two, "two")
#elif ORDER == 2
HAS_ANCHOR(two, "two")
HAS_ANCHOR(one, "one")
#else
HAS_ANCHOR(one, "one")
#define two one
#endif

// One function, unless they are PARTED.
const char *left(void);
const char *right(void);
const char *left(void) { return "left"; }
#ifdef PARTED
const char *right(void) { return "right"; }
#else
const char *right(void) __attribute__((alias("left")));
#endif

static bool is_function(const char *name) {
    return strcmp(name, "helper") == 0 || strcmp(name, "left") == 0;
}

static void *chosen(const char *name) {
    if (strcmp(name, "left") == 0)
        return (void *)(unsigned long)&left;
    if (strcmp(name, "table") == 0)
        return CHOSEN_TABLE;
    return strcmp(name, "helper") == 0 ? (void *)(unsigned long)&helper
                                       : one(strcmp(name, "word") == 0);
}

int main(int argc, char **argv) {
    const char *name = argv[argc - 1];
    used[0] = other_table();
    used[1] = other_helper();
    two(0);
    if (!box) {
        box = malloc(sizeof *box);
        box->what = chosen(name);
    }
    const char *(*call)(void) = (const char *(*)(void))(unsigned long)box->what;
    puts(is_function(name) ? call() : (const char *)box->what);
}
#endif
