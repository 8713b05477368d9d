# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""PMALLOC_COMMIT=output[:TIME]: answers that wait for one commit. What a program sees of its
sockets and pipes is what it sees without the preload, no answer leaves before its commit, and one
commit is for all. trigger_kills.py kills servers; OUTBOX_KILLS=2000 makes that many kills of
each."""

import os
import random
import re

import pytest
import trigger_kills
from conftest import compiled, run, said, succeeds

KILLS = int(os.environ.get("OUTBOX_KILLS", "12"))
CLIENTS, TURNS = 40, 10

# Where another process is at the other end of a connection by TCP, its reset may come a little
# later than a plain program's: after an answer that waited, not before it.
WAYS = (
    "to_another by_close by_number by_dup2 by_fclose by_closefrom by_copy by_fork by_exec by_exit "
    "by_leave at_the_end bad_arguments full never_waits handler by_freopen to_be_read"
).split()
OF_SOCKETS = (
    "all_calls descriptor_after by_shutdown waiting_bytes spins "
    "shut_by_itself small_room many_small"
).split()
OF_NO_TCP = "other_end_is_gone other_end_goes".split()
CASES = [("unix", way) for way in WAYS + OF_SOCKETS + OF_NO_TCP]
CASES += [("tcp", way) for way in WAYS + OF_SOCKETS]
CASES += [("pipe", way) for way in [*WAYS, *OF_NO_TCP, "all_calls", "packets", "by_pclose"]]
CASES += [("unix", "shut_by_the_other"), ("unix", "by_many_copies"), ("tcp", "by_option")]


@pytest.fixture(scope="module")
def program():
    return compiled("outbox.c", "-D_GNU_SOURCE", "-pthread")


@pytest.mark.parametrize("kind, way", CASES)
def test_what_a_program_sees(program, heap, kind, way):
    """Each rule of docs/commit.md: results, errors, and what the other end gets."""
    plain = run([program, way, kind], preload=False)
    assert plain.returncode == 0 and plain.stdout, said(plain)
    for commit in ("output", "output:20ms", "output:0"):
        done = run([program, way, kind], HEAP=heap, ROOTS="value", COMMIT=commit)
        assert (done.stdout, done.stderr) == (plain.stdout, ""), (commit, said(done))
        assert done.returncode == 0


def test_what_left_is_committed(program, heap):
    """Each way counts its answers."""
    for way, answers in (("to_another", 3), ("spins", 100), ("by_close", 1)):
        before = int(succeeds(run([program, "check"], HEAP=heap, ROOTS="value")))
        settings = {"HEAP": heap, "ROOTS": "value", "COMMIT": "output:20ms"}
        succeeds(run([program, way, "unix"], **settings))
        after = int(succeeds(run([program, "check"], HEAP=heap, ROOTS="value")))
        assert after == before + answers


def commits_of(program, heap, commit):
    settings = {"HEAP": heap, "ROOTS": "value", "COMMIT": commit, "STATS": 1}
    done = run([program, "turns", "unix"], **settings)
    assert done.stdout == "answered\n", said(done)
    return int(re.search(r"stats: commits: (\d+) of", done.stderr)[1]), done.stderr


def test_one_commit_for_all(program, heap):
    """An event loop that answers many clients in one turn."""
    each, _ = commits_of(program, heap, "output:0")
    assert each > CLIENTS * TURNS
    together, errors = commits_of(program, heap, "output")
    found = re.search(r"that waited for others: (\d+), which left in (\d+) turns", errors)
    answers, left = found.groups()
    assert (int(answers), int(left)) == (CLIENTS * TURNS, TURNS), errors
    assert together <= TURNS + 5  # its start, its end, and what it says


@pytest.mark.parametrize("commit", ["output:1ms", "output"])
def test_kills(shm, commit):
    for subject in trigger_kills.programs(shm, commit, random.Random(KILLS)):
        if isinstance(subject, trigger_kills.Loops):
            answered, lost = trigger_kills.torment(subject, commit, KILLS, subject.rng)
            assert answered > KILLS and (lost == 0 or subject.threads > 1)


@pytest.mark.parametrize("value", ["output:", "output:x", "output:2s", "output:5", "output:0ms"])
def test_wrong_values(program, heap, value):
    done = run([program, "check"], HEAP=heap, COMMIT=value)
    assert done.returncode == 125 and value in done.stderr, said(done)
    assert done.stderr.count("\n") == 1
