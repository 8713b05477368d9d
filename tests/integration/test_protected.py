# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Pages of blocks that the program has protected or mapped over: readers of the library's own do
not stumble over them, and new mappings keep them.

The program prints what it finds. Under the preload, on each kind of memory, that is what it prints
with libc's malloc."""

import signal

import pytest
from conftest import compiled, recover, run, said, start, succeeds, tool

MODES = {
    "volatile": {},
    "heap": {"HEAP": "heap"},
    "commit": {"HEAP": "heap", "COMMIT": "20ms"},
    "output": {"HEAP": "heap", "COMMIT": "output"},
    "copy": {"HEAP": "heap", "FORK": "copy"},
    "copy, commit": {"HEAP": "heap", "FORK": "copy", "COMMIT": "20ms"},
    "follow": {"HEAP": "heap", "FORK": "follow"},
    "file": {"HEAP": "file"},
    "file, commit": {"HEAP": "file", "COMMIT": "20ms"},
}
SEEN = ["guard", "children", "light", "mapped", "freed", "holes", "ends"]
UNSEEN = ["unseen", "guard", "children", "ends"]


@pytest.fixture(scope="module")
def program():
    return compiled("protected.c", "-D_GNU_SOURCE=", "-O1")


def placed(settings, shm):
    settings = dict(settings)
    if settings.get("HEAP") == "file" and not (shm / "file").exists():
        made = ["--make", "--size", "128M", "--journal", "16M", shm / "file"]
        succeeds(run([tool("pmalloc-recover"), *made], preload=False))
    if "HEAP" in settings:
        settings["HEAP"] = shm / settings["HEAP"]
        settings["ROOTS"] = "root"
    return settings


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("parts", [SEEN, UNSEEN], ids=["seen", "unseen"])
def test_as_with_libc(program, shm, parts, mode):
    right = succeeds(run([program, *parts], preload=False))
    assert "destructor" in right
    settings = placed(MODES[mode], shm)
    assert succeeds(run([program, *parts], **settings)) == right
    if "HEAP" in settings:
        done = recover(settings["HEAP"], "--check")  # a child that has it may not have closed it
        assert done.returncode in ([0, 1] if mode == "follow" else [0]), said(done)


@pytest.mark.parametrize("unseen", [[], ["unseen"]], ids=["seen", "unseen"])
@pytest.mark.parametrize("mode", ["heap", "commit", "output", "file, commit"])
def test_protected_bytes_are_kept(program, shm, mode, unseen):
    """A kill after a commit: the next start finds the bytes, in pages like all others."""
    settings = placed(MODES[mode], shm)
    assert run([program, *unseen, "killed"], **settings).returncode == -signal.SIGKILL
    out = succeeds(run([program, "again"], **settings))
    assert out == " 65536 of 97\nagain rw rw rw rw \n"


@pytest.mark.parametrize("unseen", [[], ["unseen"]], ids=["seen", "unseen"])
@pytest.mark.parametrize("mode", ["volatile", "heap", "commit", "output"])
def test_leaks(program, shm, mode, unseen):
    """A pointer in a page that cannot be read keeps its block, and the look ends well."""
    done = run([program, *unseen, "leaks"], **placed(MODES[mode], shm), LEAKS=1)
    assert done.returncode == 0, said(done)
    assert "nothing reaches 0 of" in done.stderr, said(done)


@pytest.mark.parametrize("unseen", [[], ["unseen"]], ids=["seen", "unseen"])
@pytest.mark.parametrize("mode", ["heap", "commit"])
def test_from_outside(program, shm, mode, unseen):
    """A backup of a program that runs has the bytes, and a look for leaks changes nothing."""
    settings = placed(MODES[mode], shm)
    with start([program, *unseen, "waits"], **settings) as process:
        assert process.stdout.readline() == "ready\n"
        found = succeeds(run([tool("pmalloc-info"), "--leaks", process.pid], preload=False))
        succeeds(run([tool("pmalloc-backup"), shm / "heap", shm / "backup"], preload=False))
        process.communicate("\n")
        assert process.returncode == 0, found
    out = succeeds(run([program, "again"], **(settings | {"HEAP": shm / "backup"})))
    assert out == " 65536 of 97\nagain rw rw rw rw \n"
