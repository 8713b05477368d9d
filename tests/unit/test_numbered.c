// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Names that differ in numbers of the compiler's alone (moved/numbered.h), as gcc 12, clang 14 and
// rustc write them.
#include "moved/numbered.h"

#include <string.h>

#include "check.h"

static const char *const alike[][2] = {
    {"_ZZ4fillvENUliE_4_FUNEi", "_ZZ4fillvENUliE0_4_FUNEi"},
    {"_ZZ4fillvENUliE0_4_FUNEi", "_ZZ4fillvENUliE12_4_FUNEi"},
    {"_ZZ4fillvEN3$_08__invokeEi", "_ZZ4fillvEN4$_118__invokeEi"},
    {"_ZNSt17_Function_handlerIFivEZ4fillvEUlvE1_E9_M_invokeERKSt9_Any_data",
     "_ZNSt17_Function_handlerIFivEZ4fillvEUlvE2_E9_M_invokeERKSt9_Any_data"},
    {"_ZTVZ4mainE5Local", "_ZTVZ4mainE5Local_0"},
    {"_ZZ5countiE1n_1", "_ZZ5countiE1n"},
    {"_ZZ5countiE1n_9", "_ZZ5countiE1n__10_"},
    {"_ZN3BoxIUt_E3getEv", "_ZN3BoxIUt0_E3getEv"},
    {"_ZN1a1b28_$u7b$$u7b$closure$u7d$$u7d$17h0123456789abcdefE",
     "_ZN1a1b28_$u7b$$u7b$closure$u7d$$u7d$17hfedcba9876543210E"},
    {"_RNCNvCs1abc_7mycrate4main0B3_", "_RNCNvCs1abc_7mycrate4mains_0B3_"},
    {"_RNCNvCs1abc_7mycrate4mains_0B3_", "_RNCNvCs1abc_7mycrate4mains1_0B3_"},
    {"__fill_block_invoke", "__fill_block_invoke_2"},
};

static const char *const others[][2] = {
    {"_ZZ4fillvENUliE_4_FUNEi", "_ZZ4fillvENUlvE_4_FUNEv"},
    {"_ZZ4fillvENUliE_4_FUNEi", "_ZZ5otherENUliE_4_FUNEi"},
    {"_ZN4BothILi2EE4nameEv", "_ZN4BothILi3EE4nameEv"},
    {"_ZZN4BothILi2EE4nameEvENKUlvE_clEv", "_ZZN4BothILi3EE4nameEvENKUlvE_clEv"},
    {"_ZN3FooIiE3_abEv", "_ZN3FooIiE3_acEv"},
    {"_ZL5bar_1", "_ZL5bar_2"},
    {"_Z3addA10_c", "_Z3addA11_c"},
    {"_ZZ4mainE1nS0_1", "_ZZ4mainE1nS1_1"},
    {"_ZN1a1b17h0123456789abcdefE", "_ZN1a1b17hfedcba9876543210E"},
    {"_RNvCs1abc_7mycrate4main", "_RNvCs2abc_7mycrate4main"},
    {"main", "mean"},
};

static const char *const plain[] = {
    "main",
    "bar_1",
    "_ZL5bar_1",
    "_ZN4BothILi2EE4nameEv",
    "_Z3addA10_c",
    "_ZSt4cout",
    "_ZNSt6vectorIiSaIiEE9push_backERKi",
    "_ZN1a1b17h0123456789abcdefE",
    "_RNvCs1abc_7mycrate4main",
    "_block_invokes",
    "_ZN3FooIiE3_abEv",
    "_Z",
    "_R",
    "",
};

static void check(bool good, const char *name, const char *what) {
    CHECK(good);
    if (!good)
        fprintf(stderr, "%s: %s\n", name, what);
}

static void test_alike(void) {
    for (size_t i = 0; i < sizeof alike / sizeof alike[0]; i++) {
        const char *a = alike[i][0], *b = alike[i][1];
        size_t head = pm_numbered_head(a);
        check(head && pm_numbered_head(b) == head && strncmp(a, b, head) == 0, a, "head");
        check(pm_numbered_alike(a, b) && pm_numbered_alike(b, a), a, "alike");
        check(pm_numbered_alike(a, a) && pm_numbered_alike(b, b), a, "itself");
    }
}

static void test_others(void) {
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        check(!pm_numbered_alike(others[i][0], others[i][1]), others[i][0], "differs");
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        check(pm_numbered_head(plain[i]) == 0, plain[i], "has no number");
}

int main(void) {
    test_alike();
    test_others();
    return CHECK_DONE();
}
