# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""A heap in several files of a fixed size, PMALLOC_HEAP=A:B: what one file does, they do. Files
that are missing, swapped, doubled or another heap's are refused."""

import fcntl
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import time

import pytest

from conftest import (
    BUILD,
    busy,
    compiled,
    recover,
    recovered,
    refuses,
    run,
    said,
    start,
    succeeds,
    tool,
)

MIB = 1 << 20
LIST = BUILD / "apps" / "list"
# A commit does not wait for the next call of the program.
BY_TIME = {"COMMIT": "5ms", "COMMIT_PATIENCE": "0"}
FORKED = "blocks,generation"
SUPER, DATA, LOG = 1, 3, 5  # numbers of parts
JOURNAL = 0
PLACE = 48 + 16 * 16  # in a layout


def recover_tool(*arguments):
    return run([tool("pmalloc-recover"), *arguments], preload=False)


class Heap:
    """The files of a heap, and what PMALLOC_HEAP names them."""

    def __init__(self, *files):
        self.files = files

    def __str__(self):
        return ":".join(str(file) for file in self.files)

    def bytes(self):
        return [file.read_bytes() for file in self.files]

    def part(self, file, number):
        """Where a part lies, and how many bytes of it are in use."""
        with open(self.files[file], "rb") as medium:
            head = medium.read(8192)
        at = struct.unpack_from("<Q", head, 48 + 16 * number)[0]
        pages = struct.unpack_from("<Q", head, 4096 + 8 * number)[0] & 0xFFFFFFFF
        return at, pages * 4096

    def used(self):
        return [self.part(i, DATA)[1] for i in range(len(self.files))]


def made(shm, *names, options=("--size", "48M")):
    heap = Heap(*(shm / name for name in names))
    succeeds(recover_tool("--make", *options, *heap.files))
    return heap


@pytest.fixture
def pair(shm):
    return made(shm, "a", "b", options=("--size", "48M", "--journal", "16M"))


@pytest.fixture(scope="module")
def program():
    return compiled("fixed.c")


def work(heap, *arguments, **settings):
    return run([LIST, *arguments], HEAP=heap, ROOTS="list_state", **settings)


def keeps(program, heap, what, **settings):
    return run([program, what], HEAP=heap, ROOTS="kept", **settings)


def on_both(heap, seed, *arguments, **settings):
    """Work of a thread that moves between two nodes."""
    return work(heap, "run", 600, seed, *arguments, TOPOLOGY="2x1/7", **settings)


def state(heap):
    return recover(heap, "--check").returncode


# ---- making


def test_making(shm):
    sizes = {"a": 32, "b": 64, "c": 17}
    for name, size in sizes.items():
        (shm / name).write_bytes(bytes(size * MIB))
    heap = Heap(*(shm / name for name in sizes))
    done = json.loads(succeeds(recover_tool("--make", "--json", heap)))
    assert done["heap"] == str(heap)
    for medium, size in zip(done["media"], sizes.values()):
        assert medium["data_bytes"] + medium["metadata_bytes"] == size // 2 * 2 * MIB
    succeeds(on_both(heap, 1))
    assert state(heap) == 0


def test_what_cannot_be_made(shm):
    (shm / "full").write_bytes(bytes(20 * MIB) + b"x" + bytes(12 * MIB))
    os.link(shm / "full", shm / "again")
    for names, part in (
        (["a", "b", "full"], f"its byte {20 * MIB} is not zero"),
        (["a", "a"], "named twice"),
        ([f"m{i}" for i in range(9)], "at most 8"),
        (["full", "again", "--force"], "named twice"),
        (["a", "", "b"], "is missing"),
    ):
        files = [name if name.startswith("-") else f"{shm}/{name}" for name in names if name]
        text = ":".join(files) if "" not in names else f"{files[0]}::{files[1]}"
        options = [name for name in files if name.startswith("-")]
        text = text.replace(":--force", "")
        done = recover_tool("--make", "--size", "32M", *options, text)
        assert done.returncode == 8 and part in done.stderr, (names, said(done))
        assert len(done.stderr.splitlines()) == 1
        assert sorted(os.listdir(shm)) == ["again", "full"]


def test_a_making_that_is_interrupted(shm, rng):
    """There is a heap, or none: never one that lacks something."""
    heap = made(shm, "a", "b", options=("--size", "32M"))
    took = time.monotonic()
    succeeds(recover_tool("--make", "--force", "--yes", heap))
    took = time.monotonic() - took
    for _ in range(8):
        child = subprocess.Popen([tool("pmalloc-recover"), "--make", "--force", "--yes", str(heap)])
        time.sleep(rng.uniform(0, took * 1.2))
        child.kill()
        child.wait()
        done = recover(heap, "--check")
        assert done.returncode == 1 or "holds no heap" in done.stderr, said(done)
    with open(heap.files[0], "r+b") as file:  # its magic is the last that is stored
        file.write(bytes(8))
    done = recover(heap, "--check")
    assert done.returncode == 8 and f"{heap.files[0]}: Not a directory" in done.stderr, said(done)
    succeeds(recover_tool("--make", "--force", "--yes", heap))
    succeeds(on_both(heap, 1))


# ---- a program's data


def test_data_come_back(pair):
    for seed in (1, 2):
        succeeds(on_both(pair, seed))
        assert state(pair) == 0
        killed = on_both(pair, seed + 10, "-k")
        assert killed.returncode == -signal.SIGKILL, said(killed)
        before = pair.bytes()
        assert state(pair) == 1
        assert recover(pair, "--dry-run").returncode == 0
        assert pair.bytes() == before
    assert min(pair.used()) > 0
    assert recovered(pair)["live_objects"] > 1000
    assert state(pair) == 0
    assert " keys=" in succeeds(work(pair, "check"))


@pytest.mark.parametrize("settings", [{}, BY_TIME], ids=["plain", "commit"])
def test_killed_at_any_time(pair, rng, settings):
    """A kill may come before the first commit: then there is no state yet."""
    seen, i = False, -1
    while i < 7 or not seen:
        i += 1
        assert i < 100
        child = start(
            [LIST, "run", 0, 5], HEAP=pair, ROOTS="list_state", TOPOLOGY="2x1/7", **settings
        )
        line = child.stdout.readline()
        assert line.startswith("ok ") or (line.startswith("ready") and not seen)
        seen |= line.startswith("ok ")
        time.sleep(rng.uniform(0, 0.06))
        child.kill()
        child.communicate()
        if i % 2:
            assert recovered(pair)["result"] in ("clean", "recovered")
        if i % 4 == 2 and seen:
            succeeds(work(pair, "check", **settings))
    assert min(pair.used()) > 0
    succeeds(work(pair, "check"))


@pytest.mark.parametrize("nodes", [1, 2])
def test_all_of_both_is_used(program, pair, nodes):
    sizes = [file.stat().st_size for file in pair.files]
    filled = succeeds(keeps(program, pair, "fill", TOPOLOGY=f"{nodes}x1/9"))
    assert int(filled.split()[0]) > 60 and min(pair.used()) > 20 * MIB
    assert state(pair) == 0
    for settings in ({}, {"COLLECT": "crash"}, {"TOPOLOGY": "3x1"}):
        assert succeeds(keeps(program, pair, "check", **settings)) == filled
    assert succeeds(keeps(program, pair, "more", OPEN="private")) == filled
    assert succeeds(keeps(program, pair, "child")) == filled
    assert [file.stat().st_size for file in pair.files] == sizes


# ---- files that are not the ones that are meant


def test_wrong_files_are_refused(pair, shm):
    succeeds(on_both(pair, 1))
    other = made(shm, "x", "y", options=("--size", "32M"))
    alone = made(shm, "one", options=("--size", "32M"))
    os.link(pair.files[0], shm / "again")
    (shm / "folder").mkdir()
    (shm / "link").symlink_to(pair.files[1])
    (shm / "zeroes").write_bytes(bytes(32 * MIB))
    a, b = pair.files
    before = pair.bytes() + other.bytes()
    for files, wrong, part in (
        ([a], a, "is number 1 of the 2"),
        ([b], b, "is number 2 of the 2"),
        ([b, a], b, "stands at place 1"),
        ([a, a], a, "are one and the same"),
        ([a, shm / "again"], shm / "again", "are one and the same"),
        ([a, other.files[1]], other.files[1], "belongs to another heap"),
        ([other.files[0], b], b, "belongs to another heap"),
        ([alone.files[0], b], alone.files[0], "is the only file or device"),
        ([a, b, other.files[0]], a, "and 3 are named"),
        ([a, shm / "none"], shm / "none", "No such file"),
        ([a, shm / "zeroes"], shm / "zeroes", "holds no heap"),
        ([a, shm / "link"], shm / "link", "is a symbolic link"),
        ([a, shm / "folder"], shm / "folder", "neither a file nor a DAX device"),
        ([shm / "folder", b], b, "Not a directory"),
    ):
        heap = Heap(*files)
        refuses(work(heap, "check"), str(wrong), part)
        done = recover(heap, "--check")
        if files[0] != shm / "folder":
            assert done.returncode == 8 and part in done.stderr, (files, said(done))
            assert len(done.stderr.splitlines()) == 1
    assert pair.bytes() + other.bytes() == before
    succeeds(work(pair, "check"))


def flip(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0x10]))


def test_damage_is_found(pair):
    succeeds(on_both(pair, 1))
    a, b = pair.files
    shards = pair.part(0, SUPER)[0] + 4096 + state_offset(pair)
    places = [(b, at) for at in (8, 20, 30, 40, 48 + 16 * 3, PLACE, PLACE + 2, PLACE + 8, 4092)]
    places += [(b, 4096 + 8 * part) for part in (DATA, 4, LOG, 6)]
    places += [(b, pair.part(1, LOG)[0] + 20), (a, shards)]
    for path, place in places:
        flip(path, place)
        done = recover(pair, "--check")
        assert done.returncode in (4, 8), (path, place, said(done))
        assert len(done.stderr.splitlines()) == 1
        refuses(work(pair, "check"))
        flip(path, place)
    succeeds(work(pair, "check"))
    os.truncate(b, 40 * MIB)
    done = recover(pair, "--check")
    assert done.returncode == 4 and f"{b} has {40 * MIB} bytes" in done.stderr, said(done)


def state_offset(heap):
    """Where the state page says how many shards there are."""
    at = heap.part(0, SUPER)[0]
    page = heap.files[0].read_bytes()[at + 4096 : at + 8192]
    found = [i for i in range(0, 4096, 8) if page[i : i + 4] == b"\2\0\0\0" and page[i + 4]]
    return found[-1]


def test_kinds_of_media(shm, tmp_path):
    kind = subprocess.run(["stat", "-fc", "%T", tmp_path], capture_output=True, text=True)
    if kind.stdout.strip() == "tmpfs":
        pytest.skip("the folder for tests is a tmpfs, too")
    done = recover_tool("--make", "--size", "16M", shm / "a", tmp_path / "b")
    assert done.returncode == 8 and "the same failures" in done.stderr, said(done)
    assert not (shm / "a").exists() and not (tmp_path / "b").exists()
    heap = made(shm, "a", "b", options=("--size", "16M"))
    shutil.copyfile(heap.files[1], tmp_path / "b")
    (tmp_path / "b").chmod(0o600)
    refuses(work(Heap(heap.files[0], tmp_path / "b"), "check"), "the same failures")


# ---- who has it


def test_a_second_process_is_refused(pair, shm):
    os.link(pair.files[0], shm / "c")
    os.link(pair.files[1], shm / "d")
    again = Heap(shm / "c", shm / "d")
    child = start([LIST, "run", 0, 1, "-s"], HEAP=pair, ROOTS="list_state")
    assert child.stdout.readline() == "ready\n"
    for heap in (pair, again):
        refuses(work(heap, "check"), f"is in use by process {child.pid}")
        done = recover(heap)
        assert done.returncode == 8 and f"in use by process {child.pid}" in done.stderr
    for file in again.files:
        for options in (["--make", "--force", "--yes"], ["--grow"]):
            done = recover_tool(*options, file)
            assert done.returncode == 8 and "in use" in done.stderr, said(done)
        refuses(work(file, "check", BUSY="wait"), "of the 2 files or devices")
    refuses(work(Heap(*reversed(pair.files)), "check", BUSY="wait"), "stands at place 1")
    waiting = start([LIST, "check"], HEAP=again, ROOTS="list_state", BUSY="wait")
    time.sleep(0.1)
    assert waiting.poll() is None
    child.kill()
    child.communicate()
    out, err = waiting.communicate(timeout=60 * busy())
    assert waiting.returncode == 0, (out, err)


def test_the_second_file_is_locked(pair):
    """Who has it alone keeps the heap."""
    with open(pair.files[1], "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        refuses(work(pair, "check"), f"in use by process {os.getpid()}")
    succeeds(work(pair, "run", 100, 1))


# ---- other settings


def test_forks(forks, pair):
    settings = {"HEAP": pair, "ROOTS": FORKED, "TOPOLOGY": "2x1/7"}
    succeeds(run([forks, "stopped", 20], **settings))
    succeeds(run([forks, "check", 2], **settings))
    succeeds(run([forks, "isolation", 4], FORK="follow", **settings))


def test_a_daemon_has_both(forks, pair, shm):
    ready = shm / "ready"
    process = start([forks, "daemon_single", 4, ready], HEAP=pair, ROOTS=FORKED, FORK="follow")
    assert process.wait(20 * busy()) == 0
    for _ in range(1000):
        if ready.exists():
            break
        time.sleep(0.01)
    pid = int(ready.read_text())
    try:
        refuses(run([forks, "check", 5], HEAP=pair, ROOTS=FORKED), f"in use by process {pid}")
        for file in pair.files:
            with open(file, "rb") as held, pytest.raises(BlockingIOError):
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.kill(pid, signal.SIGKILL)
    succeeds(run([forks, "check", 5], HEAP=pair, ROOTS=FORKED, BUSY="wait"))


def test_a_backup_and_back(pair, shm):
    succeeds(on_both(pair, 1))
    digest = succeeds(work(pair, "check"))
    succeeds(run([tool("pmalloc-backup"), pair, shm / "copy"], preload=False))
    assert succeeds(work(shm / "copy", "check")) == digest
    assert {"heap.0", "heap.1"} < set(os.listdir(shm / "copy"))
    done = recover_tool("--make", "--size", "48M", "--from", shm / "copy", shm / "c")
    assert done.returncode == 8 and "has 2 data files" in done.stderr, said(done)
    for names, clean in (("cd", 0), ("efg", 1)):
        again = Heap(*(shm / name for name in names))
        succeeds(recover_tool("--make", "--size", "48M", "--from", shm / "copy", *again.files))
        assert state(again) == clean
        assert succeeds(work(again, "check")) == digest
        succeeds(on_both(again, 2))
        assert state(again) == 0


@pytest.mark.parametrize("settings", [{}, {"COMMIT": "5ms"}], ids=["plain", "commit"])
def test_looks_and_a_backup_while_it_runs(pair, shm, settings):
    endless = [LIST, "run", 0, 5, "-s"]
    child = start(endless, HEAP=pair, ROOTS="list_state", TOPOLOGY="2x1/7", **settings)
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.2)
    look = [tool("pmalloc-info"), "--follow", "--count", 1, pair]
    assert f"process {child.pid}" in succeeds(run(look, preload=False))
    for _ in range(2):
        succeeds(run([tool("pmalloc-backup"), pair, shm / "copy"], preload=False))
    child.kill()
    child.communicate()
    succeeds(work(shm / "copy", "check"))
    assert {"heap.0", "heap.1"} < set(os.listdir(shm / "copy"))
    succeeds(work(pair, "check"))


def test_one_becomes_larger(program, pair):
    filled = succeeds(keeps(program, pair, "fill"))
    a, b = pair.files
    os.truncate(b, 80 * MIB)
    with open(b, "r+b") as file:
        os.posix_fallocate(file.fileno(), 0, 80 * MIB)
    done = recover_tool("--grow", pair)
    assert done.returncode == 8 and "one too many" in done.stderr, said(done)
    assert "this is number 2" in succeeds(recover_tool("--grow", b))
    before = pair.used()
    assert succeeds(keeps(program, pair, "check")) == filled
    more = int(succeeds(keeps(program, pair, "fill")).split()[0])
    assert more > int(filled.split()[0]) + 16
    assert pair.used()[1] > before[1] and pair.used()[0] == before[0]


def test_info(pair):
    succeeds(on_both(pair, 1))
    text = succeeds(run([tool("pmalloc-info"), pair], preload=False))
    assert re.search(r"^heap\.0 ", text, re.M) and re.search(r"^heap\.1 ", text, re.M)
