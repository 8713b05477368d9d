# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""PMALLOC_COMMIT=output where 50 clients do not wait for answers. After a kill all that was
answered is there, in order and once (pipelined_kills.py); and no byte of an answer leaves before
the commit for it is durable: strace orders what the server reads, syncs and sends.
PIPELINED_KILLS=1000 makes that many kills of each server in each mode."""

import bisect
import os
import random
import re

import pytest
from conftest import busy, needs
from pipelined_kills import Ours, Redis, torment
from programs import wait_until

KILLS = int(os.environ.get("PIPELINED_KILLS", "3"))
SERVERS = [Ours, Redis]
ENOUGH = 60  # more answers than there are clients
CALLS = "read,recvfrom,write,sendto,writev,sendmsg,pwrite64,pwritev,fsync,fdatasync"
CALL = re.compile(r"(\d+) +(\w+)\((\d+)<([^>]*)>(?:, \"((?:[^\"\\]|\\.)*)\")?(.*)")
RESUMED = re.compile(r"(\d+) +<\.\.\. (\w+) resumed>(?:\"((?:[^\"\\]|\\.)*)\")?(.*)")
RESULT = re.compile(r".*\) += (-?\d+)")


@pytest.mark.parametrize("commit", ["output", "output:1ms", "output:0"])
@pytest.mark.parametrize("server", SERVERS)
def test_kills(server, commit, shm):
    assert torment(server(shm, commit, random.Random(commit)), KILLS, random.Random(KILLS))


# ---- what leaves before its sync ----------------------------------------------------------------


def calls_of(trace):
    """Name, file, text, result, and when each call began and ended, in the order of the ends."""
    open_calls = {}
    for at, line in enumerate(trace.read_text(encoding="ascii", errors="replace").splitlines()):
        begun, resumed = CALL.match(line), RESUMED.match(line)
        if begun:
            thread, name, _, file, text, rest = begun.groups()
            open_calls[thread] = (name, file, text or "", at)
        elif resumed and resumed[1] in open_calls:
            thread, _, text, rest = resumed.groups()
            name, file, before, began = open_calls[thread]
            open_calls[thread] = (name, file, before or text or "", began)
        else:
            continue
        result = RESULT.match(rest)
        if result:
            name, file, text, began = open_calls.pop(thread)
            yield name, file, text, int(result[1]), began, at


class Watcher:
    """Requests and answers are lines. The n-th answer of a connection is to its n-th request."""

    def __init__(self):
        self.requests = {}  # of each connection: when each request had come
        self.sent = {}  # how many bytes of answers, as text
        self.written, self.syncs = [], []  # commits: when written; (began, ended) of its sync
        self.answers, self.early = 0, []
        self.behind, self.sooner = False, 0  # answers that leave before the files have the commit

    def see(self, name, file, text, result, began, ended):
        if file.startswith("socket:") and result > 0:
            text = text.encode().decode("unicode_escape")[:result]
            if name in ("read", "recvfrom"):
                self.requests.setdefault(file, []).extend([ended] * text.count("\n"))
            else:
                self.leaves(file, text, began)
        elif file.endswith("/journal") and result >= 0:
            if "sync" in name:
                self.syncs.append((began, ended))
                self.behind = True
            else:
                self.written.append(began)
        elif name == "pwrite64":
            self.behind = False

    def leaves(self, file, text, began):
        """Also half an answer has left."""
        whole, rest = self.sent.get(file, (0, False))
        count = whole + text.count("\n")
        self.sent[file] = count, not text.endswith("\n")
        last = count + (not text.endswith("\n"))
        self.answers += count - whole
        self.sooner += self.behind
        asked = self.requests[file][: last or 1][-1]
        if not self.covered(asked, began):
            self.early.append((file, last, asked, began))

    def covered(self, asked, leaves):
        """A commit was written after the request had come, and synced before the answer left."""
        first = bisect.bisect_right(self.written, asked)
        written = self.written[first] if first < len(self.written) else leaves
        return any(written < began and ended < leaves for began, ended in reversed(self.syncs))


def watched(server, commit, folder):
    """What a server does until it is killed: long enough for some answers."""
    trace = folder / "trace"
    strace = [needs("strace"), "-D", "-f", "-qq", "-y", "-s", "20000", "-o", trace]
    strace += ["-e", f"trace={CALLS}"]
    subject = server(folder, commit, random.Random(0), through=strace)
    for seconds in (0.2, 1, 5):
        subject.round(seconds * busy())
        wait_until(lambda: over(trace), "strace")
        seen = Watcher()
        for call in calls_of(trace):
            seen.see(*call)
        if seen.answers > ENOUGH:
            break
    return seen


def over(trace):
    """The first thread is the last to end."""
    lines = trace.read_bytes().splitlines()
    return lines[-1].startswith(lines[0].split()[0]) and b"+++" in lines[-1]


@pytest.mark.parametrize("commit", ["output", "output:0"])
@pytest.mark.parametrize("server", SERVERS)
def test_no_answer_leaves_before_its_sync(server, commit, tmp_path):
    seen = watched(server, commit, tmp_path)
    assert seen.answers > ENOUGH and not seen.early, (seen.answers, seen.early[:5])
    assert seen.sooner or commit == "output:0"


def test_others_are_seen(shm):
    """The same look at a program that says what it has not committed."""
    seen = watched(Ours, "5ms", shm)
    assert seen.syncs and seen.early
