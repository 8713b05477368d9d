// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "instants_print.h"

#include <stdio.h>
#include <string.h>

#include "commit_print.h"
#include "figures.h"
#include "lock_place.h"
#include "media/heap.h"
#include "media/journal/instants.h"
#include "text.h"

// One thread that takes no lock shares nothing with others of its kind.
#define UNSEEN_FEW 1u

bool instants_of_heap(const char *heap, struct instants *out) {
    const struct pm_journal_found *commit = &pm_journal_opened.commit;
    *out = (struct instants){.heap = heap, .base = pm_base, .end = pm_base + pm_range};
    out->of = commit->instants;
    out->pauses = commit->pauses;
    out->time = commit->time;
    bool known = pm_journal_opened.is != PM_JOURNAL_NONE && commit->groups && commit->counted;
    return known || pm_instants_read(&pm_heap.super->state, &out->of, &out->time);
}

static void find_place(const struct instants *i, struct lock_place *place) {
    uint64_t at = i->of.lock;
    if (at >= i->base && at < i->end) {
        *place = (struct lock_place){.offset = at - i->base};
        snprintf(place->object, sizeof place->object, "%.*s", (int)sizeof place->object - 1,
                 i->heap);
    } else {
        lock_place_find(at, i->process, place);
    }
}

static void put_lock(const struct instants *i) {
    struct lock_place place;
    find_place(i, &place);
    if (!*place.object) {
        printf("0x%lx", (unsigned long)i->of.lock);
        return;
    }
    text_print(place.object);
    printf("+0x%lx", (unsigned long)place.offset);
    if (!*place.variable)
        return;
    fputs(" (", stdout);
    text_print(place.variable);
    if (place.into)
        printf("+%lu", (unsigned long)place.into);
    putchar(')');
}

static void put_name(const struct instants *i) {
    char name[sizeof i->of.name + 1] = "";
    memcpy(name, i->of.name, sizeof i->of.name);
    text_print(name);
}

static void put_other(const struct instants *i) {
    char when[96];
    printf("the last other one, of %s: thread %u (", commit_when(i->of.time, when), i->of.thread);
    put_name(i);
    if (i->of.lock) {
        fputs(") held the lock at ", stdout);
        put_lock(i);
    } else {
        fputs(") ran, and had never taken a lock that is seen", stdout);
    }
}

void instants_text(const struct instants *i, const char *before) {
    char between[32], waited[32], any[32];
    printf("%s between operations, %s after a wait for threads that never took a lock, %s others",
           figure_count(i->of.between, between), figure_count(i->of.waited, waited),
           figure_count(i->of.any, any));
    if (i->of.any && i->of.thread) {
        fputs(before, stdout);
        put_other(i);
    }
    if (i->of.unseen > UNSEEN_FEW)
        printf("%s%u threads have never taken a lock that is seen: what locks of their own protect "
               "may be half done in a commit",
               before, i->of.unseen);
}

static void other_json(struct json *j, const struct instants *i) {
    struct lock_place place;
    char name[sizeof i->of.name + 1] = "";
    memcpy(name, i->of.name, sizeof i->of.name);
    json_open(j, "last_other", '{');
    json_real(j, "time", (double)i->of.time / 1000000000);
    json_number(j, "thread", i->of.thread);
    json_text(j, "name", name);
    if (i->of.lock) {
        find_place(i, &place);
        json_number(j, "lock", i->of.lock);
        if (*place.object) {
            json_text(j, "object", place.object);
            json_number(j, "offset", place.offset);
        }
        if (*place.variable) {
            json_text(j, "variable", place.variable);
            json_number(j, "into", place.into);
        }
    }
    json_close(j, '}');
}

void instants_json(struct json *j, const struct instants *i) {
    json_open(j, "instants", '{');
    json_real(j, "until", (double)i->time / 1000000000);
    json_number(j, "between_operations", i->of.between);
    json_number(j, "after_a_wait", i->of.waited);
    json_number(j, "others", i->of.any);
    json_number(j, "threads_of_unknown_locks", i->of.unseen);
    if (i->of.any && i->of.thread)
        other_json(j, i);
    json_close(j, '}');
}
