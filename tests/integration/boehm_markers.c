// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program for gc.h whose collections several threads mark. The argument names the case;
// test_boehm_markers.py lists them.
#include <dirent.h>
#include <errno.h>
#include <sys/syscall.h>

#include "boehm_case.h"
#include "call_filter.h"

struct node *kept;

static int tasks(void) {
    DIR *dir = opendir("/proc/self/task");
    int count = 0;
    CHECK(dir);
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        count += e->d_name[0] != '.';
    closedir(dir);
    return count;
}

// ---- the same objects survive -------------------------------------------------------------------

#define OBJECTS 60000
#define FAN 4
#define MUTATORS 2

struct object {
    struct object *to[FAN];
    long number;
};
static struct object **roots; // every tenth object
static void **weak;           // hidden: to all objects
static char *expected;        // which are reached

static unsigned long seed = 88172645463325252ul;
static unsigned random_below(unsigned n) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (unsigned)(seed % n);
}

static void expect(const struct object *o) {
    struct object const **todo = malloc(OBJECTS * sizeof *todo);
    size_t depth = 0;
    for (; o || depth; o = depth ? todo[--depth] : NULL) {
        if (expected[o->number])
            continue;
        expected[o->number] = 1;
        for (int i = 0; i < FAN; i++)
            if (o->to[i] && depth < OBJECTS)
                todo[depth++] = o->to[i];
    }
    free(todo);
}

static void build(void) {
    struct object **all = GC_MALLOC(OBJECTS * sizeof *all);
    for (long i = 0; i < OBJECTS; i++) {
        all[i] = i % 3 ? GC_MALLOC(sizeof **all) : GC_MALLOC(sizeof **all + i % 5000);
        all[i]->number = i;
        weak[i] = (void *)GC_HIDE_POINTER(all[i]);
        CHECK(GC_general_register_disappearing_link(&weak[i], all[i]) == GC_SUCCESS);
    }
    for (long i = 0; i < OBJECTS; i++)
        for (int f = 0; f < FAN && random_below(3) == 0; f++)
            all[i]->to[f] = all[random_below(OBJECTS)];
    for (int i = 0; i < OBJECTS / 10; i++)
        roots[i] = all[i * 10];
    for (int i = 0; i < OBJECTS / 10; i++)
        expect(roots[i]);
    memset(all, 0, OBJECTS * sizeof *all);
}

static volatile bool over;

// Trees grow and are let go; a list of them grows, is looked at, and is let go.
static void *mutate(void *unused) {
    while (!over) {
        struct node *list = NULL;
        for (long i = 0; i < 1000; i++) {
            struct node *n = tree(4);
            CHECK(sum(n) == 26);
            n->right = list;
            n->value = i;
            list = n;
        }
        for (long i = 1000; i-- > 0; list = list->right)
            CHECK(list->value == i && sum(list->left) == 11);
        CHECK(!list);
    }
    return unused;
}

static void survive(void) {
    pthread_t thread[MUTATORS];
    roots = GC_MALLOC(OBJECTS / 10 * sizeof *roots);
    weak = GC_MALLOC_ATOMIC_UNCOLLECTABLE(OBJECTS * sizeof *weak);
    expected = calloc(OBJECTS, 1);
    aside(build);
    for (int i = 0; i < MUTATORS; i++)
        CHECK(pthread_create(&thread[i], NULL, mutate, NULL) == 0);
    for (int i = 0; i < 20; i++)
        GC_gcollect();
    over = true;
    for (int i = 0; i < MUTATORS; i++)
        pthread_join(thread[i], NULL);
    collect();
    int reached = 0, alive = 0, lost = 0, left = 0;
    for (int i = 0; i < OBJECTS; i++) {
        reached += expected[i];
        alive += weak[i] != NULL;
        lost += expected[i] && !weak[i];
        left += !expected[i] && weak[i];
        if (weak[i])
            CHECK(((struct object *)GC_REVEAL_POINTER(weak[i]))->number == i);
    }
    CHECK(reached > OBJECTS / 10 && reached < OBJECTS * 9 / 10);
    CHECK(alive >= reached && lost == 0);
    CHECK(left < OBJECTS / 100); // old addresses on stacks
}

// ---- how many -----------------------------------------------------------------------------------

static void counts(void) {
    GC_set_markers_count(3);
    GC_INIT();
    GC_start_mark_threads();
    CHECK(GC_get_parallel() == (getenv("GC_MARKERS") ? atoi(getenv("GC_MARKERS")) - 1 : 2));
    GC_set_markers_count(7); // too late
    CHECK(GC_get_parallel() == (getenv("GC_MARKERS") ? atoi(getenv("GC_MARKERS")) - 1 : 2));
    struct GC_prof_stats_s stats;
    CHECK(GC_get_prof_stats(&stats, sizeof stats) == sizeof stats);
    CHECK(stats.markers_m1 == (GC_word)GC_get_parallel());
}

static void defaults(void) { printf("%d\n", GC_get_parallel()); }

// Says on stderr who took part. Nobody stays.
static void part(void) {
    kept = tree(17);
    long expect_sum = sum(kept);
    for (int i = 0; i < 30; i++) {
        GC_gcollect();
        CHECK(tasks() == 1);
        GC_dump();
    }
    CHECK(sum(kept) == expect_sum);
}

// Where there is little to mark.
static void small(void) {
    kept = tree(8);
    for (int i = 0; i < 20; i++)
        GC_gcollect();
    GC_dump();
}

// ---- forks --------------------------------------------------------------------------------------

static void *collects(void *unused) {
    while (!over)
        GC_gcollect();
    return unused;
}

static void forks(void) {
    pthread_t thread;
    kept = tree(16);
    long expect_sum = sum(kept);
    fflush(stdout);
    CHECK(pthread_create(&thread, NULL, collects, NULL) == 0);
    for (int i = 0; i < 30; i++) {
        pid_t child = fork();
        if (child == 0) {
            CHECK(tasks() == 1);
            GC_gcollect();
            CHECK(tasks() == 1);
            tree(10);
            _exit(sum(kept) == expect_sum ? 0 : 1);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    over = true;
    pthread_join(thread, NULL);
    CHECK(sum(kept) == expect_sum);
}

// ---- filters ------------------------------------------------------------------------------------

static void forbid_threads(unsigned action) { CHECK(filter_call(SYS_clone, action)); }

static void alone(void) {
    kept = tree(17);
    long expect_sum = sum(kept);
    GC_gcollect();
    GC_gcollect();
    CHECK(sum(kept) == expect_sum);
    GC_dump();
}

static void filtered(void) {
    forbid_threads(SECCOMP_RET_KILL_PROCESS);
    alone();
}

// The filter is there when the program starts: nobody has seen it.
static void inherited(void) {
    forbid_threads(SECCOMP_RET_ERRNO | EPERM);
    execl("/proc/self/exe", "boehm_markers", "alone", NULL);
    CHECK(!"exec");
}

// ---- mark procedures ----------------------------------------------------------------------------

static __thread int here;
static int called, elsewhere;
static unsigned kind;

static struct GC_ms_entry *second(GC_word *block, struct GC_ms_entry *top,
                                  struct GC_ms_entry *limit, GC_word unused) {
    (void)unused;
    called++;
    elsewhere += here != 1;
    return GC_MARK_AND_PUSH((void *)block[1], top, limit, (void **)&block[1]);
}

static GC_word **table;

static void procs(void) {
    here = 1;
    kind = GC_new_kind(GC_new_free_list(), GC_MAKE_PROC(GC_new_proc(second), 0), 0, 1);
    table = GC_MALLOC(50000 * sizeof *table);
    for (long i = 0; i < 50000; i++) {
        table[i] = GC_generic_malloc(32, (int)kind);
        GC_word *leaf = GC_MALLOC(200);
        leaf[7] = (GC_word)i;
        table[i][1] = (GC_word)leaf;
    }
    for (int i = 0; i < 20; i++) {
        called = 0;
        GC_gcollect();
        CHECK(called >= 50000);
    }
    CHECK(elsewhere == 0);
    for (long i = 0; i < 50000; i++)
        CHECK(((GC_word *)table[i][1])[7] == (GC_word)i);
    GC_dump();
}

static const struct test cases[] = {CASE(survive), CASE(defaults), CASE(part),     CASE(small),
                                    CASE(forks),   CASE(alone),    CASE(filtered), CASE(inherited),
                                    CASE(procs),   {NULL, NULL}};

int main(int argc, char **argv) {
    CHECK(argc == 2);
    if (!strcmp(argv[1], "counts"))
        return counts(), puts("right") < 0;
    GC_INIT();
    GC_allow_register_threads();
    for (const struct test *test = cases; test->name; test++)
        if (!strcmp(test->name, argv[1]))
            return test->run(), puts("right") < 0;
    return 2;
}
