# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""tests/soak/commit-kills: a short run; and what its ledger takes for wrong."""

import re
import subprocess
import sys

import pytest
from conftest import BUILD, ROOT, busy, environment, said

sys.path.insert(0, str(ROOT / "tests/vm"))
from instants import Ledger, Wrong  # noqa: E402


@pytest.mark.parametrize("commit", ("api", "5ms"))
def test_it_runs(shm, commit):
    done = subprocess.run(
        [ROOT / "tests/soak/commit-kills", "--kills", "12", "--commit", commit, "--dir", shm],
        env={**environment(False), "BUILD": str(BUILD)},
        capture_output=True,
        text=True,
        timeout=150 * busy(),
        check=False,
    )
    assert done.returncode == 0 and done.stderr == "", said(done)
    found = re.search(r"(\d+) SIGKILLs, .* (\d+) commits acknowledged, (\d+) instants", done.stdout)
    kills, commits, instants = map(int, found.groups())
    assert kills >= 12 and commits and instants, said(done)
    assert not list(shm.iterdir())


def told(*lines, exact=True):
    ledger = Ledger(exact)
    ledger.feed("".join(line + "\n" for line in lines))
    return ledger


def test_what_is_right():
    told("instant 0 0 0 0", "commit 1 5 5 5 7 7 7", "instant 1 6 5 7", "commit 2 8 8 8 9 9 9")
    told("commit 1 5 5 5 7 7 7", "instant 2 9 9 9", "instant 2 9 9 9")
    told("commit 1 5 5 5 7 7 7", "instant 1 99 99 99", exact=False)
    ledger = told("commit 1 5 5 5 7 7 7")
    ledger.feed("commit 2 8 8")
    ledger.cut()
    ledger.feed("instant 1 6 6 6\n")
    assert ledger.tally["of the last acknowledged commit"] == 1, "half a line says nothing"


def found_after_a_kill(heap, commit):
    """What `instants wait` says of a heap in which it was killed."""
    env = environment(True, HEAP=heap, ROOTS="state", COMMIT=commit, COMMIT_PATIENCE="0")
    program = BUILD / "vm/instants"
    with subprocess.Popen([program, "wait", "7"], env=env, stdout=subprocess.PIPE) as process:
        for _ in range(30):
            process.stdout.readline()
        process.kill()
    done = subprocess.run([program, "checkwait", "7"], env=env, capture_output=True, check=False)
    assert done.stderr == b""
    return done.stdout.split()[0]


def test_half_an_operation_is_noticed(shm):
    """Commits by time that wait for nobody come in the midst of operations. Those of `idle` do
    not."""
    found = [found_after_a_kill(shm / f"time-{n}", "5ms") for n in range(8)]
    assert b"wrong:" in found
    assert {found_after_a_kill(shm / f"idle-{n}", "idle") for n in range(4)} == {b"instant"}


def answered(*lines):
    ledger = Ledger(exact=False, promised=True)
    ledger.feed("".join(line + "\n" for line in ("instant 0 5 5 5", *lines)))
    return ledger


def test_what_was_said_is_there():
    ledger = answered("said 1 6", "said 1 7", "said 0 6")
    ledger.feed("instant 0 6 8 5\n")
    with pytest.raises(Wrong, match="at the last commit"):
        answered("said 1 6", "said 1 7").feed("instant 0 9 6 9\n")
    ledger = answered("said 2 6")
    ledger.feed("pmalloc: PMALLOC_COMMIT: a commit has failed: a thread does not stop; ...\n")
    ledger.feed("said 2 7\n")
    ledger.cut()
    ledger.feed("instant 0 5 5 6\nsaid 2 7\n")
    with pytest.raises(Wrong, match="at the last commit"):
        ledger.feed("instant 0 5 5 6\n")
    ledger = Ledger(exact=False)
    ledger.feed("instant 0 5 5 5\nsaid 1 9\ninstant 0 5 6 5\n")  # idle promises no answer


@pytest.mark.parametrize(
    "line, message",
    [
        ("instant 1 6 6 6", "1 commits, 2 were"),
        ("instant 4 20 20 20", "4 commits, 2 were"),
        ("instant 2 8 7 9", "at the last commit"),
        ("instant 3 7 20 20", "at the last commit"),
        ("instant 2 8 9 10", "after this commit"),
        ("absent", "the heap is gone"),
        ("recover 4 {}", "pmalloc-recover"),
        ("wrong: thread 1, 7 operations, page 3", "page 3"),
    ],
)
def test_what_is_wrong(line, message):
    with pytest.raises(Wrong, match=message):
        told("commit 2 8 8 8 9 9 9", line)
