# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""PMALLOC_COLLECT=later: a start after a crash keeps what was allocated and collects nothing."""

import json
import re
import time

import pytest
from conftest import recover, recovered, said, succeeds

LATER = {"COLLECT": "later"}
LEAKS = 2000  # blocks; about 20 MB


def leak(work, **settings):
    """A run that leaks and is killed. Returns its start line."""
    done = work.run("leak", LEAKS, "-k", VERBOSE=1, **settings)
    assert done.returncode == -9 and "leaked blocks=" in done.stdout, said(done)
    return done.stderr


def kept_bytes(line):
    match = re.search(r"not collected: all that was allocated is kept, (\d+) bytes", line)
    assert match, line
    return int(match[1])


@pytest.mark.check
@pytest.mark.parametrize("name", ["list", "hashset"])
def test_what_leaked_stays_until_a_collection(workload, rng, name):
    work = workload(name)
    before = work.check("run", 800, rng.randrange(1 << 30), **LATER)
    assert work.run("leak", LEAKS, "-k", **LATER).returncode == -9
    live = json.loads(succeeds(recover(work.heap, "--dry-run", "--json")))["live_bytes"]
    first = kept_bytes(leak(work, **LATER))
    second = kept_bytes(leak(work, **LATER))
    assert second > first > live
    assert work.check(**LATER) == before  # it ends cleanly, and trusts its bitmaps from then on
    line = work.run("check", VERBOSE=1, **LATER).stderr
    assert "; clean: " in line, line
    assert recovered(work.heap)["reclaimed_bytes"] > 0
    assert recovered(work.heap)["leaked_objects"] == 0
    assert work.check() == before


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["skiplist", "tree", "list"])
def test_kills(workload, processes, rng, name, threads):
    """Every start is on a heap that nobody has collected. The program checks all it finds, and
    that no two blocks overlap."""
    work = workload(name)
    ops = 0
    for _ in range(6):
        process = work.start("run", 0, rng.randrange(1 << 30), "-t", threads, **LATER)
        processes.append(process)
        while process.stdout.readline() not in ("ready\n", ""):
            pass
        time.sleep(rng.uniform(0, 0.03))
        process.kill()
        assert process.wait() == -9, process.stderr.read()
        told = json.loads(succeeds(recover(work.heap, "--dry-run", "--json")))
        found = work.check("check", **LATER) if rng.randrange(3) == 0 else None
        if found:
            assert found["ops"] >= ops
            ops = found["ops"]
    assert recovered(work.heap)["live_bytes"] >= min(told["live_bytes"], 1)
    assert work.check()["ops"] >= ops


def collected(line):
    return re.search(r"; (recovered|clean): .* bytes reclaimed", line)


def test_a_heap_that_doubles_is_collected(workload):
    """The sum of all leaks has a bound. The next collection sets it anew."""
    work = workload("list")
    succeeds(work.run("run", 100, 1))
    sizes = []
    for _ in range(24):
        line = leak(work, **LATER)
        if collected(line) and sizes:
            break
        sizes.append(0 if collected(line) else kept_bytes(line))
    else:
        pytest.fail(f"nothing was collected: {sizes}")
    assert len(sizes) > 3 and sizes[-1] > 32 << 20, sizes
    kept_bytes(leak(work, **LATER))  # a small heap again
    work.check()


def test_a_heap_that_is_nearly_full_is_collected(workload):
    work = workload("list")
    succeeds(work.run("run", 100, 1))
    before = work.check()
    leak(work, **LATER)
    limit = kept_bytes(leak(work, **LATER)) * 2  # with what this run leaks it is nearly full
    done = work.run("check", VERBOSE=1, LIMIT=limit, **LATER)
    assert done.returncode == 0 and collected(done.stderr), said(done)
    assert work.check(**LATER) == before


def test_a_heap_without_roots_is_emptied(workload):
    work = workload("list")
    assert work.run("leak", LEAKS, "-k", ROOTS=None, **LATER).returncode == -9
    done = work.run("leak", 10, "-k", ROOTS=None, VERBOSE=1, **LATER)
    assert "emptied" in done.stderr, said(done)
