# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Heaps in several directories, PMALLOC_HEAP=DIR:DIR. The data files take turns; a directory that
is missing, another heap's or at another's place is an error that changes nothing."""

import json
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

import pytest

from conftest import (
    BUILD,
    compiled,
    environment,
    fingerprint,
    recover,
    recovered,
    refuses,
    room,
    run,
    said,
    succeeds,
    tmpfs,
    tool,
)

BLOCKS = "blocks,generation"
SMALL = {"SHARD": "8M"}


@pytest.fixture
def places(shm):
    return [shm / name for name in ("first", "second", "third")]


def named(places):
    return ":".join(map(str, places))


def build(forks, places, **settings):
    done = run([forks, "isolation", 40], HEAP=named(places), ROOTS=BLOCKS, **SMALL, **settings)
    succeeds(done)


def holds(forks, heap, tag=2, **settings):
    done = run([forks, "check", tag], HEAP=heap, ROOTS=BLOCKS, **settings)
    assert succeeds(done).endswith(f"blocks of {tag}\n"), said(done)


def names(place):
    return {path.name for path in place.iterdir()}


@pytest.mark.check
def test_data_files_take_turns(forks, places):
    build(forks, places)
    assert {"superblock", "heap.0", "heap.3", "booklog.3", "volume.1"} < names(places[0])
    assert {"volume", "heap.1", "slabs.1", "booklog.1", "heap.4"} < names(places[1])
    assert {"volume", "heap.2"} < names(places[2])
    assert "heap.1" not in names(places[0]) and "heap.0" not in names(places[1])
    for heap in (named(places), places[0], named(places[:2])):
        holds(forks, heap)
        holds(forks, heap, COLLECT="crash")


def test_the_tools_need_the_first_only(forks, places):
    build(forks, places)
    for heap in (places[0], named(places)):
        assert recover(heap, "--check").returncode == 0
        info = json.loads(succeeds(run([tool("pmalloc-info"), "--json", heap], preload=False)))
        assert {"heap.0", "volume.1/heap.1", "volume.2/heap.2", "heap.3"} < set(info["files"])
        assert info["files"]["volume.1/heap.1"]["length"] == 8 << 20
        medium = run([tool("pmalloc-info"), "--medium", heap], preload=False)
        assert "volume.1/slabs.1" in succeeds(medium)
    assert recovered(places[0])["leaked_objects"] == 0
    holds(forks, places[0])


def test_another_directory_comes_later(forks, places):
    succeeds(run([forks, "isolation", 4], HEAP=places[0], ROOTS=BLOCKS))
    holds(forks, places[0])
    build(forks, places[:2])
    assert "heap.1" in names(places[1])
    holds(forks, named(places[:2]))


def test_a_missing_directory(forks, places, shm):
    build(forks, places)
    moved = shm / "moved"
    places[1].rename(moved)
    before = fingerprint(places[0])
    text = ("second, which cannot be opened", "is its device mounted? If ", "ln -sfn DIR ")
    refuses(run([forks, "check", 2], HEAP=named(places), ROOTS=BLOCKS), *text)
    refuses(run([forks, "check", 2], HEAP=places[0], ROOTS=BLOCKS), *text)
    assert recover(places[0], "--check").returncode == 8
    assert fingerprint(places[0]) == before and not places[1].exists()
    link = places[0] / "volume.1"
    link.unlink()
    refuses(run([forks, "check", 2], HEAP=places[0], ROOTS=BLOCKS), "volume.1")
    link.symlink_to(moved)
    holds(forks, places[0])
    holds(forks, named([places[0], moved, places[2]]))


def test_swapped_directories(forks, places):
    build(forks, places)
    before = [fingerprint(place) for place in places]
    swapped = named([places[0], places[2], places[1]])
    refuses(run([forks, "check", 2], HEAP=swapped, ROOTS=BLOCKS), "is named as directory number 2")
    for number, place in ((1, places[2]), (2, places[1])):
        (places[0] / f"volume.{number}").unlink()
        (places[0] / f"volume.{number}").symlink_to(place)
    done = run([forks, "check", 2], HEAP=places[0], ROOTS=BLOCKS)
    refuses(done, "third is directory number 3 of the heap", "stands at place 2;")
    assert [fingerprint(place) for place in places[1:]] == before[1:]


def test_directories_of_others(forks, places, shm):
    build(forks, places)
    before = [fingerprint(place) for place in places]
    done = run([forks, "isolation", 4], HEAP=named([shm / "new", places[1]]), ROOTS=BLOCKS)
    refuses(done, "second belongs to another heap")
    refuses(run([forks, "check", 2], HEAP=places[1]), "is a further directory of a heap")
    (shm / "full").mkdir()
    (shm / "full" / "letter").touch()
    done = run([forks, "isolation", 4], HEAP=named([shm / "new", shm / "full"]), ROOTS=BLOCKS)
    refuses(done, "not empty (it holds 'letter')")
    assert [fingerprint(place) for place in places] == before
    assert names(shm / "full") == {"letter"}


@pytest.mark.parametrize("file", ("volume", "heap.1", "booklog.1"))
def test_damage_there(forks, places, file):
    build(forks, places)
    (places[1] / file).unlink()
    before = [fingerprint(place) for place in places]
    done = recover(places[0], "--check")
    assert done.returncode == 4, said(done)
    assert [fingerprint(place) for place in places] == before


def test_few_descriptors_are_no_damage(forks, places):
    """Whatever the number, one line tells what to raise, or all is well."""
    build(forks, places[:2])
    before = [fingerprint(place) for place in places[:2]]
    check = [tool("pmalloc-recover"), "--check", places[0]]
    for number in range(4, 60):
        limited = ["sh", "-c", 'ulimit -n $0; exec "$@"', number, *check]
        done = run(limited, preload=False)
        if done.returncode == 0:
            break
        assert done.returncode == 8 and "raise `ulimit -n`" in done.stderr, said(done)
        assert done.stderr.count("\n") == 1, said(done)
    assert number > 12 and done.returncode == 0, said(done)
    assert [fingerprint(place) for place in places[:2]] == before


def test_another_medium(forks, places, tmp_path):
    """tmp_path is a disk's, the other directory tmpfs. Nothing stays in either."""
    medium = run([tool("pmalloc-info"), "--medium", "--json", tmp_path], preload=False)
    if json.loads(succeeds(medium))["file_system"] == "tmpfs":
        pytest.skip("all directories here are on tmpfs")
    (tmp_path / "empty").mkdir(mode=0o700)
    for other in (tmp_path / "empty", tmp_path / "new"):
        done = run([forks, "isolation", 4], HEAP=named([places[0], other]), ROOTS=BLOCKS)
        refuses(done, "must survive the same failures; name directories of one kind")
    assert names(tmp_path) == {"empty"} and not names(tmp_path / "empty")
    assert not places[0].exists()


def test_a_read_only_directory(forks, places):
    """An error with a remedy, and the heap can still be read."""
    with tmpfs(places[1], 10000) as other:
        heaps = [places[0], other / "heap"]
        build(forks, heaps)
        before = [fingerprint(place) for place in heaps]
        subprocess.run(["mount", "-o", "remount,ro", other], check=True)
        done = run([forks, "check", 2], HEAP=places[0], ROOTS=BLOCKS)
        refuses(done, "volume.1/heap.1: Read-only file system; mount it writable")
        done = run([forks, "isolation", 4], HEAP=named([places[2], other / "new"]))
        refuses(done, "cannot make this directory of the heap: Read-only file system")
        holds(forks, places[0], OPEN="private")
        assert [fingerprint(place) for place in heaps] == before and not places[2].exists()


def test_a_full_directory(places):
    """A full file system in one directory keeps nobody from the space in the other one: there more
    data files are made, although it is not their turn."""
    program = compiled("limits.c", name="pmtest_limits")
    with tmpfs(places[0], 12000) as first, tmpfs(places[1], 1500) as second:
        heaps = [first / "heap", second / "heap"]
        done = run([program, "grow", 4000], HEAP=named(heaps), ROOTS="blocks", **SMALL)
        assert done.returncode == -9, said(done)
        assert room(first) + room(second) < 1 << 20, said(done)
        assert {"heap.4", "heap.5", "heap.6"} <= names(heaps[0])
        (second / "filler").write_bytes(bytes(room(second)))
        count = succeeds(run([program, "count"], HEAP=heaps[0], ROOTS="blocks", **SMALL))
        assert count == done.stdout


@pytest.mark.parametrize("how", ("private", "copy"))
def test_forks(forks, places, how):
    build(forks, places, FORK=how)
    holds(forks, named(places))


@pytest.mark.parametrize("settings", (SMALL, {"TOPOLOGY": "2x2/20"}), ids=("turns", "nodes"))
def test_kills(workload, processes, rng, places, settings):
    """A heap that two nodes have written also opens where there is one."""
    work = workload("tree")
    work.heap = named(places)
    for round in range(4):
        process = work.start("run", 0, rng.randrange(1 << 30), "-t", 2, **settings)
        processes.append(process)
        while "ready" not in process.stdout.readline():
            assert process.poll() is None, process.stderr.read()
        time.sleep(rng.uniform(0, 0.2))
        process.kill()
        assert process.wait() == -9, process.stderr.read()
        work.check("run", 3000, rng.randrange(1 << 30), **(settings if round % 2 else {}))
    assert "heap.1" in names(places[1])
    assert recover(places[0], "--check").returncode == 0


# ---- a cut while directories are made ------------------------------------------------------------


def killed_at(forks, places, call, count):
    """Makes a heap, and kills at the start of its `count`th such system call. False: there are not
    so many."""
    inject = f"inject={call}:signal=KILL:when={count}"
    argv = ["strace", "-f", "-o", "/dev/null", "-e", f"trace={call}", "-e", inject]
    env = [f"{k}={v}" for k, v in environment(True, HEAP=named(places), ROOTS=BLOCKS).items()
           if k == "LD_PRELOAD" or k.startswith("PMALLOC_")]
    done = run([*argv, "env", *env, forks, "isolation", 2], preload=False)
    assert done.returncode in (0, -signal.SIGKILL, 128 + signal.SIGKILL), said(done)
    return done.returncode != 0


@pytest.fixture
def disk():
    folder = pathlib.Path(tempfile.mkdtemp(dir=BUILD))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
@pytest.mark.parametrize("call", ("mkdir", "pwrite64", "symlinkat", "fsync"))
def test_a_start_after_a_cut_makes_the_rest(forks, disk, call):
    """Killed at each such call of a start that makes a heap of three directories."""
    killed = 0
    while True:
        folder = disk / f"{call}.{killed}"
        folder.mkdir()
        some = [folder / name for name in ("first", "second", "third")]
        if not killed_at(forks, some, call, killed + 1):
            break
        made = (some[0] / "volume.2").is_symlink()
        succeeds(run([forks, "isolation", 2], HEAP=named(some), ROOTS=BLOCKS))
        assert all((place / "volume").stat().st_size == 64 for place in some[1:])
        shutil.rmtree(folder)
        killed += 1
        if made:
            break
    assert killed >= 2


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
def test_a_torn_volume_is_made_anew(forks, places):
    """Of the file `volume` a power failure may leave any part; nothing else is overwritten."""
    assert killed_at(forks, places, "symlinkat", 1)
    volume = places[1] / "volume"
    whole = volume.read_bytes()
    assert len(whole) == 64 and "volume.1" not in names(places[0])
    zeroes = bytes(64)
    for torn in (b"", whole[:1], whole[:40], whole[:63], zeroes, zeroes[:24] + whole[24:]):
        volume.write_bytes(torn)
        succeeds(run([forks, "isolation", 2], HEAP=named(places), ROOTS=BLOCKS))
        assert volume.read_bytes() == whole
        (places[0] / "volume.1").unlink()
        (places[0] / "volume.2").unlink(missing_ok=True)
    for other in (b"mine", whole[:8] + b"x" * 56, b"x" + whole[1:]):
        volume.write_bytes(other)
        refuses(run([forks, "isolation", 2], HEAP=named(places), ROOTS=BLOCKS), "not empty")
        assert volume.read_bytes() == other
