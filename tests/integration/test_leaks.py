# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""PMALLOC_LEAKS: which blocks of a living process nothing reaches. No block that is reached in any
way is reported, and each that is lost is. The program is leaks.c."""

import json
import re
import shutil

import pytest
from conftest import compiled, fingerprint, recover, run, said, succeeds, tool

LOST = {112: (7, 784), 16384: (3, 3 * 20480), 262144: (2, 2 * 327680)}
WAYS = ["global", "interior", "chain", "large", "mapped", "shared", "tls", "coroutine", "freed"]
THREADS = "register vector sleep red-zone thread-tls thread-key alternate-stack".split()


@pytest.fixture(scope="module")
def leaks():
    return compiled("leaks.c", "-O1", "-g", "-fno-inline")


def report(done):
    """The figures of each size, and of the head."""
    assert done.returncode == 0, said(done)
    head = re.findall(
        r"leaks: nothing reaches (\d+) of (\d+) blocks, (\d+) of (\d+) bytes", done.stderr
    )
    assert len(head) == 1, said(done)
    rows = re.findall(r"leaks: +(\d+)[+ ] +(\d+) +(\d+)  0x[0-9a-f]+$", done.stderr, re.M)
    found = {int(size): (int(blocks), int(size_sum)) for size, blocks, size_sum in rows}
    blocks, in_use, size_sum, _ = (int(n) for n in head[0])
    assert blocks == sum(n for n, _ in found.values()) <= in_use, said(done)
    assert size_sum == sum(n for _, n in found.values()), said(done)
    return found


@pytest.mark.parametrize("way", WAYS + THREADS)
def test_what_is_reached_is_no_leak(leaks, way):
    assert report(run([leaks, way], BACKING="volatile", LEAKS=1)) == LOST


@pytest.mark.parametrize("way", ["data", "tls"])
def test_what_a_library_keeps(leaks, way, tmp_path):
    library = compiled("leaks_library.c", "-fPIC", "-shared", name="libleaks.so")
    path = shutil.copy(library, tmp_path / f"{way}.so")
    done = run([leaks, "library-" + way, path], BACKING="volatile", LEAKS=1)
    assert report(done) == LOST


def test_what_is_lost_is_a_leak(leaks):
    done = run([leaks, "lost"], BACKING="volatile", LEAKS=1)
    assert report(done) == {**LOST, 5120: (1, 5120)}


@pytest.mark.parametrize("way", ["chain", "sleep", "register"])
@pytest.mark.parametrize("settings", [{}, {"ROOTS": "global"}], ids=["rootless", "rooted"])
def test_a_heap_on_media(leaks, heap, way, settings):
    done = run([leaks, way], HEAP=heap, LEAKS=1, **settings)
    assert report(done) == LOST
    assert recover(heap, "--check").returncode in (0, 1)


# The second run finds the chain of the first in its variable, and its slabs without tags. What the
# first has lost is gone.
def test_a_recovered_heap(leaks, heap):
    assert report(run([leaks, "chain"], HEAP=heap, ROOTS="global", LEAKS=1)) == LOST
    done = run([leaks, "none"], HEAP=heap, ROOTS="global", LEAKS=1)
    assert report(done) == LOST
    assert int(re.search(r"of (\d+) blocks", done.stderr)[1]) > 100_000


@pytest.mark.parametrize("collect", ["always", "later"])
def test_pages_first_written_after_a_kill(heap, collect):
    """The file system shows no data there when the second run starts. (Under `later` blocks that
    were in a thread cache when the first was killed are leaks, too.)"""
    program = compiled("unwritten.c", "-O0")
    settings = {"HEAP": heap, "ROOTS": "unwritten", "COLLECT": collect}
    assert run([program], **settings).returncode == -9
    assert report(run([program], LEAKS=1, **settings)).keys() <= {512}


def test_a_forked_child_reports_too(leaks):
    done = run([leaks, "child"], BACKING="volatile", LEAKS=1)
    heads = re.findall(r"nothing reaches (\d+) of", done.stderr)
    assert done.returncode == 0 and sorted(heads) == ["0", "12"], said(done)


def test_nothing_is_printed_without_the_setting(leaks):
    assert run([leaks, "lost"], BACKING="volatile").stderr == ""


def test_without_proc(leaks):
    """Where the memory of the process cannot be found out, the report says so."""
    if not shutil.which("unshare"):
        pytest.skip("unshare is missing")
    script = f"mount -t tmpfs none /proc && exec {leaks} lost"
    done = run(["unshare", "-rm", "sh", "-c", script], BACKING="volatile", LEAKS=1, PROGRAM=None)
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip("no user namespaces here")
    assert done.returncode == 0, said(done)
    no_report = "leaks: no report: /proc/thread-self/maps cannot be read: No such file"
    assert no_report in done.stderr


PROGRAMS = [
    (["python3", "-c", "import json, threading; print(json.dumps([1]))"], "[1]"),
    (["perl", "-e", 'print join(",", map { $_ * 2 } 1..3)'], "2,4,6"),
    (["gawk", "BEGIN { print 1 + 1 }"], "2"),
]


@pytest.mark.parametrize("argv,output", PROGRAMS, ids=[argv[0] for argv, _ in PROGRAMS])
def test_real_programs(argv, output):
    program = shutil.which(argv[0], path="/usr/bin:/bin")
    done = run([program, *argv[1:]], LEAKS=1, BACKING="volatile")
    assert succeeds(done).strip() == output
    assert re.search(r"leaks: nothing reaches \d+ of \d+ blocks", done.stderr), said(done)


# What the program has lost is still in its heap, and so says the tool; the next start frees it.
@pytest.mark.parametrize("end", ["exit", "kill"])
def test_a_heap_at_rest(leaks, heap, end):
    way = "chain" if end == "exit" else "killed"
    done = run([leaks, way], HEAP=heap, ROOTS="global")
    assert done.returncode == (0 if end == "exit" else -9), said(done)
    before = fingerprint(heap)
    info = [tool("pmalloc-info"), "--leaks"]
    found = json.loads(succeeds(run([*info, "--json", heap], preload=False)))
    text = succeeds(run([*info, heap], preload=False))
    sizes = {row["from"]: (row["blocks"], row["bytes"]) for row in found["sizes"]}
    assert found["exact"] == (end == "exit") == ("not on record" not in text)
    assert sizes == {size: row for size, row in LOST.items() if size > 112 or found["exact"]}
    assert found["blocks"] == sum(blocks for blocks, _ in sizes.values())
    assert text.startswith(f"no root reaches {found['blocks']} blocks, {found['bytes']} bytes; ")
    assert fingerprint(heap) == before
    assert recover(heap).returncode == 0
    wrong = run([*info, "--map", heap], preload=False)
    assert wrong.returncode == 16 and "--leaks goes with --json only" in wrong.stderr


def sites(done):
    """Of each place that has allocated leaks: the bytes, and its calls as (object, offset)."""
    head = r"leaks: (\d+) bytes in \d+ blocks, one at 0x\w+, allocated by:\n"
    parts = re.split(head, done.stderr)
    calls = [re.findall(r"leaks:     #\d+ (\S+)\+(0x[0-9a-f]+)", part) for part in parts[2::2]]
    return dict(zip((int(n) for n in parts[1::2]), calls))


@pytest.mark.parametrize("backing", ["volatile", "file", "shards"])
def test_where_leaks_were_allocated(leaks, heap, backing):
    settings = {"BACKING": "volatile"} if backing == "volatile" else {"HEAP": heap}
    if backing == "shards":
        settings["SHARD"] = "4M"
    done = run([leaks, "sleep"], LEAKS="stack", **settings)
    assert report(done) == LOST
    found = sites(done)
    assert sorted(found) == sorted(size for _, size in LOST.values()), said(done)
    for calls in found.values():
        addresses = [hex(int(at, 16) - 1) for file, at in calls if file == str(leaks)]
        names = succeeds(run(["addr2line", "-f", "-e", leaks, *addresses], preload=False))
        assert names.splitlines()[:4:2] == ["lose", "main"], names


def test_stacks_of_a_threaded_program(leaks):
    program = "import threading; t = [threading.Thread(target=dict) for _ in range(9)]; " + (
        "[x.start() for x in t]; [x.join() for x in t]; print(len(t))"
    )
    done = run(["/usr/bin/python3", "-c", program], LEAKS="stack", BACKING="volatile")
    assert succeeds(done) == "9\n"
    assert re.search(r"leaks: nothing reaches \d+ of \d+ blocks", done.stderr), said(done)
