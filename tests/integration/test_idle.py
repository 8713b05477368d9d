# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What is free goes back to the file system: pages of slabs without a block in use, and under
PMALLOC_BACKGROUND=decay whatever a process at rest keeps."""

import contextlib
import pathlib
import time

import pytest
from conftest import DEADLINE, compiled, on_media, recover, run, said, start
from test_limits import MEGABYTE, room, tmpfs

BLOCKS, KEPT = 20000, 313  # of 1000 bytes: 20 MB, of which every 64th stays
ASLEEP = "0x0"  # the fourth argument of a futex call without a timeout


@pytest.fixture(scope="module")
def idle():
    return compiled("idle.c", name="pmtest_idle")


@pytest.fixture
def session(idle, heap, processes):
    """Starts the program on a heap. Returns a function that sends it a line, for the answer."""

    def begin(where=heap, **settings):
        settings = {"HEAP": where, "ROOTS": "kept", "MARKERS": 1} | settings
        process = start([idle], **settings)
        processes.append(process)

        def ask(line):
            process.stdin.write(line + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            assert answer, f"{line}: {process.wait()} {process.stderr.read()}"
            return answer.strip()

        ask.process = process
        return ask

    return begin


def until(true, what):
    end = time.monotonic() + DEADLINE / 2
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def end_of(ask):
    """Ends the program; it has printed nothing more."""
    out, err = ask.process.communicate(timeout=DEADLINE / 2)
    lines = err.splitlines()  # a full medium may be told of
    assert ask.process.returncode == 0 and out == "", err
    assert all("no space for the heap" in line for line in lines), err


# ---- malloc_trim ---------------------------------------------------------------------------------


def test_trim_gives_pages_of_sparse_slabs_back(session, heap):
    ask = session()
    assert ask(f"make 1000 {BLOCKS}") == str(KEPT)
    before = on_media(heap)
    assert before > 19 * MEGABYTE and ask("trim") == "1"
    after = on_media(heap)
    assert after < 3 * MEGABYTE
    assert ask("trim") == "0" and ask("check") == str(KEPT)
    # A kill, and the next run: nothing is lost, and recovery has filled no hole.
    ask.process.kill()
    ask.process.wait()
    ask = session()
    assert ask("check") == str(KEPT)
    assert on_media(heap) <= after + MEGABYTE
    assert ask(f"more 1000 {BLOCKS}") == str(BLOCKS) and ask("check") == str(KEPT)
    assert on_media(heap) < before + 2 * MEGABYTE
    end_of(ask)


@pytest.mark.parametrize("killed", [False, True])
def test_full_medium_with_holes(session, shm, killed):
    """A block on a page that has lost its space gets ENOMEM, never a SIGBUS."""
    with tmpfs(shm / "small", 12000) as small:
        ask = session(small / "heap")
        ask(f"make 1000 {BLOCKS}")
        ask("trim")
        assert room(small) > 40 * MEGABYTE
        if killed:
            ask.process.kill()
            ask.process.wait()
        (small / "filler").write_bytes(bytes(room(small) - (200 << 10)))
        if killed:
            ask = session(small / "heap")
        assert ask("check") == str(KEPT)
        with contextlib.suppress(OSError), open(small / "rest", "wb") as file:
            while True:
                file.write(bytes(4096))
                file.flush()
        got = int(ask("more 1000 20000"))
        assert got < 5000 and ask("check") == str(KEPT)
        (small / "filler").unlink()
        assert ask(f"more 1000 {BLOCKS}") == str(BLOCKS)
        assert ask("check") == str(KEPT)
        end_of(ask)


def test_holes_of_a_borrowed_heap(session, heap):
    """Free blocks on holes are handed out, and the file still has no space there."""
    ask = session()
    ask(f"make 1000 {BLOCKS}")
    ask("trim")
    end_of(ask)
    space = on_media(heap)
    for child in (False, True):
        ask = session(OPEN="private", COLLECT="crash")
        assert ask("check") == str(KEPT)
        if child:
            assert ask("fork").split()[0] == "0"
        assert ask(f"more 1000 {BLOCKS}") == str(BLOCKS) and ask("check") == str(KEPT)
        end_of(ask)
        assert on_media(heap) == space


def test_a_copy_has_the_same_space(session, heap):
    """A forked child's heap copy: holes are holes there, and its blocks get their space."""
    ask = session(FORK="copy")
    ask(f"make 1000 {BLOCKS}")
    ask("trim")
    status, _ = ask("fork").split()
    assert status == "0"
    end_of(ask)
    (copy,) = heap.parent.glob("heap.*")
    assert on_media(copy) < 12 * MEGABYTE
    assert recover(copy, "--check").returncode == 0


# ---- PMALLOC_BACKGROUND --------------------------------------------------------------------------


def own_task(ask):
    """The thread in /proc, of a program that has come to main."""
    assert ask("threads") == "1 1"
    for task in pathlib.Path(f"/proc/{ask.process.pid}/task").iterdir():
        if (task / "comm").read_text().strip() == "pmalloc-decay":
            return task
    return None


def sleeps(task):
    words = (task / "syscall").read_text().split()
    return len(words) > 4 and words[4] == ASLEEP


BACKGROUND = {"BACKGROUND": "decay", "DECAY_MS": "300"}


@pytest.mark.parametrize("backing", ["file", "volatile"])
def test_a_resting_process_gives_back(session, heap, backing):
    where = {} if backing == "file" else {"HEAP": None, "ROOTS": None, "BACKING": backing}
    ask = session(**BACKGROUND, **where)
    task = own_task(ask)

    def memory():
        if backing == "file":
            return on_media(heap)
        words = pathlib.Path(f"/proc/{ask.process.pid}/statm").read_text().split()
        return (int(words[1]) - int(words[2])) * 4096

    for _ in range(2):
        ask("make 1000 20000")
        ask("more 100000 100")
        ask("more 64 50000")
        until(lambda: memory() < 9 * MEGABYTE, "the memory stays")
        until(lambda: sleeps(task), "the thread does not come to rest")
        assert ask("check") == str(KEPT)
    end_of(ask)


def test_a_process_at_rest_runs_nothing(session):
    ask = session(**BACKGROUND)
    task = own_task(ask)
    ask("make 1000 2000")
    until(lambda: sleeps(task), "the thread does not come to rest")
    used = (task / "schedstat").read_text()
    time.sleep(1)
    assert (task / "schedstat").read_text() == used
    ask("more 1000 5000")
    until(lambda: (task / "schedstat").read_text() != used, "nobody has woken the thread")
    end_of(ask)


def test_the_program_does_not_see_the_thread(session, heap):
    ask = session(**BACKGROUND)
    assert ask("make 1000 2000") == "32"
    assert ask("threads") == "1 1"  # libc knows one thread
    assert ask("alone") == "0 1"
    assert ask("signal") == "1"
    end_of(ask)
    assert recover(heap, "--check").returncode == 0


def test_the_last_thread_ends_the_process(idle, heap):
    done = run([idle], stdin="make 1000 2000\nleave\n", HEAP=heap, ROOTS="kept", **BACKGROUND)
    assert done.returncode == 0 and done.stderr == "", said(done)


@pytest.mark.parametrize("mode, threads", [("private", 0), ("copy", 1), ("follow", 1)])
def test_forks(session, heap, mode, threads):
    """A child that has a heap of its own has the thread, too."""
    ask = session(**BACKGROUND, FORK=mode)
    ask(f"make 1000 {BLOCKS}")
    assert ask("fork") == f"0 {threads}"
    assert ask("check") == str(KEPT)
    end_of(ask)
    assert recover(heap, "--check").returncode == 0


def test_without_decay_or_thread(session, heap):
    ask = session(BACKGROUND="decay", DECAY_MS="0")
    assert ask("threads") == "1 0"
    end_of(ask)
    ask = session()
    assert ask("threads") == "1 0"
    end_of(ask)
