// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// SIGKILL at random instants: during random operations on extents, and while the heap is opened.
// The next session finds exactly the extents that were held. The one operation under way has
// happened completely or not at all.
#include "extent_model.h"

#define KILLS 150

static struct {
    struct held held[MODEL];
    int slot; // the one that the operation under way changes; -1: none
    struct held was;
    uint64_t steps, sessions;
} * shared;

static void adopt_held(struct held *h, struct held from) {
    uint32_t index = *pm_page_extent(from.page);
    const struct pm_extent *e = &pm_extents[index];
    CHECK(index && e->state == PM_EXTENT_ACTIVE && e->page == from.page);
    *h = from;
    h->index = index;
    if (!h->slab)
        *pm_tag_of_page(h->page) = PM_TAG_EXTENT;
    held_pages += h->pages;
}

// What the interrupted operation left: no extent, or one with its old or its new size.
static void adopt_interrupted(struct held was) {
    uint32_t index = was.index ? *pm_page_extent(was.page) : 0;
    const struct pm_extent *e = &pm_extents[index];
    if (!index || e->state != PM_EXTENT_ACTIVE || e->page != was.page)
        return;
    struct held *h = &held[shared->slot];
    was.pages = e->pages;
    adopt_held(h, was);
    uint64_t first = page_word(h->page)[0];
    // Another stamp: an earlier session wrote it here and was killed before it could note it.
    CHECK(first == was.stamp || is_stamp(first));
    stamp_ends(h);
}

// Frees an extent that was taken, and that the model does not know yet.
static unsigned release_unknown(void) {
    unsigned unknown = 0;
    for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;) {
        bool known = false;
        for (unsigned k = 0; k < MODEL; k++)
            known |= held[k].index == i;
        if (known)
            continue;
        unknown++;
        pm_extent_release(i);
    }
    return unknown;
}

static void resume(void) {
    for (int i = 0; i < MODEL; i++)
        if (i != shared->slot && shared->held[i].index)
            adopt_held(&held[i], shared->held[i]);
    if (shared->slot >= 0)
        adopt_interrupted(shared->was);
    unsigned unknown = release_unknown();
    CHECK(unknown == 0 || (unknown == 1 && shared->slot >= 0 && !shared->was.index));
}

static void publish(int slot) {
    shared->held[slot] = held[slot];
    __atomic_store_n(&shared->slot, -1, __ATOMIC_RELEASE);
}

static void session(void) {
    struct pm_error err = {0};
    pm_options_default();
    MUST(pm_option_set("PMALLOC_DECAY_MS", shared->sessions % 2 ? "0" : "10000", &err) == PM_OK);
    if (shared->sessions++ == 0) {
        fixture_new_heap();
    } else {
        CHECK_EQ(fixture_reopen(PM_OPEN_EXISTING, &err), PM_OK);
        CHECK_STR(err.text, "");
        if (check_failures)
            return;
        resume();
    }
    check_partition();
    check_held();
    memcpy(shared->held, held, sizeof held);
    shared->slot = -1;
    fixture_seed += shared->sessions * 1000003;
    while (!check_failures) {
        int slot = (int)rnd(MODEL / 4);
        shared->was = held[slot];
        __atomic_store_n(&shared->slot, slot, __ATOMIC_RELEASE);
        model_step_at(&held[slot]);
        publish(slot);
        shared->steps++;
    }
}

static void test_kill(void) {
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(shared != MAP_FAILED);
    unsigned during = 0;
    for (int i = 0; i < KILLS && !check_failures; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            check_failures = 0;
            session();
            fflush(NULL);
            _exit(1); // only a failed check ends a session
        }
        // Two kills in three come during the operations. The third may come while the heap is
        // opened.
        uint64_t before = shared->steps;
        for (int wait = 0; wait < 20000 && shared->steps == before && (i == 0 || i % 3); wait++)
            usleep(100);
        usleep((useconds_t)rnd(i % 3 ? 4000 : 1500));
        kill(pid, SIGKILL);
        int status = 0;
        waitpid(pid, &status, 0);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        during += shared->slot >= 0;
    }
    printf("  %d kills, %u of them during an operation, %lu operations\n", KILLS, during,
           (unsigned long)shared->steps);
    CHECK(during > 0);
}

int main(void) {
    RUN_CHILD(kill);
    return CHECK_DONE();
}
