# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""PMALLOC_PINNED: lists whose nodes no plain pointer reaches, killed at random instants.

What survives is complete, nothing else is pinned, and each node can be freed in the end.
PINNED_KILLS=200 kills so often in each of the tests that kill."""

import json
import os
import pathlib
import re
import shutil
import signal
import time

import pytest
from conftest import (
    counted,
    fingerprint,
    linked,
    one_message,
    recover,
    recovered,
    run,
    said,
    start,
    succeeds,
    tool,
)

KINDS = ["xor", "tagged"]
KILLS = int(os.environ.get("PINNED_KILLS", "0"))


@pytest.fixture(scope="module")
def pinned():
    return linked("pinned.c")


def info(heap):
    return json.loads(succeeds(run([tool("pmalloc-info"), "--json", heap], preload=False)))


def map_of(heap):
    text = succeeds(run([tool("pmalloc-info"), "--map", heap], preload=False))
    legend, cells = re.search(r"^(map: .*)\n((?:  \S+\n?)+)", text, re.MULTILINE).groups()
    assert "P pinned" in legend
    return cells


@pytest.fixture(params=KINDS)
def lists(request, pinned, heap, processes, rng):
    class Lists:
        kind = request.param

        def run(self, *arguments, HEAP=heap, **settings):
            return run([pinned, self.kind, *arguments], HEAP=HEAP, preload=False, **settings)

        def check(self, **settings):
            return counted(succeeds(self.run("check", **settings)))

        def start(self, *arguments, **settings):
            """Returns the process, its line of figures, and the process id that works."""
            argv = [pinned, self.kind, *arguments]
            process = start(argv, HEAP=heap, preload=False, **settings)
            processes.append(process)
            first, second = process.stdout.readline(), process.stdout.readline()
            assert second.startswith("ready "), first + second + process.stderr.read()
            return process, counted(first), int(second.split()[1])

        def kill(self, *arguments, latest=0.03, **settings):
            process, seen, _ = self.start(*arguments, **settings)
            time.sleep(rng.uniform(0, latest))
            process.kill()
            assert process.wait() == -signal.SIGKILL, process.stderr.read()
            # On a busy machine a commit may be put off.
            lines = process.stderr.read().splitlines()
            assert all("later ones try again" in line for line in lines), lines
            return seen

        def end(self, **settings):
            """The figures of a tool, and of the program, which then frees each node."""
            figures = recovered(heap)
            nodes, changes = self.check(**settings)
            before = info(heap)
            assert before["pinned"] == nodes
            # The rest of a reused node may have an old pointer to a text.
            assert nodes <= before["pointer_free"] < nodes * 1.05 + 5
            lists = before["live_objects"] - nodes - before["pointer_free"]
            assert "P" in map_of(heap)
            assert 0 < lists <= 4 and figures["live_objects"] >= before["live_objects"]
            succeeds(self.run("empty", **settings))
            after = info(heap)
            assert after["leaked_objects"] <= before["pointer_free"] - nodes  # such texts
            assert "P" not in map_of(heap) and after["pinned"] == 0 and after["live_objects"] == 4
            return nodes, changes

    return Lists()


@pytest.mark.parametrize("threads, nodes", [(1, None), (4, None), (4, "3x1/5")])
def test_kills(lists, threads, nodes):
    changes = 0
    for _ in range(KILLS or 12):
        _, seen = lists.kill("run", threads, TOPOLOGY=nodes)
        assert seen >= changes
        changes = seen
    assert lists.end()[1] >= changes > 12


# Under PMALLOC_COMMIT=api the program commits now and then.
@pytest.mark.parametrize("commit", ["api", "4ms"])
def test_kills_in_commit_mode(lists, commit):
    changes = 0
    for _ in range(KILLS or 5):
        _, seen = lists.kill("run", 2, latest=0.2, COMMIT=commit)
        assert seen >= changes
        changes = seen
    assert lists.end(COMMIT=commit)[1] >= changes > 12


# Children check what they inherit, change it, and end. Those of `copy` leave heaps of their own.
@pytest.mark.parametrize("commit", [None, "20ms"])
@pytest.mark.parametrize("how", ["private", "copy"])
def test_kills_among_forks(lists, heap, how, commit):
    changes, copies = 0, 0
    for _ in range(KILLS or 3):
        _, seen = lists.kill("forks", latest=0.3, FORK=how, COMMIT=commit)
        assert seen >= changes
        changes = seen
        for copy in heap.parent.glob("heap.*"):
            # A child that lives on may have its heap still.
            if copy.suffix[1:].isdigit() and not pathlib.Path("/proc", copy.suffix[1:]).exists():
                done = lists.run("check", HEAP=copy)
                copies += done.returncode == 0
                assert done.returncode == 0 or "was not completed" in done.stderr, said(done)
                shutil.rmtree(copy)
    assert lists.end()[1] >= changes and (how == "private" or copies)


def test_kills_of_daemons(lists, rng):
    changes = 0
    for _ in range(KILLS or 5):
        process, (_, seen), pid = lists.start("daemon", FORK="follow")
        assert process.wait() == 0 and seen >= changes
        changes = seen
        time.sleep(rng.uniform(0, 0.05))
        os.kill(pid, signal.SIGKILL)
        assert process.stderr.read() == ""  # it is open until the daemon is gone
    assert lists.end()[1] >= changes > 5


@pytest.mark.parametrize("commit", [None, "4ms"])
def test_backups_of_a_heap_in_use(lists, heap, shm, rng, commit):
    lists.start("run", 2, COMMIT=commit)
    for number in range(3):
        time.sleep(rng.uniform(0, 0.05))
        done = run([tool("pmalloc-backup"), heap, shm / "backup"], preload=False)
        succeeds(done)
        succeeds(run(["cp", "-a", shm / "backup", shm / str(number)], preload=False))
        nodes, _ = lists.check(HEAP=shm / str(number))
        succeeds(lists.run("empty", HEAP=shm / str(number)))
        after = info(shm / str(number))
        assert after["pinned"] == 0 and after["live_objects"] == 4 and nodes >= 0


def test_many_processes_on_one_heap(lists, heap):
    """Each has the pinned blocks, changes its own, and nothing of it stays."""
    succeeds(lists.run("leave"))
    nodes, changes = lists.check()
    before = fingerprint(heap)
    for _ in range(2):
        assert lists.check(OPEN="private") == (nodes, changes)
        succeeds(lists.run("leave", OPEN="private"))
        succeeds(lists.run("empty", OPEN="private"))
    assert fingerprint(heap) == before
    assert lists.end() == (nodes, changes)


@pytest.mark.parametrize("collect", ["crash", "later", "api", "background"])
def test_kills_however_it_is_collected(lists, collect):
    commit = "4ms" if collect == "background" else None
    for _ in range(KILLS or 4):
        lists.kill("run", 1, COLLECT=collect, COMMIT=commit)
    lists.end()


def test_page_flushes(lists):
    for _ in range(2):
        lists.kill("run", 1, PERSIST="page")
    lists.end(PERSIST="page")


# ---- misuse --------------------------------------------------------------------------------------

NOT_THERE = "which is not allocated; was it published, cancelled or freed before? nothing was"
BLOCKS = ["", "large ", "pinned ", "large pinned "]
# What the program says, what the library says on standard error.
MISUSES = {
    **{f"twice {b}": ("first 0 \nagain -1 EINVAL\n1 0\n", NOT_THERE) for b in BLOCKS},
    **{f"cancelled {b}": ("after -1 EINVAL\n0 0\n", NOT_THERE) for b in BLOCKS},
    **{f"freed {b}": ("after -1 EINVAL\n0 0\n", NOT_THERE) for b in BLOCKS},
    "flags": ("block -1 EINVAL\n0 0\n", "pmalloc_reserve: flags 0x40 are unknown to version"),
    "alignment": ("block -1 EINVAL\n0 0\n", "pmalloc_reserve: alignment 24 is not a power of two"),
    "unaligned": ("store -1 EINVAL\n0 0\n", "is not the address of an aligned word"),
    "slot": ("store -1 EINVAL\n0 0\n", "slot 512 of 512, pointer 0x4"),
    "foreign": ("publish -1 EINVAL\n0 0\n", "is neither in the heap nor in a captured root"),
    "none": ("publish -1 EINVAL\n0 0\n", "element 0 is none; nothing was changed"),
}


@pytest.fixture(scope="module")
def misuse():
    return linked("pinned_misuse.c", "-D_GNU_SOURCE")


@pytest.mark.parametrize("what", MISUSES)
def test_misuse_is_refused_in_one_line(misuse, heap, what):
    output, line = MISUSES[what]
    done = run([misuse, what], HEAP=heap, preload=False)
    assert succeeds(done) == output, said(done)
    one_message(done, line)
    assert info(heap)["pinned"] == 0 and recover(heap, "--check").returncode == 0


def test_elements_of_a_finished_publish_are_empty(misuse, heap):
    done = run([misuse, "used again"], HEAP=heap, preload=False)
    assert succeeds(done) == "first 0 \nagain 0 \n7\n7 0\n" and done.stderr == "", said(done)
    assert info(heap)["pinned"] == 1
