// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "program.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/crc.h"
#include "locate.h"
#include "media/heap.h"
#include "media/persist.h"

static struct pm_program old, now;
static bool known;   // a program is on record
static bool rebuilt; // this is another build
static bool moved;   // this is the same build at other addresses
static bool mixed;   // this is the same build, and words of another one may be in the heap
static bool watched; // marking was asked to count
static struct pm_stray stray;
static enum pm_addresses addresses;
static const char *remedy = "start it with pmalloc-run, which keeps the addresses the same";

static bool same_build(void) {
    if (old.build_id_len || now.build_id_len)
        return old.build_id_len == now.build_id_len &&
               memcmp(old.build_id, now.build_id, sizeof old.build_id) == 0;
    return strcmp(old.path, now.path) == 0; // the linker was told to leave build ids out
}

static bool compare(void) {
    const struct pm_state *state = &pm_heap.super->state;
    if (!pm_locate_program(&now))
        return false;
    now.addresses = addresses;
    memcpy(&old, &state->program, sizeof old);
    known = state->program_crc == pm_crc32c(0, &old, sizeof old) && old.path[0] &&
            memchr(old.path, 0, sizeof old.path) && old.build_id_len <= sizeof old.build_id;
    rebuilt = known && !same_build();
    moved = known && !rebuilt &&
            (old.main_base != now.main_base || old.libc_base != now.libc_base ||
             old.libs_start != now.libs_start || old.libs_end != now.libs_end);
    static const uint8_t none[sizeof old.mixed];
    mixed = known && !rebuilt && memcmp(old.mixed, none, sizeof none) != 0;
    return true;
}

void pm_stray_count(struct pm_stray *s, const uint64_t *word, const uint64_t *end) {
    uint64_t found[2] = {0, 0};
    for (; s->found && word < end; word++)
        if (*word)
            s->found(word);
    for (; word < end; word++)
        for (unsigned i = 0; i < 2; i++)
            found[i] += *word - s->start[i] < s->len[i];
    for (unsigned i = 0; i < 2; i++)
        if (found[i])
            __atomic_fetch_add(&s->words[i], found[i], __ATOMIC_RELAXED);
}

struct pm_stray *pm_program_stray(void) {
    watched = compare() && (rebuilt || moved || mixed) && old.main_end;
    if (!watched)
        return NULL;
    bool main_too = rebuilt || mixed || old.main_base != now.main_base;
    bool libs_too = old.libs_start != now.libs_start || old.libs_end != now.libs_end;
    stray = (struct pm_stray){
        .start = {old.main_start, old.libs_start},
        .len = {main_too ? old.main_end - old.main_start : 0,
                libs_too ? old.libs_end - old.libs_start : 0},
    };
    return &stray;
}

void pm_program_note_addresses(enum pm_addresses how, const char *advice) {
    addresses = how;
    remedy = advice;
}

bool pm_program_is_at_random(void) { return addresses == PM_ADDRESSES_RANDOM; }

bool pm_program_now(struct pm_program *out) {
    bool good = compare();
    *out = now;
    return good;
}

bool pm_program_is_known(void) { return compare() && known && !rebuilt; }

const char *pm_program_on_record(void) {
    static char path[sizeof old.path];
    compare();
    memcpy(path, known ? old.path : "", known ? sizeof path : 1);
    return path;
}

// The first bytes of a build id, enough to tell two builds apart.
static const char *id_text(const struct pm_program *p, char out[24]) {
    out[0] = '\0';
    for (unsigned i = 0; i < 6 && i < p->build_id_len; i++)
        snprintf(out + 2 * i, 24 - 2 * i, "%02x", p->build_id[i]);
    return p->build_id_len ? out : "none";
}

// Both builds may lie at the same addresses, so nobody can tell which of them has stored a word.
static void say_rebuilt(bool counted, uint64_t words) {
    char a[24], b[24], count[80] = "words in the heap may";
    struct pm_program other = old;
    if (mixed) {
        memcpy(other.build_id, old.mixed, sizeof other.build_id);
        other.build_id_len = sizeof other.build_id;
    }
    if (counted)
        snprintf(count, sizeof count, "%lu word%s in the heap", (unsigned long)words,
                 words == 1 ? "" : "s");
    if (counted && words == 0)
        pm_event(
            PM_EV_PROGRAM_CHANGED,
            "the program is not the one that last used %.200s (build id differs: %s of %.200s, "
            "now %s): nothing in the heap points into the other one, so that is no harm",
            pm_heap.dir, id_text(&other, a), old.path, id_text(&now, b));
    else
        pm_event(
            PM_EV_PROGRAM_CHANGED,
            "the program is not the only one that has used %.200s (build id differs: %s of "
            "%.200s, now %s): %s point%s into such a program, and those that the other one "
            "has stored are not valid in this one; go on with one build alone, and see `How do "
            "I deploy a new build?` in docs/modes.md",
            pm_heap.dir, id_text(&other, a), old.path, id_text(&now, b), count,
            counted && words == 1 ? "s" : "");
}

static void say_moved(uint64_t words, uint64_t libs) {
    uint64_t all = words + libs;
    pm_event(
        PM_EV_WORDS_STALE,
        "%lu word%s in %.200s point%s to where %.200s lay when they were stored, not valid any "
        "more (%lu into the program, at %#lx then and %#lx now, %lu into libraries); %s",
        (unsigned long)all, all == 1 ? "" : "s", pm_heap.dir, all == 1 ? "s" : "", old.path,
        (unsigned long)words, (unsigned long)old.main_base, (unsigned long)now.main_base,
        (unsigned long)libs, remedy);
}

void pm_program_record(void) {
    struct pm_state *state = &pm_heap.super->state;
    if (!compare())
        return;
    bool counted = watched && stray.counted;
    uint64_t words = stray.words[0] + stray.words[1];
    bool unsure = (rebuilt || mixed) && !(counted && words == 0);
    if (rebuilt || unsure)
        say_rebuilt(counted, words);
    if (unsure) // it is said at each start, until no word points into a program any more
        memcpy(now.mixed, mixed ? old.mixed : old.build_id, sizeof now.mixed);
    if (moved && counted && words)
        say_moved(stray.words[0], stray.words[1]);
    // If such words exist, or may exist, the old addresses stay on record: in a later run at the
    // old addresses these pointers are valid.
    if ((moved && !(counted && words == 0)) || !pm_heap_on_media())
        return;
    memcpy(&state->program, &now, sizeof now);
    state->program_crc = pm_crc32c(0, &now, sizeof now);
    pm_make_durable(&state->program, sizeof state->program + sizeof state->program_crc);
}
