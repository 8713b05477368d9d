# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""pmalloc-info --medium: what it says of a heap, a directory and their file system."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pytest
from tool_heaps import (
    BUILD,
    INFO,
    call,
    clean_heap,
    fingerprint,
    one_line,
    originals,
    start_shell,
)  # noqa: F401

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "fuzz"))
from heap_layout import ROWS  # noqa: E402


def medium(path):
    """What --medium says as text and as JSON. Both must agree, and nothing is changed."""
    before = fingerprint(path)
    text, done = call(INFO, "--medium", path), call(INFO, "--medium", "--json", path)
    assert (text.returncode, text.stderr, done.returncode, done.stderr) == (0, "", 0, ""), (
        text,
        done,
    )
    assert fingerprint(path) == before
    answer = json.loads(done.stdout)
    lines = [line.split(None, 1) for line in text.stdout.splitlines()]
    assert ["guarantee", answer["guarantee"]] in lines, text
    assert ["kernel", answer["kernel"]] in lines and ["flush", answer["flush"]] in lines, text
    said = {
        value.rsplit(": ", 1)[0]: value.endswith(": granted")
        for key, value in lines
        if key == "MAP_SYNC"
    }
    if answer["heap"]:
        assert said == answer["map_sync"], text
    assert answer["path"] == str(path) and answer["kernel"] == f"Linux {os.uname().release}"
    return answer


def kind_of(path):
    """The type of a file system and where it is mounted, by findmnt."""
    words = subprocess.check_output(["findmnt", "-no", "FSTYPE,TARGET", "-T", path], text=True)
    return words.split()[-2:]  # the last mount hides the others


HEAP_FILES = {row.name for row in ROWS if row.held}


def test_medium_of_a_heap_on_tmpfs(clean):
    answer = medium(clean)
    assert answer["heap"] and [answer["file_system"], answer["mounted"]] == kind_of(clean)
    assert answer["map_sync"] == dict.fromkeys(HEAP_FILES, False)
    assert answer["flush"] == "none" and answer["guarantee"].startswith("tmpfs: ")
    assert "rw" in answer["options"].split(",")


def test_medium_of_a_heap_in_use(shm):
    heap = shm / "heap"
    shell = start_shell(heap, "set colour blue\n")
    assert medium(heap)["heap"]
    assert shell.communicate("get colour\nquit\n")[0].startswith("blue") and shell.returncode == 0


def test_medium_of_a_directory(shm):
    answer = medium(shm)
    assert not answer["heap"] and answer["guarantee"].startswith("tmpfs: ")
    assert list(shm.iterdir()) == []


def test_medium_of_plain_files(clean):
    with tempfile.TemporaryDirectory(dir=BUILD) as path:
        name, mounted = kind_of(path)
        if name == "tmpfs":
            pytest.skip("the build directory is on tmpfs")
        answer = medium(pathlib.Path(path))
        assert (answer["file_system"], answer["mounted"]) == (name, mounted)
        assert answer["map_sync"] == {"temporary file": False} and answer["flush"] == "msync"
        assert (
            answer["guarantee"].startswith("plain file: ")
            and "not one instant" in answer["guarantee"]
        )
        answer = medium(shutil.copytree(clean, pathlib.Path(path) / "heap"))
        assert (
            answer["heap"] and set(answer["map_sync"]) == HEAP_FILES and answer["flush"] == "msync"
        )


def test_medium_of_what_is_not_there(shm, clean):
    os.mkfifo(shm / "pipe")
    for path, status, part in (
        (shm / "none", 8, "name a heap, or the directory"),
        (shm / "pipe", 8, "neither a directory nor a file"),
        ("/proc/self/fdinfo", 8, "no file can be made there"),
    ):
        one_line(call(INFO, "--medium", path), "pmalloc-info", status, str(path), part)
        done = call(INFO, "--medium", "--json", path)
        assert done.returncode == status and part in json.loads(done.stdout)["error"], done
    (clean / "slabs.0").unlink()
    one_line(call(INFO, "--medium", clean), "pmalloc-info", 4, "slabs.0")
