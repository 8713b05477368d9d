# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""The functions that a start executes lie together in the library (preload/first)."""

import re
import shutil
import subprocess

import pytest
from conftest import BUILD, ROOT

LIBRARY = BUILD / "libpmalloc_preload.so"
MAKE_ORDER = ROOT / "scripts" / "make-order"


def addresses():
    """Of each function, without those of which there are several."""
    symbols = subprocess.run(["nm", LIBRARY], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^([0-9a-f]+) [tT] (\w+)$", symbols, re.MULTILINE)
    names = [name for _, name in found]
    return {name: int(at, 16) for at, name in found if names.count(name) == 1}


def test_they_lie_together():
    where = addresses()
    first = [name for name in (ROOT / "preload" / "first").read_text().split("\n") if name in where]
    assert len(first) > 200
    there = sorted(where[name] for name in first)
    between = [at for name, at in where.items() if there[0] < at < there[-1]]
    assert len(between) < 1.1 * len(first)
    assert there[-1] - there[0] < 200_000


@pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is missing")
def test_the_list_is_that_of_today():
    done = subprocess.run([MAKE_ORDER, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
