# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Another build of the program on a heap in one file of a fixed size: words are changed by way of
its journal. Without one the start is refused, and the heap goes on in a directory. test_moved has
the program, and what is the same in a directory."""

import json
import os
import shutil

import pytest
from conftest import recover, run, said, succeeds, tool
from test_moved import KILLED, build, killed_amid, lines_of

MIB = 1 << 20
LIST = 256 << 10  # of entries, before the packed objects


class Place:
    """Where the program lies, whatever build it is; and its heap."""

    def __init__(self, folder):
        self.program, self.heap = folder / "program", folder / "medium"

    def put(self, built):
        self.program.unlink(missing_ok=True)
        shutil.copy(built, self.program)

    def run(self, *arguments, **settings):
        return run([self.program, *arguments], **{"HEAP": self.heap, "ROOTS": "world"} | settings)

    def runs(self, built, **settings):
        self.put(built)
        done = self.run(**settings)
        assert done.returncode == KILLED, said(done)
        return done.stdout.splitlines()

    def refused(self, built):
        self.put(built)
        before = self.heap.read_bytes()
        done = self.run()
        assert done.returncode == 125 and not done.stdout, said(done)
        assert self.heap.read_bytes() == before, "it has changed the heap"
        return done.stderr

    def record(self):
        """The parts that records lie in, as the medium's layout says: place and room."""
        words = memoryview(self.heap.read_bytes()[48:304]).cast("Q")
        return [(words[2 * part], words[2 * part + 1]) for part in (8, 9)]


def make(path, *options):
    succeeds(run([tool("pmalloc-recover"), "--make", *options, path], preload=False))


@pytest.fixture
def place(shm):
    there = Place(shm)
    make(there.heap, "--size", "64M", "--journal", "16M")
    return there


@pytest.fixture
def without_journal(shm):
    there = Place(shm)
    make(there.heap, "--size", "64M")
    return there


@pytest.mark.check
@pytest.mark.parametrize("commit", [None, "output"])
def test_to_another_build_and_back(place, commit):
    builds = [build(1), build(2, "-O2")]
    expected = lines_of(builds[0], 6)
    for number, built in enumerate([0, 1, 1, 0, 0, 1]):
        assert place.runs(builds[built], COMMIT=commit) == [expected[number]]
    assert recover("--check", place.heap).returncode == 1  # killed, and right


def test_at_random_places(place):
    built = build(1)
    expected = lines_of(built, 4)
    for number in range(4):
        assert place.runs(built, RANDOMIZE=1) == [expected[number]]


def test_the_tools_tell_what_is_on_record(place):
    place.runs(build(1))
    report = json.loads(run([tool("pmalloc-info"), "--json", place.heap], preload=False).stdout)
    names = {os.path.basename(each["path"]): each["now"] for each in report["objects"]}
    assert names["program"] == names["libc.so.6"] == "same", names
    assert report["files"]["objects.b"]["length"] > LIST, report["files"]


def test_without_a_journal(without_journal, shm):
    """Nothing was changed, and the old build goes on; the new one does so in a directory, and the
    old one again in a file with a journal."""
    place, first, second = without_journal, build(1), build(2, "-O2")
    expected = lines_of(first, 4)
    assert place.runs(first) == [expected[0]]
    why = place.refused(second)
    assert "this heap has no room for one; nothing was changed" in why, why
    done = recover("--rebase", "--dry-run", place.program, place.heap)
    assert done.returncode == 125 and "has no room for one" in done.stderr, said(done)
    assert place.runs(first) == [expected[1]]
    copy, back = shm / "copy", shm / "back"
    succeeds(run([tool("pmalloc-backup"), place.heap, copy], preload=False))
    assert place.runs(second, HEAP=copy) == [expected[2]]
    succeeds(recover(copy))
    make(back, "--size", "64M", "--journal", "8M", "--from", copy)
    assert place.runs(first, HEAP=back) == [expected[3]]


def test_a_medium_of_before_there_were_records(place):
    """Its layout has no such parts: a line counts the words, as ever."""
    layout = bytearray(place.heap.read_bytes())
    layout[48 + 16 * 8 : 48 + 16 * 10] = bytes(32)
    layout[4092:4096] = crc32c(layout[:4092]).to_bytes(4, "little")
    place.heap.write_bytes(layout)
    expected = lines_of(build(1), 2)
    assert place.runs(build(1)) == [expected[0]]
    assert place.runs(build(1)) == [expected[1]]
    place.put(build(2, "-O2"))
    assert "words in the heap point" in place.run().stderr


def crc32c(data):
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def test_a_record_that_is_damaged(place):
    place.runs(build(1))
    whole = bytearray(place.heap.read_bytes())
    (at,) = [at for at, _ in place.record() if any(whole[at : at + 8])]
    whole[at + 256 + 40] ^= 1  # of the first entry
    place.heap.write_bytes(whole)
    why = place.refused(build(1))
    assert "is damaged; if they are the same builds" in why and "pmalloc-backup" in why, why
    assert recover("--check", place.heap).returncode == 4


def test_a_record_that_has_too_little_room(shm):
    """What is not on record of an object cannot be found in another build: that is refused."""
    place = Place(shm)
    make(place.heap, "--size", "16M", "--journal", "1M")
    first, second = build(1, "-static-libstdc++"), build(2, "-O2", "-static-libstdc++")
    expected = lines_of(first, 3)
    assert place.runs(first) == [expected[0]]
    assert place.runs(first) == [expected[1]]
    place.put(second)
    done = place.run()
    assert done.returncode in (KILLED, 125), said(done)
    if done.returncode == KILLED:
        assert done.stdout.splitlines() == [expected[2]]
    else:
        assert place.runs(first) == [expected[2]], "it has changed the heap"


def test_killed_while_it_changes_words(place, rng, shm):
    """Each kill leaves a heap of one build or of the other; the next start goes on from there."""
    builds = [build(2, "-DHAS_MORE"), build(1, "-O2")]
    place.runs(builds[0])
    kept = shm / "kept"
    shutil.copy(place.heap, kept)
    expected = place.runs(builds[0])
    done_before = 0
    kills = int(os.environ.get("MOVED_KILLS", "20"))
    for number in range(kills):
        shutil.copy(kept, place.heap)
        done_before += killed_amid(place, builds, rng)
        assert place.runs(builds[rng.randrange(2)]) == expected, number
    assert done_before < 3 * kills, "no kill came early enough"
