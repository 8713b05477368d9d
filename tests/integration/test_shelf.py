# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""docs/examples/shelf.cc, a server of ordinary C++ objects and threads, killed under load. What a
client was told is there afterwards, whole and in order, and nothing is there that nobody sent."""

import contextlib
import os
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest
from conftest import ROOT, busy, compiled, environment, start

KILLS = int(os.environ.get("SHELF_KILLS", "8"))
CLIENTS = 6


@pytest.fixture(scope="module")
def program():
    flags = ["-std=c++17", "-O2", "-Wshadow", "-pthread"]
    return compiled(ROOT / "docs" / "examples" / "shelf.cc", *flags, compiler="g++")


class Client:
    """Counts, pushes what it has counted, and renames: each order has an answer that it checks."""

    def __init__(self, number):
        self.name = f"c{number}"
        self.told, self.sent = 0, 0  # how often it has counted
        self.pushed, self.pushes = 0, 0
        self.wrong = []

    def orders(self, count):
        for _ in range(count):
            self.sent += 1
            yield f"add {self.name} 1", "count"
            self.pushes += 1
            yield f"push list-{self.name} {self.pushes}", "push"
            yield "add all 1", None
            yield f"put last-{self.name} it has {self.pushes}", None

    def take(self, kind, answer):
        if kind == "count":
            self.told += 1
            if answer != str(self.told):
                self.wrong.append((self.told, answer))
        elif kind == "push":
            self.pushed += 1

    def run(self, port, stop):
        try:
            with socket.create_connection(("127.0.0.1", port)) as peer:
                lines = peer.makefile("r")
                while not stop.is_set():
                    orders = list(self.orders(random.choice([1, 1, 5])))
                    peer.sendall("".join(line + "\n" for line, _ in orders).encode())
                    for _, kind in orders:
                        answer = lines.readline()
                        if not answer.endswith("\n"):
                            return
                        self.take(kind, answer.strip())
        except OSError:
            pass


def asked(port, *orders):
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.sendall("".join(order + "\n" for order in orders).encode())
        lines = peer.makefile("r")
        return [lines.readline().strip() for _ in orders]


def started(program, heap):
    process = start([program, "0"], HEAP=heap, ROOTS="shelf", COMMIT="output")
    line = process.stdout.readline()
    found = re.fullmatch(r"shelf: (\d+) things, port (\d+)\n", line)
    assert found, (line, process.communicate())
    return process, int(found[1]), int(found[2])


def load(clients, port, seconds):
    """Lets the clients work; returns what ends them."""
    stop = threading.Event()
    threads = [threading.Thread(target=c.run, args=(port, stop)) for c in clients]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    return stop, threads


def check(clients, port):
    for c in clients:
        assert not c.wrong, c.wrong
        count, values, last = asked(
            port, f"get {c.name}", f"get list-{c.name}", f"get last-{c.name}"
        )
        assert c.told <= int(count) <= c.sent, (c.name, c.told, count, c.sent)
        size, *numbers = values.split()
        assert numbers == [str(n + 1) for n in range(int(size))], values
        assert c.pushed <= int(size) <= c.pushes, (c.name, c.pushed, size, c.pushes)
        assert last == "nothing" or int(last.split()[-1]) in (int(size), int(size) - 1), last
        c.told = c.sent = int(count)  # what was on its way may be there or not
        c.pushed = c.pushes = int(size)


def test_killed_under_load(program, heap, processes):
    clients = [Client(n) for n in range(CLIENTS)]
    for _ in range(KILLS):
        process, _, port = started(program, heap)
        processes.append(process)
        if any(c.sent for c in clients):
            check(clients, port)
        stop, threads = load(clients, port, random.uniform(0.05, 0.4) * busy())
        process.send_signal(signal.SIGKILL)
        stop.set()
        for thread in threads:
            thread.join()
        assert process.communicate()[1] == ""
    process, things, port = started(program, heap)
    processes.append(process)
    assert things >= 3 * CLIENTS
    check(clients, port)
    process.kill()
    process.wait()


def test_no_answer_leaves_before_the_line_that_commits_fail(program, shm, processes):
    """Standard error is full, so the thread that says it waits. The others wait for it: what they
    answer would be taken for a promise."""
    heap = shm / "user" / "heap"
    heap.parent.mkdir()
    lines, full = os.pipe()
    env = environment(HEAP=heap, ROOTS="shelf", COMMIT="output")
    process = subprocess.Popen([program, "0"], env=env, stdout=subprocess.PIPE, stderr=full)
    processes.append(process)
    port = int(process.stdout.readline().split()[-1])
    peers = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
    for peer in peers:
        peer.settimeout(20 * busy())
        peer.sendall(b"add hits 1\n")
        assert peer.recv(99).endswith(b"\n")
    os.set_blocking(full, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(full, b"\n" * 4096)
    os.set_blocking(full, True)
    shutil.rmtree(heap.parent)
    heap.parent.write_text("in the way")  # so it cannot be made again
    for peer in peers:
        peer.sendall(b"add hits 1\n")
    time.sleep(0.5)
    assert not select.select(peers, [], [], 0)[0]
    said = b""
    while b"a commit has failed" not in said:
        said = said[-4096:] + os.read(lines, 65536)
    assert all(peer.recv(99) in (b"4\n", b"5\n", b"6\n") for peer in peers)
    process.kill()
    process.wait()
    os.close(full)
    os.close(lines)
