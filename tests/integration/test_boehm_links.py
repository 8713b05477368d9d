# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Disappearing links of gc.h in a heap: they hold for one run, in which each word is cleared when
its object is collected, whichever collection that is."""

import pytest

from conftest import compiled, run, said, tool
from test_boehm import needs_headers

pytestmark = needs_headers

SUCCESS, DUPLICATE = 0, 1  # of gc.h


@pytest.fixture(scope="module")
def program():
    return compiled("boehm_links.c", libraries=["-lgc"])


def steps(program, heap, *words, killed=True, **settings):
    """What the steps print."""
    argv = [tool("pmalloc-run"), "--gc", "--", program, *words, *["kill"] * killed]
    done = run(argv, preload=False, HEAP=heap, ROOTS="heap", **settings)
    assert done.returncode == (-9 if killed else 0), said(done)
    assert not done.stderr.replace("Killed\n", ""), said(done)
    return done.stdout.splitlines()


def cleared(line):
    return int(line.split()[0])


@pytest.mark.parametrize("settings", [{}, {"COMMIT": "1ms"}, {"FORK": "copy"}], ids=str)
def test_a_collection_clears_words_in_a_heap(program, heap, settings):
    first, second = steps(
        program, heap, "make=400", "fork", "collect", "show", "free", "collect", "show", **settings
    )
    # Conservative: a few dead ones may be found on stacks.
    assert 160 <= cleared(first) <= 200 and first.endswith("200 kept")
    assert cleared(second) >= 360


# What a kill leaves is as the program has left it, and no link is in the heap.
@pytest.mark.parametrize("collect", ["always", "later", "api"])
def test_links_end_with_their_process(program, heap, collect):
    steps(program, heap, "make=200")
    assert steps(program, heap, "withdraw=0", "show", COLLECT=collect) == ["0 cleared, 100 kept"]
    words = ["withdraw=0", f"again={SUCCESS}", f"again={DUPLICATE}", "withdraw=1", "show"]
    assert steps(program, heap, *words, COLLECT=collect) == ["0 cleared, 100 kept"]


def test_pmalloc_collect_clears_words(program, heap):
    steps(program, heap, "make=200")
    words = [f"again={SUCCESS}", "collect-old", "show"]
    assert steps(program, heap, *words, COLLECT="api") == ["0 cleared, 100 kept"]
    words = [f"again={SUCCESS}", "let-go", "collect-old", "show", "withdraw=0"]
    assert steps(program, heap, *words, COLLECT="api") == ["100 cleared, 0 kept"]


def test_pmalloc_collect_drops_links_in_dead_blocks(program, heap):
    steps(program, heap, "make=200")
    words = [f"again={SUCCESS}", "drop-weak", "collect-old", "withdraw=0"]
    steps(program, heap, *words, COLLECT="api")


def test_a_private_heap(program, heap):
    steps(program, heap, "make=100", killed=False)
    words = [f"again={SUCCESS}", "free", "collect", "show"]
    assert steps(program, heap, *words, killed=False, OPEN="private") == ["50 cleared, 0 kept"]
    assert steps(program, heap, "show") == ["0 cleared, 50 kept"]
