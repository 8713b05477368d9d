# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""PMALLOC_OPEN=private: many processes on one heap, each with private pages that end with
it."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import pytest
from conftest import (
    BUILD,
    busy,
    compiled,
    environment,
    fingerprint,
    recover,
    refuses,
    run,
    said,
    start,
    succeeds,
    tool,
)

SMALL = 24  # MB


@pytest.fixture(scope="module")
def program():
    return compiled("borrow.c")


def build(program, heap, megabytes=SMALL):
    succeeds(run([program, "build", megabytes], HEAP=heap, ROOTS="table"))


@pytest.fixture
def lent(program, heap):
    build(program, heap)
    return heap


def borrow(program, heap, *arguments, **settings):
    return run([program, *arguments], HEAP=heap, OPEN="private", **settings)


def hold(program, heap, processes, **settings):
    process = start([program, "hold"], HEAP=heap, OPEN="private", **settings)
    processes.append(process)
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    return process


def ends_well(process):
    out, err = process.communicate(timeout=60 * busy())
    assert process.returncode == 0 and out.startswith("ok ") and err == "", (out, err)


def traces(heap):
    """All that a process could leave: contents, lengths, modes, space, times."""
    times = [(p.name, p.stat().st_blocks, p.stat().st_mtime_ns) for p in sorted(heap.iterdir())]
    return fingerprint(heap), times


def is_clean(heap):
    return recover(heap, "--check").returncode == 0


# ---- private pages -------------------------------------------------------------------------------


def test_nothing_reaches_the_heap(program, lent):
    """Threads and a forked child store to old blocks, free them and allocate others; the program
    that they execute finds the heap as it was, and so does the next writer."""
    before = traces(lent)
    expected = succeeds(borrow(program, lent, "check"))
    for seed in range(1, 4):
        done = borrow(program, lent, "churn", seed)
        assert succeeds(done) == expected and done.stderr == "", said(done)
        assert traces(lent) == before
    assert is_clean(lent)
    assert succeeds(run([program, "check"], HEAP=lent)) == expected


def test_fork(program, lent):
    """Both processes have private pages."""
    before = traces(lent)
    assert succeeds(borrow(program, lent, "churn", 7)).startswith("ok ")
    assert traces(lent) == before
    assert [p.name for p in lent.parent.iterdir()] == [lent.name]


@pytest.mark.parametrize("fork", ["copy", "follow"])
def test_forks_that_write_the_heap_are_refused(program, lent, fork):
    refuses(borrow(program, lent, "churn", 7, FORK=fork), f"PMALLOC_FORK={fork}", "PMALLOC_OPEN")


def test_space_of_the_file_system_is_not_used(program, lent):
    """A hole of a file on tmpfs becomes space when it is read through a mapping."""
    space = sum(p.stat().st_blocks for p in lent.iterdir())
    succeeds(borrow(program, lent, "churn", 3))
    assert sum(p.stat().st_blocks for p in lent.iterdir()) == space


@pytest.mark.check
def test_killed(program, lent, processes):
    before = traces(lent)
    for _ in range(3):
        process = hold(program, lent, processes)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert traces(lent) == before and is_clean(lent)


def test_double_free_of_an_old_block(program, lent):
    done = borrow(program, lent, "double")
    assert done.returncode == -signal.SIGABRT and done.stdout == "freed\n", said(done)
    assert "free already" in done.stderr


def test_root_slots_and_generation(program, lent):
    before = traces(lent)
    assert succeeds(borrow(program, lent, "slot")).startswith("ok ")
    assert traces(lent) == before


def test_start_line(program, lent):
    done = borrow(program, lent, "check", VERBOSE=1)
    line = done.stderr.strip()
    assert re.fullmatch(
        rf"pmalloc: heap {lent}, private: nothing that this process stores is kept; "
        r"roots: 1 \(table\); clean: \d+ bytes of slabs and extents, shared until stored to; "
        r"opened in \d\.\d{3} s; addresses kept: .*",
        line,
    ), said(done)


# ---- sharing -------------------------------------------------------------------------------------


def memory(pid):
    """Resident, proportional and private memory of a process, in KiB."""
    text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    fields = dict(re.findall(r"^(\w+):\s+(\d+) kB", text, re.M))
    return [int(fields[k]) for k in ("Rss", "Pss")] + [
        int(fields["Private_Clean"]) + int(fields["Private_Dirty"])
    ]


def test_a_hundred_processes_share_a_gigabyte(program, heap, processes):
    build(program, heap, 1200)
    data = (heap / "heap.0").stat().st_blocks // 2
    assert data > 900 << 10
    before = traces(heap)
    for _ in range(100):
        process = hold(program, heap, processes)
    rss, pss, private = memory(process.pid)
    assert rss > data * 0.8, (rss, data)
    assert pss < data / 20, (pss, data)
    assert private < 64 << 10, private
    for process in processes:
        process.send_signal(signal.SIGKILL)
    for process in processes:
        process.wait()
    assert traces(heap) == before and is_clean(heap)


def test_pages_are_shared(program, lent, processes):
    """The same, in small."""
    for _ in range(8):
        process = hold(program, lent, processes)
    data = (lent / "heap.0").stat().st_blocks // 2
    rss, pss, _ = memory(process.pid)
    assert rss > data * 0.8 and pss < data / 2, (rss, pss, data)
    for process in processes:
        ends_well(process)


# ---- readers and writers -------------------------------------------------------------------------


@pytest.mark.check
def test_a_writer_is_refused_while_readers_live(program, lent, processes):
    reader = hold(program, lent, processes)
    line = refuses(run([program, "check"], HEAP=lent), "PMALLOC_OPEN=private", "PMALLOC_BUSY=wait")
    assert str(lent) in line
    done = recover(lent)
    assert done.returncode == 8 and "PMALLOC_OPEN=private" in done.stderr, said(done)
    assert is_clean(lent)  # looking is allowed
    assert run([tool("pmalloc-info"), lent], preload=False).returncode == 0
    ends_well(reader)
    succeeds(run([program, "check"], HEAP=lent))


def test_a_writer_waits_for_readers(program, lent, processes):
    readers = [hold(program, lent, processes) for _ in range(3)]
    writer = start([program, "check"], HEAP=lent, BUSY="wait")
    processes.append(writer)
    for reader in readers:
        assert writer.poll() is None
        ends_well(reader)
    ends_well(writer)


def test_a_reader_is_refused_while_a_writer_lives(program, lent, processes):
    writer = start([program, "hold"], HEAP=lent)
    processes.append(writer)
    assert writer.stdout.readline() == "ready\n"
    refuses(borrow(program, lent, "check"), f"in use by process {writer.pid}")
    reader = start([program, "check"], HEAP=lent, OPEN="private", BUSY="wait")
    processes.append(reader)
    ends_well(writer)
    ends_well(reader)


def test_a_child_keeps_the_lock(program, lent, processes):
    """A forked child still has the pages when its parent has ended. It has closed all descriptors,
    as daemons do, so only its mapping holds the lock."""
    child = start([program, "leave"], HEAP=lent, OPEN="private")
    processes.append(child)
    assert child.stdout.readline() == "ready\n"
    assert child.wait(timeout=60 * busy()) == 0
    refuses(run([program, "check"], HEAP=lent), "PMALLOC_OPEN=private")
    child.stdin.close()
    assert child.stdout.readline().startswith("ok ")
    succeeds(run([program, "check"], HEAP=lent, BUSY="wait"))


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_a_heap_that_was_killed(program, lent, processes):
    """Several at once, each working with old and new blocks. The kill's traces stay."""
    writer = start([program, "hold"], HEAP=lent)
    processes.append(writer)
    assert writer.stdout.readline() == "ready\n"
    kill(writer)
    before = traces(lent)
    assert not is_clean(lent)
    held = [hold(program, lent, processes) for _ in range(3)]
    expected = succeeds(borrow(program, lent, "check"))
    assert succeeds(borrow(program, lent, "churn", 1)) == expected
    line = borrow(program, lent, "check", VERBOSE=1).stderr
    assert "as a kill has left it: " in line, line
    for process in held:
        ends_well(process)
    assert traces(lent) == before
    assert recover(lent).returncode == 0
    assert succeeds(borrow(program, lent, "check")) == expected


def test_heaps_killed_while_they_change(program, heap, processes, rng):
    """A writer is killed anywhere. Borrowers find what a recovery finds."""
    build(program, heap, 2)
    for number in range(3):
        writer = start([program, "work", number + 1], HEAP=heap)
        processes.append(writer)
        assert writer.stdout.readline() == "ready\n"
        time.sleep(rng.uniform(0, 0.1))
        kill(writer)
        before = traces(heap)
        found = succeeds(borrow(program, heap, "churn", number + 1))
        assert found == succeeds(borrow(program, heap, "check"))
        assert traces(heap) == before
        assert succeeds(run([program, "check"], HEAP=heap)) == found


# ---- heaps that cannot be borrowed ---------------------------------------------------------------


def test_a_missing_heap_is_not_made(program, heap):
    refuses(borrow(program, heap, "check"), str(heap))
    assert not heap.exists()


def test_no_heap_is_named(program):
    refuses(run([program, "check"], OPEN="private"), "PMALLOC_HEAP")


def test_a_damaged_heap(program, lent):
    with open(lent / "booklog.0", "r+b") as log:
        log.seek(4096 + 512)
        log.write(b"\xa5" * 64)
    before = traces(lent)
    refuses(borrow(program, lent, "check"), "booklog.0")
    assert traces(lent) == before


def test_another_program(lent):
    """The heap's root is missing in `ls`: refused, as without PMALLOC_OPEN."""
    refuses(run(["ls"], HEAP=lent, OPEN="private"), "ls has no root table. The heap")


# ---- other programs ------------------------------------------------------------------------------


def test_programs_that_a_borrower_starts(program, lent):
    """They have inherited the settings. Others run on volatile memory; the same one borrows."""
    done = borrow(program, lent, "spawn", f"ls / > /dev/null && {program} check > /dev/null")
    assert succeeds(done).startswith("ok ") and done.stderr == "", said(done)


def test_without_any_permission_to_write(program, lent):
    """An owner that is not root; directory and files are read-only. They are opened again after the
    program has closed all descriptors."""
    place = lent.parent
    user = os.geteuid() or 65534
    for name in (BUILD / "libpmalloc_preload.so", program):
        shutil.copy(name, place)
    place.chmod(0o755)
    for path in [lent, *lent.iterdir()]:
        os.chown(path, user, -1)
        path.chmod(0o500 if path == lent else 0o400)
    try:
        done = subprocess.run(
            [place / "borrow", "churn", "5"],
            env=environment(HEAP=lent, OPEN="private", close_all="1")
            | {"LD_PRELOAD": str(place / "libpmalloc_preload.so")},
            user=user,
            capture_output=True,
            text=True,
            timeout=100 * busy(),
            check=False,
        )
        assert succeeds(done).startswith("ok ") and done.stderr == "", said(done)
    finally:
        lent.chmod(0o700)
