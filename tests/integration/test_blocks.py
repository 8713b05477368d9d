# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""pmalloc-info --blocks: the blocks of a heap with their types, of a heap at rest, after a kill and
of a program that runs, on each kind of medium; what is asked for wrongly."""

import json
import re
import signal

import pytest
from conftest import linked, run, start, succeeds, tool

MEDIA = ["tmpfs", "file", "fixed", "commit"]
UNREACHED = 100  # blocks of 500


@pytest.fixture(scope="module")
def typed():
    return linked("typed.c")


class Block:
    def __init__(self, address, size, type, pointer_free, pinned, reached):
        self.address, self.size, self.type = address, size, type
        self.pointer_free, self.pinned, self.reached = pointer_free, pinned, reached

    def key(self):
        return self.address, self.type, self.pointer_free, self.pinned, self.reached


@pytest.fixture
def program(typed, heap, place_of, processes):
    class Program:
        def start(self, mode, **settings):
            settings = {**place_of["settings"], **settings}
            process = start([typed, mode], HEAP=place_of["heap"], preload=False, **settings)
            processes.append(process)
            blocks = []
            while (line := process.stdout.readline()) not in ("ready\n", ""):
                blocks.append(Block(*map(int, line.split())))
            assert line, process.stderr.read()
            return process, blocks

        def end(self, process):
            out, err = process.communicate("end\n")
            assert process.returncode == 0, out + err

        def kill(self, process):
            process.kill()
            assert process.wait() == -signal.SIGKILL

    p = Program()
    p.heap = place_of["heap"]
    p.commits = bool(place_of["settings"])
    return p


@pytest.fixture
def place_of(request, heap, shm, tmp_path):
    medium = getattr(request, "param", "tmpfs")
    if medium == "fixed":
        path = shm / "medium"
        argv = [tool("pmalloc-recover"), "--make", "--size", "96M", path]
        succeeds(run(argv, preload=False))
        return {"heap": path, "settings": {}}
    where = tmp_path / "heap" if medium == "file" else heap
    return {"heap": where, "settings": {"COMMIT": "20ms"} if medium == "commit" else {}}


def blocks(of, *options):
    argv = [tool("pmalloc-info"), "--blocks", "--json", *options, of]
    report = json.loads(succeeds(run(argv, preload=False)))
    assert report["blocks"] == len(report["list"])
    assert report["bytes"] == sum(b["bytes"] for b in report["list"])
    return report


def keys(report, types=range(1, 9)):
    types = {*types, 65531}
    return {
        (b["address"], b["type"], b["pointer_free"], b["pinned"], b["reached"])
        for b in report["list"]
        if b["type"] in types
    }


def expected(made, unreached=True, small=True):
    """Of those that no root reaches: all, or the large ones alone."""
    return {b.key() for b in made if b.reached or (unreached and (small or b.size > 20000))}


def fits(report, made):
    size = {b["address"]: b["bytes"] for b in report["list"]}
    return all(b.size <= size[b.address] for b in made if b.address in size)


@pytest.mark.parametrize("place_of", MEDIA, indirect=True)
def test_live_then_at_rest(program):
    process, made = program.start("make")
    live = blocks(program.heap)
    assert live["process"] == process.pid and live["exact"] != program.commits
    assert live["last_commit"] == program.commits
    if program.commits:
        assert keys(live) == expected(made, small=False)
    else:
        assert keys(live) == expected(made)
        assert keys(blocks(process.pid)) == expected(made)
    assert fits(live, made) and len(made) == 500
    program.end(process)
    rest = blocks(program.heap)
    assert rest["exact"] and keys(rest) == expected(made) and fits(rest, made)
    assert len({b["address"] for b in rest["list"]}) == rest["blocks"]


@pytest.mark.parametrize("place_of", MEDIA, indirect=True)
def test_after_a_kill(program):
    process, made = program.start("make")
    program.kill(process)
    rest = blocks(program.heap)
    assert not rest["exact"] and keys(rest) == expected(made, small=False)
    # The next start frees what nothing reaches. Nobody has touched a slab of it yet.
    process, _ = program.start("hold")
    live = blocks(program.heap)
    assert keys(live) == expected(made, unreached=False)
    program.kill(process)
    assert keys(blocks(program.heap)) == expected(made, unreached=False)


@pytest.mark.parametrize("collect", ["later", "background"])
def test_slabs_that_are_kept(program, collect):
    """Their tags are not written: what was allocated at the last clean end is."""
    process, made = program.start("make")
    program.end(process)
    process, _ = program.start("hold", COLLECT=collect)
    live = keys(blocks(program.heap))
    assert live <= expected(made) and expected(made, unreached=False) <= live
    assert collect != "later" or live == expected(made)
    program.end(process)
    assert expected(made, unreached=False) <= keys(blocks(program.heap))


def test_a_busy_program(program):
    process, made = program.start("busy")
    for _ in range(5):
        live = blocks(program.heap)
        assert keys(live) == expected(made)
        assert len({b["address"] for b in live["list"]}) == live["blocks"]
    program.end(process)


def test_some_of_them(program):
    process, made = program.start("make")
    for of in program.heap, "at rest":
        if of == "at rest":
            program.end(process)
        assert keys(blocks(program.heap, "--type", 3)) == {
            b.key() for b in made if b.type == 3
        }
        assert not keys(blocks(program.heap, "--type", 0))
        assert blocks(program.heap, "--type", 0)["blocks"] > 0
        assert blocks(program.heap, "--type", 4711)["blocks"] == 0
        lost = blocks(program.heap, "--unreached")
        assert keys(lost) == {b.key() for b in made if not b.reached}
        large = blocks(program.heap, "--class", "large", "--type", 65531)
        assert {b["address"] for b in large["list"]} == {
            b.address for b in made if b.type == 65531 and b.size > 20000
        }
        small = blocks(program.heap, "--class", 320)
        assert {b["bytes"] for b in small["list"]} == {320}
        # 16 and 53 more have 311 and 317: the blocks of these sizes alone
        sizes = {b.size for b in made if 256 < b.size <= 320}
        assert sizes and keys(small) == {b.key() for b in made if b.size in sizes}


def test_leaks_do_not_count_what_is_reached(program):
    """Large blocks of a kind, too."""
    process, made = program.start("make")
    program.end(process)
    argv = [tool("pmalloc-info"), "--leaks", "--json", program.heap]
    report = json.loads(succeeds(run(argv, preload=False)))
    lost = blocks(program.heap, "--unreached")
    assert (report["blocks"], report["bytes"]) == (lost["blocks"], lost["bytes"])
    assert lost["blocks"] >= UNREACHED


def test_as_text(program):
    process, made = program.start("make")
    argv = [tool("pmalloc-info"), "--blocks", "--type", "1"]
    live = succeeds(run([*argv, program.heap], preload=False))
    assert re.search(rf"^process {process.pid} was stopped for [\d.]+ ms$", live, re.MULTILINE)
    program.end(process)
    rest = succeeds(run([*argv, program.heap], preload=False))
    lines = rest.splitlines()
    for b in made:
        words = (
            "  type 1"
            + "  pointer-free" * b.pointer_free
            + "  pinned" * b.pinned
            + "" * b.reached
            + "  unreached" * (not b.reached)
        )
        if b.type == 1:
            found = [line for line in lines if line.startswith(f"0x{b.address:012x} ")]
            assert len(found) == 1 and re.fullmatch(rf"0x\w+ +\d+{words}", found[0]), found
    assert re.fullmatch(r"\d+ blocks, [\d.]+ [KMG]?i?B", lines[-1]), lines[-1]
    assert live.splitlines()[: len(lines) - 1] == lines[:-1]
    program.kill(program.start("hold")[0])
    leaks = succeeds(run([tool("pmalloc-info"), "--leaks", program.heap], preload=False))
    assert "only large blocks are counted" in leaks
    assert "small blocks that no root reaches are missing" in succeeds(
        run([*argv, program.heap], preload=False)
    )


@pytest.mark.parametrize(
    "options, text",
    [
        (["--blocks", "--type", "65536"], "--type"),
        (["--blocks", "--type", "-1"], "--type"),
        (["--blocks", "--type", "five"], "--type"),
        (["--blocks", "--class", "65"], "--class 65: no block has this size; the next one is 80"),
        (["--blocks", "--class", "0"], "--class 0: no block has this size; the next one is 16"),
        (["--blocks", "--class", "20000"], "at most 16384, or large"),
        (["--blocks", "--class", "6x"], "--class 6x: the bytes of a block"),
        (["--blocks", "--class", ""], "--class : the bytes of a block"),
        (["--blocks", "--leaks"], "goes with"),
        (["--blocks", "--depth", "2"], "--blocks goes with --type, --class, --unreached and"),
        (["--type", "5"], "go with --blocks"),
        (["--unreached"], "go with --blocks"),
    ],
)
def test_wrong(options, text, heap):
    done = run([tool("pmalloc-info"), *options, heap], preload=False)
    assert done.returncode == 16 and text in done.stderr, done.stderr
    assert not done.stdout and len(done.stderr.splitlines()) <= 2


def test_who_cannot_be_asked(heap, processes):
    sleeper = start(["sleep", "100"], preload=False)
    processes.append(sleeper)
    for of, text in [(sleeper.pid, "PMAlloc"), (99999999, "99999999"), (heap, str(heap))]:
        done = run([tool("pmalloc-info"), "--blocks", of], preload=False)
        assert done.returncode == 8 and text in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == 1
        done = run([tool("pmalloc-info"), "--blocks", "--json", of], preload=False)
        assert done.returncode == 8 and "error" in json.loads(done.stdout)
