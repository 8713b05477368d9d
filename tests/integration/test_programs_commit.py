# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Debian's programs under PMALLOC_COMMIT, killed: what they had answered is in the heap, and the
heap is recovered. They make their global state anew at each start, so none of them goes on with
what it finds; the tests look for the values in the heap's file.

Nothing is looked for that the program might have kept elsewhere: the last value of a run was
stored just before it was answered. Without a commit it would only be in private memory."""

import re
import socket
import subprocess
import time

import pytest
from conftest import busy, recovered, run, succeeds, tool
from programs import (  # noqa: F401
    PATIENCE,
    Server,
    answers,
    free_port,
    nothing_is_left,
    program,
    surroundings,
    wait_until,
)

SECONDS = 0.2


class Lines:
    """A client of a server, or the pipes of a program: a line is asked, and a line is answered."""

    def __init__(self, to, by):
        self.to, self.by = to, by

    def ask(self, text):
        self.to.write(text.encode() + b"\n")
        self.to.flush()
        return self.by.readline().decode().strip()


class Program:
    """sqlite3 and python3: commands by a pipe."""

    ARGV = {
        "sqlite3": ["sqlite3", "-batch", ":memory:"],
        "python3": ["python3", "-qiu"],
    }

    def __init__(self, name, folder, settings):
        argv = [program(self.ARGV[name][0]), *self.ARGV[name][1:]]
        self.name = name
        self.process = subprocess.Popen(
            [str(a) for a in argv],
            env=surroundings(True, folder, **settings),
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.lines = Lines(self.process.stdin, self.process.stdout)
        if name == "sqlite3":
            assert self.lines.ask("create table t(v); select 'made';") == "made"
        else:
            assert self.lines.ask("kept = []; print('made')") == "made"

    def keep(self, number, value):
        if self.name == "sqlite3":
            answer = self.lines.ask(f"insert into t values('{value}'); select count(*) from t;")
        else:
            answer = self.lines.ask(f"kept.append('{value}'); print(len(kept))")
        assert answer == str(number + 1)

    def kill(self):
        self.process.kill()
        self.process.communicate()


# Of a redis that asks jemalloc for blocks by names of its own (docs/limits.md).
ELSEWHERE = re.compile(r"^pmalloc: malloc_usable_size\(0x\w+\): the pointer is outside .*\n", re.M)


class ByPort:
    """redis and memcached."""

    def __init__(self, name, folder, settings):
        port = free_port()
        self.name = name
        if name == "redis":  # the server and its checkers are one file; its name decides
            server = folder / "redis-server"
            server.symlink_to(program("redis-check-rdb"))
            argv = [server, *f"--port {port} --bind 127.0.0.1 --dir {folder}".split()]
            argv += ["--appendonly", "no", "--save", ""]
        else:
            argv = [program("memcached"), *f"-l 127.0.0.1 -p {port} -U 0 -t 2 -u root".split()]
        self.server = Server(name, argv, folder, surroundings(True, folder, **settings))
        self.server.wait_until(lambda: answers(port))
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE * busy())
        file = self.socket.makefile("rwb")
        self.lines = Lines(file, file)

    def keep(self, number, value):
        if self.name == "redis":
            assert self.lines.ask(f"SET key:{number} {value}\r") == "+OK"
        else:
            assert self.lines.ask(f"set k{number} 0 0 {len(value)}\r\n{value}\r") == "STORED"

    def kill(self):
        self.server.process.kill()
        self.server.process.wait()
        self.socket.close()
        text = self.server.text()
        self.server.__exit__()
        if self.name == "redis" and b"mallocx" in program("redis-check-rdb").read_bytes():
            text = ELSEWHERE.sub("", text)
        assert "pmalloc" not in text


def contents(heap):
    return b"".join(path.read_bytes() for path in heap.glob("heap.*")) or heap.read_bytes()


def is_committed(value, heap):
    """Whether the heap has the value, and has had it for a time. A first commit may have caught it
    where the program read it; the next one comes as soon as the program has nothing to do."""
    there = value.encode() in contents(heap)
    time.sleep(0.5)
    return there and value.encode() in contents(heap)


def medium(path):
    how = ("--make", "--size", "256M", "--journal", "64M")
    succeeds(run([tool("pmalloc-recover"), *how, path], preload=False))
    return path


@pytest.mark.parametrize(
    "commit, where", (("output", "heap"), ("idle", "heap"), ("output", medium))
)
@pytest.mark.parametrize("name", ("redis", "memcached", "sqlite3", "python3"))
def test_answered(name, commit, where, shm, tmp_path):
    heap = where(shm / "medium") if where == medium else shm / where
    settings = {"HEAP": heap, "ROOTS": "*", "COMMIT": commit}
    settings["variables"] = {"PYTHONMALLOC": "malloc"}  # else its small objects are elsewhere
    kind = Program if name in Program.ARGV else ByPort
    subject = kind(name, tmp_path, settings)
    values = []
    try:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            value = f"value-{len(values):06}-{name}"
            subject.keep(len(values), value)
            values.append(value)
        if commit == "idle":  # the program has nothing to do now
            wait_until(lambda: is_committed(values[-1], heap), f"{name}: no commit")
    finally:
        subject.kill()
    recovered(heap)
    there = set(re.findall(rb"value-\d{6}-" + name.encode(), contents(heap)))
    missing = [value for value in values if value.encode() not in there]
    assert values and not missing, (len(values), missing[-3:])
