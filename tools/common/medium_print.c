// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include <stdio.h>
#include <string.h>

#include "json.h"
#include "medium.h"

static bool granted(enum pm_durability durability) {
    return durability == PM_DURABLE_LINE || durability == PM_DURABLE_CACHE;
}

static void print_regions(const struct medium *m) {
    if (!m->regions)
        puts("domain       the kernel knows no persistent memory (/sys/bus/nd/devices)");
    for (unsigned i = 0; i < m->regions; i++) {
        const struct medium_region *r = &m->region[i];
        printf("domain       region%u: %s%s\n", r->number, *r->domain ? r->domain : "not told",
               !r->behind  ? ""
               : m->device ? ", this device's"
                           : ", this file system's");
    }
    if (m->durability == PM_DURABLE_LINE && m->regions)
        puts("             caches count as safe only where every region says cpu_cache");
}

static const char *what_it_is(const struct medium *m) {
    const char *fixed = m->device ? "a device" : "a file";
    return m->heap ? "a heap" : m->fixed ? fixed : "a directory";
}

static const char *answer(const struct medium *m, enum pm_durability durability) {
    return m->device ? "a device needs none" : granted(durability) ? "granted" : "refused";
}

void medium_text(const struct medium *m) {
    printf("path         %s (%s)\n", m->path, what_it_is(m));
    printf("file system  %s", m->type);
    if (*m->source)
        printf(" on %s, mounted at %s", m->source, m->mounted);
    printf("\noptions      %s\n", *m->options ? m->options : "not known");
    for (unsigned i = 0; i < m->files; i++)
        printf("MAP_SYNC     %s: %s\n", m->file[i].name, answer(m, m->file[i].durability));
    if (m->on_region && !granted(m->durability))
        puts("             this is persistent memory: a mount with dax=always may grant it");
    print_regions(m);
    printf("kernel       %s\n", *m->kernel ? m->kernel : "not known");
    printf("flush        %s\n", pm_persist_flush_name(m->durability));
    printf("guarantee    %s\n", pm_persist_guarantee(m->durability));
}

static void put_regions(struct json *j, const struct medium *m) {
    json_open(j, "regions", '[');
    for (unsigned i = 0; i < m->regions; i++) {
        char name[32];
        snprintf(name, sizeof name, "region%u", m->region[i].number);
        json_open(j, NULL, '{');
        json_text(j, "region", name);
        json_text(j, "persistence_domain", m->region[i].domain);
        json_bool(j, "behind", m->region[i].behind);
        json_close(j, '}');
    }
    json_close(j, ']');
}

void medium_json(const struct medium *m) {
    static const char *const names[] = {"none", "cache", "line", "page"};
    struct json j = {.out = stdout};
    json_open(&j, NULL, '{');
    json_text(&j, "path", m->path);
    json_bool(&j, "heap", m->heap);
    json_text(&j, "file_system", m->type);
    json_text(&j, "source", m->source);
    json_text(&j, "mounted", m->mounted);
    json_text(&j, "options", m->options);
    json_open(&j, "map_sync", '{');
    for (unsigned i = 0; i < m->files; i++)
        json_bool(&j, m->heap || m->fixed ? m->file[i].name : "temporary file",
                  granted(m->file[i].durability));
    json_close(&j, '}');
    put_regions(&j, m);
    json_text(&j, "kernel", m->kernel);
    json_text(&j, "flush", pm_persist_flush_name(m->durability));
    json_text(&j, "persist", names[m->durability]);
    json_text(&j, "guarantee", pm_persist_guarantee(m->durability));
    json_close(&j, '}');
    json_end(&j);
}
