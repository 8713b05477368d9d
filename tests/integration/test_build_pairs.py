# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Generated programs (build_pairs.py), from one build to another and back, killed after each run.
The sums are those of a program that never ended, or the start is refused: then nothing was proved,
and nothing has changed. BUILD_PAIRS=60 tries that many pairs, BUILD_SEED=N begins with that one."""

import os
import random
import signal
import subprocess

import pytest
from build_pairs import program
from conftest import needs, run, said

PAIRS = int(os.environ.get("BUILD_PAIRS", "4"))
FIRST = int(os.environ.get("BUILD_SEED", random.randrange(1 << 20)))
LEVELS = ["-O0", "-O1", "-O2", "-O3"]
WAYS = [
    [], [], [], ["-Wl,--build-id=none"], ["-static-libstdc++", "-static-libgcc"], ["-flto"],
    ["-ffunction-sections", "-Wl,--gc-sections"], ["-fno-plt"], ["-g"], ["-rdynamic"],
]  # fmt: skip


def build(shm, seed, version, compiler, flags):
    files = []
    for name, text in zip(("first", "second"), program(seed, version)):
        files.append(shm / f"{name}.cc")
        files[-1].write_text(text, encoding="utf-8")
    out = shm / f"build{version}"
    argv = [compiler, "-std=c++17", "-w", *flags, "-o", out, *files]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode and "-flto" in flags:
        pytest.skip("this compiler has no plugin for -flto")
    assert done.returncode == 0, done.stderr[:2000]
    return out


def runs(shm, built, expected, may_refuse):
    """Whether it was run."""
    place, heap = shm / "program", shm / "heap"
    place.unlink(missing_ok=True)
    os.link(built, place)
    done = run([place], HEAP=heap, ROOTS="store")
    if may_refuse and done.returncode == 125:
        assert "nothing was changed" in done.stderr and not done.stdout, said(done)
        return False
    assert done.returncode == -signal.SIGKILL, said(done)
    assert done.stdout.splitlines() == [expected], said(done)
    return True


@pytest.mark.parametrize("seed", range(FIRST, FIRST + PAIRS))
def test_a_pair_of_builds(seed, shm):
    d = random.Random(seed)
    compiler = d.choice(["g++", "clang++"])
    needs(compiler)
    flags = [[d.choice(LEVELS), *d.choice(WAYS)] for _ in range(2)]
    print(seed, compiler, flags)
    builds = [build(shm, seed, number + 1, compiler, flags[number]) for number in range(2)]
    plain = run([builds[0], 6], preload=False)
    expected = plain.stdout.splitlines()
    assert run([builds[1], 6], preload=False).stdout.splitlines() == expected, said(plain)
    may_refuse = ("-flto" in flags[0]) != ("-flto" in flags[1])
    number = 0
    for which in (0, 1, 1, 0, 1, 0):
        number += runs(shm, builds[which], expected[number], may_refuse and which)
    assert may_refuse or number == 6
