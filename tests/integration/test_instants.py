# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What the tools say of the instants at which commits were taken: how many of each kind, and which
thread or lock kept the last of them from lying between operations. In use, killed, recovered and
closed, a heap tells the same."""

import json
import os
import re
import signal

import pytest
from conftest import compiled, run, said, start, succeeds, tool

ANSWERS = 20


@pytest.fixture(scope="module")
def program():
    return compiled("instants.c")


def told(heap, *options):
    """What pmalloc-info says, as JSON."""
    argv = [tool("pmalloc-info"), *options, "--json", heap]
    return json.loads(succeeds(run(argv, preload=False)))


def told_as_text(heap, *options):
    return succeeds(run([tool("pmalloc-info"), *options, heap], preload=False))


def started(program, heap, *arguments, **settings):
    """It has given its answers when this returns."""
    settings = {"COMMIT": "output", "COMMIT_PATIENCE": "20", "ROOTS": "root", **settings}
    process = start([program, *map(str, arguments)], HEAP=heap, **settings)
    for _ in range(int(arguments[1])):
        assert process.stdout.readline(), process.communicate()
    return process


def is_thread_of(process, number):
    return number != process.pid and os.path.exists(f"/proc/{process.pid}/task/{number}")


def in_variable(last):
    assert (last["object"], last["variable"], last["into"]) == ("instants", "accounts", 24), last


def in_block(last):
    assert last["object"].endswith("heap") and "variable" not in last, last


def in_none(last):
    assert "lock" not in last, last


@pytest.mark.parametrize(
    "where, text",
    [
        ("variable", r"thread \d+ \(worker\) held the lock at instants\+0x\S+ \(accounts\+24\)"),
        ("block", r"thread \d+ \(worker\) held the lock at /\S*heap\+0x\w+$"),
        ("none", r"thread \d+ \(worker\) ran, and had never taken a lock that is seen"),
    ],
)
def test_a_lock_or_thread_is_named(program, heap, where, text):
    check = {"variable": in_variable, "block": in_block, "none": in_none}[where]
    with started(program, heap, where, ANSWERS) as process:
        now = told(heap)["instants"]
        assert now["others"] >= ANSWERS and now["between_operations"] >= 1, now
        assert now["last_other"]["name"] == "worker", now
        assert is_thread_of(process, now["last_other"]["thread"]), now
        check(now["last_other"])
        for line in (told_as_text(heap), told_as_text(heap, "--follow", "--count", "1")):
            assert re.search(text, line.replace(";", "\n"), re.MULTILINE), line
        assert told(heap, "--follow", "--count", "1")["instants"] == now
        process.send_signal(signal.SIGKILL)
    assert told(heap)["instants"] == now
    assert re.search(text, told_as_text(heap), re.MULTILINE)
    succeeds(run([tool("pmalloc-recover"), heap], preload=False))
    assert "commit" not in told(heap) and told(heap)["instants"] == now


def counted(done):
    """As PMALLOC_STATS=1 says them."""
    kinds = "(\\d+) between operations, (\\d+) after a wait .*?, (\\d+) others"
    found = re.search(f"instants of commits: {kinds}", done)
    assert found, done
    return [int(n) for n in found.groups()]


def kinds_of(instants):
    return [instants[name] for name in ("between_operations", "after_a_wait", "others")]


@pytest.mark.parametrize("where", ["variable", "none"])
def test_the_tools_count_as_the_program_does(program, heap, where):
    """Also of a heap that was closed; and each run counts anew."""
    for answers in (ANSWERS, 3):
        with started(program, heap, where, answers, STATS="1") as process:
            _, err = process.communicate()
        assert process.returncode == 0, err
        assert told(heap)["state"] == "clean"
        # The statistics are written before the last commit, or after it.
        known = kinds_of(told(heap)["instants"])
        assert sum(known) - sum(counted(err)) in (0, 1), (known, err)
        assert known[2] - counted(err)[2] in (0, 1) and known[2] < answers + 5, (known, err)


def test_threads_of_unknown_locks(program, heap):
    """Nothing at the start, and by the tools how many there are."""
    with started(program, heap, "variable", ANSWERS, 5) as process:
        now = told(heap)["instants"]
        assert now["threads_of_unknown_locks"] == 6, now  # and the first thread
        line = told_as_text(heap)
        assert "6 threads have never taken a lock that is seen" in line, line
        process.send_signal(signal.SIGKILL)
        assert process.communicate()[1] == ""


def test_one_thread_without_locks_is_not_told_of(program, heap):
    """It shares nothing with others of its kind."""
    with started(program, heap, "variable", ANSWERS) as process:
        assert told(heap)["instants"]["threads_of_unknown_locks"] == 1
        assert "never taken" not in told_as_text(heap)
        process.send_signal(signal.SIGKILL)


def test_nobody_is_named_where_all_lie_between_operations(heap):
    done = run([compiled("sections.c"), 1, 1, 30], HEAP=heap, ROOTS="root", COMMIT="output")
    succeeds(done)
    now = told(heap)["instants"]
    assert now["others"] == 0 and now["between_operations"] > 30 and "last_other" not in now, now


def test_a_heap_without_commits_has_none(heap):
    done = run([compiled("sections.c"), 1, 1, 3], HEAP=heap, ROOTS="root")
    assert "instants" not in told(heap), said(done)
