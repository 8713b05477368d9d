# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Roots by offset belong to one build: in another one, what lies there may be another variable.
pmalloc-recover --rename-root says where a root is now."""

import re
import subprocess

import pytest
from conftest import CC, recover, refuses, run, said, succeeds

SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
%s
int main(void) {
    printf("quota %%ld\n", quota);
    if (!store) {
        store = malloc(32);
        strcpy(store, "kept");
        quota = 7;
    }
    printf("%%s\n", store);
}
"""
FIRST = SOURCE % "char *store; long quota = 5;"
SWAPPED = SOURCE % "long spare[8]; long quota = 5; char *other = (char *)1; char *store;"
RENAMED = (SOURCE % "char *shop; long quota = 5;").replace("store", "shop")


def built(folder, source, *flags):
    folder.mkdir()
    (folder / "app.c").write_text(source)
    program = folder / "app"
    argv = [CC, "-O1", "-g", "-rdynamic", *flags, "-o", program, folder / "app.c"]
    subprocess.run(argv, check=True)
    return program


def offset(program, name):
    lines = succeeds(run(["nm", program], preload=False))
    return int(re.search(rf"^(\w+) \w {name}$", lines, re.MULTILINE).group(1), 16)


def by_offset(program, name="store"):
    return f"+{offset(program, name):#x}/8"


@pytest.fixture
def first(tmp_path):
    return built(tmp_path / "first", FIRST)


@pytest.fixture
def swapped(tmp_path):
    return built(tmp_path / "second", SWAPPED)


@pytest.mark.check
def test_another_build_does_not_get_the_bytes(first, swapped, heap):
    root = by_offset(first)
    assert succeeds(run([first], HEAP=heap, ROOTS=root)) == "quota 5\nkept\n"
    assert succeeds(run([first], HEAP=heap, ROOTS=root)) == "quota 5\nkept\n"
    for settings in ({}, {"ROOTS": root}, {"ROOTS": "store"}):
        line = refuses(run([swapped], HEAP=heap, **settings), "another build", "--rename-root")
        assert root in line and str(heap) in line
    assert succeeds(run([first], HEAP=heap)) == "quota 5\nkept\n"


@pytest.mark.parametrize("new", ["offset", "symbol"])
def test_a_root_that_is_renamed(first, swapped, heap, new):
    """The command of the message, with the place where the variable is now."""
    root = by_offset(first)
    succeeds(run([first], HEAP=heap, ROOTS=root))
    name = by_offset(swapped) if new == "offset" else "store"
    done = recover(heap, "--rename-root", root, name)
    assert done.returncode == 0 and "live       1 object" in done.stdout, said(done)
    for _ in range(2):
        assert succeeds(run([swapped], HEAP=heap)) == "quota 5\nkept\n"
    if new == "offset":
        refuses(run([first], HEAP=heap), "--rename-root")
    else:
        assert succeeds(run([first], HEAP=heap)) == "quota 5\nkept\n"


def test_the_same_place_may_be_confirmed(first, tmp_path, heap):
    again = built(tmp_path / "again", FIRST + "int more(void); int more(void) { return 1; }")
    root = by_offset(first)
    assert by_offset(again) == root
    succeeds(run([first], HEAP=heap, ROOTS=root))
    refuses(run([again], HEAP=heap), "another build")
    succeeds(recover(heap, "--rename-root", root, root))
    assert succeeds(run([again], HEAP=heap)) == "quota 5\nkept\n"


def test_without_a_build_id_nothing_is_known(tmp_path, heap):
    one = built(tmp_path / "one", FIRST, "-Wl,--build-id=none")
    root = by_offset(one)
    for _ in range(2):
        assert succeeds(run([one], HEAP=heap, ROOTS=root)) == "quota 5\nkept\n"


def test_a_variable_with_another_name(first, tmp_path, heap):
    succeeds(run([first], HEAP=heap, ROOTS="store"))
    renamed = built(tmp_path / "renamed", RENAMED)
    line = refuses(run([renamed], HEAP=heap, ROOTS="shop"), "no such", "--rename-root 'store' NEW")
    assert "--drop-root" not in line and "belongs to" not in line  # it is the same program
    succeeds(recover(heap, "--rename-root", "store", "shop"))
    for settings in ({"ROOTS": "shop"}, {}):
        assert succeeds(run([renamed], HEAP=heap, **settings)) == "quota 5\nkept\n"


def test_wrong_names(first, heap):
    succeeds(run([first], HEAP=heap, ROOTS="store,quota"))
    for names, why in (
        (("stor", "shop"), "has no root named 'stor'"),
        (("store", "quota"), "already"),
        (("store", "*"), "no name for the same memory"),
        (("store", "+0x4000/16"), "8 bytes"),
        (("store", "a b"), "a b"),
        (("store",), "needs the old name"),
    ):
        done = recover(heap, "--rename-root", *names)
        assert done.returncode == 16 and why in done.stderr, said(done)
    assert succeeds(run([first], HEAP=heap)) == "quota 7\nkept\n"


def test_a_library_of_another_build(tmp_path, heap):
    """The build id is that of the object which the root names."""
    main = "int main(void) { extern void work(void); work(); return 0; }"
    library = FIRST.replace("int main(void)", "void work(void)")
    folder = tmp_path / "lib"
    one = built(tmp_path / "a", library, "-shared", "-fPIC").rename(tmp_path / "libone.so")
    folder.mkdir()
    (folder / "main.c").write_text(main)
    program = folder / "main"
    argv = [CC, "-o", program, folder / "main.c", one, f"-Wl,-rpath,{tmp_path}"]
    subprocess.run(argv, check=True)
    root = f"libone.so:+{offset(one, 'store'):#x}/8"
    succeeds(run([program], HEAP=heap, ROOTS=root))
    assert succeeds(run([program], HEAP=heap)) == "quota 5\nkept\n"
    built(tmp_path / "b", library + "int x;", "-shared", "-fPIC").rename(one)
    refuses(run([program], HEAP=heap), "another build of libone.so")
