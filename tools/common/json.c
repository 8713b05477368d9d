// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "json.h"

#include <inttypes.h>
#include <stddef.h>

#include "text.h"

static void put_string(FILE *out, const char *text) {
    const unsigned char *at = (const unsigned char *)text;
    putc('"', out);
    while (*at) {
        size_t length = text_utf8_length(at);
        if (length == 0)
            fputs("\\ufffd", out);
        else if (*at == '"' || *at == '\\')
            fprintf(out, "\\%c", *at);
        else if (*at < 0x20 || *at == 0x7f)
            fprintf(out, "\\u%04x", *at);
        else
            fwrite(at, 1, length, out);
        at += length ? length : 1;
    }
    putc('"', out);
}

static void put_key(struct json *j, const char *key) {
    if (j->comma)
        putc(',', j->out);
    j->comma = true;
    if (key) {
        put_string(j->out, key);
        putc(':', j->out);
    }
}

void json_open(struct json *j, const char *key, char bracket) {
    put_key(j, key);
    putc(bracket, j->out);
    j->comma = false;
}

void json_close(struct json *j, char bracket) {
    putc(bracket, j->out);
    j->comma = true;
}

void json_text(struct json *j, const char *key, const char *value) {
    put_key(j, key);
    put_string(j->out, value);
}

void json_number(struct json *j, const char *key, uint64_t value) {
    put_key(j, key);
    fprintf(j->out, "%" PRIu64, value);
}

void json_real(struct json *j, const char *key, double value) {
    put_key(j, key);
    fprintf(j->out, "%.6f", value);
}

void json_literal(struct json *j, const char *key, const char *text) {
    put_key(j, key);
    fputs(text, j->out);
}

void json_bool(struct json *j, const char *key, bool value) {
    put_key(j, key);
    fputs(value ? "true" : "false", j->out);
}

void json_end(struct json *j) { putc('\n', j->out); }
