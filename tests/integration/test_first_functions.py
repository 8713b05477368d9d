# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What a start touches lies together in the library (preload/first)."""

import re
import shutil
import subprocess

import pytest
from conftest import BUILD, ROOT

LIBRARY = BUILD / "libpmalloc_preload.so"
MAKE_ORDER = ROOT / "scripts" / "make-order"


def addresses(kinds):
    """Of each symbol, without those of which there are several."""
    symbols = subprocess.run(["nm", LIBRARY], capture_output=True, text=True, check=True).stdout
    found = re.findall(rf"^([0-9a-f]+) [{kinds}] (\w+)$", symbols, re.MULTILINE)
    names = [name for _, name in found]
    return {name: int(at, 16) for at, name in found if names.count(name) == 1}


def groups():
    """The names of preload/first, by section."""
    text = re.sub("^#.*$", "", (ROOT / "preload" / "first").read_text(), flags=re.MULTILINE)
    return {name: names.split() for name, names in re.findall(r"\[(.*)\]([^[]*)", text)}


def span(where, names, most):
    """Asserts that hardly anything else lies between them. Returns how many they are and how many
    bytes they span, without the last tenth: a few have a place of their own."""
    there = sorted(where[name] for name in names if name in where)
    there = there[: len(there) * 9 // 10]
    between = [at for at in where.values() if there[0] < at < there[-1]]
    assert len(between) < most * len(there)
    return len(there), there[-1] - there[0]


def test_they_lie_together():
    where, first = addresses("tT"), groups()
    count, size = span(where, first[".text.startup"], 1.5)
    assert count > 200 and size < 400 * count
    count, size = span(where, first[".text.startup"] + first[".text.hot"], 1.1)
    assert count > 200 and size < 400 * count  # gcc 12 and 16: 316, 358


def test_variables_lie_in_one_page():
    """The last one of the data: the loader writes the rest of it."""
    variables = groups()[".data1"]
    where = addresses("d")
    assert "pm_options" in variables and "pm_phase_word" in variables
    pages = {where[name] // 4096 for name in variables if name in where}
    assert sum(name in where for name in variables) > 0.8 * len(variables)
    assert pages == {max(where.values()) // 4096}, pages


@pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is missing")
def test_the_list_is_that_of_today():
    done = subprocess.run([MAKE_ORDER, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
