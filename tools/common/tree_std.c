// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Containers, strings and pointers of libstdc++, by the names of their members. The heap is that of
// a program that may have been killed within an operation, so each step is checked and counted.
#include <stdio.h>
#include <string.h>

#include "tree_value.h"

enum { BASES_MAX = 16, KEY_MAX = 200, CLIMB_MAX = 128, WORD = 8 };
enum { FLOATING = 4, SIGNED = 5, SIGNED_CHAR = 6 }; // DW_ATE_...

#define STRING "basic_string<char, "

struct item {
    struct tree *t;
    const char *key;
    const struct dwarf_entry *e;
    uint64_t at;
    const char *bytes;
    unsigned depth;
};

struct field {
    struct dwarf_entry type;
    uint64_t offset;
};

// ---- members ------------------------------------------------------------------------------------

static bool member_of(struct tree *t, const struct dwarf_entry *of, const char *name, size_t length,
                      unsigned bases, struct field *out) {
    struct dwarf_entry m, base;
    bool more = dw_child(t->types, of, &m);
    for (; more; more = dw_sibling(t->types, &m))
        if (m.tag == DW_MEMBER && !m.is_static && strlen(m.name) == length &&
            memcmp(m.name, name, length) == 0) {
            out->offset += m.member_at;
            return dw_strip(t->types, m.type, &out->type);
        }
    more = bases > 0 && dw_child(t->types, of, &m);
    for (; more; more = dw_sibling(t->types, &m)) {
        struct field found = {.offset = out->offset + m.member_at};
        if (m.tag == DW_INHERITANCE && dw_strip(t->types, m.type, &base) &&
            member_of(t, &base, name, length, bases - 1, &found)) {
            *out = found;
            return true;
        }
    }
    return false;
}

static bool fits(struct tree *t, const struct field *f, uint64_t size) {
    uint64_t own = dw_size(t->types, f->type.at);
    return own && f->offset <= size && own <= size - f->offset;
}

// A member by its path, `_M_impl._M_start`; each name may be that of a base class's member.
static bool field(const struct item *i, const char *path, struct field *out) {
    *out = (struct field){*i->e, 0};
    while (*path) {
        size_t length = strcspn(path, ".");
        struct dwarf_entry of = out->type;
        if (!member_of(i->t, &of, path, length, BASES_MAX, out))
            return false;
        path += length + (path[length] == '.');
    }
    return fits(i->t, out, i->e->size);
}

static bool number(const struct item *i, const char *path, uint64_t *out) {
    struct field f;
    bool found = field(i, path, &f);
    uint64_t size = found ? dw_size(i->t->types, f.type.at) : 0;
    *out = 0;
    if (size && size <= sizeof *out)
        memcpy(out, i->bytes + f.offset, size);
    return size && size <= sizeof *out;
}

static bool word_at(const struct item *i, uint64_t at, uint64_t *out) {
    const void *bytes = tree_bytes(i->t, at, sizeof *out);
    if (bytes)
        memcpy(out, bytes, sizeof *out);
    return bytes != NULL;
}

// The type that a template was made with: the `which`th, from 0.
static uint64_t parameter(const struct item *i, const struct dwarf_entry *of, unsigned which) {
    struct dwarf_entry m;
    bool more = dw_child(i->t->types, of, &m);
    for (; more; more = dw_sibling(i->t->types, &m))
        if (m.tag == DW_TEMPLATE_TYPE && which-- == 0)
            return m.type;
    return 0;
}

// ---- elements -----------------------------------------------------------------------------------

// The pointer is the first word. clang leaves out the type around it, which libstdc++.so has.
static bool text_of(const struct item *i, char *out, size_t size) {
    uint64_t from, length;
    struct field counted;
    if (!field(i, "_M_string_length", &counted) || counted.offset != sizeof from ||
        !number(i, "_M_string_length", &length))
        return false;
    memcpy(&from, i->bytes, sizeof from);
    const char *bytes = tree_bytes(i->t, from, length);
    uint64_t take = length < size - 4 ? length : size - 4;
    if (!bytes && length)
        return false;
    memcpy(out, take ? bytes : "", take);
    memcpy(out + take, take < length ? "..." : "", take < length ? 4 : 1);
    return true;
}

// A key of a map as the name of what it leads to. On a terminal nothing of it may be a control
// character. False: it has no short text.
static bool key_name(struct tree *t, const struct dwarf_entry *e, const char *bytes, char *out,
                     size_t size) {
    char text[KEY_MAX];
    const struct item i = {t, NULL, e, 0, bytes, 0};
    bool is_text = strncmp(e->name, STRING, sizeof STRING - 1) == 0 && text_of(&i, text, KEY_MAX);
    bool whole = e->tag == DW_BASE && e->encoding != FLOATING && e->size - 1 < WORD;
    uint64_t value = 0, sign = whole ? (uint64_t)1 << (8 * e->size - 1) : 0;
    if (whole)
        memcpy(&value, bytes, e->size);
    if (whole && (e->encoding == SIGNED || e->encoding == SIGNED_CHAR))
        snprintf(text, sizeof text, "%ld", (long)((value ^ sign) - sign));
    else if (whole)
        snprintf(text, sizeof text, "%lu", (unsigned long)value);
    else if (!is_text)
        return false;
    for (char *c = text; *c && !t->as_json; c++)
        if ((unsigned char)*c < ' ' || *c == 127)
            *c = '?';
    const char *quote = is_text ? "\"" : "";
    if (t->as_json)
        snprintf(out, size, "%s", text);
    else
        snprintf(out, size, "[%s%s%s]", quote, text, quote);
    return true;
}

struct elements {
    const struct item *of;
    uint64_t type, size, count, printed;
    struct field first, second; // of a map's elements
    bool pairs;
};

static bool begin(struct elements *s, const struct item *i, uint64_t type, uint64_t count) {
    *s = (struct elements){.of = i, .type = type, .count = count};
    s->size = dw_size(i->t->types, type);
    if (s->size == 0)
        return false;
    if (count && i->depth == 0)
        tree_word(i->t, i->key, false, "elements, not followed");
    else
        tree_open(i->t, i->key, '{');
    return true;
}

static bool goes_on(const struct elements *s) {
    return s->of->depth > 0 && s->printed < s->count && s->printed < s->of->t->width;
}

// False: it cannot be read.
static bool element(struct elements *s, uint64_t at) {
    struct tree *t = s->of->t;
    const char *bytes = tree_bytes(t, at, s->size);
    char name[KEY_MAX + 8];
    snprintf(name, sizeof name, "[%lu]", (unsigned long)s->printed);
    if (!bytes)
        return false;
    if (s->pairs && key_name(t, &s->first.type, bytes + s->first.offset, name, sizeof name))
        tree_value(t, name, s->second.type.at, at + s->second.offset, bytes + s->second.offset,
                   s->of->depth - 1, t->width);
    else
        tree_value(t, name, s->type, at, bytes, s->of->depth - 1, t->width);
    s->printed++;
    return true;
}

static bool end(struct elements *s) {
    char count[24] = "";
    bool all = s->printed == s->count, stopped = s->printed < s->of->t->width;
    if (s->count && s->of->depth == 0)
        return true;
    if (s->count != UINT64_MAX)
        snprintf(count, sizeof count, "%lu ", (unsigned long)(s->count - s->printed));
    if (!all)
        tree_word(s->of->t, "...", false, "%smore%s", count,
                  stopped ? " by its count, which cannot be read" : "");
    tree_close(s->of->t, '}');
    return true;
}

// The keys of a map are names.
static void take_pairs(struct elements *s) {
    struct dwarf_entry pair;
    struct tree *t = s->of->t;
    s->pairs = dw_strip(t->types, s->type, &pair) && strncmp(pair.name, "pair<", 5) == 0 &&
               member_of(t, &pair, "first", 5, 0, &s->first) &&
               member_of(t, &pair, "second", 6, 0, &s->second) && fits(t, &s->first, s->size) &&
               fits(t, &s->second, s->size);
}

// ---- containers ---------------------------------------------------------------------------------

static bool string(const struct item *i) {
    static char text[TREE_TEXT_MAX + 4];
    if (!text_of(i, text, sizeof text))
        return false;
    tree_text(i->t, i->key, text);
    return true;
}

static bool vector(const struct item *i) {
    uint64_t from, to;
    struct field start;
    struct elements s;
    if (!field(i, "_M_impl._M_start", &start) || start.type.tag != DW_POINTER ||
        !number(i, "_M_impl._M_start", &from) || !number(i, "_M_impl._M_finish", &to))
        return false;
    uint64_t size = dw_size(i->t->types, start.type.type);
    if (!size || to < from || (to - from) % size ||
        (to > from && !tree_bytes(i->t, from, to - from)))
        return false;
    begin(&s, i, start.type.type, (to - from) / size);
    while (goes_on(&s) && element(&s, from + s.printed * size)) {
    }
    return end(&s);
}

// The only vector that packs its elements.
static bool vector_of_bool(const struct item *i) {
    uint64_t from, to, rest;
    if (!number(i, "_M_impl._M_start._M_p", &from) || !number(i, "_M_impl._M_finish._M_p", &to) ||
        !number(i, "_M_impl._M_finish._M_offset", &rest))
        return false;
    uint64_t count = 8 * (to - from) + rest, size = (count + 7) / 8;
    const unsigned char *bits = to < from ? NULL : tree_bytes(i->t, from, size);
    if (count && (!bits || size < to - from))
        return false;
    tree_open(i->t, i->key, '{');
    for (uint64_t n = 0; n < count && n < i->t->width; n++) {
        char name[24];
        snprintf(name, sizeof name, "[%lu]", (unsigned long)n);
        tree_word(i->t, name, true, bits[n / 8] >> n % 8 & 1 ? "true" : "false");
    }
    if (count > i->t->width)
        tree_word(i->t, "...", false, "%lu more", (unsigned long)(count - i->t->width));
    tree_close(i->t, '}');
    return true;
}

// Pieces of 512 bytes, or of one element; an array of pointers has them.
static bool deque(const struct item *i) {
    struct field cur;
    struct elements s;
    uint64_t piece, first, last, node, end_node, end_cur, end_first;
    if (!field(i, "_M_impl._M_start._M_cur", &cur) || cur.type.tag != DW_POINTER ||
        !number(i, "_M_impl._M_start._M_cur", &first) ||
        !number(i, "_M_impl._M_start._M_last", &last) ||
        !number(i, "_M_impl._M_start._M_node", &node) ||
        !number(i, "_M_impl._M_finish._M_node", &end_node) ||
        !number(i, "_M_impl._M_finish._M_cur", &end_cur) ||
        !number(i, "_M_impl._M_finish._M_first", &end_first))
        return false;
    uint64_t size = dw_size(i->t->types, cur.type.type), each = size && size < 512 ? 512 / size : 1;
    if (!size || end_node < node || end_cur < end_first || last < first)
        return false;
    uint64_t before = node == end_node ? 0 : (last - first) / size;
    uint64_t between = node == end_node ? 0 : ((end_node - node) / WORD - 1) * each;
    uint64_t from = node == end_node ? first : end_first;
    begin(&s, i, cur.type.type, before + between + (end_cur - from) / size);
    for (bool good = true; good && goes_on(&s);) {
        uint64_t n = s.printed - before;
        if (s.printed < before || node == end_node)
            good = element(&s, first + s.printed * size);
        else
            good = word_at(i, node + WORD * (1 + n / each), &piece) &&
                   element(&s, piece + n % each * size);
    }
    return end(&s);
}

// Nodes that are linked by their word `next` begin with the links; the element stands behind.
static bool chain(const struct item *i, uint64_t type, uint64_t node, uint64_t stop, uint64_t into,
                  uint64_t count, bool pairs) {
    struct elements s;
    if (!begin(&s, i, type, count))
        return false;
    if (pairs)
        take_pairs(&s);
    while (node && node != stop && goes_on(&s) && element(&s, node + into) &&
           word_at(i, node, &node)) {
    }
    if (s.count == UINT64_MAX && (!node || node == stop)) // it was not on record
        s.count = s.printed;
    return end(&s);
}

static bool list(const struct item *i) {
    uint64_t next, count;
    struct field head;
    if (!field(i, "_M_impl._M_node", &head) || !number(i, "_M_impl._M_node._M_next", &next) ||
        !number(i, "_M_impl._M_node._M_size", &count))
        return false;
    return chain(i, parameter(i, i->e, 0), next, i->at + head.offset, 2 * WORD, count, false);
}

static bool forward_list(const struct item *i) {
    uint64_t next;
    if (!number(i, "_M_impl._M_head._M_next", &next))
        return false;
    return chain(i, parameter(i, i->e, 0), next, 0, WORD, next ? UINT64_MAX : 0, false);
}

// std::unordered_*: a chain of all nodes, whatever their buckets.
static bool hash_table(const struct item *i) {
    uint64_t next, count;
    struct field table;
    if (!field(i, "_M_h", &table) || !number(i, "_M_h._M_before_begin._M_nxt", &next) ||
        !number(i, "_M_h._M_element_count", &count))
        return false;
    return chain(i, parameter(i, &table.type, 1), next, 0, WORD, count,
                 strncmp(i->e->name, "unordered_map<", 14) == 0);
}

// A node of a std::map: colour, parent, left, right, and then the element.
enum { NODE_PARENT = WORD, NODE_LEFT = 2 * WORD, NODE_RIGHT = 3 * WORD, NODE_VALUE = 4 * WORD };

// The next node in the order of keys. False: it cannot be read.
static bool climb(const struct item *i, uint64_t *node) {
    uint64_t next, right;
    if (!word_at(i, *node + NODE_RIGHT, &next))
        return false;
    if (next) {
        for (unsigned steps = 0; next && steps < CLIMB_MAX; steps++) {
            *node = next;
            if (!word_at(i, next + NODE_LEFT, &next))
                return false;
        }
        return next == 0;
    }
    for (unsigned steps = 0; steps < CLIMB_MAX; steps++) {
        if (!word_at(i, *node + NODE_PARENT, &next) || !word_at(i, next + NODE_RIGHT, &right))
            return false;
        if (right != *node) {
            // Else this is the header, whose parent is a root without a right branch.
            if (word_at(i, *node + NODE_RIGHT, &right) && right != next)
                *node = next;
            return true;
        }
        *node = next;
    }
    return false;
}

static bool tree(const struct item *i) {
    uint64_t node, count;
    struct field table, header;
    struct elements s;
    if (!field(i, "_M_t", &table) || !field(i, "_M_t._M_impl._M_header", &header) ||
        !number(i, "_M_t._M_impl._M_header._M_left", &node) ||
        !number(i, "_M_t._M_impl._M_node_count", &count) ||
        !begin(&s, i, parameter(i, &table.type, 1), count))
        return false;
    if (strncmp(i->e->name, "map<", 4) == 0)
        take_pairs(&s);
    while (goes_on(&s) && node != i->at + header.offset && element(&s, node + NODE_VALUE) &&
           climb(i, &node)) {
    }
    return end(&s);
}

// ---- pointers, and what has one value -----------------------------------------------------------

static bool to(const struct item *i, uint64_t type, uint64_t where) {
    const struct dwarf_entry e = {.tag = DW_POINTER, .type = type};
    tree_pointer(i->t, i->key, &e, where, i->depth, i->t->width);
    return true;
}

static bool shared_ptr(const struct item *i) {
    struct field pointer;
    uint64_t where;
    return field(i, "_M_ptr", &pointer) && pointer.type.tag == DW_POINTER &&
           number(i, "_M_ptr", &where) && to(i, pointer.type.type, where);
}

// With a deleter that has no state it is one word.
static bool unique_ptr(const struct item *i) {
    uint64_t where, type = parameter(i, i->e, 0);
    struct dwarf_entry e;
    if (i->e->size != WORD || !dw_strip(i->t->types, type, &e) || e.tag == DW_ARRAY)
        return false;
    memcpy(&where, i->bytes, sizeof where);
    return to(i, type, where);
}

static bool member_alone(const struct item *i, const char *path) {
    struct field f;
    if (!field(i, path, &f))
        return false;
    tree_value(i->t, i->key, f.type.at, i->at + f.offset, i->bytes + f.offset, i->depth,
               i->t->width);
    return true;
}

static bool optional(const struct item *i) {
    uint64_t engaged;
    if (!number(i, "_M_payload._M_engaged", &engaged))
        return false;
    if (engaged)
        return member_alone(i, "_M_payload._M_payload._M_value");
    tree_word(i->t, i->key, false, "no value");
    return true;
}

static bool atomic(const struct item *i) { return member_alone(i, "_M_i"); }
static bool fixed_array(const struct item *i) { return member_alone(i, "_M_elems"); }

// ---- which --------------------------------------------------------------------------------------

static const struct {
    const char *name; // up to what the template was made with
    bool (*print)(const struct item *i);
} kinds[] = {
    {STRING, string},
    {"vector<bool,", vector_of_bool},
    {"vector<", vector},
    {"map<", tree},
    {"set<", tree},
    {"multimap<", tree},
    {"multiset<", tree},
    {"unordered_map<", hash_table},
    {"unordered_set<", hash_table},
    {"unordered_multimap<", hash_table},
    {"unordered_multiset<", hash_table},
    {"list<", list},
    {"forward_list<", forward_list},
    {"deque<", deque},
    {"unique_ptr<", unique_ptr},
    {"shared_ptr<", shared_ptr},
    {"weak_ptr<", shared_ptr},
    {"optional<", optional},
    {"atomic<", atomic},
    {"array<", fixed_array},
};

bool tree_std(struct tree *t, const char *key, const struct dwarf_entry *e, uint64_t at,
              const char *bytes, unsigned depth) {
    const struct item i = {t, key, e, at, bytes, depth};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        if (strncmp(e->name, kinds[k].name, strlen(kinds[k].name)) == 0)
            return kinds[k].print(&i);
    return false;
}
