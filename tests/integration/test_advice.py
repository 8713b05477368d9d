# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""madvise, mprotect, mremap and mseal on the program's own blocks.

The program prints what it finds. Under the preload, on each kind of memory, that is what it prints
with libc's malloc."""

import functools

import pytest
from conftest import compiled, recover, run, said, succeeds, tool

MODES = {
    "volatile": {},
    "heap": {"HEAP": "heap"},
    "strict": {"HEAP": "heap", "RESERVE": "strict"},
    "commit": {"HEAP": "heap", "COMMIT": "2ms"},
    "file": {"HEAP": "file"},
    "file, commit": {"HEAP": "file", "COMMIT": "2ms"},
    "copy": {"HEAP": "heap", "FORK": "copy"},
    "follow": {"HEAP": "heap", "FORK": "follow"},
}
PARTS = ["zero", "fork", "access", "move", "edges", "seal"]


@pytest.fixture(scope="module")
def program():
    return compiled("advice.c", "-D_GNU_SOURCE=")


def placed(settings, shm):
    """The settings of a mode, with the heap below `shm`; a file of a fixed size is made there."""
    settings = dict(settings)
    if settings.get("HEAP") == "file":
        if not (shm / "file").exists():
            made = ["--make", "--size", "128M", "--journal", "16M", shm / "file"]
            succeeds(run([tool("pmalloc-recover"), *made], preload=False))
    if "HEAP" in settings:
        settings["HEAP"] = shm / settings["HEAP"]
        settings["ROOTS"] = "root"
    return settings


@functools.cache
def without(program, *argv):
    """What the program says on libc: the same each time."""
    return succeeds(run([program, *argv], preload=False))


def same(program, shm, mode, *argv):
    right = without(program, *argv)
    assert right
    assert succeeds(run([program, *argv], **placed(MODES[mode], shm))) == right


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("part", PARTS)
def test_answers(program, shm, part, mode):
    same(program, shm, mode, part, 64)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("part", ["zero", "fork", "move"])
def test_huge_block(program, shm, part, mode):
    same(program, shm, mode, part, 8192)


@pytest.mark.parametrize("mode", ["volatile", "heap", "commit"])
@pytest.mark.parametrize("part", PARTS)
def test_by_number(program, shm, part, mode):
    same(program, shm, mode, part, 64, "raw")


@pytest.mark.parametrize("mode", ["volatile", "heap", "file"])
@pytest.mark.parametrize("size", [64, 8192])
def test_guards(program, shm, size, mode):
    same(program, shm, mode, "guard", size)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in ("volatile", "follow")])
def test_beyond_the_heap(program, shm, mode):
    out = succeeds(run([program, "beyond"], **placed(MODES[mode], shm))).splitlines()
    assert out[0] == "below 0 10 LA"
    assert out[1] == "kept 0 11"
    assert out[2] in [f"behind {error} 8384512 of 0 4096 of 65 " for error in ("0", "ENOMEM")]


@pytest.mark.parametrize("size", [64, 8192])
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "volatile"])
def test_next_start(program, shm, mode, size):
    """What was emptied stays empty, what was stored there since is there, and pages are writable
    again."""
    settings = placed(MODES[mode], shm)
    succeeds(run([program, "keep", size], **settings))
    out = succeeds(run([program, "kept", size], **settings)).splitlines()
    size <<= 10
    assert out == [f"{size // 2 - 4096} of 0 {size // 2} of 65 4096 of 75 ", "S"]
    done = recover(settings["HEAP"], "--check")
    assert done.returncode == 0, said(done)


def test_space_goes_back(program, shm):
    """Half of a huge block that the program has emptied takes no space in the file."""
    settings = placed(MODES["heap"], shm)
    succeeds(run([program, "keep", 65536], **settings))
    assert (shm / "heap" / "heap.0").stat().st_blocks * 512 < (40 << 20)
