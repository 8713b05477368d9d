// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Things that only a number of the compiler's tells apart: lambdas of one function, statics of one
// name in its blocks, classes of one name. Each run says what its data lead to. SEVERAL has two of
// each, NEWER one more before them, and RENUMBERED one before them that is of another family.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

using function = const char *(*)(int);
struct Named {
    virtual ~Named() = default;
    virtual const char *name() const = 0;
};
struct Box {
    function plain;
    std::function<std::string()> held;
    long *counter;
    Named *named;
};
Box *box;

#define FILL(at, text, start)                                                                      \
    {                                                                                              \
        static long counter = start;                                                               \
        struct Local : Named {                                                                     \
            const char *name() const override { return text; }                                     \
        };                                                                                         \
        box[at].plain = [](int) { return text; };                                                  \
        box[at].held = [mark] { return mark + text; };                                             \
        box[at].counter = &counter;                                                                \
        box[at].named = new Local;                                                                 \
    }

static void fill(const std::string &mark, bool never) {
#ifdef RENUMBERED
    if (never)
        std::puts([](long) { return "another"; }(1));
#endif
#ifdef NEWER
    if (never)
        FILL(2, "new", 10)
#endif
    FILL(0, "alpha", 20)
#ifdef SEVERAL
    FILL(1, "beta", 30)
#endif
    (void)never;
}

int main(int argc, char **) {
    if (!box) {
        box = new Box[3]();
        fill("x", argc > 100);
    }
    for (Box *b = box; b->plain; b++)
        std::printf("%s %s %ld %s\n", b->plain(1), b->held().c_str(), ++*b->counter,
                    b->named->name());
}
