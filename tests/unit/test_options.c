// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Every setting: its default, good and bad values, bounds. Unknown names. Messages name the
// variable, the value and the remedy.
#include "base/options.h"

#include "check.h"

static struct pm_error err;

// Copies the value, because the linker might merge a literal with the default.
static int set(const char *name, const char *value) {
    static char copy[4096];
    snprintf(copy, sizeof copy, "%s", value);
    err = (struct pm_error){0};
    return pm_option_set(name, copy, &err);
}

static uint64_t number_of(const char *name) {
    for (size_t i = 0; i < pm_option_count; i++)
        if (strcmp(pm_option_table[i].name, name) == 0) {
            uint64_t value;
            memcpy(&value, (char *)&pm_options + pm_option_table[i].offset, sizeof value);
            return value;
        }
    CHECK(!"a setting of this name");
    return 0;
}

static void good(const char *name, const char *value, uint64_t number) {
    CHECK_EQ(set(name, value), PM_OK);
    CHECK_STR(err.text, "");
    CHECK_EQ(number_of(name), number);
}

// The value is refused. The message names setting, value and remedy. The setting stays as it was.
static void bad(const char *name, const char *value) {
    uint64_t before = number_of(name);
    CHECK_EQ(set(name, value), PM_USAGE);
    CHECK_EQ(err.status, PM_USAGE);
    char begin[300];
    snprintf(begin, sizeof begin, "%s=%.100s", name, value);
    CHECK(strncmp(err.text, begin, strlen(begin)) == 0);
    CHECK_HAS(err.text, "use ");
    CHECK_HAS(err.text, "default");
    CHECK(strchr(err.text, '\n') == NULL);
    CHECK_EQ(number_of(name), before);
}

static void test_defaults(void) {
    memset(&pm_options, 0xee, sizeof pm_options);
    pm_options_default();
    CHECK_STR(pm_options.heap.text, "");
    CHECK_STR(pm_options.roots.text, "");
    CHECK_STR(pm_options.program.text, "");
    CHECK_EQ(pm_options.limit.number, 1ull << 40);
    CHECK_EQ(pm_options.markers.number, 0);
    CHECK_EQ(pm_options.collect.number, PM_COLLECT_ALWAYS);
    CHECK_EQ(pm_options.check.number, PM_CHECK_ABORT);
    CHECK_EQ(pm_options.reserve.number, PM_RESERVE_LAZY);
    CHECK_EQ(pm_options.busy.number, PM_BUSY_FAIL);
    CHECK_EQ(pm_options.backing.number, PM_BACKING_FILE);
    CHECK_EQ(pm_options.persist.number, PM_PERSIST_AUTO);
    CHECK_EQ(pm_options.decay_ms.number, 10000);
    CHECK_EQ(pm_options.fork.number, 0);
    CHECK_EQ(pm_options.verbose.number, 0);
    CHECK_EQ(pm_options.stats.number, 0);
}

static void test_table(void) {
    for (size_t i = 0; i < pm_option_count; i++) {
        const struct pm_option_info *info = &pm_option_table[i];
        CHECK(strncmp(info->name, "PMALLOC_", 8) == 0);
        CHECK(info->help[0] && info->values[0]);
        CHECK_EQ(info->offset, i * 8);
        for (size_t j = 0; j < i; j++)
            CHECK(strcmp(info->name, pm_option_table[j].name) != 0);
        // Every default may also be set by hand.
        if (info->type != PM_TYPE_TEXT)
            CHECK_EQ(set(info->name, info->fallback), PM_OK);
    }
    CHECK_EQ(sizeof pm_options, pm_option_count * 8);
}

static void test_sizes(void) {
    good("PMALLOC_LIMIT", "4M", 4 << 20);
    good("PMALLOC_LIMIT", "4194304", 4 << 20);
    good("PMALLOC_LIMIT", "4096K", 4 << 20);
    good("PMALLOC_LIMIT", "3G", 3ull << 30);
    good("PMALLOC_LIMIT", "16T", 1ull << 44);
    good("PMALLOC_SHARD", "1T", 1ull << 40);
    static const char *const wrong[] = {"4194303",
                                        "1M",
                                        "17T",
                                        "17592186044417",
                                        "0",
                                        "-1",
                                        "",
                                        "4m",
                                        "4MB",
                                        "4 M",
                                        "M",
                                        " 4M",
                                        "4M ",
                                        "0x1000000",
                                        "1e9",
                                        "4.5M",
                                        "lots",
                                        "+4M",
                                        "99999999999999999999",
                                        "18446744073709551615T",
                                        "16777216T",
                                        "4M\xff"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        bad("PMALLOC_LIMIT", wrong[i]);
    uint64_t value = 7;
    CHECK(pm_parse_size("0", &value));
    CHECK_EQ(value, 0);
    CHECK(pm_parse_size("18446744073709551615", &value));
    CHECK_EQ(value, UINT64_MAX);
    CHECK(!pm_parse_size("18446744073709551616", &value));
    CHECK(!pm_parse_size("17179869184G", &value));
}

static void test_numbers(void) {
    good("PMALLOC_MARKERS", "0", 0);
    good("PMALLOC_MARKERS", "64", 64);
    good("PMALLOC_DECAY_MS", "0", 0);
    good("PMALLOC_DECAY_MS", "3600000", 3600000);
    good("PMALLOC_VERBOSE", "1", 1);
    good("PMALLOC_STATS", "1", 1);
    static const char *const wrong[] = {
        "",    "-1", "65536000000", "1K",  "1 ", " 1",  "0x1",
        "1.0", "x",  "yes",         "1\n", "+1", "1,2", "99999999999999999999"};
    static const char *const names[] = {"PMALLOC_MARKERS", "PMALLOC_DECAY_MS", "PMALLOC_VERBOSE",
                                        "PMALLOC_STATS"};
    for (size_t n = 0; n < 4; n++)
        for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
            if (strcmp(wrong[i], "1\n") != 0)
                bad(names[n], wrong[i]);
    bad("PMALLOC_MARKERS", "65");
    bad("PMALLOC_DECAY_MS", "3600001");
    bad("PMALLOC_VERBOSE", "2");
    bad("PMALLOC_STATS", "2");
    CHECK_EQ(set("PMALLOC_STATS", "1\n"), PM_USAGE);
}

static void choices(const char *name, const char *const *values) {
    uint64_t index = 0;
    for (; values[index]; index++)
        good(name, values[index], index);
    bad(name, "");
    bad(name, "no-such");
    char text[64];
    snprintf(text, sizeof text, "%s|", values[0]);
    bad(name, text);
    if (values[1]) {
        snprintf(text, sizeof text, "%s|%s", values[0], values[1]);
        bad(name, text);
    }
    snprintf(text, sizeof text, "%.*s", (int)strlen(values[0]) - 1, values[0]);
    bad(name, text); // the first letters of a word are not enough
    snprintf(text, sizeof text, "%sx", values[0]);
    bad(name, text);
}
#define CHOICES(name, ...) choices(name, (const char *const[]){__VA_ARGS__, NULL})

static void test_choices(void) {
    CHOICES("PMALLOC_COLLECT", "always", "crash", "later");
    CHOICES("PMALLOC_CHECK", "abort", "report", "strict");
    CHOICES("PMALLOC_RESERVE", "lazy", "strict");
    CHOICES("PMALLOC_BUSY", "fail", "wait");
    CHOICES("PMALLOC_BACKING", "file", "volatile");
    CHOICES("PMALLOC_PERSIST", "auto", "none", "cache", "line", "page");
    CHOICES("PMALLOC_FORK", "private");
}

static void test_text(void) {
    CHECK_EQ(set("PMALLOC_HEAP", "/a b/c=d"), PM_OK);
    CHECK_STR(pm_options.heap.text, "/a b/c=d");
    CHECK_EQ(set("PMALLOC_ROOTS", "head,libx.so:*"), PM_OK);
    CHECK_EQ(set("PMALLOC_PROGRAM", "git*"), PM_OK);
    static const char *const names[] = {"PMALLOC_HEAP", "PMALLOC_ROOTS", "PMALLOC_PROGRAM"};
    for (size_t i = 0; i < 3; i++) {
        CHECK_EQ(set(names[i], ""), PM_USAGE);
        char begin[64];
        snprintf(begin, sizeof begin, "%s=:", names[i]);
        CHECK_HAS(err.text, begin);
        CHECK_HAS(err.text, "unset");
    }
}

static void test_unknown_names(void) {
    static const char *const names[] = {"PMALLOC_", "PMALLOC_HE", "PMALLOC_HEAPHEAP", "HEAP", ""};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        CHECK_EQ(set(names[i], "1"), PM_USAGE);
        CHECK_HAS(err.text, names[i]);
        CHECK_HAS(err.text, "=1: ");
        CHECK_HAS(err.text, "--help");
    }
}

static void test_misspelt_names(void) {
    static const char *const names[][2] = {
        {"PMALLOC_HEA", "HEAP?"},     {"PMALLOC_HEAPS", "HEAP?"},   {"PMALLOC_heap", "HEAP?"},
        {"PMALLOC_LIMIT ", "LIMIT?"}, {"PMALLOC_CHECKS", "CHECK?"}, {"PMALLOC_CEHCK", "CHECK?"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        CHECK_EQ(set(names[i][0], "1"), PM_USAGE);
        CHECK_HAS(err.text, names[i][0]);
        CHECK_HAS(err.text, "did you mean PMALLOC_");
        CHECK_HAS(err.text, names[i][1]);
    }
}

static int load(const char *a, const char *b) {
    static char text[2][512];
    char *list[] = {"PATH=/bin", text[0], "PMALLOX=1", text[1], "XPMALLOC_HEAP=/x", NULL};
    snprintf(text[0], sizeof text[0], "%s", a);
    snprintf(text[1], sizeof text[1], "%s", b);
    err = (struct pm_error){0};
    return pm_options_load(list, &err);
}

static void test_environment(void) {
    CHECK_EQ(load("A=b", "C=d"), PM_OK);
    CHECK_EQ(pm_options.limit.number, 1ull << 40);
    CHECK_EQ(load("PMALLOC_LIMIT=64M", "PMALLOC_HEAP=/tmp/h"), PM_OK);
    CHECK_EQ(pm_options.limit.number, 64 << 20);
    CHECK_STR(pm_options.heap.text, "/tmp/h");
    CHECK_EQ(load("A=b", "C=d"), PM_OK); // nothing is left of the last load
    CHECK_EQ(pm_options.limit.number, 1ull << 40);
    CHECK_STR(pm_options.heap.text, "");
    CHECK_EQ(load("A=b", "PMALLOC_LIMITS=64M"), PM_USAGE);
    CHECK_HAS(err.text, "PMALLOC_LIMITS=64M: no such setting");
    CHECK_EQ(load("PMALLOC_CHECK=maybe", "PMALLOC_HEAP=/tmp/h"), PM_USAGE);
    CHECK_HAS(err.text, "PMALLOC_CHECK=maybe: ");
    CHECK_HAS(err.text, "abort|report|strict");
    CHECK_EQ(load("PMALLOC_CHECK", "A=b"), PM_USAGE); // no '=' at all
    CHECK_EQ(load("PMALLOC_HEAP=", "A=b"), PM_USAGE);
    char longest[400];
    memset(longest, 'X', sizeof longest);
    memcpy(longest, "PMALLOC_", 8);
    longest[sizeof longest - 1] = '\0';
    CHECK_EQ(load(longest, "A=b"), PM_USAGE);
    CHECK_EQ(pm_options_load(NULL, &err), PM_OK);
    CHECK_EQ(pm_options_load((char *[]){NULL}, &err), PM_OK);
}

static char *sample(const char *name, const char *value, char *room) {
    const struct pm_option_info *info = pm_option_table;
    while (strcmp(info->name, name) != 0)
        info++;
    if (!value)
        value = info->type == PM_TYPE_TEXT ? "1s" : "5";
    snprintf(room, 200, "%s=%s", name, value);
    return room;
}

// Each pair of settings that contradict each other: together they are refused, alone they are good.
static void test_pairs(void) {
    char one[200], other[200], expected[210];
    CHECK(pm_option_pair_count >= 6);
    for (size_t i = 0; i < pm_option_pair_count; i++) {
        const struct pm_option_pair *pair = &pm_option_pairs[i];
        bool needs = !*pair->against;
        sample(pair->name, pair->value, one);
        sample(pair->other, needs ? NULL : pair->against, other);
        CHECK_EQ(load(one, needs ? "A=b" : other), PM_USAGE);
        snprintf(expected, sizeof expected, "%s: ", one);
        CHECK(strncmp(err.text, expected, strlen(expected)) == 0);
        CHECK_HAS(err.text, pair->other);
        CHECK_HAS(err.text, pair->remedy);
        CHECK_EQ(load(one, needs ? other : "A=b"), PM_OK);
        CHECK_EQ(load(other, "A=b"), PM_OK);
        // What is said of a default, nobody has set.
        sample(pair->name, "0", one);
        if (!pair->value && strstr(pair->name, "PAGES"))
            CHECK_EQ(load(one, "A=b"), PM_OK);
    }
    // A heap that is opened private is as under `later` anyway.
    CHECK_EQ(load("PMALLOC_COLLECT=background", "PMALLOC_OPEN=private"), PM_USAGE);
    CHECK_EQ(load("PMALLOC_COLLECT=later", "PMALLOC_OPEN=private"), PM_OK);
}

int main(void) {
    RUN(defaults);
    RUN(table);
    RUN(sizes);
    RUN(numbers);
    RUN(choices);
    RUN(text);
    RUN(unknown_names);
    RUN(misspelt_names);
    RUN(environment);
    RUN(pairs);
    return CHECK_DONE();
}
