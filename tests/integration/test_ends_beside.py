# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""A program that ends, or closes its heap, while other threads work: they are held, and the heap is
closed cleanly. What they did is whole, and the next start does not collect."""

import json

import pytest
from conftest import compiled, one_message, recovered, run, said, succeeds, tool


@pytest.fixture(scope="module")
def program():
    return compiled("ends_beside.c", "-pthread", name="ends_beside")


def state(heap):
    return json.loads(succeeds(run([tool("pmalloc-info"), "--json", heap], preload=False)))["state"]


def ends(program, heap, mode, how="main", **settings):
    """What the last run left: nodes, and how often the lock was taken."""
    done = run([program, mode, how], HEAP=heap, ROOTS="kept", COLLECT="crash", **settings)
    assert (done.returncode, done.stderr) == (0, ""), said(done)
    return [int(number) for number in done.stdout.split()]


@pytest.mark.check
@pytest.mark.parametrize("mode", ["small", "large", "locks", "calls"])
def test_the_heap_is_clean(program, heap, mode):
    """The counters of the lock are equal: a section is whole, or not begun. What the threads had in
    their caches is free: else there were hundreds of blocks that nothing reaches."""
    for _ in range(2 if mode == "calls" else 4):
        left = ends(program, heap, mode)
        assert state(heap) == "clean"
    assert mode == "calls" or left[mode == "locks"] > 0
    assert recovered(heap)["leaked_objects"] < 60


@pytest.mark.parametrize("commit", [None, "api"])
@pytest.mark.parametrize("how", ["thread", "quick", "fork"])
def test_however_the_program_ends(program, heap, how, commit):
    for mode in ("small", "calls"):
        ends(program, heap, mode, how, COMMIT=commit)
        assert state(heap) == "clean"
    assert recovered(heap)


def test_what_is_no_end_does_not_close(program, heap):
    ends(program, heap, "small", "_exit")
    assert state(heap) == "dirty"
    assert recovered(heap)


def test_a_heap_without_roots_is_emptied(program, heap):
    done = run([program, "small", "main"], HEAP=heap, ROOTLESS="quiet")
    assert (done.returncode, done.stderr) == (0, ""), said(done)
    assert state(heap) == "clean"


def test_a_request_that_a_handler_interrupted(program, heap):
    """A handler that never returns has it, or it came between two requests."""
    for _ in range(3):
        ends(program, heap, "handler")
        assert state(heap) in ("clean", "dirty")
    assert recovered(heap)


def test_a_thread_that_is_not_held(heap):
    """It blocks the signal for it. The heap is as after a kill, and a line says so."""
    race = compiled("race.c", name="race")
    done = run([race, 1000, "unheard"], HEAP=heap, ROOTS="stack")
    assert done.returncode == 0, said(done)
    one_message(done, "is left as after a kill", "does not come to rest")
    assert state(heap) == "dirty"
    assert recovered(heap)
