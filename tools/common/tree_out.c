// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include <stdarg.h>
#include <stdio.h>

#include "tree_value.h"

static void begin(struct tree *t, const char *key) {
    if (!t->as_json)
        printf("%*s%s%s", 2 * (int)t->indent, "", key ? key : "", key ? " = " : "");
}

void tree_open(struct tree *t, const char *key, char bracket) {
    if (t->as_json) {
        json_open(&t->json, key, bracket);
        return;
    }
    begin(t, key);
    printf("%c\n", bracket);
    t->indent++;
}

void tree_close(struct tree *t, char bracket) {
    if (t->as_json) {
        json_close(&t->json, bracket);
        return;
    }
    t->indent--;
    printf("%*s%c\n", 2 * (int)t->indent, "", bracket);
}

void tree_text(struct tree *t, const char *key, const char *text) {
    if (t->as_json) {
        json_text(&t->json, key, text);
        return;
    }
    begin(t, key);
    putchar('"');
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127 || *c == '"' || *c == '\\')
            printf("\\x%02x", (unsigned char)*c);
        else
            putchar(*c);
    puts("\"");
}

void tree_word(struct tree *t, const char *key, bool number, const char *format, ...) {
    char word[400];
    va_list args;
    va_start(args, format);
    vsnprintf(word, sizeof word, format, args);
    va_end(args);
    if (!t->as_json) {
        begin(t, key);
        puts(word);
    } else if (number) {
        json_literal(&t->json, key, word);
    } else {
        json_text(&t->json, key, word);
    }
}
