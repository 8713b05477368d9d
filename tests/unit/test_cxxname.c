// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// C++ names decoded from the symbols that g++ 12 makes.
#include "roots/cxxname.h"

#include <string.h>

#include "check.h"

static const char *plain(const char *symbol) {
    static char out[256];
    return pm_cxxname_plain(symbol, strlen(symbol) + 1, out, sizeof out) ? out : "-";
}

static void test_names(void) {
    CHECK_STR(plain("_ZN3app5storeE"), "app::store");
    CHECK_STR(plain("_ZN3app5storeB5cxx11E"), "app::store");
    CHECK_STR(plain("_ZL5store"), "store");
    CHECK_STR(plain("_Z5titleB5cxx11"), "title");
    CHECK_STR(plain("_ZN3appL6hiddenE"), "app::hidden");
    CHECK_STR(plain("_ZN5Store5Inner4dataE"), "Store::Inner::data");
    CHECK_STR(plain("_ZN12_GLOBAL__N_15namesB5cxx11E"), "(anonymous namespace)::names");
    CHECK_STR(plain("_ZN3app12_GLOBAL__N_15namesE"), "app::(anonymous namespace)::names");
}

static void test_statics_of_functions(void) {
    CHECK_STR(plain("_ZZ6log_ofvE3log"), "log_of()::log");
    CHECK_STR(plain("_ZZN5Store8instanceEvE1s"), "Store::instance()::s");
    CHECK_STR(plain("_ZZNK5Store3getEvE5cacheB5cxx11"), "Store::get()::cache");
    CHECK_STR(plain("_ZZ1fN3FooEE3log"), "f()::log");
    CHECK_STR(plain("_ZZ1fiE1s_0"), "f()::s");
    CHECK_STR(plain("_ZZ1fiE1s__12_"), "f()::s");
    CHECK_STR(plain("_ZZL1fvE1s"), "f()::s");
}

static void test_everything_else(void) {
    const char *none[] = {"store",
                          "_Z",
                          "_ZN",
                          "_ZN3app",
                          "_ZN3appE1",
                          "_ZTI3Foo",
                          "_ZGVZ1fvE1s",
                          "_ZN3FooIiE1xE",
                          "_ZN3app99storeE",
                          "_ZN0E",
                          "_Z1fv",
                          "_ZZ1fvE",
                          "_ZZ1fvE1s_x",
                          "_ZN3FooC1Ev",
                          "_ZNE",
                          "_ZN99999999999999999999aE",
                          "_ZSt4cout",
                          ""};
    for (unsigned i = 0; i < sizeof none / sizeof none[0]; i++)
        CHECK_STR(plain(none[i]), "-");
    char out[64];
    CHECK(!pm_cxxname_plain("_ZN3app5storeE", 14, out, sizeof out)); // 14 bytes: without the NUL
    for (size_t len = 0; len < 11; len++)
        CHECK(!pm_cxxname_plain("_ZN3app5storeE", 15, out, len));
    CHECK(pm_cxxname_plain("_ZN3app5storeE", 15, out, 11) && strcmp(out, "app::store") == 0);
}

int main(void) {
    RUN(names);
    RUN(statics_of_functions);
    RUN(everything_else);
    return CHECK_DONE();
}
