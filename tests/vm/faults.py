# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Disks that fail for a moment, and a power cut after that.

Each disk lies below the device mapper, and the guest itself exchanges its table: some blocks or all
fail, then they are well again. Most power cuts are made in the guest (no write reaches the disk any
more, the program is killed, the file system mounted anew); the last one of each boot is a kill of
QEMU, with all disks at once, and the next boot looks at what is left. Rounds: fault_*.py."""

import collections
import json
import os
import pathlib
import random
import shutil
import sys
import time

import saved
from fault_read import ReadRound
from fault_round import Wrong
from fault_run import RunRound
from fault_start import StartRound
from fault_step import StepRound
from fault_turn import Plan, ReadsRound, SyncsRound
from kernel import Skip
from machine import MAPPED, base_archive, make_image

ROUNDS = (StartRound, RunRound, ReadRound, StepRound, SyncsRound, ReadsRound)
KINDS = {kind.kind: kind for kind in ROUNDS}
DEVICE_MAPPER = ["dm_mod", "dm_flakey", "dm_delay", "dm_thin_pool"]
MODULES = {
    "drivers": ["xfs", "btrfs", "virtio_blk", "virtio_console", *DEVICE_MAPPER],
    "buses": ["virtio_pci"],
}
FILES = ["fault.sh", "fault_thin.sh", "fault_turn.sh"]
FILES += [f"fault_{kind}.sh" for kind in ("start", "run", "read", "step")]
NO_READS = ("read", "reads")  # of a full pool
TURNS = {"syncs", "reads"}
AT_ONCE = 6  # rounds of each disk in a boot
SHORT_ONES = 16  # of those that take less time
DEATHS = 3  # more of these, of the guest's own kernel, end the run
DEAD = ("soft lockup", "detected stalls", "Kernel panic", "Out of memory")
PATIENCE = 120  # a guest that says nothing for so many seconds hangs
NEEDED = (
    ("mkfs.xfs", "xfsprogs"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("dmsetup", "dmsetup"),
)


def archive(kernel, build):
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    dmsetup = shutil.which("dmsetup", path=path)
    if not dmsetup:
        raise Skip("there is no dmsetup: install Debian's dmsetup")
    makers = [shutil.which(f"mkfs.{fs}", path=path) for fs in ("ext4", "xfs", "btrfs")]
    programs = [dmsetup, *makers, build / "pmalloc-backup"]
    programs += [build / "vm" / name for name in ("fault_map", "turn")]
    return base_archive(kernel, build, programs, modules=MODULES, files=FILES)


class Disk:
    """One disk of the guest: the rounds on it, one after the other."""

    def __init__(self, medium, seed, kinds):
        self.medium = medium
        self.kinds = [kind for kind in kinds if kind not in NO_READS or not medium.thin]
        self.rng = random.Random(f"faults {seed} {medium.name}")
        turns = random.Random(f"turns {seed} {medium.name}")
        self.plans = {
            kind: Plan(medium, turns, KINDS[kind].what) for kind in kinds if kind in TURNS
        }
        self.number = 0
        self.waiting = None  # a round whose power cut was that of the guest
        self.tally = collections.defaultdict(collections.Counter)
        self.wrong = []

    def next_round(self):
        kind = self.kinds[self.number % len(self.kinds)]
        self.number += 1
        plan = [self.plans[kind]] if kind in TURNS else []
        return KINDS[kind](self.number, self.medium, self.rng, *plan)

    def job(self, count):
        """The script of a boot, and its rounds: what waits is looked at, then come others."""
        m = self.medium
        rounds = [self.waiting] if self.waiting else []
        lines = ["worker="] + [round_.rest() for round_ in rounds]
        for at in range(count):
            rounds.append(self.next_round())
            lines.append(rounds[-1].script("power_waits" if at == count - 1 else "power_fails"))
            lines.append(rounds[-1].rest())
        begin = f"{'thin' if m.thin else 'disk'}_begin {m.name} {m.fs} {m.options}"
        body = "\n".join([begin, *lines, "say 'finished'\nsleep 1000"])
        return f"( exec 9>/dev/port/{m.name} 2>/dev/console\n{body}\n) &", rounds

    def read(self, text, rounds):
        """Gives each round what it has said, and judges those that are over."""
        by_number = {round_.number: round_ for round_ in rounds}
        now = self.waiting = None
        for line in text.split("\n")[:-1]:  # the power cut may have left half a line
            word, _, rest = line.partition(" ")
            if word in ("round", "after") and rest.isdigit():
                now = by_number[int(rest)]
                self.waiting = now
            elif word == "over" and now:
                self.judge(now)
                now = self.waiting = None
            elif now:
                now.text += line + "\n"

    def note_wrong(self, round_, what):
        """Said at once, too: a long run may be ended before it reports."""
        text = f"{self.medium.name}, {round_.kind} {round_.number} ({round_.label()}): {what}"
        self.wrong.append(text)
        print(f"vm-test: {text}", file=sys.stderr)

    def judge(self, round_):
        tally = self.tally[round_.kind]
        try:
            round_.verify()
        except Wrong as wrong:
            tally["wrong"] += 1
            self.note_wrong(round_, wrong)
        except (KeyError, IndexError) as missing:
            tally["wrong"] += 1
            self.note_wrong(round_, f"it has said nothing of {missing}: {round_.text[-1000:]}")
        tally.update(round_.tally)

    def lines(self):
        for kind, tally in self.tally.items():
            others = [f"{n} {name}" for name, n in tally.items() if n and name not in COLUMNS]
            row = ", ".join(f"{tally[name]:4} {name}" for name in COLUMNS)
            yield f"{self.medium.name:11}{kind:7}{row}; {', '.join(others)}"
        for plan in self.plans.values():
            yield from (f"{'':11}{line}" for line in plan.lines())


COLUMNS = ("rounds", "hit", "verified", "wrong")


class Saved:
    """The plans of all disks in a file, or in none: a later run goes on with them."""

    def __init__(self, name, disks):
        self.path = name and pathlib.Path(name)
        self.plans = {
            f"{disk.medium.name} {kind}": plan
            for disk in disks
            for kind, plan in disk.plans.items()
        }
        self.there = {}
        if self.path and self.path.exists():
            self.there = json.loads(self.path.read_text(encoding="utf-8"))
        for name in self.plans.keys() & self.there.keys():
            self.plans[name].restore(self.there[name])

    def write(self):
        if self.path:
            states = {name: plan.state() for name, plan in self.plans.items()}
            self.path.write_text(json.dumps({**self.there, **states}), encoding="utf-8")


class Rig:
    def __init__(self, kernel, build, folder, options):
        self.folder, self.options = folder, options
        media = [medium for name, medium in MAPPED.items() if name in options.media]
        disks = [Disk(medium, options.seed, options.rounds_of) for medium in media]
        self.disks = [disk for disk in disks if disk.kinds]
        self.media = [disk.medium for disk in self.disks]
        thin = [[disk for disk in self.disks if disk.medium.thin == one] for one in (False, True)]
        self.groups = [disks for disks in thin if disks]  # one of these is at work in a boot
        self.plan = Saved(options.plan, self.disks)
        self.rng = random.Random(f"faults {options.seed} {kernel.version}")
        self.boots = self.deaths = 0
        self.longest = 0.0
        folder.mkdir(parents=True, exist_ok=True)
        for medium in self.media:
            make_image(medium, folder)
        ports = [medium.name for medium in self.media]
        base = archive(kernel, build)
        self.guest = saved.Guest(kernel, base, folder, self.media, "cpu", ports)

    def boot(self, count, disks):
        """So many rounds on some of the disks."""
        self.boots += 1
        begun = time.monotonic()
        jobs, rounds = zip(*(disk.job(count) for disk in disks))
        sources = "\n".join(f". /{name}" for name in FILES)
        boot = self.guest.boot("\n".join([slow_write_back(), sources, *jobs, "wait"]))
        ports = [boot.ports[disk.medium.name] for disk in disks]
        alive = False
        try:
            alive = self.watch(boot, ports, count)
        finally:
            boot.cut()
        for disk, path, mine in zip(disks, ports, rounds):
            text = path.read_text(encoding="utf-8", errors="replace")
            (self.folder / f"{disk.medium.name}-{self.boots}.said").write_text(text)
            disk.read(text, list(mine))
            self.plan.write()
            if not alive:
                disk.waiting = None  # it was not where a power cut is meant to be
        self.longest = max(self.longest, time.monotonic() - begun)

    def watch(self, boot, ports, count):
        """Until all disks wait for the cut, or are done; then a little longer. False: the guest's
        own kernel has died."""
        heard, size = time.monotonic(), 0
        while boot.running() and time.monotonic() - heard < PATIENCE:
            time.sleep(0.02)
            texts = [path.read_bytes() for path in ports]
            if sum(map(len, texts)) != size:
                heard, size = time.monotonic(), sum(map(len, texts))
            if all(map(is_over, texts)):
                time.sleep(self.rng.random() if count else 0)
                return True
        self.deaths += 1
        console = boot.console()
        if self.deaths > DEATHS or not any(word in console for word in DEAD):
            said = "; ".join(path.read_text(errors="replace")[-300:] for path in ports)
            raise Wrong(f"boot {self.boots} hangs: {console[-800:]}; it has said: {said}")
        return False

    def progress(self):
        done = sum(tally["rounds"] for disk in self.disks for tally in disk.tally.values())
        wrong = sum(len(disk.wrong) for disk in self.disks)
        print(f"vm-test: faults: {self.boots} boots, {done} rounds, {wrong} wrong", end="\r")
        sys.stdout.flush()


def is_over(text):
    """Whether a disk's port says that it waits for the power cut, or has nothing more to do."""
    return b"\ncut\n" in text or b"\nfinished" in b"\n" + text


def slow_write_back():
    """The pages of a round stay dirty until something writes them."""
    return "echo 3000 >/proc/sys/vm/dirty_expire_centisecs"


def run(kernel, build, folder, options, late):
    """So many rounds on each disk, or until `late(seconds)` says that a boot would take too long.
    Returns what is wrong, and the report."""
    begun = time.monotonic()
    rig = Rig(kernel, build, folder, options)
    complaints = []
    try:
        left = options.cuts or sys.maxsize
        while left > 0 and not (rig.boots and late(3 * rig.longest)):
            count = min(SHORT_ONES if TURNS.issuperset(options.rounds_of) else AT_ONCE, left)
            for disks in rig.groups:
                rig.boot(count, disks)
                rig.progress()
            left -= count
            if any(disk.wrong for disk in rig.disks) and not options.keep_going:
                break
        rig.boot(0, rig.disks)
    except Wrong as wrong:
        complaints.append(str(wrong))
    except KeyboardInterrupt:
        pass
    complaints = [text for disk in rig.disks for text in disk.wrong] + complaints
    head = f"faults, Linux {kernel.version}: {rig.boots} boots, {time.monotonic() - begun:.0f} s"
    head += f"; the guest's kernel died {rig.deaths} times" if rig.deaths else ""
    return complaints, "\n".join([head, *(line for disk in rig.disks for line in disk.lines())])
