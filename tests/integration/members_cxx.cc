// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The same as members.c in C++: namespaces, classes with bases, static members, statics of
// functions.
#include <cstdio>
#include <cstdlib>

struct number {
    long value = 0;
};

namespace app {
struct base {
    long one = 0;
    number *inherited = nullptr;
};
struct other {
    number *second = nullptr;
    long both = 0;
};
class state : public base, private other {
  public:
    number *index = nullptr;
    long both_of() { return both; }
    number **of_other() { return &second; }
    static state shared;

  private:
    number *hidden = nullptr;

  public:
    number **of_hidden() { return &hidden; }
    struct {
        long pad;
        number *nested;
    } inside = {};
};
struct left {
    number *same = nullptr;
};
struct right {
    number *same = nullptr;
};
struct joined : left, right {};
struct far : virtual base {
    long x = 0;
};

state current;
state state::shared;
joined pair;
far moved;
} // namespace app

namespace {
__attribute__((used)) app::state quiet; // else clang takes it apart
}

struct stocked : app::state {
    stocked() { inside.pad = std::rand(); }
};
struct shop {
    static app::state &instance() {
        static stocked stock; // is constructed when it is first used
        return stock;
    }
};

static void visit(const char *name, number **at) {
    if (!*at)
        *at = new number;
    std::printf("%s %ld\n", name, (*at)->value++);
}

int main() {
    visit("index", &app::current.index);
    visit("inherited", &app::current.inherited);
    visit("second", app::current.of_other());
    visit("hidden", app::current.of_hidden());
    visit("nested", &app::current.inside.nested);
    visit("shared", &app::state::shared.index);
    visit("quiet", &quiet.index);
    visit("stock", &shop::instance().index);
    visit("left", &app::pair.left::same);
    visit("right", &app::pair.right::same);
    visit("moved", &app::moved.inherited);
}
