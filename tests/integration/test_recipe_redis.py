# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""redis by its recipe, killed at any instant while redis-benchmark has it work in another database.
The oracle is the record of one client: a plain redis is given what was answered, and must have the
same DEBUG DIGEST. RECIPE_KILLS: how often."""

import random
import signal
import socket
import subprocess
import threading
import time

import pytest
import recipe_loads
from conftest import environment
from programs import free_port, wait_until
from test_late_roots import Redis, redis_roots, redis_server
from test_recipes import KILLS, RUN


def command(i):
    """The i-th that the client gives. No two of one kind do the same."""
    kinds = (
        ("set", f"s{i}", f"{i * 7}" * (1 + i % 50)),
        ("rpush", f"l{i % 40}", f"{i}", "x" * (i % 300)),
        ("hset", f"h{i % 40}", f"f{i % 300}", f"{i}"),
        ("zadd", f"z{i % 20}", f"{i * 7 % 1000}", f"m{i % 500}"),
        ("sadd", f"u{i % 20}", f"{i * 31 % 700}", f"member{i % 90}"),
        ("incrby", f"c{i % 9}", f"{i}"),
        ("append", f"a{i % 30}", f"{i},"),
        ("del", f"s{i - 140}", f"h{i % 400}"),
        ("lpop", f"l{i * 3 % 40}"),
        ("set", f"t{i % 200}", f"{i}", "ex", "100000"),
        ("setbit", f"b{i % 5}", f"{i * 101 % 9000}", f"{i // 11 % 2}"),
        ("pfadd", f"p{i % 3}", f"{i}"),
        ("xadd", f"x{i % 5}", f"{i}-1", "field", f"{i}"),
        ("zrem", f"z{i % 20}", f"m{i * 3 % 500}"),
        ("rename", f"s{i - 14}", f"r{i % 60}"),
    )
    return kinds[i % len(kinds)]


def packed(*words):
    parts = [f"*{len(words)}\r\n", *(f"${len(word)}\r\n{word}\r\n" for word in words)]
    return "".join(parts).encode()


def transaction(i):
    """The command, and its number in the database, in one step."""
    return packed("multi") + packed("set", "at", str(i)) + packed(*command(i)) + packed("exec")


def answer(stream):
    line = stream.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionError
    kind, rest = line[:1], line[1:-2]
    if kind == b"$" and rest != b"-1":
        text = stream.read(int(rest) + 2)
        if len(text) != int(rest) + 2:
            raise ConnectionError
        return text[:-2]
    if kind == b"*":
        return [answer(stream) for _ in range(max(0, int(rest)))]
    return line[:-2]


class Writer(threading.Thread):
    """Gives commands, and remembers how many were answered, as a client does that depends on it."""

    def __init__(self, port, done):
        super().__init__()
        self.stream = socket.create_connection(("127.0.0.1", int(port))).makefile("rwb")
        self.sent = self.answered = done

    def run(self):
        try:
            while True:
                self.sent += 1
                self.give(self.sent)
                self.answered = self.sent
        except OSError:
            pass

    def give(self, i):
        self.stream.write(transaction(i))
        self.stream.flush()
        answers = [answer(self.stream) for _ in range(4)]
        assert answers[:3] == [b"+OK", b"+QUEUED", b"+QUEUED"], (answers, command(i))
        assert answers[3][0] == b"+OK", (answers, command(i))


class Plain(Redis):
    """A redis without any heap, which is told what the other one must have."""

    def __init__(self, folder):
        self.port = str(free_port())
        argv = [redis_server(folder), "--save", "", "--port", self.port, "--dir", folder]
        self.process = subprocess.Popen(
            [*argv, "--enable-debug-command", "local"],
            env=environment(preload=False),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        wait_until(lambda: self.ask("ping") == "PONG", "redis", self.process)
        self.writer = Writer(self.port, 0)

    def digest_at(self, number):
        while self.writer.sent < number:
            self.writer.sent += 1
            self.writer.give(self.writer.sent)
        return self.ask("dbsize"), self.ask("debug", "digest")


def at_work(redis):
    """redis-benchmark has written."""
    return redis.ask("-n", "1", "dbsize") not in ("", "0")


@pytest.mark.parametrize("commit", ["output:0", "output", "idle", "idle:1s"])
def test_redis_is_killed_under_load(commit, shm):
    """Under `output` each answer is there; under `idle` all up to some moment."""
    redis_roots(shm)
    rng, sent, least = random.Random(commit), 0, 0
    plain = Plain(shm)
    try:
        for generation in range(KILLS + 1):
            redis = Redis(shm / "heap", None, shm, through=[RUN, "--recipe"], COMMIT=commit)
            try:
                done = int(redis.ask("get", "at") or 0)
                assert least <= done <= sent, (generation, least, done, sent)
                assert redis.ask("-n", "1", "flushdb") == "OK"
                seen = redis.ask("dbsize"), redis.ask("debug", "digest")
                assert seen == plain.digest_at(done), (generation, least, done, sent)
                with recipe_loads.at_work(recipe_loads.redis(redis.port), shm):
                    wait_until(lambda: at_work(redis), "redis-benchmark", redis.process)
                    writer = Writer(redis.port, done)
                    writer.start()
                    time.sleep(rng.uniform(0, 0.5))
                    redis.stop(signal.SIGKILL)
            finally:
                redis.stop(signal.SIGKILL)
            writer.join()
            sent, least = writer.sent, writer.answered if commit.startswith("output") else done
    finally:
        plain.stop(signal.SIGKILL)
