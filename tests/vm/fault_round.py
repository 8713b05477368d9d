# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What all rounds of failing disks share: a round fails a disk, cuts the power, and says what the
heap holds then. Each kind of round is a file of its own: what the guest does (fault_*.sh), and what
must come of it."""

import collections
import dataclasses
import functools
import hashlib
import re
import shlex
import subprocess

from copies import build_folder

REFUSED = 125  # the status of a start that PMAlloc refuses
ABORTED = 134  # of a program that works without commit mode when its metadata cannot be flushed
UNABLE = 8  # of a tool that could not do its work


class Wrong(Exception):
    """A heap is not as it was answered, or something says what is not so."""


@dataclasses.dataclass
class Session:
    """A program or tool of the guest. `events` are its lines and what the disk did meanwhile."""

    label: str
    events: list
    status: int | None = None

    def answers(self):
        return [line for kind, line in self.events if kind == "answer"]

    def messages(self):
        return [line for kind, line in self.events if kind == "message"]

    def not_refused(self, status, count):
        """What is wrong where it must have ended with this status, and one line (`count`)."""
        lines = [line for kind, line in self.events if kind != "disk"]
        if self.status != status:
            text = shortened(lines)
            return [f"{self.label} ended with status {self.status}, not {status}: {text}"]
        if count and len(lines) != 1:
            return [f"{self.label} was refused with {len(lines)} lines: {shortened(lines)}"]
        return []


def shortened(lines):
    return " | ".join(lines if len(lines) < 4 else [lines[0], "...", lines[-1]])


DISK = ("fails", "errors", "well", "shut", "power", "cut", "mounted", "unmountable", "busy")
FACTS = ("list", "before", "behind", "readable", "checked", "calls")


class Told:
    """The lines of a round, sorted: sessions, facts by their first word, kinds of calls, and
    what is loose."""

    def __init__(self, text):
        self.sessions, self.facts, self.loose, self.kinds = {}, {}, [], []
        self.disk = collections.Counter()
        now = None
        for line in text.split("\n")[:-1]:  # the last one was cut short
            word, _, rest = line.partition(" ")
            if word == "open":
                now = self.sessions[rest] = Session(rest, [])
            elif word == "ended" and re.fullmatch(r"\S+ \d+", rest):
                label, status = rest.split()
                self.sessions[label].status = int(status)
                now = None
            elif word in DISK:
                self.disk[word] += int(rest) if word == "errors" else 1
                (now.events if now else self.loose).append(("disk", line))
            elif word == "kind":
                self.kinds.append(rest)
            elif word in FACTS:
                self.facts[word] = rest
            else:
                kind = "message" if line.startswith("pmalloc") else "answer"
                (now.events if now else self.loose).append((kind, line))


class Round:
    """One round. `number` names its heap. Kinds say what they do by body(), after() and judge()."""

    kind = ""

    def __init__(self, number, medium, rng):
        self.number, self.medium, self.rng = number, medium, rng
        self.heap = f"/mnt/{medium.name}/{self.kind}{number}"
        self.how = rng.choice(("recover", "start"))
        # A file of btrfs is written in place, as on other file systems, or always to new blocks.
        self.in_place = medium.fs == "btrfs" and rng.random() < 0.5
        self.tally = collections.Counter()
        self.text = ""
        self.wrong = []  # complaints after which there was more to look at

    def insist_on_refusal(self, session, status, count=True):
        self.wrong += session.not_refused(status, count)
        self.tally[f"refused {session.status}"] += 1

    def script(self, power):
        """The part before the cut: `power` is power_fails or power_waits."""
        lines = [f"say 'round {self.number}'", self.body(), power]
        if self.in_place:
            lines.insert(1, "mount -o remount,nodatacow $mnt")
        return "\n".join(lines) + "\n"

    def rest(self):
        """The part after the cut, which says what is there."""
        return f"say 'after {self.number}'\n{self.after()}\nsay 'over {self.number}'\n"

    def target_of(self, targets):
        """What fails: of a thin volume only that its pool is full."""
        return "pool" if self.medium.thin else self.rng.choice(targets)

    def call(self, function, *arguments):
        return shlex.join([function, *map(str, arguments)])

    def verify(self):
        """Judges what the round has said. Raises Wrong."""
        self.tally["rounds"] += 1
        told = Told(self.text)
        if told.disk["unmountable"]:
            raise Wrong("the file system cannot be mounted")
        self.tally["hit"] += told.disk["errors"] > 0 and self.kind != "read"
        self.tally["shut"] += told.disk["shut"] > 0
        try:
            self.judge(told)
        except Wrong as wrong:
            self.wrong.append(str(wrong))
        if self.wrong:
            raise Wrong("; ".join(self.wrong))

    def may_be_older(self, told):
        """A file system that was mounted anew has forgotten what no sync had brought to the disk.
        btrfs forgets at once what it could not write, and a line says that this may be so."""
        lines = [line for session in told.sessions.values() for line in session.messages()]
        warned = any("what memory did not have any more" in line for line in lines)
        return told.disk["mounted"] > 0 or (self.medium.fs == "btrfs" and warned)

    def insist_on_recovery(self, told, label="recover"):
        """After a power cut a heap is taken, whatever its data are."""
        session = told.sessions.get(label)
        if session and session.status != 0:
            raise Wrong(f"pmalloc-recover: status {session.status}: {session.messages()}")
        after = told.sessions.get("after")
        if after and after.status == REFUSED:
            raise Wrong(f"the start after the cut was refused: {after.messages()}")


@functools.lru_cache
def listing(commands):
    """What kvshell lists after these commands, in ordinary memory: the digest as md5sum has it."""
    done = subprocess.run(
        [build_folder() / "apps" / "kvshell"],
        input="".join(f"{command}\n" for command in (*commands, "list")),
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.split("\n", len(commands))[-1]
    return hashlib.md5(lines.encode()).hexdigest() + "  -"
