# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Slab morphing in whole processes: data that survive kills, forks and clean exits while slabs hold
blocks of two sizes; the setting; what the tools say. The program is morph.c."""

import json
import re
import time

import pytest

from conftest import compiled, recover, refuses, run, said, start, succeeds, tool


@pytest.fixture(scope="module")
def morph():
    return compiled("morph.c", name="morph")


def slabs(done):
    """How many slabs took up blocks of another size, by the process's own statistics."""
    return max(
        int(n) for n in re.findall(r"(\d+) slabs took up blocks of another size", done.stderr)
    )


def info(heap):
    return json.loads(succeeds(run([tool("pmalloc-info"), "--json", heap], preload=False)))


@pytest.mark.parametrize("fork", ["private", "copy"])
def test_forks(morph, shm, fork):
    settings = {"HEAP": shm / "heap", "ROOTS": "store", "MORPH": 50, "FORK": fork, "STATS": 1}
    for _ in range(2):  # the second process starts with slabs of two sizes
        done = run([morph, "forks"], **settings)
        assert done.returncode == 0 and slabs(done) > 10, said(done)
        assert info(shm / "heap")["morphing"] > 0
    heaps = [path for path in shm.iterdir() if path.name.startswith("heap")]
    assert len(heaps) == (1 if fork == "private" else 7)
    for heap in heaps:
        assert recover(heap, "--check").returncode in (0, 1), heap
        assert succeeds(run([morph], HEAP=heap, ROOTS="store")) == "checked\n"


def test_kills(morph, shm):
    for number in range(12):
        process = start([morph, "until-killed"], HEAP=shm / "heap", ROOTS="store", MORPH=60)
        assert process.stdout.readline() == "checked\n"
        time.sleep(0.02 + number * 0.01)  # at any point of its work
        process.kill()
        process.communicate()
        assert recover(shm / "heap", "--check").returncode == 1
    report = json.loads(succeeds(recover(shm / "heap", "--json")))
    assert report["morphing"] == info(shm / "heap")["morphing"]
    assert "hold blocks of two sizes" in succeeds(
        run([tool("pmalloc-info"), shm / "heap"], preload=False)
    )
    assert succeeds(run([morph], HEAP=shm / "heap", ROOTS="store")) == "checked\n"


def test_settings(morph, shm):
    settings = {"HEAP": shm / "heap", "ROOTS": "store", "STATS": 1}
    assert slabs(run([morph, "forks"], MORPH=0, **settings)) == 0
    assert slabs(run([morph, "forks"], **settings)) > 0  # the default is 20
    assert slabs(run([morph, "forks"], BACKING="volatile", STATS=1)) > 0
    for bad in (91, -1, "20%%"):
        refuses(run([morph], MORPH=bad), "PMALLOC_MORPH", "0 to 90")
