# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What a process has a limited number of: a program can use as many as without PMAlloc.

The programs print what they find. Under the preload, on each kind of memory, that is what they
print with libc's malloc."""

import pytest
from conftest import compiled, recover, run, said, succeeds

MODES = {
    "volatile": {},
    "heap": {"HEAP": "heap"},
    "commit": {"HEAP": "heap", "COMMIT": "20ms"},
    "output": {"HEAP": "heap", "COMMIT": "output"},
}


def placed(settings, shm):
    settings = dict(settings)
    if "HEAP" in settings:
        settings |= {"HEAP": shm / settings["HEAP"], "ROOTS": "root"}
    return settings


@pytest.mark.parametrize("mode", MODES)
def test_keys(shm, mode):
    """All keys can be created, by several threads' use and again after they were deleted."""
    program = compiled("keys.c", "-O1")
    right = succeeds(run([program], preload=False))
    assert right.startswith("1024 keys of 1024\n")
    settings = placed(MODES[mode], shm)
    assert succeeds(run([program], **settings)) == right
    if "HEAP" in settings:
        done = recover(settings["HEAP"], "--check")
        assert done.returncode == 0, said(done)
