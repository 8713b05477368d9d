// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Beside members.c: a variable that has the name of one there, and one of a library.
struct number;
struct shelf {
    long before;
    struct number *book;
};

static struct {
    struct number *head;
    long behind;
} twin;
struct shelf shelf;

struct number **twins(void);
struct number **twins(void) {
#ifdef LIBRARY
    return &shelf.book;
#else
    shelf.before++;
    return &twin.head;
#endif
}
