# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""PMALLOC_COMMIT=output and =idle: which calls are a reason for a commit, and which are none; and
what is there after kills (trigger_kills.py, which can do thousands)."""

import contextlib
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import tempfile
import time

import pytest
from conftest import (
    BUILD,
    app,
    busy,
    compiled,
    environment,
    recovered,
    run,
    said,
    start,
    succeeds,
    tool,
)
from trigger_kills import programs, torment

PATIENCE = 20
SETTLED = 0.3  # a commit that is not to be would be made within this
SOURCE = pathlib.Path(__file__).with_name("triggers.c").read_text(encoding="utf-8")
SAYS = re.search(r"#define SAYS\(X\)(.*?)#define", SOURCE, re.DOTALL)[1]
SAYS = [name for name in re.findall(r"X\((\w+)\)", SAYS) if name != "nothing"]
WAITS = re.search(r"#define WAITS\(X\)(.*?)#define", SOURCE, re.DOTALL)[1]
WAITS = re.findall(r"X\((\w+)\)", WAITS)
BUSY = ["busy_thread", "busy_mutex", "busy_handler", "busy_poll", "busy_nonblocking", "busy_file"]


@pytest.fixture(scope="module")
def program():
    return compiled("triggers.c", libraries=["-lrt"])


def value_in(heap, program):
    """The root `value` of a heap after a kill."""
    return int(succeeds(run([program, "check"], HEAP=heap, ROOTS="value,counts")).split()[0])


def committed(heap, number):
    """Whether the captured roots of a running program have reached the heap's file."""
    return number.to_bytes(8, "little") in (heap / "roots").read_bytes()


def kill_all(running):
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream:
                stream.close()


def launch(argv, stdout=subprocess.PIPE, **settings):
    return subprocess.Popen(
        [str(a) for a in argv],
        env=environment(True, **settings),
        stdin=subprocess.PIPE,
        stdout=stdout,
        start_new_session=True,
    )


def number_of(name):
    """One that is not in the file by chance."""
    return random.Random(name).getrandbits(62) | 1 << 62


@pytest.mark.parametrize("name", SAYS)
def test_what_is_said_is_kept(program, heap, name):
    """Killed once it has said something: there was no other reason for a commit."""
    number = number_of(name)
    ours, theirs = socket.socketpair() if name.startswith("send") else (None, None)
    if name == "sendfile":
        ours, theirs = None, None
    process = launch(
        [program, "say", name, number],
        stdout=theirs or subprocess.PIPE,
        HEAP=heap,
        ROOTS="value,counts",
        COMMIT="output",
    )
    try:
        heard = b""
        while b"\n" not in heard:
            more = ours.recv(100) if ours else os.read(process.stdout.fileno(), 100)
            assert more, heard
            heard += more
        assert heard.startswith(str(number).encode())
    finally:
        kill_all([process])
        for end in (ours, theirs):
            if end:
                end.close()
    if name != "at_exit":  # says it after the last commit, and may end before the kill
        recovered(heap)
    assert value_in(heap, program) == number + (name == "tee")


def test_what_is_no_output(program, heap):
    """/dev/null, files, and a system call that goes round libc."""
    number = number_of("nothing")
    argv = [program, "say", "nothing", number]
    process = launch(argv, HEAP=heap, ROOTS="value,counts", COMMIT="output")
    heard = os.read(process.stdout.fileno(), 100)
    kill_all([process])
    assert heard and value_in(heap, program) == 0


def test_waits(program, shm):
    """All at once: each waits for ever by its own function, and its number reaches the heap."""
    running = {}
    try:
        for name in WAITS:
            argv = [program, "wait", name, number_of(name)]
            running[name] = launch(argv, HEAP=shm / name, ROOTS="value,counts", COMMIT="idle")
        end = time.monotonic() + PATIENCE * busy()
        left = set(WAITS)
        while left and time.monotonic() < end:
            time.sleep(0.02)
            for name in list(left):
                with contextlib.suppress(FileNotFoundError):
                    if committed(shm / name, number_of(name)):
                        left.remove(name)
        assert not left, f"no commit in {sorted(left)}"
    finally:
        kill_all(running.values())
    for name in ("read", "join"):
        assert value_in(shm / name, program) == number_of(name)


def test_what_is_no_wait(program, shm):
    running = {}
    try:
        for name in BUSY:
            argv = [program, "wait", name, number_of(name)]
            running[name] = launch(argv, HEAP=shm / name, ROOTS="value,counts", COMMIT="idle")
        time.sleep(1 + SETTLED)
        for name in BUSY:
            assert running[name].poll() is None
            assert not committed(shm / name, number_of(name)), name
    finally:
        kill_all(running.values())


def test_always_ready(program, heap):
    """A program that finds work at each wait is never idle, and yet there are commits."""
    number = number_of("ready")
    argv = [program, "wait", "ready_poll", number]
    process = launch(argv, HEAP=heap, ROOTS="value,counts", COMMIT="idle")
    try:
        end = time.monotonic() + PATIENCE * busy()
        while not ((heap / "roots").exists() and committed(heap, number)):
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.05)
    finally:
        kill_all([process])
    assert value_in(heap, program) == number


def test_pending_commit_is_made_in_the_same_wait(heap, processes):
    """idle:TIME: a commit that comes too early is put off, and made while the program waits on."""
    settings = {"HEAP": heap, "ROOTS": "store", "COMMIT": "idle:500ms"}
    process = start([app("kvshell")], **settings)
    processes.append(process)
    for n in range(2):
        process.stdin.write(f"set k v{n}\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ok\n"
        time.sleep(0.1)
    time.sleep(1.5)
    process.kill()
    process.communicate()
    done = run([app("kvshell")], stdin="get k\n", HEAP=heap, ROOTS="store")
    assert done.stdout == "v1\n", said(done)


def test_threads_and_handlers_say(program, heap, processes, rng):
    """Several threads say what they have counted; a handler says something all the time, also where
    it has interrupted the allocator or a commit."""
    counted = {}
    for _ in range(4):
        process = start(
            [program, "talk", 4], HEAP=heap, ROOTS="value,counts", COMMIT="output", DECAY_MS=0
        )
        processes.append(process)
        time.sleep(rng.uniform(0.1, 0.5))
        process.kill()
        out, errors = process.communicate()
        assert errors.strip(".") == ""
        for line in out.splitlines(keepends=True):
            if line.endswith("\n"):
                thread, count = map(int, line.split())
                counted[thread] = max(counted.get(thread, 0), count)
        lines = succeeds(run([program, "check"], HEAP=heap, ROOTS="value,counts")).splitlines()
        there = dict(tuple(map(int, line.split())) for line in lines[1:])
        assert all(there[thread] >= count for thread, count in counted.items()), (counted, there)
    assert sum(counted.values()) > 100


@pytest.mark.parametrize("commit", ("output", "idle"))
@pytest.mark.parametrize("fork", ("private", "copy", "follow"))
def test_children(program, heap, fork, commit):
    """A child that says something, or waits, makes no commit of its parent's."""
    process = launch(
        [program, "child"], HEAP=heap, ROOTS="value,counts", COMMIT=commit, FORK=fork
    )
    heard = b""
    while b"parent" not in heard:
        more = os.read(process.stdout.fileno(), 100)
        assert more, heard
        heard += more
    kill_all([process])
    assert b"child\n" in heard and b"parent 0\n" in heard
    value = value_in(heap, program)
    if fork == "follow":
        assert value == 2
    elif commit == "output":
        assert value == 2  # the parent's 1, and one more
    else:
        assert value in (0, 1)  # it waited for its child with 1


@pytest.mark.parametrize("commit", ("output", "idle", "5ms"))
@pytest.mark.parametrize("place", ("tmpfs", "file"))
def test_killed(shm, place, commit, rng):
    """trigger_kills.py --kills 4."""
    folder = shm if place == "tmpfs" else pathlib.Path(tempfile.mkdtemp(dir=BUILD))
    try:
        for subject in programs(folder, commit, rng):
            torment(subject, commit, 4 if place == "tmpfs" else 2, rng, 0.1)
    finally:
        if place == "file":
            subprocess.run(["rm", "-rf", str(folder)], check=True)


def test_full_medium(program, tmp_path):
    """The answers go on, one line says that they are not kept; later ones are."""
    script = r"""
        mount -t tmpfs -o size=24m tmpfs "$1" || exit 77
        export PMALLOC_HEAP="$1/heap" PMALLOC_ROOTS=value,counts
        export PMALLOC_RESERVE=strict
        {
            echo '1 1'
            sleep 0.3
            dd if=/dev/zero bs=4k 2> /dev/null > "$1/fill"
            echo '2 1000 3 1000'
            sleep 0.3
            rm "$1/fill"
            echo '4 1000'
            sleep 0.3
            kill -9 $(cat "$1.pid")
        } | { PMALLOC_COMMIT=output sh -c 'echo $$ > "$1.pid"; export LD_PRELOAD="$2"
                exec "$3" change' - "$@"; }
        "$4" --json "$1/heap" | grep -o '"failed_commits":[0-9]*' >&2
        LD_PRELOAD="$2" "$3" check
    """
    mount = tmp_path / "mount"
    mount.mkdir()
    argv = ["unshare", "-rm", "bash", "-c", script, "-", mount]
    argv += [BUILD / "libpmalloc_preload.so", program, tool("pmalloc-info")]
    done = subprocess.run(
        [str(a) for a in argv],
        env=environment(False),
        capture_output=True,
        text=True,
        timeout=60 * busy(),
        check=False,
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("needs a namespace of its own")
    assert done.stdout.split() == ["1", "2", "3", "4", "4"], said(done)
    assert done.stderr.count("a commit has failed: No space left on device") == 1, said(done)
    assert int(re.search(r'"failed_commits":(\d+)', done.stderr)[1]) >= 2, said(done)
