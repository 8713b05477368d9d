# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""SIGKILL at random instants, of programs and of recovery itself, and what is there afterwards.

The programs check themselves. Every key but that of a pending operation holds exactly the payload
that the model expects. Payloads have a checksum, and no two blocks overlap. See
tests/apps/README.md."""

import pathlib
import shutil
import tempfile
import time

import pytest
from conftest import (
    BUILD,
    DEFAULT_HEAPS,
    ROOTS,
    Workload,
    compiled,
    copy_heap,
    on_media,
    recover,
    recovered,
    refuses,
    run,
    said,
    start,
    succeeds,
    tool,
)

STRUCTURES = ["list", "skiplist", "hashset", "tree"]
ROUNDS = 15  # per structure and number of threads: 120 kills in all
MEGABYTE = 1 << 20

# Space that is neither live data nor given back: rounding up to size classes, thread caches, partly
# filled slabs, and the region that is being filled.
SLACK = 24 * MEGABYTE


def killed_at_work(workload, processes, rng, threads, longest=0.03, **settings):
    """Starts the program, lets it work a while, kills it."""
    process = workload.start("run", 0, rng.randrange(1 << 30), "-t", threads, **settings)
    processes.append(process)
    lines = [process.stdout.readline()]
    if lines[0].startswith("ok "):  # it has checked what it found
        lines.append(process.stdout.readline())
    if lines[-1] != "ready\n":
        process.kill()
        pytest.fail("".join(lines) + process.stderr.read())
    time.sleep(rng.uniform(0, longest))
    process.kill()
    assert process.wait() == -9, process.stderr.read()
    assert process.stderr.read() == ""


def test_a_start_right_after_a_kill(heap, processes):
    """The kernel frees the dead process's memory before its locks. Programs and tools wait for
    that."""
    program = compiled("heavy.c")
    settings = {"HEAP": heap, "ROOTS": "found"}
    for number in range(6):
        process = start([program, "stay"], **settings)
        processes.append(process)
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        process.kill()  # and the test does not wait for its end
        if number % 3 == 0:
            done = recover(heap, "--check")
            assert done.returncode == 1, said(done)
        elif number % 3 == 1:
            recovered(heap)
        succeeds(run([program], **settings))


def test_a_default_heap_with_roots_is_not_left_for_another(processes):
    """A later start names no roots. It must not get a fresh heap because the dead process has not
    ended yet."""
    program, heap = compiled("heavy.c"), DEFAULT_HEAPS / "heavy"
    try:
        succeeds(run([program], ROOTS="found"))
        for _ in range(3):
            process = start([program, "stay"])
            processes.append(process)
            assert process.stdout.readline() == "ready\n", process.stderr.read()
            process.kill()
            done = run([program], VERBOSE=1)
            succeeds(done)
            assert (
                f"{heap}," in done.stderr or f"{heap}:" in done.stderr or f"{heap} " in done.stderr
            ), said(done)
    finally:
        shutil.rmtree(heap, ignore_errors=True)


def test_one_whose_first_thread_has_ended_is_not_going(heap, processes):
    """It looks like a zombie, but its other threads still work."""
    process = start([compiled("heavy.c"), "leave"], HEAP=heap, ROOTS="found")
    processes.append(process)
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    while pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")")[-1].split()[0] != "Z":
        time.sleep(0.001)
    began = time.monotonic()
    refuses(
        run([compiled("heavy.c")], HEAP=heap, ROOTS="found"), f"in use by process {process.pid};"
    )
    assert time.monotonic() - began < 5


def goes_on(workload, rng, **settings):
    return workload.check("run", 300, rng.randrange(1 << 30), "-t", rng.choice("12"), **settings)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", STRUCTURES)
def test_kill_at_random_instants(workload, processes, rng, name, threads):
    work = workload(name)
    work.check("run", rng.randrange(0, 8000), rng.randrange(1 << 30))
    ops = 0
    for number in range(ROUNDS):
        print(f"round {number}")
        killed_at_work(work, processes, rng, threads)
        way = number % 3
        if way == 0:  # recovers offline
            figures = recovered(work.heap)
            assert figures["state"] == "dirty" and figures["result"] == "recovered"
            assert recover(work.heap, "--check").returncode == 0
            found = work.check()
        elif way == 1:  # starts the program again, which goes on
            found = goes_on(work, rng)
        else:  # kills the program a second time while it works on what it recovered
            killed_at_work(work, processes, rng, threads)
            found = work.check()
        assert found["ops"] >= ops, f"{found} after {ops} operations"
        ops = found["ops"]
        # A stale word in the unused end of a small block may keep a large block of up to 3 MB,
        # until it is overwritten. A few such blocks are the price of conservative marking; a
        # growing number is not.
        assert on_media(work.heap) <= found["bytes"] * 1.3 + 2 * SLACK, f"round {number}: {found}"
    assert ops > 0


@pytest.fixture
def on_disk():
    path = pathlib.Path(tempfile.mkdtemp(prefix="pmalloc-test-", dir=BUILD))
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize("name", STRUCTURES)
def test_kill_on_a_plain_file(on_disk, processes, rng, name):
    """Slabs and large blocks are made ahead there. Kills come before, amid and after a group. What
    was made ahead is given back, and a heap may change to another medium and back."""
    work = Workload(name, on_disk / name, ROOTS[name])
    work.check("run", 500, rng.randrange(1 << 30))
    ops = 0
    for number in range(8):
        persist = "line" if number % 4 == 3 else "page"
        print(f"round {number}, {persist}")
        killed_at_work(work, processes, rng, 1 + number % 2, longest=0.1, PERSIST=persist)
        if number % 2:
            assert recovered(work.heap)["result"] == "recovered"
            assert recover(work.heap, "--check").returncode == 0
            found = work.check(PERSIST=persist)
        else:
            found = goes_on(work, rng, PERSIST=persist)
        assert found["ops"] >= ops, f"{found} after {ops} operations"
        ops = found["ops"]
        figures = recovered(work.heap)
        assert figures["state"] == "clean"
        assert on_media(work.heap) <= found["bytes"] * 1.3 + 2 * SLACK, f"round {number}: {found}"


@pytest.mark.check
@pytest.mark.parametrize("name", ["list", "tree"])
def test_unreachable_blocks_come_back(workload, rng, name):
    """The blocks that killed programs leak do not add up."""
    work = workload(name)
    before = work.check("run", 2000, rng.randrange(1 << 30))
    size = on_media(work.heap)
    for number in range(6):
        done = work.run("leak", 2000, "-k")
        assert done.returncode == -9 and done.stdout.startswith("leaked blocks=2000 "), said(done)
        leaked = int(done.stdout.split("bytes=")[1])
        assert on_media(work.heap) > size + leaked / 2
        if number % 2:
            figures = recovered(work.heap)
            assert figures["leaked_bytes"] > 0  # large ones are known without bitmaps
            assert figures["reclaimed_bytes"] > leaked * 0.9
        assert work.check() == before
        assert on_media(work.heap) < size + SLACK / 4


def test_leaks_are_counted_after_a_clean_exit(workload, rng):
    work = workload("hashset")
    before = work.check("run", 500, rng.randrange(1 << 30))
    recovered(work.heap)  # what this run left itself, such as stdio's buffer
    done = work.run("leak", 1000)
    succeeds(done)
    figures = recovered(work.heap)
    assert figures["state"] == "clean"
    assert 1000 <= figures["leaked_objects"] <= 1010, figures
    assert figures["leaked_bytes"] >= int(done.stdout.split("bytes=")[1])
    assert work.check() == before


@pytest.mark.check
def test_two_recoveries_find_the_same(workload, processes, rng):
    work = workload("skiplist")
    killed_at_work(work, processes, rng, 2, longest=0.2)
    dry = recover(work.heap, "--dry-run", "--json")
    succeeds(dry)
    assert recover(work.heap, "--check").returncode == 1
    first = recovered(work.heap)
    second = recovered(work.heap)
    assert first["result"] == "recovered" and second["state"] == "clean"
    for figure in ("live_objects", "live_bytes", "roots"):
        assert first[figure] == second[figure]
    assert second["leaked_objects"] == 0
    one = recover(work.heap, "--json", "--threads", 1)
    assert f'"live_objects":{first["live_objects"]}' in succeeds(one).replace(" ", "")


# ---- kills during recovery -----------------------------------------------------------------------


def big_and_dirty(work, rng):
    """Makes a heap whose recovery takes a while, by a kill in the middle of the work."""
    succeeds(work.run("run", 3000, rng.randrange(1 << 30)))
    done = work.run("grow", 300000, "-l", 3, "-k")
    assert done.returncode == -9 and "grown nodes=300000" in done.stdout, said(done)


@pytest.mark.parametrize("way", ["offline", "program"])
def test_kill_during_recovery(workload, processes, rng, way):
    work = workload("list")
    big_and_dirty(work, rng)
    pristine = work.heap.with_name("pristine")
    copy_heap(work.heap, pristine)
    expected = work.check()
    replace(work.heap, pristine)

    argv = [tool("pmalloc-recover"), work.heap] if way == "offline" else work.argv("check")
    settings = {"preload": way == "program"}
    if way == "program":
        settings.update(HEAP=work.heap, ROOTS=work.root)
    begin = time.monotonic()
    assert run(argv, **settings).returncode == 0
    whole = time.monotonic() - begin
    replace(work.heap, pristine)
    killed = 0
    for number in range(200):
        process = start(argv, **settings)
        processes.append(process)
        time.sleep(rng.uniform(0, whole * 1.1))
        process.kill()
        finished = process.wait() != -9
        killed += not finished
        assert process.stderr.read() == ""
        if number % 8 == 7:
            assert work.check() == expected
            walked = succeeds(work.run("walk"))
            assert "nodes=300000" in walked
        if killed == 32:
            break
        if finished or number % 8 == 7:  # a clean heap would open at once
            replace(work.heap, pristine)
    assert killed == 32
    recovered(work.heap)
    assert work.check() == expected
    assert "nodes=300000" in succeeds(work.run("walk"))
    goes_on(work, rng)


def replace(target, source):
    shutil.rmtree(target)
    copy_heap(source, target)


# ---- clean close ---------------------------------------------------------------------------------


@pytest.mark.check
def test_clean_close_and_reopen(workload, rng):
    work = workload("tree")
    first = work.check("run", 3000, rng.randrange(1 << 30))
    assert (work.heap / "bitmaps.0").exists()
    assert recover(work.heap, "--check").returncode == 0
    assert work.check() == first
    line = succeeds_verbose(work)
    assert "; clean: " in line and "roots: 1 (" in line, line
    done = work.run("run", 100, 1, "-k")
    assert done.returncode == -9, said(done)
    assert recover(work.heap, "--check").returncode == 1
    assert "; recovered: " in succeeds_verbose(work)


def succeeds_verbose(work, **settings):
    done = work.run("check", VERBOSE=1, **settings)
    assert done.returncode == 0, said(done)
    return done.stderr


def live_objects(line):
    return int(line.split(" objects")[0].split()[-1])


def test_collect_crash_trusts_the_bitmaps_of_a_clean_close(workload, rng):
    work = workload("hashset")
    before = work.check("run", 2000, rng.randrange(1 << 30))
    marked = live_objects(succeeds_verbose(work))
    succeeds(work.run("leak", 500))
    trusted = live_objects(succeeds_verbose(work, COLLECT="crash"))
    assert trusted >= marked + 500, "trusted bitmaps did not keep the leaked blocks"
    assert work.check(COLLECT="crash") == before
    assert live_objects(succeeds_verbose(work, COLLECT="crash")) >= marked + 500
    assert work.run("run", 50, 3, "-k", COLLECT="crash").returncode == -9
    assert (
        live_objects(succeeds_verbose(work, COLLECT="crash")) < marked + 400
    ), "after a crash they go"


@pytest.mark.check
@pytest.mark.parametrize("damage", ["short", "flipped", "missing", "empty", "stale"])
def test_damaged_bitmaps_fall_back_to_marking(workload, rng, damage):
    work = workload("list")
    before = work.check("run", 2000, rng.randrange(1 << 30))
    succeeds(work.run("leak", 500))
    bitmaps = work.heap / "bitmaps.0"
    data = bytearray(bitmaps.read_bytes())
    if damage == "short":
        bitmaps.write_bytes(data[:-8])
    elif damage == "flipped":
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        bitmaps.write_bytes(data)
    elif damage == "missing":
        bitmaps.unlink()
    elif damage == "empty":
        bitmaps.write_bytes(b"")
    else:  # the bitmaps of an earlier close
        before = work.check("run", 2000, rng.randrange(1 << 30))
        succeeds(work.run("leak", 500))
        bitmaps.write_bytes(data)
    marked = live_objects(succeeds_verbose(work, COLLECT="crash"))
    assert (
        marked <= before["keys"] * 2 + 100
    ), "the leaked blocks are still there, so recovery did not mark"
    assert work.check() == before
