# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Disks that fail for a moment, and damaged journals. What a real disk does is tried in a guest
(scripts/vm-test --faults): strace leaves pages dirty that a disk would have lost."""

import itertools
import json
import os
import re
import shutil
import struct

import pytest
from conftest import (
    app,
    compiled,
    copy_heap,
    fingerprint,
    forget_origin,
    recover,
    refuses,
    run,
    said,
    start,
    succeeds,
    tool,
)

PAGE = 4096
STATE = PAGE  # of the superblock's file
DOUBT, APPLIED = STATE + 56, STATE + 456
SETS = 40

needs_strace = pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")


def shell(heap, text, status=0, **settings):
    done = run([app("kvshell")], stdin=text, HEAP=heap, ROOTS="store", **settings)
    assert done.returncode == status, said(done)
    return done


def serving_shell(heap, lines, **settings):
    """A shell that has answered "ok" to each line."""
    process = start([app("kvshell")], HEAP=heap, ROOTS="store", **settings)
    for line in lines:
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ok\n"
    return process


def end(process):
    process.kill()
    process.communicate()


def killed_shell(heap, sets=SETS, **settings):
    """A shell that has answered so many times and is killed. Each answer is a commit."""
    lines = (f"set key{n} value{n}" for n in range(sets))
    end(serving_shell(heap, lines, **{"COMMIT": "output"} | settings))


def word(heap, at):
    return struct.unpack("<Q", (heap / "superblock").read_bytes()[at : at + 8])[0]


def injected(call, error, when, path, argv, **settings):
    """Runs a program of which one system call fails: of those on a file, or of all."""
    watch = ["strace", "-f", "-qq", "-o", settings.pop("trace", "/dev/null"), "-e", f"trace={call}"]
    watch += ["-P", path] if path else []
    watch += ["-e", f"inject={call}:error={error}:when={when}"] if error else []
    preload, stdin = settings.pop("preload", False), settings.pop("stdin", None)
    for name, value in settings.items():
        watch += ["-E", f"PMALLOC_{name}={value}"]
    if preload:
        watch += ["-E", f"LD_PRELOAD={app('kvshell').parents[1]}/libpmalloc_preload.so"]
    return run([*watch, *argv], False, stdin=stdin)


def heap_is_in_memory(path):
    kind = run(["stat", "-fc", "%T", path], False).stdout.strip()
    return kind in ("tmpfs", "ramfs")


def groups(heap):
    """Where each group of the journal begins, its pages, and whether it ends a commit."""
    journal, at = (heap / "journal").read_bytes(), 0
    while journal[at : at + 8] == b"MJOURNL1":
        last, _, pages = struct.unpack_from("<III", journal, at + 44)
        yield at, 1 + pages, last
        at += (1 + pages) * PAGE


def all_sets(heap, sets=SETS):
    text = "".join(f"get key{n}\n" for n in range(sets))
    return shell(heap, text).stdout.split() == [f"value{n}" for n in range(sets)]


# ---- a read that fails is not the end of the journal


@needs_strace
@pytest.mark.parametrize("error", ["EIO", "ENOMEM"])
@pytest.mark.parametrize("arguments", [(), ("--check",), ("--dry-run", "--json")])
def test_a_journal_that_cannot_be_read_is_not_torn(heap, arguments, error):
    killed_shell(heap)
    before = fingerprint(heap)
    tool = app("kvshell").parents[1] / "pmalloc-recover"
    failures = 0
    for when in [1, 2, 3, 10, 40, 60, 79]:
        argv = [tool, *arguments, heap]
        done = injected("pread64", error, when, heap / "journal", argv)
        assert done.returncode == 8, said(done)
        assert "/journal: what was committed cannot be read: " in done.stderr
        assert "nothing of it is lost" in done.stderr
        assert fingerprint(heap) == before, f"{when}"
        failures += 1
    assert failures == 7 and all_sets(heap)


@needs_strace
def test_a_start_that_cannot_read_its_journal_ends(heap):
    killed_shell(heap)
    forget_origin(heap)  # its copies are to do the same calls
    before = fingerprint(heap)
    settings = {"HEAP": heap, "ROOTS": "store", "preload": True}
    argv, copy, trace = [app("kvshell")], heap.with_name("copy"), heap.with_name("trace")
    done = injected("pread64", "EIO", 5, heap / "journal", argv, **settings)
    refuses(done, "cannot be read", "nothing was changed")
    for call, error in [("openat", "EMFILE"), ("openat", "ENFILE"), ("newfstatat", "EIO")]:
        shutil.rmtree(copy, ignore_errors=True)
        copy_heap(heap, copy)
        injected(call, None, 0, None, argv, **settings | {"HEAP": copy}, trace=trace)
        names = [line for line in trace.read_text().splitlines() if f"{call}(" in line]
        when = 1 + next(i for i, line in enumerate(names) if ', "journal"' in line)
        done = injected(call, error, when, None, argv, **settings)
        refuses(done, "cannot be read", "nothing was changed")
        assert fingerprint(heap) == before, f"{call} {error}"
    assert all_sets(heap)


@needs_strace
@pytest.mark.parametrize("error", ["EIO", "ENODATA"])
def test_a_look_at_a_program_says_that_the_journal_cannot_be_read(heap, error):
    """No commit was said where one could not be read."""
    lines = (f"set key{n} value{n}" for n in range(3))
    process = serving_shell(heap, lines, COMMIT="output")
    try:
        tool = app("kvshell").parents[1] / "pmalloc-info"
        argv = [tool, "--follow", "--count", 1, heap]
        assert "commit of" in injected("pread64", None, 0, None, argv).stdout
        for when in (1, 2, 3, 6):
            done = injected("pread64", error, when, heap / "journal", argv)
            assert done.returncode == 8, said(done)
            line = f"pmalloc-info: {heap}/journal cannot be read: Input/output error; see the "
            assert done.stderr == line + "kernel's log\n"
    finally:
        end(process)


@needs_strace
def test_a_backup_of_a_program_says_that_the_journal_cannot_be_read(heap, shm):
    """The program was said to commit all the time."""
    lines = (f"set key{n} value{n}" for n in range(3))
    process = serving_shell(heap, lines, COMMIT="output")
    try:
        argv = [tool("pmalloc-backup"), heap, shm / "backup"]
        for file, when in itertools.product(("journal", "heap.0"), ("1+", "3+", "5+")):
            done = injected("pread64", "EIO", when, heap / file, argv)
            assert done.returncode == 8, said(done)
            (line,) = done.stderr.splitlines()
            assert f"{heap}/" in line and "Input/output error; see the kernel's log" in line, line
        succeeds(run(argv, False))
        assert shell(shm / "backup", "get key2\n").stdout == "value2\n"
    finally:
        end(process)


@needs_strace
def test_a_medium_names_what_cannot_be_read_of_the_heap(heap, shm):
    """It said that the new file "cannot be written", which leads to the wrong disk."""
    shell(heap, "set colour red\n")
    before, medium = fingerprint(heap), shm / "medium"
    argv = [tool("pmalloc-recover"), "--make", "--from", heap, "--size", "32M", medium]
    for file in ("heap.0", "roots", "booklog.0"):
        done = injected("pread64", "EIO", "1+", heap / file, argv)
        assert done.returncode == 8 and not medium.exists(), said(done)
        (line,) = done.stderr.splitlines()
        assert f"{heap}/{file}: cannot be read: Input/output error" in line, line
    assert fingerprint(heap) == before
    succeeds(run(argv, False))
    assert shell(medium, "get colour\n").stdout == "red\n"


@needs_strace
def test_a_file_system_of_which_nothing_can_be_known(heap):
    """It is not taken for a disk: what the heap's guarantee is would be unknown."""
    shell(heap, "set colour red\n")
    before = fingerprint(heap)
    settings = {"HEAP": heap, "ROOTS": "store", "preload": True}
    done = injected("fstatfs", "EIO", "1+", None, [app("kvshell")], **settings)
    refuses(done, "the kind of the file system cannot be read", "try again")
    info = app("kvshell").parents[1] / "pmalloc-info"
    for argv in ([info, heap], [info, "--medium", heap]):
        done = injected("fstatfs", "EIO", "1+", None, argv)
        assert done.returncode == 8 and "kind of the file system" in done.stderr, said(done)
    assert fingerprint(heap) == before
    assert shell(heap, "get colour\n").stdout == "red\n"


# ---- damage of the journal


def damaged_in(heap, copy, change):
    """What pmalloc-recover says of a copy whose journal was changed."""
    if copy.exists():
        shutil.rmtree(copy)
    copy_heap(heap, copy)
    with open(copy / "journal", "r+b") as file:
        change(file)
    before = fingerprint(copy)
    checked, done = recover(copy, "--check"), recover(copy)
    assert checked.returncode == (done.returncode or 1), said(checked) + said(done)
    if done.returncode:
        assert fingerprint(copy) == before
    return done


def flip(at, bit):
    def change(file):
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))

    return change


def test_a_flipped_bit_in_the_journal_is_damage(heap, shm, rng):
    killed_shell(heap)
    found = list(groups(heap))
    end = found[-1][0] + found[-1][1] * PAGE
    places = [rng.randrange(at, at + pages * PAGE) for at, pages, _ in found]
    places += [at + place for at, _, _ in found[::7] for place in (0, 24, 60, 4080, 4088)]
    assert len(found) >= SETS
    for at in places:
        done = damaged_in(heap, shm / "copy", flip(at, rng.randrange(8)))
        assert done.returncode == 4 and "/journal is damaged behind" in done.stderr, said(done)
    done = damaged_in(heap, shm / "copy", flip(end + PAGE, 3))  # behind all commits
    assert done.returncode == 0 and all_sets(shm / "copy"), said(done)


def test_without_the_count_a_middle_commit_is_still_damage(heap, shm, rng):
    """After a power cut the superblock may say nothing."""
    killed_shell(heap)
    found = list(groups(heap))
    with open(heap / "superblock", "r+b") as file:
        file.seek(APPLIED)
        file.write(bytes(8))
    for at, pages, _ in found[:-1]:
        done = damaged_in(
            heap, shm / "copy", flip(rng.randrange(at, at + pages * PAGE), rng.randrange(8))
        )
        assert done.returncode == 4 and "a later one is" in done.stderr, said(done)
    at, pages, _ = found[-1]
    done = damaged_in(heap, shm / "copy", flip(rng.randrange(at, at + pages * PAGE), 0))
    assert done.returncode == 0, "the last one alone cannot be told from a torn one"


def test_a_journal_that_was_cut_is_damage(heap, shm):
    killed_shell(heap)
    for at, pages, _ in list(groups(heap))[:: SETS // 8]:
        for length in (at, at + PAGE, at + pages * PAGE - 1):
            done = damaged_in(heap, shm / "copy", lambda file, end=length: file.truncate(end))
            assert done.returncode == 4 and "/journal is damaged" in done.stderr, said(done)
            assert "--at good" in done.stderr, said(done)


@pytest.mark.check
def test_a_damaged_count_is_damage(heap):
    killed_shell(heap)
    with open(heap / "superblock", "r+b") as file:
        flip(APPLIED, 2)(file)
    before = fingerprint(heap)
    done = recover(heap)
    assert done.returncode == 4 and "does not match its check" in done.stderr, said(done)
    assert fingerprint(heap) == before


def test_a_journal_that_was_removed_is_damage(heap, shm):
    killed_shell(heap)
    os.remove(heap / "journal")
    before = fingerprint(heap)
    checked, done = recover(heap, "--check"), recover(heap)
    assert checked.returncode == done.returncode == 4, said(checked) + said(done)
    assert "cut or removed" in done.stderr and fingerprint(heap) == before, said(done)
    refuses(shell(heap, "", status=125), "cut or removed")
    succeeds(recover(heap, "--at", "good"))
    shell(heap, "set more room\n")


@pytest.mark.parametrize("restored", ["files", "journal", "clean files"])
def test_a_journal_of_another_time(heap, shm, restored):
    """A backup that was laid over a killed heap, or the journal of an earlier time put back."""
    shell(heap, "".join(f"set k{n} one\n" for n in range(200)), COMMIT="output")
    killed_shell(heap, COMMIT="output")
    earlier = shm / "earlier"
    if restored == "clean files":
        succeeds(recover(heap))
    if restored == "journal":
        shutil.copytree(heap, earlier)
    else:
        succeeds(run([tool("pmalloc-backup"), heap, earlier], False))
    shell(heap, "set k1 two\n", COMMIT="output")
    killed_shell(heap, COMMIT="output")
    if restored == "journal":
        shutil.copy(earlier / "journal", heap / "journal")
    else:
        for file in earlier.iterdir():
            if not file.name.startswith("backup"):
                shutil.copy(file, heap / file.name)
    before = fingerprint(heap)
    for arguments in ((), ("--check",), ("--at", "good")):
        done = recover(heap, *arguments, "--copy")
        assert done.returncode == 4 and "is of another time than" in done.stderr, said(done)
    refuses(run([app("kvshell")], stdin="", HEAP=heap, ROOTS="store"), "remove the journal")
    assert fingerprint(heap) == before
    if restored != "journal":
        (heap / "journal").unlink()
        succeeds(recover(heap, "--copy"))
        assert shell(heap, "get k1\nget k150\n").stdout == "one\none\n"


def test_what_is_before_the_damage_can_be_had(heap, shm):
    killed_shell(heap)
    found = [at for at, _, last in groups(heap) if last]
    copy_heap(heap, shm / "copy")
    with open(heap / "journal", "r+b") as file:
        flip(found[20] + PAGE + 5, 1)(file)
    shell(heap, "", status=125)
    checked = json.loads(succeeds(recover(heap, "--dry-run", "--json", "--at", "good")))
    assert checked["commit"]["journal"] == "damaged"
    done = recover(heap, "--at", "good")
    assert "later ones are lost" in succeeds(done) and "not one instant" in done.stdout
    assert word(heap, APPLIED) & 0xFFFFFFFF == 0 != word(shm / "copy", APPLIED) & 0xFFFFFFFF
    answers = shell(heap, "".join(f"get key{n}\n" for n in range(15))).stdout.split()
    assert answers == [f"value{n}" for n in range(15)]
    assert recover(shm / "copy", "--at", "bad").returncode == 16


def test_what_has_no_journal_counts_no_commits(heap, shm):
    """A backup and a fixed medium are made of files that count commits of a journal."""
    killed_shell(heap)
    assert word(heap, APPLIED) & 0xFFFFFFFF
    backup, medium = shm / "backup", shm / "medium"
    succeeds(run([app("kvshell").parents[1] / "pmalloc-backup", heap, backup], False))
    making = ["--make", "--from", backup, "--size", "32M", "--journal", "8M"]
    succeeds(recover(medium, *making))
    for there in (medium, backup):
        assert recover(there, "--check").returncode in (0, 1)
        assert all_sets(there), there
        killed_shell(there)
        assert all_sets(there), there


# ---- a sync that fails in a run


@needs_strace
@pytest.mark.parametrize("when", [1, 2])
def test_memory_stays_when_a_file_cannot_be_synced(heap, when):
    """Pages that the files have are written again, in the state that the program sees."""
    program = compiled("rot.c", "-rdynamic")
    settings = {"HEAP": heap, "ROOTS": "pages", "COMMIT": "3ms", "preload": True}
    done = injected("fdatasync", "EIO", when, heap / "heap.0", [program, "60000"], **settings)
    assert done.returncode == 0 and done.stdout == "right\n", said(done)
    assert done.stderr.count("cannot be written back") == 1, said(done)
    again = run([program, "20"], HEAP=heap, ROOTS="pages", COMMIT="3ms")
    assert again.returncode == 0 and again.stderr == "", said(again)


# ---- a sync that fails at a start


@needs_strace
@pytest.mark.parametrize("collect", ["always", "later", "background", "api"])
@pytest.mark.parametrize("call", ["fsync", "msync"])
def test_a_first_commit_needs_its_sync(heap, collect, call, tmp_path):
    """The heap is put in doubt before, and stays so until all of it was written again."""
    disk = tmp_path / "heap"
    process = start([app("kvshell")], HEAP=disk, ROOTS="store")
    process.stdin.write("set a one\nset b two\n")
    process.stdin.flush()
    assert [process.stdout.readline() for _ in range(2)] == ["ok\n"] * 2
    process.kill()
    process.communicate()
    settings = {"HEAP": disk, "ROOTS": "store", "COMMIT": "output", "COLLECT": collect}
    path = disk / "heap.0" if call == "fsync" else None
    argv = [app("kvshell")]
    done = injected(call, "EIO", 1, path, argv, **settings, preload=True)
    refuses(done, "cannot be written back" if call == "fsync" else "failed: Input/output error")
    assert word(disk, DOUBT) != 0
    done = run(argv, stdin="get a\nget b\n", **settings)
    assert done.returncode == 0 and done.stdout == "one\ntwo\n", said(done)
    assert "all pages are written once more" in done.stderr, said(done)
    assert word(disk, DOUBT) == 0
    done = run(argv, stdin="get b\n", **settings)
    assert done.stdout == "two\n" and done.stderr == "", said(done)


@needs_strace
def test_a_close_that_is_not_durable_says_so(tmp_path):
    heap = tmp_path / "heap"
    shell(heap, "set colour red\n")
    settings = {"HEAP": heap, "ROOTS": "store", "preload": True}
    done = injected("fsync,fdatasync", "EIO", "1+", heap / "heap.0", [app("kvshell")], **settings)
    if heap_is_in_memory(tmp_path):
        pytest.skip("no sync is made there")
    assert done.returncode == 0, said(done)
    (line,) = done.stderr.splitlines()
    assert f"{heap} could not be closed cleanly: Input/output error; see" in line
    assert "it is dirty" in line
    checked = recover(heap, "--check")
    assert checked.returncode == 1, said(checked)
    done = recover(heap)
    assert done.returncode == 0 and "written once more" in done.stderr, said(done)
    assert shell(heap, "get colour\n").stdout == "red\n"


def test_a_page_that_the_kernel_has_lost_is_no_older_page(heap):
    """Linux gives up a page that it could not write, and then shows what the disk has. A page that
    is as that again is not the same as the page of the last commit, which is in the journal."""
    program = compiled("lost_page.c", "-D_GNU_SOURCE")
    with start([program], HEAP=heap, COMMIT="output", ROOTS="page") as process:
        for word, before in [("a", "-"), ("b", "a"), ("a", "b")]:
            print(word, file=process.stdin, flush=True)
            assert process.stdout.readline() == f"{before}\n"
        with open(heap / "heap.0", "r+b") as file:
            at = file.read().index(b"b" * 4096)
            file.seek(at)
            file.write(b"a" * 4096)
        print("a", file=process.stdin, flush=True)
        assert process.stdout.readline() == "a\n"
        process.kill()
    done = run([program], HEAP=heap, COMMIT="output", stdin="c\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "a\n", ""), said(done)
