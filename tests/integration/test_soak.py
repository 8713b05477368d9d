# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""The soak driver itself: it runs, it notices what is wrong, and it says how to repeat the
episode."""

import os
import re
import subprocess

import pytest
from conftest import BUILD, ROOT, busy, environment, said


def soak(shm, *arguments, build=BUILD):
    return subprocess.run(
        [ROOT / "tests/soak/soak", "--dir", shm, *map(str, arguments)],
        env={**environment(False), "BUILD": str(build)},
        capture_output=True,
        text=True,
        timeout=150 * busy(),
        check=False,
    )


def test_it_runs(shm):
    done = soak(shm, "--episodes", 2, "--seed", 4)
    assert done.returncode == 0 and done.stderr == "", said(done)
    last = done.stdout.splitlines()[-1]
    kills = int(re.search(r"(\d+) SIGKILLs", last)[1])
    assert kills > 5 and "2 episodes" in last and " 0 objects lost" in last, last
    assert not list(shm.iterdir())


@pytest.mark.parametrize(
    "crime, found",
    [
        ("exit 4", "status 4"),
        ('rm -f "$heap"/heap.0 "$heap"/superblock; exit 0', "superblock|gone|state"),
        ('rm -rf "$heap"; exit 0', "gone|status 3"),
    ],
)
def test_it_notices(shm, crime, found):
    """Uses a pmalloc-recover that says what is not so, or that destroys what it should recover."""
    build = shm / "build"
    build.mkdir()
    for name in ("libpmalloc_preload.so", "apps"):
        (build / name).symlink_to(BUILD / name)
    fake = build / "pmalloc-recover"
    real = f'[ "$1" = --check ] && exec {BUILD}/pmalloc-recover "$@"\n' if "rm" in crime else ""
    fake.write_text(f"#!/bin/sh\n{real}for heap; do :; done\n{crime}\n")
    fake.chmod(0o700)
    done = soak(shm, "--seed", 4, "--programs", "list", "--episodes", 5, build=build)
    assert done.returncode == 1, said(done)
    failure = re.search(r"FAILED in episode 4 with list: (.*)", done.stdout)[1]
    assert re.search(found, failure), failure
    assert "again: tests/soak/soak --seed 4 " in done.stdout
    kept = re.search(r"the heap is kept in (.*)", done.stdout)[1]
    assert os.path.dirname(kept).startswith(str(shm))
