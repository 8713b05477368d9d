# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Signal handlers that make the calls of signal-safety(7), whatever they interrupt, in each mode.

What the program sees of its handlers is the same with the preload and without it."""

import pytest

from conftest import compiled, recovered, run, said

MODES = {
    "no heap": {},
    "heap": {"ROOTS": "keep"},
    "commits by time": {"ROOTS": "keep", "COMMIT": "20ms"},
    "commits by output": {"ROOTS": "keep", "COMMIT": "output"},
}


@pytest.fixture(scope="module")
def handlers():
    return compiled("handlers.c", "-Wno-deprecated-declarations", name="pmtest_handlers")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind, count", [("malloc", 80), ("fork", 60), ("write", 60)])
def test_a_handler_may_call_what_is_safe(handlers, heap, mode, kind, count):
    settings = MODES[mode] | ({} if mode == "no heap" else {"HEAP": heap})
    done = run([handlers, kind, count], timeout=60, **settings)
    assert (done.returncode, done.stdout, done.stderr) == (0, "right\n", ""), said(done)
    if settings:
        assert recovered(heap)


@pytest.mark.parametrize("mode", ["without the preload", *MODES])
def test_the_program_sees_its_own_handlers(handlers, heap, mode):
    preload = mode in MODES
    settings = MODES.get(mode, {}) | ({"HEAP": heap} if MODES.get(mode) else {})
    done = run([handlers, "alike", 100], preload=preload, timeout=60, **settings)
    assert (done.returncode, done.stdout, done.stderr) == (0, "right\n", ""), said(done)
