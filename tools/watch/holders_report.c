// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "holders_report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "halted.h"
#include "media/heap.h"
#include "recovery/offline.h"
#include "recovery/recover.h"
#include "roots/root_table.h"
#include "roots/spec.h"
#include "tools/common/figures.h"
#include "tools/common/holders.h"
#include "tools/common/info_print.h"
#include "tools/common/json.h"
#include "tools/common/progress.h"
#include "tools/common/variables.h"

struct report {
    const char *heap;
    pid_t pid; // 0: a heap at rest
    uint64_t held_ns;
    bool json;
    uint32_t most;
    struct holders *holders;
    struct module *module;
    unsigned modules;
    bool read; // the heap, while the process stood still
};

static int no_memory(struct pm_error *err) {
    return pm_fail(err, PM_OPERATIONAL, "no memory for the graph of the heap");
}

// ---- names --------------------------------------------------------------------------------------

#define SLOTS UINT32_MAX // the source of the root slots

// Of a heap at rest: the root that the word is in. NULL: it is a slot.
static const struct pm_root *root_of(const struct holders_word *w) {
    struct pm_error ignored;
    const struct pm_root_table *table = pm_roots_table(&ignored);
    return table && w->source < table->count ? &table->root[w->source] : NULL;
}

// The file whose variable it is. NULL: that is not known.
static struct module *module_of(const struct report *r, const struct holders_word *w) {
    if (w->source == SLOTS)
        return NULL;
    if (r->pid)
        return &r->module[w->source];
    const struct pm_root *root = root_of(w);
    return root && !root->object[0] && r->modules ? &r->module[0] : NULL;
}

static void root_word_text(const struct holders_word *w, char *out, size_t len) {
    const struct pm_root *root = root_of(w);
    char text[PM_SPEC_TEXT_LEN] = "?";
    uint64_t into = root ? w->address - root->address : 0;
    if (root)
        pm_root_text(root, text, sizeof text);
    if (root && root->length == sizeof(void *))
        snprintf(out, len, "%s", text);
    else
        snprintf(out, len, "%s, byte %lu%s", text, (unsigned long)into,
                 root && root->part ? " of a later part" : "");
}

// By the file, if that is there; else by the root.
static void word_text(const struct report *r, const struct holders_word *w, char *out, size_t len) {
    struct module *m = module_of(r, w);
    if (w->source == SLOTS)
        snprintf(out, len, "slot %lu", (unsigned long)(w->address / 8));
    else if (m)
        module_range_text(m, w->address, w->length, out, len);
    else
        root_word_text(w, out, len);
}

// What it is called in the program's source; "": that is not known.
static void member_text(const struct report *r, const struct holders_word *w, char *out) {
    struct module *m = module_of(r, w);
    if (!m || !module_member_text(m, w->address, w->length, out))
        *out = '\0';
}

// ---- output -------------------------------------------------------------------------------------

enum { EQUALS_SHOWN = 3 };

// Words that lead to the same block.
static void print_equals(const struct report *r, const struct holders_found *f, uint32_t node) {
    char text[PM_SPEC_TEXT_LEN + 64];
    unsigned count = 0;
    for (uint32_t i = f->rows; i < f->all; i++) {
        if (f->word[i].equal != node || count++ >= EQUALS_SHOWN)
            continue;
        word_text(r, &f->word[i], text, sizeof text);
        printf("%s %s", count == 1 ? "; also" : ",", text);
    }
    if (count > EQUALS_SHOWN)
        printf(" and %u more", count - EQUALS_SHOWN);
}

static void print_row(const struct report *r, const struct holders_found *f,
                      const struct holders_word *w) {
    char near[32], alone[32], reaches[32], text[PM_SPEC_TEXT_LEN + 64], member[MEMBER_NAME];
    figure_bytes(w->nearest.bytes, near);
    figure_bytes(w->alone.bytes, alone);
    figure_bytes(w->reaches.bytes, reaches);
    word_text(r, w, text, sizeof text);
    member_text(r, w, member);
    printf("%10s %10s %10s  %s", near, alone, reaches, text);
    if (*member && strcmp(member, text) != 0)
        printf("  %s", member);
    if (w->words > 1)
        printf(" (%u words)", w->words);
    print_equals(r, f, w->node);
    puts("");
}

static void print_text(const struct report *r, const struct holders_found *f) {
    char bytes[32];
    printf("%u words of variables lead to %lu blocks, %s\n", f->words, (unsigned long)f->sum.blocks,
           figure_bytes(f->sum.bytes, bytes));
    if (r->pid)
        printf("process %d was stopped for %.1f ms\n", (int)r->pid, (double)r->held_ns / 1e6);
    if (f->shown)
        printf("\n%10s %10s %10s  %s\n", "nearest", "alone", "reaches", "word");
    for (uint32_t i = 0; i < f->shown; i++)
        print_row(r, f, &f->word[i]);
}

static void sum_json(struct json *j, const char *key, const struct holders_sum *sum) {
    json_open(j, key, '{');
    json_number(j, "blocks", sum->blocks);
    json_number(j, "bytes", sum->bytes);
    json_close(j, '}');
}

static void row_json(struct json *j, const struct report *r, const struct holders_found *f,
                     const struct holders_word *w) {
    char text[PM_SPEC_TEXT_LEN + 64], member[MEMBER_NAME];
    word_text(r, w, text, sizeof text);
    member_text(r, w, member);
    json_open(j, NULL, '{');
    json_text(j, "root", text);
    if (*member)
        json_text(j, "member", member);
    json_number(j, "address", w->address);
    json_number(j, "words", w->words);
    sum_json(j, "nearest", &w->nearest);
    sum_json(j, "alone", &w->alone);
    sum_json(j, "reaches", &w->reaches);
    json_open(j, "also", '[');
    for (uint32_t i = f->rows; i < f->all; i++)
        if (f->word[i].equal == w->node) {
            word_text(r, &f->word[i], text, sizeof text);
            json_text(j, NULL, text);
        }
    json_close(j, ']');
    json_close(j, '}');
}

static void print_json(const struct report *r, const struct holders_found *f) {
    struct json j = {.out = stdout};
    json_open(&j, NULL, '{');
    json_text(&j, "heap", r->heap);
    if (r->pid) {
        json_number(&j, "process", (uint64_t)r->pid);
        json_number(&j, "held_ns", r->held_ns);
    }
    json_number(&j, "words", f->words);
    sum_json(&j, "reached", &f->sum);
    json_open(&j, "holders", '[');
    for (uint32_t i = 0; i < f->shown; i++)
        row_json(&j, r, f, &f->word[i]);
    json_close(&j, ']');
    json_close(&j, '}');
    json_end(&j);
}

static int say(const struct report *r, const struct pm_error *err) {
    pm_say("%s", err->text);
    if (r->json)
        info_error(r->heap, err);
    return err->status;
}

static int print(const struct report *r) {
    struct holders_found found;
    struct pm_error err;
    if (!holders_find(r->holders, r->most, &found)) {
        no_memory(&err);
        return say(r, &err);
    }
    (r->json ? print_json : print_text)(r, &found);
    return PM_OK;
}

// ---- a process ----------------------------------------------------------------------------------

// How much of [at, at + len) can be read in one piece from `at` on.
static uint64_t read_piece(pid_t pid, char *to, uint64_t at, uint64_t len) {
    struct iovec here = {to, len}, there = {(void *)(uintptr_t)at, len};
    ssize_t got = process_vm_readv(pid, &here, 1, &there, 1, 0);
    return got > 0 ? (uint64_t)got : 0;
}

// The environment is no data, but its array may have an old pointer behind its end. Words that lead
// to it are not looked at.
static void forget_environment(const struct report *r, char *bytes, uint64_t len, uint64_t from) {
    for (uint32_t i = 0; i < r->modules; i++) {
        uint64_t array, at = r->module[i].environment;
        if (!at || read_piece(r->pid, (char *)&array, at, sizeof array) != sizeof array || !array)
            continue;
        for (uint64_t k = -from & 7; k + sizeof array <= len; k += sizeof array)
            if (memcmp(bytes + k, &array, sizeof array) == 0)
                memset(bytes + k, 0, sizeof array);
    }
}

// A page that cannot be read is no longer there, or the program keeps it from itself, too.
static bool add_range(struct report *r, uint32_t module, uint64_t from, uint64_t to) {
    char *bytes = malloc(to - from);
    bool good = bytes;
    while (good && from < to) {
        uint64_t got = read_piece(r->pid, bytes, from, to - from);
        forget_environment(r, bytes, got, from);
        good = holders_add(r->holders, bytes, got, from, module);
        from = (from + got) / PM_PAGE_SIZE * PM_PAGE_SIZE + PM_PAGE_SIZE;
    }
    free(bytes);
    return good;
}

static bool add_slots(struct report *r) {
    uint64_t slot[PM_ROOT_SLOTS];
    for (unsigned i = 0; i < PM_ROOT_SLOTS; i++)
        slot[i] = pm_heap_slot(i);
    return holders_add(r->holders, slot, sizeof slot, 0, SLOTS);
}

static int read_process(struct halted *h, void *arg, struct pm_error *err) {
    struct report *r = arg;
    const struct pm_recover_options how = {.check = true};
    struct pm_recovery found;
    int status = pm_offline_open(h->heap, PM_OPEN_HALTED, err);
    if (status == PM_OK)
        status = pm_recover(&how, &found, err);
    if (status != PM_OK)
        return status;
    r->holders = holders_begin(err);
    if (!r->holders)
        return err->status;
    for (uint32_t i = 0; i < r->modules; i++)
        for (unsigned k = 0; k < r->module[i].ranges; k++)
            if (!add_range(r, i, r->module[i].range[k].from, r->module[i].range[k].to))
                return no_memory(err);
    if (!add_slots(r))
        return no_memory(err);
    r->read = !halted_copy();
    return !r->read || holders_read(r->holders, progress_start()) ? PM_OK : no_memory(err);
}

int holders_of_process(pid_t pid, uint32_t most, bool json) {
    static struct halted halted;
    struct report r = {.heap = "", .pid = pid, .json = json, .most = most};
    struct pm_error err;
    r.modules = modules_of_process(pid, &r.module, &err);
    if (!r.modules)
        return say(&r, &err);
    int status = halted_look(&halted, pid, read_process, &r, &err);
    if (status == PM_OK && !r.read && !holders_read(r.holders, progress_start()))
        status = no_memory(&err);
    progress_end();
    r.heap = halted.heap;
    r.held_ns = halted.held_ns;
    return status == PM_OK ? print(&r) : say(&r, &err);
}

// ---- a heap at rest -----------------------------------------------------------------------------

struct roots {
    struct report *report;
    uint32_t number;
    bool full;
};

// All slots come at once, behind the roots of the table.
static void add_root(const struct pm_root_bytes *root, void *arg) {
    struct roots *r = arg;
    uint32_t source = root->address ? r->number++ : SLOTS;
    r->full |= !holders_add(r->report->holders, root->bytes, root->len, root->address, source);
}

int holders_of_heap(const char *heap, uint32_t most, bool json) {
    struct report r = {.heap = heap, .json = json, .most = most};
    struct module program;
    struct pm_program on_record;
    struct pm_error err;
    struct roots roots = {.report = &r};
    if (info_program(&on_record) && module_of_program(&program, &on_record)) {
        r.module = &program;
        r.modules = 1;
    }
    r.holders = holders_begin(&err);
    if (!r.holders || pm_roots_each(add_root, &roots, &err) != PM_OK)
        return say(&r, &err);
    if (roots.full || !holders_read(r.holders, progress_start()))
        no_memory(&err);
    else
        err.status = PM_OK;
    progress_end();
    return err.status == PM_OK ? print(&r) : say(&r, &err);
}
