# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""A string that the new build lacks is copied into the heap, and then words are changed: a kill or
a power cut between any two of these steps, and another start that comes between them. test_moved
has the program."""

import os
import shutil
import signal
import subprocess

import pytest
from conftest import compiled, environment, recovered, run, said
from test_lost_writes import disk  # noqa: F401
from test_moved import KILLED, build
from test_moved_fixed import make

PAGE = 4096
HOLE = 16 * PAGE


class Place:
    """Where the program lies, whatever build it is; and its heap."""

    def __init__(self, folder, kind, commit=None):
        self.program, self.heap = folder / "program", folder / "heap"
        self.settings = {"ROOTS": "world", "HEAP": self.heap, "COMMIT": commit}
        if kind == "file":
            make(self.heap, "--size", "16M", "--journal", "4M")

    def put(self, built):
        self.program.unlink(missing_ok=True)
        shutil.copy(built, self.program)

    def runs(self, built, *arguments, **settings):
        self.put(built)
        done = run([self.program, *arguments], **self.settings | settings)
        assert done.returncode == KILLED, said(done)
        return done.stdout


def contents(folder):
    """All files below it, which are at rest."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder): path.read_bytes() for path in files}


def put_back(files, folder):
    """Into the same files, or it would be the copy of a heap that was in use."""
    for name in contents(folder).keys() - files.keys():
        (folder / name).unlink()
    for name, data in files.items():
        (folder / name).parent.mkdir(mode=0o700, exist_ok=True)
        with open(folder / name, "r+b" if (folder / name).exists() else "w+b") as out:
            for at in range(0, len(data), HOLE):
                piece = data[at : at + HOLE]
                out.seek(at)
                if out.read(HOLE).ljust(len(piece), b"\0") != piece:
                    out.seek(at)
                    out.write(piece)
            out.truncate(len(data))
        (folder / name).chmod(0o700 if name.name == "program" else 0o600)


def blocks_of(heap):
    return recovered(heap)["live_objects"]


# ---- power cuts ----------------------------------------------------------------------------------


def half_written(before, after, rng):
    """Some of the pages that differ are on the disk."""
    some = {}
    for name, old in before.items():
        new = after.get(name, old)
        some[name] = bytearray(old)
        for at in range(0, min(len(old), len(new)), PAGE):
            piece = slice(at, at + PAGE)
            if old[piece] != new[piece] and rng.random() < 0.5:
                some[name][piece] = new[piece].ljust(len(old[piece]), b"\0")[: len(old[piece])]
    return some


@pytest.mark.parametrize("commit", [None, "output"])
@pytest.mark.parametrize("kind", ["directory", "file"])
@pytest.mark.parametrize("disk", ["kills"], indirect=True)  # noqa: F811
def test_power_cuts(disk, rng, kind, commit):  # noqa: F811
    """Before syncs of a start that changes words, MOVED_CUTS of them; then either build goes on,
    all data are right, and nothing is left but what the words lead to."""
    old, new = build(2, "-DHAS_MORE"), build(1, "-O2")
    place = Place(disk.tree, kind, commit)
    place.runs(old)
    place.runs(old, "use", "literal")
    begun = contents(disk.tree)

    def goes_on(image, built):
        """The next line of the program, and how many blocks there are then."""
        put_back(image, disk.tree)
        return place.runs(built), blocks_of(place.heap)

    expected, blocks = goes_on(begun, old)
    assert goes_on(begun, new) == (expected, blocks + 1), "the string is not copied"
    def start(cut):
        put_back(begun, disk.tree)
        place.put(new)
        disk.begin()
        return disk.run([place.program], cut, library=True, REBASE="only", **place.settings)

    assert start(0).returncode == 0
    syncs = range(1, disk.syncs() + 1)
    assert len(syncs) > 10, "there are no steps"
    most = int(os.environ.get("MOVED_CUTS", "12"))
    for cut in sorted(rng.sample(syncs, min(most, len(syncs)))):
        done = start(cut)
        kept = contents(disk.tree)
        disk.cut()
        none = contents(disk.tree)
        for what, image in ("all", kept), ("none", none), ("some", half_written(none, kept, rng)):
            why = (cut, what, said(done))
            line, count = goes_on(image, old)
            assert line == expected and blocks <= count <= blocks + 1, why
            assert goes_on(image, new) == (expected, blocks + 1), why


# ---- another start -------------------------------------------------------------------------------


def wait_until_stopped(process):
    pid, status = os.waitpid(process.pid, os.WUNTRACED)
    assert pid == process.pid and os.WIFSTOPPED(status), status


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_another_start_comes_between(shm, kind):
    """When strings were copied, and no word leads to them. So it collects them, and takes their
    place for its own data."""
    old, new = build(2, "-DHAS_MORE"), build(1, "-O2")
    layer = compiled("stop_locked.c", "-shared", "-fPIC", name="stop_locked.so")
    place = Place(shm, kind)
    place.runs(old)
    place.runs(old, "use", "literal")
    begun = contents(shm)
    expected = [place.runs(old) for _ in range(9)]
    put_back(begun, shm)
    place.put(new)
    env = environment(**place.settings)
    libraries = f"{layer}:{env.pop('LD_PRELOAD')}"
    command = ["setarch", "-R", "env", f"LD_PRELOAD={libraries}", place.program]
    first = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until_stopped(first)
    for line in expected[:-1]:
        assert place.runs(old) == line
    os.kill(first.pid, signal.SIGCONT)
    told, lines = first.communicate()
    assert told.decode() == expected[-1], lines.decode()
