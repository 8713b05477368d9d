# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Where modules lie that a program loads by dlopen(): not where the library's own mappings push
them. Words of the heap may point into such a module."""

import signal

import pytest
from conftest import compiled, run, succeeds, tool

MODES = {
    "heap": [],
    "commit": ["-s", "COMMIT=5ms"],
    "background": ["-s", "COLLECT=background"],
    "decay": ["-s", "BACKGROUND=decay"],
}


@pytest.fixture(scope="module")
def program():
    return compiled("place.c", "-D_GNU_SOURCE=")


@pytest.fixture(scope="module")
def module():
    return compiled("leaks_library.c", "-shared", "-fPIC", name="libplace.so")


def place(program, module, mib, *options):
    """The addresses that the kernel chose before the module, for it, and after it."""
    argv = [tool("pmalloc-run"), *options, program, module, "kept_tls", mib]
    return succeeds(run(argv, preload=False)).split()


@pytest.mark.parametrize("mode", MODES)
def test_heap_of_any_size(program, module, shm, mode):
    """At the first start, with a heap that grows, after it has grown, and on volatile memory."""
    options = [*MODES[mode], "-H", shm / "heap", "-r", "root"]
    first = place(program, module, 1, *options)
    for mib in (0, 40, 0, 120, 0):
        assert place(program, module, mib, *options) == first
    assert place(program, module, 1, "-s", "BACKING=volatile") == first


def test_heap_of_a_kill(program, module, shm):
    """A start that recovers maps more than one that finds a clean heap."""
    options = ["-H", shm / "heap", "-r", "root"]
    first = place(program, module, 64, *options)
    argv = [tool("pmalloc-run"), *options, program, module, "kept_tls", 1, "kill"]
    assert run(argv, preload=False).returncode == -signal.SIGKILL
    assert place(program, module, 0, *options) == first
