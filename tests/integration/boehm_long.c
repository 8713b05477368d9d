// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A collection that takes longer than a commit waits for threads.
// usage: boehm_long alone|threads|says    says: it writes a line amid the collection
#include <gc/gc.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LONG_MS 2500 // of time: more than twice as long
#define SLEEP_MS 300 // several commits

static int says, collections;
void **volatile kept; // the root

static long now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void take_long(GC_EventType event) {
    if (event != GC_EVENT_MARK_START)
        return;
    collections++;
    if (says && write(STDOUT_FILENO, "amid\n", 5) != 5)
        collections = 100;
    for (long end = now_ms() + LONG_MS; now_ms() < end;)
        ;
}

static void *wait(void *pipe) {
    char c;
    return read(*(int *)pipe, &c, 1) == 1 ? NULL : pipe;
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "alone";
    pthread_t other;
    int ends[2];
    GC_INIT();
    kept = GC_MALLOC(sizeof(void *));
    *kept = GC_MALLOC(100);
    says = !strcmp(how, "says");
    if (pipe(ends) || (!strcmp(how, "threads") && pthread_create(&other, NULL, wait, &ends[0])))
        return 2;
    GC_set_on_collection_event(take_long);
    GC_gcollect();
    GC_set_on_collection_event(NULL);
    nanosleep(&(struct timespec){.tv_nsec = SLEEP_MS * 1000000L}, NULL);
    if (!strcmp(how, "threads") && (write(ends[1], "", 1) != 1 || pthread_join(other, NULL)))
        return 3;
    printf("%d\n", collections);
    return 0;
}
