// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "cxxname.h"

#include <string.h>

struct reader {
    const char *at, *end;
    char *out;
    size_t used, len;
};

static bool eat(struct reader *r, char c) {
    bool there = r->at < r->end && *r->at == c;
    r->at += there;
    return there;
}

static bool put(struct reader *r, const char *text, size_t n) {
    if (n >= r->len - r->used)
        return false;
    memcpy(r->out + r->used, text, n);
    r->out[r->used += n] = '\0';
    return true;
}

static bool is_digit(const struct reader *r) {
    return r->at < r->end && *r->at >= '0' && *r->at <= '9';
}

// <source-name> = <length> <identifier>
static bool source_name(struct reader *r, const char **text, size_t *n) {
    *n = 0;
    if (!is_digit(r) || *r->at == '0')
        return false;
    while (is_digit(r) && *n < 10000)
        *n = *n * 10 + (size_t)(*r->at++ - '0');
    *text = r->at;
    if (*n > (size_t)(r->end - r->at))
        return false;
    r->at += *n;
    return true;
}

// One component with its ABI tags: [L] <source-name> {B <source-name>}. L means internal linkage, B
// begins a tag.
static bool component(struct reader *r) {
    static const char unnamed[] = "_GLOBAL__N_", shown[] = "(anonymous namespace)";
    const char *text, *tag;
    size_t n, tag_len;
    eat(r, 'L');
    if (!source_name(r, &text, &n))
        return false;
    while (eat(r, 'B'))
        if (!source_name(r, &tag, &tag_len))
            return false;
    if (n >= sizeof unnamed - 1 && memcmp(text, unnamed, sizeof unnamed - 1) == 0)
        return put(r, shown, sizeof shown - 1);
    return put(r, text, n);
}

// <component> | N {qualifier} <component> ... E
static bool name(struct reader *r) {
    if (!eat(r, 'N'))
        return component(r);
    while (eat(r, 'K') || eat(r, 'V') || eat(r, 'R') || eat(r, 'O')) // const, volatile, &, &&
        ;
    if (!component(r))
        return false;
    while (!eat(r, 'E'))
        if (!put(r, "::", 2) || !component(r))
            return false;
    return true;
}

// The number that tells apart statics of one name in one function: _3, __12_.
static bool discriminator(struct reader *r) {
    if (!eat(r, '_'))
        return r->at == r->end;
    bool two = eat(r, '_');
    while (is_digit(r))
        r->at++;
    return (!two || eat(r, '_')) && r->at == r->end;
}

// Z <function> <types> E <component> [discriminator]. The types are skipped: up to the first E
// after which the rest can be read.
static bool local(struct reader *r) {
    if (!name(r) || !put(r, "()::", 4))
        return false;
    for (size_t used = r->used; r->at < r->end; r->used = used) {
        if (!eat(r, 'E')) {
            r->at++;
            continue;
        }
        const char *after = r->at;
        if (component(r) && discriminator(r))
            return true;
        r->at = after;
    }
    return false;
}

bool pm_cxxname_plain(const char *symbol, size_t room, char *out, size_t len) {
    size_t n = strnlen(symbol, room);
    struct reader r = {.at = symbol, .end = symbol + n, .out = out, .len = len};
    if (len == 0 || n == room || n < 3 || !eat(&r, '_') || !eat(&r, 'Z'))
        return false;
    out[0] = '\0';
    return eat(&r, 'Z') ? local(&r) : name(&r) && r.at == r.end;
}
