// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program whose heap leads into it: vtables, functions, a literal, a closure; and tables whose
// keys or hashes are addresses of it, in which nothing can be found at other addresses.
// Root: store. It prints "new", or "ok" and the number of runs. With `kill` it ends by SIGKILL.
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <typeindex>
#include <unordered_map>

struct Shape {
    virtual int sides() const { return 0; }
    virtual ~Shape() {}
};
struct Square : Shape {
    int sides() const override { return 4; }
};

static int add(int x) { return x + 1; }
static int twice(int x) { return 2 * x; }

// As absl::Hash: the seed is the address of a variable.
static char seed;
struct Seeded {
    size_t operator()(int key) const {
        return ((uintptr_t)&seed ^ (unsigned)key) * 0x9ddfea08eb382d69u;
    }
};

struct Store {
    int runs = 0;
    std::unique_ptr<Shape> shape{new Square};
    int (*function)(int) = add;
    const char *literal = "a literal";
    std::function<int(int)> closure;
    std::map<int (*)(int), int> by_function{{add, 1}, {twice, 2}};
    std::unordered_map<const char *, int> by_literal;
    std::map<std::type_index, int> by_type{{typeid(Shape), 1}, {typeid(Square), 2}};
    std::unordered_map<int, int, Seeded> seeded;
};
Store *store;

static const char *make() {
    auto s = new Store;
    int three = 3;
    s->closure = [three](int x) { return x * three; };
    s->by_literal[s->literal] = 7;
    for (int i = 0; i < 1000; i++)
        s->seeded[i] = i;
    store = s;
    return "new";
}

// What is wrong, or NULL.
static const char *wrong() {
    const Store &s = *store;
    int found = 0;
    for (int i = 0; i < 1000; i++)
        found += s.seeded.count(i) && s.seeded.at(i) == i;
    return found != 1000                                              ? "a seeded table"
           : s.shape->sides() != 4                                    ? "a vtable"
           : s.function(1) != 2 || s.function != add                  ? "a function"
           : s.closure(2) != 6                                        ? "a closure"
           : strcmp(s.literal, "a literal") != 0                      ? "a literal"
           : !s.by_function.count(add) || !s.by_function.count(twice) ? "functions as keys"
           : !s.by_literal.count(s.literal)                           ? "literals as keys"
           : !s.by_type.count(typeid(Square))                         ? "types as keys"
                                                                      : nullptr;
}

int main(int argc, char **argv) {
    const char *what = store ? wrong() : make();
    if (what && strcmp(what, "new") != 0)
        return printf("wrong: %s\n", what), 1;
    store->runs++;
    printf("%s %d\n", what ? what : "ok", store->runs);
    fflush(stdout);
    if (argc > 1 && strcmp(argv[1], "kill") == 0)
        raise(SIGKILL);
}
