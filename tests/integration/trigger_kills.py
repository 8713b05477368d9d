#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Kills programs under PMALLOC_COMMIT and compares what is there after with what they had answered.

    trigger_kills.py --kills N [--commit MODE] [--only PROGRAM] [--on DIR] [--seed N]

kvshell has one pipe (shell), or answers into a file (filed); epolld has event loops and several
connections (loops). Each is started, asked many things, killed at a random moment, and started
again: N times per program and mode.

    output   what was answered is there (and under output:TIME)
    idle     the state lies between two operations; what was answered a while before the kill, when
             the program had nothing more to do, is there
    TIME     kvshell's state is that after one of its operations

tests/integration/test_triggers.py runs a few of these."""

import argparse
import collections
import contextlib
import os
import pathlib
import random
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from conftest import app, environment, start  # noqa: E402

KEYS = 16
SLEEP = 1  # enough for a commit after the last answer, on a disk that others use, too
PATIENCE = 30


class Wrong(AssertionError):
    """The heap is not as it should be."""


def insist(good, *what):
    if not good:
        raise Wrong(" ".join(str(w) for w in what))


def insist_quiet(process):
    errors = process.communicate()[1]
    insist(not errors, "it has said:", errors)


class Shell:
    """kvshell. Operation n sets one of the keys to n, so the values tell the last one."""

    def __init__(self, heap, commit, rng):
        self.settings = {"HEAP": heap, "ROOTS": "store", "COMMIT": commit}
        self.rng = rng
        self.asked = self.answered_count = 0
        self.done = [0]

    @property
    def answered(self):
        return [self.answered_count]

    def start(self):
        self.process = start([app("kvshell")], stdin=subprocess.PIPE, **self.settings)
        self.pending = ""
        self.found()

    def ask(self, lines):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write("".join(line + "\n" for line in lines))
            self.process.stdin.flush()

    def more(self, seconds):
        """What it has said since; "" at its end, None if it says nothing for so long."""
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            return None
        return os.read(self.process.stdout.fileno(), 65536).decode()

    def read(self, count, end=None):
        """Up to so many lines; fewer at the end of the program or of the time."""
        lines = []
        while len(lines) < count:
            *whole, self.pending = self.pending.split("\n")
            lines += whole
            if len(lines) >= count:
                break
            left = PATIENCE if end is None else max(end - time.monotonic(), 0)
            more = self.more(left)
            if more is None:
                insist(end is not None, "kvshell does not answer")
                break
            if not more:
                break
            self.pending += more
        return lines

    def found(self):
        """What the last run left: the state after operation `done`, and no other."""
        self.ask(f"get k{i}" for i in range(KEYS))
        values = [0 if line == "none" else int(line) for line in self.read(KEYS)]
        insist(len(values) == KEYS, "kvshell ended:", self.process.poll())
        last = max(values)
        for key, value in enumerate(values):
            insist(
                value == max((last - key) // KEYS * KEYS + key, 0),
                f"not one instant: k{key} is {value}, and the last is {last}",
            )
        insist(last <= self.asked, f"{last} was never asked, only {self.asked}")
        self.done = [last]
        self.asked = self.answered_count = last

    def work(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            count = self.rng.choice((1, 1, 1, 5))
            first = self.asked + 1
            self.asked += count
            self.ask(f"set k{n % KEYS} {n}" for n in range(first, first + count))
            self.answered_count += len(self.read(count, end))

    def all_answered(self):
        self.answered_count += len(self.read(self.asked - self.answered_count))

    def kill(self):
        self.process.kill()
        self.answered_count += len(self.read(1 << 30))
        insist_quiet(self.process)


class Filed(Shell):
    """kvshell > file: its answers are what a reader finds in the file."""

    def start(self):
        path = str(self.settings["HEAP"]) + ".out"
        with open(path, "wb") as out:
            self.process = subprocess.Popen(
                [str(app("kvshell"))],
                env=environment(True, **self.settings),
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.PIPE,
                text=True,
            )
        self.reader = open(path, encoding="ascii")
        self.pending = ""
        self.found()

    def more(self, seconds):
        end = time.monotonic() + seconds
        while True:
            ended = self.process.poll() is not None
            more = self.reader.read()
            if more or ended:
                return more
            if time.monotonic() >= end:
                return None
            time.sleep(0.0002)

    def kill(self):
        super().kill()
        self.reader.close()


class Loops:
    """epolld, with one or several event loops."""

    def __init__(self, heap, commit, rng, threads):
        self.settings = {"HEAP": heap, "ROOTS": "state", "COMMIT": commit}
        self.rng = rng
        self.threads = threads
        self.agrees = commit.startswith("idle") or (commit.startswith("output") and threads == 1)
        self.path = str(heap) + ".socket"
        self.done = self.answered = [0] * 4

    def connect(self):
        end = time.monotonic() + PATIENCE
        while True:
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(PATIENCE)
            try:
                connection.connect(self.path)
                return connection
            except OSError:
                connection.close()
                insist(self.process.poll() is None, "epolld ended:", self.process.poll())
                insist(time.monotonic() < end, "epolld does not listen")
                time.sleep(0.001)

    def start(self):
        argv = [app("epolld"), self.path, self.threads]
        self.process = start(argv, **self.settings)
        self.connections = [self.connect() for _ in range(1 + 2 * (self.threads > 1))]
        self.partial = collections.defaultdict(str)
        self.open = {c: 0 for c in self.connections}
        self.found()

    def found(self):
        connection = self.connections[0]
        connection.sendall(b"check\n")
        text = ""
        while not text.endswith("\n"):
            more = connection.recv(4096).decode()
            insist(more, "epolld ended:", self.process.poll())
            text += more
        words = text.split()
        insist(words[0] == "ok" and len(words) == 5, text)
        wrong = [word for word in words[1:] if not word.isdigit()]
        insist(not (wrong and self.agrees), "in the middle of an operation:", text)
        self.broken = bool(wrong)
        self.done = [int(word.lstrip("celmnorstuwxi")) for word in words[1:]]
        self.answered = list(self.done)

    def hear(self, connection):
        """False: the connection is over."""
        try:
            more = connection.recv(65536).decode()
        except OSError:
            more = ""
        *lines, self.partial[connection] = (self.partial[connection] + more).split("\n")
        for line in lines:
            number, shelf = map(int, line.split())
            self.answered[shelf] = max(self.answered[shelf], number)
            self.open[connection] -= 1
        return more != ""

    def work(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for connection in self.connections:
                if self.open[connection] == 0:
                    count = self.rng.choice((1, 1, 1, 4))
                    keys = [self.rng.randrange(1 << 40) for _ in range(count)]
                    connection.sendall("".join(f"put {key}\n" for key in keys).encode())
                    self.open[connection] += count
            left = max(end - time.monotonic(), 0)
            for connection in select.select(self.connections, [], [], left)[0]:
                insist(self.hear(connection), "epolld ended:", self.process.poll())

    def all_answered(self):
        for connection in self.connections:
            while self.open[connection]:
                insist(self.hear(connection), "epolld ended:", self.process.poll())

    def kill(self):
        self.process.kill()
        for connection in self.connections:
            while self.hear(connection):
                pass
            connection.close()
        insist_quiet(self.process)


def programs(heap, commit, rng):
    yield Shell(heap / "kvshell", commit, rng)
    if commit.startswith("output"):
        yield Filed(heap / "kvshell.filed", commit, rng)
    if commit.startswith(("idle", "output")):
        yield Loops(heap / "epolld", commit, rng, 1)
        yield Loops(heap / "epolld.3", commit, rng, 3)


def torment(subject, commit, kills, rng, longest=0.15):
    """Returns how many operations were answered, and how many of them a kill has undone."""
    answered = lost = 0
    subject.start()
    for _ in range(kills):
        before = subject.done
        subject.work(rng.uniform(0, longest))
        quiet = commit.startswith("idle") and rng.random() < 0.1
        if quiet:
            subject.all_answered()
            time.sleep(SLEEP)
        subject.kill()
        told = subject.answered
        promised = told if quiet or commit.startswith("output") else before
        subject.start()
        insist(
            all(is_there >= was for is_there, was in zip(subject.done, promised)),
            f"{promised} were answered, and {subject.done} are there",
        )
        answered += sum(told) - sum(before)
        lost += max(sum(told) - sum(subject.done), 0)
        if getattr(subject, "broken", False):  # allowed here: begin anew
            subject.kill()
            shutil.rmtree(subject.settings["HEAP"])
            subject.start()
    subject.kill()
    return answered, lost


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--kills", type=int, default=20, help="per program and mode")
    parser.add_argument("--commit", action="append", help="output, output:TIME, idle ...")
    parser.add_argument("--only", choices=("shell", "filed", "loops"), help="this program alone")
    parser.add_argument("--on", default=tempfile.gettempdir(), help="where the heaps lie")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    for commit in options.commit or ["output", "output:0", "idle", "idle:20ms", "5ms"]:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="trigger-kills-", dir=options.on))
        rng = random.Random(options.seed)
        for subject in programs(folder, commit, rng):
            began = time.monotonic()
            kind = type(subject).__name__.lower()
            name = f"{kind} {getattr(subject, 'threads', '')}".strip()
            if options.only not in (None, kind):
                continue
            try:
                answered, lost = torment(subject, commit, options.kills, rng)
            except Wrong as wrong:
                print(f"{commit:10} {name:8} WRONG: {wrong}; see {folder}", flush=True)
                return 1
            print(
                f"{commit:10} {name:8} {options.kills} kills, {answered} operations answered, "
                f"{lost} of them undone, {time.monotonic() - began:.0f} s",
                flush=True,
            )
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
