# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""A program counts on the lowest free number: it closes 0 and opens a file, and that is 0. What
PMAlloc opens while the program runs never has such a number, not for a moment."""

import contextlib
import os
import resource
import signal
import time

import pytest
from conftest import busy, compiled, run, said, start, succeeds, tool

ROUNDS = 6000
WAYS = ["", "threads", "wait", "wait threads", "wait fork"]
OWN = {0, 1, 2, 700}


@pytest.fixture(scope="module")
def program():
    return compiled("lowest.c", "-D_GNU_SOURCE=", "-O1", "-pthread")


def settings(heap, commit, **more):
    return {"HEAP": heap, "ROOTS": "root", "COMMIT": commit, "FORK": "copy", **more}


def numbers(pid):
    return {int(name) for name in os.listdir(f"/proc/{pid}/fd")}


@contextlib.contextmanager
def begun(program, *arguments, **more):
    """The program, until its end; gives what it has said by then."""
    with start([program, 0, *arguments], **more) as process:
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            out, errors = process.communicate(timeout=60 * busy())
        finally:
            process.kill()
    assert (process.returncode, out, errors) == (0, "wrong 0\n", "")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("commit", ["1ms", "idle", "idle:20ms", "output:0", "output"])
def test_numbers_are_the_programs(program, heap, commit, way):
    rounds = ROUNDS // 6 if "wait" in way else ROUNDS
    done = run([program, rounds, *way.split()], **settings(heap, commit))
    assert (done.returncode, done.stdout, done.stderr) == (0, "wrong 0\n", ""), said(done)
    if "fork" not in way:  # the child's heap is another one
        assert succeeds(run([program, "check"], **settings(heap, commit))) == "some\n"


@pytest.mark.parametrize("more", [{}, {"COLLECT": "background"}, {"ROOTS": "root@idle"}], ids=str)
@pytest.mark.parametrize("commit", [None, "1ms", "idle"])
def test_while_others_look(program, heap, tmp_path, commit, more):
    """Backups, and questions what is lost, beside it; and with a heap that has something. Without
    commit mode a backup opens a descriptor in the program for a moment (docs/limits.md)."""
    if commit:
        more = settings(heap, commit, **more)
    else:
        more = {"HEAP": heap, "ROOTS": "root", "BACKGROUND": "decay", **more}
    succeeds(run([program, 100, "wait"], **more))
    with begun(program, "wait", "threads", **more) as process:
        for _ in range(4):
            time.sleep(0.1 * busy())
            asked = run([tool("pmalloc-info"), "--leaks", process.pid], preload=False)
            late = asked.returncode == 8 and asked.stderr.endswith("try again\n")
            assert asked.returncode == 0 or late, said(asked)
            if "COMMIT" in more:
                succeeds(run([tool("pmalloc-backup"), heap, tmp_path / "backup"], preload=False))


@pytest.mark.parametrize("commit", ["1ms", "idle", "output"])
def test_what_is_open_is_as_before(program, heap, commit):
    """The program's own, and ours, which lie above its limit."""
    limit = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 992)
    with begun(program, "wait", **settings(heap, commit)) as process:
        time.sleep(0.3 * busy())
        ours = set()
        for _ in range(200):
            seen = numbers(process.pid)
            low = {fd for fd in seen if fd < limit}
            assert low - OWN <= {3, 4, 5}, sorted(seen)
            ours |= seen - low
    assert 0 < len(ours) < 20, sorted(ours)
