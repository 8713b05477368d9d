# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Roots whose name several variables have in the sources, or one that has another name in the
program: what the linker and the compiler make of file-local variables."""

import re

import pytest
from conftest import run, succeeds
from test_root_members import built, keeps, listed
from tool_heaps import RUN, call, one_line


def test_two_variables_of_one_name(tmp_path, heap):
    sources = ["members.c", "members_twin.c"]
    program = built(tmp_path, "gcc", "-g", "-DTWIN", sources=sources)
    refused = call(RUN, "-H", heap, "-r", "twin.head", program)
    one_line(refused, "pmalloc-run", 125, "2 variables", "name one of these ranges")
    first, second = re.findall(r"\+0x[0-9a-f]+/8", refused.stderr)
    keeps(program, heap, {first: "twin", second: "other"})
    assert not heap.with_name("x").exists()


LTO_FIRST = r"""
#include <stdio.h>
#include <stdlib.h>
static struct { long runs; char *name; long pad[3]; } table;
void *first_place(void) { return &table; }
long other(void **);
int main(void) {
    if (!table.name)
        table.name = (char *)calloc(1, 100);
    printf("%ld %ld\n", ++table.runs, other((void **)&table.name));
}
"""
LTO_SECOND = r"""
#ifdef TWIN
static struct { long runs; char *name; long pad[5]; } table;
#else
#define table here
static struct { long runs; char *name; long pad[5]; } table;
#endif
void *first_place(void);
static void *second_place(void) { return &table; }
void *volatile keep[2];
__attribute__((noinline)) long other(void **p) {
    keep[0] = first_place();
    keep[1] = second_place();
    table.name = (char *)*p;
    return ++table.runs;
}
"""


@pytest.mark.parametrize("language", ["c", "c++"])
@pytest.mark.parametrize("how", [
    ("gcc", "-flto"), ("gcc", "-flto", "-flto-partition=max"),
    ("clang", "-flto"), ("clang", "-flto=thin")])
def test_names_that_lto_gives(how, language, tmp_path, heap):
    """table.lto_priv.0, table.llvm.123, table.1: a variable that is alone keeps the name of its
    source, and one of two is not taken for the other."""
    for name, text in (("first.c", LTO_FIRST), ("second.c", LTO_SECOND)):
        (tmp_path / name).write_text(text)
    flags = ("-O2", "-g0", "-w", *how[1:], "-x", language)
    sources = [tmp_path / "first.c", tmp_path / "second.c"]
    program = built(tmp_path, how[0], *flags, sources=sources)
    for runs in (1, 2):
        output = succeeds(call(RUN, "-H", heap, "-r", "table", program))
        assert output == f"{runs} 1\n"
    assert listed(heap) == {"table": None}
    program = built(tmp_path, how[0], *flags, "-DTWIN", sources=sources)
    fresh = heap.with_name("fresh")
    by_name = run([program], HEAP=fresh, ROOTS="table")
    assert by_name.returncode == 125 and "2 variables of that name" in by_name.stderr, by_name
    of_member = call(RUN, "-H", fresh, "-r", "table.runs", program)
    one_line(of_member, "pmalloc-run", 125, "2 variables in", "have the name table")
    assert not fresh.exists()
    rows = re.findall(r"(\+0x[0-9a-f]+)/(40|56) +table$", succeeds(call(RUN, "--roots", program)),
                      re.MULTILINE)
    place = {size: f"{offset}/{size}" for offset, size in rows}
    assert set(re.findall(r"\+0x[0-9a-f]+/\d+", by_name.stderr)) == set(place.values())
    for runs in (1, 2):
        output = succeeds(call(RUN, "-H", fresh, "-r", place["56"], program))
        assert output == f"1 {runs}\n"


# One source has a table whole. In the other one nobody has the address of its own.
SPLIT_FIRST = r"""
#include <stdio.h>
KEPT static struct { long runs, pad, open; } table;
long other(void);
int main(int argc, char **argv) {
    table.open += argc;
    printf("%ld %ld %ld\n", ++table.runs, table.open, other());
}
"""
SPLIT_SECOND = r"""
static struct { long runs, pad[6]; } table;
void *volatile keep;
long other(void) {
    keep = &table;
    return ++table.runs;
}
"""


@pytest.mark.parametrize("language", ["c", "c++"])
@pytest.mark.parametrize("flags", [(), ("-flto=thin",)])
def test_a_twin_that_the_compiler_has_split(language, flags, tmp_path, heap):
    """The one that is left whole is not taken in its place."""
    sources = [tmp_path / "first.c", tmp_path / "second.c"]
    for source, text in zip(sources, (SPLIT_FIRST, SPLIT_SECOND)):
        source.write_text(text)
    flags = ("-O2", "-g", *flags, "-x", language)
    program = built(tmp_path, "clang", *flags, "-DKEPT=", sources=sources)
    why = r"has made (table|_ZL5table)\.\d of another variable.*; declare that one __attribute__"
    for root, size in (("table", 56), ("table.runs", 8)):
        refused = call(RUN, "-H", heap, "-r", root, program)
        assert refused.returncode == 125 and re.search(why, refused.stderr), refused
        whole = re.search(rf"\+0x[0-9a-f]+/{size}\b", refused.stderr)[0]
        fresh = heap.with_name(f"fresh{size}")
        output = [succeeds(call(RUN, "-H", fresh, "-r", whole, program)) for _ in range(2)]
        assert output == ["1 1 1\n", "1 1 2\n"]
    assert not heap.exists()
    program = built(tmp_path, "clang", *flags, "-DKEPT=__attribute__((used))", sources=sources)
    refused = call(RUN, "-H", heap, "-r", "table", program)
    one_line(refused, "pmalloc", 125, "2 variables of that name")
