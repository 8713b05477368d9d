# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Programs that a program on a heap starts: they inherit its settings and run on volatile memory,
also where the child of a fork has taken the heap."""

import pytest
from conftest import compiled, run, said, succeeds

FORKS = ("private", "copy", "follow")


@pytest.fixture(scope="module")
def program():
    return compiled("follow_exec.c")


@pytest.mark.parametrize(
    "how, commit", (("private", None), ("copy", None), ("follow", None), ("follow", "20ms"))
)
def test_others_are_started(program, heap, how, commit):
    """system, popen, posix_spawn, vfork, fork and exec; four at once, pipelines, grandchildren."""
    settings = {"HEAP": heap, "ROOTS": "kept", "COMMIT": commit}
    done = run([program], FORK=how, **settings)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), said(done)
    kept = succeeds(run([program, "check"], **settings))
    # In commit mode the first child may have taken the heap and executed before the next commit.
    assert kept == "kept\n" or commit


def test_a_daemon_and_its_parent_start_others(program, heap):
    settings = {"HEAP": heap, "ROOTS": "kept"}
    done = run([program, "daemon"], FORK="follow", **settings)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), said(done)
    assert succeeds(run([program, "check"], **settings)) == "child\n"


SCRIPT = """
import os, subprocess
def run(*argv, **how):
    done = subprocess.run(argv, capture_output=True, text=True, **how)
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\\n", ""), done
for how in ({}, {"preexec_fn": os.getpid}, {"start_new_session": True}):
    run("echo", "out", **how)
    run("sh", "-c", "echo out | cat | cat", **how)
assert os.system("true") == 0
"""


@pytest.mark.parametrize("how", FORKS)
def test_python_starts_others(heap, how):
    done = run(["/usr/bin/python3", "-c", SCRIPT], HEAP=heap, FORK=how)
    assert (done.returncode, done.stderr) == (0, ""), said(done)


@pytest.mark.parametrize("how", FORKS)
def test_a_shell_starts_others(heap, how):
    line = "echo a | cat; sh -c 'echo b | cat'; (echo c; sh -c 'true; echo d'); echo `echo e | cat`"
    done = run(["sh", "-c", line], HEAP=heap, FORK=how)
    assert done.stdout.split() == list("abcde") and not done.stderr, said(done)
