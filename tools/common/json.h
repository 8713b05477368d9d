// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Writes JSON, one value after the other. Inside arrays `key` is NULL.
#ifndef PM_TOOLS_JSON_H
#define PM_TOOLS_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct json {
    FILE *out;
    bool comma; // the next value needs a comma before it
};

// `bracket` is '{' or '[', and '}' or ']'.
void json_open(struct json *j, const char *key, char bracket);
void json_close(struct json *j, char bracket);
// Bytes that are not UTF-8 become U+FFFD; file names may have them.
void json_text(struct json *j, const char *key, const char *value);
void json_number(struct json *j, const char *key, uint64_t value);
void json_real(struct json *j, const char *key, double value);
// A number that is written already, or true or false.
void json_literal(struct json *j, const char *key, const char *text);
void json_bool(struct json *j, const char *key, bool value);
// Ends the line after the outermost value.
void json_end(struct json *j);

#endif
