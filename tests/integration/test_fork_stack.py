# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Forks on stacks that lie in the heap or in a root, and what libc stores in a child before our
handlers run there.

The program says what it finds wrong. Under the preload, on each kind of memory, it finds nothing,
as with libc's malloc."""

import pytest
from conftest import compiled, recovered, run, said, succeeds

WHERE = ["coroutine", "static", "thread", "signal"]
HOW = ["fork", "daemon", "forkpty", "clone", "vfork", "spawn", "bare", "raw"]
MODES = {
    "libc": None,
    "volatile": {"BACKING": "volatile"},
    "heap": {},
    "20ms": {"COMMIT": "20ms"},
    "output": {"COMMIT": "output"},
    "copy": {"FORK": "copy"},
    "copy, 20ms": {"FORK": "copy", "COMMIT": "20ms"},
    "copy, output": {"FORK": "copy", "COMMIT": "output"},
    "follow": {"FORK": "follow"},
}


@pytest.fixture(scope="module")
def program():
    return compiled("fork_stack.c")


def right(program, heap, mode, *argv):
    settings = MODES[mode]
    if settings is None:
        done = run([program, *argv], preload=False)
    elif mode == "volatile":
        done = run([program, *argv], **settings)
    else:
        done = run([program, *argv], HEAP=heap, ROOTS="*", **settings)
    assert succeeds(done) == "right\n" and done.stderr == "", said(done)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("mode", MODES)
def test_stack(program, shm, mode, where):
    for how in HOW:
        right(program, shm / how, mode, where, how)


@pytest.mark.parametrize("mode", MODES)
def test_streams_of_a_parent_stay_locked(program, heap, mode):
    right(program, heap, mode, "streams")


def test_the_parents_heap_is_whole(program, heap):
    right(program, heap, "heap", "thread", "fork")
    recovered(heap)
    right(program, heap, "heap", "thread", "fork")
