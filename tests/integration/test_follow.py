# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""pmalloc-info --follow: it watches a heap that a process has open, changes and leaves."""

import errno
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import time

import pytest
from conftest import busy, compiled, environment, fingerprint, recover, run, said, start
from figures_program import Figures, INFO, program  # noqa: F401


def follower(heap, processes, *arguments, **how):
    command = [str(INFO), "--follow", "--interval", "0.05", *arguments, str(heap)]
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | how
    process = subprocess.Popen(
        command, env=environment(preload=False), stdin=subprocess.DEVNULL, **how
    )
    processes.append(process)
    return process


def test_follow_shows_what_happens_and_ends_with_the_owner(program, processes, heap):
    figures = Figures(program, processes, HEAP=heap, ROOTS="held")
    figures.ask("small 10 10")
    watch = follower(heap, processes, "--json")
    first = json.loads(watch.stdout.readline())
    assert (
        first["owner"] in ("sleeping", "running") and first["state"] == "dirty" and first["settled"]
    )
    figures.ask("large 20 1000000")
    while json.loads(watch.stdout.readline())["extents"] != first["extents"] + 20:
        pass
    figures.end()
    *_, last = watch.stdout.read().splitlines()
    last = json.loads(last)
    assert watch.wait(20 * busy()) == 0 and not watch.stderr.read()
    assert last["state"] == "clean" or last["owner"] == "gone"
    assert recover(heap, "--check").returncode == 0


def test_follow_says_how_the_owner_ended(program, processes, heap):
    for kill, part in ((True, "without a clean close"), (False, "closed cleanly")):
        figures = Figures(program, processes, HEAP=heap, ROOTS="held")
        figures.ask("small 10 10")
        watch = follower(heap, processes)
        assert re.match(r"\d\d:\d\d:\d\d process \d+ \w+; heap ", watch.stdout.readline())
        if kill:
            figures.process.kill()
            figures.process.wait()
        else:
            figures.end()
        assert part in watch.stdout.read().splitlines()[-1]
        assert watch.wait(20 * busy()) == 0


def test_follow_ends_when_the_heap_goes(program, processes, heap):
    figures = Figures(program, processes, HEAP=heap, ROOTS="held")
    figures.ask("small 10 10")
    watch = follower(heap, processes)
    watch.stdout.readline()
    shutil.rmtree(heap)
    assert "removed" in watch.stdout.read().splitlines()[-1]
    assert watch.wait(20 * busy()) == 0
    figures.process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_follow_ends_at_an_interrupt(program, processes, heap, number):
    figures = Figures(program, processes, HEAP=heap, ROOTS="held")
    figures.ask("small 10 10")
    watch = follower(heap, processes)
    watch.stdout.readline()
    watch.send_signal(number)
    assert watch.wait(20 * busy()) == 0 and not watch.stderr.read()
    figures.end()


def test_follow_redraws_a_terminal(program, processes, heap):
    figures = Figures(program, processes, HEAP=heap, ROOTS="held")
    figures.ask("small 1000 100")
    master, slave = pty.openpty()
    watch = follower(heap, processes, "--count", "2", stdout=slave)
    os.close(slave)
    shown = b""
    try:  # until the other end is closed everywhere
        while piece := os.read(master, 65536):
            shown += piece
    except OSError as error:
        assert error.errno == errno.EIO
    os.close(master)
    assert watch.wait(20 * busy()) == 0
    shown = shown.decode()
    screens = shown.split("\x1b[H\x1b[J")[1:]
    assert len(screens) == 2
    for screen in screens:
        assert str(heap) in screen and re.search(r"^ *112 +\d", screen, re.MULTILINE), screen
    figures.end()


def test_follow_of_a_heap_that_nobody_has(program, heap):
    done = run([INFO, "--follow", heap], preload=False)
    assert done.returncode == 8 and done.stderr.count("\n") == 1, said(done)
    run([program], stdin="small 10 10\n", HEAP=heap, ROOTS="held")
    before = fingerprint(heap)
    done = run([INFO, "--follow", "--json", heap], preload=False)
    assert done.returncode == 8 and "no process" in json.loads(done.stdout)["error"], said(done)
    assert fingerprint(heap) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["--interval", "0"],
        ["--interval", "x"],
        ["--interval", "1x"],
        ["--count", "0"],
        ["--count", "-1"],
        ["--map"],
    ],
)
def test_follow_with_wrong_arguments(heap, arguments):
    assert run([INFO, "--follow", *arguments, heap], preload=False).returncode == 16
    assert run([INFO, "--count", "1", heap], preload=False).returncode == 16


def test_follow_a_heap_that_changes_beneath_it(processes, heap):
    """Busy threads allocate and free extents and slabs. They are killed and started again, while
    three watchers look on without a pause."""
    churn = compiled("signals.c", name="pmtest_signals")
    end = time.monotonic() + 8
    watchers, kills, settled, looks = [], 0, 0, 0
    while time.monotonic() < end:
        owner = start([churn, "large", 30, 2], HEAP=heap, ROOTS="keep")
        processes.append(owner)
        deadline = time.monotonic() + 20 * busy()
        while (
            run([INFO, "--follow", "--count", 1, heap], preload=False).returncode
            and time.monotonic() < deadline
        ):
            assert owner.poll() is None, owner.stderr.read()
        watchers = [follower(heap, processes, "--json", "--interval", "0.01") for _ in range(3)]
        time.sleep(0.7)
        assert owner.poll() is None, owner.stderr.read()
        owner.kill()
        owner.wait()
        kills += 1
        for watch in watchers:
            out, errors = watch.communicate(timeout=30 * busy())
            assert watch.returncode == 0 and not errors, errors
            seen = [json.loads(line) for line in out.splitlines()]
            assert seen[-1]["owner"] == "gone" and seen[-1]["state"] == "dirty"
            looks += len(seen)
            settled += sum(line["settled"] for line in seen)
            for line in seen:
                assert (
                    line["slab_bytes"] + line["extent_bytes"] <= line["heap_bytes"]
                    or not line["settled"]
                )
    assert kills >= 3 and looks >= 30 and settled >= looks / 2, (kills, looks, settled)
    assert recover(heap, "--check").returncode == 1
    assert recover(heap).returncode == 0


def test_follow_takes_no_lock(program, processes, heap):
    """The next owner finds the heap free while a watcher looks on. The watcher does not get in its
    way."""
    figures = Figures(program, processes, HEAP=heap, ROOTS="held")
    figures.ask("small 10 10")
    watch = follower(heap, processes)
    watch.stdout.readline()
    held = {
        line.split()[5]
        for line in open("/proc/locks", encoding="ascii")
        if f" {watch.pid} " in line
    }
    assert not held
    opened = {
        os.readlink(f"/proc/{watch.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{watch.pid}/fd")
    }
    flags = [
        int(
            re.search(
                r"flags:\s*(\d+)", open(f"/proc/{watch.pid}/fdinfo/{fd}", encoding="ascii").read()
            )[1],
            8,
        )
        & 3
        for fd in os.listdir(f"/proc/{watch.pid}/fd")
        if os.path.exists(f"/proc/{watch.pid}/fd/{fd}")
        and os.readlink(f"/proc/{watch.pid}/fd/{fd}").startswith(str(heap))
    ]
    assert str(heap) in opened and not any(flags), "the watcher must open the heap for reading only"
    figures.end()
    assert watch.wait(20 * busy()) == 0
