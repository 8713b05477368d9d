# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""fork: what parent and child see of each other (nothing), what is left in which heap, and what a
fork costs a child that only executes. The programs are the cases of forks*.c."""

import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest

from conftest import API, FORKS, busy
from conftest import compiled, recover, recovered, run, said, start, succeeds

ROOTS = "blocks,generation"
# Cases at whose end the parent's blocks have tag 2, or 1 where the parent only looked.
KEPT = {
    "isolation": 2,
    "stopped": 2,
    "traced": 2,
    "closing": 2,
    "deep": 2,
    "hasty": 2,
    "broad": 2,
    "no_descriptors": 2,
    "no_process": 2,
    "no_copier": 2,
    "bare": 2,
    "cloned": 2,
    "namespaces": 2,
    "signals": 2,
    "cancelled": 2,
    "protect": 2,
}
DAEMONS = ("single", "awaited", "double", "closing", "libc", "threads", "growing")


def case(forks, name, heap, megabytes=4, **settings):
    return run([forks, name, megabytes], HEAP=heap, ROOTS=ROOTS, **settings)


def holds(forks, heap, tag):
    """The heap recovers, and all of its blocks have the tag."""
    recovered(heap)
    done = run([forks, "check", tag], HEAP=heap, ROOTS=ROOTS)
    assert succeeds(done).endswith(f"blocks of {tag}\n"), said(done)


@pytest.mark.parametrize("name", ["isolation", "cloned"])
def test_neither_sees_the_other(forks, place, name):
    succeeds(case(forks, name, place, 12))
    holds(forks, place, 2)


@pytest.mark.parametrize("name", [name for name in KEPT if name not in ("isolation", "cloned")])
def test_parent_keeps_its_heap(forks, heap, name):
    succeeds(case(forks, name, heap, 40 if name == "hasty" else 4))
    holds(forks, heap, KEPT[name])


@pytest.mark.parametrize("megabytes", (0, 200))
def test_child_that_stops_itself(forks, heap, megabytes):
    """The parent does not wait for the child, because only the parent will ever continue it."""
    before = time.monotonic()
    succeeds(case(forks, "stopped", heap, megabytes))
    assert time.monotonic() - before < 50
    if megabytes:
        holds(forks, heap, 2)


@pytest.mark.parametrize("name", [*KEPT, "threads", "sparse"])
@pytest.mark.parametrize("how", ("volatile", "glibc"))
def test_the_same_without_a_heap(forks, how, name):
    """The cases are sound: they pass with the C library's own malloc and on volatile memory,
    too."""
    if how == "glibc" and name in ("threads", "sparse"):
        pytest.skip("the case takes long")
    done = run([forks, name, 2], preload=how == "volatile", BACKING="volatile")
    succeeds(done)


@pytest.mark.parametrize("commit", (None, "20ms", "output"))
@pytest.mark.parametrize("fork", ("private", "copy"))
def test_children_that_are_made_beside_fork(forks, heap, commit, fork):
    """By _Fork(), by clone() with other flags, and by the system calls."""
    succeeds(case(forks, "bare", heap, 1, COMMIT=commit, FORK=fork))
    holds(forks, heap, 2)


def test_fork_among_threads_that_allocate(forks, heap):
    succeeds(case(forks, "threads", heap, 2))
    holds(forks, heap, 2)


@pytest.mark.parametrize("how", ("private", "copy", "follow", "volatile"))
def test_forks_of_several_threads_at_once(shm, how):
    """Other threads start and end meanwhile. A child may be made while each of them is in the
    middle of that."""
    storm = compiled("fork_storm.c")
    where = {"BACKING": "volatile"} if how == "volatile" else {"FORK": how, "ROOTS": "items"}
    for i in range(3):
        heap = {} if how == "volatile" else {"HEAP": shm / str(i)}
        done = run([storm], **heap, **where, timeout=60)
        assert succeeds(done) == "10000 items, 0 wrong\n", said(done)


def test_holes_stay_holes(forks, heap):
    succeeds(case(forks, "sparse", heap))


def test_child_outlives_its_parent_and_the_next_owner(forks, place, processes):
    """The next owner of the heap stores to it, empties it and truncates the file. The child sees
    none of that."""
    parent = start([forks, "orphan", 12], HEAP=place, ROOTS=ROOTS)
    processes.append(parent)
    assert parent.stdout.readline() == "orphan\n"
    assert parent.wait(20 * busy()) == -signal.SIGKILL
    holds(forks, place, 2)
    for root in ("blocks", "dropped:blocks", "generation", "dropped:generation"):
        assert recover(place, "--drop-root", root, "--yes").returncode == 0
    for _ in range(2):
        succeeds(run([forks, "sparse"], HEAP=place, RESERVE="lazy"))
    out, err = parent.communicate("go\n", timeout=60 * busy())
    assert (out, err) == ("whole 1\n", "")


def test_parent_killed_with_the_child_running_recovers_without_it(forks, heap):
    done = case(forks, "orphan", heap)
    assert done.returncode == -signal.SIGKILL, said(done)
    holds(forks, heap, 2)


def test_executing_copies_nothing(forks, heap, shm):
    """A thousand children, with a heap of 1 MB and of 64 MB. The difference is less than one fault
    per 20 of the 16,000 pages."""
    small = int(succeeds(case(forks, "exec", heap, 1)))
    large = int(succeeds(case(forks, "exec", shm / "large", 64)))
    assert large - small < 800, (small, large)


def test_no_memory_for_the_child_is_said(forks, heap):
    done = case(forks, "data_limit", heap)
    assert succeeds(done) == "child 125\n"
    child, parent = done.stderr.splitlines()
    assert "no memory for the child's copy" in child and "without its destructors" in parent
    holds(forks, heap, 2)


# ---- copy ----------------------------------------------------------------------------------------


def heap_copies(heap):
    return sorted(path for path in heap.parent.iterdir() if path != heap)


@pytest.mark.check
def test_copy_gives_each_child_a_heap_of_its_own(forks, place):
    done = case(forks, "copies", place, FORK="copy")
    assert done.returncode == -signal.SIGKILL, said(done)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [tag for tag, _ in lines] == ["4", "3", "4", "3"], said(done)
    assert heap_copies(place) == sorted(pathlib.Path(f"{place}.{pid}") for _, pid in lines)
    states = [recover(f"{place}.{pid}", "--check").returncode for _, pid in lines]
    assert states == [1, 0, 1, 1]  # one child ended by itself
    for tag, pid in lines:
        holds(forks, f"{place}.{pid}", int(tag))
    holds(forks, place, 2)


@pytest.mark.parametrize(
    "name", ("isolation", "deep", "broad", "closing", "no_process", "namespaces", "cancelled")
)
def test_copy_isolates_as_well(forks, heap, name):
    succeeds(case(forks, name, heap, 1, FORK="copy"))
    holds(forks, heap, 2)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_copy_without_room_goes_on_in_private_memory(forks, shm):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=44m", "none", shm], check=True)
    try:
        done = case(forks, "isolation", shm / "heap", 24, FORK="copy")
        succeeds(done)
        assert done.stderr.count("\n") == 1 and "No space left" in done.stderr, said(done)
        assert "private memory" in done.stderr
        assert heap_copies(shm / "heap") == []
        holds(forks, shm / "heap", 2)
    finally:
        subprocess.run(["umount", shm], check=True)


def test_copy_killed_on_the_way_leaves_no_half_heap(forks, heap, rng):
    """The child is killed at random instants while it copies. It leaves no heap, or a whole one."""
    left = 0
    for i in range(25):
        for copy in heap_copies(heap):
            shutil.rmtree(copy)
        shutil.rmtree(heap, ignore_errors=True)
        process = start([forks, "copies", 24], HEAP=heap, ROOTS=ROOTS, FORK="copy")
        until = time.monotonic() + 20 * busy()
        while not heap_copies(heap) and process.poll() is None and time.monotonic() < until:
            time.sleep(0.0005)
        time.sleep(rng.random() * (0.03 if i % 2 else 0.4))
        for copy in heap_copies(heap):
            try:
                os.kill(int(copy.name.rpartition(".")[2]), signal.SIGKILL)
            except ProcessLookupError:
                pass
        process.communicate(timeout=60 * busy())
        for copy in heap_copies(heap):
            left += 1
            if (copy / "superblock").exists():
                recovered(copy)
            else:
                assert (copy / "superblock.new").exists() or not any(copy.iterdir())
        recovered(heap)
    assert left


# ---- follow --------------------------------------------------------------------------------------


def serving(file, process):
    """Waits until the daemon serves. Returns its process id."""
    until = time.monotonic() + 60 * busy()
    while not file.exists():
        assert time.monotonic() < until, f"no daemon; status {process.poll()}"
        time.sleep(0.01)
    return int(file.read_text())


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def end(pid, how):
    os.kill(pid, how)
    until = time.monotonic() + 60 * busy()
    while alive(pid):
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize("how", (signal.SIGKILL, signal.SIGTERM))
@pytest.mark.parametrize("kind", DAEMONS)
def test_a_daemon_keeps_its_heap(forks, place, processes, kind, how):
    ready = place.parent / "ready"
    argv = [forks, f"daemon_{kind}", 4, ready]
    process = start(argv, HEAP=place, ROOTS=ROOTS, FORK="follow")
    processes.append(process)
    pid = serving(ready, process)
    try:
        assert process.wait(20 * busy()) == 0
        other = case(forks, "check", place, 5)
        assert other.returncode == 125 and f"in use by process {pid}" in other.stderr, said(other)
    finally:
        end(pid, how)
    assert [path.name for path in place.parent.iterdir() if path.name != "ready"] == ["heap"]
    if kind not in ("threads", "growing"):
        assert recover(place, "--check").returncode == (1 if how == signal.SIGKILL else 0)
    holds(forks, place, 5)


@pytest.mark.parametrize("kind", ("single", "double"))
def test_a_daemon_on_a_default_heap(processes, shm, kind):
    """The heap has no roots, so its first owner would remove it at its end."""
    copy = compiled(FORKS, name="pmtest_forks")
    heap = pathlib.Path(f"/dev/shm/pmalloc-{os.geteuid()}/pmtest_forks")
    process = start([copy, f"daemon_{kind}", 4, shm / "ready"], API, FORK="follow", VERBOSE=1)
    processes.append(process)
    pid = serving(shm / "ready", process)
    try:
        assert process.wait(20 * busy()) == 0
        assert (heap / "superblock").exists()
        assert f"process {pid} has the heap {heap} now" in process.stderr.readline() + "".join(
            process.stderr.readline() for _ in range(2 if kind == "double" else 1)
        )
    finally:
        end(pid, signal.SIGTERM)
    assert not heap.exists()


@pytest.mark.parametrize("name", ("isolation", "deep", "broad", "closing", "stopped", "no_process"))
def test_follow_isolates_as_well(forks, heap, name):
    """The first child has the heap. The parent goes on in memory of its own."""
    succeeds(case(forks, name, heap, 2, FORK="follow"))
    recovered(heap)


def test_who_follows_is_said(forks, heap, shm, processes):
    process = start(
        [forks, "daemon_single", 1, shm / "ready"], HEAP=heap, ROOTS=ROOTS, FORK="follow", VERBOSE=1
    )
    processes.append(process)
    pid = serving(shm / "ready", process)
    end(pid, signal.SIGTERM)
    _, err = process.communicate(timeout=20 * busy())
    assert f"fork: process {pid} has the heap {heap} now" in err
