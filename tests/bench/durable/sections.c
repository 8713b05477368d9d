// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Structures that two threads change under locks, for scripts/section-bench. One source, two
// builds: an ordinary program, which knows nothing of persistent memory; and with ATLAS defined one
// for Atlas (HewlettPackard/Atlas), whose stores and locks are instrumented by hand, as its
// compiler does it.
//
//   sections queue|list|alarm|array SECONDS
//
// Says first what an earlier run has left: "new", "whole" or "torn". Then
// "ready", and in the end sections a second.
//
//   queue    one thread puts numbers in, one takes them out; a lock for each end
//   list     a sorted list of numbers, which both threads insert and remove; one lock
//   alarm    32 chains of alarms of 100 bytes that are set, changed and cancelled; a lock for each
//   array    1,000 numbers that are copied for each change; one lock to put the copy in place
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef ATLAS
#include <atlas_alloc.h>
#include <atlas_api.h>
#include <internal_api.h>
static uint32_t region;
#define SET(at, value) NVM_STR2(at, value, sizeof(at) * 8)
#define COPY(to, from, len) NVM_MEMCPY(to, from, len)
#define LOCK(mutex) NVM_LOCK(mutex)
#define UNLOCK(mutex) NVM_UNLOCK(mutex)
#define NEW(len) nvm_alloc(len, region)
#define DELETE(block) nvm_free(block)
#else
#define SET(at, value) (at) = (value)
#define COPY(to, from, len) memcpy(to, from, len)
#define LOCK(mutex) pthread_mutex_lock(&(mutex))
#define UNLOCK(mutex) pthread_mutex_unlock(&(mutex))
#define NEW(len) malloc(len)
#define DELETE(block) free(block)
#endif

enum { CHAINS = 32, NUMBERS = 1000, KEYS = 256, LONGEST = 20000 };

struct node {
    struct node *next;
    long number, twice;
};

struct alarm {
    struct alarm *next;
    int minute;
    char name[100];
};

struct array {
    long sum;
    int numbers[NUMBERS];
};

struct store {
    struct node *head, *tail; // of the queue; its first node is not in it
    long put, taken;
    struct node *list;
    long length;
    struct alarm *chain[CHAINS];
    long in_chain[CHAINS];
    struct array *array, *before;
    long changes;
};

struct store *root;

static pthread_mutex_t mutex[CHAINS];
static _Atomic int over;

static unsigned next(unsigned *seed) {
    *seed = *seed * 1103515245 + 12345;
    return *seed >> 16;
}

// ---- queue --------------------------------------------------------------------------------------

static struct node *new_node(long number, struct node *behind) {
    struct node *n = NEW(sizeof *n);
    SET(n->number, number);
    SET(n->twice, 2 * number);
    SET(n->next, behind);
    return n;
}

static int put(void) {
    if (root->put - root->taken > LONGEST) // looks only
        return 0;
    LOCK(mutex[0]);
    struct node *n = new_node(root->put + 1, NULL);
    SET(root->tail->next, n);
    SET(root->tail, n);
    SET(root->put, root->put + 1);
    UNLOCK(mutex[0]);
    return 1;
}

static int take(void) {
    LOCK(mutex[1]);
    struct node *old = root->head, *n = old->next;
    if (n) {
        SET(root->head, n);
        SET(root->taken, root->taken + 1);
    }
    UNLOCK(mutex[1]);
    if (n)
        DELETE(old);
    return n != NULL;
}

static int queue(int who, unsigned *seed) {
    (void)seed;
    return who == 0 ? put() : take();
}

static int queue_is_whole(void) {
    long count = 0;
    const struct node *n = root->head;
    for (; n->next; n = n->next, count++)
        if (n->next->number != n->number + 1 || n->next->twice != 2 * n->next->number)
            return 0;
    return n == root->tail && n->number == root->put && count == root->put - root->taken;
}

// ---- list ---------------------------------------------------------------------------------------

static int list(int who, unsigned *seed) {
    long number = next(seed) % KEYS;
    (void)who;
    LOCK(mutex[0]);
    struct node *before = NULL, *n = root->list;
    for (; n && n->number < number; n = n->next)
        before = n;
    struct node *found = n && n->number == number ? n : NULL;
    struct node *now = found ? found->next : new_node(number, n);
    if (before) {
        SET(before->next, now);
    } else {
        SET(root->list, now);
    }
    SET(root->length, root->length + (found ? -1 : 1));
    UNLOCK(mutex[0]);
    if (found)
        DELETE(found);
    return 1;
}

static int list_is_whole(void) {
    long count = 0, last = -1;
    for (const struct node *n = root->list; n; last = n->number, n = n->next, count++)
        if (n->number <= last || n->twice != 2 * n->number)
            return 0;
    return count == root->length;
}

// ---- alarm --------------------------------------------------------------------------------------

static void name_of(char *name, size_t len, int minute, unsigned mode) {
    snprintf(name, len, "%d %u %d", minute, mode, minute + (int)mode);
}

static void set_alarm(int minute, unsigned mode) {
    unsigned c = (unsigned)minute % CHAINS;
    char name[100] = "";
    name_of(name, sizeof name, minute, mode);
    LOCK(mutex[c]);
    struct alarm *a = root->chain[c];
    while (a && a->minute != minute)
        a = a->next;
    if (!a) {
        a = NEW(sizeof *a);
        SET(a->minute, minute);
        SET(a->next, root->chain[c]);
        SET(root->chain[c], a);
        SET(root->in_chain[c], root->in_chain[c] + 1);
    }
    COPY(a->name, name, sizeof name);
    UNLOCK(mutex[c]);
}

static void cancel_alarm(int minute) {
    unsigned c = (unsigned)minute % CHAINS;
    LOCK(mutex[c]);
    struct alarm *before = NULL, *a = root->chain[c];
    for (; a && a->minute != minute; a = a->next)
        before = a;
    if (a && before) {
        SET(before->next, a->next);
    } else if (a) {
        SET(root->chain[c], a->next);
    }
    if (a)
        SET(root->in_chain[c], root->in_chain[c] - 1);
    UNLOCK(mutex[c]);
    if (a)
        DELETE(a);
}

static int alarms(int who, unsigned *seed) {
    int minute = (int)(next(seed) % (24 * 60));
    (void)who;
    if (next(seed) % 2)
        set_alarm(minute, next(seed) % 100);
    else
        cancel_alarm(minute);
    return 1;
}

static int alarms_are_whole(void) {
    for (unsigned c = 0; c < CHAINS; c++) {
        long count = 0;
        for (const struct alarm *a = root->chain[c]; a; a = a->next, count++) {
            int minute, sum;
            unsigned mode;
            if (sscanf(a->name, "%d %u %d", &minute, &mode, &sum) != 3 || minute != a->minute ||
                sum != minute + (int)mode || (unsigned)minute % CHAINS != c)
                return 0;
        }
        if (count != root->in_chain[c])
            return 0;
    }
    return 1;
}

// ---- array --------------------------------------------------------------------------------------

static int array(int who, unsigned *seed) {
    struct array *copy = NEW(sizeof *copy);
    unsigned i = next(seed) % NUMBERS;
    int number = (int)next(seed);
    (void)who;
    LOCK(mutex[0]);
    COPY(copy, root->array, sizeof *copy);
    SET(copy->sum, copy->sum - copy->numbers[i] + number);
    SET(copy->numbers[i], number);
    struct array *old = root->before;
    SET(root->before, root->array);
    SET(root->array, copy);
    SET(root->changes, root->changes + 1);
    UNLOCK(mutex[0]);
    if (old)
        DELETE(old);
    return 1;
}

static int array_is_whole(void) {
    long sum = 0;
    for (unsigned i = 0; i < NUMBERS; i++)
        sum += root->array->numbers[i];
    return sum == root->array->sum;
}

// ---- the program --------------------------------------------------------------------------------

static const struct kind {
    const char *name;
    int (*section)(int who, unsigned *seed); // whether it has done something
    int (*is_whole)(void);
} kinds[] = {{"queue", queue, queue_is_whole},
             {"list", list, list_is_whole},
             {"alarm", alarms, alarms_are_whole},
             {"array", array, array_is_whole}};
static const struct kind *kind;

static void *work(void *arg) {
    int who = (int)(size_t)arg;
    unsigned seed = (unsigned)who + 1 + (unsigned)getpid();
    long count = 0;
    while (!over)
        count += kind->section(who, &seed);
    return (void *)count;
}

static void make(void) {
    struct store *fresh = NEW(sizeof *fresh);
    memset(fresh, 0, sizeof *fresh);
    fresh->head = fresh->tail = NEW(sizeof(struct node));
    memset(fresh->head, 0, sizeof(struct node));
    fresh->array = NEW(sizeof(struct array));
    memset(fresh->array, 0, sizeof(struct array));
    root = fresh;
#ifdef ATLAS
    NVM_SetRegionRoot(region, fresh);
#endif
}

static void find(const char *name) {
#ifdef ATLAS
    NVM_Initialize();
    region = NVM_FindOrCreateRegion(name, O_RDWR, NULL);
    root = NVM_GetRegionRoot(region);
#else
    (void)name;
#endif
    if (!root) {
        make();
        puts("new");
    } else
        puts(kind->is_whole() ? "whole" : "torn");
    puts("ready");
    fflush(stdout);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    pthread_t other;
    void *counts[2];
    for (size_t i = 0; argc == 3 && i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].name, argv[1]) == 0)
            kind = &kinds[i];
    if (!kind)
        return 2;
    for (unsigned i = 0; i < CHAINS; i++)
        pthread_mutex_init(&mutex[i], NULL);
    find(argv[1]);
    double seconds = atof(argv[2]), since = now();
    pthread_t first;
    pthread_create(&first, NULL, work, (void *)0);
    pthread_create(&other, NULL, work, (void *)1);
    usleep((useconds_t)(seconds * 1e6));
    over = 1;
    pthread_join(first, &counts[0]);
    pthread_join(other, &counts[1]);
    printf("%.0f\n", (double)((long)counts[0] + (long)counts[1]) / (now() - since));
#ifdef ATLAS
    NVM_CloseRegion(region);
    NVM_Finalize();
#endif
    return 0;
}
