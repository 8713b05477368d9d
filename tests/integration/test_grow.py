# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Large blocks that grow by realloc in equal steps: they seldom move, and move cheaply."""

import re

import pytest
from conftest import compiled, recover, run, said, succeeds, tmpfs, tool

KIB = 1 << 10
MODES = {
    "volatile": {"BACKING": "volatile"},
    "heap": {"HEAP": "heap"},
    "strict": {"HEAP": "heap", "RESERVE": "strict"},
    "commit": {"HEAP": "heap", "COMMIT": "5ms"},
    "file": {"HEAP": "file"},
    "limited": {"HEAP": "heap", "LIMIT": "160M"},
}
MANY = ("strict", "file")  # pages behind a block would be space there


@pytest.fixture(scope="module")
def program():
    return compiled("grow.c")


def placed(mode, shm):
    settings = dict(MODES[mode])
    if settings.get("HEAP") == "file":
        succeeds(run([tool("pmalloc-recover"), "--make", "--size", "256M", shm / "file"], False))
    if "HEAP" in settings:
        settings["HEAP"] = shm / settings["HEAP"]
        settings["ROOTS"] = "root,length"
    return settings


def grows(program, *argv, **settings):
    """Steps, moves, and the peak of memory in KiB."""
    out = succeeds(run([program, *argv], **settings))
    return [int(n) for n in re.match(r"(\d+) steps (\d+) moves (\d+) KiB\n$", out).groups()]


@pytest.mark.parametrize("mode", MODES)
def test_steps(program, shm, mode):
    steps, moves, _ = grows(program, 64, 48 * KIB, **placed(mode, shm))
    assert steps == 768
    assert moves <= (60 if mode in MANY else 13)


@pytest.mark.parametrize("step", [48, 200, 1000])
def test_other_steps(program, shm, step):
    """A length that is no multiple of the step, and of no unit of ours."""
    _, moves, _ = grows(program, step, 100 * step + 1, **placed("heap", shm))
    assert moves <= 13


def test_memory_is_never_there_twice(program, shm):
    """glibc's mremap moves pages, and so do we: nothing is copied."""
    _, _, peak = grows(program, 64, 128 * KIB, **placed("volatile", shm))
    assert peak < 140 * KIB


def test_memory_of_earlier_copies_is_not_kept(program, shm):
    """The block, and the blocks between its steps: they have their space untouched, and on tmpfs
    space is memory. 128 MiB are behind the last move, so no copy is there."""
    _, _, peak = grows(program, 64, 128 * KIB, **placed("heap", shm))
    assert peak < (128 + 128 + 14) * KIB


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "volatile"])
def test_next_start(program, shm, mode):
    settings = placed(mode, shm)
    grows(program, 64, 20 * KIB, **settings)
    assert succeeds(run([program, "check", 64], **settings)) == f"{20 * KIB}\n"
    # What is behind the block counts as its own then, and the block goes on growing.
    steps, moves, _ = grows(program, 64, 24 * KIB, **settings)
    assert steps == 64 and moves <= 2
    assert succeeds(run([program, "check", 64], **settings)) == f"{24 * KIB}\n"
    done = recover(settings["HEAP"], "--check")
    assert done.returncode == 0, said(done)


@pytest.mark.parametrize("step", [64, 1024])
@pytest.mark.parametrize("commit", [None, "5ms"])
def test_until_the_medium_is_full(program, shm, step, commit):
    """Each step gets memory that can be stored to, or none: no SIGBUS. Room is in nobody's way."""
    with tmpfs(shm / "small", 96 << 8) as small:
        settings = {"HEAP": small / "heap", "ROOTS": "root,length", "COMMIT": commit}
        steps, _, _ = grows(program, step, 0, **settings)
        assert steps * step > (16 if commit else 24) * KIB


def test_until_the_limit(program, shm):
    steps, _, _ = grows(program, 64, 0, HEAP=shm / "heap", ROOTS="root,length", LIMIT="96M")
    assert steps * 64 > 24 * KIB
