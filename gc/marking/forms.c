// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "forms.h"

#include <stdio.h>

#include "base/crc.h"
#include "base/options.h"
#include "media/heap.h"
#include "media/heap_state.h"
#include "media/persist.h"

unsigned pm_forms = PM_FORMS_DEFAULT;
uint64_t pm_forms_mask;
unsigned pm_forms_shift;

static const struct pm_option_word names[] = {
    {"tagged", PM_FORM_TAGGED},     {"unaligned", PM_FORM_UNALIGNED},
    {"relative", PM_FORM_RELATIVE}, {"base32", PM_FORM_BASE32},
    {"end", PM_FORM_END},           {"before", PM_FORM_BEFORE}};
#define NAMES (sizeof names / sizeof *names)

bool pm_forms_parse(const char *text, unsigned *forms) {
    *forms = 0;
    return strcmp(text, "plain") == 0 || pm_option_words(text, names, NAMES, forms);
}

const char *pm_forms_text(unsigned forms) {
    static char text[64];
    size_t len = 0;
    for (size_t i = 0; i < NAMES; i++)
        if (forms & names[i].bit)
            len += (size_t)snprintf(text + len, sizeof text - len, "%s%s", len ? "," : "",
                                    names[i].name);
    return len ? text : "plain";
}

// ---- what is on record --------------------------------------------------------------------------

// The forms are its lower 8 bits. Above them, of a mask: the shift, and how many bits below and
// above are not taken, 6 bits each.
static unsigned record_of(unsigned forms) {
    if (!(forms & PM_FORM_MASKED))
        return forms;
    unsigned below = (unsigned)__builtin_ctzll(pm_forms_mask);
    return forms | pm_forms_shift << 8 | below << 14 |
           (unsigned)__builtin_clzll(pm_forms_mask) << 20;
}

static void take_mask(unsigned record) {
    unsigned below = record >> 14 & 63, above = record >> 20 & 63;
    pm_forms_shift = record >> 8 & 63;
    pm_forms_mask = below + above < 64 ? UINT64_MAX >> (below + above) << below : 0;
}

// What an open heap was used with. Heaps that have no record were used with the default.
static int on_record(unsigned *forms, struct pm_error *err) {
    uint64_t word = pm_heap_on_media() ? pm_heap.super->state.pointers : 0;
    *forms = PM_FORMS_DEFAULT;
    if (!word)
        return PM_OK;
    unsigned record = pm_unseal(word);
    *forms = record & 0xff;
    take_mask(record);
    if (pm_sealed(word, PM_SALT_POINTERS) && !(*forms & ~(unsigned)PM_FORMS_ALL) &&
        record == record_of(*forms))
        return PM_OK;
    return pm_fail(err, PM_DAMAGE,
                   "%s/superblock: the record of which words are pointers (%016lx) does not match "
                   "its check",
                   pm_heap.dir, (unsigned long)word);
}

static void say_change(unsigned before) {
    unsigned lost = before & ~pm_forms, added = pm_forms & ~before;
    if (lost)
        pm_event(
            PM_EV_FORMS_CHANGED,
            "PMALLOC_POINTERS: %s was used with pointers that are %s until now; what only these "
            "reach is freed",
            pm_heap.dir, pm_forms_text(lost));
    if (added)
        pm_event(PM_EV_FORMS_CHANGED,
                 "PMALLOC_POINTERS: %s was used without pointers that are %s until now; what only "
                 "these reached may be gone",
                 pm_heap.dir, pm_forms_text(added));
}

int pm_forms_choose(struct pm_error *err) {
    const char *text = pm_options.pointers.text;
    unsigned before;
    if (on_record(&before, err) != PM_OK)
        return err->status;
    pm_forms = before;
    if (!*text)
        return PM_OK;
    if (!pm_forms_parse(text, &pm_forms))
        return pm_fail(err, PM_USAGE,
                       "PMALLOC_POINTERS=%.100s: not a valid value; use plain, or one or more of "
                       "tagged, unaligned, relative, base32, end and before, with commas between "
                       "them",
                       text);
    pm_forms |= before & PM_FORM_MASKED; // the program says it, not the setting
    if (pm_heap_on_media() && !pm_heap.created)
        say_change(before);
    return PM_OK;
}

bool pm_forms_settled(void) { return *pm_options.pointers.text || pm_heap.super->state.pointers; }

void pm_forms_say_disguised(unsigned form, unsigned without, uint64_t blocks, uint64_t bytes,
                            uint64_t holder, uint64_t size, uint64_t at, const char *way) {
    char forms[64];
    snprintf(forms, sizeof forms, "%s", pm_forms_text(without));
    const char *name = pm_forms_text(form);
    pm_event(
        PM_EV_FORMS_MISSING,
        "%s: %lu blocks of %lu bytes are reached only by words that look like %s pointers, as at "
        "byte %lu of the block of %lu bytes at %#lx%s%s%s; they are kept for now: set "
        "PMALLOC_POINTERS=%s,%s to keep them, or PMALLOC_POINTERS=%s to free them",
        pm_heap.dir, (unsigned long)blocks, (unsigned long)bytes, name, (unsigned long)at,
        (unsigned long)size, (unsigned long)holder, *way ? " (" : "", way, *way ? ")" : "", forms,
        name, forms);
}

// Nobody has settled it where PMALLOC_POINTERS has never been set.
void pm_forms_record(void) {
    struct pm_state *state = &pm_heap.super->state;
    uint64_t word = pm_seal(record_of(pm_forms), PM_SALT_POINTERS);
    if (*pm_options.pointers.text && state->pointers != word)
        pm_commit_u64(&state->pointers, word);
}

bool pm_forms_set_mask(uint64_t mask, unsigned shift) {
    unsigned below = mask ? (unsigned)__builtin_ctzll(mask) : 0;
    unsigned above = mask ? (unsigned)__builtin_clzll(mask) : 0;
    bool all = mask == UINT64_MAX && !shift;
    if (!mask || mask != UINT64_MAX >> (below + above) << below || shift > 63)
        return false;
    pm_forms_mask = mask;
    pm_forms_shift = shift;
    pm_forms = all ? pm_forms & ~(unsigned)PM_FORM_MASKED : pm_forms | PM_FORM_MASKED;
    if (pm_heap_on_media())
        pm_commit_u64(&pm_heap.super->state.pointers,
                      pm_seal(record_of(pm_forms), PM_SALT_POINTERS));
    return true;
}
