// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Finalizers, disappearing links and toggle references of gc.h: cases of boehm.c.
#include "boehm_case.h"

void **links;

static int finalized, order_wrong;
static void count(void *block, void *data) {
    CHECK(((struct node *)block)->value == (long)data);
    finalized++;
}
static void some(void) {
    for (long i = 0; i < MANY; i++) {
        struct node *n = GC_NEW(struct node);
        n->value = i;
        GC_REGISTER_FINALIZER(n, count, (void *)i, NULL, NULL);
    }
}
static void finalizers(void) {
    GC_finalization_proc old;
    void *data;
    kept = GC_NEW(struct node);
    GC_REGISTER_FINALIZER(kept, count, (void *)5, NULL, NULL);
    aside(some);
    collect();
    GC_invoke_finalizers();
    CHECK(finalized >= MANY * 9 / 10 && finalized <= MANY);
    GC_REGISTER_FINALIZER(kept, NULL, NULL, &old, &data);
    CHECK(old == count && data == (void *)5);
    GC_REGISTER_FINALIZER(kept, NULL, NULL, &old, &data);
    CHECK(!old && !data);
}

// The first of a chain is finalized before those that it reaches.
static long last_value;
static void in_order(void *block, void *unused) {
    (void)unused;
    if (((struct node *)block)->value != ++last_value)
        order_wrong = 1;
}
static void ordered_chain(void) {
    struct node *next = NULL;
    for (long i = MANY; i > 0; i--) {
        struct node *n = GC_NEW(struct node);
        n->value = i;
        n->left = next;
        GC_REGISTER_FINALIZER(n, in_order, NULL, NULL, NULL);
        next = n;
    }
}
static void order(void) {
    aside(ordered_chain);
    for (int i = 0; i < MANY + 5; i++) {
        GC_gcollect();
        GC_invoke_finalizers();
    }
    CHECK(last_value > 0 && !order_wrong);
}

static void cycles(void) {
    for (long i = 0; i < MANY; i++) {
        struct node *n = GC_NEW(struct node), *m = GC_NEW(struct node);
        n->left = n;
        n->value = i;
        GC_REGISTER_FINALIZER_IGNORE_SELF(n, count, (void *)i, NULL, NULL);
        m->left = GC_NEW(struct node);
        m->left->left = m;
        m->value = -i;
        GC_REGISTER_FINALIZER_NO_ORDER(m, count, (void *)-i, NULL, NULL);
        m = GC_NEW(struct node);
        m->value = -i;
        GC_register_finalizer_unreachable(m, count, (void *)-i, NULL, NULL);
    }
}
static void self(void) {
    aside(cycles);
    collect();
    GC_invoke_finalizers();
    collect();
    GC_invoke_finalizers();
    CHECK(finalized >= 3 * MANY * 9 / 10 && finalized <= 3 * MANY);
}

static int told;
static void notify(void) { told++; }
static void on_demand(void) {
    GC_set_finalize_on_demand(1);
    GC_set_finalizer_notifier(notify);
    aside(some);
    collect();
    for (int i = 0; i < 100000; i++)
        GC_MALLOC(100);
    CHECK(finalized == 0 && told > 0 && GC_should_invoke_finalizers());
    CHECK(GC_invoke_finalizers() > 0 && finalized > 0);
}

static void weak_blocks(void) {
    for (int i = 0; i < MANY; i++) {
        void *n = GC_MALLOC(24);
        links[i] = n;
        CHECK(GC_general_register_disappearing_link(&links[i], n) == GC_SUCCESS);
        CHECK(GC_general_register_disappearing_link(&links[i], n) == GC_DUPLICATE);
    }
    links[MANY] = kept;
    CHECK(GC_general_register_disappearing_link(&links[MANY], kept) == GC_SUCCESS);
}
static void weak(void) {
    int left = 0;
    kept = tree(3);
    links = GC_MALLOC_ATOMIC((MANY + 3) * sizeof *links);
    memset(links, 0, (MANY + 3) * sizeof *links);
    aside(weak_blocks);
    collect();
    for (int i = 0; i < MANY; i++)
        left += links[i] != NULL;
    CHECK(left < MANY / 10);
    CHECK(links[MANY] == kept);
    CHECK(GC_move_disappearing_link(&links[MANY], &links[MANY + 1]) == GC_SUCCESS);
    CHECK(GC_move_disappearing_link(&links[MANY], &links[MANY + 1]) == GC_NOT_FOUND);
    CHECK(GC_unregister_disappearing_link(&links[MANY + 1]) == 1);
    CHECK(GC_unregister_disappearing_link(&links[MANY + 1]) == 0);
}

// A short link is cleared before the finalizer runs, a long one after that.
static struct node *revived[MANY];
static int revivals;
static void revive(void *block, void *unused) {
    (void)unused;
    revived[revivals++] = block;
}
static void both_links(void) {
    for (int i = 0; i < MANY / 2; i++) {
        struct node *n = GC_NEW(struct node);
        links[2 * i] = links[2 * i + 1] = n;
        CHECK(GC_general_register_disappearing_link(&links[2 * i], n) == GC_SUCCESS);
        CHECK(GC_register_long_link(&links[2 * i + 1], n) == GC_SUCCESS);
        GC_REGISTER_FINALIZER(n, revive, NULL, NULL, NULL);
    }
}
static void long_links(void) {
    int shorts = 0, longs = 0;
    links = GC_MALLOC_ATOMIC(MANY * sizeof *links);
    memset(links, 0, MANY * sizeof *links);
    aside(both_links);
    collect();
    GC_invoke_finalizers();
    for (int i = 0; i < MANY / 2; i++) {
        shorts += links[2 * i] != NULL;
        longs += links[2 * i + 1] != NULL;
    }
    CHECK(revivals > 0 && shorts < MANY / 10 && longs >= revivals);
    memset(revived, 0, sizeof revived);
    collect();
    longs = 0;
    for (int i = 0; i < MANY / 2; i++)
        longs += links[2 * i + 1] != NULL;
    CHECK(longs < MANY / 10);
}

// A block and the object of its link die at once: the block's finalizer finds the word cleared.
static int held_dead_objects;
static void look_at_link(void *block, void *unused) {
    (void)unused;
    finalized++;
    held_dead_objects += *(GC_hidden_pointer *)block != 0;
}
static void weak_and_dying(void) {
    for (int i = 0; i < MANY; i++) {
        GC_hidden_pointer *link = GC_MALLOC(sizeof *link);
        void *object = GC_MALLOC(40);
        *link = GC_HIDE_POINTER(object);
        GC_general_register_disappearing_link((void **)link, object);
        GC_REGISTER_FINALIZER(link, look_at_link, NULL, NULL, NULL);
    }
}
static void dying(void) {
    aside(weak_and_dying);
    collect();
    GC_invoke_finalizers();
    CHECK(finalized > MANY * 9 / 10 && held_dead_objects < MANY / 10);
}

static GC_ToggleRefStatus toggle(void *block) {
    long value = ((struct node *)block)->value;
    return value == 1 ? GC_TOGGLE_REF_STRONG : value == 2 ? GC_TOGGLE_REF_WEAK : GC_TOGGLE_REF_DROP;
}
static void toggled(void) {
    for (int i = 0; i < MANY; i++) {
        struct node *n = GC_NEW(struct node);
        n->value = 1 + i % 2;
        links[i] = n;
        CHECK(GC_toggleref_add(n, 1) == GC_SUCCESS);
        CHECK(GC_general_register_disappearing_link(&links[i], n) == GC_SUCCESS);
    }
}
static void toggles(void) {
    int strong = 0, weak_ones = 0;
    GC_set_toggleref_func(toggle);
    links = GC_MALLOC_ATOMIC(MANY * sizeof *links);
    aside(toggled);
    collect();
    for (int i = 0; i < MANY; i += 2) {
        strong += links[i] != NULL;
        weak_ones += links[i + 1] != NULL;
    }
    CHECK(strong == MANY / 2 && weak_ones < MANY / 10);
}

const struct test weak_cases[] = {CASE(finalizers), CASE(order),   CASE(self),
                                  CASE(on_demand),  CASE(weak),    CASE(long_links),
                                  CASE(dying),      CASE(toggles), {NULL, NULL}};
