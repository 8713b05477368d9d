// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "out_report.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "halted.h"
#include "recovery/offline.h"
#include "tools/common/info_print.h"
#include "tools/common/json.h"
#include "tools/common/out_words.h"
#include "tools/common/program_maps.h"

static struct out_words out;

// ---- a heap at rest -----------------------------------------------------------------------------

static struct program_types *types_of(const char *heap) {
    static struct program_types types;
    struct pm_error ignored;
    return program_types_open(&types, heap, &ignored) == PM_OK ? &types : NULL;
}

static int no_memory(struct pm_error *err) {
    return pm_fail(err, PM_OPERATIONAL, "no memory for what leads out of the heap");
}

static int say(const char *heap, const struct pm_error *err, bool json) {
    pm_say("%s", err->text);
    if (json)
        info_error(heap, err);
    return err->status;
}

static void print(const char *heap, pid_t pid, uint64_t held_ns, bool json) {
    struct json j = {.out = stdout};
    if (!json) {
        out_words_text(&out);
        return;
    }
    json_open(&j, NULL, '{');
    json_text(&j, "heap", heap);
    if (pid) {
        json_number(&j, "process", (uint64_t)pid);
        json_number(&j, "held_ns", held_ns);
    }
    out_words_json(&out, &j);
    json_close(&j, '}');
    json_end(&j);
}

int out_of_heap(const char *heap, bool json) {
    struct pm_error err;
    if (!out_places_on_record(&out) || !out_words_find(&out, types_of(heap))) {
        no_memory(&err);
        return say(heap, &err, json);
    }
    print(heap, 0, 0, json);
    return PM_OK;
}

// ---- the memory of a process --------------------------------------------------------------------

struct looking {
    const struct halt *halt;
    pid_t pid;
    bool failed;
    // The module that ends here, whose variables may go on in anonymous memory.
    uint64_t module_end;
    char module[OUT_NAME];
};

static bool is_heaps(const struct program_map *m) {
    return m->start >= PM_HEAP_BASE && m->start < PM_HEAP_BASE + PM_SHARDS * PM_SHARD_RANGE;
}

static void add(struct looking *l, uint64_t from, uint64_t to, enum out_kind kind,
                const char *name) {
    l->failed |= !out_add_place(&out, from, to, kind, name);
}

// A thread's stack is the mapping that its stack pointer is in, but for the heap.
static const struct tracee *thread_in(const struct looking *l, const struct program_map *m) {
    for (size_t i = 0; i < l->halt->count; i++)
        if (l->halt->thread[i].regs.rsp - m->start < m->end - m->start)
            return &l->halt->thread[i];
    return NULL;
}

// Several mappings of a file in a row are one module, if one of them has code.
static void note_modules(const struct program_map *m, void *arg) {
    struct looking *l = arg;
    if (m->executable && m->inode)
        add(l, m->start, m->end, OUT_MODULE, m->name);
}

static bool is_module(const struct program_map *m, const char **name) {
    for (uint32_t i = 0; i < out.places; i++)
        if (out.place[i].kind == OUT_MODULE && m->inode &&
            strcmp(out.place[i].name, m->name) == 0) {
            *name = out.place[i].name;
            return true;
        }
    return false;
}

static void take(const struct program_map *m, void *arg) {
    struct looking *l = arg;
    const char *module;
    char name[OUT_NAME];
    if (is_heaps(m) || m->executable)
        return;
    const struct tracee *thread = thread_in(l, m);
    bool in_row = m->start == l->module_end && !m->inode && !*m->name;
    if (is_module(m, &module) || in_row) {
        if (!in_row)
            snprintf(l->module, sizeof l->module, "%s", m->name);
        add(l, m->start, m->end, OUT_MODULE, l->module);
        l->module_end = m->inode ? m->end : 0;
    } else if (strcmp(m->name, "[stack]") == 0) {
        add(l, m->start, m->end, OUT_STACK, "a stack of the first thread");
    } else if (thread) {
        snprintf(name, sizeof name, "a stack of thread %d, or its thread-local memory",
                 (int)thread->id);
        add(l, m->start, m->end, OUT_STACK, name);
    } else if (m->inode || m->name[0] == '/') {
        snprintf(name, sizeof name, "a mapping of %.200s", m->name);
        add(l, m->start, m->end, OUT_FILE, name);
    } else {
        snprintf(name, sizeof name, "anonymous memory%s%.40s", *m->name ? " " : "", m->name);
        add(l, m->start, m->end, OUT_ANONYMOUS, name);
    }
}

#define TLS_BYTES 4096u // on both sides of the thread's pointer, about

// The first thread has it in a place of its own, the others at the top of their stacks.
static void take_first_thread(struct looking *l) {
    for (size_t i = 0; i < l->halt->count; i++) {
        const struct tracee *t = &l->halt->thread[i];
        if (t->id == l->pid && !t->dead && t->regs.fs_base > TLS_BYTES)
            add(l, t->regs.fs_base - TLS_BYTES, t->regs.fs_base + TLS_BYTES, OUT_TLS,
                "thread-local memory of the first thread");
    }
}

// ---- while it stands still ----------------------------------------------------------------------

static int look(struct halted *h, void *arg, struct pm_error *err) {
    struct looking *l = arg;
    struct pm_recover_options how = {0};
    struct pm_recovery found;
    l->halt = &h->halt;
    l->pid = h->pid;
    take_first_thread(l);
    if (!program_maps_each(l->pid, note_modules, l) || !program_maps_each(l->pid, take, l))
        return pm_fail(err, PM_OPERATIONAL, "process %d cannot be looked at: %s", (int)l->pid,
                       pm_strerror(errno));
    add(l, 0, 0, OUT_UNMAPPED, "addresses where nothing is mapped");
    if (l->failed)
        return no_memory(err);
    int status = pm_offline_open(h->heap, PM_OPEN_HALTED, err);
    if (status == PM_OK)
        status = pm_recover(&how, &found, err);
    if (status == PM_OK && !out_words_find(&out, types_of(h->heap)))
        status = no_memory(err);
    return status;
}

int out_of_process(pid_t pid, bool json) {
    static struct halted h;
    static struct looking l;
    struct pm_error err;
    if (halted_look(&h, pid, look, &l, &err) != PM_OK)
        return say(h.heap, &err, json);
    print(h.heap, pid, h.held_ns, json);
    return PM_OK;
}
