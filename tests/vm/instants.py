# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Commit mode (instants.c, pipelined.c, storm.c): after each cut a heap holds exactly one committed
instant, and none that is older than the last acknowledged one. tests/soak/commit-kills uses the
same ledger."""

import collections
import copy
import random
import re
import shutil
import time

import copies
import saved
from machine import MEDIA, make_image

PLACES = ("ext4", "xfs", "ext4-dax", "xfs-dax")
# PMALLOC_COMMIT, and what the program does under it: at work, and as a check.
TRIGGERS = {
    "api": ("run", "check"),
    "idle": ("wait", "checkwait"),
    "output": ("answer", "check"),
    "sections": ("sections", "checkwait"),  # output
    "pipelined": ("serve", "look"),  # output
    "storm": ("storm", "check"),  # 100ms
}
TIME = ("run", "check")
SECTIONS = ("sectionsrun", "checkwait")  # sections-TIME
SETTINGS = {"sections": "output", "pipelined": "output", "storm": "100ms"}
RECORDS_FROM = (6, 7)  # Linux keeps a record of stores, and commits have rounds
AT_WORK = ("commit", "said")  # a program that has said this works
PATIENCE = 240  # a boot that says nothing for so many seconds hangs
PANICS = 3  # more deaths of the guest's own kernel than these end the run


def setting_of(trigger):
    """PMALLOC_COMMIT."""
    kind, _, time_of = trigger.partition("-")
    return time_of or SETTINGS[kind] if kind in SETTINGS else trigger


def program_of(trigger):
    kind = trigger.partition("-")[0]
    return kind if kind in ("pipelined", "storm") else "instants"


def modes_of(trigger):
    if program_of(trigger) == "storm":
        return TRIGGERS["storm"]
    return TRIGGERS.get(trigger, SECTIONS if trigger.startswith("sections") else TIME)


class Wrong(Exception):
    """A heap is not as of the instant that it must be of."""


class Ledger:
    """What a heap must hold, from what its program has said.

    `exact`: only the program's own commits make instants (PMALLOC_COMMIT=api).
    `promised`: what it has said is there (PMALLOC_COMMIT=output).
    """

    def __init__(self, exact=True, promised=False):
        self.exact, self.promised = exact, promised
        self.tally = collections.Counter()
        self.rest = ""
        self.rounds = []  # pages that rounds have found in this boot
        self.forget()

    def forget(self):
        """There is a new heap."""
        self.commits, self.least, self.most = 0, None, None
        self.made = False  # there is a commit
        self.kept = True  # the promise holds: no commit of this run has failed
        self.early = False  # since `instant` PMAlloc has made a commit of its own accord, for room

    def feed(self, text):
        """Reads lines; half a line is kept for the next time. Returns the first words."""
        *lines, self.rest = (self.rest + text).split("\n")
        words = []
        for line in lines:
            word, *rest = line.split() or [""]
            words.append(word)
            if word == "commit":
                self.commit(list(map(int, rest)))
            elif word == "said":
                self.said(*map(int, rest))
            elif word == "instant":
                self.instant(list(map(int, rest)))
            elif word == "rounds":
                self.rounds = list(map(int, rest))
            elif word == "recover" and rest[:1] != ["0"]:
                if self.made or "it has no superblock" not in line:  # cut before there was a heap
                    raise Wrong(f"pmalloc-recover: {line}")
            elif word == "absent":
                if self.made:
                    raise Wrong("the heap is gone")
            elif "PMALLOC_COMMIT_PAGES: too many pages" in line:
                self.early = True
                self.tally["early"] += 1
            elif word == "again" or "a thread does not stop" in line:
                self.tally["again"] += 1
                self.kept = self.kept and word == "again"  # on a machine that is overloaded
            elif word not in ("phase", "recover", "Segmentation", ""):  # "ended" comes after that
                raise Wrong(f"{line}")
        return words

    def cut(self):
        """The power has failed, or the program was killed: half a line was never said."""
        self.rest, self.kept = "", True
        self.tally["cuts after rounds"] += any(self.rounds)
        self.tally["in rounds"] += sum(self.rounds)
        self.tally["in later rounds"] += sum(self.rounds[1:])
        self.rounds = []

    def commit(self, numbers):
        threads = (len(numbers) - 1) // 2
        self.commits, self.made = numbers[0], True
        self.least, self.most = numbers[1 : threads + 1], numbers[threads + 1 :]
        self.tally["commits"] += 1

    def said(self, thread, done):
        self.tally["said"] += 1
        if self.promised and self.kept:
            self.made = True
            self.least[thread] = max(self.least[thread], done)

    def instant(self, numbers):
        commits, done = numbers[0], numbers[1:]
        known = self.least is not None
        if commits < self.commits or commits > self.commits + 1:
            raise Wrong(f"the heap has {commits} commits, {self.commits} were acknowledged")
        if known and any(at < least for at, least in zip(done, self.least)):
            raise Wrong(f"the threads are at {done}, at the last commit they were at {self.least}")
        same = self.exact and not self.early and known and commits == self.commits
        if same and any(at > most for at, most in zip(done, self.most)):
            raise Wrong(f"the threads are at {done}, after this commit they were at {self.most}")
        self.tally["verified"] += 1
        self.tally["of the last acknowledged commit"] += commits == self.commits
        self.commits, self.least, self.most, self.early = commits, done, done, False


class Slot:
    """A heap on one medium of the guest, with its trigger."""

    def __init__(self, medium, trigger, seed):
        self.medium, self.trigger, self.seed = medium, trigger, seed
        self.ledger = Ledger(exact=trigger == "api", promised=setting_of(trigger) == "output")
        self.cuts = self.copies = self.newest = 0
        self.heap = f"/mnt/{medium.name}/{trigger}"

    def job(self, port, how):
        """`how`: recover or open; "" only checks."""
        work, check = modes_of(self.trigger)
        if how:
            setting = setting_of(self.trigger)
            command = f"commit_work {self.heap} {self.seed} {how} {setting} {work}"
        else:
            command = f"commit_check {self.heap} {self.seed} {program_of(self.trigger)} {check}"
        return f"( exec >/dev/port/{port} 2>&1\n{command}\n) &"


def kernel_has_record(kernel):
    return tuple(map(int, re.findall(r"\d+", kernel.version)[:2])) >= RECORDS_FROM


class Rig:
    """Boots the guest, cuts its power, and looks at what is left."""

    def __init__(self, kernel, base, folder, options):
        self.folder, self.options = folder, options
        self.keeps_record = kernel_has_record(kernel)
        self.rng = random.Random(f"commit {options.seed} {kernel.version}")
        self.media = [MEDIA[name] for name in PLACES if name in options.media]
        self.slots = self.slots_of(options)
        self.span = 1.0  # seconds from the first word of a boot until all are at work
        self.boots = self.panics = 0
        self.longest = 0.0
        folder.mkdir(parents=True, exist_ok=True)
        for medium in self.media:
            make_image(medium, folder)
        self.programs = min(options.programs, len(options.triggers))
        ports = [f"{m.name}.{n}" for m in self.media for n in range(self.programs)]
        self.guest = saved.Guest(kernel, base, folder, self.media, "mem-ctrl", ports)

    def slots_of(self, options):
        return [
            Slot(medium, trigger, self.rng.randrange(1 << 32))
            for medium in self.media
            for trigger in options.triggers
        ]

    def boot_job(self, jobs):
        return "\n".join([*jobs, "wait"])

    def turn(self, boot):
        """The heaps of a boot by port. Media begin with different triggers."""
        chosen = {}
        for number, medium in enumerate(self.media):
            mine = [slot for slot in self.slots if slot.medium is medium]
            for n in range(self.programs):
                at = number + boot * self.programs + n
                chosen[f"{medium.name}.{n}"] = mine[at % len(mine)]
        return chosen

    def boot(self, last=None):
        """One boot, and its cut. The last ones check the heaps of an earlier one, and end by
        themselves."""
        slots = self.turn(self.boots if last is None else last)
        self.boots += 1
        started = time.monotonic()
        hows = ("recover", "open") if last is None else ("",)
        jobs = [slot.job(port, self.rng.choice(hows)) for port, slot in slots.items()]
        boot = self.guest.boot(self.boot_job(jobs))
        files = {name: (slots[name], open(path, "rb")) for name, path in boot.ports.items()}
        try:
            if self.watch(boot, files, last is not None):
                self.copy(boot, files)
        finally:
            boot.cut()
            self.read(files, collections.defaultdict(dict), None)
            for _, file in files.values():
                file.close()
        console = boot.console()
        if "Kernel panic" in console or "init: cannot" in console:
            self.panics += 1
            shutil.copy(self.folder / "console.log", self.folder / f"panic-{self.panics}.log")
            if self.panics > PANICS:
                raise Wrong(f"the guest does not work: {console[-1500:]}")
        for slot in slots.values():
            slot.ledger.cut()
            slot.cuts += last is None
        self.longest = max(self.longest, time.monotonic() - started)

    def copy(self, boot, files):
        """All programs are at work. Takes copies of the media at random instants."""
        for _ in range(self.options.copies):
            late = time.monotonic() + self.rng.random() * self.options.work
            while time.monotonic() < late and boot.running():
                time.sleep(0.005)
                self.read(files, collections.defaultdict(dict), None)
            if not boot.running():
                return
            boot.monitor.ask("stop")
            self.read(files, collections.defaultdict(dict), None)
            copies.take(self.media, self.folder)
            for slot, _ in files.values():
                self.verify(slot)
            self.progress()
            boot.monitor.ask("cont")

    def verify(self, slot):
        """What the heap of this copy holds, by what was said until then."""
        ledger = copy.deepcopy(slot.ledger)
        ledger.cut()
        text = copies.verify(
            slot,
            [program_of(slot.trigger), modes_of(slot.trigger)[1]],
            self.folder,
            copies.build_folder(),
        )
        before = ledger.tally["verified"]
        try:
            ledger.feed(text)
        except Wrong as wrong:
            raise Wrong(f"boot {self.boots}, a copy of {slot.heap}: {wrong}: {text}") from None
        if ledger.tally["verified"] == before and ledger.made:
            raise Wrong(f"boot {self.boots}, a copy of {slot.heap} said nothing: {text}")
        slot.copies += 1
        slot.newest += ledger.tally["of the last acknowledged commit"] - slot.ledger.tally[
            "of the last acknowledged commit"
        ]

    def progress(self):
        if self.options.long or self.options.commit:
            taken = max(sum(s.copies for s in self.slots if s.medium is m) for m in self.media)
            print(f"vm-test: commit mode: {self.boots} boots, {taken} copies", end="\r", flush=True)

    def check(self):
        """Boots without a cut, until each heap that was at work had its turn."""
        for boot in range(min(self.boots, -(-len(self.options.triggers) // self.programs))):
            self.boot(last=boot)
        for slot in self.slots if self.keeps_record else ():
            if program_of(slot.trigger) == "storm" and slot.cuts >= 3:
                if not slot.ledger.tally["cuts after rounds"]:
                    raise Wrong(f"{slot.heap}: none of {slot.cuts} cuts came after rounds")

    def read(self, files, seen, now):
        """Notes when a medium has said a word for the first time. Returns whether one spoke."""
        spoke = False
        for name, (slot, file) in files.items():
            text = file.read().decode("utf-8", "replace")
            spoke |= bool(text)
            try:
                for word in slot.ledger.feed(text):
                    seen["work" if word in AT_WORK else word].setdefault(name, now)
            except Wrong as wrong:
                raise Wrong(f"boot {self.boots}, {slot.heap}: {wrong}") from None
        return spoke

    def watch(self, boot, files, last):
        """Reads what the guest says, until the instant of the cut. True: all are at work."""
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
                return False
            if len(seen["work"]) == len(files):
                begun = max(seen["work"].values())
                self.span = begun - first
                if now - begun > luck * self.options.work:
                    return not last
        return False

    def line(self):
        parts = []
        for slot in self.slots:
            t = slot.ledger.tally
            own = f"{t['commits']} commits of the program's own"
            if t["cuts after rounds"]:
                own += (
                    f", {t['cuts after rounds']} cuts after rounds of {t['in rounds']} pages, "
                    f"{t['in later rounds']} of them in later ones"
                )
            extra = {
                "api": f"{t['of the last acknowledged commit'] + slot.newest} of the last "
                f"acknowledged commit, {t['commits']} commits",
                "idle": f"{t['said']} operations",
                "output": f"{t['said']} answers promised",
                "sections": f"{t['said']} answers promised",
                "pipelined": f"{t['said']} answers promised",
            }.get(slot.trigger, own)
            again = f", {t['again']} put off" if t["again"] else ""
            parts.append(
                f"{slot.medium.name:9}{slot.trigger:9}{slot.cuts:4} cuts, {slot.copies:4} copies, "
                f"{t['verified'] + slot.copies:4} instants verified, {extra}{again}"
            )
        return "\n".join(parts)


def cut(kernel, base, folder, options, cuts, late, kind=Rig, name="commit mode"):
    """Cuts the power so often, or until `late(seconds)` says that a boot would take too long.
    Returns what is wrong, and the report."""
    begun = time.monotonic()
    rig = kind(kernel, base, folder, options)
    complaints, made = [], 0
    try:
        while made < cuts and not (rig.boots and late(2 * rig.longest)):
            rig.boot()
            made += 1
            rig.progress()
        rig.check()
    except Wrong as wrong:
        complaints.append(str(wrong))
    except KeyboardInterrupt:
        pass
    died = f"; the guest's kernel died {rig.panics} times" if rig.panics else ""
    head = f"{name}, Linux {kernel.version}: {made} cuts of each medium"
    return complaints, f"{head}, {time.monotonic() - begun:.0f} s{died}\n{rig.line()}"
