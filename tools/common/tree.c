// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "tree.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dwarf.h"
#include "info_print.h"
#include "json.h"
#include "media/heap.h"
#include "recovery/block_around.h"
#include "roots/elf_file.h"
#include "roots/root_media.h"
#include "roots/root_table.h"

enum { TEXT_MAX = 4096, NESTING = 64, VALUES_MAX = 1000000, PLACES = 1 << 20 };

struct tree {
    const struct tree_request *q;
    struct dwarf *types;
    struct pm_elf program;
    uint64_t base; // what loading added to the program's addresses
    const struct pm_root_table *table;
    const char *images;
    struct json json;
    unsigned indent, nesting;
    uint64_t values;
    uint64_t *seen; // places of the program whose values were begun; a table
    size_t seen_count;
};

// ---- memory of the program ----------------------------------------------------------------------

static const void *in_roots(const struct tree *t, uint64_t at, uint64_t len) {
    for (uint32_t i = 0; t->images && i < t->table->count; i++) {
        const struct pm_root *r = &t->table->root[i];
        if (at - r->address < r->length && len <= r->length - (at - r->address))
            return t->images + (r->image - t->table->area_offset) + (at - r->address);
    }
    return NULL;
}

static const void *in_program(const struct tree *t, uint64_t at, uint64_t len) {
    ElfW(Phdr) p;
    for (size_t i = 0; pm_elf_phdr(&t->program, i, &p); i++) {
        uint64_t into = at - t->base - p.p_vaddr;
        if (p.p_type == PT_LOAD && !(p.p_flags & PF_W) && into < p.p_filesz &&
            len <= p.p_filesz - into && p.p_offset <= t->program.size &&
            into + len <= t->program.size - p.p_offset)
            return t->program.map + p.p_offset + into;
    }
    return NULL;
}

// How many bytes there are from an address of the heap on: to the end of its block.
static uint64_t rest_of_block(uint64_t at) {
    uint64_t offset = at - pm_base;
    struct pm_block block;
    if (offset >= pm_range || !pm_block_around(offset, false, &block))
        return 0;
    return block.size - (offset - block.start);
}

// The bytes that the program had there, or NULL.
static const void *bytes_at(const struct tree *t, uint64_t at, uint64_t len) {
    if (at - pm_base < pm_range)
        return len <= rest_of_block(at) ? (const void *)(uintptr_t)at : NULL;
    const void *found = in_roots(t, at, len);
    return found ? found : in_program(t, at, len);
}

// Whether this place was met before, as a value of this type.
static bool met(struct tree *t, uint64_t at, uint64_t type) {
    uint64_t key = (at << 20) ^ type;
    for (uint64_t i = key * 0x9e3779b97f4a7c15u >> 44;; i = (i + 1) % PLACES) {
        if (t->seen[i] == key)
            return true;
        if (t->seen[i])
            continue;
        if (++t->seen_count < PLACES / 2)
            t->seen[i] = key;
        return t->seen_count >= PLACES / 2;
    }
}

// ---- output -------------------------------------------------------------------------------------

static void begin(struct tree *t, const char *key) {
    if (!t->q->json)
        printf("%*s%s%s", 2 * (int)t->indent, "", key ? key : "", key ? " = " : "");
}

static void open_group(struct tree *t, const char *key, char bracket) {
    if (t->q->json) {
        json_open(&t->json, key, bracket);
        return;
    }
    begin(t, key);
    printf("%c\n", bracket);
    t->indent++;
}

static void close_group(struct tree *t, char bracket) {
    if (t->q->json) {
        json_close(&t->json, bracket);
        return;
    }
    t->indent--;
    printf("%*s%c\n", 2 * (int)t->indent, "", bracket);
}

static void put_text(struct tree *t, const char *key, const char *text) {
    if (t->q->json) {
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

// A number, or a word that is none.
__attribute__((format(printf, 4, 5))) static void put_word(struct tree *t, const char *key,
                                                           bool number, const char *format, ...) {
    char word[400];
    va_list args;
    va_start(args, format);
    vsnprintf(word, sizeof word, format, args);
    va_end(args);
    if (!t->q->json) {
        begin(t, key);
        puts(word);
    } else if (number) {
        json_literal(&t->json, key, word);
    } else {
        json_text(&t->json, key, word);
    }
}

// ---- values -------------------------------------------------------------------------------------

static void value(struct tree *t, const char *key, uint64_t type, uint64_t at, const void *bytes,
                  unsigned depth, unsigned links);

static uint64_t number_of(const void *bytes, uint64_t size) {
    uint64_t number = 0;
    memcpy(&number, bytes, size < sizeof number ? size : sizeof number);
    return number;
}

static int64_t widen(uint64_t number, uint64_t bits) {
    return bits && bits < 64 ? (int64_t)(number << (64 - bits)) >> (64 - bits) : (int64_t)number;
}

static void real(struct tree *t, const char *key, const void *bytes, uint64_t size) {
    float small;
    double number = 0;
    if (size == sizeof small) {
        memcpy(&small, bytes, sizeof small);
        number = (double)small;
    } else if (size == sizeof number) {
        memcpy(&number, bytes, sizeof number);
    }
    bool finite = number - number == 0;
    put_word(t, key, finite && size <= sizeof number, "%.17g", number);
}

enum { ENCODING_BOOL = 2, ENCODING_FLOAT = 4, ENCODING_SIGNED = 5, ENCODING_CHAR = 6 };

static void base(struct tree *t, const char *key, const struct dwarf_entry *e, uint64_t number,
                 uint64_t bits) {
    if (e->encoding == ENCODING_BOOL)
        put_word(t, key, true, "%s", number ? "true" : "false");
    else if (e->encoding == ENCODING_SIGNED || e->encoding == ENCODING_CHAR)
        put_word(t, key, true, "%ld", (long)widen(number, bits));
    else
        put_word(t, key, true, "%lu", (unsigned long)number);
}

static void enumeration(struct tree *t, const char *key, const struct dwarf_entry *e,
                        uint64_t number, uint64_t bits) {
    struct dwarf_entry one;
    for (bool more = dwarf_child(t->types, e, &one); more; more = dwarf_sibling(t->types, &one))
        if (one.tag == DW_ENUMERATOR && widen((uint64_t)one.value, bits) == widen(number, bits)) {
            put_word(t, key, false, "%s", one.name);
            return;
        }
    put_word(t, key, true, "%ld", (long)widen(number, bits));
}

static bool is_char(struct tree *t, uint64_t type) {
    struct dwarf_entry e;
    return dwarf_strip(t->types, type, &e) && e.tag == DW_BASE && e.size == 1 &&
           (e.encoding == ENCODING_CHAR || e.encoding == 8);
}

// Text up to a NUL, if all of it is text. False: it is not.
static bool text(struct tree *t, const char *key, const char *bytes, uint64_t room) {
    static char copy[TEXT_MAX + 4];
    uint64_t len = strnlen(bytes, room < TEXT_MAX ? room : TEXT_MAX);
    for (uint64_t i = 0; i < len; i++)
        if ((unsigned char)bytes[i] < ' ' && !isspace((unsigned char)bytes[i]))
            return false;
    bool cut = len == TEXT_MAX || len == room;
    memcpy(copy, bytes, len);
    memcpy(copy + len, cut && len == TEXT_MAX ? "..." : "", cut && len == TEXT_MAX ? 4 : 1);
    put_text(t, key, copy);
    return true;
}

static void pointer(struct tree *t, const char *key, const struct dwarf_entry *e, uint64_t to,
                    unsigned depth, unsigned links) {
    uint64_t clean = to & ((1ull << 48) - 1), room = rest_of_block(clean);
    struct dwarf_entry target;
    bool known = dwarf_strip(t->types, e->type, &target);
    uint64_t size = known ? dwarf_size(t->types, e->type) : 0;
    const void *bytes = size ? bytes_at(t, clean, size) : NULL;
    if (to == 0) {
        put_word(t, key, false, "NULL");
    } else if (known && is_char(t, e->type) && bytes &&
               text(t, key, bytes, room ? room : TEXT_MAX / 16)) {
    } else if (!bytes || target.tag == DW_FUNCTION_TYPE) {
        put_word(t, key, false, "%#lx", (unsigned long)to);
    } else if (depth == 0 || links == 0 || t->nesting >= NESTING + t->q->width) {
        put_word(t, key, false, "%#lx, not followed", (unsigned long)to);
    } else if (met(t, clean, target.at)) {
        put_word(t, key, false, "%#lx, met before", (unsigned long)to);
    } else {
        value(t, key, e->type, clean, bytes, depth - 1, links);
    }
}

static bool is_zero(const char *bytes, uint64_t size) {
    for (uint64_t i = 0; i < size; i++)
        if (bytes[i])
            return false;
    return true;
}

// Elements that are zero are left out. An array without a length goes to the end of its block.
static void array(struct tree *t, const char *key, const struct dwarf_entry *e, uint64_t at,
                  const char *bytes, unsigned depth) {
    uint64_t one = dwarf_size(t->types, e->type), all = dwarf_size(t->types, e->at), count = 0;
    char index[40];
    if (all == 0)
        all = rest_of_block(at);
    if (is_char(t, e->type) && all && text(t, key, bytes, all))
        return;
    open_group(t, key, '{');
    for (uint64_t i = 0; one && i < all / one; i++) {
        const char *element = bytes + i * one;
        if (is_zero(element, one))
            continue;
        snprintf(index, sizeof index, "[%lu]", (unsigned long)i);
        if (count++ == t->q->width) {
            put_word(t, "...", false, "more");
            break;
        }
        value(t, index, e->type, at + i * one, element, depth, t->q->width);
    }
    close_group(t, '}');
}

static void member(struct tree *t, const struct dwarf_entry *of, const struct dwarf_entry *m,
                   uint64_t at, const char *bytes, unsigned depth, unsigned links) {
    struct dwarf_entry e, to;
    if (!dwarf_strip(t->types, m->type, &e))
        return;
    const char *name = *m->name ? m->name : *e.name ? e.name : "(unnamed)";
    uint64_t size = dwarf_size(t->types, m->type), bit = m->member_at * 8 + m->bit_offset;
    if (m->from_top)
        bit = m->member_at * 8 + (m->has_size ? m->size : size) * 8 - m->bit_offset - m->bit_size;
    if (m->member_at > of->size || size > of->size - m->member_at || bit / 8 > of->size)
        return; // what does not fit was not written by a compiler
    if (m->bit_size) {
        uint64_t word = number_of(bytes + bit / 64 * 8, of->size - bit / 64 * 8) >> bit % 64;
        word &= m->bit_size < 64 ? (1ull << m->bit_size) - 1 : UINT64_MAX;
        (e.tag == DW_ENUMERATION ? enumeration : base)(t, name, &e, word, m->bit_size);
        return;
    }
    // A pointer to the same type is a link of a list or tree.
    bool link = e.tag == DW_POINTER && dwarf_strip(t->types, e.type, &to) && to.at == of->at;
    value(t, name, m->type, at + m->member_at, bytes + m->member_at, link ? depth + 1 : depth,
          link ? links - 1 : t->q->width);
}

static void structure(struct tree *t, const char *key, const struct dwarf_entry *e, uint64_t at,
                      const char *bytes, unsigned depth, unsigned links) {
    struct dwarf_entry m;
    open_group(t, key, '{');
    for (bool more = dwarf_child(t->types, e, &m); more; more = dwarf_sibling(t->types, &m))
        if ((m.tag == DW_MEMBER || m.tag == DW_INHERITANCE) && !m.is_static)
            member(t, e, &m, at, bytes, depth, links);
    close_group(t, '}');
}

// `bytes` has all that the type says. `depth`: how many pointers are followed below.
static void value(struct tree *t, const char *key, uint64_t type, uint64_t at, const void *bytes,
                  unsigned depth, unsigned links) {
    struct dwarf_entry e;
    if (!dwarf_strip(t->types, type, &e) || ++t->values > VALUES_MAX)
        return;
    if (++t->nesting > NESTING + t->q->width) {
        put_word(t, key, false, "...");
    } else if (e.tag == DW_BASE && e.encoding == ENCODING_FLOAT) {
        real(t, key, bytes, e.size);
    } else if (e.tag == DW_BASE) {
        base(t, key, &e, number_of(bytes, e.size), 8 * e.size);
    } else if (e.tag == DW_ENUMERATION) {
        enumeration(t, key, &e, number_of(bytes, e.size), 8 * e.size);
    } else if (e.tag == DW_POINTER || e.tag == DW_REFERENCE) {
        pointer(t, key, &e, number_of(bytes, sizeof(void *)), depth, links);
    } else if (e.tag == DW_ARRAY) {
        array(t, key, &e, at, bytes, depth);
    } else if (e.declaration) {
        put_word(t, key, false, "(type is not known here)");
    } else {
        structure(t, key, &e, at, bytes, depth, links);
    }
    t->nesting--;
}

// ---- the root -----------------------------------------------------------------------------------

struct sought {
    const char *name;
    struct pm_root root;
    bool found;
};

static void compare(const struct pm_root *root, const char *name, void *arg) {
    struct sought *s = arg;
    if (strcmp(name, s->name) == 0) {
        s->root = *root;
        s->found = true;
    }
}

static int open_program(struct tree *t, struct pm_error *err) {
    struct pm_program on_record;
    uint8_t id[PM_BUILD_ID_MAX] = {0};
    if (!info_program(&on_record))
        return pm_fail(err, PM_OPERATIONAL, "%s names no program, so the types are not known",
                       t->q->heap);
    if (pm_elf_open(&t->program, on_record.path, err) != PM_OK)
        return pm_fail_in(err, "the program of %s", t->q->heap);
    if (pm_elf_build_id(&t->program, id) != on_record.build_id_len ||
        memcmp(id, on_record.build_id, sizeof id) != 0)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s is another build than the one that last used %s, and its types may be "
                       "others: put that build there",
                       on_record.path, t->q->heap);
    t->base = on_record.main_base;
    t->types = dwarf_open(&t->program);
    if (!t->types)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s has no types: build it with -g, or install its debug symbols",
                       on_record.path);
    return PM_OK;
}

static int find_root(struct tree *t, uint64_t *type, uint64_t *at, struct pm_error *err) {
    struct sought s = {.name = t->q->root};
    struct dwarf_entry variable;
    pm_roots_list(compare, &s);
    if (!s.found)
        return pm_fail(err, PM_USAGE, "%s has no root named '%.200s'; `pmalloc-info %s` lists them",
                       t->q->heap, t->q->root, t->q->heap);
    if (s.root.kind == PM_ROOT_OBJECT || s.root.object[0])
        return pm_fail(err, PM_OPERATIONAL,
                       "'%.200s' is no variable of the program, so it has no "
                       "type",
                       t->q->root);
    *at = s.root.address;
    if (!dwarf_variable(t->types, s.root.address - t->base, &variable))
        return pm_fail(err, PM_OPERATIONAL,
                       "the type of '%.200s' is not known: is its file built "
                       "with -g?",
                       t->q->root);
    *type = variable.type;
    if (dwarf_size(t->types, *type) > s.root.length)
        return pm_fail(err, PM_OPERATIONAL, "the variable at '%.200s' is longer than the root",
                       t->q->root);
    return PM_OK;
}

int tree_print(const struct tree_request *q) {
    static struct tree t;
    struct pm_error err;
    uint64_t type = 0, at = 0;
    t = (struct tree){.q = q, .json = {.out = stdout}};
    t.table = pm_roots_table(&err);
    t.images = t.table ? pm_roots_images(t.table) : NULL;
    t.seen = calloc(PLACES, sizeof *t.seen);
    int status = !t.table  ? err.status
                 : !t.seen ? pm_fail(&err, PM_OPERATIONAL, "no memory")
                           : open_program(&t, &err);
    if (status == PM_OK)
        status = find_root(&t, &type, &at, &err);
    const void *bytes = status == PM_OK ? in_roots(&t, at, dwarf_size(t.types, type)) : NULL;
    if (status == PM_OK && !bytes)
        status = pm_fail(&err, PM_OPERATIONAL, "the bytes of '%.200s' cannot be read", q->root);
    if (status != PM_OK) {
        pm_say("%s", err.text);
        if (q->json)
            info_error(q->heap, &err);
        return status;
    }
    if (q->json)
        json_open(&t.json, NULL, '{');
    value(&t, q->root, type, at, bytes, q->depth, q->width);
    if (q->json) {
        json_close(&t.json, '}');
        json_end(&t.json);
    }
    return PM_OK;
}
