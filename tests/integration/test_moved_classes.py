# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Stripped programs in another build: objects of classes with virtual functions are known by their
type_infos, which have the names of their types. moved_classes.cc is the program; it is killed."""

import shutil
import signal
import subprocess

import pytest
from conftest import HERE, compiled, copy_heap, needs, recover, run, said

KILLED = -signal.SIGKILL
EXPORTED = "-Wl,--export-dynamic-symbol=world"


def build(version, *flags, compiler="g++"):
    needs(compiler)
    name = f"moved_classes-{version}-{compiler}" + "".join(flags)
    flags = (f"-DV={version}", "-std=c++17", EXPORTED, *flags)
    return compiled("moved_classes.cc", *flags, name=name, compiler=compiler)


@pytest.fixture
def place(shm):
    class Place:
        program, heap = shm / "program", shm / "heap"

        def put(self, built, strip=True):
            self.program.unlink(missing_ok=True)
            shutil.copy(built, self.program)
            if strip:
                subprocess.run(["strip", self.program], check=True)

        def run(self, *arguments, **settings):
            return run([self.program, *arguments], HEAP=self.heap, ROOTS="world", **settings)

    return Place()


def lines_of(built, count):
    done = run([built, "plain", count], preload=False)
    assert done.returncode == 0, said(done)
    return done.stdout.splitlines()


PAIRS = {
    "gcc": [(1, "-O2"), (2, "-O1"), (1, "-O2"), (2, "-O1")],
    "clang": [(1, "-O2", "clang++"), (2, "-O0", "clang++"), (1, "-O1", "clang++")],
    "both": [(1, "-O2"), (2, "-O2", "clang++"), (1, "-O0")],
    "relocations": [(1, "-Wl,-z,nocombreloc"), (2, "-Wl,-z,now"), (1, "-Wl,--emit-relocs")],
}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("stripped", [(1, 1, 1, 1), (0, 1, 0, 1), (1, 0, 1, 0)], ids=str)
def test_to_another_build_and_back(place, pair, stripped):
    builds = [
        build(version, flag, compiler=(*compiler, "g++")[0])
        for version, flag, *compiler in PAIRS[pair]
    ]
    expected = lines_of(builds[0], len(builds))
    for number, built in enumerate(builds):
        place.put(built, stripped[number])
        done = place.run()
        assert (done.returncode, done.stdout) == (KILLED, expected[number] + "\n"), said(done)
        assert ("another build; each leads" in done.stderr) == (number > 0), said(done)


def test_what_is_on_record(place):
    """The tools rewrite in the same way, from what the heap has of a build that is gone."""
    builds = [build(1, "-O2"), build(2, "-O1")]
    expected = lines_of(builds[0], 3)
    place.put(builds[0])
    assert place.run().stdout == expected[0] + "\n"
    place.put(builds[1])
    dry = recover("--rebase", "--dry-run", place.program, place.heap)
    assert dry.returncode == 0 and "each can be made to lead to the same thing" in dry.stderr
    copy_heap(place.heap, place.heap.with_name("twin"))
    assert recover("--rebase", place.program, place.heap).returncode == 0
    for heap in place.heap, place.heap.with_name("twin"):
        done = run([place.program], HEAP=heap)
        assert done.stdout == expected[1] + "\n", said(done)


def test_a_class_of_two_files(place, shm):
    """Nothing tells which of them is meant."""
    for version in (1, 2):
        for twin in (1, 2):
            flags = [f"-DV={version}", f"-DTWIN={twin}", "-std=c++17", "-O1"]
            out = ["-c", "-o", shm / f"{twin}.o", HERE / "moved_classes.cc"]
            subprocess.run(["g++", *flags, *out], check=True)
        objects = [shm / "1.o", shm / "2.o"]
        subprocess.run(["g++", "-o", shm / f"twins{version}", EXPORTED, *objects], check=True)
    for strip in False, True:
        shutil.rmtree(place.heap, ignore_errors=True)
        place.put(shm / "twins1", strip)
        assert place.run("twin").returncode == KILLED
        place.put(shm / "twins2", strip)
        done = place.run()
        why = "2 words: program: _ZTVN12_GLOBAL__N_16HiddenE has several of its name"
        assert done.returncode == 125 and not done.stdout, said(done)
        assert ("data without a name" if strip else why) in done.stderr, said(done)


REFUSED = {
    "static": ["-static-libstdc++", "-static-libgcc"],
    "local": ["-DLOCAL"],
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_not_known(place, why):
    """Type_infos that lead into the program itself, and types that compilers number."""
    place.put(build(1, "-O2", *REFUSED[why]))
    assert place.run().returncode == KILLED
    place.put(build(2, "-O2", *REFUSED[why]))
    done = place.run()
    assert done.returncode == 125 and "data without a name" in done.stderr, said(done)
