# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""scripts/check-style accepts this tree and refuses each kind of untidiness."""

import subprocess
import sys

import pytest
from conftest import ROOT

HEAD = "SPDX-License-Identifier: MIT\n{0} Copyright (c) 2026 The PMAlloc authors\n"
C, HASH = "// " + HEAD.format("//"), "# " + HEAD.format("#")

# Each file goes as far as it may.
GOOD = {
    "core/a.c": f"{C}\nint a(int x,\n      int y) {{\n" + "    x++;\n" * 57 + "}\nint z;\n",
    "core/c.c": f"{C}int a = syscall(1, 2, 3, 4, 5, f(6, 0)) + syscall(1, 2, 3, 4, 5, 6, 0L);\n",
    "core/a.h": C + "// line\n" * 498,
    "core/b.cc": f"{C}namespace {{\n" + "int v;\n" * 80 + "}\n",
    "scripts/b": f"#!/usr/bin/python3\n{HASH}def b():\n" + "    pass\n" * 59,
    "Makefile": f"{HASH}all:\n\techo {'x' * 93}\n",
    "a.md": f"| {'word ' * 40}|\n{'x' * 300}\nword\n",
    "tests/fuzz/corpus/x": "a\tb \n",
    "build/made.c": "a\tb \n",
    "docs/benchmarks/README.md": "a\tb \n",
    ".hidden/made.c": "a\tb \n",
    "picture.png": "\0\t \n",
}


def check(root):
    command = [sys.executable, str(ROOT / "scripts" / "check-style"), str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def plant(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def test_this_tree_is_clean():
    done = check(ROOT)
    assert done.returncode == 0, done.stderr


def test_good_tree_is_clean(tmp_path):
    plant(tmp_path, GOOD)
    done = check(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "check-style: 7 files, no complaint\n"


def test_empty_tree_is_no_success(tmp_path):
    assert check(tmp_path).returncode == 2


@pytest.mark.parametrize(
    "name, text, complaint",
    [
        ("core/a.c", f"{C}// {'x' * 98}\n", "core/a.c:3: 101 columns; 100 are allowed"),
        ("core/a.c", f'{C}char *s = "{"x" * 98}";\n', "core/a.c:3: 111 columns"),
        ("scripts/b", f"#!/bin/sh\n{HASH}# {'x' * 99}\n", "scripts/b:4: 101 columns"),
        ("Makefile", f"{HASH}all:\n\techo {'x' * 95}\n", "Makefile:4: 101 columns"),
        ("a.md", f"{'word ' * 20}word\n", "a.md:1: 104 columns"),
        ("a.json", f"{' ' * 99}[1]\n", "a.json:1: 102 columns"),
        (".ci/run", f"#!/bin/sh\n{HASH}# {'x' * 99}\n", ".ci/run:4: 101 columns"),
        ("core/a.c", f"{C}int\ta;\n", "core/a.c:3: a tab"),
        ("Makefile", f"{HASH}A =\t1\n", "Makefile:3: a tab"),
        ("a.md", "word \n", "a.md:1: spaces at the end of the line"),
        ("core/a.c", f"{C}int a;", "core/a.c:3: no newline at the end of the file"),
        ("core/a.c", f"{C}{'int a;' + chr(10)}" * 250, "core/a.c:1: 750 lines; 600 are allowed"),
        ("core/a.c", "int a;\n", "core/a.c:1: does not begin with the two lines"),
        ("scripts/b", "#!/bin/sh\ntrue\n", "scripts/b:1: does not begin with the two lines"),
        ("core/x.map", "{ local: *; };\n", "core/x.map:1: does not begin with the two lines"),
        (
            "core/a.c",
            f"{C}int a = syscall(READ, f(g(1, 2)), &b, 1,\n            c, (d){{1, 2}}, 0);\n",
            "core/a.c:4: an int as the sixth argument of a system call; write 0L",
        ),
        (
            "core/a.c",
            f"{C}int a(int x,\n      int y) {{\n" + "    x++;\n" * 58 + "}\n",
            "core/a.c:3: a() has 61 lines; 60 are allowed",
        ),
        (
            "core/a.h",
            f"{C}static inline int *a(void) {{\n" + "    x++;\n" * 59 + "}\n",
            "core/a.h:3: a() has 61 lines",
        ),
        (
            "core/a.c",
            f"{C}struct s {{\n    int x;\n}};\nint a(void) {{\n" + "    x++;\n" * 59 + "}\n",
            "core/a.c:6: a() has 61 lines",
        ),
        (
            "scripts/b",
            f"#!/usr/bin/python3\n{HASH}class A:\n    def b(self):\n" + "        pass\n" * 60,
            "scripts/b:5: b() has 61 lines",
        ),
        ("a.py", f"{HASH}async def b():\n" + "    pass\n" * 60, "a.py:3: b() has 61 lines"),
    ],
)
def test_each_kind_is_refused(tmp_path, name, text, complaint):
    plant(tmp_path, {**GOOD, name: text})
    done = check(tmp_path)
    assert done.returncode == 1 and complaint in done.stderr, done.stderr
