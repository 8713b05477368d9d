// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

#define _GNU_SOURCE
#include "gc/rootspec.h"

#include "gc/errline.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { QUOTE_LEN = 72 };

// Where a list comes from, for messages: file == NULL is the variable itself.
struct source {
    const char *file;
    size_t number; // of the spec in the variable, or of the line in the file; from 1
};

struct output {
    struct root_spec *out;
    size_t cap;
    size_t n;
    char *err;
    size_t errlen;
};

// A spec as it can be shown on one line of a terminal: shortened, nothing unprintable.
static const char *quote(char dst[QUOTE_LEN], const char *text, size_t len) {
    size_t keep = len < QUOTE_LEN - 4 ? len : QUOTE_LEN - 4;
    for (size_t i = 0; i < keep; i++) {
        unsigned char c = (unsigned char)text[i];
        dst[i] = (c < 0x20 || c == 0x7f) ? '?' : (char)c;
    }
    memcpy(dst + keep, keep < len ? "..." : "", keep < len ? 4 : 1);
    return dst;
}

static int bad_char(const char *text, size_t len, size_t at, const char *where, char *err,
                    size_t errlen) {
    char q[QUOTE_LEN], c[QUOTE_LEN];
    return errline(err, errlen, "\"%s\": stray character '%s' in the %s at column %zu",
                   quote(q, text, len), quote(c, text + at, 1), where, at + 1);
}

static bool is_alnum(unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// What compilers and linkers put in symbol names; bytes above 0x7f are UTF-8 identifiers.
static bool is_symbol_char(unsigned char c) {
    return is_alnum(c) || c == '_' || c == '.' || c == '$' || c == '@' || c >= 0x80;
}

// And what cxxname.h makes of them.
static bool is_scoped_char(unsigned char c) {
    return is_symbol_char(c) || c == ':' || c == '(' || c == ')' || c == ' ';
}

// Whether the C++ in a name is as cxxname.h writes it: identifiers, each perhaps with () behind it, between double
// colons.
static bool is_scoped(const char *name) {
    static const char unnamed[] = "(anonymous namespace)";
    for (const char *at = name;;) {
        bool hidden = strncmp(at, unnamed, sizeof unnamed - 1) == 0;
        size_t len = hidden ? sizeof unnamed - 1 : strcspn(at, ":() ");
        at += len;
        if (len != 0 && !hidden && strncmp(at, "()::", 4) == 0)
            at += 2;
        if (len == 0 || *at == '\0')
            return len != 0 && !hidden;
        if (strncmp(at, "::", 2) != 0)
            return false;
        at += 2;
    }
}

static bool is_object_char(unsigned char c) {
    return c > 0x20 && c != 0x7f && c != ',' && c != ':' && c != '*' && c != '/' && c != '#';
}

static int copy_name(const char *text, size_t len, size_t from, size_t to, char *dst, size_t size,
                     bool (*allowed)(unsigned char), const char *where, char *err, size_t errlen) {
    char q[QUOTE_LEN];
    if (from == to)
        return errline(err, errlen, "\"%s\": empty %s at column %zu", quote(q, text, len), where,
                       from + 1);
    for (size_t i = from; i < to; i++)
        if (!allowed((unsigned char)text[i]))
            return bad_char(text, len, i, where, err, errlen);
    if (to - from >= size)
        return errline(err, errlen, "\"%s\": the %s has %zu characters, at most %zu are possible",
                       quote(q, text, len), where, to - from, size - 1);
    memcpy(dst, text + from, to - from);
    return 0;
}

static int digit_of(char c, unsigned base) {
    int d = -1;
    if (c >= '0' && c <= '9')
        d = c - '0';
    else if (c >= 'a' && c <= 'f')
        d = c - 'a' + 10;
    else if (c >= 'A' && c <= 'F')
        d = c - 'A' + 10;
    return d < (int)base ? d : -1;
}

static unsigned suffix_shift(char c) {
    switch (c) {
    case 'K':
    case 'k':
        return 10;
    case 'M':
    case 'm':
        return 20;
    case 'G':
    case 'g':
        return 30;
    default:
        return 0;
    }
}

// The number text[from, to): decimal or 0x hex, all of it.
static int parse_number(const char *text, size_t len, size_t from, size_t to, bool suffix,
                        const char *where, uint64_t *out, char *err, size_t errlen) {
    char q[QUOTE_LEN];
    size_t i = from;
    unsigned base = 10;
    uint64_t value = 0;
    if (to - i >= 2 && text[i] == '0' && (text[i + 1] == 'x' || text[i + 1] == 'X')) {
        base = 16;
        i += 2;
    }
    size_t first = i;
    for (int d; i < to && (d = digit_of(text[i], base)) >= 0; i++)
        if (__builtin_mul_overflow(value, base, &value) ||
            __builtin_add_overflow(value, (unsigned)d, &value))
            goto overflow;
    if (i == first)
        return i < to ? bad_char(text, len, i, where, err, errlen)
                      : errline(err, errlen, "\"%s\": the %s is missing at column %zu",
                                quote(q, text, len), where, i + 1);
    unsigned shift = suffix && i + 1 == to ? suffix_shift(text[i]) : 0;
    if (i + (shift != 0) != to)
        return bad_char(text, len, i, where, err, errlen);
    if (value > UINT64_MAX >> shift)
        goto overflow;
    *out = value << shift;
    return 0;
overflow:
    return errline(err, errlen, "\"%s\": the %s at column %zu is too large", quote(q, text, len),
                   where, from + 1);
}

static int parse_range(const char *text, size_t len, size_t from, struct root_spec *out, char *err,
                       size_t errlen) {
    char q[QUOTE_LEN];
    const char *slash = memchr(text + from, '/', len - from);
    uint64_t end;
    if (slash == NULL)
        return errline(err, errlen, "\"%s\": a range is +OFFSET/LENGTH, the '/' is missing",
                       quote(q, text, len));
    size_t at = (size_t)(slash - text);
    if (parse_number(text, len, from + 1, at, false, "OFFSET", &out->offset, err, errlen) != 0 ||
        parse_number(text, len, at + 1, len, true, "LENGTH", &out->length, err, errlen) != 0)
        return -1;
    if (out->length == 0)
        return errline(err, errlen, "\"%s\": the LENGTH is zero", quote(q, text, len));
    if (__builtin_add_overflow(out->offset, out->length, &end))
        return errline(err, errlen, "\"%s\": OFFSET plus LENGTH is too large", quote(q, text, len));
    return 0;
}

int rootspec_parse_one(const char *text, size_t len, struct root_spec *out, char *err,
                       size_t errlen) {
    char q[QUOTE_LEN];
    memset(out, 0, sizeof *out);
    if (len == 0)
        return errline(err, errlen, "empty root");
    const char *colon = memchr(text, ':', len);
    size_t at = 0; // where the part after "object:" starts
    bool scope = colon != NULL && colon + 1 < text + len && colon[1] == ':'; // as in app::store
    if (colon != NULL && !scope) {
        at = (size_t)(colon - text);
        if (copy_name(text, len, 0, at, out->object, sizeof out->object, is_object_char,
                      "object name", err, errlen) != 0)
            return -1;
        at++;
    }
    if (at < len && text[at] == '*') {
        out->kind = ROOT_OBJECT;
        return at + 1 == len ? 0 : bad_char(text, len, at + 1, "root, after its '*',", err, errlen);
    }
    if (at < len && text[at] == '+') {
        out->kind = ROOT_RANGE;
        return parse_range(text, len, at, out, err, errlen);
    }
    if (at < len && text[at] == '@') // @FILE is the whole value or nothing
        return bad_char(text, len, at, "symbol", err, errlen);
    out->kind = ROOT_SYMBOL;
    scope = scope || memmem(text + at, len - at, "::", 2) != NULL;
    if (copy_name(text, len, at, len, out->name, sizeof out->name,
                  scope ? is_scoped_char : is_symbol_char, "symbol", err, errlen) != 0)
        return -1;
    if (scope && !is_scoped(out->name))
        return errline(err, errlen,
                       "\"%s\": write a C++ variable as app::store, (anonymous namespace)::store, "
                       "Class::function()::store, or by its symbol (see nm)",
                       quote(q, text, len));
    return 0;
}

int rootspec_format(const struct root_spec *spec, char *buf, size_t len) {
    const char *colon = spec->object[0] != '\0' ? ":" : "";
    int n = -1;
    switch (spec->kind) {
    case ROOT_SYMBOL:
        n = snprintf(buf, len, "%s%s%s", spec->object, colon, spec->name);
        break;
    case ROOT_OBJECT:
        n = snprintf(buf, len, "%s%s*", spec->object, colon);
        break;
    case ROOT_RANGE:
        n = snprintf(buf, len, "%s%s+0x%lx/%lu", spec->object, colon, (unsigned long)spec->offset,
                     (unsigned long)spec->length);
        break;
    }
    return n >= 0 && (size_t)n < len ? n : -1;
}

bool rootspec_equal(const struct root_spec *a, const struct root_spec *b) {
    return a->kind == b->kind && a->offset == b->offset && a->length == b->length &&
           strcmp(a->object, b->object) == 0 && strcmp(a->name, b->name) == 0;
}

// err = "where: what", what being in a buffer of its own.
static int located(struct output *o, const struct source *src, const char *what) {
    if (src->file != NULL)
        return errline(o->err, o->errlen, "%s line %zu: %s", src->file, src->number, what);
    return errline(o->err, o->errlen, "root %zu: %s", src->number, what);
}

static int add_spec(struct output *o, const struct source *src, const char *text, size_t len) {
    struct root_spec spec;
    char what[256], q[QUOTE_LEN];
    if (rootspec_parse_one(text, len, &spec, what, sizeof what) != 0)
        return located(o, src, what);
    for (size_t i = 0; i < o->n; i++)
        if (rootspec_equal(&o->out[i], &spec)) {
            errline_fill(what, sizeof what, "\"%s\" is named twice", quote(q, text, len));
            return located(o, src, what);
        }
    if (o->n == o->cap) {
        errline_fill(what, sizeof what, "\"%s\": too many roots, at most %zu are possible",
                     quote(q, text, len), o->cap);
        return located(o, src, what);
    }
    o->out[o->n++] = spec;
    return 0;
}

static int parse_list(struct output *o, const char *text) {
    struct source src = {NULL, 1};
    for (;; src.number++) {
        const char *end = strchrnul(text, ',');
        if (add_spec(o, &src, text, (size_t)(end - text)) != 0)
            return -1;
        if (*end == '\0')
            return 0;
        text = end + 1;
    }
}

static bool is_blank(char c) { return c == ' ' || c == '\t'; }

// One line without its end: cuts the comment, the blanks and a carriage return.
static int parse_line(struct output *o, const struct source *src, const char *line, size_t len) {
    size_t from = 0, to = 0;
    while (to < len && line[to] != '#')
        to++;
    if (to == len && to > 0 && line[to - 1] == '\r')
        to--;
    while (from < to && is_blank(line[from]))
        from++;
    while (to > from && is_blank(line[to - 1]))
        to--;
    return from < to ? add_spec(o, src, line + from, to - from) : 0;
}

static int parse_lines(struct output *o, const char *file, const char *text, size_t len) {
    struct source src = {file, 1};
    size_t at = 0;
    if (len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) // a byte-order mark some editors leave
        at = 3;
    for (; at < len; src.number++) {
        const char *newline = memchr(text + at, '\n', len - at);
        size_t end = newline != NULL ? (size_t)(newline - text) : len;
        if (parse_line(o, &src, text + at, end - at) != 0)
            return -1;
        at = end + 1;
    }
    return 0;
}

// Reads all of fd into buf: the length, or -1 with errno, EFBIG when it is longer than the buffer.
static ssize_t read_all(int fd, char *buf, size_t size) {
    size_t got = 0;
    for (;;) {
        ssize_t r = read(fd, buf + got, size - got);
        if (r == 0)
            return (ssize_t)got;
        if (r < 0 && errno != EINTR)
            return -1;
        if (r > 0)
            got += (size_t)r;
        if (got == size) {
            errno = EFBIG;
            return -1;
        }
    }
}

static int parse_file(struct output *o, const char *path) {
    struct stat st;
    if (*path == '\0')
        return errline(o->err, o->errlen, "@ is followed by no file name");
    // O_NONBLOCK: opening a FIFO must not hang the program before main.
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return errline(o->err, o->errlen, "cannot open %s: %s", path, strerrordesc_np(errno));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return errline(o->err, o->errlen, "%s is not a regular file", path);
    }
    size_t size = ROOT_FILE_MAX + 1; // one more byte tells "exactly 1 MiB" from "longer"
    char *buf = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buf == MAP_FAILED) {
        close(fd);
        return errline(o->err, o->errlen, "%s: no memory to read it", path);
    }
    ssize_t len = read_all(fd, buf, size);
    int problem = errno, ret;
    close(fd);
    if (len >= 0)
        ret = parse_lines(o, path, buf, (size_t)len);
    else if (problem == EFBIG)
        ret =
            errline(o->err, o->errlen, "%s is longer than %zu bytes", path, (size_t)ROOT_FILE_MAX);
    else
        ret = errline(o->err, o->errlen, "cannot read %s: %s", path, strerrordesc_np(problem));
    munmap(buf, size);
    return ret;
}

int rootspec_parse(const char *text, struct root_spec *out, size_t cap, size_t *n, char *err,
                   size_t errlen) {
    int saved = errno, ret = 0;
    struct output o = {out, cap, 0, err, errlen};
    if (text[0] == '@')
        ret = parse_file(&o, text + 1);
    else if (text[0] != '\0')
        ret = parse_list(&o, text);
    *n = ret == 0 ? o.n : 0;
    errno = saved;
    return ret;
}
