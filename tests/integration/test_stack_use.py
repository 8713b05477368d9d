# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""How much stack the library takes of the program's, in each kind of call.

Coroutines have stacks of a page or two. docs/limits.md has these bounds."""

import re

import pytest

from conftest import compiled, recover, run, said, succeeds

# Bytes. libc's pthread_create takes 3.5 KiB of its own.
BOUNDS = {"blocks": 3584, "large": 3584, "fork": 4096, "commit": 2048, "thread": 4096}
MODES = {
    "no heap": {},
    "heap": {"ROOTS": "keep"},
    "commits by call": {"ROOTS": "keep", "COMMIT": "api"},
    "commits by output": {"ROOTS": "keep", "COMMIT": "output"},
}


@pytest.fixture(scope="module")
def stack_use():
    return compiled("stack_use.c", "-Wl,-z,now", name="pmtest_stack_use")


def settings(mode, heap):
    return MODES[mode] | ({"HEAP": heap} if MODES[mode] else {})


@pytest.mark.parametrize("mode", MODES)
def test_each_kind_of_call_is_bounded(stack_use, heap, mode):
    text = succeeds(run([stack_use, "measure"], **settings(mode, heap)))
    figures = {name: int(bytes_) for name, bytes_ in re.findall(r"(\w+) (\d+)", text)}
    assert figures.keys() == BOUNDS.keys()
    assert not {name: most for name, most in figures.items() if most > BOUNDS[name]}, figures


@pytest.mark.parametrize("mode", MODES)
def test_exit_needs_a_page_of_stack(stack_use, heap, mode):
    done = run([stack_use, "exit", 4096], **settings(mode, heap))
    assert (done.returncode, done.stderr) == (7, ""), said(done)


@pytest.mark.parametrize("where", ["heap", "root"])
@pytest.mark.parametrize("mode", MODES)
def test_the_last_thread_closes_the_heap_from_a_small_stack(stack_use, heap, mode, where):
    """The stack lies in the heap, or in a root: it is replaced while the heap is closed."""
    more = settings(mode, heap) | ({"ROOTS": "keep,kept,in_root"} if MODES[mode] else {})
    done = run([stack_use, "alone", where], **more)
    # A stack in the heap has addresses of the thread, and that is said.
    lines = [line for line in done.stderr.splitlines() if "at the next start" not in line]
    assert (done.returncode, lines) == (7, []), said(done)
    if MODES[mode]:
        assert "result     clean" in recover(heap, "--check").stdout
