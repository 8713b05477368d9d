# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Generates C++ programs in two versions. Both do the same with the same data, which lead into the
program in many ways; each has its own order, its own further things, and its own sizes of what no
data lead to.

A thing is a line of the generated file's table: how a node comes to lead to it, and what number
follows from it then. Each run adds nodes, prints a sum over all, and is killed."""

import random

HEAD = """
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <unistd.h>
#include <unordered_map>
#include <vector>

struct Base {
    virtual ~Base() = default;
    virtual int value(int x) const = 0;
};
struct Other {
    virtual ~Other() = default;
    virtual int other() const { return 5; }
    const char *note = "a note of the program's";
};
using plain = int (*)(int);
using member = int (Base::*)(int) const;
struct Node {
    int thing = 0;
    plain function = nullptr;
    const int *number = nullptr;
    const char *text = nullptr;
    const char *const *texts = nullptr;
    const std::string *string = nullptr;
    std::unique_ptr<Base> object;
    Base *shared_with = nullptr;
    std::shared_ptr<Base> shared;
    std::function<int(int)> held;
    member method = nullptr;
    long decoy = 0;
};
inline int sum_of(const char *text) {
    int sum = 0;
    for (; *text; text++)
        sum = sum * 31 + *text;
    return sum;
}
void make_first(Node &, unsigned);
int use_first(const Node &, int);
void make_second(Node &, unsigned);
int use_second(const Node &, int);
"""

MAIN = """
struct Store {
    std::vector<std::unique_ptr<Node>> nodes;
    std::map<std::string, std::function<int(int)>> named;
    std::unordered_map<int, std::list<const char *>> lists;
    unsigned seed = SEED;
};
Store *store;

static unsigned next() { return store->seed = store->seed * 1103515245u + 12345u; }

static void run() {
    if (!store)
        store = new Store;
    for (int i = 0; i < 40; i++) {
        store->nodes.push_back(std::make_unique<Node>());
        Node &n = *store->nodes.back();
        unsigned which = next() >> 8;
        n.thing = which & 1 ? -1 - int(which / 2 % SECOND) : int(which / 2 % FIRST);
        n.decoy = long(next()) << (next() >> 27);
        if (n.thing < 0)
            make_second(n, unsigned(-1 - n.thing));
        else
            make_first(n, unsigned(n.thing));
        store->named["thing " + std::to_string(n.thing)] = n.held;
        if (n.text)
            store->lists[n.thing].push_back(n.text);
    }
    unsigned sum = store->seed;
    for (auto &n : store->nodes)
        sum = sum * 7 + unsigned(n->thing < 0 ? use_second(*n, 3) : use_first(*n, 3));
    for (auto &entry : store->named)
        sum = sum * 7 + unsigned(entry.second ? entry.second(int(entry.first.size())) : 1);
    for (auto &entry : store->lists)
        for (const char *text : entry.second)
            sum ^= unsigned(sum_of(text)) + unsigned(entry.first);
    std::printf("%zu %u\\n", store->nodes.size(), sum);
    std::fflush(stdout);
}

int main(int argc, char **argv) {
    for (int runs = argc > 1 ? std::atoi(argv[1]) : 0; runs; runs--)
        run();
    if (argc == 1) {
        run();
        kill(getpid(), SIGKILL);
    }
}
"""


class Thing:
    """`text` defines it; `make` leads a node `n` to it, and `use` gives the number, with `x`."""

    def __init__(self, text, make, use):
        self.text, self.make, self.use = text, make, use


def function(name, d):
    scope = d.choice(["static ", "", "__attribute__((noinline)) "])
    text = f"{scope}int {name}(int x) {{ return x * {d.randint(2, 99)} + {d.randint(1, 999)}; }}"
    if not scope.startswith("static"):
        text = f"int {name}(int);\n{text}"
    return Thing(text, f"n.function = {name};", "n.function(x)")


def numbers(name, d):
    count = d.randint(2, 40)
    at = d.randrange(count)
    values = ", ".join(str(d.randint(1, 9999)) for _ in range(count))
    const = d.choice(["const ", ""])
    text = f"static {const}int {name}[{count}] = {{{values}}};"
    if not const:  # so that it stays one
        text += f"\nint *writes_{name}(int i);\nint *writes_{name}(int i) {{ return &{name}[i]; }}"
    return Thing(text, f"n.number = &{name}[{at}];", "*n.number + x")


def local(name, d):
    text = f"static const int *{name}() {{ static int kept = {d.randint(1, 999)}; return &kept; }}"
    return Thing(text, f"n.number = {name}();", "*n.number * x")


def literal(name, d):
    words = " ".join(d.choice("one two three many last first heap word".split()) for _ in range(4))
    ends = d.choice(["", name])  # some end as others do: linkers keep one of them
    return Thing("", f'n.text = "{words}{ends}";', "sum_of(n.text) + x")


def literals(name, d):
    count = d.randint(2, 6)
    values = ", ".join(f'"{name} {d.randint(1, 99)}"' for _ in range(count))
    text = f"static const char *const {name}[] = {{{values}}};"
    return Thing(text, f"n.texts = &{name}[{d.randrange(count)}];", "sum_of(*n.texts) + x")


def string(name, d):
    text = f'static const std::string {name}("{name} of {d.randint(1, 9999)}");'
    return Thing(text, f"n.string = &{name};", "int(n.string->size()) + sum_of(n.string->c_str())")


def object_of(name, d):
    bases = d.choice(["Base", "Base, Other", "Other, Base", "virtual Base"])
    scope = d.choice([("namespace {", "}"), ("", ""), (f"namespace space_{name} {{", "}")])
    inside = f"space_{name}::" if "space_" in scope[0] else ""
    text = (
        f"{scope[0]} struct {name} : {bases} {{ int more = {d.randint(1, 99)}; "
        f"int value(int x) const override {{ return more * x + {d.randint(1, 999)}; }} }}; "
        f"{scope[1]}"
    )
    new = f"n.object = std::make_unique<{inside}{name}>();"
    shared = f"n.shared = std::make_shared<{inside}{name}>(); n.shared_with = n.shared.get();"
    if d.random() < 0.5:
        return Thing(text, new, "n.object->value(x)")
    return Thing(text, shared, "n.shared_with->value(x) + int(n.shared.use_count())")


def template(name, d):
    number = d.randint(2, 5)
    text = (
        f"template <int N, class T> struct {name} : Base {{ T more = T({d.randint(1, 99)}); "
        "int value(int x) const override { return int(more) * x + N; } };"
    )
    kind = d.choice(["int", "long", "char"])
    make = f"n.object.reset(new {name}<{number}, {kind}>);"
    other = f"{text}\nvoid *other_{name}();\nvoid *other_{name}() {{ return new {name}<7, int>; }}"
    return Thing(other, make, "n.object->value(x)")


def lambda_of(name, d):
    number = d.randint(1, 99)
    text = (
        f"static void {name}(Node &n) {{ int mark = {number}; "
        f"n.held = [mark](int x) {{ return x + mark * {d.randint(2, 9)}; }}; "
        f"n.function = [](int x) {{ return x - {d.randint(2, 99)}; }}; }}"
    )
    return Thing(text, f"{name}(n);", "n.held(x) + n.function(x)")


def bound(name, d):
    text = (
        f"namespace {{ struct {name} {{ int by; int operator()(int x) const "
        f"{{ return x * by + {d.randint(1, 99)}; }} }}; }}"
    )
    return Thing(text, f"n.held = {name}{{{d.randint(2, 9)}}};", "n.held(x)")


def method(name, d):
    text = (
        f"namespace {{ struct {name} : Base {{ int value(int x) const override {{ return x; }}\n"
        f"int plain_value(int x) const {{ return x + {d.randint(1, 999)}; }} }}; }}"
    )
    make = (
        f"n.object.reset(new {name}); "
        f"n.method = static_cast<member>(&{name}::{d.choice(['value', 'plain_value'])});"
    )
    return Thing(text, make, "((*n.object).*n.method)(x)")


KINDS = [
    function, numbers, local, literal, literals, string, object_of, template, lambda_of, bound,
    method,
]  # fmt: skip


def extra(number, d):
    """What only one version has, and no data lead to."""
    name = f"extra_{number}"
    return d.choice(
        [
            f"static int {name}(int x) {{ return x + {d.randint(1, 99)}; }}\n"
            f"int (*volatile use_{name})(int) = {name};",
            f"char {name}[{d.randint(1, 9000)}] = {{1}};",
            f"extern const char *const {name}[];\n"
            f'const char *const {name}[] = {{"only {name}", "first heap word"}};',
            f"namespace {{ struct {name} : Base {{\n"
            f"int value(int) const override {{ return 1; }} }}; }}\n"
            f"Base *new_{name}();\nBase *new_{name}() {{ return new {name}; }}",
        ]
    )


def half(seed, version, part, first):
    """A source file of the program, and how many things it has."""
    d = random.Random(f"{seed} {part}")
    things = [d.choice(KINDS)(f"{part}_{i}", d) for i in range(d.randint(8, 20))]
    order = random.Random(f"{seed} {part} {version}")
    pieces = [t.text for t in things]
    pieces += [extra(f"{part}_{version}_{i}", order) for i in range(order.randint(0, 12))]
    order.shuffle(pieces)
    make = [f"case {i}: {t.make} break;" for i, t in enumerate(things)]
    use = [f"case {i}: return {t.use};" for i, t in enumerate(things)]
    order.shuffle(make)
    order.shuffle(use)
    number = "unsigned(n.thing)" if first else "unsigned(-1 - n.thing)"
    lines = [
        HEAD,
        *pieces,
        f"void make_{part}(Node &n, unsigned i) {{ switch (i) {{",
        *make,
        "} }",
        f"int use_{part}(const Node &n, int x) {{ switch ({number}) {{",
        *use,
        "} return 0; }",
    ]
    return "\n".join(lines), len(things)


def program(seed, version):
    """The texts of its two files."""
    first, one = half(seed, version, "first", True)
    second, two = half(seed, version, "second", False)
    main = MAIN.replace("SEED", str(seed)).replace("FIRST", str(one)).replace("SECOND", str(two))
    return first + main, second
