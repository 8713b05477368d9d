# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""`pmalloc-info --tree`: the values of a root, by the types that the compiler has written down."""

import json
import re
import shutil
import subprocess

import pytest
from conftest import HERE, compiled, succeeds
from tool_heaps import INFO, RUN, SHELL, call, clean_heap, one_line, originals  # noqa: F401

CXX = pytest.mark.parametrize(
    "compiler, version", [("g++", 4), ("g++", 5), ("clang++", 5)]
)


def values_of(heap, program):
    """The values of values.c, by its types."""
    succeeds(call(RUN, "-H", heap, "-r", "values", program))
    return json.loads(succeeds(call(INFO, "--tree", "values", "--json", heap)))["values"]


def values_built(folder, compiler, *flags):
    """In a folder of its own: some types lie in files beside it."""
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    argv = [compiler, "-O1", *flags, "-o", folder / "values", HERE / "values.c"]
    subprocess.run(argv, cwd=folder, check=True)
    return folder / "values"


# What compilers and packagers make of debug information.
@pytest.mark.parametrize("compiler, version", [("gcc", 4), ("gcc", 5), ("clang", 5)])
@pytest.mark.parametrize("flag", ["-gsplit-dwarf", "-fdebug-types-section", "-gz", "-gdwarf64"])
def test_types_in_every_form(shm, tmp_path, compiler, version, flag):
    if (compiler, flag) == ("clang", "-gdwarf64"):
        flag = "-gpubnames"
    tree = values_of(shm / "heap", values_built(tmp_path, compiler, f"-gdwarf-{version}", flag))
    assert tree["small"] == -5 and tree["links"]["real"] == 4 and tree["colour"] == "BLUE"


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("several", [False, True])
def test_types_that_dwz_has_made_smaller(shm, tmp_path, version, several):
    """As Debian's packages have them; of several files at once, what they share is in a third."""
    if not shutil.which("dwz"):
        pytest.skip("dwz is not installed")

    program = values_built(tmp_path, "gcc", f"-gdwarf-{version}")
    other = shutil.copy(program, tmp_path / "other")
    names = ["-m", tmp_path / "shared.debug", program, other] if several else [program]
    subprocess.run(["dwz", *names], check=True)
    assert (tmp_path / "shared.debug").exists() == several
    tree = values_of(shm / "heap", program)
    assert tree["small"] == -5 and tree["links"]["real"] == 4 and tree["colour"] == "BLUE"


@pytest.mark.check
@pytest.mark.parametrize("compiler, version", [("gcc", 4), ("gcc", 5), ("clang", 5)])
def test_values_are_printed_by_their_types(shm, compiler, version):
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    heap = shm / "heap"
    tree = values_of(heap, compiled("values.c", f"-gdwarf-{version}", "-O1", compiler=compiler,
                                    name=f"values-{compiler}-{version}"))
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


def book(compiler, version, heap):
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    program = compiled("values_cxx.cc", f"-gdwarf-{version}", "-O0", "-std=c++17",
                       compiler=compiler, name=f"values_cxx-{compiler}-{version}")
    succeeds(call(RUN, "-H", heap, "-r", "app::store,app::squares", program))


def sequence(*values):
    return {f"[{i}]": value for i, value in enumerate(values)}


@CXX
def test_containers_are_printed_as_what_they_hold(shm, compiler, version):
    heap = shm / "heap"
    book(compiler, version, heap)
    tree = json.loads(succeeds(call(INFO, "--tree", "app::store", "--json", "--width", 3, heap)))
    tree = tree["app::store"]
    weak = tree.pop("weak")
    assert re.fullmatch("0x[0-9a-f]+, met before", weak)
    large = tree.pop("large")
    assert large == 4096 * "x" + "..."
    long_name = "a name that is too long to be stored in place"
    pairs = [{"first": 1, "second": ord(letter)} for letter in "ab"]
    assert tree == {
        "numbers": sequence(3, 1, 4),
        "orders": sequence({"who": "ann", "lots": 7}, {"who": long_name, "lots": -2}),
        "nested": sequence(sequence(1), {}, sequence(2, 3)),
        "bits": sequence(True, False, True),
        "text": 'he said "no"', "empty": "",
        "prices": {"a\n": {}, "b": sequence(2.5), "c": sequence(1, 2)},
        "by_number": {"0": {"who": "0", "lots": 0}, "1": {"who": "43", "lots": 43},
                      "2": {"who": "86", "lots": 86}, "...": "97 more"},
        "by_order": sequence({"first": {"who": "ann", "lots": 7}, "second": 9}),
        "some": sequence(-5, 2, 900), "twice": sequence(*pairs),
        "one_word": {"key": 42}, "one": sequence(7),
        "list": sequence("first", "second"), "forward": sequence(8, 9),
        "queue": sequence(150, 151, 152) | {"...": "147 more"},
        "own": {"who": "own", "lots": 1}, "shared": {"who": "shared", "lots": 2}, "none": "NULL",
        "some_number": 5, "no_number": "no value", "count": 6, "three": {"[0]": 1, "[2]": 2},
        "cut": {"1": 2, "...": "999 more by its count, which cannot be read"},
        "also_cut": sequence(4, 5) | {"...": "998 more by its count, which cannot be read"},
    }
    squares = json.loads(succeeds(call(INFO, "--tree", "app::squares", "--json", heap)))
    assert squares == {"app::squares": {str(i): i * i for i in range(5)}}


def test_containers_as_text(shm):
    """All elements, in order, and nothing in a key that a terminal would take for a command."""
    heap = shm / "heap"
    book("g++", 5, heap)
    text = succeeds(call(INFO, "--tree", "app::store", "--width", 500, heap))
    assert '  text = "he said \\x22no\\x22"\n' in text and '    ["a?"] = {\n' in text
    order = r"^    \[(\d+)\] = \{\n      who = \"(\d+)\"\n      lots = (\d+)\n"
    numbers = re.findall(order, text, re.M)
    assert [int(key) for key, _, _ in numbers] == list(range(100))
    assert all(who == lots and int(lots) * 7 % 100 == int(key) for key, who, lots in numbers)
    queue = re.search(r"^  queue = \{\n((?:    \[\d+\] = \d+\n)+)  \}", text, re.M)[1]
    assert re.findall(r"= (\d+)", queue) == [str(i) for i in range(150, 300)]
    assert "more" not in text.replace("by its count", "").split("cut")[0]
    shallow = succeeds(call(INFO, "--tree", "app::store", "--depth", 1, heap))
    assert "  by_number = elements, not followed\n" in shallow and '  text = "he' in shallow
