// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "numbered.h"

#include <string.h>

// Reads a mangled name (C++: Itanium ABI, 5.1; Rust: RFC 2603), and leaves such numbers out. It
// knows as much of the grammar as tells them from other digits. A number that it does not see is
// one by which names differ, as any letter.
struct reader {
    const char *name, *at;
    size_t identifier; // letters that are left of it, and of its length
    char before, last; // 0: an identifier
    bool named;        // an identifier ends here
    bool lambdas;      // there was one, or a type without a name
    bool local;        // it is of something within a function, whose name has ended, if `scoped`
    bool scoped;
    bool rust;    // its newer names
    size_t first; // where the first number stands, or may stand
};

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool is_base62(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool begins(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

static void leave_out(struct reader *r, const char *to) {
    if (to != r->at && !r->first)
        r->first = (size_t)(r->at - r->name);
    r->at = to;
}

static size_t digits_at(const char *at) { return strspn(at, "0123456789"); }

// Of a lambda or a type without a name: E0_, Ut0_.
static void leave_index(struct reader *r) {
    size_t digits = digits_at(r->at);
    // The first one has none, and is of the same family.
    if (r->at[digits] == '_')
        leave_out(r, r->at + digits + 1);
}

// Behind the name of what stands in a function: _1, __12_. The first one has none.
static void leave_discriminator(struct reader *r) {
    const char *at = r->at;
    if (r->scoped && !r->first)
        r->first = (size_t)(at - r->name);
    if (at[0] == '_' && is_digit(at[1]))
        leave_out(r, at + 2);
    else if (at[0] == '_' && at[1] == '_' && digits_at(at + 2) && at[2 + digits_at(at + 2)] == '_')
        leave_out(r, at + 3 + digits_at(at + 2));
}

static bool is_rust_hash(const struct reader *r, const char *text, size_t length) {
    return length == 17 && *text == 'h' && strspn(text + 1, "0123456789abcdef") >= 16 &&
           strstr(r->name, "closure$u7d$");
}

static bool is_literal(const struct reader *r) {
    return r->before == 'L' && r->last >= 'a' && r->last <= 'z';
}

// An identifier, behind its length; or another number: S0_, A10_c, Li5E.
static void begin_identifier(struct reader *r) {
    size_t digits = digits_at(r->at), length = 0;
    const char *text = r->at + digits;
    if (digits > 5 || (r->last && strchr("STABp", r->last)) || is_literal(r))
        return;
    for (size_t i = 0; i < digits; i++)
        length = length * 10 + (size_t)(r->at[i] - '0');
    if (!length || strnlen(text, length) < length)
        return;
    if (begins(text, "$_") || is_rust_hash(r, text, length))
        leave_out(r, text + length);
    else
        r->identifier = digits + length;
}

// Which of several closures it is: s_0, s0_0, and where the name repeats itself: B3_.
static void leave_rust(struct reader *r) {
    const char *at = r->at + 1;
    if (*r->at == '0' && !r->first) // the first one has none
        r->first = (size_t)(r->at - r->name);
    if (*r->at != 's' && *r->at != 'B')
        return;
    while (is_base62(*at))
        at++;
    if (*at == '_' && (*r->at == 'B' || at[1] == '0'))
        leave_out(r, at + 1);
}

static char next_of_identifier(struct reader *r) {
    r->named = --r->identifier == 0;
    r->before = r->last = 0;
    return *r->at++;
}

static char next(struct reader *r) {
    if (r->identifier)
        return next_of_identifier(r);
    if (r->rust)
        leave_rust(r);
    else if (r->named)
        leave_discriminator(r);
    r->named = false;
    if (is_digit(*r->at))
        begin_identifier(r);
    if (r->identifier)
        return next_of_identifier(r);
    char c = *r->at;
    if (!c)
        return c;
    r->at++;
    bool nameless = r->last == 'U' && (c == 'l' || c == 't');
    r->lambdas |= nameless;
    r->local |= c == 'Z';
    r->scoped |= c == 'E' && r->local;
    if ((c == 'E' && r->lambdas) || (nameless && c == 't'))
        leave_index(r);
    r->before = r->last;
    return r->last = c;
}

// Of C: the number of a block stands last.
static size_t block_head(const char *name) {
    const char *is = strstr(name, "_block_invoke");
    const char *behind = is ? is + strlen("_block_invoke") : NULL;
    bool good = behind && (!*behind || (*behind == '_' && behind[1 + digits_at(behind + 1)] == 0));
    return good ? (size_t)(behind - name) : 0;
}

static bool is_mangled(const char *name) { return begins(name, "_Z") || begins(name, "_R"); }

static struct reader reader_of(const char *name) {
    return (struct reader){.name = name, .at = name + 2, .rust = name[1] == 'R'};
}

size_t pm_numbered_head(const char *name) {
    if (!is_mangled(name))
        return block_head(name);
    struct reader r = reader_of(name);
    while (next(&r)) {
    }
    return r.first;
}

bool pm_numbered_alike(const char *a, const char *b) {
    if (!is_mangled(a) || !is_mangled(b)) {
        size_t head = block_head(a);
        return head && block_head(b) == head && strncmp(a, b, head) == 0;
    }
    struct reader ra = reader_of(a), rb = reader_of(b);
    char c;
    do {
        c = next(&ra);
        if (c != next(&rb))
            return false;
    } while (c);
    return true;
}
