// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Error messages: a reason, and the places that callers put before it.
#include "base/message.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

static void test_places(void) {
    struct pm_error err;
    CHECK_EQ(pm_fail(&err, PM_DAMAGE, "it has %d bytes", 7), PM_DAMAGE);
    CHECK_EQ(pm_fail_in(&err, "%s line %d", "file", 3), PM_DAMAGE);
    CHECK_STR(err.text, "file line 3: it has 7 bytes");
    CHECK_EQ(err.status, PM_DAMAGE);
}

static void test_long_ones_are_cut(void) {
    struct pm_error err;
    pm_fail(&err, PM_USAGE, "%0700d", 1);
    CHECK_EQ(strlen(err.text), sizeof err.text - 1);
    CHECK_EQ(pm_fail_in(&err, "here"), PM_USAGE);
    CHECK_EQ(strlen(err.text), sizeof err.text - 1);
    CHECK(strncmp(err.text, "here: 000", 9) == 0);
    for (int length = 505; length < 520; length++) {
        pm_fail(&err, PM_USAGE, "no");
        pm_fail_in(&err, "%0*d", length, 1);
        size_t whole = (size_t)length + strlen(": no");
        CHECK_EQ(strlen(err.text), whole < sizeof err.text ? whole : sizeof err.text - 1);
        CHECK_EQ(err.text[0], '0');
    }
}

static void test_control_characters(void) {
    char line[64] = "";
    int ends[2], errors = dup(STDERR_FILENO);
    CHECK(errors >= 0 && pipe(ends) == 0);
    dup2(ends[1], STDERR_FILENO);
    pm_say("%s is busy", "/a\033[1m\n\tb\177/\303\251");
    dup2(errors, STDERR_FILENO);
    CHECK(read(ends[0], line, sizeof line - 1) > 0);
    CHECK_STR(line, "pmalloc: /a?[1m??b?/\303\251 is busy\n");
    close(ends[0]);
    close(ends[1]);
    close(errors);
}

static void test_texts_of_errno(void) {
    CHECK_STR(pm_strerror(ENOENT), strerror(ENOENT));
    CHECK(pm_strerror(100000) != NULL);
}

int main(void) {
    RUN(places);
    RUN(long_ones_are_cut);
    RUN(control_characters);
    RUN(texts_of_errno);
    return CHECK_DONE();
}
