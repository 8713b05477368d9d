# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""PMALLOC_COLLECT=background: in commit mode what was garbage at the start is freed beside the
program, which moves all its pointers meanwhile. tests/unit/test_beside.c compares with an offline
recovery, step by step."""

import re
import time

import pytest
from conftest import compiled, recover, recovered, run, said, start, succeeds, tool

NODES = 200_000
ROOTS = "store"
BACKGROUND = {"COLLECT": "background", "ROOTS": ROOTS, "VERBOSE": 1}
COLLECTED = re.compile(r"collected beside the program: (\d+) blocks, (\d+) bytes were garbage")


@pytest.fixture(scope="module")
def program():
    return compiled("beside.c")


@pytest.fixture
def killed(program, shm):
    """A heap with as much garbage as data."""
    heap = shm / "heap"
    assert run([program, "grow", NODES], HEAP=heap, ROOTS=ROOTS).returncode == -9
    return heap


def wait_for(process, wanted):
    """Reads the program's messages until one matches."""
    for line in process.stderr:
        found = wanted.search(line)
        if found:
            return found
    pytest.fail("it has ended")
    return None


@pytest.mark.parametrize("commit", ["50ms", "api"])
def test_garbage_is_freed(program, killed, processes, commit):
    told = succeeds(recover(killed, "--dry-run"))
    assert "to reclaim" in told
    process = start([program, "turn", 60], HEAP=killed, COMMIT=commit, **BACKGROUND)
    processes.append(process)
    wait_for(process, re.compile("; collecting beside the program: all that was allocated is kept"))
    blocks = int(wait_for(process, COLLECTED)[1])
    assert blocks >= NODES, blocks
    time.sleep(0.3)  # a commit
    process.kill()
    process.wait()
    done = run([program, "turn", 0.1], HEAP=killed, ROOTS=ROOTS, COLLECT="crash")
    assert succeeds(done).splitlines()[-1] == f"{NODES} nodes"
    assert recovered(killed)["leaked_objects"] < NODES / 100


def test_kills(program, killed, processes, rng):
    """In each phase, and before the first commit. No start collects before main."""
    for _ in range(8):
        process = start([program, "turn", 60], HEAP=killed, COMMIT="20ms", **BACKGROUND)
        processes.append(process)
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        time.sleep(rng.uniform(0, 0.4) ** 2 * 4)
        process.kill()
        assert process.wait() == -9, process.stderr.read()
    done = run([program, "turn", 0.1], HEAP=killed, ROOTS=ROOTS)
    assert succeeds(done).splitlines()[-1] == f"{NODES} nodes"
    succeeds(recover(killed, "--check"))


@pytest.mark.parametrize("fork", ["private", "copy", "follow"])
def test_forks(program, killed, fork):
    """A child has no part in its parent's collection."""
    done = run([program, "turn", 0.5, "fork"], HEAP=killed, COMMIT="30ms", FORK=fork, **BACKGROUND)
    assert succeeds(done).splitlines()[-1] == f"{NODES} nodes", said(done)
    done = run([program, "turn", 0.1], HEAP=killed, ROOTS=ROOTS)
    assert succeeds(done).splitlines()[-1] == f"{NODES} nodes"
    succeeds(recover(killed, "--check"))


def test_an_early_end(program, killed):
    """The next start collects, although the close was clean. pmalloc-info knows."""
    succeeds(run([program, "turn", 0], HEAP=killed, COMMIT="api", COLLECT="later", ROOTS=ROOTS))
    assert "not collected since" in succeeds(run([tool("pmalloc-info"), killed], False))
    for _ in range(2):
        done = run([program, "turn", 3], HEAP=killed, COMMIT="50ms", **BACKGROUND)
        succeeds(done)
        if COLLECTED.search(done.stderr):
            break
    else:
        pytest.fail(said(done))
    assert "not collected since" not in succeeds(run([tool("pmalloc-info"), killed], False))
    done = run([program, "turn", 0], HEAP=killed, COMMIT="50ms", **BACKGROUND)
    assert "; clean: " in done.stderr, said(done)


def test_without_commits_it_is_later(program, killed):
    done = run([program, "turn", 0], HEAP=killed, **BACKGROUND)
    succeeds(done)
    assert "no collection beside the program: it needs PMALLOC_COMMIT" in done.stderr, said(done)
    assert "not collected: all that was allocated is kept" in done.stderr, said(done)
