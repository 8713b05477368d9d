// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc.hpp: a stack with a count. Each run pushes one number, checks all, and drops the oldest
// but ten. `structure_cxx refused` tries what is refused.
#include "preload/pmalloc.hpp"

#include <cstdio>
#include <vector>

struct node {
    pm::ptr<node> next;
    std::uint64_t number;
    node(node *after, std::uint64_t n) : next(after), number(n) {}
};
struct stack {
    pm::ptr<node> top;
    std::uint64_t count = 0;
    std::vector<std::uint64_t, pm::allocator<std::uint64_t>> *seen = nullptr;
};
struct throwing {
    char room[100];
    throwing() { throw 1; }
};

static int failed(const char *what) {
    std::printf("wrong: %s\n", what);
    return 1;
}

static stack *the_stack() {
    if (auto *s = pm::root<stack>(0))
        return s;
    pm::publish change;
    auto *s = change.make<stack>();
    change.store_root(0, s);
    change.commit();
    return s;
}

static int refused(stack *s) {
    std::uint64_t mine = 0, before = s->count;
    try {
        pm::publish change;
        change.store(s->count, before + 1);
        change.store(mine, 1);
        change.commit();
        return failed("a store to the stack");
    } catch (const std::system_error &e) {
        if (e.code().value() != EINVAL || s->count != before || mine != 0)
            return failed("what a refused publish has done");
    }
    try {
        pm::publish<2> change;
        change.make<throwing>();
        return failed("a constructor that throws");
    } catch (int) {
    }
    try {
        pm::publish<1> change;
        change.store(s->count, before);
        change.store(s->count, before);
        return failed("no room");
    } catch (const std::length_error &) {
    }
    std::puts("refused");
    return 0;
}

int main(int argc, char **) {
    stack *s = the_stack();
    if (argc > 1)
        return refused(s);
    pm::publish change;
    auto *n = change.make<node>(s->top.get(), s->top ? s->top->number + 1 : 1);
    change.store(s->top, n);
    change.store(s->count, s->count + 1);
    change.commit();
    std::uint64_t count = 0;
    node *tenth = nullptr;
    for (node *at = s->top; at; at = at->next) {
        if (at->next && at->next->number + 1 != at->number)
            return failed("a number");
        tenth = ++count == 10 ? at : tenth;
    }
    if (count != s->count)
        return failed("the count");
    if (tenth && tenth->next) {
        change.free(tenth->next);
        change.store(tenth->next, nullptr);
        change.store(s->count, std::uint64_t(10));
        change.commit();
    }
    std::vector<std::uint64_t, pm::allocator<std::uint64_t>> all;
    for (node *at = s->top; at; at = at->next)
        all.push_back(at->number);
    pm::persist(*s);
    std::printf("%zu, top %lu\n", all.size(), static_cast<unsigned long>(s->top->number));
    return 0;
}
