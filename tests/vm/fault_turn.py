# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""A step of which one sync or read meets a disk that fails: the N-th, for each N in turn. What it
says then is a refusal, or it has worked; and once it has worked, all is there after a power cut."""

import re

from fault_round import ABORTED, REFUSED, UNABLE, Round, Wrong, listing

KEYS = 300
BUS = 135  # a look of the program's own at what cannot be read
OUTPUT = "COMMIT=output"
# Said once, by the first run that gets as far.
AGAIN = "an earlier run could not write to its medium; all pages are written once more"
NO_COLLECTION = "no collection beside the program"
# The step, PMALLOC_... of it, and of the program before it.
STEPS = (
    ("start", OUTPUT, ""),
    ("start", OUTPUT, OUTPUT),
    ("start", f"{OUTPUT} COLLECT=later", ""),
    ("start", f"{OUTPUT} COLLECT=background", ""),
    ("start", "", ""),
    ("close", "", ""),
    ("close", OUTPUT, OUTPUT),
    ("recover", "", ""),
    ("recover", "", OUTPUT),
    ("first", "", ""),
    ("next", "", OUTPUT),
    ("grow", "", ""),
)
READ_BY = ("start", "recover", "first", "next", "grow")
MAY_BE_OLDER = ("start", "close", "recover")  # where no commit and no close has been before
DISKS = ("ext4", "xfs", "btrfs")
# What these read lies in no file of the heap: names, inodes, extents.
NAMES = ("openat", "fstatat", "getdents", "lseek")


def without_numbers(kind):
    return re.sub(r"\d+", "N", kind)


class Turns:
    """One step on one disk. The first round of it counts its calls; then each fails in turn, in a
    random order. One of each kind comes first: a system call on a file of the heap, whatever its
    number. Each of the three disks has every third kind, and of reads, which are many, every third
    call."""

    def __init__(self, step, what, medium, rng):
        self.step, self.what, self.rng = step, what, rng
        self.stride = len(DISKS) if what == "read" else 1
        self.disk = DISKS.index(medium.fs)
        self.calls, self.kinds = None, []  # how many there are, and of each what it is
        self.left, self.taken = [], set()
        self.done, self.missed = set(), set()  # of those taken
        self.hit = set()  # the kinds of those that were done

    def learn(self, calls, kinds=()):
        self.calls = calls
        self.kinds = list(map(without_numbers, kinds))
        left = list(range(1 + self.disk % self.stride, calls + 1, self.stride))
        self.rng.shuffle(left)
        firsts = self.one_of_each_kind()
        self.left = [at for at in left if at not in firsts] + firsts

    def own_kinds(self):
        return list(dict.fromkeys(self.kinds))[self.disk :: len(DISKS)]

    def one_of_each_kind(self):
        names = self.own_kinds()
        self.rng.shuffle(names)
        places = {name: [] for name in names}
        for at, kind in enumerate(self.kinds, 1):
            places.get(kind, []).append(at)
        return [self.rng.choice(places[name]) for name in names]

    def state(self):
        """For a later run: what was taken and not judged is still left, and comes first."""
        return {
            "calls": self.calls,
            "kinds": self.kinds,
            "left": self.left + sorted(self.taken - self.done - self.missed),
            "done": sorted(self.done),
            "missed": sorted(self.missed),
            "hit": sorted(self.hit),
        }

    def restore(self, state):
        self.calls, self.kinds, self.left = state["calls"], state["kinds"], state["left"]
        self.done, self.missed = set(state["done"]), set(state["missed"])
        self.hit = set(state["hit"])

    def kind(self, at):
        return self.kinds[at - 1] if 0 < at <= len(self.kinds) else ""

    def of_new_kinds(self):
        """Calls of a kind of this disk's of which none has failed yet."""
        new = set(self.own_kinds()) - self.hit
        return [at for at in self.left if self.kind(at) in new]

    def take(self):
        """Which call fails. 0: none."""
        if not self.left:
            return 0
        at = (self.of_new_kinds() or self.left)[-1]
        self.left.remove(at)
        self.taken.add(at)
        return at

    def line(self):
        name = ", ".join([self.step[0], *(text or "-" for text in self.step[1:])])
        text = f"{name}: {len(self.done)} of {self.calls} {self.what}s"
        return f"{text}, {len(self.hit)} of {len(set(self.kinds))} kinds"


class Plan:
    """Which step is next on a disk: each in turn, as long as it has kinds of calls of which none
    has failed yet, or is not counted; then each until all calls of all have failed once. Then there
    is another count."""

    def __init__(self, medium, rng, what):
        steps = [step for step in STEPS if what == "sync" or step[0] in READ_BY]
        self.turns = [Turns(step, what, medium, rng) for step in steps]
        self.at = 0

    def take(self):
        order = [(self.at + ahead) % len(self.turns) for ahead in range(len(self.turns))]
        due = [at for at in order if self.turns[at].calls is None or self.turns[at].of_new_kinds()]
        at = (due or [at for at in order if self.turns[at].left] or order)[0]
        self.at = at + 1
        return self.turns[at]

    def lines(self):
        return [turns.line() for turns in self.turns if turns.calls is not None]

    def state(self):
        return [turns.state() for turns in self.turns]

    def restore(self, states):
        for turns, state in zip(self.turns, states):
            turns.restore(state)


class TurnRound(Round):
    what = ""

    def __init__(self, number, medium, rng, plan):
        super().__init__(number, medium, rng)
        self.turns = plan.take()
        self.step, self.settings, self.before = self.turns.step
        self.at = self.turns.take()
        self.target = self.target_of(("files", "files", "all"))
        self.mode = rng.choice(("once", "on")) if self.what == "read" else "once"
        name = self.turns.kind(self.at).split(" ")[0]
        if self.what == "read" and name in NAMES:
            self.target = "all"
        if name == "mmap":  # it reads nothing itself
            self.mode = "on"

    def label(self):
        how = f"{self.settings or '-'} after {self.before or '-'}"
        what = f"{self.what} {self.at} {self.turns.kind(self.at)} {self.mode}"
        return f"{self.step}, {how}, {what}, {self.target}"

    def body(self):
        words = (self.settings, self.before, KEYS, self.what, self.at, self.mode, self.target)
        return self.call(f"turn_{self.step}", self.heap, *words)

    def after(self):
        what = "backup" if self.step in ("first", "next") else self.step
        return self.call("step_after", self.heap, self.how, what)

    def note(self, told):
        """How many such calls there are is known where none has failed."""
        if told.disk["fails"]:
            self.turns.done.add(self.at)
            self.turns.hit.update(map(without_numbers, told.kinds))
        elif self.at == 0:
            self.turns.learn(int(told.facts["calls"]), told.kinds)
        else:
            self.turns.missed.add(self.at)
            self.tally["not reached"] += 1  # one call less than when they were counted

    def judge(self, told):
        self.note(told)
        tries = [session for name, session in told.sessions.items() if name.startswith("step")]
        if self.step == "close":
            tries.insert(0, told.sessions["new"])
        for session in tries[:-1]:
            self.insist_on_end(session, told)
        last = tries[-1]
        if self.lacks_bitmaps(last):
            return self.compare(told)
        messages = [text for text in last.messages() if AGAIN not in text or len(tries) < 2]
        if last.status != 0 or (self.is_program() and messages):
            raise Wrong(f"on a disk that is well: status {last.status}: {last.events}")
        if told.sessions.get("verify", last).status != 0:
            raise Wrong(f"pmalloc-backup --verify: {told.sessions['verify'].events}")
        self.insist_on_recovery(told)
        if self.may_be_older(told) and not self.before and self.step in MAY_BE_OLDER:
            self.tally["older"] += 1
            self.insist_on_one_state(told, last)
        else:
            self.compare(told)

    def lacks_bitmaps(self, last):
        """ext4 uses no blocks whose bitmap it could not read, until it is mounted anew. So a start
        is refused on a disk that is well again, and all is there after the power cut."""
        full = last.status == REFUSED and "No space left on device" in "".join(last.messages())
        return full and self.what == "read" and self.target == "all" and "/ext4/" in self.heap

    def is_program(self):
        return self.step in ("start", "close")

    def insist_on_one_state(self, told, last):
        """What the program found after that is there after the power cut."""
        found, after = last.answers(), told.sessions["after"].answers()
        if self.is_program() and last.label != "new" and found[:1] != after[1:2]:
            raise Wrong(f"c was {found}, and after the cut {after}")
        self.tally["verified"] += 1

    def insist_on_end(self, session, told):
        """A tool says that it could not. A program is refused, or aborted, perhaps as late as at
        its end; or it has ended as if nothing was wrong, and a line says what was."""
        if not self.is_program():
            return self.insist_on_refusal(session, UNABLE, count=False)
        self.tally[f"ended {session.status}"] += 1
        # A collection that cannot be made is no reason to refuse, but may come before one.
        lines = sum(1 for text in session.messages() if NO_COLLECTION not in text)
        unreadable = self.what == "read" or told.disk["shut"]
        bus = session.status == BUS and unreadable and lines == 0
        told_once = session.status in (REFUSED, ABORTED) and lines == 1
        if not (bus or told_once or (session.status == 0 and lines)):
            raise Wrong(f"{session.label} ended with status {session.status}: {session.events}")
        return None

    def compare(self, told):
        commands = (f"fill {KEYS} 1", f"fill {KEYS} 2", "set c new")
        commands += ("set d five",) * (self.step in ("first", "next"))
        after = told.sessions["after"]
        if told.facts.get("list") != listing(commands):
            raise Wrong(f"after {self.step} has worked: {after.answers() or after.status}")
        self.tally["verified"] += 1


class SyncsRound(TurnRound):
    kind, what = "syncs", "sync"


class ReadsRound(TurnRound):
    kind, what = "reads", "read"
