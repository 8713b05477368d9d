# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Programs in two versions, which have the same root: what has changed between them, and whether
pmalloc-run may start the second one on the heap of the first."""

import json
import re
import subprocess

from conftest import needs
from tool_heaps import INFO, RUN, call, fingerprint

MAIN = {
    "c": """
#include <stdio.h>
#include <stdlib.h>
%s
int main(void) {
    int found = root != NULL;
    if (!root)
        root = calloc(1, sizeof *root);
    puts(found ? "old" : "new");
    return 0;
}
""",
    "cc": """
#include <cstdio>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>
%s
int main() {
    bool found = root != nullptr;
    if (!root)
        root = new Root;
    puts(found ? "old" : "new");
}
""",
}

# Language; both versions, each after what both begin with; what the refusal says, None: there is
# none.
ORDER = "struct order { struct order *next; long total; %s };"
BOTH = "\nstruct root { struct order *first; } *root;"
POINT = "struct point { %s };\nstruct root { struct point *at; struct root *more; } *root;"
SHAPE = "struct Shape { int a; %s };\nstruct Root { Shape shape; };\nRoot *root;"
BASE = "struct Base { %s };\nstruct Root : Base { long own; };\nRoot *root;"
ITEM = "struct Item { long count; %s };\n"
DERIVED = (
    "struct Article { virtual ~Article() = default; long price; };\n"
    "struct Book : Article { %s };\nArticle *more = new Book;\n"
    "struct Root { Article *article; } *root;"
)
SHARED = (
    "struct Kept { int a; };\nstruct Other { int b; %s };\n"
    "auto other = std::make_shared<Other>();\n"
    "struct Root { std::shared_ptr<Kept> kept = std::make_shared<Kept>(); };\nRoot *root;"
)
INTO = "struct Root { %s };\nRoot *root;"
PAIRS = {
    "same": ("c", ORDER % "" + BOTH, "/* */" + ORDER % "" + BOTH, None),
    "member-added": (
        "c", ORDER % "" + BOTH, ORDER % "long discount;" + BOTH,
        r"struct order has 24 bytes, it had 16: discount is new, reached as \*root->first",
    ),
    "member-in-a-hole": (
        "c", POINT % "char x; long y;", POINT % "char x; char z; long y;", "struct point: z is new",
    ),
    "member-gone": (
        "c", POINT % "char x; char z; long y;", POINT % "char x; long y;", "point: z is gone",
    ),
    "swapped": (
        "c", POINT % "int x, y;", POINT % "int y, x;",
        r"struct point: y lies at byte 0, it lay at byte 4, and 1 more, reached as \*root->at",
    ),
    "renamed": ("c", POINT % "int x, y;", POINT % "int x, height;", None),
    "int-to-float": (
        "c", POINT % "int x, y;", POINT % "int x; float y;",
        "root->at->y is a floating-point number of 4 bytes, it was an integer of 4 bytes",
    ),
    "signed-to-unsigned": ("c", POINT % "int x, y;", POINT % "int x; unsigned y;", None),
    "enum": (
        "c", POINT % "enum { A } x; int y;",
        POINT % "enum { A = 1l << 40 } x; int y;", "struct point has 16 bytes, it had 8",
    ),
    "integer-to-pointer": (
        "c", POINT % "long x, y;", POINT % "long x; char *y;", "y is a pointer, it was an integer",
    ),
    "array": (
        "c", POINT % "int x[4];", POINT % "int x[2], y[2];", "x is an array of 2, .* an array of 4",
    ),
    "flexible-array": ("c", POINT % "int x; char y[];", POINT % "int x; char name[];", None),
    "bit-fields": (
        "c", POINT % "unsigned x : 3, y : 5;", POINT % "unsigned x : 4, y : 4;",
        "struct point: x has 4 bits, it had 3, and 1 more",
    ),
    "typedef": (
        "c", "typedef struct { int x; } point; struct root { point *at; } *root;",
        "typedef struct { int x, y; } point; struct root { point *at; } *root;",
        r"struct point has 8 bytes, it had 4: y is new, reached as \*root->at",
    ),
    "anonymous": (
        "c", POINT % "struct { int x; } in;", POINT % "struct { long x; } in;",
        "root->at->in.x is an integer of 8 bytes, it was an integer of 4 bytes",
    ),
    "recursion": (
        "c", "struct a { struct b *b; };\nstruct b { struct a *a; int x; };\nstruct a *root;",
        "struct a { struct b *b; };\nstruct b { struct a *a; float x; };\nstruct a *root;",
        "root->b->x is a floating-point number",
    ),
    "virtual-function": (
        "cc", SHAPE % "int b, c, d;", SHAPE % "int b, c, d; virtual int f() { return 1; }",
        "struct Shape has 24 bytes, it had 16: its table of virtual functions is new",
    ),
    "one-more-virtual-function": (
        "cc", SHAPE % "virtual int f() { return 1; }",
        SHAPE % "virtual int g() { return 2; } virtual int f() { return 1; }", None,
    ),
    "base-class": (
        "cc", BASE % "long a, b;", BASE % "long b, a;", "struct Base: b lies at byte 0",
    ),
    "base-class-new": (
        "cc", "struct Base { long x; };\nstruct Root { long own; };\nRoot *root;",
        "struct Base { long x; };\nstruct Root : Base { long own; };\nRoot *root;",
        "struct Root has 16 bytes, it had 8: its base class Base is new",
    ),
    "derived-class": (
        "cc", DERIVED % "long pages;", DERIVED % "double pages;",
        r"article\{struct Book\}->pages is a floating-point number",
    ),
    "vector": (
        "cc", ITEM % "" + INTO % "std::vector<Item *> all;",
        ITEM % "int more;" + INTO % "std::vector<Item *> all;", "struct Item has 16 bytes",
    ),
    "map": (
        "cc", ITEM % "" + INTO % "std::map<std::string, Item> all;",
        ITEM % "int more;" + INTO % "std::map<std::string, Item> all;", "struct Item has 16 bytes",
    ),
    "unordered-map-of-unique": (
        "cc", ITEM % "" + INTO % "std::unordered_map<int, std::unique_ptr<Item>> all;",
        ITEM % "int more;" + INTO % "std::unordered_map<int, std::unique_ptr<Item>> all;",
        "struct Item has 16 bytes",
    ),
    "shared-of-another": (  # both lie in blocks of classes that derive from one of libstdc++
        "cc", SHARED % "", SHARED % "int more;", None,
    ),
    "list-of-variant": (
        "cc", ITEM % "" + INTO % "std::list<std::variant<int, Item *>> all;",
        ITEM % "int more;" + INTO % "std::list<std::variant<int, Item *>> all;",
        "struct Item has 16 bytes",
    ),
    "void-pointer": (
        "c", "struct hidden { int a; };\nstruct root { void *p; } *root;\nstruct hidden *other;",
        "struct hidden { long a; };\nstruct root { void *p; } *root;\nstruct hidden *other;", None,
    ),
    "union": (
        "c", POINT % "union { int a; char *p; } x;", POINT % "union { long a; float *p; } x;", None,
    ),
    "union-size": (
        "c", POINT % "union { int a; } x;", POINT % "union { long a; } x;",
        "root->at->x is a union of 8 bytes, it was a union of 4 bytes",
    ),
    "function-pointer": (
        "c", POINT % "int (*call)(int);", POINT % "long (*call)(void);", None,
    ),
    "incomplete": (
        "c", "struct later;\nstruct root { struct later *p; } *root;",
        "struct later { int x; };\nstruct root { struct later *p; } *root;", None,
    ),
}


class Place:
    """Where the program lies, whatever build it is; and its heap."""

    def __init__(self, folder):
        self.folder, self.program, self.heap = folder, folder / "program", folder / "heap"

    def put(self, text, *flags, language="c", compiler=None, strip=False, debug="-g"):
        source = self.folder / f"program.{language}"
        source.write_text(MAIN[language] % text if "main(" not in text else text)
        compiler = compiler or {"c": "gcc", "cc": "g++"}[language]
        needs(compiler)
        self.program.unlink(missing_ok=True)
        subprocess.run(
            [compiler, debug, *flags, "-o", self.program, source], check=True, cwd=self.folder
        )
        if strip:
            subprocess.run(["strip", self.program], check=True)

    def run(self, *arguments, roots="root", **settings):
        named = ["-r", roots] if roots and not (self.heap / "superblock").exists() else []
        return call(RUN, "-H", self.heap, *named, *arguments, self.program, **settings)

    def goes_on(self, *arguments, found="old", says="", **settings):
        done = self.run(*arguments, **settings)
        assert done.returncode == 0 and done.stdout == found + "\n", done
        assert re.search(says, done.stderr) and (says or "types" not in done.stderr), done

    def refused(self, says, *arguments, **settings):
        before = fingerprint(self.heap)
        done = self.run(*arguments, **settings)
        assert done.returncode == 125 and not done.stdout, done
        assert re.search(says, done.stderr) and "--types=ignore" in done.stderr, done
        assert fingerprint(self.heap) == before, "it has changed the heap"
        return done.stderr

    def types(self):
        done = call(INFO, "--types", "--json", self.heap)
        assert done.returncode == 0, done
        return json.loads(done.stdout)
