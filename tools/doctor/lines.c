// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "lines.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { INDENT = 12, WIDTH = 100 };

// A word is never cut.
static void put(const char *word, const char *text) {
    int column = INDENT;
    printf("%-*s", INDENT, word);
    for (const char *at = text; *at;) {
        int length = (int)strcspn(at, " ");
        if (column > INDENT && column + 1 + length > WIDTH) {
            printf("\n%-*s", INDENT, "");
            column = INDENT;
        } else if (at > text) {
            putchar(' ');
            column++;
        }
        printf("%.*s", length, at);
        column += length;
        at += length;
        at += *at == ' ';
    }
    putchar('\n');
}

static void put_format(const char *word, const char *format, va_list args) {
    char text[4096];
    vsnprintf(text, sizeof text, format, args);
    put(word, text);
}

void line(const char *word, const char *format, ...) {
    va_list args;
    va_start(args, format);
    put_format(word, format, args);
    va_end(args);
}

void line_go_on(const char *format, ...) {
    va_list args;
    va_start(args, format);
    put_format("", format, args);
    va_end(args);
}
