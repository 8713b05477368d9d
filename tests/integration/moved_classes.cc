// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program whose data lead into it by virtual functions alone, and by type_infos. It comes in two
// builds, -DV=1 and -DV=2, which have their classes elsewhere. Each run adds to the data, prints a
// line over all of it, and is killed.
//
//   moved_classes           a run; the global `world` has the data
//   moved_classes plain N   N runs in one process: what the lines are to be
//   moved_classes twin      an object of a class that two files have (-DTWIN: this is one of them)
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <typeinfo>
#include <unistd.h>

struct Shape {
    Shape *next = nullptr;
#if V > 1
    virtual int before_more() const;
#endif
    virtual int size() const = 0;
    virtual ~Shape() = default;
};

#ifdef TWIN
namespace {
struct Hidden : Shape {
    int size() const override { return TWIN; }
};
} // namespace
#if TWIN > 1
Shape *make_twin();
Shape *make_twin() { return new Hidden; }
#endif
#endif

#if !defined TWIN || TWIN == 1
#if V > 1
int Shape::before_more() const { return 5; }
struct New : Shape {
    int size() const override { return 50; }
};
Shape *make_new() { return new New; }
#endif

struct Named {
    virtual const char *name() const { return "nobody"; }
    virtual ~Named() = default;
};
namespace {
struct Square : Shape {
    int side = 3;
    int size() const override { return side * side; }
};
template <typename T> struct Box : Square, Named {
    T what{7};
    int size() const override { return static_cast<int>(what) + side; }
    const char *name() const override { return sizeof(T) == 1 ? "small" : "large"; }
};
} // namespace
struct Late final : Box<long> {
    int size() const override { return 1000; }
    virtual int more() const { return 4; }
};

struct Deep : virtual Named, Square { // its table begins with where Named is
    long deep = 11;
    int size() const override { return static_cast<int>(deep); }
    const char *name() const override { return "deep"; }
};

struct World {
    int runs = 0;
    Shape *shapes = nullptr;
    Named *named[64] = {};
    int names = 0;
    const std::type_info *type = nullptr;
};
World *world;

template <typename T> static void add(World &w) {
    auto *made = new T;
    made->next = w.shapes;
    w.shapes = made;
    if constexpr (!__is_base_of(Named, T))
        return;
    else if (w.names < 64)
        w.named[w.names++] = made;
}

static void run(World &w) {
    add<Square>(w);
    add<Box<char>>(w);
    add<Box<long>>(w);
    add<Late>(w);
    add<Deep>(w);
    w.type = &typeid(Late);
#ifdef LOCAL
    struct Local : Shape {
        int size() const override { return 2; }
    };
    add<Local>(w);
#endif
    long sum = 0;
    for (Shape *s = w.shapes; s; s = s->next)
        sum = sum * 3 + s->size() + (dynamic_cast<Named *>(s) != nullptr);
    for (int i = 0; i < w.names; i++)
        sum = sum * 5 + w.named[i]->name()[0];
    printf("%d: %lx %s\n", ++w.runs, static_cast<unsigned long>(sum), w.type->name());
}

#ifdef TWIN
Shape *make_twin();
#endif

int main(int argc, char **argv) {
    if (!world)
        world = new World;
    for (int i = argc > 2 ? atoi(argv[2]) : 1; i; i--)
        run(*world);
#ifdef TWIN
    if (argc == 2) {
        Shape *twins[] = {new Hidden, make_twin()};
        for (Shape *twin : twins) {
            twin->next = world->shapes;
            world->shapes = twin;
        }
    }
#endif
    fflush(stdout);
    return argc > 2 ? 0 : raise(SIGKILL);
}
#endif
