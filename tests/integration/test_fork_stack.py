# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Forks on stacks that lie in the heap or in a root; what libc stores in a child before our
handlers run there; and children that are made past the program's C library.

The programs say what they find wrong. Under the preload, on each kind of memory, it finds nothing,
as with libc's malloc."""

import pytest
from conftest import compiled, recovered, run, said, succeeds
from fork_modes import MODES, settings

WHERE = ["coroutine", "static", "thread", "signal"]
HOW = ["fork", "daemon", "forkpty", "clone", "vfork", "spawn", "bare", "raw"]


@pytest.fixture(scope="module")
def program():
    return compiled("fork_stack.c")


def right(program, heap, mode, *argv):
    done = run([program, *argv], **settings(mode, heap))
    # A coroutine's stack in the heap has addresses of the first thread's, and that is said.
    lines = [line for line in done.stderr.splitlines() if "at the next start" not in line]
    assert succeeds(done) == "right\n" and not lines, said(done)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("mode", MODES)
def test_stack(program, shm, mode, where):
    for how in HOW:
        right(program, shm / how, mode, where, how)


@pytest.mark.parametrize("mode", MODES)
def test_streams_of_a_parent_stay_locked(program, heap, mode):
    right(program, heap, mode, "streams")


@pytest.fixture(scope="module")
def elsewhere():
    return compiled("fork_elsewhere.c")


@pytest.mark.parametrize("mode", MODES)
def test_another_c_library(elsewhere, shm, mode):
    """In a namespace of dlmopen()."""
    for how, end in ("space", "_exit"), ("space", "exit"), ("path", "exit"):
        right(elsewhere, shm / f"{how}{end}", mode, how, end)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in ("libc", "follow")])
@pytest.mark.parametrize("end", ("_exit", "exit", "idle"))
def test_a_system_call_of_the_programs_own(elsewhere, heap, mode, end):
    right(elsewhere, heap, mode, "instruction", end)


@pytest.mark.parametrize("late", (False, True))
def test_a_system_call_of_the_programs_own_reaches_no_heap(elsewhere, heap, late):
    """Nor a shard that was made since the start."""
    argv = [elsewhere, "instruction", "_exit", *(["late"] if late else [])]
    done = run(argv, HEAP=heap, ROOTS="root" if late else "*", TOPOLOGY="2x1")
    assert (heap / "heap.1").exists() == late
    assert succeeds(done) == "right\n" and done.stderr == "", said(done)
    recovered(heap)
    right(elsewhere, heap, "heap", "space", "exit")


def test_the_parents_heap_is_whole(program, heap):
    right(program, heap, "heap", "thread", "fork")
    recovered(heap)
    right(program, heap, "heap", "thread", "fork")
