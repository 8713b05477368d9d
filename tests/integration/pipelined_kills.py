#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Kills a server under PMALLOC_COMMIT=output while 50 clients pipeline, and compares what it has
after with what they were answered: all of that is there, on no connection an answer is out of its
order, doubled or missing.

    pipelined_kills.py --kills N [--server ours|redis] [--commit output:TIME] [--on DIR] [--seed N]

Our server (tests/vm/pipelined.c) counts all questions, and its answers leave in that order: also
of all connections together none is missing before one that was heard. redis gets pairs of INCR, of
a counter of the client's and of one of all. tests/integration/test_pipelined.py runs a few."""

import argparse
import contextlib
import pathlib
import random
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from conftest import busy, environment, tool  # noqa: E402
from programs import free_port, wait_until  # noqa: E402
from test_late_roots import redis_server  # noqa: E402

CLIENTS = 50
LONGEST = 0.1  # seconds from the clients' first question to the kill


class Wrong(AssertionError):
    """An answer, or what is there, is not as it should be."""


def insist(good, *what):
    if not good:
        raise Wrong(" ".join(str(w) for w in what))


class Ours:
    """pipelined.c."""

    def __init__(self, folder, commit, rng, through=()):
        """`through`: an strace that runs the server."""
        self.path, self.rng = folder / "socket", rng
        self.env = environment(HEAP=folder / "heap", ROOTS="state", COMMIT=commit)
        self.through = list(through)
        if through:
            self.through += ["-E", "LD_PRELOAD=" + self.env.pop("LD_PRELOAD")]
        self.answered, self.all = [0] * CLIENTS, 0

    def spawn(self, *argv, through=(), env=None):
        return subprocess.Popen(
            [str(a) for a in (*through, tool("vm/pipelined"), *argv)],
            env=env or environment(False),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def round(self, seconds):
        """One life of the server."""
        self.path.unlink(missing_ok=True)
        with (
            self.spawn("serve", self.path, through=self.through, env=self.env) as server,
            self.spawn("ask", self.path, self.rng.randrange(1 << 30)) as clients,
        ):
            try:
                self.begun(clients.stdout.readline().split(), server)
                time.sleep(seconds)
            finally:
                server.kill()
                said = server.communicate()[0]
                rest = clients.communicate(timeout=60 * busy())[0].split()
        insist(not said, "the server has said:", said)
        insist(rest[:1] == ["answered"], "a client:", " ".join(rest))
        self.all, *self.answered = map(int, rest[1:])

    def begun(self, words, server):
        insist(words[:2] == ["instant", "0"], "the clients:", words, server.poll())
        found = list(map(int, words[2:]))
        insist(
            len(found) == CLIENTS and all(a >= b for a, b in zip(found, self.answered)),
            f"{self.answered} were answered, and {found} are there",
        )
        insist(sum(found) >= self.all, f"{self.all} were answered, and {found} are there")

    def count(self):
        return sum(self.answered)


class Connection:
    """A client of redis: its n-th pair of answers has n, and a number of all that grows."""

    def __init__(self, port, number, answered, rng):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.number, self.rng, self.window = number, rng, rng.choice((1, 4, 16, 100))
        self.sent = self.answered = answered
        self.text, self.all, self.heard, self.numbers = b"", 0, [], []

    def ask_more(self):
        count = self.rng.randint(1, self.window)
        count = min(count, self.answered + self.window - self.sent)
        self.sent += count
        with contextlib.suppress(OSError):
            self.socket.sendall(b"incr c%d\r\nincr all\r\n" % self.number * count)

    def hear(self):
        """False: the server is gone."""
        try:
            more = self.socket.recv(65536)
        except OSError:
            more = b""
        *lines, self.text = (self.text + more).split(b"\r\n")
        self.heard += lines
        while len(self.heard) >= 2:
            own, everybodys = (int(line[1:]) for line in self.heard[:2])
            del self.heard[:2]
            insist(own == self.answered + 1 <= self.sent, "order:", own, self.answered, self.sent)
            insist(everybodys > self.all, "order of all:", everybodys, self.all)
            self.answered, self.all = own, everybodys
            self.numbers.append(everybodys)
        return more != b""


class Redis:
    """redis by its recipe."""

    def __init__(self, folder, commit, rng, through=()):
        self.folder, self.commit, self.rng, self.through = folder, commit, rng, through
        self.answered, self.all = [0] * CLIENTS, 0

    def begin(self):
        argv = [*self.through, tool("pmalloc-run"), "--recipe", "-H", self.folder / "heap"]
        argv += ["-s", f"COMMIT={self.commit}", redis_server(self.folder), "--save", ""]
        self.port = free_port()
        argv += ["--port", self.port, "--dir", self.folder]
        return subprocess.Popen(
            [str(a) for a in argv],
            env=environment(False),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def numbers(self):
        """What it has, once it answers."""
        asked = b" ".join([b"mget all", *(b"c%d" % i for i in range(CLIENTS))]) + b"\r\n"
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall(asked)
            stream, values = connection.makefile("rb"), []
            insist(stream.readline() == b"*%d\r\n" % (CLIENTS + 1), "redis does not answer")
            while len(values) <= CLIENTS:
                size = int(stream.readline()[1:])
                values.append(int(stream.readline()) if size >= 0 else 0)
        return values

    def ready(self):
        with contextlib.suppress(ConnectionError):
            self.found = self.numbers()
            return True
        return False

    def round(self, seconds):
        with self.begin() as process:
            try:
                wait_until(self.ready, "redis", process)
                everybodys, *each = self.found
                insist(
                    everybodys >= self.all and all(a >= b for a, b in zip(each, self.answered)),
                    f"{self.all} {self.answered} were answered, and {self.found} are there",
                )
                # Each pair may be half done.
                insist(0 <= sum(each) - everybodys <= CLIENTS, "not one instant:", self.found)
                clients = [Connection(self.port, i, n, self.rng) for i, n in enumerate(each)]
                self.load(process, clients, everybodys, seconds)
            finally:
                process.kill()

    def load(self, process, clients, found, seconds):
        selector = selectors.DefaultSelector()
        for client in clients:
            selector.register(client.socket, selectors.EVENT_READ, client)
            client.ask_more()
        end = time.monotonic() + seconds
        while selector.get_map():
            if time.monotonic() >= end and process.returncode is None:
                process.kill()
                process.wait()
            for key, _ in selector.select(0.01):
                if key.data.hear():
                    key.data.ask_more()
                else:
                    selector.unregister(key.data.socket)
                    key.data.socket.close()
        heard = [number for client in clients for number in client.numbers]
        insist(len(heard) == len({*heard}), "doubled")
        self.answered = [client.answered for client in clients]
        self.all = max([found, *heard])

    def count(self):
        return sum(self.answered)


SERVERS = {"ours": Ours, "redis": Redis}


def torment(subject, kills, rng):
    """Returns how many questions were answered: some, also where the machine is busy. One more life
    shows what the last kill has left."""
    while kills > 0 or not subject.count():
        subject.round(rng.uniform(0, LONGEST))
        kills -= 1
    answered = subject.count()
    subject.round(0)
    return answered


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--kills", type=int, default=20, help="default %(default)s")
    parser.add_argument("--server", choices=SERVERS, default="ours")
    parser.add_argument("--commit", default="output", help="default %(default)s")
    parser.add_argument("--on", default=tempfile.gettempdir(), help="where the heap lies")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="pipelined-", dir=options.on))
    rng, began = random.Random(options.seed), time.monotonic()
    subject = SERVERS[options.server](folder, options.commit, rng)
    what = f"{options.server} {options.commit} seed {options.seed}"
    try:
        answered = torment(subject, options.kills, rng)
    except AssertionError as wrong:
        print(f"{what} WRONG: {wrong}; see {folder}", flush=True)
        return 1
    seconds = time.monotonic() - began
    print(f"{what}: {options.kills} kills, {answered} answered, {seconds:.0f} s", flush=True)
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
