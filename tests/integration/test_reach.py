# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""No free block is out of reach: what other threads have freed, what earlier runs have freed, what
is kept in caches and empty slabs. By counts. The program is reach.c."""

import re

import pytest
from conftest import compiled, recover, run, said, succeeds

SLAB = 64 << 10


@pytest.fixture(scope="module")
def reach():
    return compiled("reach.c", "-rdynamic")


def figures(done):
    """Of the last malloc_stats(): the slabs, and by which steps blocks were found."""
    assert done.returncode == 0, said(done)
    slabs = int(re.findall(r"heap \d+ bytes = slabs (\d+)", done.stderr)[-1]) // SLAB
    line = re.findall(r"blocks were taken (\d+) times = (.*)", done.stderr)[-1]
    steps = {name.strip(): int(n) for name, n in re.findall(r"([a-z ]+) (\d+)", line[1])}
    assert int(line[0]) == sum(steps.values()), said(done)
    taken = re.findall(r"taken back (\d+) times, with (\d+) blocks.*; (\d+) requests", done.stderr)
    times, blocks, failed = (int(n) for n in taken[-1])
    return {"slabs": slabs, "times": times, "blocks": blocks, "failed": failed, **steps}


def where(heap, backing):
    return {"HEAP": heap} if backing == "file" else {"BACKING": "volatile"}


@pytest.mark.parametrize("backing", ["file", "volatile"])
@pytest.mark.parametrize("mode", ["elsewhere", "thread", "half"])
@pytest.mark.parametrize("cores", [None, 64])
def test_what_another_thread_freed(reach, heap, mode, backing, cores):
    done = run([reach, mode], LIMIT="64M", **{**where(heap, backing), "reach_cores": cores})
    found = figures(done)
    failed = int(re.match(r"(\d+) of \d{6,} failed", done.stdout)[1])
    # What it has got before there was a heap does not come back.
    assert failed <= (500 if backing == "volatile" else 0), said(done)
    # Its caches were full, and it slept.
    assert found["blocks"] > 0 and found["slabs"] <= 1024


@pytest.mark.parametrize("cores", [1, 2, 64])
@pytest.mark.parametrize("limit", ["40M", None])
def test_what_an_earlier_run_freed(reach, heap, cores, limit):
    settings = {"HEAP": heap, "ROOTS": "kept", "LIMIT": limit}
    first = figures(run([reach, "first", 500_000], **settings, reach_cores=2))
    second = run([reach, "second", 500_000], **settings, reach_cores=cores)
    found = figures(second)
    assert second.stdout == "0 of 375000 failed\n", said(second)
    assert found["slabs"] <= first["slabs"] + 2, said(second)
    assert found["other arenas"] >= 480 and found["new slabs"] <= 2
    assert recover(heap, "--check").returncode == 0


@pytest.mark.parametrize("backing", ["file", "volatile"])
@pytest.mark.parametrize("threads", [1, 7])
def test_trim_takes_back_what_is_kept(reach, heap, threads, backing):
    found = figures(run([reach, "trim", threads], **where(heap, backing)))
    assert found["slabs"] <= threads + 1 and found["blocks"] > 100 * threads


@pytest.mark.parametrize("cores", [2, 64])
@pytest.mark.parametrize("limit", ["24M", None])
def test_all_at_once(reach, heap, cores, limit):
    done = run([reach, "race", 6], HEAP=heap, LIMIT=limit, reach_cores=cores, CHECK="abort")
    found = figures(done)
    assert done.stdout == "0 refused\n" if limit is None else found["slabs"] <= 384, said(done)
    assert recover(heap, "--check").returncode == 0
