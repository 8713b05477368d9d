# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Heaps that a program opens by a call, pmalloc_open(), and not by a setting.

`NAMED_KILLS=50 pytest test_named.py` kills each program as often."""

import os
import shutil
import sys
import time

import pytest
from conftest import API, BUILD, linked, recover, run, said, start, succeeds

KILLS = int(os.environ.get("NAMED_KILLS") or 12)

# The same program as named.c's list, by ctypes. Python's own memory is libc's.
PYTHON = """
import ctypes, sys
pm = ctypes.CDLL(sys.argv[1], use_errno=True)
OP = ctypes.c_uint64 * 8
pm.pmalloc_get_root.restype = pm.pmalloc_reserve.restype = ctypes.c_void_p
size, address, word = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_uint64
pm.pmalloc_reserve.argtypes = [address, size, size, ctypes.c_uint]
pm.pmalloc_store.argtypes = [address, address, word]
pm.pmalloc_store_root.argtypes = [address, ctypes.c_uint, address]
pm.pmalloc_publish.argtypes = [address, size]
if pm.pmalloc_open(sys.argv[2].encode(), 0):
    sys.exit(f"errno {ctypes.get_errno()}")

def words(at):
    return (word * 3).from_address(at)

op = (OP * 3)()
place = [ctypes.addressof(op[i]) for i in range(3)]
root = pm.pmalloc_get_root(0)
if not root:
    root = pm.pmalloc_reserve(place[0], 24, 0, 1)
    assert pm.pmalloc_store_root(place[1], 0, root) == 0
    assert pm.pmalloc_publish(place[0], 2) == 0
head = words(root)

def check():
    number, at = head[1], head[0]
    while at:
        number -= 1
        entry = words(at)
        assert entry[1] == number and entry[2] == 2**64 - 1 - number
        at = entry[0]
    assert number == 0

check()
print(head[1], flush=True)
while "check" not in sys.argv:
    at = pm.pmalloc_reserve(place[0], 24, 0, 0)
    words(at)[:] = head[0], head[1], 2**64 - 1 - head[1]
    pm.pmalloc_store(place[1], root, at)
    pm.pmalloc_store(place[2], root + 8, head[1] + 1)
    assert pm.pmalloc_publish(place[0], 3) == 0
assert pm.pmalloc_close() == 0 and pm.pmalloc_is_persistent() == 0
check()
print("ok")
"""


@pytest.fixture(scope="module")
def named():
    return linked("named.c", "-pthread")


def kill_often(argv, heap, processes, rng):
    """Returns how many entries there were before the last kill."""
    seen = 0
    for number in range(KILLS):
        process = start([*argv, heap], preload=False)
        processes.append(process)
        if number % 3 == 2:  # in the opening, or before it
            time.sleep(rng.uniform(0, rng.choice((0.005, 0.06))))
            process.kill()
            process.wait()
            continue
        line = process.stdout.readline()
        assert line, process.stderr.read()
        assert int(line) >= seen
        seen = int(line)
        time.sleep(rng.uniform(0, 0.03))
        process.kill()
        assert process.wait() == -9
        assert process.stderr.read() == ""
    assert seen > KILLS
    return seen


def test_killed_at_random(named, heap, processes, rng):
    seen = kill_often([named, "list"], heap, processes, rng)
    after = f"{named} check {heap}"
    done = run([named, "check", heap, after], preload=False)
    inner, _, count, _ = succeeds(done).split()
    assert seen <= int(count) == int(inner) - 1
    assert recover(heap, "--check").returncode == 0


def test_python(named, heap, processes, rng):
    argv = [sys.executable, "-c", PYTHON, BUILD / API]
    seen = kill_often(argv, heap, processes, rng)
    assert int(succeeds(run([*argv, heap, "check"], preload=False)).split()[0]) >= seen
    assert recover(heap, "--check").returncode == 0
    assert int(succeeds(run([named, "check", heap], preload=False)).split()[0]) >= seen


@pytest.mark.parametrize("what", ["early", "fork", "threads", "late"])
@pytest.mark.parametrize("preload", [False, True])
def test_moments(named, heap, what, preload):
    done = run([named, what, heap], preload=preload)
    assert succeeds(done).endswith("ok\n")
    assert heap.exists() == (what != "late")
    if heap.exists():
        assert recover(heap, "--check").returncode == 0, said(done)


def attempts(done):
    return [line.rsplit(" ", 1)[0] for line in succeeds(done).splitlines()[:-1]]


@pytest.mark.check
def test_errors_leave_the_program_as_it_was(named, shm, heap, processes):
    """One process meets all of them, and then opens a good heap."""
    succeeds(run([named, "early", heap], preload=False))
    busy, damaged, log, text = (shm / name for name in ("busy", "damaged", "log", "text"))
    process = start([named, "list", busy], preload=False)
    processes.append(process)
    assert process.stdout.readline()
    for copy, name in ((damaged, "superblock"), (log, "booklog.0")):
        shutil.copytree(heap, copy)
        with open(copy / name, "r+b") as file:
            file.seek(4096 if copy == log else 8)
            file.write(b"\x5a" * 100)
    text.write_text("no heap\n")
    bad = [shm / "missing", text, busy, damaged, log]
    before = {path: path.read_bytes() for copy in (damaged, log) for path in copy.iterdir()}
    done = run([named, "try", *bad, heap, heap, busy], preload=False)
    assert attempts(done) == [
        "-1 No such file or directory",
        "-1 Not a directory",
        "-1 Device or resource busy",
        "-1 Input/output error",
        "-1 Input/output error",
        "0 -",
        "0 -",
        "-1 Device or resource busy",
    ], said(done)
    lines = done.stderr.splitlines()
    assert len(lines) == 2 + 6 and all(line.startswith("pmalloc: pmalloc_open: ") for line in lines)
    assert all(path.read_bytes() == data for path, data in before.items())
    assert recover(heap, "--check").returncode == 0


def test_captured_roots_need_the_setting(named, workload):
    bench = workload("list")
    bench.run("check")  # it has no state yet
    done = run([named, "try", bench.heap], preload=False)
    assert attempts(done) == ["-1 Operation not supported"]
    assert "PMALLOC_HEAP" in done.stderr


def test_settings_come_first(named, shm, heap):
    other = shm / "other"
    done = run([named, "try", other, heap], preload=False, HEAP=heap)
    assert attempts(done) == ["-1 Device or resource busy", "0 -"]
    assert f"has the heap {heap} open already" in done.stderr and not other.exists()
    for settings in ({"BACKING": "volatile"}, {"PROGRAM": "another"}):
        for more in ({}, {"VERBOSE": 1}, {"STATS": 1}):  # with these the start does not wait
            done = run([named, "try", heap], preload=False, **settings, **more)
            assert attempts(done) == ["-1 Operation not supported"]
            assert f"no heap for this program: PMALLOC_{list(settings)[0]}" in done.stderr


def test_start_line_of_a_program_that_has_not_opened_its_heap_yet(named, heap):
    succeeds(run([named, "early", heap], preload=False))
    done = run([named, "try", heap], preload=False, VERBOSE=1)
    assert attempts(done) == ["0 -"]
    lines = done.stderr.splitlines()
    assert "volatile memory" in lines[0] and "opens its heap by pmalloc_open()" in lines[0]
    assert f"heap {heap} (" in lines[-1]
