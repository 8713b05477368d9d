// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "match.h"

#include <stdio.h>
#include <string.h>

#include "numbered.h"
#include "roots/made_names.h"

// Where an object's virtual functions begin in its class's table: behind two words.
#define VTABLE_START 16

static bool is_vtable(const char *name) { return strncmp(name, "_ZTV", 4) == 0; }

// The length of a name without the number that a compiler has put behind it: `count.3`. 0: it has
// none.
static size_t stem_of(const char *name) {
    const char *dot = strrchr(name, '.');
    size_t digits = dot ? strspn(dot + 1, "0123456789") : 0;
    return digits && !dot[1 + digits] && dot != name ? (size_t)(dot - name) : 0;
}

// How much is asked of a symbol beside its name. The linker may make a symbol local that others
// could use, or the other way round, and a file may get another name: then the name alone is
// enough, if one thing alone has it. A file that is there has what was in it: what has the name in
// another one is another thing.
enum asked { SAME_FILE, SAME_SORT, NAME };

struct candidates {
    const struct pm_place_of *old;
    bool code;
    bool numbers;               // of struct pm_match_by
    size_t head;                // what all of the family begin with (numbered.h); 0: it has none
    size_t stem;                // its length in the old name
    bool plain;                 // a name without a number is of that stem, too
    bool sized;                 // the size must be the same
    bool stays;                 // its file is in the new object, too
    bool lost;                  // others had the name, too
    const unsigned char *bytes; // of a constant, which must be the same; or NULL
    unsigned count;             // at different addresses
    uint64_t at, size;
    const char *why;
};

static void consider(struct candidates *c, const struct pm_place_symbol *s, enum asked asked) {
    bool same_sort = !s->file == !c->old->file;
    bool same_file = same_sort && (!s->file || strcmp(s->file, c->old->file) == 0);
    if (s->code != c->code || (asked == SAME_FILE && !same_file) ||
        (asked == SAME_SORT && !same_sort) ||
        (asked != SAME_FILE && c->stays && s->file && *s->file))
        return;
    if (!c->count || s->at != c->at)
        c->count++;
    c->at = s->at;
    c->size = s->size;
}

static void look_by_name(const struct pm_places *new, struct candidates *c, enum asked asked) {
    const struct pm_place_symbol *s = pm_place_named(new, c->old->name);
    for (c->count = 0; s; s = pm_place_next(new, s))
        if (strcmp(s->name, c->old->name) == 0)
            consider(c, s, asked);
}

static bool is_of_file(const struct pm_place_symbol *s, const char *file) {
    return s->file && strcmp(s->file, file) == 0;
}

// What the linker has made local is of no file, and what LTO has made, of one that it names itself.
static bool has_file(const struct pm_places *p, const char *file) {
    if (!file || pm_made_is_whole(file))
        return false;
    for (uint32_t i = 1; i <= p->symbols; i++)
        if (is_of_file(&p->symbol[i], file))
            return true;
    return false;
}

// clang takes a variable apart whose address nobody has: NAME.0, NAME.1. It is no more one thing.
static bool is_taken_apart(const struct pm_places *p, const struct candidates *c) {
    size_t length = strlen(c->old->name);
    for (uint32_t i = 1; i <= p->symbols && c->stays && !c->code; i++) {
        const struct pm_place_symbol *s = &p->symbol[i];
        if (!s->code && is_of_file(s, c->old->file) && s->name[length] == '.' &&
            strncmp(s->name, c->old->name, length) == 0)
            return true;
    }
    return false;
}

// Whether others had the name, too. One that is left then need not be the one that was meant: files
// in several directories may have one name, and a file may be called otherwise now.
static bool had_namesakes(const struct pm_places *old, const struct candidates *c, uint64_t address,
                          enum asked asked) {
    const struct pm_place_symbol *s = pm_place_named(old, c->old->name);
    for (; s; s = pm_place_next(old, s)) {
        bool file =
            asked != SAME_FILE || (s->file && c->old->file ? strcmp(s->file, c->old->file) == 0
                                                           : !s->file == !c->old->file);
        if (s->code == c->code && s->at != address - c->old->into && file &&
            strcmp(s->name, c->old->name) == 0)
            return true;
    }
    return false;
}

static void find_by_name(const struct pm_places *old, const struct pm_places *new, uint64_t address,
                         struct candidates *c) {
    enum asked asked = SAME_FILE;
    look_by_name(new, c, asked);
    if (!c->count && is_taken_apart(new, c))
        return;
    while (!c->count && ++asked <= NAME)
        look_by_name(new, c, asked);
    c->lost = c->count && had_namesakes(old, c, address, asked);
}

// ---- numbers ------------------------------------------------------------------------------------

// gcc numbers the statics of functions that have one name in a file, from the last one on; LTO what
// has one name in several files; all number the lambdas of a function. Another build has other
// numbers as soon as one more is there, or they stand in another order. So numbers tell nothing: of
// several, only the size and the bytes of a constant say which one is meant.

static bool is_of_family(const struct candidates *c, const char *name) {
    if (c->head)
        return strncmp(name, c->old->name, c->head) == 0 && pm_numbered_alike(name, c->old->name);
    return strncmp(name, c->old->name, c->stem) == 0 &&
           (name[c->stem] ? stem_of(name) == c->stem : c->plain);
}

static const char gone[] = "is gone in this build";
static const char several[] = "is one of several of its name, and compilers number these as they "
                              "like (PMALLOC_REBASE_TRUST=numbered: as before)";
static const char lost[] = "was one of several of its name, and this build has one alone, which "
                           "may be another one";
static const char others[] = "is one of several of its name, and there are more or fewer of them "
                             "in this build";

static void look_by_family(const struct pm_places *p, struct candidates *c, enum asked asked) {
    c->count = 0;
    for (uint32_t i = 1; i <= p->symbols; i++) {
        const struct pm_place_symbol *s = &p->symbol[i];
        if (!is_of_family(c, s->name) || (c->sized && s->size != c->old->size))
            continue;
        const unsigned char *bytes = c->bytes ? pm_place_bytes(p, s->at, s->size) : NULL;
        if (!c->bytes || (bytes && memcmp(bytes, c->bytes, s->size) == 0))
            consider(c, s, asked);
    }
}

static unsigned count_of_family(const struct pm_places *p, struct candidates *c) {
    c->count = 0;
    for (enum asked asked = SAME_FILE; !c->count && asked <= NAME; asked++)
        look_by_family(p, c, asked);
    return c->count;
}

struct counts {
    unsigned then, now; // the candidates have what was found now
};

static struct counts count_both(const struct pm_places *old, const struct pm_places *new,
                                struct candidates *c) {
    unsigned then = count_of_family(old, c);
    return (struct counts){then, count_of_family(new, c)};
}

static bool find_in_family(const struct pm_places *old, const struct pm_places *new,
                           uint64_t address, struct candidates *c) {
    struct counts all = count_both(old, new, c);
    if (!all.now && !c->head && !c->plain) { // it may be of a whole file now
        c->plain = true;
        all = count_both(old, new, c);
    }
    struct counts n = all;
    if (all.now && (n.now > 1 || n.then > 1) && !c->code) {
        c->sized = true;
        c->bytes = pm_place_bytes(old, address - c->old->into, c->old->size);
        n = count_both(old, new, c);
    }
    bool as_many = all.now == all.then;
    c->why = !all.now || (as_many && c->numbers) ? gone : as_many ? several : others;
    return n.now == 1 && n.then == 1;
}

// Whether clang's LTO has such a name with a number: then one without is one of several, too.
static bool has_twins(const struct pm_places *p, const struct candidates *c) {
    for (uint32_t i = 1; i <= p->symbols; i++) {
        const struct pm_place_symbol *s = &p->symbol[i];
        if (s->code == c->code && s->file && pm_made_is_whole(s->file) &&
            strncmp(s->name, c->old->name, c->stem) == 0 && stem_of(s->name) == c->stem)
            return true;
    }
    return false;
}

static bool find(const struct pm_places *old, const struct pm_places *new, uint64_t address,
                 struct candidates *c) {
    bool numbered = (c->stem = stem_of(c->old->name)) != 0;
    c->plain = pm_made_by_clang(&new->elf);
    c->stays = has_file(new, c->old->file);
    c->head = numbered ? 0 : pm_numbered_head(c->old->name);
    if (!numbered)
        c->stem = strlen(c->old->name);
    if (numbered || c->head ||
        (c->plain && c->old->file && (has_twins(old, c) || has_twins(new, c)))) {
        if (find_in_family(old, new, address, c))
            return true;
        if (c->why != gone) // it may have its name, and its number
            return false;
    }
    find_by_name(old, new, address, c);
    c->why = c->count == 0 ? gone : c->count > 1 ? "has several of its name in this build" : lost;
    return c->count == 1 && !c->lost;
}

// A linker may have given one address to functions of equal code. Which one was meant is not known.
static bool agrees(const struct pm_places *then, const struct pm_places *new,
                   const struct candidates *c, uint64_t address) {
    uint64_t start = address - c->old->into;
    for (uint32_t i = pm_place_first_at(then, start); i && i <= then->symbols; i++) {
        const struct pm_place_symbol *s = &then->symbol[i];
        struct pm_place_of alias = *c->old;
        struct candidates other = {.old = &alias, .code = c->code, .numbers = c->numbers};
        if (s->at != start)
            break;
        if (s->code != c->code || strcmp(s->name, c->old->name) == 0)
            continue;
        alias.name = s->name;
        alias.file = s->file;
        alias.size = s->size;
        if (find(then, new, address, &other) && other.at != c->at)
            return false;
    }
    return true;
}

static const char parted[] = "has another name, too, and these are different things in this build";

static enum pm_match match_variable(const struct pm_places *then, const struct pm_places *new,
                                    const struct pm_place_of *old, uint64_t address,
                                    struct pm_match_by by, struct pm_matched *found, char *why) {
    struct candidates c = {.old = old, .numbers = by.numbers};
    bool found_it = find(then, new, address, &c);
    if (!found_it || !agrees(then, new, &c, address)) {
        snprintf(why, PM_MATCH_WHY, "%.100s %s", old->name, found_it ? parted : c.why);
        return PM_MATCH_UNSURE;
    }
    // Of a class with more virtual functions than before, the first ones are where they were.
    bool first = is_vtable(old->name) && old->into == VTABLE_START && c.size > VTABLE_START;
    // And a constant that has become longer, as a struct of functions does, begins where it began.
    bool longer = old->into == 0 && c.size > old->size && pm_place_is_constant(then, address) &&
                  pm_place_is_constant(new, c.at);
    if (c.size != old->size && !first && !longer) {
        snprintf(why, PM_MATCH_WHY, "%.100s has %lu bytes in this build, it had %lu", old->name,
                 (unsigned long)c.size, (unsigned long)old->size);
        return PM_MATCH_UNSURE;
    }
    found->at = c.at + old->into;
    return PM_MATCH_FOUND;
}

static enum pm_match match_function(const struct pm_places *then, const struct pm_places *new,
                                    const struct pm_place_of *old, uint64_t address,
                                    struct pm_match_by by, struct pm_matched *found, char *why) {
    struct candidates c = {.old = old, .code = true, .numbers = by.numbers};
    if (!old->name)
        snprintf(why, PM_MATCH_WHY, "a function without a name (stripped)");
    else if (!find(then, new, address, &c))
        snprintf(why, PM_MATCH_WHY, "%.100s() %s", old->name, c.why);
    else if (!agrees(then, new, &c, address))
        snprintf(why, PM_MATCH_WHY, "%.100s() %s", old->name, parted);
    else {
        found->at = c.at;
        return PM_MATCH_FOUND;
    }
    return PM_MATCH_UNSURE;
}

static enum pm_match match_literal(const struct pm_places *new, const struct pm_place_of *old,
                                   struct pm_matched *found, char *why) {
    found->at = pm_place_of_literal(new, old->text, old->size);
    if (found->at)
        return PM_MATCH_FOUND;
    found->text = old->text;
    found->size = old->size;
    snprintf(why, PM_MATCH_WHY, "the string \"%.60s\" is gone in this build", old->text);
    return PM_MATCH_COPY;
}

// ---- classes ------------------------------------------------------------------------------------

// The same table of the same class, by its type_info: also where symbols were stripped. Of a table
// of a base class the number of functions must be the same, too.
static bool is_same_class(const struct pm_places *old, const struct pm_class_table *a,
                          const struct pm_places *new, const struct pm_class_table *b) {
    const char *name = pm_class_table_name(&old->elf, a);
    const char *other = pm_class_table_name(&new->elf, b);
    return a->top == b->top && a->has_type == b->has_type &&
           (a->top == 0 || a->count == b->count) && name && other && strcmp(name, other) == 0;
}

// Numbers of compilers are in the names of types, too: those tell nothing.
static bool is_numbered(const char *type) {
    char symbol[1024] = "_ZTI";
    if (!type || strlen(type) >= sizeof symbol - 4)
        return true;
    memcpy(symbol + 4, type, strlen(type) + 1);
    return pm_numbered_head(symbol) != 0;
}

static bool match_class(const struct pm_places *old, const struct pm_places *new, uint64_t address,
                        struct pm_matched *found) {
    const struct pm_class_table *then = pm_class_table_at(&old->classes, address);
    if (!then || is_numbered(pm_class_table_name(&old->elf, then)))
        return false;
    for (size_t i = 0; i < new->classes.count; i++)
        if (is_same_class(old, then, new, &new->classes.list[i])) {
            found->at = pm_class_table_address(&new->classes.list[i]);
            return true;
        }
    return false;
}

static bool is_exact(const struct pm_place_of *p) {
    return p->name && (p->kind == PM_PLACE_FUNCTION ||
                       (p->kind == PM_PLACE_VARIABLE &&
                        (p->into == 0 || (is_vtable(p->name) && p->into == VTABLE_START))));
}

static enum pm_match match_data(const struct pm_places *old, const struct pm_places *new,
                                const struct pm_place_of *place, uint64_t address,
                                struct pm_match_by by, struct pm_matched *found, char *why) {
    bool named = place->kind == PM_PLACE_VARIABLE && place->into < place->size;
    if (!named && match_class(old, new, address, found))
        return PM_MATCH_FOUND;
    if (place->kind == PM_PLACE_DATA) {
        snprintf(why, PM_MATCH_WHY, "data without a name at %#lx", (unsigned long)address);
        return PM_MATCH_UNSURE;
    }
    if (match_variable(old, new, place, address, by, found, why) == PM_MATCH_FOUND ||
        (named && match_class(old, new, address, found)))
        return PM_MATCH_FOUND;
    return PM_MATCH_UNSURE;
}

enum pm_match pm_match(const struct pm_places *old, const struct pm_places *new, uint64_t address,
                       struct pm_match_by by, struct pm_matched *found, char why[PM_MATCH_WHY]) {
    struct pm_place_of place;
    pm_place_at(old, address, &place);
    if (by.exact && !is_exact(&place))
        return PM_MATCH_NONE;
    switch (place.kind) {
    case PM_PLACE_FUNCTION:
        return match_function(old, new, &place, address, by, found, why);
    case PM_PLACE_VARIABLE:
    case PM_PLACE_DATA:
        return match_data(old, new, &place, address, by, found, why);
    case PM_PLACE_STRING:
        return match_literal(new, &place, found, why);
    case PM_PLACE_CODE:
        snprintf(why, PM_MATCH_WHY, "the middle of %.100s%s", place.name ? place.name : "code",
                 place.name ? "()" : " without a name");
        return PM_MATCH_UNSURE;
    default:
        return PM_MATCH_NONE;
    }
}
