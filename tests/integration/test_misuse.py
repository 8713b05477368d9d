# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What programs and people do wrong while two threads allocate: bad frees, overflows, one heap for
many processes.

The heap's structure stays whole (pmalloc-recover --check). What other programs have in the heap
stays as it was. The program, misuse.c, checks its blocks after each command."""

import signal
import subprocess

import pytest
from conftest import app, busy, recover, said, start, tool
from misuse_session import goes_on, program, session, whole  # noqa: F401

SIZES = [48, 40000]  # a small block, and a large one


# ---- bad frees and overflows ---------------------------------------------------------------------

BAD = [
    ("double 48", "free already"),
    ("double 40000", "free already"),
    ("double 3000000", "free already"),
    ("interior 48", "middle"),
    ("interior 40000", "middle"),
]
FOREIGN = ["foreign", "stack"]


@pytest.mark.parametrize("command, why", BAD)
def test_bad_free_aborts(session, heap, command, why):
    work = session()
    work.ready()
    kept = work.does("grow 3")
    work.process.stdin.write(command + "\n")
    status, said_there = work.end()
    assert (
        status == -signal.SIGABRT and why in said_there and said_there.count("\n") == 1
    ), said_there
    whole(heap, 1)
    goes_on(session, kept)


@pytest.mark.parametrize("command, why", BAD)
def test_bad_free_is_reported(session, heap, command, why):
    work = session(CHECK="report")
    work.ready()
    kept = work.does("grow 3")
    for _ in range(3):
        work.does(command)
    status, said_there = work.end()
    lines = said_there.splitlines()
    assert status == 0 and len(lines) == 3, said_there
    assert all(why in line and "ignored" in line for line in lines), said_there
    whole(heap, 0)
    goes_on(session, kept)


@pytest.mark.parametrize("command", FOREIGN)
def test_foreign_free(session, heap, command):
    work = session()
    work.ready()
    kept = work.does("grow 1")
    for _ in range(3):
        work.does(command)
    status, said_there = work.end()
    assert status == 0 and said_there.count("\n") == 1 and "outside the heap" in said_there
    whole(heap, 0)
    strict = session(CHECK="strict")
    assert strict.ready() == kept
    strict.process.stdin.write(command + "\n")
    status, said_there = strict.end()
    assert status == -signal.SIGABRT and "outside the heap" in said_there
    goes_on(session, kept)


@pytest.mark.parametrize("by", [1, 64])
@pytest.mark.parametrize("size", SIZES)
def test_overflow_into_the_neighbour(session, heap, size, by):
    """The allocator keeps no word between blocks, so only the program's own bytes change."""
    work = session()
    work.ready()
    kept = work.does("grow 1")
    for _ in range(3):
        work.does(f"overflow {size} {by}")
    assert work.end() == (0, "")
    whole(heap, 0)
    goes_on(session, kept)


# ---- one heap, many processes --------------------------------------------------------------------


def test_second_process_is_refused(session, heap):
    first = session()
    first.ready()
    second = session()
    status, said_there = second.end()
    assert status == 125 and f"in use by process {first.process.pid}" in said_there
    assert said_there.count("\n") == 1
    kept = first.does("grow 1")
    assert first.end() == (0, "")
    goes_on(session, kept)


@pytest.mark.parametrize("there", [False, True])
def test_of_twenty_starts_one_wins(session, heap, there):
    kept = 0
    if there:
        before = session()
        before.ready()
        kept = before.does("grow 2")
        before.end("quit")
    everyone = [session() for _ in range(20)]
    losers, winners = [], []
    for each in everyone:
        line = each.answer()
        (winners if line.startswith("ready ") else losers).append(each)
        assert line in ("", f"ready {kept}")
    assert len(winners) == 1, f"{len(winners)} processes have the heap"
    for each in losers:
        status, said_there = each.end()
        assert (
            status == 125 and said_there.count("\n") == 1 and "in use by" in said_there
        ), said_there
    assert winners[0].does("grow 1") > kept
    assert winners[0].end() == (0, "")
    whole(heap, 0)


def test_twenty_wait_for_each_other(heap, processes):
    everyone = []
    for number in range(20):
        shell = start([app("kvshell")], HEAP=heap, ROOTS="store", BUSY="wait")
        shell.stdin.write(f"bump n\nset key{number} value{number}\nquit\n")
        shell.stdin.flush()
        everyone.append(shell)
    processes += everyone
    for shell in everyone:
        assert shell.wait(60 * busy()) == 0, shell.stderr.read()
        assert shell.stderr.read() == ""
    counts = sorted(int(shell.stdout.read().split()[0]) for shell in everyone)
    assert counts == list(range(1, 21))
    whole(heap, 0)
    shell = start([app("kvshell")], HEAP=heap, ROOTS="store")
    out, err = shell.communicate("list\n")
    entries = dict(line.split(" ", 1) for line in out.splitlines())
    assert entries == {"n": "20", **{f"key{i}": f"value{i}" for i in range(20)}} and err == ""


# ---- file systems that take no write -------------------------------------------------------------


def test_tool_on_a_running_heap(session, heap):
    work = session()
    work.ready()
    kept = work.does("grow 3")
    for arguments in (["--check"], ["--dry-run"], [], ["--drop-root", "table", "--yes"]):
        done = recover(heap, *arguments)
        assert done.returncode == 8 and "in use by" in done.stderr, said(done)
    looks = subprocess.run([tool("pmalloc-info"), heap], capture_output=True, check=False)
    assert looks.returncode == 0  # it only looks at the files
    work.does("grow 1")
    assert work.end() == (0, "")
    assert kept > 0
