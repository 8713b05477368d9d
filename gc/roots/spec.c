// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "spec.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"

enum { QUOTE_LEN = 72 };

// The text of a spec for a message: shortened, and '?' for characters that cannot be printed.
static const char *quote(char dst[QUOTE_LEN], const char *text, size_t len) {
    size_t keep = len < QUOTE_LEN - 4 ? len : QUOTE_LEN - 4;
    for (size_t i = 0; i < keep; i++) {
        unsigned char c = (unsigned char)text[i];
        dst[i] = (c < 0x20 || c == 0x7f) ? '?' : (char)c;
    }
    memcpy(dst + keep, keep < len ? "..." : "", keep < len ? 4 : 1);
    return dst;
}

// ---- one spec -----------------------------------------------------------------------------------

// A spec being read. Messages name the column. pm_spec_parse_one() puts the spec's text before
// them.
struct cursor {
    const char *text;
    size_t len;
    size_t at; // text[0 .. at) has been read
    struct pm_error *err;
};

static bool next_is(const struct cursor *c, char wanted) {
    return c->at < c->len && c->text[c->at] == wanted;
}

static int stray(const struct cursor *c, const char *where) {
    char q[QUOTE_LEN];
    return pm_fail(c->err, PM_USAGE, "stray character '%s' in the %s at column %zu%s",
                   quote(q, c->text + c->at, 1), where, c->at + 1,
                   next_is(c, ' ') ? "; a comma stands between two roots" : "");
}

static bool is_alnum(unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// What compilers and linkers put in symbol names; bytes above 0x7f are UTF-8 identifiers.
static bool is_symbol_char(unsigned char c) {
    return is_alnum(c) || c == '_' || c == '.' || c == '$' || c == '@' || c >= 0x80;
}

// The same, and what cxxname.h adds to names.
static bool is_scoped_char(unsigned char c) {
    return is_symbol_char(c) || c == ':' || c == '(' || c == ')' || c == ' ';
}

// Whether a name is C++ as cxxname.h writes it: identifiers between double colons, each perhaps
// with () after it.
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

// Which names are allowed in a place of a spec.
struct name_rule {
    const char *what;
    size_t size; // with the final NUL
    bool (*allowed)(unsigned char);
};

static const struct name_rule object_name = {"object name", PM_ROOT_OBJECT_LEN, is_object_char};
static const struct name_rule plain_symbol = {"symbol", PM_ROOT_NAME_LEN, is_symbol_char};
static const struct name_rule scoped_symbol = {"symbol", PM_ROOT_NAME_LEN, is_scoped_char};

// Reads text[at .. end) as a name into `dst`, which is zero and has rule->size bytes.
static int read_name(struct cursor *c, size_t end, const struct name_rule *rule, char *dst) {
    size_t from = c->at, len = end - from;
    if (len == 0)
        return pm_fail(c->err, PM_USAGE, "empty %s at column %zu", rule->what, from + 1);
    for (; c->at < end; c->at++)
        if (!rule->allowed((unsigned char)c->text[c->at]))
            return stray(c, rule->what);
    if (len >= rule->size)
        return pm_fail(c->err, PM_USAGE, "the %s has %zu characters, at most %zu are possible",
                       rule->what, len, rule->size - 1);
    memcpy(dst, c->text + from, len);
    return PM_OK;
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

// Reads digits up to `end`, decimal or after 0x hexadecimal; *digits is how many. False: the number
// does not fit in 64 bits.
static bool read_digits(struct cursor *c, size_t end, uint64_t *out, size_t *digits) {
    unsigned base = 10;
    *out = 0;
    *digits = 0;
    if (end - c->at >= 2 && next_is(c, '0') && (c->text[c->at + 1] | 0x20) == 'x') {
        base = 16;
        c->at += 2;
    }
    for (int d; c->at < end && (d = digit_of(c->text[c->at], base)) >= 0; c->at++, ++*digits)
        if (__builtin_mul_overflow(*out, base, out) ||
            __builtin_add_overflow(*out, (unsigned)d, out))
            return false;
    return true;
}

static int too_large(const struct cursor *c, const char *what, size_t from) {
    return pm_fail(c->err, PM_USAGE, "the %s at column %zu is too large", what, from + 1);
}

// Reads text[at .. end) as a number. `suffixes`: one of K, M, G may follow.
static int read_number(struct cursor *c, size_t end, bool suffixes, const char *what,
                       uint64_t *out) {
    size_t from = c->at, digits;
    if (!read_digits(c, end, out, &digits))
        return too_large(c, what, from);
    if (digits == 0 && c->at == end)
        return pm_fail(c->err, PM_USAGE, "the %s is missing at column %zu", what, end + 1);
    unsigned shift = digits != 0 && suffixes && c->at + 1 == end ? suffix_shift(c->text[c->at]) : 0;
    c->at += shift != 0;
    if (c->at != end)
        return stray(c, what);
    if (*out > UINT64_MAX >> shift)
        return too_large(c, what, from);
    *out <<= shift;
    return PM_OK;
}

// Reads the rest of the spec, "+OFFSET/LENGTH".
static int read_range(struct cursor *c, struct pm_spec *out) {
    const char *slash = memchr(c->text + c->at, '/', c->len - c->at);
    uint64_t end;
    if (slash == NULL)
        return pm_fail(c->err, PM_USAGE, "a range is +OFFSET/LENGTH, the '/' is missing");
    c->at++;
    int status = read_number(c, (size_t)(slash - c->text), false, "OFFSET", &out->offset);
    c->at++;
    if (status == PM_OK)
        status = read_number(c, c->len, true, "LENGTH", &out->length);
    if (status != PM_OK)
        return status;
    if (out->length == 0)
        return pm_fail(c->err, PM_USAGE, "the LENGTH is zero");
    if (__builtin_add_overflow(out->offset, out->length, &end))
        return pm_fail(c->err, PM_USAGE, "OFFSET plus LENGTH is too large");
    return PM_OK;
}

// Reads the rest of the spec, a symbol or a C++ name.
static int read_symbol(struct cursor *c, struct pm_spec *out) {
    const char *rest = c->text + c->at;
    if (next_is(c, '@')) // @FILE can only be the whole value of PMALLOC_ROOTS
        return stray(c, "symbol");
    if (memmem(rest, c->len - c->at, "->", 2))
        return pm_fail(c->err, PM_USAGE,
                       "a root is a part of one variable; what a pointer leads to is kept anyway: "
                       "name the pointer");
    if (memchr(rest, '[', c->len - c->at))
        return pm_fail(c->err, PM_USAGE,
                       "an element of an array, which pmalloc-run resolves: start the program by "
                       "that, or write SYMBOL+OFFSET/LENGTH");
    bool scoped = memmem(rest, c->len - c->at, "::", 2) != NULL;
    int status = read_name(c, c->len, scoped ? &scoped_symbol : &plain_symbol, out->name);
    if (status == PM_OK && scoped && !is_scoped(out->name))
        return pm_fail(c->err, PM_USAGE,
                       "write a C++ variable as app::store, (anonymous namespace)::store, "
                       "Class::function()::store, or by its symbol (see nm)");
    return status;
}

static int read_spec(struct cursor *c, struct pm_spec *out) {
    const char *colon = memchr(c->text, ':', c->len);
    size_t before = colon != NULL ? (size_t)(colon - c->text) : c->len;
    bool scope = before + 1 < c->len && colon[1] == ':'; // as in app::store
    if (colon != NULL && !scope) {
        int status = read_name(c, before, &object_name, out->object);
        if (status != PM_OK)
            return status;
        c->at++;
    }
    if (next_is(c, '*')) {
        out->kind = PM_ROOT_OBJECT;
        c->at++;
        return c->at == c->len ? PM_OK : stray(c, "root, after its '*',");
    }
    const char *plus = memchr(c->text + c->at, '+', c->len - c->at);
    struct cursor name = {c->text, plus ? (size_t)(plus - c->text) : c->len, c->at, c->err};
    int status = plus && name.at == name.len ? PM_OK : read_symbol(&name, out);
    out->kind = plus ? PM_ROOT_RANGE : PM_ROOT_SYMBOL;
    c->at = name.at;
    return status == PM_OK && plus ? read_range(c, out) : status;
}

static const char *const when_text[] = {
    [PM_ROOT_AT_START] = "", [PM_ROOT_AT_IDLE] = "@idle", [PM_ROOT_AT_CALL] = "@call"};

// Cuts the end off that says when. A symbol may have a version, which is no word of small letters.
static int read_when(struct cursor *c, struct pm_spec *out) {
    size_t word = 0;
    while (word < c->len && c->text[c->len - 1 - word] >= 'a' && c->text[c->len - 1 - word] <= 'z')
        word++;
    if (word == 0 || word + 1 >= c->len || c->text[c->len - 1 - word] != '@' ||
        c->text[c->len - 2 - word] == '@')
        return PM_OK;
    c->len -= word + 1;
    for (unsigned when = PM_ROOT_AT_IDLE; when <= PM_ROOT_AT_CALL; when++)
        if (strlen(when_text[when]) == word + 1 &&
            memcmp(c->text + c->len, when_text[when], word + 1) == 0) {
            out->when = (enum pm_root_when)when;
            return PM_OK;
        }
    return pm_fail(c->err, PM_USAGE,
                   "a root that is not restored before main ends with @idle or @call");
}

int pm_spec_parse_one(const char *text, size_t len, struct pm_spec *out, struct pm_error *err) {
    char q[QUOTE_LEN];
    struct cursor c = {text, len, 0, err};
    memset(out, 0, sizeof *out);
    if (len == 0)
        return pm_fail(err, PM_USAGE, "empty root: is a comma too much?");
    int status = read_when(&c, out);
    if (status == PM_OK)
        status = read_spec(&c, out);
    if (status == PM_OK && out->when && out->kind == PM_ROOT_OBJECT)
        status = pm_fail(err, PM_USAGE, "a whole object is never restored: name its variables");
    return status == PM_OK ? PM_OK : pm_fail_in(err, "\"%s\"", quote(q, text, len));
}

int pm_spec_format(const struct pm_spec *spec, char *buf, size_t len) {
    const char *colon = spec->object[0] != '\0' ? ":" : "";
    const char *when = spec->when <= PM_ROOT_AT_CALL ? when_text[spec->when] : "@?";
    int n = -1;
    switch (spec->kind) {
    case PM_ROOT_SYMBOL:
        n = snprintf(buf, len, "%s%s%s%s", spec->object, colon, spec->name, when);
        break;
    case PM_ROOT_OBJECT:
        n = snprintf(buf, len, "%s%s*", spec->object, colon);
        break;
    case PM_ROOT_RANGE:
        n = snprintf(buf, len, "%s%s%s+0x%lx/%lu%s", spec->object, colon, spec->name,
                     (unsigned long)spec->offset, (unsigned long)spec->length, when);
        break;
    }
    return n >= 0 && (size_t)n < len ? n : -1;
}

bool pm_spec_equal(const struct pm_spec *a, const struct pm_spec *b) {
    return a->when == b->when && pm_spec_same(a, b);
}

bool pm_spec_same(const struct pm_spec *a, const struct pm_spec *b) {
    return a->kind == b->kind && a->offset == b->offset && a->length == b->length &&
           strcmp(a->object, b->object) == 0 && strcmp(a->name, b->name) == 0;
}

// ---- a list of specs ----------------------------------------------------------------------------

struct list {
    const char *file; // NULL: the specs are in the variable itself
    size_t number;    // of the spec in the variable, or of the line in the file; from 1
    pm_spec_fn *fn;
    void *arg;
    struct pm_error *err;
};

static int give_spec(struct list *l, const char *text, size_t len) {
    int status = l->fn(text, len, l->arg, l->err);
    if (status == PM_OK)
        return PM_OK;
    return l->file != NULL ? pm_fail_in(l->err, "%s line %zu", l->file, l->number)
                           : pm_fail_in(l->err, "root %zu", l->number);
}

static int parse_list(struct list *l, const char *text) {
    for (l->number = 1;; l->number++) {
        const char *end = strchrnul(text, ',');
        int status = give_spec(l, text, (size_t)(end - text));
        if (status != PM_OK || *end == '\0')
            return status;
        text = end + 1;
    }
}

static bool is_blank(char c) { return c == ' ' || c == '\t'; }

// Reads one line without its newline. Ignores the comment, blanks around the spec, and a carriage
// return.
static int parse_line(struct list *l, const char *line, size_t len) {
    size_t from = 0, to = 0;
    while (to < len && line[to] != '#')
        to++;
    if (to == len && to > 0 && line[to - 1] == '\r')
        to--;
    while (from < to && is_blank(line[from]))
        from++;
    while (to > from && is_blank(line[to - 1]))
        to--;
    return from < to ? give_spec(l, line + from, to - from) : PM_OK;
}

static int parse_lines(struct list *l, const char *text, size_t len) {
    int status = PM_OK;
    size_t at = 0;
    if (len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) // a byte-order mark, by some editors
        at = 3;
    for (l->number = 1; at < len && status == PM_OK; l->number++) {
        const char *newline = memchr(text + at, '\n', len - at);
        size_t end = newline != NULL ? (size_t)(newline - text) : len;
        status = parse_line(l, text + at, end - at);
        at = end + 1;
    }
    return status;
}

// Reads all of fd into buf. Returns the length, or -1 and errno; EFBIG: it does not fit.
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

static int parse_open_file(struct list *l, int fd) {
    struct stat st;
    size_t size = PM_SPEC_FILE_MAX + 1; // one more byte tells "exactly 1 MiB" from "longer"
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return pm_fail(l->err, PM_USAGE, "%s is not a regular file", l->file);
    char *buf =
        mmap(pm_os_place(size), size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buf == MAP_FAILED)
        return pm_fail(l->err, PM_OPERATIONAL, "%s: no memory to read it", l->file);
    int status;
    ssize_t len = read_all(fd, buf, size);
    if (len >= 0)
        status = parse_lines(l, buf, (size_t)len);
    else if (errno == EFBIG)
        status = pm_fail(l->err, PM_USAGE, "%s is longer than %zu bytes", l->file,
                         (size_t)PM_SPEC_FILE_MAX);
    else
        status = pm_fail(l->err, PM_USAGE, "cannot read %s: %s", l->file, pm_strerror(errno));
    munmap(buf, size);
    return status;
}

static int parse_file(struct list *l, const char *path) {
    if (*path == '\0')
        return pm_fail(l->err, PM_USAGE, "@ is followed by no file name");
    // O_NONBLOCK: opening a FIFO must not hang the program before main.
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return pm_fail(l->err, PM_USAGE, "cannot open %s: %s", path, pm_strerror(errno));
    l->file = path;
    int status = parse_open_file(l, fd);
    close(fd);
    return status;
}

int pm_spec_each(const char *text, pm_spec_fn *fn, void *arg, struct pm_error *err) {
    int saved = errno, status = PM_OK;
    struct list l = {.fn = fn, .arg = arg, .err = err};
    if (text[0] == '@')
        status = parse_file(&l, text + 1);
    else if (text[0] != '\0')
        status = parse_list(&l, text);
    errno = saved;
    return status;
}

struct table {
    struct pm_spec *out;
    size_t cap, n;
};

static int add_spec(const char *text, size_t len, void *arg, struct pm_error *err) {
    struct table *t = arg;
    struct pm_spec spec;
    char q[QUOTE_LEN];
    if (pm_spec_parse_one(text, len, &spec, err) != PM_OK)
        return err->status;
    for (size_t i = 0; i < t->n; i++)
        if (pm_spec_same(&t->out[i], &spec))
            return pm_fail(err, PM_USAGE, "\"%s\" is named twice", quote(q, text, len));
    if (t->n == t->cap)
        return pm_fail(err, PM_USAGE, "\"%s\": too many roots, at most %zu are possible",
                       quote(q, text, len), t->cap);
    t->out[t->n++] = spec;
    return PM_OK;
}

int pm_spec_parse(const char *text, struct pm_spec *out, size_t cap, size_t *n,
                  struct pm_error *err) {
    struct table t = {.out = out, .cap = cap};
    int status = pm_spec_each(text, add_spec, &t, err);
    *n = status == PM_OK ? t.n : 0;
    return status;
}
