# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Heaps of which nobody knows whether the disk has what memory shows: written once more."""

import json
import os
import re

import pytest
from conftest import app, copy_heap, fingerprint, recover, refuses, run, said, start, succeeds, tool
from test_failing_disks import (
    DOUBT,
    PAGE,
    end,
    heap_is_in_memory,
    injected,
    killed_shell,
    needs_strace,
    serving_shell,
    shell,
    word,
)


@needs_strace
@pytest.mark.parametrize("commit", ["", "output"])
def test_who_reads_a_heap_in_doubt_is_told(commit, tmp_path):
    """It may show what its medium does not have, and what memory has lost is older."""
    heap = tmp_path / "heap"
    end(serving_shell(heap, ["set a one"]))
    settings = {"HEAP": heap, "ROOTS": "store", "preload": True}
    settings |= {"COMMIT": commit, "COLLECT": "later"} if commit else {}
    done = injected("fsync", "EIO", 1, heap / "heap.0", [app("kvshell")], **settings)
    if done.returncode == 0 and heap_is_in_memory(tmp_path):
        pytest.skip("no sync is made there")
    refuses(done, "cannot be written back")
    before, doubt = fingerprint(heap), "an earlier run could not write to its medium"
    for argv in (["pmalloc-recover", "--check"], ["pmalloc-recover", "--dry-run", "--json"]):
        done = recover(heap, *argv[1:])
        assert "none, until pmalloc-recover or a start has" in done.stdout, said(done)
        assert doubt in done.stdout and done.stderr == "", said(done)
    told = succeeds(run([tool("pmalloc-info"), "--json", heap], False))
    assert doubt in json.loads(told)["guarantee"]
    medium = ["--make", "--from", heap, "--size", "32M", tmp_path / "medium"]
    for argv in (
        ["pmalloc-backup", heap, tmp_path / "backup"],
        ["pmalloc-recover", *medium],
    ):
        done = run([tool(argv[0]), *argv[1:]], False)
        assert done.returncode == 0, said(done)
        (line,) = done.stderr.splitlines()
        assert f"{heap}: {doubt}" in line and "run pmalloc-recover" in line
    done = shell(heap, "get a\n", OPEN="private")
    assert done.stdout == "one\n" and f"{heap}: {doubt}" in done.stderr, said(done)
    assert fingerprint(heap) == before
    done = shell(tmp_path / "backup", "get a\n")  # it has the doubt of what it was made of
    assert done.stdout == "one\n" and "all pages are written once more" in done.stderr, said(done)
    done = recover(heap)
    assert done.returncode == 0 and "guarantee  none" not in done.stdout, said(done)
    assert shell(heap, "get a\n", OPEN="private").stderr == ""


@needs_strace
def test_a_report_of_the_past_stops_no_second_start(tmp_path):
    """Each file has a report of its own of what the kernel could not write: a start gets all."""
    heap = tmp_path / "heap"
    end(serving_shell(heap, ["set a one"]))
    settings = {"HEAP": heap, "ROOTS": "store", "preload": True}
    done = injected("fsync", "EIO", 1, heap / "roots", [app("kvshell")], **settings)
    if heap_is_in_memory(tmp_path):
        pytest.skip("no sync is made there")
    refuses(done, "cannot be written back")
    done = injected("fsync", "EIO", 1, heap / "heap.0", [app("kvshell")], **settings)
    assert done.returncode == 0 and "written once more" in done.stderr, said(done)
    assert shell(heap, "get a\n").stdout == "one\n"
    killed_shell(heap)
    for file in ("heap.0", "journal"):
        copy = copy_heap(heap, tmp_path / file)
        settings = {"HEAP": copy, "ROOTS": "store", "preload": True}
        done = injected("fdatasync", "EIO", 1, copy / file, [app("kvshell")], **settings)
        assert done.returncode == 0 and done.stderr == "", said(done)
        assert shell(copy, "get key1\n").stdout == "value1\n"


@pytest.mark.check
@needs_strace
def test_what_is_in_doubt_is_written_again(tmp_path):
    """Every page that is not zeroes, of every file; and a hole stays one."""
    heap, trace = tmp_path / "heap", tmp_path / "trace"
    process = start([app("kvshell")], HEAP=heap, ROOTS="store")
    process.stdin.write("".join(f"set k{n} {'x' * 3000}\n" for n in range(300)))
    process.stdin.flush()
    for _ in range(300):
        assert process.stdout.readline() == "ok\n"
    process.kill()
    process.communicate()
    tool = app("kvshell").parents[1] / "pmalloc-recover"
    done = injected("fsync", "EIO", 1, heap / "heap.0", [tool, heap])
    assert done.returncode == 8 and "cannot be written back" in done.stderr, said(done)
    data = (heap / "heap.0").read_bytes()
    blocks = (heap / "heap.0").stat().st_blocks
    watch = ["strace", "-f", "-qq", "-y", "-o", trace, "-e", "trace=pwrite64"]
    done = run([*watch, tool, heap], False)
    assert done.returncode == 0 and "once more" in done.stderr, said(done)
    found = re.findall(r"heap\.0>, .*, (\d+), (\d+)\) = \1", trace.read_text())
    written = {page for n, at in found for page in range(int(at), int(at) + int(n), 4096)}
    wanted = {
        at for at in range(0, len(data), PAGE) if data[at : at + PAGE].strip(b"\0")
    }
    assert len(wanted) > 200 and wanted <= written
    assert (heap / "heap.0").stat().st_blocks <= blocks
    assert word(heap, DOUBT) == 0
    assert os.path.getsize(heap / "superblock") and recover(heap, "--check").returncode == 0


@needs_strace
def test_a_try_that_fails_keeps_what_memory_has(tmp_path):
    """A write around the page cache drops the pages first. If it fails, they were nowhere: a second
    start on a disk that still failed lost what the first one had kept."""
    heap, trace = tmp_path / "heap", tmp_path / "trace"
    killed_shell(heap, 1, COMMIT=None)
    argv = [tool("pmalloc-recover"), heap]
    done = injected("fsync", "EIO", 1, heap / "heap.0", argv)
    if done.returncode == 0 and heap_is_in_memory(tmp_path):
        pytest.skip("no sync is made there")
    assert done.returncode == 8, said(done)
    done = injected("pwrite64", "EIO", 1, heap / "heap.0", argv, trace=trace)
    assert done.returncode == 8 and "cannot be written back" in done.stderr, said(done)
    places = re.findall(r"pwrite64\(.*, (\d+), (\d+)\) = ", trace.read_text())
    assert len(places) >= 2 and places[0] == places[1], trace.read_text()
    assert word(heap, DOUBT) != 0 and recover(heap).returncode == 0
    assert shell(heap, "get key0\n").stdout == "value0\n"


@needs_strace
@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("commit", [None, "output", "1s"])
def test_a_report_may_have_been_taken(tmp_path, commit, between):
    """By another program's sync of a file of a heap whose program was killed. So who begins commit
    mode writes once more what memory has, and so does pmalloc-recover; once. A start without commit
    mode between relies on reports, and its clean close proves nothing."""
    heap, trace = tmp_path / "heap", tmp_path / "trace"
    killed_shell(heap, 1, COMMIT=None)
    if heap_is_in_memory(tmp_path):
        pytest.skip("no sync is made there")
    if between:
        assert shell(heap, "get key0\n").stderr == ""
    data = (heap / "heap.0").read_bytes()
    wanted = {at for at in range(0, len(data), PAGE) if data[at : at + PAGE].strip(b"\0")}
    argv, settings = [tool("pmalloc-recover"), heap], {}
    if commit:
        argv = [app("kvshell")]
        settings = {"HEAP": heap, "ROOTS": "store", "COMMIT": commit, "preload": True}
    for written_again in (True, False):
        done = injected("pwrite64", None, 1, heap / "heap.0", argv, trace=trace, **settings)
        assert done.returncode == 0 and (commit is None or done.stderr == ""), said(done)
        found = re.findall(r"pwrite64\(.*, (\d+), (\d+)\) = \1", trace.read_text())
        times = {at: 0 for at in wanted}
        for n, at in found:
            for page in range(int(at), int(at) + int(n), PAGE):
                times[page] = times.get(page, 0) + 1
        if written_again and (commit or not between):  # nothing is recovered of a clean heap
            assert len(wanted) > 3 and min(times[at] for at in wanted) >= 1, times
        else:
            assert sum(times.values()) < len(wanted), times
    assert shell(heap, "get key0\n").stdout == "value0\n"


@needs_strace
def test_pages_that_cannot_be_written_once_more(tmp_path):
    """The next start says that a write has failed, not only that a start was ended."""
    heap = tmp_path / "heap"
    killed_shell(heap, 1, COMMIT=None)
    if heap_is_in_memory(tmp_path):
        pytest.skip("no sync is made there")
    settings = {"HEAP": heap, "ROOTS": "store", "COMMIT": "output", "preload": True}
    done = injected("pwrite64", "EIO", "1", heap / "heap.0", [app("kvshell")], **settings)
    refuses(done, "heap.0: what is stored there cannot be written back")
    done = shell(heap, "get key0\n", COMMIT="output")
    assert done.stdout == "value0\n", said(done)
    assert "an earlier run could not write to its medium" in done.stderr, said(done)
    assert "restore a backup" in done.stderr, said(done)


@needs_strace
def test_a_new_heap_is_not_refused_for_what_others_have_lost(tmp_path):
    """syncfs(2) reports once what any program has failed to write to the file system."""
    if heap_is_in_memory(tmp_path):
        pytest.skip("no sync is made there")
    for when, status in (("1", 0), ("1+", 125)):
        heap = tmp_path / f"heap{status}"
        settings = {"HEAP": heap, "ROOTS": "store", "preload": True}
        done = injected("syncfs", "ENOSPC", when, None, [app("kvshell")], **settings)
        assert done.returncode == status, said(done)
        assert ("No space left" in done.stderr) == (status != 0), said(done)


@needs_strace
def test_the_file_that_a_commit_cannot_reach_is_named(tmp_path):
    heap = tmp_path / "heap"
    killed_shell(heap, 1)
    argv = [tool("pmalloc-recover"), heap]
    done = injected("pwrite64", "EIO", "1+", heap / "heap.0", argv)
    assert done.returncode == 8, said(done)
    assert "brought into the other files: heap.0: Input/output error" in done.stderr, said(done)
    assert shell(heap, "get key0\n").stdout == "value0\n"


@needs_strace
def test_a_failed_sync_takes_all_reports(tmp_path):
    """Each descriptor has reports of its own. The head is mapped by another one than the parts: it
    would have one left of an error that is mended, and the first flush of metadata at the close
    would end the program."""
    medium, trace = tmp_path / "medium", tmp_path / "trace"
    sizes = ["--size", "32M", "--journal", "4M"]
    done = run([tool("pmalloc-recover"), "--make", *sizes, medium], False)
    if done.returncode == 8 and "allocated" in done.stderr:
        pytest.skip("no space can be allocated there")
    succeeds(done)
    settings = {"HEAP": medium, "ROOTS": "store", "COMMIT": "output", "preload": True}
    head = injected("mmap", None, 1, medium, [app("kvshell")], trace=trace, **settings)
    assert head.returncode == 0, said(head)
    stored = r"mmap\(.*PROT_WRITE, MAP_SHARED[^,]*, (\d+), 0\)"
    (other,) = set(re.findall(stored, trace.read_text()))
    more = "set a one\nset b two\n"
    command = [app("kvshell")]
    injected("fdatasync", "EIO", 3, medium, command, trace=trace, stdin=more, **settings)
    failed = re.search(r"fdatasync\((\d+)\) += -1 EIO.*\n.*fdatasync\((\d+)\)", trace.read_text())
    assert failed and failed.group(2) == other != failed.group(1), trace.read_text()


@needs_strace
def test_a_full_disk_is_not_a_small_journal(tmp_path):
    """A commit to a medium fails: for a larger journal who has a full disk looks in vain."""
    medium, more = tmp_path / "medium", "set a one\nset b two\n"
    sizes = ["--size", "32M", "--journal", "4M"]
    done = run([tool("pmalloc-recover"), "--make", *sizes, medium], False)
    if done.returncode == 8 and "allocated" in done.stderr:
        pytest.skip("no space can be allocated there")
    succeeds(done)
    assert shell(medium, more, COMMIT="output").stderr == ""
    settings = {"HEAP": medium, "ROOTS": "store", "COMMIT": "output", "preload": True}
    done = injected("fdatasync", "ENOSPC", "3+", medium, [app("kvshell")], stdin=more, **settings)
    assert "No space left on device" in done.stderr, said(done)
    assert "too small" not in done.stderr, said(done)
