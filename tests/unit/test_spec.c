// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Specs of roots: texts that are accepted, their canonical form, texts that are refused and why.
#include "roots/spec.h"
#include "tests/unit/check.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static struct pm_spec specs[PM_ROOT_MAX];
static struct pm_error err;
static size_t count;

static int parse(const char *text) {
    errno = 77;
    err = (struct pm_error){.status = PM_OK};
    int r = pm_spec_parse(text, specs, PM_ROOT_MAX, &count, &err);
    CHECK_EQ(errno, 77);
    CHECK_EQ(r, err.status);
    CHECK((r == PM_OK) == (err.text[0] == '\0'));
    CHECK(strchr(err.text, '\n') == NULL);
    return r;
}

// The value must be refused with a message that contains `part`.
static void refuse(const char *text, const char *part) {
    int r = parse(text);
    CHECK_EQ(r, PM_USAGE);
    if (r == PM_OK)
        fprintf(stderr, "accepted: \"%s\"\n", text);
    CHECK_EQ(count, 0);
    CHECK_HAS(err.text, part);
}

// Returns the canonical text of a single spec.
static const char *canon(const char *text) {
    static char buf[PM_SPEC_TEXT_LEN];
    CHECK_EQ(parse(text), 0);
    CHECK_EQ(count, 1);
    struct pm_spec first = specs[0];
    CHECK(pm_spec_format(&first, buf, sizeof buf) == (int)strlen(buf));
    CHECK_EQ(parse(buf), 0);
    CHECK(pm_spec_equal(&first, &specs[0]) && memcmp(&first, &specs[0], sizeof first) == 0);
    return buf;
}

static void test_symbols(void) {
    CHECK_STR(canon("head"), "head");
    CHECK_EQ(specs[0].kind, PM_ROOT_SYMBOL);
    CHECK_STR(specs[0].object, "");
    CHECK_STR(canon("libfoo.so.1:table.0"), "libfoo.so.1:table.0");
    CHECK_STR(specs[0].object, "libfoo.so.1");
    CHECK_STR(specs[0].name, "table.0");
    CHECK_STR(canon("libstdc++.so.6:_ZN2ns4headE"), "libstdc++.so.6:_ZN2ns4headE");
    CHECK_STR(canon("stdout@GLIBC_2.2.5"), "stdout@GLIBC_2.2.5");
    CHECK_STR(canon("t\xc3\xaate"), "t\xc3\xaate");
    refuse("he ad", "stray character ' ' in the symbol at column 3");
    refuse("a,b c", "root 2: ");
    refuse("a, b", "at column 1");
    refuse("a\nb", "stray character '?'");
    CHECK_STR(canon("ns::head"), "ns::head");
    CHECK_STR(canon("libx.so:a::(anonymous namespace)::b"), "libx.so:a::(anonymous namespace)::b");
    CHECK_STR(specs[0].object, "libx.so");
    CHECK_STR(canon("(anonymous namespace)::b"), "(anonymous namespace)::b");
    CHECK_STR(canon("Store::instance()::store"), "Store::instance()::store");
    const char *wrong[] = {"::head",       "a::",       "a:::b",  "a::b()",
                           "a::()::b",     "a::(b)::c", "a b::c", "a::(anonymous namespace)",
                           "a::f(int)::b", "x:::b"};
    for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        refuse(wrong[i], "(anonymous namespace)::store");
    refuse("x:", "empty symbol at column 3");
    refuse(":x", "empty object name at column 1");
    refuse("a:b:c", "stray character ':'");
    refuse("/usr/lib/libx.so:y", "stray character '/' in the object name at column 1");
    refuse("a/b", "stray");
    refuse("a*", "stray");
}

static void test_objects_and_ranges(void) {
    CHECK_STR(canon("*"), "*");
    CHECK_EQ(specs[0].kind, PM_ROOT_OBJECT);
    CHECK_STR(canon("libm:*"), "libm:*");
    refuse("**", "stray character '*'");
    refuse("libm:*x", "column 7");
    CHECK_STR(canon("+16/4K"), "+0x10/4096");
    CHECK_EQ(specs[0].kind, PM_ROOT_RANGE);
    CHECK_STR(canon("a.out:+0x4010/0x10M"), "a.out:+0x4010/16777216");
    CHECK_STR(canon("+0XaB/2g"), "+0xab/2147483648");
    CHECK_STR(canon("+010/1"), "+0xa/1");
    CHECK_STR(canon("+0xfffffffffffffffe/1"), "+0xfffffffffffffffe/1");
    CHECK_STR(canon("+0/18446744073709551615"), "+0x0/18446744073709551615");
    refuse("+0/18446744073709551616", "too large");
    refuse("+0x10000000000000000/1", "OFFSET at column 2 is too large");
    refuse("+0/17179869184G", "too large");
    refuse("+0xffffffffffffffff/1", "OFFSET plus LENGTH");
    refuse("+1/0", "LENGTH is zero");
    refuse("+1/0K", "LENGTH is zero");
    refuse("+1", "'/' is missing");
    refuse("+", "'/' is missing");
    refuse("+/1", "OFFSET is missing");
    refuse("+1/", "LENGTH is missing");
    refuse("+1/K", "stray character 'K'");
    refuse("+0x/1", "OFFSET is missing");
    refuse("+1/0x", "LENGTH is missing");
    refuse("+1K/1", "stray character 'K' in the OFFSET at column 3");
    refuse("+1/1KK", "stray character 'K'");
    refuse("+1/1T", "stray character 'T'");
    refuse("+-1/1", "stray character '-'");
    refuse("+1/1/1", "stray character '/'");
    refuse("+1/ 1", "stray character ' '");
    refuse("+1/0x1g1", "stray character 'g'");
}

static void test_late(void) {
    CHECK_STR(canon("head"), "head");
    CHECK_EQ(specs[0].when, PM_ROOT_AT_START);
    CHECK_STR(canon("head@idle"), "head@idle");
    CHECK_EQ(specs[0].when, PM_ROOT_AT_IDLE);
    CHECK_STR(specs[0].name, "head");
    CHECK_STR(canon("lib.so:head@call"), "lib.so:head@call");
    CHECK_EQ(specs[0].when, PM_ROOT_AT_CALL);
    CHECK_STR(canon("app::store@idle"), "app::store@idle");
    CHECK_STR(canon("+16/8@idle"), "+0x10/8@idle");
    CHECK_STR(canon("stdout@GLIBC_2.2.5@idle"), "stdout@GLIBC_2.2.5@idle");
    CHECK_STR(canon("server+64/16@idle"), "server+0x40/16@idle");
    CHECK_EQ(specs[0].kind, PM_ROOT_RANGE);
    CHECK_STR(specs[0].name, "server");
    CHECK_STR(canon("lib.so:app::store+0/8"), "lib.so:app::store+0x0/8");
    refuse("server+64", "'/' is missing");
    refuse("ser ver+64/8", "stray character ' '");
    CHECK_STR(canon("head@@idle"), "head@@idle"); // a version
    CHECK_EQ(specs[0].when, PM_ROOT_AT_START);
    CHECK_EQ(parse("head,tail@idle"), 0);
    CHECK_EQ(count, 2);
    CHECK(specs[0].when == PM_ROOT_AT_START && specs[1].when == PM_ROOT_AT_IDLE);
    refuse("head@idel", "@idle or @call");
    refuse("+16/8@later", "@idle or @call");
    refuse("*@idle", "a whole object is never restored");
    refuse("lib.so:*@call", "a whole object is never restored");
    refuse("head,head@idle", "named twice");
}

static void test_lists(void) {
    CHECK_EQ(parse(""), 0);
    CHECK_EQ(count, 0);
    CHECK_EQ(parse("a,b:c,*,b:*,+1/1"), 0);
    CHECK_EQ(count, 5);
    refuse(",", "root 1: empty root");
    refuse("a,", "root 2: empty root");
    refuse("a,,b", "root 2: empty root");
    refuse("a,b,a", "root 3: \"a\" is named twice");
    refuse("+16/8,+0x10/8", "named twice");
    refuse("*,@x", "root 2");

    static char many[PM_ROOT_MAX * 8 + 16];
    size_t at = 0;
    for (int i = 0; i < PM_ROOT_MAX; i++)
        at += (size_t)sprintf(many + at, "%sv%d", i ? "," : "", i);
    CHECK_EQ(parse(many), 0);
    CHECK_EQ(count, PM_ROOT_MAX);
    strcpy(many + at, ",last");
    refuse(many, "root 257: \"last\": too many roots, at most 256");
}

static void test_lengths(void) {
    char text[400];
    memset(text, 'a', sizeof text);
    text[PM_ROOT_NAME_LEN - 1] = '\0';
    CHECK_STR(canon(text), text);
    text[PM_ROOT_NAME_LEN - 1] = 'a';
    text[PM_ROOT_NAME_LEN] = '\0';
    refuse(text, "160 characters, at most 159");
    text[PM_ROOT_OBJECT_LEN] = ':';
    refuse(text, "96 characters, at most 95");
    text[PM_ROOT_NAME_LEN] = 'a';
    text[PM_ROOT_OBJECT_LEN - 1] = ':';
    text[PM_ROOT_OBJECT_LEN + PM_ROOT_NAME_LEN - 1] = '\0';
    memset(text + PM_ROOT_OBJECT_LEN, 'b', PM_ROOT_NAME_LEN - 1);
    CHECK_STR(canon(text), text);

    char small[8];
    CHECK_EQ(pm_spec_format(&specs[0], small, sizeof small), (unsigned long long)-1);
    char path_of_file[600] = "@/"; // the message is truncated, and still ends in NUL
    memset(path_of_file + 2, 'x', sizeof path_of_file - 3);
    refuse(path_of_file, "cannot open /xxx");
    CHECK(strlen(err.text) == sizeof err.text - 1);
}

static char path[64] = "/tmp/pmalloc-rootspec-XXXXXX";

static const char *file_with(const char *text, size_t len) {
    static char spec[80];
    FILE *f = fopen(path, "w");
    CHECK(f != NULL && fwrite(text, 1, len, f) == len && fclose(f) == 0);
    snprintf(spec, sizeof spec, "@%s", path);
    return spec;
}

#define FILE_WITH(s) file_with(s, sizeof(s) - 1)

static void test_files(void) {
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    close(fd);
    CHECK_EQ(parse(FILE_WITH("")), 0);
    CHECK_EQ(count, 0);
    CHECK_EQ(parse(FILE_WITH("# none\n\n   \n\t# x\n")), 0);
    CHECK_EQ(count, 0);
    CHECK_EQ(parse(FILE_WITH("\xef\xbb\xbfhead\r\n  libm:*\t# all\r\n\r\n+0x10/8")), 0);
    CHECK_EQ(count, 3);
    CHECK_STR(specs[0].name, "head");
    CHECK_STR(specs[1].object, "libm");
    CHECK_EQ(specs[2].length, 8);
    refuse(FILE_WITH("a\n\nb,c\n"), " line 3: \"b,c\": stray character ','");
    CHECK_HAS(err.text, path);
    refuse(FILE_WITH("a\n# b\na\n"), " line 3: \"a\" is named twice");
    refuse(FILE_WITH("a\0b\n"), "stray character '?'");
    refuse("@", "no file name");
    refuse("@/nonexistent/x", "cannot open /nonexistent/x: No such file or directory");
    refuse("@/tmp", "not a regular file");
    refuse("@/dev/null", "not a regular file");

    char *big = malloc(PM_SPEC_FILE_MAX + 1);
    memset(big, '#', PM_SPEC_FILE_MAX + 1);
    CHECK_EQ(parse(file_with(big, PM_SPEC_FILE_MAX)), 0);
    refuse(file_with(big, PM_SPEC_FILE_MAX + 1), "longer than 1048576 bytes");
    free(big);
    unlink(path);
    CHECK_EQ(mkfifo(path, 0600), 0);
    char spec[80];
    snprintf(spec, sizeof spec, "@%s", path);
    refuse(spec, "not a regular file");
    unlink(path);
}

int main(void) {
    RUN(symbols);
    RUN(objects_and_ranges);
    RUN(late);
    RUN(lists);
    RUN(lengths);
    RUN(files);
    return CHECK_DONE();
}
