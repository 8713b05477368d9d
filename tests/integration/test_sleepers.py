# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""A commit does not look at each of many threads that sleep: what it opens does not depend on how
many they are."""

import subprocess

import pytest
from conftest import busy, compiled, environment, run, said, succeeds

FEW, MANY = 10, 40
SLEEPERS = 25


@pytest.fixture(scope="module")
def program():
    return compiled("sleepers.c", "-pthread")


def opened(program, heap, how, answers):
    """How many files the process has opened."""
    trace = heap.with_name("trace")
    env = environment(HEAP=heap, ROOTS="answers", COMMIT="output")
    argv = ["strace", "-f", "-qq", "-e", "trace=openat", "-o", trace]
    argv += ["-E", f"LD_PRELOAD={env.pop('LD_PRELOAD')}"]
    argv += [program, how, str(SLEEPERS), str(answers)]
    done = subprocess.run(
        argv, env=env, capture_output=True, text=True, timeout=60 * busy(), check=False
    )
    assert done.returncode == 0 and done.stdout == "+" * answers, said(done)
    return sum("openat(" in line for line in trace.read_text().splitlines())


@pytest.mark.parametrize("how", ["poll", "read", "semaphore", "condition"])
def test_a_commit_opens_nothing_for_a_sleeper(program, heap, how):
    few = opened(program, heap.with_name("few"), how, FEW)
    many = opened(program, heap.with_name("many"), how, MANY)
    assert (many - few) / (MANY - FEW) < SLEEPERS / 3, (few, many)


def test_its_answers_are_kept(program, heap):
    settings = {"HEAP": heap, "ROOTS": "answers", "COMMIT": "output"}
    for _ in range(2):
        assert succeeds(run([program, "poll", 200, 50], **settings)) == "+" * 50
    assert succeeds(run([program, "poll", 1, 0], **settings)) == "100\n"
