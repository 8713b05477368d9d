// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"
#include "media/heap.h"
#include "out_words.h"

enum { SHOWN = 8, HOLDERS_MOST = 2048 }; // holders of each place

static struct out_words *sorted;

static int by_words(const void *a, const void *b) {
    const struct out_holder *x = *(struct out_holder *const *)a;
    const struct out_holder *y = *(struct out_holder *const *)b;
    uint64_t p = sorted->place[x->place].words, q = sorted->place[y->place].words;
    return p != q                     ? (p < q) - (p > q)
           : x->place != y->place     ? (x->place > y->place) - (x->place < y->place)
           : x->words != y->words     ? (x->words < y->words) - (x->words > y->words)
           : x->in_root != y->in_root ? y->in_root - x->in_root
           : x->size != y->size       ? (x->size > y->size) - (x->size < y->size)
                                      : (x->at > y->at) - (x->at < y->at);
}

// All holders, those of a place in a row.
static uint32_t sort(struct out_words *o, struct out_holder **row) {
    uint32_t count = 0;
    for (uint32_t i = 0; count < o->holders; i++)
        if (o->holder[i].used)
            row[count++] = &o->holder[i];
    sorted = o;
    qsort(row, count, sizeof *row, by_words);
    return count;
}

static bool is_wanted(const struct out_words *o, const struct out_holder *h, bool modules) {
    return (o->place[h->place].kind == OUT_MODULE) == modules;
}

static void print_holder(const struct out_holder *h) {
    char where[64];
    if (h->in_root)
        snprintf(where, sizeof where, "a root");
    else
        snprintf(where, sizeof where, "%lu bytes at %#lx, +%lu", (unsigned long)h->size,
                 (unsigned long)(pm_base + h->block), (unsigned long)h->at);
    printf("%12lu  %s%s%s%s\n", (unsigned long)h->words, h->path, *h->path ? " (" : "", where,
           *h->path ? ")" : "");
}

static void print_places(struct out_words *o, struct out_holder **row, uint32_t count,
                         bool modules) {
    uint32_t shown = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct out_place *p = &o->place[row[i]->place];
        bool first = i == 0 || row[i - 1]->place != row[i]->place;
        bool last = i + 1 == count || row[i + 1]->place != row[i]->place;
        if (!is_wanted(o, row[i], modules))
            continue;
        shown = first ? 1 : shown + 1;
        if (first && p->to)
            printf("%lu into %s (%#lx-%#lx)\n", (unsigned long)p->words, p->name,
                   (unsigned long)p->from, (unsigned long)p->to);
        else if (first)
            printf("%lu into %s\n", (unsigned long)p->words, p->name);
        if (shown <= SHOWN)
            print_holder(row[i]);
        else if (last)
            printf("%12s  and %u more holders\n", "", shown - SHOWN);
    }
}

void out_words_text(struct out_words *o) {
    static struct out_holder *row[HOLDERS_MOST];
    uint32_t count = sort(o, row);
    printf("%lu word%s lead%s out of the heap, into what will not be there\n",
           (unsigned long)o->words, o->words == 1 ? "" : "s", o->words == 1 ? "s" : "");
    print_places(o, row, count, false);
    if (o->module_words)
        printf("%lu into the program and its libraries, good as long as these lie where they lay\n",
               (unsigned long)o->module_words);
    print_places(o, row, count, true);
    if (o->too_many)
        puts("there are more holders than are told apart here; the numbers of words are right");
}

static void holder_json(struct json *j, const struct out_holder *h) {
    json_open(j, NULL, '{');
    json_text(j, "path", h->path);
    json_bool(j, "root", h->in_root);
    if (!h->in_root) {
        json_number(j, "size", h->size);
        json_number(j, "example", pm_base + h->block);
    }
    json_number(j, "at", h->at);
    json_number(j, "words", h->words);
    json_close(j, '}');
}

void out_words_json(struct out_words *o, struct json *j) {
    static struct out_holder *row[HOLDERS_MOST];
    uint32_t count = sort(o, row);
    json_number(j, "words", o->words);
    json_number(j, "module_words", o->module_words);
    json_bool(j, "all_holders", !o->too_many);
    json_open(j, "places", '[');
    for (uint32_t i = 0; i < count;) {
        uint32_t place = row[i]->place;
        const struct out_place *p = &o->place[place];
        json_open(j, NULL, '{');
        json_text(j, "kind", out_kind_name[p->kind]);
        json_text(j, "name", p->name);
        json_number(j, "from", p->from);
        json_number(j, "to", p->to);
        json_number(j, "words", p->words);
        json_open(j, "holders", '[');
        for (; i < count && row[i]->place == place; i++)
            holder_json(j, row[i]);
        json_close(j, ']');
        json_close(j, '}');
    }
    json_close(j, ']');
}
