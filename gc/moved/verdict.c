// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "verdict.h"

#include <stdio.h>
#include <string.h>

#include "base/options.h"
#include "base/os.h"
#include "match.h"
#include "roots/loaded_object.h"
#include "trust.h"

// Of an entry of the record.
struct pair {
    const struct pm_objects_entry *now; // the same object, loaded; NULL: it is not
    bool here;                          // it is loaded, and where it was
    bool covered;                       // another object lies there now
    bool doubt;                         // it may be loaded: several of its name were
    bool tried, known;                  // the places were made, with success
    bool looked_for;                    // by pm_verdicts_begin_late(), in this generation
    struct pm_places *old, *new;
};

static const struct pm_objects_entry *entry;
static unsigned entries;
static struct pair pair[PM_OBJECTS_MOST];
static bool kept[PM_OBJECTS_MOST];
static struct pm_range_of_words range[PM_OBJECTS_MOST];
static struct pm_objects_entry loaded[PM_OBJECTS_MOST];
static unsigned loaded_count;

static bool take_loaded(const struct pm_objects_entry *e, void *unused) {
    (void)unused;
    if (loaded_count < PM_OBJECTS_MOST)
        loaded[loaded_count++] = *e;
    return true;
}

static void find_pair(unsigned i) {
    struct pair *p = &pair[i];
    *p = (struct pair){.looked_for = p->looked_for};
    for (unsigned k = 0; k < loaded_count; k++) {
        const struct pm_objects_entry *l = &loaded[k];
        enum pm_same same = pm_twins_same(entry, entries, &entry[i], l);
        p->here |= same == PM_SAME_IS && pm_record_is(l, &entry[i]);
        p->covered |= pm_record_overlap(l, &entry[i]) && same != PM_SAME_IS;
        p->doubt |= same == PM_SAME_DOUBT;
        if (same == PM_SAME_IS && (!p->now || pm_record_same_build(l, &entry[i])))
            p->now = l;
    }
}

// The next generation has other entries at the same places of the list.
static void forget_other_generation(void) {
    static uint32_t generation;
    for (unsigned i = 0; i < PM_OBJECTS_MOST && generation != pm_record_generation(); i++)
        pair[i].looked_for = false;
    generation = pm_record_generation();
}

static void compare(void) {
    forget_other_generation();
    entry = pm_record_entries(&entries);
    loaded_count = 0;
    pm_record_each_loaded(take_loaded, NULL);
    for (unsigned i = 0; i < entries; i++) {
        find_pair(i);
        kept[i] = !pair[i].now && !pair[i].covered;
    }
}

// Something that was loaded later has been in all of its place.
static bool is_hidden(unsigned i) {
    for (unsigned k = i + 1; k < entries; k++)
        if (entry[k].start <= entry[i].start && entry[k].end >= entry[i].end &&
            pm_twins_same(entry, entries, &entry[k], &entry[i]) == PM_SAME_NOT)
            return true;
    return false;
}

bool pm_verdicts_moved(void) {
    compare();
    for (unsigned i = 0; i < entries; i++)
        if (!pair[i].here && (pair[i].now || pair[i].covered || pair[i].doubt) && !is_hidden(i))
            return true;
    return false;
}

unsigned pm_verdicts_begin_late(const struct pm_range_of_words **ranges) {
    unsigned count = 0;
    compare();
    for (unsigned i = 0; i < entries; i++) {
        bool comes = pair[i].now || pair[i].doubt;
        if (pair[i].here || !comes || pair[i].covered || pair[i].looked_for)
            continue;
        pair[i].looked_for = true;
        range[count++] = (struct pm_range_of_words){entry[i].start, entry[i].end};
    }
    *ranges = range;
    return count;
}

unsigned pm_verdicts_begin(const struct pm_range_of_words **ranges) {
    unsigned count = 0;
    compare();
    for (unsigned i = 0; i < entries; i++) {
        if (!pair[i].here)
            range[count++] = (struct pm_range_of_words){entry[i].start, entry[i].end};
    }
    *ranges = range;
    return count;
}

const bool *pm_verdicts_kept(void) { return kept; }

unsigned pm_verdicts_left(void) {
    unsigned count = 0;
    for (unsigned i = 0; i < entries; i++)
        count += pair[i].looked_for;
    return count;
}

bool pm_verdicts_other_build(void) {
    for (unsigned i = 0; i < entries; i++)
        if (!pair[i].here && pair[i].now && !pm_record_same_build(&entry[i], pair[i].now))
            return true;
    return false;
}

static const char *file_name(const struct pm_objects_entry *e) { return pm_base_name(e->path); }

// ---- what lies in an entry, then and now --------------------------------------------------------

static struct pm_places *places_of(const struct pm_elf *f) {
    struct pm_places *p = pm_os_reserve(sizeof *p);
    return p && pm_places_make(p, f) ? p : NULL;
}

static bool know(unsigned i) {
    struct pair *p = &pair[i];
    struct pm_elf old, now;
    if (p->tried)
        return p->known;
    p->tried = true;
    const void *packed = pm_record_packed(&entry[i]);
    if (!packed || pm_elf_take(&old, packed, entry[i].bytes) ||
        !pm_object_open_at(p->now->base, &now))
        return false;
    p->old = places_of(&old);
    p->new = places_of(&now);
    return p->known = p->old && p->new;
}

// Abseil's hash seed is the address of this variable, in whatever namespace of a release.
static const struct pm_place_symbol *seed_in(const struct pm_places *p) {
    for (uint32_t i = 1; i <= p->symbols; i++)
        if (strstr(p->symbol[i].name, "MixingHashState5kSeedE"))
            return &p->symbol[i];
    return NULL;
}

const char *pm_verdicts_seed(void) {
    for (unsigned i = 0; i < entries; i++) {
        if (pair[i].here || !pair[i].now || !know(i))
            continue;
        const struct pm_place_symbol *then = seed_in(pair[i].old), *now = seed_in(pair[i].new);
        if (then && (!now || then->at + entry[i].base != now->at + pair[i].now->base))
            return file_name(&entry[i]);
    }
    return NULL;
}

// ---- verdicts -----------------------------------------------------------------------------------

// The same build elsewhere. A program that is not at a random place lies where ordinary data may
// look like its addresses: there only what a pointer can lead to is one. What else is said to be
// read by nobody stays: it may be a number, which is read.
static enum pm_verdict move(unsigned i, uint64_t address, struct pm_matched *to,
                            char why[PM_VERDICT_WHY]) {
    struct pm_place_of place;
    to->at = address - entry[i].base + pair[i].now->base;
    if (!(entry[i].flags & PM_OBJECT_IS_PROGRAM) || entry[i].flags & PM_OBJECT_AT_RANDOM ||
        !know(i))
        return PM_VERDICT_CHANGES;
    pm_place_at(pair[i].old, address - entry[i].base, &place);
    bool code = place.kind == PM_PLACE_CODE;
    if (place.kind == PM_PLACE_NOTHING || (code && pm_trusts(PM_TRUST_STALE)))
        return PM_VERDICT_STAYS;
    if (!code)
        return PM_VERDICT_CHANGES;
    snprintf(why, PM_VERDICT_WHY, "%.80s: the middle of %.100s%s", file_name(&entry[i]),
             place.name ? place.name : "code", place.name ? "()" : " without a name");
    return PM_VERDICT_UNSURE;
}

static enum pm_verdict match(unsigned i, uint64_t address, struct pm_matched *to,
                             char why[PM_VERDICT_WHY]) {
    char reason[PM_MATCH_WHY];
    bool exact = pair[i].known && pair[i].old->elf.ehdr.e_type == ET_EXEC;
    if (exact && !pm_trusts(PM_TRUST_EXACT)) {
        snprintf(why, PM_VERDICT_WHY,
                 "%.80s: linked to fixed addresses, where numbers look like addresses, and this is "
                 "another build (PMALLOC_REBASE_TRUST=exact changes what has a name)",
                 file_name(&entry[i]));
        return PM_VERDICT_UNSURE;
    }
    struct pm_match_by by = {exact, pm_trusts(PM_TRUST_NUMBERED)};
    enum pm_match is = pm_match(pair[i].old, pair[i].new, address - entry[i].base, by, to, reason);
    if (is == PM_MATCH_NONE)
        return PM_VERDICT_STAYS;
    if (is == PM_MATCH_FOUND) {
        to->at += pair[i].now->base;
        return PM_VERDICT_CHANGES;
    }
    snprintf(why, PM_VERDICT_WHY, "%.70s: %s", file_name(&entry[i]), reason);
    if (is == PM_MATCH_COPY)
        return PM_VERDICT_COPIED;
    return pm_trusts(PM_TRUST_STALE) && !exact ? PM_VERDICT_STALE : PM_VERDICT_UNSURE;
}

// Of objects that lay at one place the last one counts. But under PMALLOC_REBASE=report another
// build has stored words, while those of this one were there.
static bool is_shared(unsigned i, uint64_t address) {
    for (unsigned k = 0; k < entries; k++)
        if (address >= entry[k].start && address < entry[k].end &&
            !pm_record_is(&entry[k], &entry[i]) &&
            (entry[k].flags | entry[i].flags) & PM_OBJECT_MIXED)
            return true;
    return false;
}

enum pm_verdict pm_verdict_of(uint64_t address, struct pm_matched *to, char why[PM_VERDICT_WHY]) {
    *to = (struct pm_matched){0};
    unsigned i = entries;
    while (i && !(address >= entry[i - 1].start && address < entry[i - 1].end))
        i--;
    if (!i--)
        return PM_VERDICT_STAYS;
    if (is_shared(i, address)) {
        snprintf(why, PM_VERDICT_WHY,
                 "%.100s: it has lain there in two ways, and nobody knows which of them has stored "
                 "the word (PMALLOC_REBASE=report, or a kill while words were changed)",
                 file_name(&entry[i]));
        return PM_VERDICT_UNSURE;
    }
    if (pair[i].here)
        return PM_VERDICT_STAYS;
    if (!pair[i].now && pair[i].covered) {
        snprintf(why, PM_VERDICT_WHY, "%.100s: it is not loaded, and something else lies there now",
                 file_name(&entry[i]));
        return PM_VERDICT_UNSURE;
    }
    if (!pair[i].now && pair[i].doubt) {
        snprintf(why, PM_VERDICT_WHY,
                 "%.100s: several of this name were loaded, from other directories, and nothing "
                 "tells which of them this one is",
                 file_name(&entry[i]));
        return PM_VERDICT_UNSURE;
    }
    if (!pair[i].now)
        return PM_VERDICT_WAITS;
    if (pm_record_same_build(&entry[i], pair[i].now))
        return move(i, address, to, why);
    if (know(i))
        return match(i, address, to, why);
    snprintf(why, PM_VERDICT_WHY,
             "%.80s: another build, and it is not known what lay in the old "
             "one",
             file_name(&entry[i]));
    return PM_VERDICT_UNSURE;
}
