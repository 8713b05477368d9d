// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program whose data lead into it: virtual functions, functions, variables, literals. It comes in
// several builds, by -DV=N, which differ in what they have and where. Each run adds to the data,
// uses all of it, prints a line, and is killed.
//
//   moved             a run; the global `world` has the data
//   moved use NAME    uses what other builds do not have: function, class, literal, size, middle
//   moved plain N     N runs in one process: what the lines are to be
//   moved thirds      numbers that look like addresses of a program that is not randomised
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

#if V > 1
static char moves_all_variables[4096 * V];
extern const char *const moves_constants[900 * V];
const char *const moves_constants[900 * V] = {"moved"};
extern "C" const char *what_moves() { return moves_all_variables; }
int moves_all_code(int x) {
    for (int i = 0; i < x; i++)
        moves_all_variables[i] = static_cast<char>(moves_all_variables[x - i] * V);
    return x;
}
#endif

namespace {
struct Named {
    virtual ~Named() = default;
    virtual const char *name() const { return "nobody"; }
    const char *note = "a note in the program";
};
struct Counted {
    virtual ~Counted() = default;
    virtual int count() const = 0;
};
template <int N> struct Both : Named, Counted {
    int more = N;
    const char *name() const override { return N == 2 ? "two" : "three"; }
    int count() const override { return more + N; }
};
int twice(int x) { return 2 * x; }
int next_of(int x) {
    static int steps[4] = {1, 2, 3, 4};
    return x + steps[x % 4];
}
int *counter_of_first() {
    static int counter = 7;
    return &counter;
}
int *counter_of_second() {
    static int counter = 9;
    return &counter;
}
int table[8] = {10, 20, 30, 40, 50, 60, 70, 80};
} // namespace

int thrice(int x) { return 3 * x; }
const char *const words[] = {"one word", "another word", "the last word"};

#ifdef HAS_MORE
namespace {
struct Extra : Named {
    const char *name() const override { return "extra"; }
};
int fresh(int x) { return x + 77; }
} // namespace
long grows[12];
const void *middle() { return reinterpret_cast<const char *>(&moves_all_code) + 4; }
#else
long grows[6];
#endif

#ifdef SEED // as Abseil has it
namespace absl::hash_internal {
struct MixingHashState {
    static const void *const kSeed;
};
const void *const MixingHashState::kSeed = &kSeed;
} // namespace absl::hash_internal
#endif
extern "C" int pmalloc_moved() __attribute__((weak));

struct World {
    int runs = 0;
    std::vector<std::unique_ptr<Named>> named;
    std::vector<Counted *> counted;
    std::map<std::string, std::function<int(int)>> calls;
    std::vector<int (*)(int)> functions;
    std::vector<int *> places;
    std::vector<const char *> texts;
    const char *const *list = words;
    const void *other = nullptr;
    double thirds[1024];
};
World *world;

static void add(World &w) {
    int run = ++w.runs;
    auto *two = new Both<2>;
    auto *three = new Both<3>;
    two->more = run;
    w.named.emplace_back(two);
    w.named.emplace_back(three);
    w.named.emplace_back(new Named);
    w.counted.push_back(two);
    w.counted.push_back(three);
    w.calls["lambda" + std::to_string(run)] = [run](int x) { return x + run; };
    w.calls["free"] = thrice;
    w.functions.insert(w.functions.end(), {twice, thrice, next_of, &abs});
    w.places.insert(w.places.end(), {&table[run % 8], counter_of_first(), counter_of_second()});
    w.texts.insert(w.texts.end(), {"a literal", words[run % 3], &"a literal"[2], ""});
}

static unsigned long use(const World &w) {
    unsigned long sum = static_cast<unsigned long>(w.runs);
    for (auto &n : w.named)
        sum = sum * 31 + strlen(n->name()) + strlen(n->note);
    for (auto *c : w.counted)
        sum = sum * 31 + static_cast<unsigned>(c->count());
    for (auto &c : w.calls)
        sum = sum * 31 + static_cast<unsigned>(c.second(10));
    for (auto *f : w.functions)
        sum = sum * 31 + static_cast<unsigned>(f(3));
    for (auto *p : w.places)
        sum = sum * 31 + static_cast<unsigned>(*p);
    for (auto *t : w.texts)
        sum = sum * 31 + strlen(t) + static_cast<unsigned char>(t[0]);
    for (int i = 0; i < 3; i++)
        sum = sum * 31 + static_cast<unsigned char>(w.list[i][4]);
    return sum;
}

static void run(World &w) {
    add(w);
    printf("run %d %lx\n", w.runs, use(w));
    fflush(stdout);
}

// Bytes of a third, from the wrong end: 0x555555555555 in the middle of them.
static void note_thirds(World &w, bool check) {
    const unsigned long number = 0x0000555555555555;
    int wrong = 0;
    for (int i = 0; i < 1024; i++) {
        unsigned long value = number + static_cast<unsigned long>(i % 3);
        if (!check)
            memcpy(&w.thirds[i], &value, sizeof value);
        wrong += memcmp(&w.thirds[i], &value, sizeof value) != 0;
    }
    printf("%d wrong\n", wrong);
    fflush(stdout);
}

static void use_more(World &w, const char *what) {
#ifdef HAS_MORE
    if (strcmp(what, "function") == 0)
        w.functions.push_back(fresh);
    else if (strcmp(what, "class") == 0)
        w.named.emplace_back(new Extra);
    else if (strcmp(what, "literal") == 0)
        w.texts.push_back("only here");
    else if (strcmp(what, "size") == 0)
        w.other = &grows[2];
    else if (strcmp(what, "middle") == 0)
        w.other = middle();
#endif
    if (strcmp(what, "moved") == 0)
        printf("moved: %d\n", pmalloc_moved());
    else
        printf("%s %p\n", what, w.other);
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "plain") == 0) {
        World w;
        for (int i = 0; i < atoi(argv[2]); i++)
            run(w);
        return 0;
    }
    bool old = world;
    if (!world)
        world = new World;
    if (argc == 2)
        note_thirds(*world, old);
    else if (argc == 3)
        use_more(*world, argv[2]);
    else
        run(*world);
    return raise(SIGKILL);
}
