# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Where threads are held, the frames of signals lie on stacks of the library's own.

They overwrite nothing of the program's, and the program sees its own alternate stacks."""

import pytest

from conftest import compiled, recovered, run, said


@pytest.fixture(scope="module")
def stacks():
    return compiled("signal_stacks.c", name="pmtest_signal_stacks")


@pytest.mark.parametrize("mode", ["coroutines", "unwritable"])
def test_a_hold_stores_nothing_to_stacks_of_the_program(stacks, heap, mode):
    done = run([stacks, mode], timeout=60, HEAP=heap, ROOTS="keep", COMMIT="api")
    assert (done.returncode, done.stdout, done.stderr) == (0, "right\n", ""), said(done)
    assert recovered(heap)


@pytest.mark.parametrize(
    "settings", [None, {}, {"ROOTS": "keep"}, {"ROOTS": "keep", "COMMIT": "api"}]
)
@pytest.mark.parametrize("mode", ["alternate", "threads"])
def test_the_program_sees_its_own_stacks(stacks, heap, mode, settings):
    """With a heap the kernel has one of the library's in each thread, the last as the first."""
    more = {"HEAP": heap} | settings if settings else {}
    argv = [stacks, mode, "always"] if settings else [stacks, mode]
    done = run(argv, preload=settings is not None, timeout=60, **more)
    assert (done.returncode, done.stdout, done.stderr) == (0, "right\n", ""), said(done)
