# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Commit mode (instants.c): after each cut a heap holds exactly one committed instant, and none
that is older than the last acknowledged one. tests/soak/commit-kills uses the same ledger."""

import collections
import random
import shutil
import time

from machine import MEDIA, Boot, make_image

PLACES = ("ext4", "xfs", "ext4-dax", "xfs-dax")
PATIENCE = 240  # a boot that says nothing for so many seconds hangs
PANICS = 3  # more deaths of the guest's own kernel than these end the run


class Wrong(Exception):
    """A heap is not as of the instant that it must be of."""


class Ledger:
    """What a heap must hold, from what its program has said.

    `exact`: only the program's own commits make instants (PMALLOC_COMMIT=api).
    """

    def __init__(self, exact=True):
        self.exact = exact
        self.tally = collections.Counter()
        self.rest = ""
        self.forget()

    def forget(self):
        """There is a new heap."""
        self.commits, self.least, self.most = 0, None, None
        self.made = False  # there is a commit

    def feed(self, text):
        """Reads lines; half a line is kept for the next time. Returns the first words."""
        *lines, self.rest = (self.rest + text).split("\n")
        words = []
        for line in lines:
            word, *rest = line.split() or [""]
            words.append(word)
            if word == "commit":
                self.commit(list(map(int, rest)))
            elif word == "instant":
                self.instant(list(map(int, rest)))
            elif word == "recover" and rest[:1] != ["0"]:
                raise Wrong(f"pmalloc-recover: {line}")
            elif word == "absent":
                if self.made:
                    raise Wrong("the heap is gone")
            elif word == "again":
                self.tally["again"] += 1
            elif word not in ("phase", "recover", ""):
                raise Wrong(f"{line}")
        return words

    def cut(self):
        """The power has failed, or the program was killed: half a line was never said."""
        self.rest = ""

    def commit(self, numbers):
        threads = (len(numbers) - 1) // 2
        self.commits, self.made = numbers[0], True
        self.least, self.most = numbers[1 : threads + 1], numbers[threads + 1 :]
        self.tally["commits"] += 1

    def instant(self, numbers):
        commits, done = numbers[0], numbers[1:]
        known = self.least is not None
        if commits < self.commits or commits > self.commits + 1:
            raise Wrong(f"the heap has {commits} commits, {self.commits} were acknowledged")
        if known and any(at < least for at, least in zip(done, self.least)):
            raise Wrong(f"the threads are at {done}, at the last commit they were at {self.least}")
        same = self.exact and known and commits == self.commits
        if same and any(at > most for at, most in zip(done, self.most)):
            raise Wrong(f"the threads are at {done}, after this commit they were at {self.most}")
        self.tally["verified"] += 1
        self.tally["of the last acknowledged commit"] += commits == self.commits
        self.commits, self.least, self.most = commits, done, done


class Slot:
    """One medium of the guest."""

    def __init__(self, medium, seed):
        self.medium, self.seed = medium, seed
        self.ledger = Ledger()
        self.cuts = 0
        self.heap = f"/mnt/{medium.name}/instants"


class Rig:
    """Boots the guest, cuts its power, and looks at what is left."""

    def __init__(self, kernel, base, folder, options):
        self.kernel, self.base, self.folder, self.options = kernel, base, folder, options
        self.rng = random.Random(f"commit {options.seed} {kernel.version}")
        chosen = [MEDIA[name] for name in PLACES if name in options.media]
        self.slots = {m.name: Slot(m, self.rng.randrange(1 << 32)) for m in chosen}
        self.span = 1.0  # seconds from the first word of a boot until all are at work
        self.boots = self.panics = 0
        self.longest = 0.0
        folder.mkdir(parents=True, exist_ok=True)
        for medium in chosen:
            make_image(medium, folder)

    def job(self, last):
        lines = []
        for name, slot in self.slots.items():
            how = "check" if last else self.rng.choice(("recover", "open"))
            work = f"commit_{'check' if last else 'work'} {slot.heap} {slot.seed} {how}"
            lines.append(f"( exec >/dev/port/{name} 2>&1\n{work}\n) &")
        return "\n".join([*lines, "wait"])

    def boot(self, last=False):
        """One boot, and its cut. The last one checks, and ends by itself."""
        self.boots += 1
        started = time.monotonic()
        ports = list(self.slots)
        media = [slot.medium for slot in self.slots.values()]
        boot = Boot(
            self.kernel, self.base, self.folder, media, "mem-ctrl", self.job(last), ports
        )
        files = {name: open(path, "rb") for name, path in boot.ports.items()}
        try:
            self.watch(boot, files, last)
        finally:
            boot.cut()
            self.read(files, collections.defaultdict(dict), None)
            for file in files.values():
                file.close()
        console = boot.console()
        if "Kernel panic" in console or "init: cannot" in console:
            self.panics += 1
            shutil.copy(self.folder / "console.log", self.folder / f"panic-{self.panics}.log")
            if self.panics > PANICS:
                raise Wrong(f"the guest does not work: {console[-1500:]}")
        for slot in self.slots.values():
            slot.ledger.cut()
            slot.cuts += not last
        self.longest = max(self.longest, time.monotonic() - started)

    def read(self, files, seen, now):
        """Notes when a medium has said a word for the first time. Returns whether one spoke."""
        spoke = False
        for name, file in files.items():
            text = file.read().decode("utf-8", "replace")
            spoke |= bool(text)
            try:
                for word in self.slots[name].ledger.feed(text):
                    seen[word].setdefault(name, now)
            except Wrong as wrong:
                raise Wrong(f"boot {self.boots}, {name}: {wrong}") from None
        return spoke

    def watch(self, boot, files, last):
        """Reads what the guest says, until the instant of the cut."""
        seen = collections.defaultdict(dict)
        heard = time.monotonic()
        early, luck = self.rng.random() < 0.3 and self.boots > 1, self.rng.random()
        while boot.running():
            time.sleep(0.005)
            now = time.monotonic()
            if self.read(files, seen, now):
                heard = now
            if now - heard > PATIENCE:
                raise Wrong(f"boot {self.boots} hangs; its console ends: {boot.console()[-1500:]}")
            if last or not seen["phase"]:
                continue
            first = min(seen["phase"].values())
            if early and now - first > luck * self.span:
                return
            if len(seen["commit"]) == len(files):
                begun = max(seen["commit"].values())
                self.span = begun - first
                if now - begun > luck * self.options.work:
                    return

    def line(self):
        parts = []
        for name, slot in self.slots.items():
            t = slot.ledger.tally
            parts.append(
                f"{name}: {slot.cuts} cuts, {t['verified']} instants verified "
                f"({t['of the last acknowledged commit']} of the last acknowledged commit), "
                f"{t['commits']} commits, {t['again']} put off"
            )
        return "\n".join(parts)


def cut(kernel, base, folder, options, cuts, late):
    """Cuts the power so often, or until `late(seconds)` says that a boot would take too long.
    Returns what is wrong, and the report."""
    rig = Rig(kernel, base, folder, options)
    complaints = []
    try:
        while rig.boots < cuts and not (rig.boots and late(2 * rig.longest)):
            rig.boot()
            if options.long or options.commit:
                print(f"vm-test: commit mode: {rig.boots} cuts", end="\r", flush=True)
        rig.boot(last=True)
    except Wrong as wrong:
        complaints.append(str(wrong))
    except KeyboardInterrupt:
        pass
    died = f"; the guest's kernel died {rig.panics} times" if rig.panics else ""
    return complaints, f"commit mode, Linux {kernel.version}{died}\n{rig.line()}"
