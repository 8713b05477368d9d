# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""`pmalloc-info --tree`: the values of a root, by the types that the compiler has written down."""

import json
import re
import shutil
import subprocess

import pytest
from conftest import compiled, succeeds
from tool_heaps import INFO, RUN, SHELL, call, clean_heap, one_line, originals  # noqa: F401


@pytest.mark.parametrize("compiler, version", [("gcc", 4), ("gcc", 5), ("clang", 5)])
def test_values_are_printed_by_their_types(shm, compiler, version):
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    program = compiled("values.c", f"-gdwarf-{version}", "-O1", compiler=compiler,
                       name=f"values-{compiler}-{version}")
    heap = shm / "heap"
    succeeds(call(RUN, "-H", heap, "-r", "values", program))
    tree = json.loads(succeeds(call(INFO, "--tree", "values", "--json", heap)))["values"]
    unknown, function, self = (tree.pop(name) for name in ("unknown", "function", "self"))
    assert re.fullmatch("0x[0-9a-f]+", unknown) and re.fullmatch("0x[0-9a-f]+", function)
    assert self.endswith(", met before")
    links = tree.pop("links")
    for real in (4, 3, 2, 1, 0):
        assert links["real"] == real
        links = links["next"]
    assert links == "NULL"
    assert tree == {
        "small": -5, "large": 1 << 63, "half": 0.5, "yes": True, "colour": "BLUE", "bits": 5,
        "more": 17, "text": 'a "b"', "constant": "constant", "copy": "copied",
        "grid": {"[0]": 1, "[1]": 2, "[3]": 4}, "list": {"real": 1.25, "next": "NULL"},
        "nothing": "NULL", "both": {"one": -1, "byte": 255}, "count": 3, "rest": {"[1]": 7},
    }
    text = succeeds(call(INFO, "--tree", "values", "--width", 2, heap))
    assert '  text = "a \\x22b\\x22"\n' in text and "  small = -5\n" in text
    assert re.search(r"real = 4\n +next = \{\n +real = 3\n +next = 0x\w+, not followed\n", text)


def test_values_that_cannot_be_printed(shm, clean):
    one_line(call(INFO, "--tree", "stoer", clean), "pmalloc-info", 16, "no root named 'stoer'")
    one_line(call(INFO, "--tree", "store", "--map", clean), "pmalloc-info", 16, "--tree goes with")
    one_line(call(INFO, "--depth", "2", clean), "pmalloc-info", 16, "--tree")
    copy = shm / "copy"
    subprocess.run(["strip", "-o", copy, SHELL], check=True)
    succeeds(call(RUN, "-H", shm / "other", "-r", "*", copy, stdin="set a b\n"))
    one_line(call(INFO, "--tree", "*", shm / "other"), "pmalloc-info", 8, "build it with -g")
    shutil.copy("/bin/true", copy)
    one_line(call(INFO, "--tree", "*", shm / "other"), "pmalloc-info", 8, "is another build")
