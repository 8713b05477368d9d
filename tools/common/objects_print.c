// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "objects_print.h"

#include <errno.h>
#include <inttypes.h>
#include <unistd.h>

#include "figures.h"
#include "roots/elf_file.h"
#include "roots/objects_record.h"
#include "text.h"

// What lies at the path now.
enum now { SAME, ANOTHER, GONE, NOT_KNOWN };
static const char *const now_key[] = {"same", "another", "gone", "unknown"};

// The files that could not be looked at.
struct unread {
    unsigned files;
    struct pm_error first;
};

static enum now now_of(const struct pm_objects_entry *e, struct unread *u) {
    struct pm_elf f;
    struct pm_error err;
    if (*e->path != '/')
        return NOT_KNOWN;
    if (access(e->path, F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR))
        return GONE;
    if (!e->build_id_len)
        return NOT_KNOWN;
    if (pm_elf_open(&f, e->path, &err) != PM_OK) {
        if (u->files++ == 0)
            u->first = err;
        return NOT_KNOWN;
    }
    bool same = pm_record_is_build_of(e, &f);
    pm_elf_close(&f);
    return same ? SAME : ANOTHER;
}

// One line for all of them: another user's program has dozens of files.
static void tell_unread(const struct unread *u) {
    char more[64] = "";
    if (u->files > 1)
        snprintf(more, sizeof more, ", nor is that of %u others", u->files - 1);
    if (u->files)
        pm_say("note: %s, so whether it is still the build on record is not known%s", u->first.text,
               more);
}

static const struct pm_objects_entry *entries(unsigned *count) {
    *count = 0;
    return pm_record_was_read() || pm_record_read() ? pm_record_entries(count) : NULL;
}

static void print_changed(const struct pm_objects_entry *e, struct unread *u) {
    enum now now = now_of(e, u);
    if (now != ANOTHER && now != GONE)
        return;
    printf("           %s ", now == GONE ? "gone:" : "another build now:");
    text_print(e->path);
    putchar('\n');
}

void objects_text(void) {
    unsigned count;
    const struct pm_objects_entry *e = entries(&count);
    char number[32], bytes[32];
    struct unread unread = {0};
    uint64_t kept = 0;
    for (unsigned i = 0; i < count; i++)
        kept += e[i].bytes;
    if (!count)
        return;
    printf("objects    %s on record, which words of the heap may lead into: %s of names\n",
           figure_count(count, number), figure_bytes(kept, bytes));
    for (unsigned i = 0; i < count; i++)
        print_changed(&e[i], &unread);
    tell_unread(&unread);
}

static void put_address(struct json *j, const char *key, uint64_t address) {
    char text[32];
    snprintf(text, sizeof text, "%#" PRIx64, address);
    json_text(j, key, text);
}

void objects_json(struct json *j) {
    unsigned count;
    const struct pm_objects_entry *e = entries(&count);
    char id[2 * PM_BUILD_ID_MAX + 1];
    struct unread unread = {0};
    json_open(j, "objects", '[');
    for (unsigned i = 0; i < count; i++) {
        json_open(j, NULL, '{');
        json_text(j, "path", e[i].path);
        pm_elf_hex(id, e[i].build_id, e[i].build_id_len);
        bool summed = e[i].flags & PM_OBJECT_SUMMED;
        json_text(j, "build_id", summed ? "" : id);
        json_text(j, "checksum", summed ? id : "");
        put_address(j, "start", e[i].start);
        put_address(j, "end", e[i].end);
        json_number(j, "kept_bytes", e[i].bytes);
        json_bool(j, "program", e[i].flags & PM_OBJECT_IS_PROGRAM);
        json_text(j, "now", now_key[now_of(&e[i], &unread)]);
        json_close(j, '}');
    }
    json_close(j, ']');
    tell_unread(&unread);
}
