// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "info_print.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "base/crc.h"
#include "commit_print.h"
#include "figures.h"
#include "instants_print.h"
#include "marking/forms.h"
#include "media/backing/own_limit.h"
#include "media/heap.h"
#include "media/open/spare.h"
#include "objects_print.h"
#include "pauses_print.h"
#include "rebased_print.h"
#include "recovered_print.h"
#include "recovery/kept.h"
#include "root_member.h"
#include "roots/elf_file.h"
#include "roots/root_table.h"
#include "text.h"

enum { BAR = 20, MAP_CELLS = 64, MAP_ROWS = 8, WIDE_ENOUGH = 80 };

// ---- identity -----------------------------------------------------------------------------------

void info_uuid(char out[40]) {
    const uint8_t *uuid = pm_heap.super->super.uuid;
    static const uint8_t groups[] = {4, 2, 2, 2, 6};
    for (size_t i = 0, from = 0; i < sizeof groups; from += groups[i++]) {
        if (i)
            *out++ = '-';
        out = pm_elf_hex(out, uuid + from, groups[i]);
    }
}

bool info_program(struct pm_program *out) {
    const struct pm_state *state = &pm_heap.super->state;
    *out = state->program;
    return state->program_crc == pm_crc32c(0, out, sizeof *out) && out->path[0] &&
           memchr(out->path, 0, sizeof out->path) && out->build_id_len <= sizeof out->build_id;
}

const char *info_addresses(const struct pm_program *program, bool line) {
    static const char *const text[][2] = {
        [PM_ADDRESSES_UNKNOWN] = {"unknown", ""},
        [PM_ADDRESSES_RANDOM] = {"random", "; not kept: randomisation was on"},
        [PM_ADDRESSES_FIXED] = {"fixed", "; kept: randomisation was off"},
        [PM_ADDRESSES_AGAIN] = {"again", "; kept: it was executed again without randomisation"},
    };
    size_t known = sizeof text / sizeof *text;
    return text[program->addresses < known ? program->addresses : PM_ADDRESSES_UNKNOWN][line];
}

void info_build_id(const struct pm_program *program, char out[72]) {
    pm_elf_hex(out, program->build_id, program->build_id_len);
}

static void print_instants(const struct info *info) {
    struct instants instants;
    char when[96];
    if (!instants_of_heap(info->heap, &instants))
        return;
    fputs("instants   ", stdout);
    instants_text(&instants, "\n           ");
    if (pm_pauses_count(&instants.pauses)) {
        fputs("\n           ", stdout);
        pauses_text(&instants.pauses, "\n           ");
    }
    printf("\n           counted until the commit of %s\n", commit_when(instants.time, when));
}

static void print_identity(const struct info *info) {
    const struct pm_superblock *super = &pm_heap.super->super;
    const struct pm_state *state = &pm_heap.super->state;
    char text[72];
    time_t created = (time_t)super->created;
    struct tm tm;
    printf("heap       %s\n", info->heap);
    info_uuid(text);
    printf("identity   %s, format version %u\n", text, super->version);
    if (localtime_r(&created, &tm) && strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S %z", &tm))
        printf("created    %s\n", text);
    printf("state      %s; opened %" PRIu64 " time%s",
           info->found.was_clean ? "clean" : "needs recovery", state->opens,
           state->opens == 1 ? "" : "s");
    printf(state->owner_pid ? ", last by process %" PRIu64 "\n" : "\n", state->owner_pid);
    if (pm_heap.copy)
        puts("copy       of a heap that was not clean: see `guarantee`; to take it as it is, run "
             "pmalloc-recover --copy");
    recovered_text();
    rebased_text();
    commit_text();
    print_instants(info);
    if (pm_kept_garbage())
        puts("           not collected since a start kept everything: some of it may be garbage");
    printf("guarantee  %s\n", commit_guarantee());
    if (pm_forms != PM_FORMS_DEFAULT)
        printf("pointers   %s\n", pm_forms_text(pm_forms));
    struct pm_program program;
    if (!info_program(&program)) {
        puts("program    none recorded");
        return;
    }
    info_build_id(&program, text);
    fputs("program    ", stdout);
    text_print(program.path);
    putchar('\n');
    if (*text)
        printf("           build id %s\n", text);
    printf("           loaded at %#" PRIx64 ", libc at %#" PRIx64 "%s\n", program.main_base,
           program.libc_base, info_addresses(&program, true));
}

// ---- totals -------------------------------------------------------------------------------------

// Returns a percentage. Anything less than 100 percent does not print as 100.0.
static double percent(uint64_t part, uint64_t whole) {
    double share = whole ? 100.0 * (double)part / (double)whole : 0;
    return part < whole && share > 99.9 ? 99.9 : share;
}

static void print_totals(const struct info *info) {
    const struct census *c = &info->census;
    const struct pm_recovery *f = &info->found;
    char a[32], b[32], d[32];
    printf("live       %s objects, %s\n", figure_count(f->live_objects, a),
           figure_bytes(f->live_bytes, b));
    printf("leaked     %s objects, %s%s\n", figure_count(f->leaked_objects, a),
           figure_bytes(f->leaked_bytes, b), f->leaks_exact ? "" : " (large ones only)");
    if (c->pointer_free)
        printf("kinds      %s of the live objects, %s, are pointer-free\n",
               figure_count(c->pointer_free, a), figure_bytes(c->pointer_free_bytes, b));
    if (c->pinned)
        printf("pinned     %s of the live objects, %s, are alive without a root\n",
               figure_count(c->pinned, a), figure_bytes(c->pinned_bytes, b));
    if (f->unfinished)
        printf("publishes  %u were cut short; the next opening finishes them\n", f->unfinished);
    printf("in use     %s of address space: slabs %s, large blocks %s",
           figure_bytes(c->frontier, a), figure_bytes(c->slab_bytes, b),
           figure_bytes(c->active_bytes - c->slab_bytes, d));
    printf(", free %s\n", figure_bytes(c->free_bytes, a));
    printf("log        %" PRIu64 " chunks, %" PRIu64 " active, %s live entries\n", c->log_chunks,
           c->log_active, figure_count(c->log_live, a));
    printf("metadata   %s", figure_bytes(c->files.metadata_bytes, a));
    if (f->live_bytes)
        printf(", %.2f%% of the live bytes", percent(c->files.metadata_bytes, f->live_bytes));
    if (c->files.data_bytes)
        printf("; live bytes are %.1f%% of the data on the file system",
               percent(f->live_bytes, c->files.data_bytes));
    putchar('\n');
    if (pm_own_limit())
        printf("limit      %s, or PMALLOC_LIMIT if that is larger\n",
               figure_bytes(pm_own_limit(), a));
    if (pm_spare_bytes())
        printf("spare      %s in reserve; `pmalloc-recover --spare 0` gives it up\n",
               figure_bytes(pm_spare_bytes(), a));
    puts("\nfile             length   allocated");
    for (unsigned i = 0; i < c->files.count; i++)
        if (c->files.file[i].length || c->files.file[i].allocated)
            printf("%-12s %10s  %10s\n", c->files.file[i].name,
                   figure_bytes(c->files.file[i].length, a),
                   figure_bytes(c->files.file[i].allocated, b));
}

// ---- tables -------------------------------------------------------------------------------------

static const char *bar(uint64_t part, uint64_t whole, char out[BAR + 1]) {
    uint64_t full = whole ? (part * BAR + whole / 2) / whole : 0;
    // An empty bar means exactly none, a full bar exactly all.
    if (part && !full)
        full = 1;
    if (part < whole && full == BAR)
        full = BAR - 1;
    for (unsigned i = 0; i < BAR; i++)
        out[i] = i < full ? '#' : '.';
    out[BAR] = '\0';
    return out;
}

static void print_classes(const struct census *c) {
    char picture[BAR + 1], live[32], blocks[32];
    if (!c->slabs)
        return;
    printf("\n%7s %8s %14s %14s  live\n", "bytes", "slabs", "blocks", "live");
    PM_EACH_CLASS(i) {
        const struct census_class *k = &c->cls[i];
        if (k->blocks)
            printf("%7u %8" PRIu64 " %14s %14s  %s %5.1f%%\n", pm_classes[i].size, k->slabs,
                   figure_count(k->blocks, blocks), figure_count(k->live, live),
                   bar(k->live, k->blocks, picture), percent(k->live, k->blocks));
    }
    if (c->morphing)
        printf("%" PRIu64 " slabs hold blocks of two sizes\n", c->morphing);
}

static void print_extents(const struct census *c) {
    char picture[BAR + 1], from[32], bytes[32];
    if (!c->extents)
        return;
    printf("\n%17s %8s %8s %12s  live\n", "large blocks from", "blocks", "live", "bytes");
    for (unsigned i = 0; i < CENSUS_BUCKETS; i++) {
        const struct census_bucket *k = &c->bucket[i];
        if (k->count)
            printf("%17s %8" PRIu64 " %8" PRIu64 " %12s  %s %5.1f%%\n",
                   figure_bytes(PM_PAGE_SIZE << i, from), k->count, k->live,
                   figure_bytes(k->bytes, bytes), bar(k->live_bytes, k->bytes, picture),
                   percent(k->live_bytes, k->bytes));
    }
}

static void print_root(const struct pm_root *root, const char *text, void *arg) {
    const struct info *info = arg;
    char bytes[32], member[MEMBER_NAME];
    printf("%12s  %#14" PRIx64 "  %s", figure_bytes(root->length, bytes), root->address, text);
    if (root_member(info->heap, root, member))
        printf(" (%s)", member);
    puts(root->waits ? " (the last start has not restored it)" : "");
}

static void print_roots(const struct info *info) {
    unsigned slots = pm_roots_slots_used();
    puts("");
    if (!info->found.roots) {
        puts("no roots: nothing can reach this heap again, and its next opening empties it");
        return;
    }
    if (info->found.roots > slots) {
        printf("%12s  %14s  root\n", "bytes", "address");
        pm_roots_list(print_root, (void *)(uintptr_t)info);
    }
    printf("%u of %u root slots in use\n", slots, PM_ROOT_SLOTS);
}

static bool wide_terminal(void) {
    struct winsize size;
    return isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 &&
           size.ws_col >= WIDE_ENOUGH;
}

static void print_map(const struct census *c) {
    char cells[MAP_CELLS * MAP_ROWS + 1], size[32];
    if (!c->frontier)
        return;
    // A cell stands for one slab or more.
    uint64_t count = c->frontier / PM_SLAB_SIZE;
    unsigned shown = count < MAP_CELLS               ? (unsigned)(count ? count : 1)
                     : count >= MAP_CELLS * MAP_ROWS ? MAP_CELLS * MAP_ROWS
                                                     : (unsigned)(count / MAP_CELLS * MAP_CELLS);
    census_map(cells, shown);
    printf("\nmap: a character is %s; . free, 0-9# slabs by live tenths, L large, H huge, P "
           "pinned, ? unreachable\n",
           figure_bytes(c->frontier / shown, size));
    for (unsigned at = 0; at < shown; at += MAP_CELLS)
        printf("  %.*s\n", MAP_CELLS, cells + at);
}

void info_text(const struct info *info, bool map) {
    print_identity(info);
    objects_text();
    print_totals(info);
    print_classes(&info->census);
    print_extents(&info->census);
    print_roots(info);
    if (map || wide_terminal())
        print_map(&info->census);
}
