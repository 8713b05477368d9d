# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""PMALLOC_COMMIT=output and files: descriptors 1 and 2 that are files, and calls that make a file
durable. test_says.py has each such call by name and number, trigger_kills.py a shell that answers
into a file."""

import random
import re
import signal
import struct
import subprocess
import time

import pytest
from conftest import compiled, environment, run, said, start, succeeds

COUNTS = "stdout stderr printf freopen number pwrite dprintf fsync rename".split()
SILENT = "not_flushed another null no_directory".split()


@pytest.fixture(scope="module")
def program():
    return compiled("durable.c")


def value_in(heap, program):
    return int(succeeds(run([program, "check"], HEAP=heap, ROOTS="value")))


def killed(program, way, heap, file, commit="output", **settings):
    """The value in the heap, after the program has said something in this way and was killed."""
    done = run([program, way, file], HEAP=heap, ROOTS="value", COMMIT=commit, **settings)
    assert done.returncode == -signal.SIGKILL and done.stderr == "", said(done)
    said_there = file.exists() and file.read_text() == "said\n"
    assert said_there == (way != "not_flushed"), way
    return value_in(heap, program)


@pytest.mark.parametrize("commit", ("output", "output:strict"))
@pytest.mark.parametrize("way", COUNTS)
def test_what_counts(program, heap, shm, way, commit):
    assert killed(program, way, heap, shm / "file", commit) == 1


@pytest.mark.parametrize("way", SILENT)
def test_what_does_not(program, heap, shm, way):
    """What stdio still has, another descriptor, /dev/null, a new name alone."""
    assert killed(program, way, heap, shm / "file") == 0


@pytest.mark.parametrize("commit", ("api", "1h", "idle:1h"))
def test_other_modes_are_as_before(program, heap, shm, commit):
    for way in ("stdout", "fsync"):
        assert killed(program, way, heap, shm / way, commit) == 0


def commits_of(program, shm, lines, size):
    with open(shm / "lines", "w", encoding="ascii") as out:
        done = subprocess.run(
            [program, "lines", str(lines), str(size)],
            env=environment(True, HEAP=shm / "heap", ROOTS="value", COMMIT="output", STATS=1),
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            check=True,
        )
    assert (shm / "lines").read_text().count("\n") == lines
    return int(re.search(r"stats: commits: (\d+) of", done.stderr)[1])


def test_one_commit_for_each_write_of_a_stream(program, shm):
    """10,000 answers in one buffer are one commit."""
    none = commits_of(program, shm, 0, 80)
    assert commits_of(program, shm, 10000, 80000) == none + 1
    assert commits_of(program, shm, 10000, 8000) == none + 10


def test_the_commit_comes_before_the_sync(program, heap, shm):
    """Killed when the sync itself is about to be made."""
    layer = compiled("cut_sync.c", "-shared", "-fPIC", name="cut_sync.so")
    both = f"libpmalloc_preload.so:{layer}"
    assert killed(program, "fsync", heap, shm / "file", preload=both) == 1


def test_answers_are_the_same(program, heap, shm):
    """Results and errno of each call, also where the kernel refuses it. msync of a block is no
    error, as it is none of a private mapping."""
    plain = succeeds(run([program, "answers"], preload=False))
    assert plain.count("Invalid argument") > 4 and plain.count("Invalid cross-device link") > 6
    for settings in ({}, {"HEAP": heap, "ROOTS": "value", "COMMIT": "output"}):
        done = run([program, "answers"], **settings)
        assert (done.stdout, done.stderr) == (plain, ""), said(done)


@pytest.mark.parametrize("call", ("fsync", "fdatasync", "msync"))
def test_cancellation(program, heap, call):
    """They are cancellation points, as they are without PMAlloc."""
    plain = succeeds(run([program, "cancel", call], preload=False))
    done = run([program, "cancel", call], HEAP=heap, ROOTS="value", COMMIT="output")
    assert (done.stdout, done.stderr) == (plain, ""), said(done)
    assert "cancelled, back 0" in plain
    assert value_in(heap, program) == 1


def test_a_handler_makes_files_durable(program, heap):
    """Also where it has interrupted the allocator, a commit, or another sync."""
    done = run([program, "handler"], HEAP=heap, ROOTS="value", COMMIT="output", DECAY_MS=0)
    assert (done.stdout, done.stderr) == ("fine\n", ""), said(done)


def test_a_log_and_its_heap(program, heap, shm, rng: random.Random):
    """After a kill at any moment the heap has each count whose line was made durable, and is not
    more than one ahead of the log."""
    log, seen = shm / "log", shm / "seen"
    last = 0
    for _ in range(15):
        process = start(
            [program, "log", log, seen], HEAP=heap, ROOTS="value", COMMIT="output"
        )
        time.sleep(rng.uniform(0.05, 0.3))
        process.kill()
        assert process.communicate()[1] == ""
        durable = struct.unpack("<Q", seen.read_bytes().ljust(8, b"\0"))[0]
        written = int(("0\n" + log.read_text()).split("\n")[-2])
        last = value_in(heap, program)
        assert max(durable, written - 1) <= last <= written + 1, (durable, written, last)
    assert last > 15
