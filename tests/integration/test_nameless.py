# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Default heaps that have no name until something can find them again.

`NAMELESS_RACES=30 pytest test_nameless.py` lets programs name their heaps at once as often."""

import errno
import os
import shutil
import signal

import pytest
from conftest import DEFAULT_HEAPS, compiled, linked, recover, run, said, start, succeeds

RACES = int(os.environ.get("NAMELESS_RACES") or 4)
NAME = "pmtest_nameless"
MOST_CALLS = 60  # of those that change names, in one naming


def heaps():
    found = DEFAULT_HEAPS.iterdir() if DEFAULT_HEAPS.is_dir() else ()
    return sorted(path.name for path in found if path.name.startswith(NAME))


@pytest.fixture
def nameless():
    """The program. Before and after a test it has no heap."""

    def tidy():
        for name in heaps():
            shutil.rmtree(DEFAULT_HEAPS / name)

    calls = compiled("nameless_calls.c", "-shared", "-fPIC", name="nameless_calls.so")
    program = linked(["nameless.c", calls], "-rdynamic", name=NAME)
    tidy()
    yield program
    tidy()


def do(program, *what, **settings):
    return run([program, *what], preload=False, **settings)


def unnamed_files(pid):
    """The sizes of the mappings of files without a name."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        lines = [line for line in maps if "/dev/shm/" in line]
    assert all(line.rstrip().endswith("(deleted)") for line in lines), lines
    return len(lines)


def test_no_name_before_a_root(nameless):
    with start([nameless, "found", "add", 100000, "wait"], preload=False) as program:
        try:
            assert program.stdout.readline() == "found 0, persistent 1\n"
            assert program.stdout.readline() == "waiting\n"
            assert heaps() == [] and unnamed_files(program.pid) >= 4
            program.send_signal(signal.SIGKILL)
        finally:
            program.kill()
    assert heaps() == []
    assert "end 100000" in succeeds(do(nameless, "found", "add", 100000))
    assert heaps() == []


@pytest.mark.check
@pytest.mark.parametrize("how", ["root", "publish"])
@pytest.mark.parametrize("end", ["kill", "return"])
def test_the_first_root_gives_the_name(nameless, how, end):
    done = do(nameless, "found", "add", 40000, how, "add", 40000, how, end)
    assert done.returncode == (-9 if end == "kill" else 0), said(done)
    assert f"{how} 0\n" in done.stdout
    assert heaps() == [NAME]
    assert "found 80000, persistent 1\n" in succeeds(do(nameless, "found"))
    recover(DEFAULT_HEAPS / NAME)
    assert "found 80000, persistent 1\n" in succeeds(do(nameless, "found", "add", 1, "root"))
    assert "found 80001, persistent 1\n" in succeeds(do(nameless, "found"))


def test_a_pinned_block_gives_the_name(nameless):
    assert do(nameless, "add", 10, "pinned", "kill").stdout == "pinned 1\n"
    assert heaps() == [NAME]
    recover(DEFAULT_HEAPS / NAME)


def test_a_question_gives_the_name(nameless):
    """Nothing keeps the heap: it has no root, so a clean end removes it."""
    out = succeeds(do(nameless, "add", 10, "path", "wait", stdin="\n"))
    assert f"path {DEFAULT_HEAPS / NAME}\n" in out
    assert heaps() == []


def test_files_of_more_shards_get_their_names(nameless):
    small = {"SHARD": "16M"}
    done = do(nameless, "add", 300000, "root", "add", 300000, "root", "kill", **small)
    assert done.returncode == -9, said(done)
    assert (DEFAULT_HEAPS / NAME / "heap.3").exists()
    assert "found 600000," in succeeds(do(nameless, "found", **small))


def test_the_name_comes_while_threads_allocate(nameless):
    for _ in range(5):
        done = do(nameless, "threads", "add", 20000, "root", "add", 20000, "root", SHARD="16M")
        assert "end 40000" in succeeds(done)
        assert "found 40000," in succeeds(do(nameless, "found", SHARD="16M"))
        shutil.rmtree(DEFAULT_HEAPS / NAME)


def test_a_name_that_is_taken(nameless):
    with start([nameless, "add", 5, "root", "wait"], preload=False) as owner:
        try:
            assert owner.stdout.readline() + owner.stdout.readline() == "root 0\nwaiting\n"
            assert "root 0\n" in succeeds(do(nameless, "add", 7, "root"))
            assert heaps() == [NAME, NAME + ".2"]
            assert "found 7," in succeeds(do(nameless, "found"))  # the first one is in use
        finally:
            owner.kill()
    assert "found 5," in succeeds(do(nameless, "found"))


def test_many_take_a_name_at_once(nameless):
    for _ in range(RACES):
        several = [
            start([nameless, "add", 100 + i, "wait", "root", "wait"], preload=False)
            for i in range(8)
        ]
        ready = [program.stdout.readline() for program in several]
        for program in several:
            program.stdin.write("\n")
            program.stdin.flush()
        done = [program.stdout.readline() for program in several]
        for program in several:
            program.communicate("\n")
        assert ready == ["waiting\n"] * 8 and done == ["root 0\n"] * 8
        assert heaps() == sorted([NAME] + [f"{NAME}.{n}" for n in range(2, 9)])
        found = set()
        for name in heaps():
            out = succeeds(do(nameless, "found", HEAP=DEFAULT_HEAPS / name))
            found.add(out.split(",")[0])
            shutil.rmtree(DEFAULT_HEAPS / name)
        assert found == {f"found {100 + i}" for i in range(8)}


def test_a_child_of_a_nameless_heap(nameless):
    """It has a private copy, as of any heap, and nothing that it does names the heap."""
    out = succeeds(do(nameless, "add", 30000, "fork", "add", 30000, "root", "fork", "add", 10))
    assert out.count("child 0\n") == 2 and "end 60010" in out
    assert "found 60000," in succeeds(do(nameless, "found"))


@pytest.mark.parametrize("mode", ["copy", "follow"])
def test_a_child_that_is_to_have_a_heap(nameless, mode):
    """It needs the name, so there is one from the start."""
    out = succeeds(do(nameless, "add", 1000, "wait", "fork", stdin="\n", FORK=mode))
    assert "child 0\n" in out
    for name in heaps():  # what a killed child leaves has no roots
        recover(DEFAULT_HEAPS / name)


def test_closed_descriptors(nameless):
    out = succeeds(do(nameless, "add", 1000, "close", "add", 100000, "close", "root", "close"))
    assert "root 0\n" in out and "end 101000" in out
    assert "found 101000," in succeeds(do(nameless, "found"))


def test_closed_descriptors_and_a_kill(nameless):
    """The superblock is another file than when the heap was opened. It is no copy even so."""
    done = do(nameless, "add", 1000, "close", "root", "kill")
    assert done.returncode == -9 and done.stdout == "root 0\n", said(done)
    assert "found 1000," in succeeds(do(nameless, "found"))


def test_closed_descriptors_among_threads(nameless):
    """The files cannot be made again while another thread may store to them."""
    done = do(nameless, "add", 1000, "thread", "close", "root", "add", 100000)
    assert done.returncode == 1, said(done)
    assert "root -1\n" in done.stdout and "no memory for " in done.stdout
    first, second = done.stderr.splitlines()
    assert "the program has closed the files of its heap" in first and "set PMALLOC_HEAP" in first
    assert second.startswith("pmalloc: pmalloc_set_root: the heap gets no name")
    assert heaps() == []


def test_every_call_of_the_naming_may_fail(nameless):
    """Then there is no root and no name, the next root has both."""
    for n in range(1, MOST_CALLS):
        done = do(nameless, "add", 3000, "fail", n, "root", "errno", "fail", 0, "root", "kill")
        assert done.returncode == -9, said(done)
        first, why, second = done.stdout.splitlines()
        assert second == "root 0"
        failed = first == "root -1"
        assert why == f"errno {errno.ENOSPC if failed else errno.E2BIG}", said(done)
        assert failed == bool(done.stderr), said(done)
        assert not failed or done.stderr.count("\n") == 1, said(done)
        assert "found 3000," in succeeds(do(nameless, "found"))
        assert len(heaps()) == 1
        shutil.rmtree(DEFAULT_HEAPS / heaps()[0])
        if not failed:
            assert n > 10
            return
    pytest.fail("the naming never ends")


def test_a_kill_at_every_call_of_the_naming(nameless):
    """There is a whole heap, or what a later start takes away."""
    named = 0
    for n in range(1, MOST_CALLS):
        done = do(nameless, "add", 3000, "die", n, "root", "die", 0)
        if done.returncode == 0:
            assert named < 10 < n  # the last calls are for the record of loaded objects
            return
        assert done.returncode == -9 and done.stdout == "", said(done)
        named += (DEFAULT_HEAPS / NAME / "superblock").exists()
        out = succeeds(do(nameless, "found", "add", 10, "root"))
        assert "found 0," in out and "root 0\n" in out
        assert "found 10," in succeeds(do(nameless, "found"))
        assert heaps() == [NAME]
        shutil.rmtree(DEFAULT_HEAPS / NAME)
    pytest.fail("the naming never ends")


def test_a_handler_inside_the_allocator(nameless):
    """It runs when the interrupted request has ended."""
    out = succeeds(do(nameless, "add", 100, "handler", "errno", "root"))
    lines = out.splitlines()
    assert (lines[0], lines[2]) == ("handler 0", "root 0")
    assert "found 100," in succeeds(do(nameless, "found"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user(nameless):
    """The files stay those of the first one, so the name would be of no use."""
    done = do(nameless, "add", 100, "user", "root", "errno")
    assert f"user 0\nroot -1\nerrno {errno.EPERM}\n" in done.stdout, said(done)
    assert "the program has become user 65534 since its start" in done.stderr
    assert done.stderr.count("\n") == 1 and heaps() == []


def dumped(pid):
    """The bytes of unnamed files that the kernel would go through for a core dump."""
    size, total = 0, 0
    with open(f"/proc/{pid}/smaps", encoding="utf-8") as maps:
        for line in maps:
            words = line.split()
            if not words[0].endswith(":"):
                start, end = (int(word, 16) for word in words[0].split("-"))
                size = end - start if "/dev/shm/" in line else 0
            elif words[0] == "VmFlags:" and "dd" not in words:
                total += size
    return total


@pytest.mark.parametrize("what", [(), ("close", "add", 100000)], ids=["open", "closed"])
def test_unused_addresses_are_in_no_core(nameless, what):
    with start([nameless, "add", 1000, *what, "wait"], preload=False) as program:
        try:
            assert program.stdout.readline() == "waiting\n"
            assert unnamed_files(program.pid) >= 4
            assert dumped(program.pid) < 128 << 20
        finally:
            program.kill()


def test_own_threads_count_too(nameless):
    """The thread of PMALLOC_BACKGROUND may be storing to the files."""
    done = do(nameless, "add", 1000, "close", "root", BACKGROUND="decay")
    assert "root -1\n" in done.stdout, said(done)
    assert "the program has closed the files of its heap" in done.stderr


def among(program, before, *what):
    """Runs it in a /dev/shm of its own, after the commands `before`."""
    mount = "mount -t tmpfs tmpfs"
    script = f'{mount} /dev/shm && cd /dev/shm && chmod 1777 . && {before} && exec "$@"'
    if run(["unshare", "-rm", "sh", "-c", f"{mount} /dev/shm"], preload=False).returncode:
        pytest.skip("no mount namespaces here")
    return do("unshare", "-rm", "sh", "-c", script, "sh", program, *what)


@pytest.mark.parametrize(
    "before",
    ["ln -s /tmp pmalloc-0", ": > pmalloc-0", "mkdir pmalloc-0 && chmod 777 pmalloc-0"],
    ids=["link", "file", "all"],
)
def test_a_directory_that_cannot_be_used(nameless, before):
    """The program knows from its start that nothing is kept."""
    out = succeeds(among(nameless, before, "found", "add", 10, "root"))
    assert "found 0, persistent 0\nroot -1\n" in out


@pytest.mark.parametrize(
    "before",
    [
        "mkdir -m 700 pmalloc-0 && mount -t tmpfs -o mode=700 tmpfs pmalloc-0",
        "mount -t tmpfs tmpfs /proc",
    ],
    ids=["mounted", "proc"],
)
def test_where_a_file_of_dev_shm_could_get_no_name(nameless, before):
    out = succeeds(among(nameless, before, "found", "add", 10, "root"))
    assert "found 0, persistent 1\nroot 0\n" in out


def test_a_colon_in_the_name(nameless, tmp_path):
    """It would separate the directories of a heap in several ones."""
    program = tmp_path / f"{NAME}:x"
    shutil.copy(nameless, program)
    done = run([program, "found", "add", 10, "root"], preload=False, VERBOSE=1, cwd=tmp_path)
    assert "found 0, persistent 0\nroot -1\n" in done.stdout, said(done)
    assert "has a colon in its name" in done.stderr
    assert heaps() == [] and list(tmp_path.iterdir()) == [program]
