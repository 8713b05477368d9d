# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""A server with a recipe whose state is a table of keys, killed at any instant under load. The
oracle is what one client was answered: under `output` all of it is there, under `idle` all up to
some moment, and nothing behind that."""

import json
import random
import socket
import threading
import time

import recipe_loads
from conftest import busy, environment, run, succeeds, tool
from programs import Server, program
from test_recipes import KILLS, RUN, known

LONG = 100  # kills, for what takes seconds


class Table(Server):
    """write(key, value) returns when it was answered, and raises OSError where nobody answers.
    read(key) gives None for what is not there."""

    name = None
    keys = range(40)

    def __init__(self, heap, folder, commit, *arguments):
        argv = [RUN, "--recipe", "-H", heap, "-s", f"COMMIT={commit}", program(self.name)]
        self.heap = heap
        super().__init__(self.name, [*argv, *arguments], folder, environment(preload=False))
        self.wait_until(self.connect)

    def connect(self):
        connection = socket.create_connection(("127.0.0.1", self.port))
        # Else 40 ms pass between two small parts of a request.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream = connection.makefile("rwb")
        return True

    def own_tests(self):
        """Its project's, where Debian has them: they pass in a server that goes on."""

    def last_commit(self):
        """The time of its instant."""
        shown = succeeds(run([tool("pmalloc-info"), "--json", self.heap], preload=False))
        return json.loads(shown).get("commit", {"time": 0})["time"]

    def begin(self, table):
        """Before the writes of a run, once all was read. What is written to then."""
        return table

    def next(self, rng, key, old):
        """What is written over the old value."""
        return rng.randrange(1, 1 << 20)

    def crowd(self, mark):
        """The scripts of clients of other projects. `mark` is another number each time."""
        raise NotImplementedError

    def marked(self, mark):
        """Whether they are at work: what they begin with is there."""
        raise NotImplementedError


def told(line):
    """An end of file is an answer that does not come."""
    if not line:
        raise ConnectionError
    return line


def last_moment(before, log, found):
    """After how many of these writes the table was as it was found. None: at no moment."""
    state = {key: before.get(key) for key in found}
    wrong = {key for key in found if state[key] != found[key]}
    moment = None if wrong else 0
    for i, (key, value) in enumerate(log):
        state[key] = value
        (wrong.discard if value == found[key] else wrong.add)(key)
        moment = moment if wrong else i + 1
    return moment


def load(server, rng, table):
    """Writes until nobody answers. Returns the writes, and how many were answered."""
    log, table = [], dict(table)
    killer = threading.Timer(rng.uniform(0, 0.3), server.process.kill)
    killer.start()
    try:
        while True:
            key = rng.choice(server.keys)
            log.append((key, server.next(rng, key, table.get(key))))
            server.write(*log[-1])
            table[key] = log[-1][1]
    except OSError:
        killer.join()
        return log, len(log) - 1


def settle(server, rng, table):
    """A write that no kill takes back: there has been a commit, or the time for one."""
    key = rng.choice(server.keys)
    table[key] = server.next(rng, key, table.get(key))
    server.write(key, table[key])
    answered, late = time.time(), time.monotonic() + busy()
    while time.monotonic() < late and server.last_commit() <= answered:
        time.sleep(0.02)


def kill_under_load(server_class, arguments, commit):
    known(server_class.name)
    rng, table, log, answered = random.Random(commit), {}, [], 0
    earlier = None  # what `idle` may go back to, as well
    for generation in range(KILLS + 1):
        with server_class(*arguments) as server:
            found = {key: server.read(key) for key in server.keys}
            moment = last_moment(table, log, found)
            moment = 0 if moment is None and found == earlier else moment
            least = answered if commit == "output" else 0
            assert moment is not None and moment >= least, (
                f"kill {generation}: {answered} answered, as after {moment}; {table=} {log=} "
                f"{found=}\n{server.text()[-2000:]}"
            )
            if generation == KILLS:
                if KILLS >= LONG:
                    server.own_tests()
                break
            table, earlier = server.begin(found), found
            if commit == "idle" and generation % 5 == 0:
                settle(server, rng, table)
                earlier = None
            with recipe_loads.at_work(server.crowd(generation), server.log.parent):
                server.wait_until(lambda: server.marked(generation))
                log, answered = load(server, rng, table)
