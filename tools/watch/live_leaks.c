// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "live_leaks.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"
#include "door.h"
#include "remote_leaks.h"
#include "tools/common/heap_leaks.h"
#include "tools/common/json.h"
#include "tools/common/program_maps.h"
#include "tools/common/program_status.h"
#include "trace_rights.h"

pid_t live_leaks_process(const char *operand) {
    struct stat st;
    if (strlen(operand) > 7 || strspn(operand, "0123456789") != strlen(operand) ||
        stat(operand, &st) == 0)
        return 0;
    return (pid_t)atoi(operand);
}

// ---- whether it can be asked --------------------------------------------------------------------

static int check(pid_t pid, struct pm_error *err) {
    char state = pm_os_state(pid);
    if (!state && kill(pid, 0) != 0 && errno == ESRCH)
        return pm_fail(err, PM_OPERATIONAL, "there is no process %d", (int)pid);
    if (!state)
        return pm_fail(err, PM_OPERATIONAL,
                       "process %d belongs to another user, and /proc does not show it; run "
                       "%s as root",
                       (int)pid, pm_message_prefix);
    if (strchr("ZX", state))
        return pm_fail(err, PM_OPERATIONAL, "process %d has ended", (int)pid);
    if (!trace_allowed(pid, err))
        return err->status;
    if (state == 'T')
        return pm_fail(err, PM_OPERATIONAL,
                       "process %d is stopped; let it go on first (kill -CONT %d)", (int)pid,
                       (int)pid);
    if (program_is_filtered(pid))
        return pm_fail(err, PM_OPERATIONAL,
                       "process %d has a seccomp filter, which may end it for what %s makes it "
                       "do; start it with PMALLOC_LEAKS=1 for a report at its end",
                       (int)pid, pm_message_prefix);
    return PM_OK;
}

// ---- output -------------------------------------------------------------------------------------

struct place {
    uint64_t at, base; // an address, and where its object begins
    char name[4096];
};

static void find_place(const struct program_map *m, void *arg) {
    struct place *p = arg;
    static uint64_t base;
    static char name[sizeof p->name];
    if (strcmp(name, m->name) != 0) {
        base = m->start - m->offset;
        snprintf(name, sizeof name, "%s", m->name);
    }
    if (p->at < m->start || p->at >= m->end)
        return;
    p->base = base;
    snprintf(p->name, sizeof p->name, "%s", m->name);
}

static struct place place_of(pid_t pid, const void *frame) {
    struct place p = {.at = (uintptr_t)frame};
    program_maps_each(pid, find_place, &p);
    return p;
}

static void print_site(pid_t pid, const struct pm_leak_site *site) {
    printf("%lu bytes in %lu blocks, one at %p, allocated by%s\n", (unsigned long)site->row.bytes,
           (unsigned long)site->row.blocks, site->row.example,
           site->frame[0] ? ":" : " what is not on record");
    for (unsigned i = 0; i < PM_LEAK_FRAMES && site->frame[i]; i++) {
        struct place p = place_of(pid, site->frame[i]);
        printf("    #%u %s+0x%lx\n", i, p.name, (unsigned long)(p.at - p.base));
    }
}

static void print_text(pid_t pid, const struct pm_leaks_asked *a) {
    printf("nothing reaches %lu of %lu blocks, %lu of %lu bytes of process %d\n",
           (unsigned long)a->leaks.sum.blocks, (unsigned long)a->in_use.blocks,
           (unsigned long)a->leaks.sum.bytes, (unsigned long)a->in_use.bytes, (int)pid);
    if (a->leaks.sum.blocks)
        pm_leaks_lines(&a->leaks, heap_leaks_line);
    for (unsigned i = 0; a->with_stacks && i < PM_LEAK_SITES && a->site[i].row.blocks; i++)
        print_site(pid, &a->site[i]);
    if (a->other_bytes)
        printf("%lu bytes more, allocated in other places\n", (unsigned long)a->other_bytes);
}

static void site_json(struct json *j, pid_t pid, const struct pm_leak_site *site) {
    json_open(j, NULL, '{');
    json_number(j, "blocks", site->row.blocks);
    json_number(j, "bytes", site->row.bytes);
    json_number(j, "example", (uintptr_t)site->row.example);
    json_open(j, "calls", '[');
    for (unsigned i = 0; i < PM_LEAK_FRAMES && site->frame[i]; i++) {
        struct place p = place_of(pid, site->frame[i]);
        json_open(j, NULL, '{');
        json_text(j, "object", p.name);
        json_number(j, "offset", p.at - p.base);
        json_close(j, '}');
    }
    json_close(j, ']');
    json_close(j, '}');
}

static void print_json(pid_t pid, const struct remote_leaks *r) {
    const struct pm_leaks_asked *a = &r->found;
    struct json j = {.out = stdout};
    json_open(&j, NULL, '{');
    json_number(&j, "process", (uint64_t)pid);
    json_bool(&j, "heap", a->answer == PM_LEAKS_FOUND);
    json_number(&j, "held_ns", r->held_ns);
    json_bool(&j, "beside", a->beside);
    json_number(&j, "blocks", a->leaks.sum.blocks);
    json_number(&j, "bytes", a->leaks.sum.bytes);
    json_number(&j, "in_use_blocks", a->in_use.blocks);
    json_number(&j, "in_use_bytes", a->in_use.bytes);
    heap_leaks_sizes(&j, &a->leaks);
    if (a->with_stacks) {
        json_open(&j, "sites", '[');
        for (unsigned i = 0; i < PM_LEAK_SITES && a->site[i].row.blocks; i++)
            site_json(&j, pid, &a->site[i]);
        json_close(&j, ']');
        json_number(&j, "other_bytes", a->other_bytes);
    }
    json_close(&j, '}');
    json_end(&j);
}

static int say(pid_t pid, const struct pm_error *err, bool json) {
    struct json j = {.out = stdout};
    pm_say("%s", err->text);
    if (json) {
        json_open(&j, NULL, '{');
        json_number(&j, "process", (uint64_t)pid);
        json_text(&j, "error", err->text);
        json_close(&j, '}');
        json_end(&j);
    }
    return err->status;
}

int live_leaks(pid_t pid, bool json) {
    static struct remote_leaks r;
    struct pm_leaks_door door;
    int status = check(pid, &r.err);
    if (status == PM_OK)
        status = door_find(pid, &door, &r.err);
    if (status != PM_OK)
        return say(pid, &r.err, json);
    r.found.answer = PM_LEAKS_NO_HEAP;
    if (door.locks) // stored when the heap is opened
        remote_leaks(pid, &door, &r);
    if (r.found.answer == PM_LEAKS_AT_END)
        pm_fail(&r.err, PM_OPERATIONAL, "process %d is at its end", (int)pid);
    if (r.found.answer == PM_LEAKS_AT_END || r.found.answer == PM_LEAKS_FAILED)
        return say(pid, &r.err, json);
    if (json)
        print_json(pid, &r);
    else if (r.found.answer == PM_LEAKS_NO_HEAP)
        printf("process %d has no heap yet, because it has asked for little memory; its few "
               "blocks are not counted\n",
               (int)pid);
    else
        print_text(pid, &r.found);
    return PM_OK;
}
