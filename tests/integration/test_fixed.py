# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""A heap in one file of a fixed size (`pmalloc-recover --make`): what a directory does, it does.
Its file is never made longer or shorter, punched, renamed or unlinked."""

import os
import re
import shutil
import signal
import struct
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
    tmpfs,
    tool,
)
from test_fork import serving

MIB = 1 << 20
LIST = BUILD / "apps" / "list"
FORKED = "blocks,generation"


def make(path, *options):
    return run([tool("pmalloc-recover"), "--make", *options, path], preload=False)


@pytest.fixture
def fixed(shm):
    path = shm / "medium"
    succeeds(make(path, "--size", "96M"))
    return path


@pytest.fixture(scope="module")
def program():
    return compiled("fixed.c")


def work(path, *arguments, **settings):
    return run([LIST, *arguments], HEAP=path, ROOTS="list_state", **settings)


def keeps(program, path, what, **settings):
    return run([program, what], HEAP=path, ROOTS="kept", **settings)


def state(path):
    return recover(path, "--check").returncode


# ---- making


def test_a_file_that_is_made(shm):
    path = shm / "new"
    done = make(path, "--size", "16M")
    assert "12.0 MiB for data, 4.0 MiB for metadata" in succeeds(done)
    assert path.stat().st_size == 16 * MIB and path.stat().st_mode & 0o777 == 0o600
    assert state(path) == 1  # empty, and not closed by anybody


@pytest.mark.parametrize("how", ["file", "--size"])
def test_the_least_size(shm, how):
    """Programs can use 16 MiB, be killed and recovered; one page less is refused."""
    least, path = 16 * MIB, shm / "least"
    path.write_bytes(bytes(least - 4096 if how == "file" else 2 * least))
    options = ("--size", str(least - 4096)) if how == "--size" else ()
    done = make(path, *options)
    assert done.returncode == 8 and f"{least - 4096} bytes are too few" in done.stderr, said(done)
    assert not any(path.read_bytes())
    path.write_bytes(bytes(least if how == "file" else 2 * least))
    succeeds(make(path, *(("--size", str(least)) if how == "--size" else ())))
    assert work(path, "run", 300, 1, "-k").returncode == -signal.SIGKILL
    assert recovered(path)["live_objects"] > 50
    assert not any(path.read_bytes()[least:])
    with open(path, "r+b") as file:
        file.truncate(least - 4096)
    refuses(work(path, "check"), str(path))


def test_what_is_there_is_not_overwritten(fixed, shm):
    before = fixed.read_bytes()
    done = make(fixed)
    assert done.returncode == 8 and "holds a heap already" in done.stderr, said(done)
    other = shm / "other"
    other.write_bytes(bytes(9 * MIB + 5) + b"x" + bytes(23 * MIB))
    done = make(other)
    assert done.returncode == 8 and f"its byte {9 * MIB + 5} is not zero" in done.stderr, said(done)
    assert other.read_bytes()[9 * MIB + 5 : 9 * MIB + 6] == b"x"
    assert fixed.read_bytes() == before


def test_a_making_that_is_interrupted(fixed):
    """The magic is stored last. Before it there is no heap, and what was written is no zeroes."""
    with open(fixed, "r+b") as file:
        file.write(bytes(8))
    done = recover(fixed, "--check")
    assert done.returncode == 8 and "it holds no heap" in done.stderr, said(done)
    done = make(fixed)
    assert done.returncode == 8 and "its byte 8 is not zero" in done.stderr, said(done)
    succeeds(make(fixed, "--force", "--yes"))
    succeeds(work(fixed, "run", 1000, 1))


@pytest.mark.parametrize(
    ("name", "options", "part"),
    [
        ("none", (), "does not exist"),
        ("holes", (), "space for 0 only"),
        ("small", (), "too few for a heap"),
        ("zeroes", ("--size", "1G"), "less than the"),
        ("folder", (), "is a directory"),
        ("pipe", (), "neither a file nor"),
        ("link", (), "is a symbolic link"),
        ("others", (), "chmod go-w"),
        ("empty", (), "fallocate -l SIZE"),
        ("/dev/null", (), "no DAX device"),
        ("/dev/dax99.7", ("--size", "16M"), "no such device"),
    ],
)
def test_what_is_no_medium_is_refused(shm, name, options, part):
    (shm / "holes").touch()
    os.truncate(shm / "holes", 32 * MIB)
    (shm / "small").write_bytes(bytes(MIB))
    (shm / "zeroes").write_bytes(bytes(32 * MIB))
    (shm / "folder").mkdir()
    os.mkfifo(shm / "pipe")
    (shm / "link").symlink_to(shm / "zeroes")
    (shm / "others").write_bytes(bytes(16 * MIB))
    (shm / "others").chmod(0o666)
    (shm / "empty").touch()
    done = make(shm / name, *options)
    assert done.returncode == 8 and part in done.stderr, said(done)
    assert len(done.stderr.splitlines()) == 1
    assert not (shm / "none").exists()


def test_without_space_for_a_file_with_holes(shm):
    with tmpfs(shm / "small", 256) as small:
        (small / "medium").touch()
        os.truncate(small / "medium", 16 * MIB)
        done = make(small / "medium", "--force", "--yes")
    assert done.returncode == 8 and "No space left" in done.stderr, said(done)


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("/dev/null", "is no DAX device"),
        ("/dev/dax99.7", "there is no such device"),
        ("heap:/dev/dax99.7", "there is no such device"),
    ],
)
def test_devices_that_are_none(shm, path, what):
    """No directory takes the name of a missing device: the heap would lie in memory."""
    heap = path.replace("heap", str(shm / "heap"))
    refuses(run([LIST, "run", 10, 1], HEAP=heap, ROOTS="list_state"), what)
    assert not os.path.exists("/dev/dax99.7")


def test_a_file_without_a_heap_is_refused(shm):
    path = shm / "file"
    path.write_bytes(bytes(32 * MIB))
    refuses(run(["true"], HEAP=path, ROOTS="x"), "holds no heap", "--make")
    assert path.read_bytes() == bytes(32 * MIB)
    path.write_bytes(bytes(MIB))
    refuses(run(["true"], HEAP=path, ROOTS="x"), "too few for a heap", "was it cut?")


# ---- a program's data


@pytest.mark.check
def test_data_come_back(fixed):
    for seed in (1, 2):
        succeeds(work(fixed, "run", 3000, seed))
        assert state(fixed) == 0
        killed = work(fixed, "run", 3000, seed + 10, "-k")
        assert killed.returncode == -signal.SIGKILL, said(killed)
        before = fixed.read_bytes()
        assert state(fixed) == 1
        assert recover(fixed, "--dry-run").returncode == 0
        assert fixed.read_bytes() == before
    figures = recovered(fixed)
    assert figures["roots"] == 1 and figures["live_objects"] > 1000
    assert state(fixed) == 0
    assert " keys=" in succeeds(work(fixed, "check"))


def test_killed_at_any_time(fixed):
    for _ in range(12):
        child = start([LIST, "run", 0, 5], HEAP=fixed, ROOTS="list_state")
        assert child.stdout.readline().startswith(("ready", "ok "))
        time.sleep(0.02)
        child.kill()
        child.communicate()
    succeeds(work(fixed, "check"))
    assert recovered(fixed)["result"] in ("clean", "recovered")


def test_a_heap_without_roots_is_emptied(fixed):
    succeeds(run([LIST, "run", 2000, 1], HEAP=fixed))
    assert state(fixed) == 0
    assert recovered(fixed)["live_objects"] == 0
    succeeds(work(fixed, "run", 2000, 1))
    succeeds(work(fixed, "check"))


# ---- space


def test_a_full_one(program, fixed):
    size = fixed.stat().st_size
    filled = succeeds(keeps(program, fixed, "fill"))
    assert int(filled.split()[0]) > 80
    assert state(fixed) == 0
    assert succeeds(keeps(program, fixed, "check")) == filled
    assert succeeds(keeps(program, fixed, "more", OPEN="private")) == filled
    assert succeeds(keeps(program, fixed, "child")) == filled
    succeeds(keeps(program, fixed, "fill"))
    assert fixed.stat().st_size == size


def test_what_was_freed_is_there_again(program, fixed):
    """For blocks of all sizes, although the heap cannot grow and has huge blocks."""
    filled = int(succeeds(keeps(program, fixed, "fill")).split()[0])
    left = int(succeeds(keeps(program, fixed, "thin")).split()[0])
    assert left < filled * 2 // 3
    again = int(succeeds(keeps(program, fixed, "fill")).split()[0])
    assert again > filled * 9 // 10


@pytest.mark.parametrize("junk", [False, True])
def test_what_must_be_zero(program, shm, junk):
    path = shm / "medium"
    path.write_bytes((b"\xa5" if junk else b"\0") * (128 * MIB))
    succeeds(make(path, *(["--force", "--yes"] if junk else [])))
    for persist in ("none", "line"):  # on DAX, stores past the caches
        succeeds(keeps(program, path, "zeroes", PERSIST=persist))


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
def test_no_call_changes_the_file(program, fixed, shm):
    trace = shm / "trace"
    calls = (
        "ftruncate,truncate,fallocate,rename,renameat,renameat2,unlink,unlinkat,madvise,pwrite64,"
        "write,copy_file_range"
    )
    watch = ["strace", "-f", "-y", "-o", trace, "-e", "trace=" + calls, "-E"]
    preload = f"LD_PRELOAD={BUILD / 'libpmalloc_preload.so'}"
    for argv in (
        [program, "zeroes"],
        [program, "fill"],
        [program, "check"],
        [LIST, "run", 3000, 1],
    ):
        root = "kept" if argv[0] == program else "list_state"
        done = run([*watch, preload, *argv], preload=False, HEAP=fixed, ROOTS=root)
        succeeds(done)
        text = trace.read_text()
        assert "madvise" in text
        assert str(fixed) not in text and "MADV_REMOVE" not in text, text
        if argv[-1] == "check":
            succeeds(recover(fixed, "--drop-root", "kept", "--yes"))
            succeeds(recover(fixed, "--drop-root", "dropped:kept", "--yes"))
    done = run([*watch, "X=1", tool("pmalloc-recover"), fixed], preload=False)
    succeeds(done)
    assert str(fixed) not in trace.read_text()


# ---- who has it


def test_a_second_process_is_refused(fixed, shm):
    other = shm / "other-name"
    os.link(fixed, other)
    child = start([LIST, "run", 0, 1, "-s"], HEAP=fixed, ROOTS="list_state")
    assert child.stdout.readline() == "ready\n"
    for path in (fixed, other):
        refuses(work(path, "check"), f"is in use by process {child.pid}")
        done = recover(path)
        assert done.returncode == 8 and f"in use by process {child.pid}" in done.stderr
    done = make(other, "--force", "--yes")
    assert done.returncode == 8 and "in use" in done.stderr
    waiting = start([LIST, "check"], HEAP=other, ROOTS="list_state", BUSY="wait")
    time.sleep(0.1)
    assert waiting.poll() is None
    child.kill()
    child.communicate()
    out, err = waiting.communicate(timeout=60 * busy())
    assert waiting.returncode == 0, (out, err)


def test_others_files_are_refused(fixed):
    fixed.chmod(0o666)
    refuses(work(fixed, "check"), "can be written by others", "chmod go-w")


# ---- other settings


@pytest.mark.parametrize("case", ["isolation", "stopped"])
def test_forks(forks, fixed, case):
    succeeds(run([forks, case, 20], HEAP=fixed, ROOTS=FORKED))
    succeeds(run([forks, "check", 2], HEAP=fixed, ROOTS=FORKED))


def test_child_outlives_its_parent_and_the_next_owner(forks, fixed):
    parent = start([forks, "orphan", 12], HEAP=fixed, ROOTS=FORKED)
    assert parent.stdout.readline() == "orphan\n"
    assert parent.wait(20 * busy()) == -signal.SIGKILL
    succeeds(run([forks, "check", 2], HEAP=fixed, ROOTS=FORKED))
    for root in ("blocks", "dropped:blocks", "generation", "dropped:generation"):
        assert recover(fixed, "--drop-root", root, "--yes").returncode == 0
    succeeds(run([forks, "isolation", 20], HEAP=fixed, ROOTS=FORKED))
    out, err = parent.communicate("go\n", timeout=60 * busy())
    assert (out, err) == ("whole 1\n", "")


def test_fork_copy_says_why_not(forks, fixed):
    done = run([forks, "isolation", 20], HEAP=fixed, ROOTS=FORKED, FORK="copy")
    lines = [line for line in done.stderr.splitlines() if "no second heap in a file" in line]
    assert lines and all("goes on in private memory" in line for line in lines), said(done)
    succeeds(run([forks, "check", 2], HEAP=fixed, ROOTS=FORKED))


@pytest.mark.parametrize("kind", ["single", "double"])
def test_a_daemon(forks, fixed, shm, processes, kind):
    """The first child has the heap. One that forks again needs a copy, and says why it has none."""
    ready = shm / "ready"
    argv = [forks, f"daemon_{kind}", 4, ready]
    process = start(argv, HEAP=fixed, ROOTS=FORKED, FORK="follow")
    processes.append(process)
    pid = serving(ready, process)
    try:
        assert process.wait(20 * busy()) == 0
        check = run([forks, "check", 5], HEAP=fixed, ROOTS=FORKED)
        refused = check.returncode == 125 and f"in use by process {pid}" in check.stderr
        assert refused == (kind == "single"), said(check)
    finally:
        os.kill(pid, signal.SIGKILL)
    if kind == "single":
        done = run([forks, "check", 5], HEAP=fixed, ROOTS=FORKED, BUSY="wait")
        assert done.returncode == 0, said(done)
    else:
        assert "no second heap in a file or device" in process.stderr.read()


def test_open_private(fixed):
    succeeds(work(fixed, "run", 3000, 1))
    digest = succeeds(work(fixed, "check"))
    before = fixed.read_bytes()
    for _ in range(2):
        assert succeeds(work(fixed, "check", OPEN="private")) == digest
        succeeds(work(fixed, "run", 3000, 2, OPEN="private"))
    assert fixed.read_bytes() == before


def test_a_backup_is_a_directory(fixed, shm):
    succeeds(work(fixed, "run", 3000, 1))
    done = run([tool("pmalloc-backup"), fixed, shm / "copy"], preload=False)
    succeeds(done)
    assert succeeds(work(shm / "copy", "check")) == succeeds(work(fixed, "check"))


def test_info(fixed):
    succeeds(work(fixed, "run", 3000, 1))
    done = run([tool("pmalloc-info"), fixed], preload=False)
    assert re.search(r"^heap\.0 ", succeeds(done), re.M)


# ---- damage


def flip(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0x10]))


def parts(path):
    with open(path, "rb") as file:
        head = file.read(4096)
    return [struct.unpack_from("<QQ", head, 48 + 16 * i) for i in range(16)]


@pytest.mark.check
def test_damage_is_found(fixed):
    succeeds(work(fixed, "run", 3000, 1))
    places = [8, 20, 30, 40, 48 + 16 * 3, 4092]  # layout
    places += [4096 + 8 * part for part in (1, 2, 3, 4, 5, 6)]  # lengths
    at = [part[0] for part in parts(fixed)]
    places += [at[1] + 100, at[1] + 4096, at[5] + 20]  # superblock, state, log
    for place in places:
        flip(fixed, place)
        done = recover(fixed, "--check")
        assert done.returncode in (4, 8), (place, said(done))
        assert len(done.stderr.splitlines()) == 1
        refuses(work(fixed, "check"))
        flip(fixed, place)
    succeeds(work(fixed, "check"))


def test_a_file_that_was_cut(fixed):
    succeeds(work(fixed, "run", 3000, 1))
    os.truncate(fixed, 64 * MIB)
    done = recover(fixed, "--check")
    assert done.returncode == 4 and "was it cut?" in done.stderr, said(done)
