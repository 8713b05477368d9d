# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""The tools on a heap in one file, beside those of test_fixed.py: pmalloc-info with each of its
reports, also while a program has the heap open, and --medium."""

import fcntl
import json
import re
import shutil
import threading
import time

import pytest
from conftest import BUILD, app, busy, compiled, recover, run, said, succeeds, tool
from figures_program import Figures, INFO, program  # noqa: F401
from test_follow import follower
from test_leaks import LOST
from test_leaks_running import begun, found, sizes
from test_medium import kind_of, medium
from tool_heaps import one_line

LIST = BUILD / "apps" / "list"


def make(path, *options):
    succeeds(run([tool("pmalloc-recover"), "--make", *options, path], preload=False))
    return path


@pytest.fixture
def fixed(shm):
    return make(shm / "medium", "--size", "64M", "--journal", "16M")


@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
def test_what_a_tool_writes_to_has_no_lock(shm):
    """Linux 7 keeps an open file for up to seconds after the end of a process that had stored to a
    mapping of it, and its lock with it: the next start was refused, as the heap was in use."""
    trace = shm / "trace"
    command = [tool("pmalloc-recover"), "--make", "--size", "32M", shm / "other"]
    succeeds(run(["strace", "-o", trace, "-e", "trace=flock,mmap", *command], preload=False))
    text = trace.read_text()
    locked = set(re.findall(r"^flock\((\d+), LOCK_EX", text, re.MULTILINE))
    stores = set(re.findall(r"^mmap\(.*PROT_WRITE, MAP_SHARED.*, (\d+), ", text, re.MULTILINE))
    assert locked and stores and not locked & stores


@pytest.mark.parametrize("seconds", [0.7, 8])
def test_a_lock_that_outlives_its_owner(fixed, seconds):
    """So Linux 7.2 keeps it after a kill, for less than two seconds. Here this test has it, and the
    next start sees nobody, as it is in a PID namespace of its own."""
    settings = {"HEAP": fixed, "ROOTS": "store", "PROGRAM": "kvshell"}
    succeeds(run([app("kvshell")], stdin="set a b\n", **settings))
    with open(fixed, "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        release = threading.Timer(seconds, fcntl.flock, (held, fcntl.LOCK_UN))
        release.start()
        begun = time.monotonic()
        argv = ["unshare", "-pf", "--mount-proc", app("kvshell")]
        done = run(argv, stdin="get a\n", **settings)
        took = time.monotonic() - begun
        release.cancel()
    if "unshare" in done.stderr:
        pytest.skip(f"no namespaces here: {done.stderr}")
    if seconds < 3:
        assert (done.returncode, done.stdout) == (0, "b\n") and took > seconds, said(done)
    else:
        assert done.returncode == 125 and "although its last owner" in done.stderr, said(done)
        assert took > 2.5, took


# ---- a look at a heap in use


@pytest.mark.parametrize("commit", [None, "20ms"])
def test_follow(program, processes, fixed, commit):
    how = {"COMMIT": commit} if commit else {}
    figures = Figures(program, processes, HEAP=fixed, ROOTS="held", **how)
    figures.ask("small 10 10")
    watch = follower(fixed, processes, "--json")
    first = json.loads(watch.stdout.readline())
    assert first["owner"] in ("sleeping", "running") and first["state"] == "dirty"
    assert first["settled"] and first["owner_pid"] == figures.process.pid
    figures.ask("large 20 1000000")
    while (now := json.loads(watch.stdout.readline()))["extents"] != first["extents"] + 20:
        pass
    assert now["heap_bytes"] > first["heap_bytes"] and bool(now.get("commit")) == bool(commit)
    figures.end()
    *_, last = watch.stdout.read().splitlines()
    last = json.loads(last)
    assert watch.wait(20 * busy()) == 0 and not watch.stderr.read()
    assert last["state"] == "clean" or last["owner"] == "gone"
    assert recover(fixed, "--check").returncode == 0


def test_follow_says_how_the_owner_ended(program, processes, fixed):
    figures = Figures(program, processes, HEAP=fixed, ROOTS="held")
    figures.ask("small 10 10")
    watch = follower(fixed, processes)
    while "sleeping; heap " not in (line := watch.stdout.readline()):
        assert "running; heap " in line  # on its way from its answer to its next read()
    figures.process.kill()
    figures.process.wait()
    assert "without a clean close" in watch.stdout.read().splitlines()[-1]
    assert watch.wait(20 * busy()) == 0
    one_line(run([INFO, "--follow", fixed], preload=False), "pmalloc-info", 8, "no process")


def test_follow_of_what_is_no_heap(shm):
    (shm / "file").write_bytes(bytes(1 << 24))
    done = run([INFO, "--follow", shm / "file"], preload=False)
    one_line(done, "pmalloc-info", 8, "it holds no heap", "--make")


# ---- the other reports


def info(*arguments):
    return succeeds(run([INFO, *arguments], preload=False))


def test_each_report_is_that_of_a_directory(shm, fixed):
    """The same contents in both give the same pictures and figures."""
    folder = shm / "folder"
    succeeds(run([LIST, "run", 2000, 1], HEAP=folder, ROOTS="list_state"))
    path = shm / "from"
    make(path, "--size", "64M", "--from", folder)
    for how in (("--map",), ("--svg",), ("--html",), ("--nodes",)):
        there, here = info(*how, folder), info(*how, path)
        assert len(here) > 40 and abs(len(here) - len(there)) < len(there) / 10, how
    there, here = (json.loads(info("--json", heap)) for heap in (folder, path))
    for key in ("roots", "live_objects", "live_bytes", "slabs"):
        assert there[key] == here[key], key
    assert json.loads(info("--leaks", "--json", path))["heap"] == str(path)
    shown = {line.split("  ")[0]: line for line in info("--diff", folder, path).splitlines()}
    assert all(shown[what].endswith(" 0") for what in ("live objects", "slabs", "roots")), shown


@pytest.mark.parametrize("settings", [{}, {"ROOTS": "global"}, {"COMMIT": "20ms"}], ids=str)
def test_what_a_running_program_has_lost(fixed, settings):
    leaks = compiled("leaks.c", "-O1", "-g", "-fno-inline")
    with begun([leaks, "chain", "stay"], HEAP=fixed, **settings) as process:
        assert sizes(found(process.pid)) == LOST


# ---- the medium


def test_the_medium_of_a_file(shm, fixed):
    fixed.rename(shm / "heap")
    folder = shm / "folder"
    folder.mkdir()
    shutil.move(shm / "heap", folder / "heap")
    answer = medium(folder / "heap")
    assert answer["heap"] and answer["map_sync"] == {"heap": False}
    assert [answer["file_system"], answer["mounted"]] == kind_of(folder)
    (shm / "zeroes").write_bytes(bytes(1 << 24))
    answer = medium(shm / "zeroes")
    assert not answer["heap"] and answer["map_sync"] == {"zeroes": False}


@pytest.mark.parametrize(
    ("path", "words"),
    [("empty", ["is empty", "DAX device"]), ("/dev/null", ["no DAX device", "DAX device"])],
)
def test_what_is_no_medium(shm, path, words):
    (shm / "empty").touch()
    done = run([INFO, "--medium", shm / path], preload=False)
    one_line(done, "pmalloc-info", 8, *words)
