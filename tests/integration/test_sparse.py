# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Big tables from calloc of which little is used: they are zeroes, and take what is used. After a
kill the table is what it was."""

import signal

import pytest
from conftest import compiled, recover, run, said, succeeds, tool

# Faults and memory are the whole process's: rounds of a commit would be among them.
MODES = {
    "volatile": {},
    "heap": {"HEAP": "heap"},
    "disk": {"HEAP": "disk"},
    "2ms": {"HEAP": "heap", "COMMIT": "2ms", "COMMIT_WATCH": 0},
    "output": {"HEAP": "heap", "COMMIT": "output"},
    "file, output": {"HEAP": "file", "COMMIT": "output"},
    "copy": {"HEAP": "heap", "FORK": "copy"},
}
# The space of a block is kept: its bytes are stored to.
STORING = {
    "strict": {"HEAP": "heap", "RESERVE": "strict"},
    "file": {"HEAP": "file"},
}
# A power failure leaves the last commit, and so does a kill.
KEPT = ["heap", "disk", "output", "file, output", "strict", "file"]
MEGABYTES = 64
CHEAP = "dirty 0 faults few pages few"


@pytest.fixture(scope="module")
def program():
    return compiled("sparse.c", "-D_GNU_SOURCE")


def placed(mode, shm, tmp_path):
    settings = dict((MODES | STORING)[mode])
    if settings.get("HEAP") == "file" and not (shm / "file").exists():
        made = ["--make", "--size", "256M", "--journal", "16M", shm / "file"]
        succeeds(run([tool("pmalloc-recover"), *made], preload=False))
    if "HEAP" in settings:
        where = tmp_path if settings["HEAP"] == "disk" else shm
        settings |= {"HEAP": where / settings["HEAP"], "ROOTS": "table"}
    return settings


@pytest.mark.parametrize("mode", MODES)
def test_takes_what_is_used(program, shm, tmp_path, mode):
    done = run([program, "make", MEGABYTES], **placed(mode, shm, tmp_path))
    assert done.returncode == -signal.SIGKILL, said(done)
    assert done.stdout.splitlines() == [CHEAP] * 5 + ["made"]


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in ("disk", "file, output")])
def test_forked_child(program, shm, tmp_path, mode):
    out = succeeds(run([program, "child", MEGABYTES], **placed(mode, shm, tmp_path)))
    right = [CHEAP] * 10 + [f"right {MEGABYTES} wrong 0", CHEAP]
    assert out.splitlines() == right


@pytest.mark.parametrize("mode", KEPT)
def test_kept_over_a_kill(program, shm, tmp_path, mode):
    settings = placed(mode, shm, tmp_path)
    done = run([program, "make", MEGABYTES], **settings)
    assert done.returncode == -signal.SIGKILL, said(done)
    assert [line.split(" faults")[0] for line in done.stdout.splitlines()] == ["dirty 0"] * 5 + [
        "made"
    ]
    if mode in ("heap", "disk", "output"):  # what was freed and emptied takes no space
        assert (settings["HEAP"] / "heap.0").stat().st_blocks * 512 < 16 << 20
    assert succeeds(run([program, "look", MEGABYTES], **settings)) == (
        f"right {MEGABYTES} wrong 0\n"
    )
    done = recover(settings["HEAP"], "--check")
    assert done.returncode == 0, said(done)
