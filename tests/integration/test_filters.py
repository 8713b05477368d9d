# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""A program that installs a seccomp filter (preload/process/sandbox.h): it goes on as without
PMAlloc, and the heap holds what the line says."""

import pytest
from conftest import compiled, run, said, succeeds

MODES = ["5ms", "idle", "output", "api"]
ROOTS = "value,block"


def installs(heap, *arguments, commit=None):
    """A program that installs a filter goes on to its end. Returns what PMAlloc said, and the root
    in the next run: 1 when the filter was installed, then 2."""
    program = compiled("filters.c")
    done = run([program, *arguments], HEAP=heap, ROOTS=ROOTS, COMMIT=commit)
    assert done.returncode == 7 and done.stdout.endswith("done\n"), said(done)
    return done.stderr, int(succeeds(run([program], HEAP=heap, ROOTS=ROOTS)))


@pytest.mark.parametrize("how", ["prctl", "syscall", "tsync", "strict"])
@pytest.mark.parametrize("commit", MODES)
def test_a_filter_that_forbids_what_holds_need(heap, commit, how):
    """A last commit just before it, one line, and no more commits."""
    text, value = installs(heap, how, "+", commit=commit)
    assert value == 1
    assert text.count("\n") == 1 and "made just before the filter; allow that call" in text, text


@pytest.mark.parametrize("calls", ["-gettid", "-rt_sigprocmask", "-futex"])
def test_each_call_that_holds_need(heap, calls):
    text, value = installs(heap, "prctl", calls, "exit", commit="5ms")
    assert value == 1 and f"forbids {calls[1:]}, which commits need" in text, text


@pytest.mark.parametrize("commit", MODES)
def test_a_filter_that_forbids_what_only_commits_need(heap, commit):
    """By time they are made by PMAlloc's thread, which has no filter."""
    text, value = installs(heap, "prctl", "-openat", "exit", commit=commit)
    by_time = commit == "5ms"
    assert value == (2 if by_time else 1)
    assert ("no commit at the end" if by_time else "just before the filter") in text, text
    text, value = installs(heap, "tsync", "-openat", "exit", commit=commit)
    assert value == 1 and "forbids openat, which commits need" in text, text


@pytest.mark.parametrize("commit", [None, *MODES])
def test_a_filter_that_forbids_nothing_of_ours(heap, commit):
    assert installs(heap, "syscall", "-none", "exit", commit=commit) == ("", 2)


def test_a_filter_that_the_kernel_refuses(heap):
    text, value = installs(heap, "prctl", "-gettid", "broken", commit="5ms")
    assert value == 2 and "refused: commits go on" in text, text


@pytest.mark.parametrize("calls", ["+", "-mmap", "-rt_sigaction"])
def test_a_filter_that_forbids_the_end_in_shared_mode(heap, calls):
    """The program ends with its status, and without the destructor that changes the root."""
    text, value = installs(heap, "prctl", calls, "exit")
    assert value == 2 and "which exit() needs" in text and text.count("\n") == 1, text
    assert installs(heap, "prctl", calls) == ("", 2)
