// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A root with values of most types, for pmalloc-info --tree.
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum colour { RED, GREEN, BLUE = -3 };
struct inner {
    double real;
    struct inner *next;
};
struct values {
    int8_t small;
    uint64_t large;
    float half;
    bool yes;
    enum colour colour;
    unsigned bits : 3, more : 5;
    char text[16];
    const char *constant;
    char *copy;
    int grid[2][2];
    struct inner list, *links;
    void (*function)(void *);
    void *nothing, *unknown;
    union {
        int32_t one;
        uint8_t byte;
    } both;
    struct values *self;
    size_t count;
    int rest[];
};

struct values *values;

int main(void) {
    if (values)
        return 0;
    struct values *v = calloc(1, sizeof *v + 3 * sizeof(int));
    *v = (struct values){
        -5,   1ull << 63,       0.5f,         true, BLUE, 5,    17,   "a \"b\"", "constant",
        NULL, {{1, 2}, {0, 4}}, {1.25, NULL}, NULL, free, NULL, NULL, {-1},      v,
        3};
    v->copy = strdup("copied");
    v->unknown = malloc(8);
    for (int i = 0; i < 5; i++) {
        struct inner *n = calloc(1, sizeof *n);
        n->real = i;
        n->next = v->links;
        v->links = n;
    }
    v->rest[1] = 7;
    values = v;
    return 0;
}
