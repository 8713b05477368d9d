# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Heaps of several data files: PMALLOC_SHARD makes them small. Kills, forks, tools, and the way
between heaps of one shard and of several."""

import json
import time

import pytest

from conftest import (
    compiled,
    data_files,
    fingerprint,
    recover,
    recovered,
    refuses,
    run,
    said,
    start,
    succeeds,
    tool,
)

BLOCKS = "blocks,generation"
SMALL = {"SHARD": "8M"}


def built(forks, heap, megabytes=30, **settings):
    """A program with so many megabytes of blocks, all of tag 2 at its end."""
    return run([forks, "isolation", megabytes], HEAP=heap, ROOTS=BLOCKS, **SMALL, **settings)


def holds(forks, heap, tag=2, **settings):
    done = run([forks, "check", tag], HEAP=heap, ROOTS=BLOCKS, **settings)
    assert succeeds(done).endswith(f"blocks of {tag}\n"), said(done)


@pytest.mark.parametrize("how", ("private", "copy"))
def test_forks(forks, heap, how):
    succeeds(built(forks, heap, FORK=how))
    assert data_files(heap) >= 4
    holds(forks, heap)


@pytest.mark.parametrize("name", ("list", "tree"))
def test_kills(workload, processes, rng, name):
    work = workload(name)
    for _ in range(8):
        process = work.start("run", 0, rng.randrange(1 << 30), "-t", 2, **SMALL)
        processes.append(process)
        while "ready" not in process.stdout.readline():
            assert process.poll() is None, process.stderr.read()
        time.sleep(rng.uniform(0, 0.2))
        process.kill()
        assert process.wait() == -9, process.stderr.read()
        work.check("run", 300, rng.randrange(1 << 30), **SMALL)
    assert recover(work.heap, "--check").returncode == 0
    assert data_files(work.heap) >= 2


def test_the_tools_know_every_shard(forks, heap):
    succeeds(built(forks, heap))
    count = data_files(heap)
    before = fingerprint(heap)
    assert recover(heap, "--check").returncode == 0
    info = json.loads(succeeds(run([tool("pmalloc-info"), "--json", heap], preload=False)))
    assert {f"heap.{i}" for i in range(count)} < set(info["files"])
    assert set(info["files"]) == {path.name for path in heap.iterdir()}
    text = succeeds(run([tool("pmalloc-info"), heap], preload=False))
    assert count >= 4 and "heap.1" in text
    assert fingerprint(heap) == before
    assert recovered(heap)["leaked_objects"] == 0


def test_without_the_setting_it_opens_and_stays(forks, heap):
    succeeds(built(forks, heap))
    count = data_files(heap)
    holds(forks, heap)
    holds(forks, heap, COLLECT="crash")
    assert data_files(heap) == count


def test_a_heap_of_one_shard_gets_another(forks, heap):
    done = run([forks, "isolation", 30], HEAP=heap, ROOTS=BLOCKS)
    succeeds(done)
    assert data_files(heap) == 1
    holds(forks, heap)
    succeeds(built(forks, heap))
    assert data_files(heap) >= 2
    holds(forks, heap)


@pytest.mark.check
def test_a_missing_shard_is_damage(forks, heap):
    succeeds(built(forks, heap))
    (heap / "heap.1").unlink()
    before = fingerprint(heap)
    refuses(run([forks, "check", 2], HEAP=heap, ROOTS=BLOCKS), "heap.1 is missing")
    assert recover(heap, "--check").returncode == 4
    assert fingerprint(heap) == before


def check_cut(path, length):
    with open(path, "r+b") as stream:
        stream.truncate(length)
    before = fingerprint(path.parent)
    done = recover(path.parent, "--check")
    assert done.returncode == 4, said(done)
    assert fingerprint(path.parent) == before


@pytest.mark.parametrize("file", ("booklog.1", "heap.1"))
def test_a_cut_shard_is_damage(forks, heap, file):
    succeeds(built(forks, heap))
    check_cut(heap / file, 4096)


def test_slab_headers_cut_off_are_damage(workload):
    work = workload("tree")
    while not work.heap.exists() or data_files(work.heap) < 2:
        work.check("run", 3000, 1, SHARD="4M")
    used = [p for p in sorted(work.heap.glob("slabs.*"))[1:] if any(p.read_bytes())]
    check_cut(used[0], 0)


def test_limit_holds_over_all(forks, heap):
    done = run([forks, "isolation", 60], HEAP=heap, ROOTS=BLOCKS, LIMIT="32M", **SMALL)
    assert done.returncode != 0
    assert sum(path.stat().st_size for path in heap.glob("heap.*")) <= 32 << 20


def test_removed_with_its_data_files(heap):
    """A heap without roots is emptied at its end, and a tool removes all of it."""
    program = compiled("heavy.c")
    succeeds(run([program], HEAP=heap, ROOTS="found", **SMALL))
    for root in ("found", "dropped:found"):
        assert recover(heap, "--drop-root", root, "--yes").returncode == 0
    process = start([program], HEAP=heap, **SMALL)
    process.wait()
    assert sum(path.stat().st_size for path in heap.glob("heap.*")) == 0


def live(heap):
    return json.loads(recover(heap, "--check", "--json").stdout)["live_objects"]


@pytest.mark.parametrize("file", ("slabs.1", "booklog.1", "bitmaps.1", "superblock"))
def test_damaged_words(workload, rng, file):
    """Whatever stands in a file of another shard: it is noticed, or nothing depends on it."""
    work = workload("tree")
    while not work.heap.exists() or data_files(work.heap) < 2:
        before = work.check("run", 3000, 1, SHARD="4M")
    path, objects = work.heap / file, live(work.heap)
    good = path.read_bytes()
    state = 4096 + 576  # pm_shard_state, in the superblock
    used = [at for at in range(0, len(good), 8) if any(good[at : at + 8])]
    if file == "superblock":
        used = [*range(state, state + 8), *range(state + 24, state + 40)]
        used += range(state + 64, state + 128)
    for _ in range(25):
        at, damaged = rng.choice(used), bytearray(good)
        damaged[at + (0 if file == "superblock" else rng.randrange(8))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        done = recover(work.heap, "--check")
        assert done.returncode in (0, 1, 4), f"byte {at}: {said(done)}"
        if done.returncode != 4:
            assert live(work.heap) == objects
    path.write_bytes(good)
    after = work.check()
    assert after["keys"] == before["keys"] and after["digest"] == before["digest"]
