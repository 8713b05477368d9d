// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "image.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "media.h"
#include "record.h"

static int checker = -1;

void image_connect(int fd) { checker = fd; }
void image_disconnect(void) { close(checker); }

static struct site *site_of(enum site_kind kind, uint64_t pc) {
    for (uint32_t i = 0; i < world->site_count; i++)
        if (world->site[i].pc == pc && world->site[i].kind == kind)
            return &world->site[i];
    if (world->site_count == SITES)
        abort();
    struct site *site = &world->site[world->site_count++];
    *site = (struct site){.pc = pc, .kind = kind, .first = world->points};
    return site;
}

bool image_mutated(enum mutation mutation, uint64_t pc) {
    if (world->mutation != mutation)
        return false;
    for (uint32_t i = 0; i < world->mutant_count; i++)
        if (world->mutant_pc[i] == pc) {
            world->mutated++;
            return true;
        }
    return false;
}

static uint64_t expect_hash(void) {
    const unsigned char *bytes = (const unsigned char *)&world->expect;
    uint64_t hash = 0xcbf29ce484222325ull;
    for (unsigned i = 0; i < sizeof world->expect; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3ull;
    return hash;
}

// Whether this run has tried the same image before, with the same data and the same world->expect.
static bool seen(uint64_t hash) {
    hash = mix64(hash ^ mix64(world->data_version) ^ expect_hash()) | 1;
    for (uint64_t at = hash >> 20; world->distinct < SEEN / 2; at++) {
        uint64_t *slot = &world->seen[at % SEEN];
        if (*slot == hash)
            return true;
        if (!*slot) {
            *slot = hash;
            return false;
        }
    }
    return false;
}

static void note_failure(uint64_t index) {
    if (world->failures < FAILURES) {
        struct failure *f = &world->failure[world->failures];
        f->point = world->points;
        f->index = index;
        snprintf(f->text, sizeof f->text, "%s", world->request.text);
    }
    world->failures++;
}

static void ask(uint64_t index) {
    struct request *q = &world->request;
    uint64_t random = world->seed * 7919 + world->distinct;
    uint64_t lot = draw(&random, 1024);
    q->image = world->distinct;
    if (world->mutation)
        lot |= 64;
    q->operations = lot == 0 ? 10000 : lot < 24 ? 500 : 50;
    q->reopen = lot % 32 == 1;
    q->look = lot % 32 == 2;
    world->operations += q->operations;
    world->reopened += q->reopen;
    world->looked += q->look;
    char answer = 'x';
    if (write(checker, "?", 1) != 1 || read(checker, &answer, 1) != 1)
        _exit(3); // the checker is gone
    if (answer != '.')
        note_failure(index);
}

// Whether the run has seen enough. For a mutant one failing image is enough.
static bool enough(void) {
    return world->failures >= (world->mutation ? 1 : FAILURES) ||
           world->images >= world->max_images;
}

static bool take(uint64_t index, const uint32_t *prefix, bool loose, void *arg) {
    struct site *site = arg;
    bool replay = world->replay_point != UINT64_MAX;
    if (replay && index != world->replay_index)
        return true;
    uint64_t hash;
    world->request.patch_count = media_patches(
        prefix, loose, world->seed ^ world->points << 20 ^ index, world->request.patch, &hash);
    world->images++;
    site->images++;
    if (seen(hash) && !replay)
        return true;
    world->distinct++;
    ask(index);
    return !enough();
}

// Whether to take images at this visit. The first `quota` visits of each place are all taken, later
// ones ever more rarely, because bugs hide in places that are seldom visited.
static bool wanted(struct site *site) {
    if (!world->taking || enough())
        return false;
    if (world->mutation && !world->tainted)
        return false; // the mutant has changed nothing here, so the plain runs try these images
    uint64_t hits = world->mutation ? ++site->tainted : site->hits;
    if (world->replay_point != UINT64_MAX)
        return world->points == world->replay_point;
    uint64_t random = world->seed ^ world->points << 8;
    return hits <= world->quota || draw(&random, hits) < world->quota / 4 + 1;
}

static bool take_for_failure(uint64_t index, const uint32_t *prefix, bool loose, void *arg) {
    uint64_t *left = arg, hash;
    if ((*left)--)
        return true;
    world->request.patch_count =
        media_patches(prefix, loose, world->seed ^ index, world->request.patch, &hash);
    return false;
}

// Ends this process by power failure, which leaves one of the possible images, or by a kill.
static void fail_here(void) {
    if (world->fail_power) {
        uint64_t random = world->seed ^ world->points, left = draw(&random, 24);
        world->request.patch_count = 0;
        media_images(64, world->seed ^ world->points, take_for_failure, &left);
        media_become(world->request.patch, world->request.patch_count);
        record_restore_files();
    }
    _exit(PHASE_FAILED);
}

void image_point(enum site_kind kind, uint64_t pc) {
    static bool within;
    if (within || !world)
        return;
    within = true;
    struct site *site = site_of(kind, pc);
    site->hits++;
    bool dirty = world->dirty_count != 0;
    site->dirty += dirty;
    world->points++;
    if (wanted(site))
        media_images(world->limit, world->seed ^ world->points, take, site);
    if (world->fail_hit && site == &world->site[world->fail_site] &&
        (dirty || !world->fail_dirty) && --world->fail_hit == 0)
        fail_here();
    within = false;
}
