# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""More of a heap in one file (test_fixed.py): commits, growth, and the bitmaps of a clean close."""

import json
import os
import re
import shutil
import signal
import struct
import sys
import time

import pytest

from conftest import BUILD, ROOT, compiled, recover, refuses, run, said, start, succeeds, tool

sys.path.insert(0, str(ROOT / "tests" / "fuzz"))
from forge import LAYOUT, crc32c  # noqa: E402

MIB = 1 << 20
LIST = BUILD / "apps" / "list"
FORKED = "blocks,generation"
BITMAPS = 7  # numbers of parts
JOURNAL, SUPER = 0, 1


def recover_tool(path, *options):
    return run([tool("pmalloc-recover"), *options, path], preload=False)


@pytest.fixture
def fixed(shm):
    path = shm / "medium"
    succeeds(recover_tool(path, "--make", "--size", "128M", "--journal", "48M"))
    return path


@pytest.fixture(scope="module")
def program():
    return compiled("fixed.c")


def work(path, *arguments, **settings):
    return run([LIST, *arguments], HEAP=path, ROOTS="list_state", **settings)


def operations(path, **settings):
    return int(re.search(r" ops=(\d+) ", succeeds(work(path, "check", **settings)))[1])


def part(path, number):
    """Where it lies, its room, and the word that is its length."""
    with open(path, "rb") as file:
        head = file.read(8192)
    at, room = struct.unpack_from("<QQ", head, 48 + 16 * number)
    return at, room, struct.unpack_from("<Q", head, 4096 + 8 * number)[0]


def pages(path, number):
    return part(path, number)[2] & 0xFFFFFFFF


def flip(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0x10]))


# ---- bitmaps


def exact(path):
    done = recover(path, "--dry-run")
    assert done.returncode == 0, said(done)
    return "not on record" not in done.stdout


def test_bitmaps_of_a_clean_close(fixed):
    succeeds(work(fixed, "run", 3000, 1))
    assert pages(fixed, BITMAPS) > 0 and exact(fixed)
    digest = succeeds(work(fixed, "check", COLLECT="crash"))
    assert succeeds(work(fixed, "run", 3000, 2, COLLECT="crash"))
    assert exact(fixed)
    at, _, _ = part(fixed, BITMAPS)
    flip(fixed, at + 64 + 20)
    assert not exact(fixed)  # damaged ones do not count
    succeeds(work(fixed, "check", COLLECT="crash"))
    assert exact(fixed)
    assert work(fixed, "run", 3000, 3, "-k").returncode == -signal.SIGKILL
    assert not exact(fixed)
    assert digest


# ---- commits


def last_commit(path):
    told = json.loads(succeeds(run([tool("pmalloc-info"), "--json", path], False)))
    return told.get("commit", {}).get("time", 0)


def commits(path, kill_after, *settings, time_between="5ms", until_one=False):
    child = start(
        [LIST, "run", 0, 1, *settings], HEAP=path, ROOTS="list_state", COMMIT=time_between
    )
    child.stdout.readline()
    begun = time.time()
    time.sleep(kill_after)
    while until_one and last_commit(path) < begun:
        assert child.poll() is None
    child.kill()
    return child.communicate()


def test_commits_without_a_journal_say_what_to_do(shm):
    path = shm / "medium"
    succeeds(recover_tool(path, "--make", "--size", "16M"))
    refuses(work(path, "run", 10, 1, COMMIT="10ms"), "has no room for a journal", "--journal")
    succeeds(work(path, "run", 10, 1))
    for size in ("100K", "9M"):
        done = recover_tool(path, "--make", "--force", "--yes", "--size", "16M", "--journal", size)
        assert done.returncode == 8 and "--journal takes from 1 MiB to half" in done.stderr


def test_commits_and_kills(fixed):
    """In turn with and without PMALLOC_COMMIT. What an ended lap has left in the journal must not
    come back over what was stored later."""
    succeeds(work(fixed, "run", 100, 1))
    done = 100
    for i in range(10):
        _, err = commits(fixed, 0.02 * (i % 4))
        assert "failed" not in err, err
        if i % 3 == 0:
            assert recover(fixed).returncode == 0
        now = operations(fixed, **({"COMMIT": "5ms"} if i % 2 else {}))
        assert now >= done, (i, now, done)
        done = now
        if i % 2 == 0:
            killed = work(fixed, "run", 400, 50 + i, "-k")
            assert killed.returncode == -signal.SIGKILL, said(killed)
            now = operations(fixed)
            assert now >= done + 400
            done = now
    assert done >= 2000
    assert recover(fixed, "--check").returncode == 0


def test_a_commit_is_what_survives(fixed):
    succeeds(work(fixed, "run", 1000, 1, COMMIT="1h"))
    before = succeeds(work(fixed, "check"))
    killed = work(fixed, "run", 1000, 2, "-k", COMMIT="1h")
    assert killed.returncode == -signal.SIGKILL, said(killed)
    assert succeeds(work(fixed, "check")) == before


def test_looking_at_a_commit_changes_nothing(fixed):
    commits(fixed, 0.1)
    assert pages(fixed, JOURNAL) > 0
    before = fixed.read_bytes()
    done = recover(fixed, "--check")
    assert done.returncode == 1, said(done)
    assert fixed.read_bytes() == before
    assert recover(fixed).returncode == 0
    assert pages(fixed, JOURNAL) == 0


def test_a_commit_that_does_not_fit(shm):
    path = shm / "medium"
    succeeds(recover_tool(path, "--make", "--size", "96M", "--journal", "1M"))
    succeeds(work(path, "run", 100, 1))
    done = work(path, "run", 3000, 2, COMMIT="1h")
    assert "has failed: No space" in done.stderr and "--journal" in done.stderr, said(done)
    assert recover(path).returncode == 0
    assert 100 <= operations(path) < 3100  # one that PMAlloc made early may have come to be


@pytest.mark.parametrize("junk", [False, True])
def test_what_must_be_zero_under_commits(program, shm, junk):
    path = shm / "medium"
    path.write_bytes((b"\xa5" if junk else b"\0") * (256 * MIB))
    force = ["--force", "--yes"] if junk else []
    succeeds(recover_tool(path, "--make", "--journal", "100M", *force))
    for settings in ({}, {"COMMIT": "5ms"}, {"COMMIT": "5ms"}, {}):
        succeeds(run([program, "zeroes"], HEAP=path, ROOTS="kept", **settings))


def test_zeroes_that_are_older_than_a_commit(program, shm):
    """A page of zeroes is no page of the medium's, where the heap has not been yet."""
    path = shm / "medium"
    path.write_bytes(b"\xa5" * (96 * MIB))
    succeeds(recover_tool(path, "--make", "--journal", "8M", "--force", "--yes"))
    succeeds(run([program, "later"], HEAP=path, ROOTS="kept", COMMIT="api"))


@pytest.mark.parametrize("case", ["isolation", "stopped"])
def test_forks_under_commits(forks, fixed, case):
    succeeds(run([forks, case, 20], HEAP=fixed, ROOTS=FORKED, COMMIT="10ms"))
    succeeds(run([forks, "check", 2], HEAP=fixed, ROOTS=FORKED))


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
def test_commits_change_bytes_alone(fixed, shm):
    trace = shm / "trace"
    calls = "ftruncate,truncate,fallocate,rename,renameat,renameat2,unlink,unlinkat"
    watch = ["strace", "-f", "-y", "-o", trace, "-e", f"trace={calls},pwrite64", "-E"]
    preload = f"LD_PRELOAD={BUILD / 'libpmalloc_preload.so'}"
    argv = [*watch, preload, LIST, "run", 3000, 1]
    for commit in ("10ms", "1h"):
        succeeds(run(argv, preload=False, HEAP=fixed, ROOTS="list_state", COMMIT=commit))
        text = trace.read_text()
        assert "pwrite64" in text
        lines = [line for line in text.splitlines() if str(fixed) in line]
        others = [line for line in lines if not re.match(r"\d+ +(pwrite64|<\.\.\.)", line)]
        assert not others


# ---- growth


def allocate(path, size):
    with open(path, "r+b") as file:
        os.posix_fallocate(file.fileno(), 0, size)


def test_growth(program, fixed):
    filled = int(succeeds(run([program, "fill"], HEAP=fixed, ROOTS="kept")).split()[0])
    allocate(fixed, 192 * MIB)
    grown = succeeds(recover_tool(fixed, "--grow"))
    assert "grown in this file" in grown
    assert recover(fixed, "--check").returncode == 0
    kept = succeeds(run([program, "check"], HEAP=fixed, ROOTS="kept"))
    assert int(kept.split()[0]) == filled
    assert "as large as before" in succeeds(recover_tool(fixed, "--grow"))
    succeeds(run([program, "fill"], HEAP=fixed, ROOTS="kept"))
    for root in ("kept", "dropped:kept"):
        assert recover(fixed, "--drop-root", root, "--yes").returncode == 0
    more = int(succeeds(run([program, "fill"], HEAP=fixed, ROOTS="kept")).split()[0])
    assert more >= filled + 60
    os.truncate(fixed, 128 * MIB)
    done = recover(fixed, "--check")
    assert done.returncode == 4 and "was it cut?" in done.stderr, said(done)
    done = recover_tool(fixed, "--grow")
    assert done.returncode == 4 and "was it cut?" in done.stderr, said(done)


def test_growth_that_is_refused(fixed, shm):
    succeeds(work(fixed, "run", 1000, 1))
    digest = succeeds(work(fixed, "check"))
    allocate(fixed, 160 * MIB)
    flip(fixed, 150 * MIB)
    before = fixed.read_bytes()
    for options, what in (
        ((), f"its byte {150 * MIB} is not zero"),
        (("--size", "64M"), "larger, not smaller"),
        (("--size", "1G"), "less than the"),
    ):
        done = recover_tool(fixed, "--grow", *options)
        assert done.returncode == 8 and what in done.stderr, said(done)
        assert len(done.stderr.splitlines()) == 1
    assert fixed.read_bytes() == before
    succeeds(recover_tool(fixed, "--grow", "--force"))
    assert fixed.read_bytes()[150 * MIB] == 0
    assert succeeds(work(fixed, "check")) == digest
    os.truncate(fixed, 1024 * MIB)
    done = recover_tool(fixed, "--grow")
    assert done.returncode == 8 and "allocate it" in done.stderr, said(done)
    done = recover_tool(fixed, "--grow", "--force")
    assert done.returncode == 8 and "has metadata for" in done.stderr, said(done)
    done = recover_tool(shm / "none", "--grow")
    assert done.returncode == 8 and "none" in done.stderr, said(done)
    child = start([LIST, "run", 0, 1, "-s"], HEAP=fixed, ROOTS="list_state")
    assert child.stdout.readline().startswith(("ready", "ok "))
    done = recover_tool(fixed, "--grow")
    child.kill()
    child.communicate()
    assert done.returncode == 8 and "in use" in done.stderr, said(done)


def of_another_build(path):
    """Gives the heap a feature that no build knows yet. The checksum says that it is whole."""
    at = part(path, SUPER)[0]
    with open(path, "r+b") as file:
        file.seek(at)
        page = bytearray(file.read(4092))
        page[LAYOUT.offset("pm_superblock", "incompat") + 7] |= 0x40
        file.seek(at)
        file.write(page + struct.pack("<I", crc32c(page)))


def refused(path, *options, status=8, what="made by another build of PMAlloc: its set of features"):
    before = path.read_bytes()
    done = recover_tool(path, *options)
    assert done.returncode == status and what in done.stderr, said(done)
    assert done.stderr.startswith(f"pmalloc-recover: {path}"), said(done)
    assert len(done.stderr.splitlines()) == 1 and done.stdout == "", said(done)
    assert path.read_bytes() == before, "it was changed"
    return done.stderr


def test_no_growth_of_another_build_s_heap(fixed, shm):
    succeeds(work(fixed, "run", 1000, 1))
    of_another_build(fixed)
    allocate(fixed, 160 * MIB)
    for options in (("--grow",), ("--grow", "--force"), ("--grow", "--size", "144M")):
        assert "nothing was changed: use the PMAlloc that made it" in refused(fixed, *options)
    refused(fixed, "--drop-root", "list_state")
    before = fixed.read_bytes()
    backup = run([tool("pmalloc-backup"), fixed, shm / "back"], preload=False)
    assert backup.returncode == 8 and "another build" in backup.stderr, said(backup)
    assert fixed.read_bytes() == before and not (shm / "back").exists()


def test_no_growth_of_a_heap_whose_superblock_is_damaged(fixed):
    """Of a heap under commits the journal may hold the page that is whole."""
    allocate(fixed, 160 * MIB)
    at = part(fixed, SUPER)[0] + LAYOUT.offset("pm_superblock", "created")
    flip(fixed, at)
    refused(fixed, "--grow", status=4, what="superblock: checksum is wrong; restore it")
    flip(fixed, at)
    commits(fixed, 0.1, until_one=True)
    assert pages(fixed, JOURNAL) > 0
    flip(fixed, at)
    refused(fixed, "--grow", what="recover the heap by `pmalloc-recover`")
    flip(fixed, at)
    done = operations(fixed)
    succeeds(recover_tool(fixed, "--grow"))
    assert operations(fixed) == done


def test_the_journal_of_another_build_s_heap_stays(fixed):
    """Applying it would change the heap, which is refused after that."""
    commits(fixed, 0.1, until_one=True)
    assert pages(fixed, JOURNAL) > 0
    of_another_build(fixed)
    for options in ((), ("--drop-root", "list_state"), ("--check",), ("--dry-run",)):
        refused(fixed, *options)
    before = fixed.read_bytes()
    refuses(work(fixed, "check"), "another build of PMAlloc")
    assert fixed.read_bytes() == before


def test_a_size_that_is_damaged(fixed):
    allocate(fixed, 160 * MIB)
    succeeds(recover_tool(fixed, "--grow"))
    flip(fixed, 4096 + 8 * 16)
    done = recover(fixed, "--check")
    assert done.returncode == 4 and "its size" in done.stderr, said(done)
    done = recover_tool(fixed, "--grow")
    assert done.returncode == 4, said(done)


# ---- a heap that comes from a directory


@pytest.mark.parametrize("dirty", [False, True])
def test_a_heap_from_a_directory(shm, dirty):
    path, folder = shm / "medium", shm / "heap"
    succeeds(work(folder, "run", 3000, 1))
    if dirty:
        assert work(folder, "run", 500, 2, "-k").returncode == -signal.SIGKILL
    done = recover_tool(path, "--make", "--size", "16M", "--from", folder)
    assert done.returncode == 8 and "give more space" in done.stderr, said(done)
    assert not path.exists()
    path.write_bytes(b"\xa5" * (96 * MIB))
    succeeds(recover_tool(path, "--make", "--force", "--yes", "--from", folder))
    assert recover(path, "--check").returncode == (1 if dirty else 0)
    assert succeeds(work(path, "check")) == succeeds(work(folder, "check"))
    succeeds(work(path, "run", 3000, 3))
    succeeds(run([tool("pmalloc-backup"), path, shm / "back"], preload=False))
    other = shm / "other"
    succeeds(recover_tool(other, "--make", "--size", "96M", "--from", shm / "back"))
    assert succeeds(work(other, "check")) == succeeds(work(path, "check"))


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
def test_a_making_over_another_heap(shm):
    """Killed at each munmap: there is the old heap, none, or the new one, never a mixture."""
    path, folder, old = shm / "medium", shm / "heap", shm / "old"
    succeeds(recover_tool(old, "--make", "--size", "32M"))
    succeeds(work(old, "run", 1000, 1))
    succeeds(work(folder, "run", 2000, 2))
    digests = {succeeds(work(old, "check")): "old", succeeds(work(folder, "check")): "new"}
    watch = ["strace", "-qq", "-o", "/dev/null", "-e", "trace=munmap"]
    command = [tool("pmalloc-recover"), "--make", "--force", "--yes", "--from", folder, path]
    seen = set()
    for when in range(1, 200):
        shutil.copy(old, path)
        inject = ["-e", f"inject=munmap:signal=KILL:when={when}"]
        done = run([*watch, *inject, *command], preload=False)
        if recover(path, "--check").returncode == 8:
            refuses(work(path, "check"), "holds no heap")
            seen.add("none")
        else:
            seen.add(digests[succeeds(work(path, "check"))])
        if done.returncode == 0:
            break
    assert done.returncode == 0 and seen == {"old", "none", "new"}, (done, seen)


def test_what_cannot_be_the_source(fixed, shm):
    succeeds(work(fixed, "run", 100, 1))
    new = shm / "new"
    done = recover_tool(new, "--make", "--size", "64M", "--from", fixed)
    assert done.returncode == 8 and "takes a heap in a directory" in done.stderr, said(done)
    done = recover_tool(new, "--make", "--size", "64M", "--from", shm / "none")
    assert done.returncode == 8 and len(done.stderr.splitlines()) == 1, said(done)
    assert not new.exists()
