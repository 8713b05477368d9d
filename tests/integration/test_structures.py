# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Data structures that are changed by publishes (preload/pmalloc.h), killed at random instants.

Each change needs several stores, so a half one shows. What survives is what they reach."""

import json
import time

import pytest
from conftest import counted, linked, recover, run, start, succeeds, tool

THREADS = [1, 4]
ROUNDS = 25


@pytest.fixture(scope="module")
def structure():
    return linked("structure.c")


def killed_at_work(program, processes, rng, threads, settings, latest=0.03):
    process = start([program, "run", "-t", threads], **settings)
    processes.append(process)
    first, second = process.stdout.readline(), process.stdout.readline()
    assert second == "ready\n", first + second + process.stderr.read()
    time.sleep(rng.uniform(0, latest))
    process.kill()
    assert process.wait() == -9, process.stderr.read()
    assert process.stderr.read() == ""
    return counted(first)


@pytest.mark.parametrize("threads", THREADS)
def test_killed_at_random_instants(structure, heap, processes, rng, threads):
    settings = {"HEAP": heap, "preload": False}
    changes, unfinished = 0, 0
    for number in range(ROUNDS):
        _, seen = killed_at_work(structure, processes, rng, threads, settings)
        assert seen >= changes
        changes = seen
        if number % 5 == 0:
            found = json.loads(recover(heap, "--json").stdout)
            unfinished += found["unfinished"]
            blocks, _ = counted(succeeds(run([structure, "check"], **settings)))
            # The rest of a reused block may hold old pointers: that keeps a few more.
            assert blocks <= found["live_objects"] < blocks * 1.05 + 50
    assert changes > ROUNDS


@pytest.mark.parametrize("threads", THREADS)
def test_killed_in_commit_mode(structure, heap, processes, rng, threads):
    """The heap goes back to an instant, and no publish is half done there."""
    settings = {"HEAP": heap, "preload": False, "COMMIT": "4ms"}
    changes = 0
    for _ in range(6):
        _, seen = killed_at_work(structure, processes, rng, threads, settings, latest=0.8)
        assert seen >= changes
        changes = seen
    recover(heap)
    counted(succeeds(run([structure, "check"], HEAP=heap, preload=False)))
    assert changes > 10


def test_page_flushes_and_a_clean_end(structure, heap):
    """The same with msync() in the place of cache line flushes, and under the preload."""
    settings = {"HEAP": heap, "PERSIST": "page"}
    for _ in range(3):
        succeeds(run([structure, "leave"], **settings))
    blocks, changes = counted(succeeds(run([structure, "check"], **settings)))
    assert changes == 9000
    found = json.loads(succeeds(run([tool("pmalloc-info"), "--json", heap], preload=False)))
    assert blocks <= found["live_objects"] < blocks * 1.05 + 50 and found["unfinished"] == 0
    texts = blocks // 2 - 2  # each node has one, and there are four maps
    assert texts <= found["pointer_free"] < texts * 1.05 + 50
    assert "are pointer-free" in succeeds(run([tool("pmalloc-info"), heap], preload=False))


@pytest.mark.check
def test_the_cpp_header(heap):
    program = linked("structure_cxx.cc", "-std=c++17", compiler="g++")
    for number in range(1, 16):
        done = run([program], HEAP=heap, preload=False)
        assert succeeds(done) == f"{min(number, 10)}, top {number}\n"
    done = run([program, "refused"], HEAP=heap, preload=False)
    assert done.stdout == "refused\n" and "neither in the heap nor" in done.stderr
    found = json.loads(recover(heap, "--json").stdout)
    assert found["live_objects"] == 11  # the stack and ten nodes


def test_a_process_without_a_heap_publishes_too(structure):
    done = run([structure, "check"], BACKING="volatile")
    assert succeeds(done) == "ok 0 blocks 0 changes\n"
