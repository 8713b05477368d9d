# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What programs and people do wrong while two threads allocate: bad frees, overflows, one heap for many
processes, a directory that goes away, descriptors that are closed, limits, file systems that take no write.

Whatever happens, the heap's structure stays whole (pmalloc-recover --check), and what other programs have
in it stays as it was. misuse.c is the program; it verifies its blocks after each command.
"""

import os
import resource
import select
import shutil
import signal
import subprocess

import pytest
from conftest import (
    BUILD,
    app,
    compiled,
    environment,
    fingerprint,
    on_media,
    recover,
    said,
    start,
    tool,
)

MEGABYTE = 1 << 20
SIZES = [48, 40000]  # of a slab's block and of a large one


@pytest.fixture(scope="session")
def program():
    return compiled("misuse.c", "-D_GNU_SOURCE")


class Session:
    """The program with its pipes; ask() waits for the answer."""

    def __init__(self, process):
        self.process = process
        self.kept = None

    def answer(self, timeout=60):
        assert select.select([self.process.stdout], [], [], timeout)[0], "no answer"
        return self.process.stdout.readline().strip()

    def ready(self):
        line = self.answer()
        assert line.startswith("ready "), line + self.process.stderr.read()
        return int(line.split()[1])

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.answer()

    def does(self, command):
        line = self.ask(command)
        assert line.startswith("ok "), f"{command}: {line!r} {self.end()}"
        return int(line.split()[1])

    def end(self, command="quit"):
        """Status and standard error."""
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        self.process.stdin = None
        status = self.process.wait(60)
        return status, self.process.stderr.read()


@pytest.fixture
def session(program, heap, processes):
    """Starts the program on the heap; the settings are PMALLOC_ ones."""

    def begin(limits=(), cwd=None, **settings):
        env = environment(**{"HEAP": heap, "ROOTS": "table", **settings})

        def confine():
            for which, value in limits:
                resource.setrlimit(which, (value, value))

        process = subprocess.Popen(
            [str(program)],
            env=env,
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=confine,
        )
        processes.append(process)
        return Session(process)

    return begin


def whole(heap, *statuses):
    done = recover(heap, "--check")
    assert done.returncode in (statuses or (0, 1)), said(done)
    return done


def goes_on(session, kept):
    """A new process finds the heap whole, with its blocks, and can work on it."""
    again = session()
    assert again.ready() == kept
    again.does("grow 2")
    assert again.end() == (0, "")


# ---- bad frees and overflows -------------------------------------------------------------------------


BAD = [
    ("double 48", "free already"),
    ("double 40000", "free already"),
    ("double 3000000", "free already"),
    ("interior 48", "middle"),
    ("interior 40000", "middle"),
]
FOREIGN = ["foreign", "stack"]


@pytest.mark.parametrize("command, why", BAD)
def test_bad_free_aborts(session, heap, command, why):
    work = session()
    work.ready()
    kept = work.does("grow 3")
    work.process.stdin.write(command + "\n")
    status, said_there = work.end()
    assert status == -signal.SIGABRT and why in said_there and said_there.count("\n") == 1, said_there
    whole(heap, 1)
    goes_on(session, kept)


@pytest.mark.parametrize("command, why", BAD)
def test_bad_free_is_reported(session, heap, command, why):
    work = session(CHECK="report")
    work.ready()
    kept = work.does("grow 3")
    for _ in range(3):
        work.does(command)
    status, said_there = work.end()
    lines = said_there.splitlines()
    # The block that was freed twice may have been another thread's by then, so a report may be missing.
    assert status == 0 and len(lines) <= 3 and all(why in line and "ignored" in line for line in lines), said_there
    if not command.startswith("double"):
        assert len(lines) == 3
    whole(heap, 0)
    goes_on(session, kept)


@pytest.mark.parametrize("command", FOREIGN)
def test_foreign_free(session, heap, command):
    work = session()
    work.ready()
    kept = work.does("grow 1")
    for _ in range(3):
        work.does(command)
    status, said_there = work.end()
    assert status == 0 and said_there.count("\n") == 1 and "outside the heap" in said_there
    whole(heap, 0)
    strict = session(CHECK="strict")
    assert strict.ready() == kept
    strict.process.stdin.write(command + "\n")
    status, said_there = strict.end()
    assert status == -signal.SIGABRT and "outside the heap" in said_there
    goes_on(session, kept)


@pytest.mark.parametrize("by", [1, 64])
@pytest.mark.parametrize("size", SIZES)
def test_overflow_into_the_neighbour(session, heap, size, by):
    """No word of the allocator lies between blocks, so it is the program's bytes alone that change."""
    work = session()
    work.ready()
    kept = work.does("grow 1")
    for _ in range(3):
        work.does(f"overflow {size} {by}")
    assert work.end() == (0, "")
    whole(heap, 0)
    goes_on(session, kept)


# ---- one heap, many processes --------------------------------------------------------------------------


def test_second_process_is_refused(session, heap):
    first = session()
    first.ready()
    second = session()
    status, said_there = second.end()
    assert status == 125 and f"in use by process {first.process.pid}" in said_there
    assert said_there.count("\n") == 1
    kept = first.does("grow 1")
    assert first.end() == (0, "")
    goes_on(session, kept)


@pytest.mark.parametrize("there", [False, True])
def test_of_twenty_starts_one_wins(session, heap, there):
    kept = 0
    if there:
        before = session()
        before.ready()
        kept = before.does("grow 2")
        before.end("quit")
    everyone = [session() for _ in range(20)]
    losers, winners = [], []
    for each in everyone:
        line = each.answer()
        (winners if line.startswith("ready ") else losers).append(each)
        assert line in ("", f"ready {kept}")
    assert len(winners) == 1, f"{len(winners)} processes have the heap"
    for each in losers:
        status, said_there = each.end()
        assert status == 125 and said_there.count("\n") == 1 and "in use by" in said_there, said_there
    assert winners[0].does("grow 1") > kept
    assert winners[0].end() == (0, "")
    whole(heap, 0)


def test_twenty_wait_for_each_other(heap, processes):
    everyone = []
    for number in range(20):
        shell = start([app("kvshell")], HEAP=heap, ROOTS="store", BUSY="wait")
        shell.stdin.write(f"bump n\nset key{number} value{number}\nquit\n")
        shell.stdin.flush()
        everyone.append(shell)
    processes += everyone
    for shell in everyone:
        assert shell.wait(60) == 0, shell.stderr.read()
        assert shell.stderr.read() == ""
    counts = sorted(int(shell.stdout.read().split()[0]) for shell in everyone)
    assert counts == list(range(1, 21))
    whole(heap, 0)
    shell = start([app("kvshell")], HEAP=heap, ROOTS="store")
    out, err = shell.communicate("list\n")
    entries = dict(line.split(" ", 1) for line in out.splitlines())
    assert entries == {"n": "20", **{f"key{i}": f"value{i}" for i in range(20)}} and err == ""


# ---- the directory and its files go away ---------------------------------------------------------------


def test_directory_deleted(session, heap):
    work = session()
    work.ready()
    work.does("grow 5")
    shutil.rmtree(heap)
    work.does("grow 20")
    work.does("drop")
    new = session()  # the name is free again
    assert new.ready() == 0
    kept = new.does("grow 3")
    work.does("grow 5")
    assert work.end() == (0, "")
    assert new.does("grow 3") > kept
    kept = new.does("grow 1")
    assert new.end() == (0, "")
    whole(heap, 0)
    goes_on(session, kept)


def test_directory_deleted_and_descriptors_closed(session, heap):
    """What exists goes on; no more can be had, and nothing is written into the heap that has the name now."""
    work = session()
    work.ready()
    work.does("grow 5")
    shutil.rmtree(heap)
    new = session()
    assert new.ready() == 0
    kept = new.does("grow 3")
    work.does("closefrom 3")
    assert work.ask("grow 50").startswith("null ")
    work.does("drop")
    assert work.end()[0] == 0
    assert new.end() == (0, "")
    whole(heap, 0)
    goes_on(session, kept)


def test_directory_renamed(session, heap):
    work = session()
    work.ready()
    kept = work.does("grow 5")
    moved = heap.with_name("moved")
    heap.rename(moved)
    kept = work.does("grow 20")
    assert work.end() == (0, "")
    whole(moved, 0)
    assert not heap.exists()
    moved.rename(heap)
    goes_on(session, kept)


def test_superblock_deleted(session, heap):
    """What is left is data whose key is lost, not an empty directory."""
    work = session()
    work.ready()
    work.does("grow 5")
    assert work.end() == (0, "")
    saved = (heap / "superblock").read_bytes()
    (heap / "superblock").unlink()
    before = fingerprint(heap)
    status, said_there = session().end()
    assert status == 125 and "superblock is missing" in said_there and said_there.count("\n") == 1
    assert fingerprint(heap) == before
    (heap / "superblock").write_bytes(saved)
    (heap / "superblock").chmod(0o600)
    goes_on(session, 53)


@pytest.mark.parametrize("name", ["heap.0", "slabs.0", "booklog.0", "roots", "superblock"])
def test_file_truncated(session, heap, name):
    """The kernel's answer to touching what is gone is SIGBUS; the next opening says what is missing."""
    work = session()
    work.ready()
    work.does("grow 5")
    work.does("drop")
    work.does("grow 5")
    os.truncate(heap / name, 0)
    status, said_there = work.end("grow 5\ndrop\nquit")
    assert status in (-signal.SIGBUS, 0, 1), said_there
    if status == 0 and recover(heap, "--check").returncode in (0, 1):
        assert name == "heap.0" or name == "slabs.0", "nothing noticed"
        return
    before = fingerprint(heap)
    for arguments in (["--check"], ["--dry-run"], []):
        done = recover(heap, *arguments)
        assert done.returncode == 4, said(done)
        assert str(heap) in done.stderr and done.stderr.count("\n") == 1, said(done)
    again = session()
    status, said_there = again.end()
    assert status == 125 and said_there.count("\n") == 1
    assert fingerprint(heap) == before


# ---- descriptors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["closefrom 3", "dup2 3"])
@pytest.mark.parametrize("cwd", [False, True])
def test_descriptors_taken_away(session, heap, command, cwd):
    """As daemons do, from another directory too: the heap still grows, shrinks, and is still locked."""
    work = session(cwd=heap.parent if cwd else None, **({"HEAP": heap.name} if cwd else {}))
    work.ready()
    work.does("grow 5")
    if cwd:
        work.does("chdir /")
    work.does(command)
    kept = work.does("grow 30")
    size = on_media(heap)
    work.does(command)
    work.does("drop")
    assert on_media(heap) < size - 20 * MEGABYTE
    work.does(command)
    kept = work.does("grow 3")
    status, said_there = session().end()
    assert status == 125 and "in use by" in said_there, "the lock went with the descriptors"
    assert recover(heap).returncode == 8
    work.does(command)
    assert work.end() == (0, "")
    whole(heap, 0)
    goes_on(session, kept)
    assert not os.path.exists("/bitmaps.0")


# ---- limits --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("descriptors", [16, 11])
def test_few_descriptors(session, heap, descriptors):
    work = session(limits=[(resource.RLIMIT_NOFILE, descriptors)])
    work.ready()
    work.does("grow 10")
    work.does("drop")
    kept = work.does("grow 2")
    assert work.end() == (0, "")
    goes_on(session, kept)


def test_too_few_descriptors(session, heap):
    done = session(limits=[(resource.RLIMIT_NOFILE, 7)])
    status, said_there = done.end()
    assert status == 125 and "Too many open files" in said_there and said_there.count("\n") == 1
    fresh = session()
    assert fresh.ready() == 0
    assert fresh.end() == (0, "")


def test_file_size_limit(session, heap):
    """Where a file may not grow, malloc returns NULL; SIGXFSZ is not for the program to get."""
    work = session()
    work.ready()
    work.does("grow 5")
    work.does("fsize 40")
    assert work.ask("grow 100").startswith("null ")
    work.does("drop")
    kept = work.does("grow 5")
    assert work.end() == (0, "")
    assert (heap / "heap.0").stat().st_size <= 40 * MEGABYTE
    whole(heap, 0)
    goes_on(session, kept)


@pytest.mark.parametrize("size", [0, 4096, 100000, 200000, MEGABYTE])
def test_file_size_limit_at_start(session, heap, size):
    work = session(limits=[(resource.RLIMIT_FSIZE, size)])
    line = work.answer()
    status, said_there = work.end()
    if line == "":
        assert status in (4, 125), said_there
        assert status == 4 or said_there.count("\n") == 1
    goes_on(session, 0)


@pytest.mark.parametrize("size", [64 * MEGABYTE, 1 << 30, 16 << 30])
def test_address_space_limit(session, heap, size):
    work = session(limits=[(resource.RLIMIT_AS, size)])
    line = work.answer()
    status, said_there = work.end()
    if not line.startswith("ready"):
        assert status == 125 and "ulimit -v" in said_there and said_there.count("\n") == 1, said_there
    goes_on(session, 0)


# ---- file systems that take no write -------------------------------------------------------------------


READ_ONLY = f"""
preload=LD_PRELOAD={BUILD}/libpmalloc_preload.so
shell() {{ env $preload PMALLOC_HEAP=$1 PMALLOC_ROOTS=store {BUILD}/apps/kvshell; }}
mount -t tmpfs tmpfs /mnt
printf 'set a b\nset c d\nbump n\n' | shell /mnt/heap >/dev/null
env $preload PMALLOC_HEAP=/mnt/dirty PMALLOC_ROOTS=list_state {BUILD}/apps/list run 100 1 -k >/dev/null || :
mount -o remount,ro /mnt
set +e
echo 'get a' | shell /mnt/heap; echo "program $?"
echo 'get a' | shell /mnt/new; echo "new $?"
{BUILD}/pmalloc-recover /mnt/heap; echo "recover $?"
{BUILD}/pmalloc-recover --check /mnt/heap >/dev/null; echo "check $?"
{BUILD}/pmalloc-recover --check /mnt/dirty >/dev/null; echo "check dirty $?"
{BUILD}/pmalloc-info /mnt/heap >/dev/null; echo "info $?"
mount -o remount,rw /mnt
printf 'get a\nget c\nget n\n' | shell /mnt/heap; echo "again $?"
"""


def test_read_only_file_system():
    for how in (["unshare", "-m"], ["unshare", "-rm"]):
        probe = ["sh", "-c", "mount -t tmpfs tmpfs /mnt && mount -o remount,ro /mnt"]
        if subprocess.run([*how, *probe], capture_output=True, check=False).returncode == 0:
            break
    else:
        pytest.skip("no mount namespaces here")
    done = subprocess.run(
        [*how, "sh", "-ec", READ_ONLY],
        env=environment(False),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    wanted = ["program 125", "new 125", "recover 8", "check 0", "check dirty 1", "info 0", "b", "d", "1", "again 0"]
    assert done.stdout.splitlines() == wanted, said(done)
    errors = [line for line in done.stderr.splitlines() if line.startswith("pmalloc")]
    assert len(errors) == 3 and all("Read-only file system" in line for line in errors), said(done)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write where the mode forbids it")
def test_directory_without_write_permission(session, heap):
    work = session()
    work.ready()
    kept = work.does("grow 1")
    assert work.end() == (0, "")
    heap.parent.chmod(0o500)
    heap.chmod(0o500)
    try:
        # Files can be opened and grow; only the list of bitmaps cannot be replaced, so the end is not clean.
        again = session()
        assert again.ready() == kept
        assert again.end()[0] == 0
        whole(heap)
    finally:
        heap.parent.chmod(0o700)
        heap.chmod(0o700)
    goes_on(session, kept)


def test_tool_on_a_running_heap(session, heap):
    work = session()
    work.ready()
    kept = work.does("grow 3")
    for arguments in (["--check"], ["--dry-run"], [], ["--drop-root", "table"]):
        done = recover(heap, *arguments)
        assert done.returncode == 8 and "in use by" in done.stderr, said(done)
    assert subprocess.run([tool("pmalloc-info"), heap], capture_output=True, check=False).returncode == 8
    work.does("grow 1")
    assert work.end() == (0, "")
    assert kept > 0
