# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""The limits: a full heap, a full file system, a busy heap, forks, and very large structures."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest
from conftest import (
    API,
    DEADLINE,
    DEFAULT_HEAPS,
    ROOT,
    busy,
    compiled,
    environment,
    fingerprint,
    on_media,
    one_message,
    recover,
    recovered,
    refuses,
    room,
    run,
    said,
    start,
    succeeds,
    tmpfs,
)
from forge import crc32c

MEGABYTE = 1 << 20
SIZES = [32, 1000, 16384, 100_000, MEGABYTE, 5 * MEGABYTE, 0]  # 0: blocks of all sizes


@pytest.fixture(scope="module")
def limits():
    return compiled("limits.c", name="pmtest_limits")


# ---- a heap at its limit -------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("backing", ["file", "volatile"])
def test_heap_at_its_limit(limits, heap, backing, size):
    where = {"HEAP": heap} if backing == "file" else {"BACKING": "volatile"}
    count = int(succeeds(run([limits, "fill", size], LIMIT="64M", **where)))
    used = count * (size or 1500 * 0.99 + 450_000 * 0.01)
    small = 0 if backing == "file" else 128 << 10  # what it gets before there is a heap
    assert 0.6 * 64 * MEGABYTE <= used <= 64 * MEGABYTE + small
    if backing == "file":
        assert on_media(heap) < MEGABYTE, "exit has not given back the blocks that no root reaches"


def test_what_is_there_survives_a_lower_limit(limits, heap):
    done = run([limits, "grow", 1000], HEAP=heap, ROOTS="blocks", LIMIT="32M")
    count = int(done.stdout)
    assert done.returncode == -9
    assert int(succeeds(run([limits, "count"], HEAP=heap, LIMIT="8M"))) == count
    assert int(succeeds(run([limits, "release"], HEAP=heap, LIMIT="8M"))) == count
    assert int(run([limits, "grow", 1000], HEAP=heap, LIMIT="8M").stdout) < count / 2


# ---- a full file system --------------------------------------------------------------------------


@pytest.mark.parametrize("reserve", ["lazy", "strict"])
@pytest.mark.parametrize("size", SIZES)
def test_full_tmpfs(limits, shm, size, reserve):
    """malloc returns NULL with ENOMEM; there is never a SIGBUS. What is freed can be allocated
    again."""
    with tmpfs(shm / "small", 12000) as small:
        done = run([limits, "fill", size], HEAP=small / "heap", RESERVE=reserve)
        assert done.returncode == 0, said(done)
        one_message(done, f"no space for the heap {small}/heap: ", "malloc returns NULL")
        assert int(done.stdout) * (size or 5000) > 20 * MEGABYTE


@pytest.mark.parametrize("pages", [0, 1, 2, 4, 8, 16, 30, 50, 64, 80, 200])
def test_no_room_for_a_new_heap(limits, shm, pages):
    """Either it works, or there is one clear line and no remnant."""
    with tmpfs(shm / "small", 1000) as small:
        (small / "filler").write_bytes(bytes(room(small) - pages * 4096))
        done = run([limits, "grow", 1000], HEAP=small / "heap", ROOTS="blocks")
        if done.returncode == 125:
            refuses(done, "heap")
            assert not (small / "heap").exists()
        else:
            assert done.returncode == -9, said(done)
            count = int(done.stdout)
            done = run([limits, "count"], HEAP=small / "heap")
            if done.returncode == 125:  # there is no room for another image of the roots either
                refuses(done, "No space left")
                (small / "filler").unlink()
                done = run([limits, "count"], HEAP=small / "heap")
            assert int(succeeds(done)) == count


@pytest.mark.parametrize("way", ["offline", "program"])
@pytest.mark.parametrize("size", [64, 3000, 100_000])
def test_recovery_on_a_full_tmpfs(limits, shm, size, way):
    with tmpfs(shm / "small", 8000) as small:
        heap = small / "heap"
        done = run([limits, "grow", size], HEAP=heap, ROOTS="blocks")
        assert done.returncode == -9, said(done)
        count = int(done.stdout)
        with open(small / "filler", "wb", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(bytes(4096))
        assert room(small) == 0
        if way == "offline":
            done = recover(heap)
            if done.returncode:  # there is not even a page for the state
                assert done.returncode == 8 and len(done.stderr.splitlines()) == 1, said(done)
        else:
            done = run([limits, "count"], HEAP=heap)
            if done.returncode == 125:
                refuses(done, "No space left")
            else:
                assert int(succeeds(done)) == count
        (small / "filler").unlink()
        assert int(succeeds(run([limits, "count"], HEAP=heap))) == count
        assert int(succeeds(run([limits, "release"], HEAP=heap))) == count
        assert room(small) > 25 * MEGABYTE


@pytest.mark.parametrize("name", ["list", "tree"])
def test_file_system_fills_up_amid_the_work(workload, shm, processes, rng, name):
    """Where any growth fails, the program's malloc returns NULL, and the program stops. Its data
    are whole."""
    work = workload(name)
    with tmpfs(shm / "small", 40000) as small:
        work.heap = small / "heap"
        filler = small / "filler"
        ops = 0
        for _ in range(5):
            # A lazily reserved block is only promised for the moment: others can take its space.
            process = work.start("run", 0, rng.randrange(1 << 30), "-t", 2, RESERVE="strict")
            processes.append(process)
            while process.stdout.readline() not in ("ready\n", ""):
                pass
            time.sleep(rng.uniform(0, 0.05))
            # It also takes what the program gives back, or that may get by with what it has.
            until = time.monotonic() + DEADLINE / 4
            with open(filler, "wb", buffering=0) as file:
                while process.poll() is None and time.monotonic() < until:
                    with contextlib.suppress(OSError):
                        file.write(bytes(min(room(small), MEGABYTE) or 4096))
                    if room(small) < 4096:
                        time.sleep(0.001)
            process.wait(1)
            assert process.returncode == 1, f"{process.returncode} {process.stderr.read()}"
            assert "out of memory" in process.stdout.read()
            filler.unlink()
            found = work.check()
            assert found["ops"] >= ops
            ops = found["ops"]
        work.check("run", 1000, 1)


# ---- a busy heap ---------------------------------------------------------------------------------


@pytest.fixture
def holder(limits, processes):
    """Starts a process that has the heap open. It ends when its input is closed."""

    def hold(heap, **settings):
        process = start([limits, "hold"], HEAP=heap, **settings)
        processes.append(process)
        line = process.stdout.readline().split()
        assert line and line[0] == "held", process.stderr.read()
        assert int(line[1]) == process.pid
        return process

    return hold


def test_busy_heap(limits, holder, heap):
    first = holder(heap)
    refuses(run([limits, "fill", 1000], HEAP=heap), str(first.pid), "PMALLOC_BUSY=wait", str(heap))
    assert recover(heap).returncode == 8
    assert recover(heap, "--check").returncode == 8
    first.stdin.close()
    assert first.wait() == 0
    succeeds(run([limits, "count"], HEAP=heap))


READER = """
import ctypes, sys
class Piece(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("length", ctypes.c_size_t)]
libc, size, count = ctypes.CDLL(None, use_errno=True), 4 << 20, 1024
room = ctypes.create_string_buffer(size)
here = (Piece * count)(*[Piece(ctypes.addressof(room), size)] * count)
there = (Piece * count)(*[Piece(0x400000000000, size)] * count)
print("reads", flush=True)
libc.process_vm_readv(int(sys.argv[1]), here, count, there, count, 0)
"""


@pytest.mark.parametrize("how", ["tool", "start"])
def test_whose_memory_is_read_when_it_is_killed(limits, heap, how):
    """The kernel keeps the memory until that is done, and with it the lock of a file that was
    mapped: the heap looks busy, and is nobody's."""
    program = compiled(ROOT / "docs" / "examples" / "notes.c")
    for _ in range(3):
        env = environment(HEAP=heap, ROOTS="newest")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen([program], env=env, **pipes) as process:
            before = int(process.stdout.readline().split()[0])
            process.stdin.write(("x" * 4000 + "\n") * 3000)
            process.stdin.flush()
            assert all(process.stdout.readline() == "kept\n" for _ in range(3000))
            argv = [sys.executable, "-c", READER, str(process.pid)]
            with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as reader:
                reader.stdout.readline()
                time.sleep(0.01)
                process.kill()
                process.wait()
                if how == "tool":
                    assert recover(heap, "--check").returncode == 1
                else:
                    done = run([program], HEAP=heap, ROOTS="newest")
                    assert succeeds(done) == f"{before + 3000} notes\n"



def test_waiting_for_a_busy_heap(limits, holder, heap, processes):
    done = run([limits, "grow", 100000], HEAP=heap, ROOTS="blocks", LIMIT="8M")
    first = holder(heap)
    second = start([limits, "count"], HEAP=heap, BUSY="wait")
    processes.append(second)
    with pytest.raises(subprocess.TimeoutExpired):
        second.wait(0.5)
    first.stdin.close()
    out, err = second.communicate(timeout=20 * busy())
    assert (second.returncode, out, err) == (0, done.stdout, "")


def test_default_heaps_of_one_program_do_not_meet(limits, processes):
    first, second = (start([limits, "hold"], API, FORK="copy") for _ in range(2))
    processes += [first, second]
    for process in (first, second):
        assert process.stdout.readline() == f"held {process.pid}\n"
    names = {path.name for path in DEFAULT_HEAPS.iterdir()}
    assert {"pmtest_limits", "pmtest_limits.2"} <= names
    for process in (first, second):
        process.stdin.close()
        assert process.wait() == 0
    assert not {n for n in os.listdir(DEFAULT_HEAPS) if n.startswith("pmtest_limits")}


def test_default_heap_with_a_root_stays_and_purge_takes_it(limits):
    done = run([limits, "grow", 100000], ROOTS="blocks", LIMIT="8M")
    heap = DEFAULT_HEAPS / "pmtest_limits"
    try:
        assert done.returncode == -9 and heap.is_dir(), said(done)
        assert succeeds(run([limits, "count"])) == done.stdout
        assert oct(heap.stat().st_mode & 0o777) == "0o700"
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in heap.iterdir())
    finally:
        subprocess.run(["rm", "-rf", heap], check=True)


def test_descendants_run_on_volatile_memory_quietly(limits, heap):
    script = f"{limits} fill 100000; {limits} count; ls / | cat > /dev/null; echo $(echo done)"
    done = run(["sh", "-c", script], HEAP=heap, LIMIT="16M")
    assert done.returncode == 0 and done.stderr == "", said(done)
    assert done.stdout.split()[1:] == ["0", "done"]


def test_only_the_named_program_is_persistent(limits, heap):
    settings = {"HEAP": heap, "ROOTS": "blocks", "LIMIT": "8M", "PROGRAM": "pmtest_*"}
    done = run(["sh", "-c", f"{limits} grow 100000; {limits} count; ls / > /dev/null"], **settings)
    first, second = done.stdout.split()
    assert first == second and int(first) > 0, said(done)


# ---- fork ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["alone", "threads", "exec"])
@pytest.mark.parametrize("backing", ["file", "volatile"])
def test_fork(limits, heap, how, backing):
    """Neither process sees the other's stores. The heap keeps what the parent did."""
    if backing == "volatile":
        succeeds(run([limits, "fork", how], BACKING="volatile"))
        return
    last = None
    for _ in range(3):
        done = run([limits, "fork", how], HEAP=heap, ROOTS="items,large,captured")
        assert done.returncode == 0 and not done.stderr, said(done)
        found, left = done.stdout.splitlines()
        assert last is None or found == last
        last = left
    assert recovered(heap)["roots"] == 3


# ---- settings ------------------------------------------------------------------------------------

WRONG = [
    *[("LIMIT", v) for v in ("0", "1M", "3M", "17T", "-1", "64m", "1.5G", "8M ", "lots", "9" * 30)],
    *[("MARKERS", v) for v in ("65", "-1", "two", "1K", "0x2")],
    *[("DECAY_MS", v) for v in ("-5", "3600001", "1s")],
    ("COLLECT", "never"),
    ("COLLECT", "alway"),
    ("CHECK", "ABORT"),
    ("CHECK", "abort|report"),
    ("RESERVE", "eager"),
    ("BUSY", "wait "),
    ("BACKING", "disk"),
    ("PERSIST", "always"),
    ("FORK", "none"),
    ("VERBOSE", "2"),
    ("VERBOSE", "yes"),
    ("STATS", "on"),
]
NAMES = ["LIMIT", "MARKERS", "DECAY_MS", "COLLECT", "CHECK", "RESERVE", "BUSY", "BACKING", "FORK"]
NAMES += ["PERSIST", "VERBOSE", "STATS", "HEAP", "ROOTS", "PROGRAM"]


@pytest.mark.parametrize("name, value", WRONG)
def test_wrong_setting(heap, name, value):
    line = refuses(run(["true"], HEAP=heap, **{name: value}), f"PMALLOC_{name}={value}")
    assert "use " in line
    assert not heap.exists()


@pytest.mark.parametrize("name", NAMES)
def test_empty_setting(heap, name):
    refuses(run(["true"], **{"HEAP": heap, name: ""}), f"PMALLOC_{name}")
    assert not heap.exists()


@pytest.mark.parametrize("name", ["HEEP", "HEAPS", "LIMIT_", "X"])
def test_unknown_setting(heap, name):
    refuses(run(["true"], HEAP=heap, **{name: "1"}), f"PMALLOC_{name}", "no such setting")
    assert not heap.exists()


def test_right_settings(heap):
    settings = {"LIMIT": "4M", "MARKERS": 2, "DECAY_MS": 0, "COLLECT": "crash", "CHECK": "strict"}
    settings |= {"RESERVE": "strict", "BUSY": "wait", "FORK": "private", "VERBOSE": 0, "STATS": 0}
    settings |= {"BACKING": "file", "PERSIST": "none", "PROGRAM": "*"}
    done = run(["sh", "-c", "exit 3"], HEAP=heap, **settings)
    assert done.returncode == 3 and not done.stderr, said(done)


def test_verbose_line_and_statistics(limits, heap):
    done = run([limits, "count"], HEAP=heap, VERBOSE=1, STATS=1)
    assert done.returncode == 0, said(done)
    lines = done.stderr.splitlines()
    assert str(heap) in lines[0] and "tmpfs" in lines[0], said(done)
    assert len(lines) > 1 and all(line.startswith("pmalloc: ") for line in lines)


# ---- wrong directories ---------------------------------------------------------------------------


def spoil_byte(path, at, value=None):
    with open(path, "r+b") as file:
        file.seek(at)
        old = file.read(1)[0]
        file.seek(at)
        file.write(bytes([old ^ 0xFF if value is None else value]))


def spoil_sealed(path, at, value):
    """Changes a field as another build would have written it: the page's checksum is right."""
    spoil_byte(path, at, value)
    with open(path, "r+b") as file:
        page = file.read(4092)
        file.seek(4092)
        file.write(crc32c(page).to_bytes(4, "little"))


def cut(path, size):
    os.truncate(path, size)


WRONG_HEAPS = {
    "foreign magic": (lambda h: spoil_byte(h / "superblock", 0), "superblock"),
    "another version": (lambda h: spoil_sealed(h / "superblock", 8, 77), "version"),
    "unknown feature": (lambda h: spoil_sealed(h / "superblock", 27, 0x80), "feature"),
    "checksum": (lambda h: spoil_byte(h / "superblock", 64), "checksum"),
    "state": (lambda h: spoil_byte(h / "superblock", 4096), "state"),
    "short superblock": (lambda h: cut(h / "superblock", 5000), "superblock"),
    "empty superblock": (lambda h: cut(h / "superblock", 0), "superblock"),
    "short log": (lambda h: cut(h / "booklog.0", 4096), "booklog.0"),
    "empty log": (lambda h: cut(h / "booklog.0", 0), "booklog.0"),
    "short slabs": (lambda h: cut(h / "slabs.0", 0), "slabs.0"),
    "short heap": (lambda h: cut(h / "heap.0", 4096), "heap"),
    "odd heap": (lambda h: cut(h / "heap.0", (h / "heap.0").stat().st_size - 1), "heap.0"),
    "short roots": (lambda h: cut(h / "roots", 0), "roots"),
    "no heap file": (lambda h: (h / "heap.0").unlink(), "heap.0"),
    "no log": (lambda h: (h / "booklog.0").unlink(), "booklog.0"),
    "no roots": (lambda h: (h / "roots").unlink(), "roots"),
    "link": (lambda h: relink(h / "heap.0"), "heap.0"),
    "others may write": (lambda h: h.chmod(0o777), "chmod"),
}


def relink(path):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


@pytest.mark.parametrize("what", WRONG_HEAPS)
@pytest.mark.parametrize("end", ["clean", "killed"])
def test_wrong_heap_is_refused_and_untouched(limits, heap, what, end):
    done = run([limits, "grow", 5000], HEAP=heap, ROOTS="blocks", LIMIT="16M")
    assert done.returncode == -9, said(done)
    if end == "clean":
        succeeds(run([limits, "count"], HEAP=heap))
    spoil, part = WRONG_HEAPS[what]
    spoil(heap)
    before = fingerprint(heap)
    refuses(run([limits, "count"], HEAP=heap), str(heap), part)
    for options in ([], ["--check"], ["--dry-run"]):
        done = recover(heap, *options)
        assert done.returncode in (4, 8) and done.stdout == "", said(done)
        assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("pmalloc-recover: ")
    assert fingerprint(heap) == before


def test_wrong_places(limits, shm):
    (shm / "file").write_text("mine")
    (shm / "full").mkdir(mode=0o700)
    (shm / "full" / "letter.txt").write_text("mine")
    (shm / "empty").mkdir(mode=0o700)
    (shm / "link").symlink_to("empty")
    before = fingerprint(shm)
    for place, part in [
        ("file", "file"),
        ("full", "letter.txt"),
        ("link", "symbolic"),
        ("no/such", "no/such"),
        ("x" * 300, "too long"),
        ("/".join(["y" * 200] * 30), "too long"),
    ]:
        refuses(run([limits, "count"], HEAP=shm / place), part)
    refuses(run([limits, "count"], HEAP="/proc/heap"), "/proc/heap")
    assert fingerprint(shm) == before
    succeeds(run([limits, "count"], HEAP=shm / "empty"))  # an empty directory may become a heap


@pytest.mark.skipif(os.geteuid() != 0, reason="giving files away needs root")
def test_somebody_elses_heap(limits, heap):
    succeeds(run([limits, "count"], HEAP=heap))
    os.chown(heap, 12345, 12345)
    before = fingerprint(heap)
    refuses(run([limits, "count"], HEAP=heap), "belongs to user 12345")
    os.chown(heap, 0, 0)
    os.chown(heap / "heap.0", 12345, 12345)
    refuses(run([limits, "count"], HEAP=heap), "heap.0")
    assert fingerprint(heap) == before


# ---- large structures ----------------------------------------------------------------------------


@pytest.mark.parametrize("markers", [1, 2])
def test_a_million_pointers_in_one_object(limits, heap, markers):
    for _ in range(3):
        done = run([limits, "million"], HEAP=heap, ROOTS="million", MARKERS=markers)
        assert (done.returncode, done.stdout, done.stderr) == (-9, "a million\n", ""), said(done)
    figures = recovered(heap)
    assert 1_000_001 <= figures["live_objects"] <= 1_000_100


@pytest.mark.parametrize(
    "nodes", [2_000_000, 10_000_000], ids=["2M", "10M"]
)
def test_a_very_long_list(workload, nodes):
    work = workload("list")
    done = work.run("grow", nodes, "-l", 4, "-k")
    assert done.returncode == -9 and f"nodes={nodes}\n" in done.stdout, said(done)
    first = recovered(work.heap)
    assert nodes <= first["live_objects"] <= nodes + 100
    assert f"nodes={nodes} " in succeeds(work.run("walk", MARKERS=1))
    assert f"nodes={nodes} " in succeeds(work.run("walk", MARKERS=2))
    done = work.run("grow", 1000, "-k")
    assert done.returncode == -9 and f"nodes={nodes + 1000}\n" in done.stdout, said(done)


def test_kill_while_waiting_for_input(limits, holder, heap):
    """The process does nothing when it is killed. It leaves a heap like any other."""
    for _ in range(3):
        process = holder(heap, ROOTS="blocks")
        process.send_signal(signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM
        assert recover(heap, "--check").returncode == 1
