# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Before and at the end of the room: PMALLOC_WARN, space in reserve (PMALLOC_SPARE), and
`pmalloc-recover --grow` while the program runs. The program is docs/examples/notes.c: no note that
it says it keeps is lost, whatever is full."""

import json
import os
import subprocess
import time

import pytest

from conftest import BUILD, ROOT, compiled, environment, refuses, room, run, said, tmpfs, tool

NOTE = "x" * 4000
MB = 1 << 20
FULL = "no room: not kept"
# So that a commit takes little of a small file system.
COMMIT = {"COMMIT": "output", "COMMIT_PAGES": "256"}
MODES = pytest.mark.parametrize("mode", [{}, COMMIT], ids=["shared", "output"])


@pytest.fixture(scope="session")
def notes():
    return compiled(ROOT / "docs" / "examples" / "notes.c")


class Program:
    def __init__(self, notes, heap, **settings):
        self.process = subprocess.Popen(
            [notes],
            env=environment(HEAP=heap, ROOTS="newest", **settings),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        line = self.process.stdout.readline()
        assert line.endswith(" notes\n"), self.process.communicate()
        self.found, self.kept = int(line.split()[0]), 0

    def ask(self, note=NOTE):
        self.process.stdin.write(note + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        self.kept += answer == "kept"
        return answer

    def fill(self, most=100_000):
        """Until nothing more is kept. How many notes were."""
        for count in range(most):
            if self.ask() != "kept":
                return count
        return most

    def end(self, kill=False):
        """What it has said on standard error."""
        if kill:
            self.process.kill()
        _, lines = self.process.communicate(timeout=60)
        assert self.process.returncode == (-9 if kill else 0), lines
        return lines.splitlines()


@pytest.fixture
def start(notes):
    running = []

    def go(heap, **settings):
        running.append(Program(notes, heap, **settings))
        return running[-1]

    yield go
    for program in running:
        program.process.kill()
        program.process.communicate()


def recover(*words):
    return run([tool("pmalloc-recover"), *words], preload=False)


def grow(*words):
    done = recover("--json", *words)
    assert done.returncode == 0, said(done)
    return json.loads(done.stdout)


def is_there(start, heap, count, **settings):
    again = start(heap, **settings)
    assert again.found == count
    again.end()
    assert recover("--check", heap).returncode == 0


# ---- a full file system --------------------------------------------------------------------------


@pytest.mark.check
@MODES
def test_the_reserve_makes_room_at_once(start, shm, mode):
    with tmpfs(shm / "small", 8192) as small:
        heap = small / "heap"
        program = start(heap, SPARE="4M", **mode)
        assert (heap / "spare").stat().st_blocks * 512 == 4 * MB
        assert program.fill() > 1000
        before = room(small)
        assert grow("--spare", "0", heap)["spare_bytes"] == 0
        assert room(small) == before + 4 * MB and not (heap / "spare").exists()
        assert program.ask() == "kept" and program.fill() * 4096 > 1.9 * MB
        lines = program.end(kill=True)
        assert sum("no space for the heap" in line for line in lines) == 1, lines
        is_there(start, heap, program.kept, **mode)


@MODES
def test_another_directory_while_it_runs(start, shm, mode):
    with tmpfs(shm / "first", 10_000) as first, tmpfs(shm / "second", 10_000) as second:
        heap, more = first / "heap", second / "more"
        program = start(heap, **mode)
        assert program.fill() > 1000
        full = recover("--grow", f"{heap}:{more}")
        assert full.returncode == 0 and f"{more} is number 2" in full.stdout
        assert program.fill() * 4096 > 20 * MB
        assert (more / "heap.1").stat().st_blocks
        assert recover("--grow", f"{heap}:{more}").returncode == 16  # nothing new
        lines = program.end(kill=True)
        assert sum("no space for the heap" in line for line in lines) == 1, lines
        is_there(start, heap, program.kept, **mode)


def test_metrics_are_of_the_least_full_file_system(start, shm):
    def medium(heap):
        info = run([tool("pmalloc-info"), "--metrics", heap], preload=False).stdout
        return [line.split()[1] for line in info.splitlines() if "medium_bytes{" in line]

    with tmpfs(shm / "first", 1000) as first, tmpfs(shm / "second", 3000) as second:
        heap = first / "heap"
        program = start(heap)
        program.fill()
        assert medium(heap) == [str(1000 * 4096)]
        grow("--grow", f"{heap}:{second / 'more'}")
        assert medium(heap) == [str(3000 * 4096)]
        program.end()
        assert medium(heap) == [str(3000 * 4096)]


def test_a_directory_that_cannot_be_had(start, shm):
    """It is another kind of medium, not empty, or gone when the program looks: that is said once,
    and the program goes on."""
    with tmpfs(shm / "first", 3000) as first, tmpfs(shm / "second", 3000) as second:
        heap = first / "heap"
        program = start(heap)
        program.fill()
        (second / "full").mkdir(mode=0o700)
        (second / "full" / "x").touch()
        for path, text in (
            (second / "full", "not empty (it holds 'x')"),
            (BUILD / "more", "must survive the same failures"),
            (second / "no" / "where", "No such file or directory"),
        ):
            done = recover("--grow", f"{heap}:{path}")
            assert done.returncode == 8 and text in done.stderr, said(done)
            assert path.name in ("full", "where") or not path.exists()
        done = recover("--grow", f"{heap}:nodir")
        assert done.returncode == 16 and "./nodir" in done.stderr
        grow("--grow", f"{heap}:{second / 'more'}")
        (second / "more").rename(second / "elsewhere")
        assert program.ask() == FULL and program.ask() == FULL
        (second / "elsewhere").rename(second / "more")
        assert program.fill() > 1000
        lines = program.end()
        assert sum("the heap goes on without this directory" in line for line in lines) == 1, lines
        is_there(start, heap, program.kept)


def test_only_grow_adds_a_directory(start, shm):
    heap = shm / "heap"
    start(heap).end()
    done = recover("--spare", "1M", f"{heap}:{shm / 'new'}")
    assert done.returncode == 8 and "is no directory of the heap" in done.stderr, said(done)
    assert not (shm / "new").exists() and not (heap / "spare").exists()
    done = recover("--grow", f"{shm / 'missing'}:{shm / 'new'}")
    assert done.returncode == 8 and f"{shm / 'missing'}: cannot open" in done.stderr, said(done)
    assert grow("--grow", "--size", "16T", f"{heap}:{shm / 'new'}")["limit_bytes"] == 1 << 44
    assert grow("--spare", "1M", f"{heap}:{shm / 'new'}")["spare_bytes"] == MB
    is_there(start, heap, 0)


def test_at_rest_and_by_several(start, shm):
    """Also while no program runs; and of many who add the same directory at once, it is there
    once."""
    heap = shm / "heap"
    start(heap).end()
    command = [BUILD / "pmalloc-recover", "--grow", f"{heap}:{shm / 'a'}:{shm / 'b'}"]
    runs = [subprocess.Popen(command, stderr=subprocess.PIPE, stdout=-3) for _ in range(6)]
    for each in runs:
        each.communicate()
    assert {path.name for path in heap.glob("volume.*")} == {"volume.1", "volume.2"}
    assert {os.readlink(heap / f"volume.{n}") for n in (1, 2)} == {str(shm / "a"), str(shm / "b")}
    is_there(start, heap, 0)


@pytest.mark.parametrize("commit", ["output", "20ms"])
def test_commits_keep_their_room_where_data_lie_elsewhere(shm, commit):
    """The second directory has room for data, but the journal lies in the first one: what has
    changed since the last commit must find room there."""
    flood = compiled("flood.c", "-pthread")
    with tmpfs(shm / "first", 10_000) as first, tmpfs(shm / "second", 20_000) as second:
        heap = first / "heap"
        settings = {"HEAP": f"{heap}:{second / 'more'}", "ROOTS": "newest", "COMMIT_PAGES": "256"}
        env = environment(COMMIT=commit, **settings)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen([flood, "1.2"], env=env, text=True, **pipes) as process:
            count = int(process.stdout.readline())
            time.sleep(0.2)
            process.kill()
            assert "No space left" not in process.communicate()[1]
        settings["HEAP"] = heap
        assert int(run([flood], COMMIT=commit, **settings).stdout) == count > 1000


# ---- the limit -----------------------------------------------------------------------------------


@pytest.mark.check
@MODES
def test_the_limit_rises_while_it_runs(start, shm, mode):
    heap = shm / "heap"
    program = start(heap, LIMIT="8M", **mode)
    assert 1500 < program.fill() < 2048
    assert grow("--grow", "--size", "16M", heap)["limit_bytes"] == 16 * MB
    assert 1500 < program.fill() <= 2048
    grow("--grow", "--size", "4M", heap)  # the larger one counts, and what was is kept
    assert program.ask() == FULL
    grow("--grow", "--size", "20M", heap)
    assert 900 < program.fill() <= 1024
    lines = program.end(kill=True)
    assert sum(f"{heap} is at its limit of 8388608 bytes" in line for line in lines) == 1, lines
    again = start(heap, LIMIT="8M", **mode)
    assert again.found == program.kept and again.ask() == FULL
    grow("--grow", "--size", "24M", heap)
    assert again.ask() == "kept"
    again.end()


def test_a_raised_limit_needs_addresses(start, shm):
    """Those of a process are chosen at its start. The heap's own limit counts then, too; before
    that a line says what is short."""
    heap = shm / "heap"
    small = {"LIMIT": "8M", "SHARD": "4M"}
    program = start(heap, **small)
    program.fill()
    grow("--grow", "--size", "24M", heap)
    assert program.ask() == FULL
    lines = program.end()
    again = start(heap, **small)
    assert again.fill() * 4096 > 15 * MB
    count = again.found + again.kept
    assert again.end(kill=True)
    is_there(start, heap, count, **small)
    assert "is at its limit of 8388608 bytes" in lines[0] and len(lines) == 1, lines


def test_addresses_are_out(start, shm):
    heap = shm / "heap"
    grown = {"LIMIT": "8M", "SHARD": "4M"}
    start(heap, **grown).end()
    program = start(heap, **grown)
    grow("--grow", "--size", "24M", heap)
    program.fill()
    (line,) = program.end()
    assert "has 2 data files" in line and "no addresses for another one" in line, line


def test_directories_after_a_start(start, shm):
    """Also a heap that has several, and is named by its first one, can get another one; and of
    several that come at once the next start uses each."""
    with tmpfs(shm / "first", 3000) as first, tmpfs(shm / "second", 3000) as second:
        with tmpfs(shm / "third", 3000) as third, tmpfs(shm / "fourth", 3000) as fourth:
            heap = first / "heap"
            program = start(heap)
            program.fill()
            grow("--grow", f"{heap}:{second / 'more'}:{third / 'more'}")
            assert program.fill() * 4096 > 8 * MB and program.ask() == FULL
            count = program.kept
            assert "no space for the heap" in program.end(kill=True)[0]
            program = start(heap)
            assert program.found == count and program.fill() * 4096 > 8 * MB
            assert (third / "more" / "heap.2").stat().st_blocks
            grow("--grow", f"{heap}:{fourth / 'more'}")
            assert program.fill() * 4096 > 8 * MB
            count = program.found + program.kept
            program.end(kill=True)
            is_there(start, heap, count)


# ---- the reserve ---------------------------------------------------------------------------------


def test_the_reserve_at_a_start(start, shm):
    with tmpfs(shm / "small", 4096) as small:
        heap = small / "heap"
        assert start(heap, SPARE="1M").end() == []
        inode = (heap / "spare").stat().st_ino
        start(heap, SPARE="1M").end()  # enough is there
        start(heap).end()  # what is there stays
        assert (heap / "spare").stat().st_ino == inode
        start(heap, SPARE="2M").end()
        assert (heap / "spare").stat().st_blocks * 512 == 2 * MB
        (line,) = start(heap, SPARE="12M").end()
        assert "2097152 bytes are in reserve" in line and "less than twice as much free" in line
        assert (heap / "spare").stat().st_blocks * 512 == 2 * MB
        done = recover("--spare", "32M", heap)
        assert done.returncode == 8 and "No space left" in done.stderr
        assert grow("--spare", "2M", heap)["spare_bytes"] == 2 * MB  # what there was stays
        assert grow("--spare", "1M", heap)["spare_bytes"] == MB
        grow("--spare", "0", heap)
        (small / "filler").write_bytes(bytes(room(small) - 64 * 1024))
        done = recover("--spare", "8M", heap)
        assert done.returncode == 8 and "No space left" in done.stderr
        assert not list(heap.glob("spare*"))
        is_there(start, heap, 0)


def test_a_reserve_is_no_part_of_the_heap(start, shm, tmp_path):
    """A backup and a copy are without it, a removed heap leaves nothing."""
    heap, copy = shm / "heap", shm / "copy"
    program = start(heap, SPARE="1M")
    program.ask()
    done = run([BUILD / "pmalloc-backup", heap, copy], preload=False)
    assert done.returncode == 0, said(done)
    assert not (copy / "spare").exists()
    program.end()
    is_there(start, heap, 1)
    info = run([BUILD / "pmalloc-info", heap], preload=False)
    assert "spare      1.0 MiB" in info.stdout, said(info)


@pytest.mark.parametrize(
    "settings, text",
    [
        ({"WARN": "100"}, "PMALLOC_WARN=100: not a valid value; use 0 to 99"),
        ({"WARN": "80%%"}, "PMALLOC_WARN=80%%: not a valid value"),
        ({"WARN": "%"}, "PMALLOC_WARN=%: not a valid value"),
        ({"SPARE": "much"}, "PMALLOC_SPARE=much: not a valid value"),
        ({"SPARE": "1M", "OPEN": "private"}, "is not written"),
    ],
)
def test_wrong_settings(notes, shm, settings, text):
    refuses(run([notes], HEAP=shm / "heap", ROOTS="newest", **settings), text)


@pytest.mark.parametrize(
    "words, text",
    [
        (["--grow"], "name a directory on another device behind it"),
        (["--spare", "lots"], "'lots' is no size"),
        (["--spare", "0", "--check"], "--spare goes with"),
        (["--size", "1G"], "--size and --force are for"),
        (["--grow", "--size", "17T"], "4M to 16T"),
        (["--grow", "--size", "1M"], "4M to 16T"),
    ],
)
def test_wrong_words(start, shm, words, text):
    heap = shm / "heap"
    start(heap).end()
    done = recover(*words, heap)
    assert done.returncode == 16 and text in done.stderr, said(done)
    is_there(start, heap, 0)


# ---- warnings ------------------------------------------------------------------------------------


def warned(lines):
    return [line for line in lines if " is " in line and "% full" in line or " uses " in line]


def slowly(program, notes, parts=12):
    """Looks come no more often than each 0.1 s."""
    for _ in range(parts):
        program.fill(notes // parts)
        time.sleep(0.11)


@pytest.mark.check
def test_a_line_before_the_file_system_is_full(start, shm):
    with tmpfs(shm / "small", 4096) as small:
        program = start(small / "heap", WARN="60%")
        slowly(program, 1800)
        slowly(program, 1800)
        lines = warned(program.end())
        shares = [int(line.split(" is ")[1].split("%")[0]) for line in lines]
        assert 60 <= shares[0] < 75 and 80 <= shares[1] < 95, lines
        assert f"pmalloc-recover --grow {small}/heap:DIR" in lines[0]
        assert len(lines) <= 3


def test_a_line_before_the_limit(start, shm):
    heap = shm / "heap"
    program = start(heap, WARN="50", LIMIT="16M")
    slowly(program, 3600)
    lines = warned(program.end())
    assert f"the heap {heap} uses 5" in lines[0] and "of 16777216 bytes" in lines[0], lines
    assert 2 <= len(lines) <= 4


def test_no_line_without_the_setting(start, shm):
    with tmpfs(shm / "small", 2048) as small:
        program = start(small / "heap")
        slowly(program, 1500, 4)
        assert program.end() == []
