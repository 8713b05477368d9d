# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What is taken away from a program while two threads allocate: its directory and files, its
descriptors, limits, write access to the file system.

The heap's structure stays whole (pmalloc-recover --check). What other programs have in the heap
stays as it was. The program, misuse.c, checks its blocks after each command."""

import os
import resource
import shutil
import signal
import subprocess

import pytest
from conftest import BUILD, busy, environment, fingerprint, on_media, recover, said
from misuse_session import MEGABYTE, goes_on, program, session, whole  # noqa: F401


# ---- the directory and its files go away ---------------------------------------------------------


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
    status, said_there = work.end()
    beside = heap.with_name(f"heap.{work.process.pid}")
    assert status == 0 and said_there.endswith(f"the heap is {beside} now\n"), said_there
    whole(beside, 0)
    assert new.does("grow 3") > kept
    kept = new.does("grow 1")
    assert new.end() == (0, "")
    whole(heap, 0)
    goes_on(session, kept)


def test_directory_deleted_and_descriptors_closed(session, heap):
    """Existing blocks stay usable, but malloc gets no more. Nothing is written to the new heap of
    the same name."""
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


@pytest.mark.check
def test_superblock_deleted(session, heap):
    """Data without their superblock are not an empty directory."""
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
    """The kernel sends SIGBUS to a process that touches what is gone. The next opening says what is
    missing."""
    work = session()
    work.ready()
    work.does("grow 5")
    work.does("drop")
    work.does("grow 5")
    os.truncate(heap / name, 0)
    status, said_there = work.end("grow 5\ndrop\nquit")
    assert status in (-signal.SIGBUS, 0, 1), said_there
    if status == 0 and recover(heap, "--check").returncode in (0, 1):
        assert name == "heap.0" or name == "slabs.0", "no tool noticed the missing bytes"
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


# ---- descriptors ---------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["closefrom 3", "dup2 3"])
@pytest.mark.parametrize("cwd", [False, True])
def test_descriptors_taken_away(session, heap, command, cwd):
    """Daemons do this, also from another directory. The heap still grows and shrinks, and is still
    locked."""
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
    assert (
        status == 125 and "in use by" in said_there
    ), "the heap is no longer locked once its descriptors are closed"
    assert recover(heap).returncode == 8
    work.does(command)
    assert work.end() == (0, "")
    whole(heap, 0)
    goes_on(session, kept)
    assert not os.path.exists("/bitmaps.0")


# ---- limits --------------------------------------------------------------------------------------


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
    """The limit is for the files that the program writes. It must get no SIGXFSZ."""
    work = session()
    work.ready()
    work.does("grow 5")
    work.does("fsize 40")
    work.does("grow 100")
    assert (heap / "heap.0").stat().st_size > 40 * MEGABYTE
    work.does("drop")
    kept = work.does("grow 5")
    assert work.end() == (0, "")
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
    if not line.startswith("ready") and status != 5:  # 5: no room for its threads' stacks
        assert (
            status == 125 and "ulimit -v" in said_there and said_there.count("\n") == 1
        ), said_there
    goes_on(session, 0)


# ---- file systems that take no write -------------------------------------------------------------

READ_ONLY = f"""
preload=LD_PRELOAD={BUILD}/libpmalloc_preload.so
shell() {{ env $preload PMALLOC_HEAP=$1 PMALLOC_ROOTS=store {BUILD}/apps/kvshell; }}
mount -t tmpfs tmpfs /mnt
printf 'set a b\nset c d\nbump n\n' | shell /mnt/heap >/dev/null
env $preload PMALLOC_HEAP=/mnt/dirty PMALLOC_ROOTS=list_state \\
    {BUILD}/apps/list run 100 1 -k >/dev/null || :
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
        timeout=120 * busy(),
        check=False,
    )
    wanted = [
        "program 125",
        "new 125",
        "recover 8",
        "check 0",
        "check dirty 1",
        "info 0",
        "b",
        "d",
        "1",
        "again 0",
    ]
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
        # Files can be opened and can grow. Only the list of bitmaps cannot be replaced, so the
        # close is not clean.
        again = session()
        assert again.ready() == kept
        assert again.end()[0] == 0
        whole(heap)
    finally:
        heap.parent.chmod(0o700)
        heap.chmod(0o700)
    goes_on(session, kept)
