# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Power cuts of servers that have a recipe (recipes.sh): redis and mosquitto, as Debian has them.
After each cut the server goes on with its heap. Under `output` it has all that was answered, under
`idle` it has all up to some moment. What it must have is computed here: for redis by a redis
without a heap, whose DEBUG DIGEST must be the same."""

import collections
import pathlib
import subprocess
import tempfile
import time

import initramfs
import instants
import machine
from instants import Wrong
from kernel import Skip

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROGRAMS = ("redis", "mosquitto")
MODES = ("output", "output", "idle")
# In the guest, and on the host: redis's server and its checkers are one file; its name decides.
FILES = {
    "redis-server": "redis-check-rdb",
    "redis-cli": "redis-cli",
    "mosquitto": "mosquitto",
    "mosquitto_pub": "mosquitto_pub",
    "mosquitto_sub": "mosquitto_sub",
}
AHEAD = 9  # so many answers may be lost with the power, on their way to the host


def host_file(name):
    """Debian's file, installed or unpacked by scripts/bootstrap --test."""
    for place in (pathlib.Path("/"), ROOT / "build-programs"):
        for folder in ("usr/bin", "usr/sbin"):
            if (path := place / folder / name).exists():
                return path
    raise Skip(f"there is no {name}: run scripts/bootstrap --test")


def archive():
    """The servers, their clients and their recipes."""
    made = initramfs.Archive()
    for name, file in FILES.items():
        made.program(f"bin/{name}", host_file(file))
    for path in (ROOT / "tools/recipes").glob("*.recipe"):
        made.add(f"share/pmalloc/recipes/{path.name}", path.read_bytes())
    for name in ("recipes.sh", "redis.lua"):
        made.add(name, (HERE / name).read_bytes())
    return made.image()


def redis_after(number):
    """The size and digest of a redis that has done so many steps."""
    with tempfile.TemporaryDirectory(prefix="vm-test-") as folder:
        server, where = pathlib.Path(folder) / "redis-server", f"{folder}/socket"
        server.symlink_to(host_file("redis-check-rdb"))
        argv = [server, "--port", "0", "--unixsocket", where, "--save", "", "--dir", folder]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen([*argv, "--enable-debug-command", "local"], **quiet)

        def ask(*words, text=None):
            argv = [host_file("redis-cli"), "-s", where, *words]
            done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
            return done.stdout.strip()

        try:
            late = time.monotonic() + 60
            while ask("ping") != "PONG":
                if time.monotonic() > late:
                    raise Skip("redis does not start on the host")
                time.sleep(0.02)
            script = ask("script", "load", (HERE / "redis.lua").read_text())
            steps = "".join(f"evalsha {script} 0 {i}\n" for i in range(1, number + 1))
            ask(text=steps)
            return [ask("dbsize"), ask("debug", "digest")]
        finally:
            process.kill()
            process.wait()


def mosquitto_after(number):
    """The retained messages after so many steps: topic=text."""
    kept = {}
    for n in range(1, number + 1):
        kept.pop(n * 7 % 23, None)
        if n % 5:
            kept[n * 7 % 23] = n
    return sorted(f"{topic}={n}" for topic, n in kept.items())


class Ledger:
    """What a server must have, from what was answered."""

    def __init__(self, program):
        self.program, self.rest = program, ""
        self.least = self.answered = 0
        self.promised = False  # this run of it keeps all that it answers
        self.tally = collections.Counter()

    def feed(self, text):
        """Reads lines; half a line is kept for the next time. Returns the first words."""
        *lines, self.rest = (self.rest + text).split("\n")
        words = []
        for line in lines:
            word, *rest = line.split() or [""]
            if word.isdigit():
                self.said(int(word))
                word = "said"
            elif word == "found":
                self.found(rest)
            elif word == "recover" and rest[:1] != ["0"] and self.answered:
                raise Wrong(f"pmalloc-recover: {line}")
            elif word not in ("phase", "recover", "checked", ""):
                raise Wrong(line)
            words.append(word)
        return words

    def cut(self):
        """The power has failed: half a line was never said."""
        self.rest = ""

    def said(self, number):
        self.tally["said"] += 1
        if number < self.answered or number > self.answered + AHEAD:
            raise Wrong(f"{number} was answered after {self.answered}")
        self.answered = number
        if self.promised:
            self.least = number

    def found(self, what):
        if self.program == "redis":
            moment = int(what[0])
            right = what[1:] == redis_after(moment)
        else:
            moments = range(self.least, self.answered + AHEAD)
            moment = next((n for n in moments if mosquitto_after(n) == sorted(what)), None)
            right = moment is not None
        if not right or not self.least <= moment <= self.answered + AHEAD:
            raise Wrong(
                f"found {' '.join(what)}: as after {moment}; {self.least} must be there, "
                f"{self.answered} were answered"
            )
        self.tally["lost"] += max(0, self.answered - moment)
        self.tally["verified"] += 1
        self.least = self.answered = moment


class Slot:
    """A server on one medium of the guest."""

    def __init__(self, medium, program, port, rng):
        self.medium, self.trigger, self.port, self.rng = medium, program, port, rng
        self.ledger = Ledger(program)
        self.cuts = self.copies = 0
        self.heap = f"/mnt/{medium.name}/{program}"

    def job(self, port, how):
        """`how`: recover or open; "" only checks."""
        mode = self.rng.choice(MODES)
        self.ledger.promised = mode == "output"
        command = f"recipe_work {self.trigger} {self.heap} {self.port} {mode} {how or 'check'}"
        return f"( . /recipes.sh; exec >/dev/port/{port} 2>&1\n{command}\n) &"


class Rig(instants.Rig):
    """One server on each medium in each boot, in turn."""

    def slots_of(self, options):
        pairs = [(medium, program) for medium in self.media for program in PROGRAMS]
        return [Slot(*pair, 6000 + number, self.rng) for number, pair in enumerate(pairs)]

    def boot_job(self, jobs):
        return "\n".join(["ifconfig lo 127.0.0.1 up", *jobs, "wait"])

    def progress(self):
        print(f"vm-test: recipes: {self.boots} boots", end="\r", flush=True)

    def line(self):
        return "\n".join(
            f"{s.medium.name:9}{s.trigger:10}{s.cuts:4} cuts, {s.ledger.tally['verified']:4} "
            f"starts verified, {s.ledger.tally['said']} answers, {s.ledger.tally['lost']} of `idle`"
            " lost"
            for s in self.slots
        )
