# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Programs that the owner of a heap starts as another user or in another PID namespace run on
volatile memory, as every descendant does. Strangers do not."""

import os
import shutil

import pytest
from conftest import BUILD, compiled, recover, refuses, run, said, succeeds

MODES = {"heap": {}, "commit": {"COMMIT": "20ms"}, "output": {"COMMIT": "output"}}
HOW = ["user", "pidns", "proc", "both"]


@pytest.fixture
def place(shm):
    """The program and the library where every user finds them."""
    shm.chmod(0o755)
    shutil.copy(compiled("descent.c"), shm / "descent")
    shutil.copy(BUILD / "libpmalloc_preload.so", shm / "library.so")
    return shm


def start(place, *argv, **settings):
    done = run([place / "descent", *argv], preload=place / "library.so", **settings)
    if done.returncode == 77 or "status 77" in done.stdout:
        pytest.skip("it may not change its user or its namespaces here")
    return done


def test_without_heap(place):
    for how in HOW:
        right = succeeds(run([place / "descent", how], preload=False))
        assert succeeds(start(place, how)) == right


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", HOW)
def test_descendant(place, mode, how):
    settings = {"HEAP": place / "heap", "ROOTS": "root", **MODES[mode]}
    done = start(place, how, **settings)
    user = 65534 if how in ("user", "both") else os.getuid()
    assert (done.stdout, done.stderr) == (f"child {user} -49\nstatus 0\nparent's\n", ""), said(done)
    assert succeeds(start(place, "again", **settings)) == "parent's\n"
    done = recover(place / "heap", "--check")
    assert done.returncode == 0, said(done)


def test_strangers(place):
    """Another user's program that nobody with this heap has started is refused. So is one that
    names another heap than it has inherited."""
    settings = {"HEAP": place / "heap", "ROOTS": "root", "PROGRAM": "descent"}
    succeeds(start(place, "again", **settings))
    user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    if run([*user, "true"], preload=False).returncode != 0:
        pytest.skip("it may not change its user here")
    argv, library = [*user, place / "descent", "child"], place / "library.so"
    for owner in (None, "1,1,1," + str(place / "other"), "1,1," + str(place / "heap")):
        refuses(run(argv, preload=library, OWNER=owner, **settings), str(place / "heap"))
    done = run(argv, preload=library, OWNER="1,1,1," + str(place / "heap"), **settings)
    assert (done.returncode, done.stdout) == (0, "child 65534 -49\n"), said(done)
