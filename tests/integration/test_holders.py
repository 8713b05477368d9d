# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""pmalloc-info --holders: which words of variables lead to the data, of a heap at rest and of a
process, which does not notice. Its names can be given as roots."""

import contextlib
import json
import shutil
import signal
import subprocess

import pytest
from conftest import compiled, run, said, start, succeeds, tool
from test_late_roots import Redis, redis_roots

NODES, MIDDLE, ROWS, LIBRARY, SLOT = 1000, 500, 64, 300, 20
# Blocks by each word: nearest, alone, all that it reaches.
EXPECTED = {
    "store+0x10/8": (1, 0, NODES),  # store+0x18/8 leads there, too
    "alias": (MIDDLE - 1, 0, NODES - 1),
    "middle": (NODES - MIDDLE, 0, NODES - MIDDLE),
    "table": (1 + ROWS, 1 + ROWS, 1 + ROWS),
    "libheld.so:library_head": (LIBRARY, LIBRARY, LIBRARY),
    "tagged": (1, 1, 1),
    "guarded+0x1000/8": (1, 1, 1),
    "slot 7": (SLOT, SLOT, SLOT),
}


@pytest.fixture(scope="module")
def program():
    library = compiled("holders_library.c", "-shared", "-fPIC", name="libheld.so")
    rpath = f"-Wl,-rpath,{library.parent}"
    return compiled("holders.c", "-fPIC", rpath, libraries=(library,))


@pytest.fixture(scope="module")
def stripped(program):
    out = program.with_name("holders-stripped")
    subprocess.run(["strip", "-o", out, program], check=True)
    return out


def held(*of):
    return json.loads(
        succeeds(run([tool("pmalloc-info"), "--holders", "--json", *of], preload=False))
    )


def rows(report):
    return {
        row["root"]: tuple(row[kind]["blocks"] for kind in ("nearest", "alone", "reaches"))
        for row in report["holders"]
    }


@contextlib.contextmanager
def ready(program, *arguments, **settings):
    """It must go on afterwards, unless it was killed."""
    process = start([program, "wait", *arguments], **settings)
    try:
        assert process.stdout.readline() == "ready\n", process.communicate()
        yield process
        if process.poll() is not None:
            return
        print("", file=process.stdin, flush=True)
        assert process.stdout.readline() == f"{NODES}\n"
        process.stdin.close()
        assert process.wait() == 0, process.stderr.read()
    finally:
        process.kill()


@pytest.mark.parametrize("commit", [None, "api", "output", "20ms"])
@pytest.mark.parametrize("roots", [None, "*", "store"])
def test_a_process(program, heap, roots, commit):
    """With whatever roots it was started. Under commits the heap is that of the last one."""
    with ready(program, HEAP=heap, ROOTS=roots, ROOTLESS="quiet", COMMIT=commit) as process:
        if commit in (None, "output"):
            report = held(process.pid)
            assert EXPECTED.items() <= rows(report).items(), report
            members = {row["root"]: row.get("member") for row in report["holders"]}
            (also,) = [row["also"] for row in report["holders"] if row["root"] == "store+0x10/8"]
            assert also == ["store+0x18/8"]
            assert members["store+0x10/8"] == "store.list" and members["alias"] == "alias"
            assert report["held_ns"] > 0 and report["process"] == process.pid
            first = [row["root"] for row in report["holders"]][:3]
            assert first == ["middle", "alias", "libheld.so:library_head"]
        else:
            held(process.pid)


def test_a_page_that_cannot_be_read(program, heap):
    """Only what is in it is not seen."""
    with ready(program, "guard", HEAP=heap, ROOTLESS="quiet") as process:
        report = held(process.pid)
        assert EXPECTED.items() <= rows(report).items(), report


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_program_that_was_upgraded(program, heap, tmp_path, how):
    """The process still runs the old file, and has its variables."""
    old = tmp_path / "old"
    shutil.copy(program, old)
    with ready(old, HEAP=heap, ROOTLESS="quiet") as process:
        old.unlink()
        if how == "replaced":
            shutil.copy("/bin/true", old)
        done = run([tool("pmalloc-info"), "--holders", "--json", process.pid], preload=False)
        found = rows(json.loads(succeeds(done)))
        assert EXPECTED.items() <= found.items(), said(done)


@pytest.mark.parametrize("how", ["--holders", "--out"])
def test_data_in_memory(program, shm, how):
    """PMALLOC_COMMIT_DIR: the heap is that in the directory, as of its last commit."""
    (shm / "there").mkdir()
    settings = {"COMMIT": "output", "COMMIT_DIR": shm / "there", "ROOTS": "store"}
    with ready(program, ROOTLESS="quiet", **settings) as process:
        report = run([tool("pmalloc-info"), how, "--json", process.pid], preload=False)
        report = json.loads(succeeds(report))
        assert report["heap"] == str(shm / "there")
        assert how == "--out" or rows(report)["store+0x10/8"] == EXPECTED["store+0x10/8"], report


def test_a_process_by_the_name_of_its_heap(program, heap):
    with ready(program, HEAP=heap, ROOTS="*") as process:
        assert rows(held(process.pid)) == rows(held(heap))


@pytest.mark.parametrize("killed", [False, True])
def test_a_heap_at_rest(program, heap, killed):
    """Of a library whose variables are one root nobody knows then where they lie in it."""
    with ready(program, HEAP=heap, ROOTS="*,libheld.so:library_head") as process:
        if killed:
            process.kill()
            process.wait()
    found = rows(held(heap))
    assert EXPECTED.items() <= found.items(), found


def test_a_stripped_program(program, stripped, heap):
    """Its words have offsets, and these can be pasted."""
    symbols = [line.split() for line in run(["nm", program], preload=False).stdout.splitlines()]
    (place,) = [int(words[0], 16) for words in symbols if words[-1] == "store"]
    with ready(stripped, HEAP=heap, ROOTS="*") as process:
        found = rows(held(process.pid))
    assert found[f"+0x{place + 16:x}/8"] == EXPECTED["store+0x10/8"], found


@pytest.mark.parametrize("name", ["table", "store+0x10/8", "libheld.so:library_head"])
def test_a_name_is_a_root(program, heap, name):
    """The data of the pasted root, alone, is what the next run has."""
    with ready(program, HEAP=heap, ROOTS=name) as process:
        process.kill()
        process.wait()
        (row,) = held(heap)["holders"][:1]
    assert row["root"] == name and row["alone"]["blocks"] == EXPECTED[name][2]


def test_text(program, heap):
    with ready(program, HEAP=heap, ROOTS="*") as process:
        argv = [tool("pmalloc-info"), "--holders", "--width", "2", process.pid]
        text = succeeds(run(argv, preload=False))
    lines = text.splitlines()
    assert "words of variables lead to" in lines[0] and "was stopped for" in lines[1]
    assert lines[3].split() == ["nearest", "alone", "reaches", "word"]
    assert [line.split()[-1] for line in lines[4:]] == ["middle", "alias"]


@pytest.mark.parametrize(
    "options, why",
    [
        (["--holders", "--leaks", "1"], "goes with"),
        (["--holders", "--depth", "2", "1"], "--holders goes with --width and --json only"),
        (["--holders", "--width", "0", "1"], "--width"),
        (["--holders", "99999999"], "99999999"),
    ],
)
def test_bad_command_lines(options, why):
    done = run([tool("pmalloc-info"), *options], preload=False)
    assert done.returncode in (8, 16) and done.stderr.count("\n") == 1 and why in done.stderr, said(
        done
    )


def test_a_process_without_a_heap():
    process = start(["sleep", "100"], preload=False)
    try:
        done = run([tool("pmalloc-info"), "--holders", process.pid], preload=False)
    finally:
        process.kill()
        process.wait()
    assert done.returncode == 8 and "has no heap on media" in done.stderr, said(done)


def test_redis(shm):
    """The table of its databases comes first, although the program is stripped."""
    if not shutil.which("redis-benchmark"):
        pytest.skip("redis-tools is not installed")
    roots = redis_roots(shm)
    redis = Redis(shm / "heap", "*", shm)
    try:
        redis.ask("debug", "populate", "20000", "key", "30")
        first = held(redis.process.pid)["holders"][0]
    finally:
        redis.stop(signal.SIGKILL)
    # Amid its work redis has another pointer to it.
    assert "server+0x40/8" in [first["root"], *first["also"]], first
    assert first["nearest"]["blocks"] > 20000, first
    assert "+0x2474e0" in roots
