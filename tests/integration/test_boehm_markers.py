# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""libpmalloc_gc.so: collections that several threads mark. The same objects survive whatever their
number, and the program never meets the threads that help."""

import os
import pathlib
import re

import pytest

from conftest import compiled, run, said, tool

HEADER = pathlib.Path("/usr/include/gc/gc.h")
pytestmark = pytest.mark.skipif(not HEADER.exists(), reason="libgc-dev is missing")


@pytest.fixture(scope="module")
def markers():
    return compiled("boehm_markers.c", libraries=["-lgc"])


def ours(program, case, number=None, monkeypatch=None, **settings):
    settings.setdefault("BACKING", None if "HEAP" in settings else "volatile")
    if number is not None:
        monkeypatch.setenv("GC_MARKERS", str(number))
    done = run([tool("pmalloc-run"), "--gc", "--", program, case], preload=False, **settings)
    assert done.returncode == 0 and done.stdout.endswith("right\n"), said(done)
    return done


def took_part(done):
    """(how many have marked, of how many) of each collection that GC_dump() told of."""
    found = re.findall(r"the last by (\d+) of (\d+) markers", done.stderr)
    assert found, said(done)
    return [(int(by), int(of)) for by, of in found]


@pytest.mark.parametrize("number", [1, 2, 4, 8])
def test_the_same_objects_survive(markers, number, monkeypatch):
    ours(markers, "survive", number, monkeypatch)


@pytest.mark.parametrize("number", [1, 4])
def test_on_media(markers, heap, number, monkeypatch):
    ours(markers, "survive", number, monkeypatch, HEAP=heap)


@pytest.mark.parametrize("number", [None, 2, 5])
def test_their_number_is_asked_for(markers, number, monkeypatch):
    if number:
        monkeypatch.setenv("GC_MARKERS", str(number))
    theirs = run([markers, "counts"], preload=False)
    assert theirs.returncode == 0 and theirs.stdout == "right\n", said(theirs)
    ours(markers, "counts", number, monkeypatch)


def test_a_wrong_number_is_said_and_the_most_is_taken(markers, monkeypatch):
    done = ours(markers, "defaults", 17, monkeypatch)
    assert done.stdout.splitlines()[0] == "15" and "number of mark threads: 17" in done.stderr


def test_as_many_as_cores(markers):
    done = ours(markers, "defaults")
    assert int(done.stdout.splitlines()[0]) == min(len(os.sched_getaffinity(0)), 16) - 1


def test_others_help_and_are_gone_afterwards(markers, monkeypatch):
    found = took_part(ours(markers, "part", 4, monkeypatch))
    assert len(found) == 30 and max(by for by, _ in found) > 1
    assert {of for _, of in found} == {4}


def test_one_marks_alone(markers, monkeypatch):
    assert set(took_part(ours(markers, "part", 1, monkeypatch))) == {(1, 1)}


def test_a_small_heap_wakes_nobody(markers, monkeypatch):
    assert took_part(ours(markers, "small", 4, monkeypatch)) == [(1, 4)]


@pytest.mark.parametrize("number", [1, 4])
def test_forks_while_another_thread_collects(markers, number, monkeypatch):
    ours(markers, "forks", number, monkeypatch)


@pytest.mark.parametrize("case", ["filtered", "inherited"])
def test_where_threads_are_forbidden_one_marks(markers, case, monkeypatch):
    assert took_part(ours(markers, case, 4, monkeypatch)) == [(1, 4)]


def test_mark_procedures_run_in_the_thread_that_collects(markers, monkeypatch):
    ours(markers, "procs", 4, monkeypatch)
