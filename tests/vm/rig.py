# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""A guest with its media over many boots.

Each boot verifies what the last cut left, works on, and is cut.
"""

import collections
import random
import shutil
import subprocess
import time

import machine
import saved
from ledger import Ledger, Wrong

# Seconds until a store is on a disk: the page becomes old, is written, the journal commits. The
# file init sets these times.
WRITE_BACK = 1.5 + 0.25 + 1
PATIENCE = 180  # a boot that says nothing for so many seconds hangs
# Crashes of the guest's own kernel count as cuts. More than so many end the run.
PANICS = 3
KINDS = ("run", "create", "recover", "open", "reboot", "sysrq")
WEIGHTS = (8, 3, 3, 3, 2, 2)
# The phase that a kind of cut hits: it lies between these words of the guest.
PHASES = {
    "create": ("phase create", "go"),
    "recover": ("phase recover", "go"),
    "open": ("phase open", "go"),
}
REBOOT = {"reboot": "restart", "sysrq": "reset_at_once"}  # functions in the file init


class Stop(Exception):
    """The run must end: something was lost, or the guest does not work."""


class Slot:
    """One medium of the guest, and what must be in its heap."""

    def __init__(self, medium, seed, domain):
        self.medium = medium
        self.seed = seed
        self.ledger = Ledger(seed, medium.heap_promised, WRITE_BACK, medium.guarantee(domain))
        self.cuts = collections.Counter()
        self.failures = []
        self.broken = False  # a check failed: the rest of this boot is not read

    def heap(self, later=0):
        if self.medium.device == "dax":
            return f"/dev/{self.medium.name}"
        if self.medium.fixed:
            return f"/mnt/{self.medium.name}/medium"
        return f"/mnt/{self.medium.name}/heap-{self.ledger.heap_number + later}"


class Rig:
    """Makes images, boots the guest, cuts its power, and counts."""

    def __init__(self, kernel, base, folder, media, domain, seed, options):
        self.kernel, self.folder, self.domain = kernel, folder, domain
        self.rng = random.Random(f"{seed} {domain} {kernel.version}")
        self.options = options
        self.slots = {m.name: Slot(m, self.rng.randrange(1 << 32), domain) for m in media}
        self.spans = {kind: 0.5 for kind in PHASES}  # how many seconds a phase lasts
        self.boots = self.panics = 0
        self.last_kind = "none"
        self.longest = 0.0  # seconds of the longest boot
        folder.mkdir(parents=True, exist_ok=True)
        for medium in media:
            machine.make_image(medium, folder)
        self.guest = saved.Guest(kernel, base, folder, media, domain, list(self.slots))

    def possible(self, kind):
        """The kind of cut that will do: a heap on a fixed medium is made once."""
        fixed = any(name in machine.FIXED for name in self.slots)
        return "run" if fixed and kind == "create" else kind

    # ---- the job of a boot

    def parallel(self, part):
        """Runs part(slot) for all media at the same time. Standard output is the medium's port."""
        lines = [
            f"( exec >/dev/port/{name} 2>&1\n{text}\n) &"
            for name, slot in self.slots.items()
            if (text := part(slot))
        ]
        return "\n".join(lines)

    def first_part(self, slot, kind):
        """Verifies what the last cut left. Empty for cuts that come before or during that."""
        if kind in ("recover", "open"):
            return ""
        heap, seed = slot.heap(), slot.seed
        lines = [
            f"for old in /mnt/{slot.medium.name}/heap-*; do [ $old = {heap} ] || rm -rf $old; done",
            f"verify {heap} {seed}",
        ]
        if kind == "verify":
            return "\n".join(lines)
        if slot.medium.survives and not slot.ledger.promised:
            lines.append(f"(preloaded {heap} churn clear)")
        for _ in range(self.options.kills):
            pause = int(1e6 * self.rng.random() ** 2)
            lines.append(
                f"kill_round {heap} {seed} {slot.ledger.next_number()} {pause} {self.flush()}"
            )
        return "\n".join(lines)

    def second_part(self, slot, kind):
        heap, number = slot.heap(), slot.ledger.next_number()
        lines = []
        if kind == "create":
            heap = slot.heap(later=1)
            lines.append("echo phase create")
        elif kind == "recover":
            lines.append(f"recover {heap}")
        if kind in ("recover", "open") and slot.medium.survives and not slot.ledger.promised:
            lines += ["echo phase open", f"(preloaded {heap} churn clear)"]
        lines.append(f"work {heap} {slot.seed} {number} {self.flush()}")
        return "\n".join(lines)

    def apps_part(self, slot):
        if slot.medium.device in ("disk", "dax"):
            return ""
        rounds, pause = self.options.rounds, 200_000
        apps, count = list(machine.APPS.items()), self.options.apps
        first = list(self.slots).index(slot.medium.name) * count  # the next ones on each medium
        apps = [apps[(first + step) % len(apps)] for step in range(count)]
        lines = [
            f"kill_app /mnt/{slot.medium.name} {app} {root} {rounds} {pause}" for app, root in apps
        ]
        return "\n".join([*lines, "echo phase finished"])

    def flush(self):
        return "-f" if self.domain == "mem-ctrl" else ""

    def job(self, kind):
        if kind == "apps":
            return self.parallel(self.apps_part) + "\nwait"
        first = self.parallel(lambda slot: self.first_part(slot, kind))
        if kind == "verify":
            return first + "\nwait\nunmount"
        parts = [first, "wait", self.parallel(lambda slot: self.second_part(slot, kind))]
        if kind in REBOOT:
            parts.append(f"usleep {int(1e6 * self.rng.uniform(0.2, 3))}\n{REBOOT[kind]}")
        return "\n".join([*parts, "wait"])

    # ---- a boot

    def boot(self, kind):
        """One boot that ends in a cut of that kind. `verify` and `apps` end by themselves."""
        self.boots += 1
        if self.options.snapshot:
            self.snapshot()
        started = time.monotonic()
        boot = self.guest.boot(self.job(kind))
        try:
            watch = Watch(self, boot, kind)
            watch.until_cut()
        finally:
            boot.cut()
        watch.read(time.monotonic())
        watch.close()
        watch.measure()
        self.note_cut(kind, boot)
        self.longest = max(self.longest, time.monotonic() - started)

    def snapshot(self):
        """Keeps copies of the images, because verifying a heap also recovers and so changes it."""
        before = self.folder / "before"
        before.mkdir(exist_ok=True)
        for image in self.folder.glob("*.img"):
            subprocess.run(["cp", "--sparse=always", "--reflink=auto", image, before], check=True)

    def note_cut(self, kind, boot):
        now = time.monotonic()
        console = boot.console()
        if "Kernel panic" in console or "init: cannot" in console or "init: insmod" in console:
            self.panics += 1
            shutil.copy(self.folder / "console.log", self.folder / f"panic-{self.panics}.log")
            if self.panics > PANICS:
                raise Stop(f"the guest does not work: {console[-1500:]}")
        for slot in self.slots.values():
            if not slot.medium.survives:
                slot.ledger.start_over()
            elif kind not in ("verify", "apps"):
                slot.ledger.power_cut(now, kind)
                slot.cuts[kind] += 1
            slot.broken = False
        self.last_kind = kind

    def fail(self, slot, message):
        where = f"boot {self.boots}, {slot.medium.name}, domain {self.domain}"
        line = f"{where}, after a cut of kind {self.last_kind}: {message}"
        slot.failures.append(line)
        slot.broken = True
        slot.ledger.start_over()
        if not self.options.keep_going:
            raise Stop(line)
        print(f"vm-test: {line}", flush=True)


class Watch:
    """Reads the ports of a running boot and says when to cut."""

    def __init__(self, rig, boot, kind):
        self.rig, self.boot, self.kind = rig, boot, kind
        self.files = {name: open(path, "rb") for name, path in boot.ports.items()}
        self.seen = collections.defaultdict(dict)  # word: medium: when
        self.started = self.heard = time.monotonic()
        self.luck = rig.rng.random()

    def read(self, now):
        for name, file in self.files.items():
            data = file.read()
            slot = self.rig.slots[name]
            if not data:
                continue
            self.heard = now
            if slot.broken:
                continue
            try:
                for word in slot.ledger.feed(data.decode("utf-8", "replace"), now):
                    if word == "phase open":  # a program that was killed before has said "go", too
                        self.seen["go"].pop(name, None)
                    self.seen[word].setdefault(name, now)
            except Wrong as wrong:
                self.rig.fail(slot, str(wrong))

    def close(self):
        for file in self.files.values():
            file.close()

    def between(self, start, end):
        """{medium: (when it said `start`, when it said `end`)} for media that have said both."""
        starts, ends = self.seen[start], self.seen[end]
        return {name: (starts[name], ends[name]) for name in starts.keys() & ends.keys()}

    def measure(self):
        """Measures how long the phases last on this machine."""
        for kind, (start, end) in PHASES.items():
            if kind == self.kind or (kind == "open" and self.kind == "run"):
                times = self.between(start, end).values()
                if times:
                    self.rig.spans[kind] = max(last for _, last in times) - min(
                        first for first, _ in times
                    )

    def until_cut(self):
        while self.boot.running():
            time.sleep(0.01)
            now = time.monotonic()
            self.read(now)
            if self.due(now):
                return
            if now - self.heard > PATIENCE or now - self.started > 4 * PATIENCE:
                console = self.boot.console()[-1500:]
                raise Stop(
                    f"boot {self.rig.boots} ({self.kind}) hangs; its console ends: {console}"
                )

    def due(self, now):
        """Whether the instant of the cut has come."""
        if self.kind in ("verify", "apps", *REBOOT):
            return False  # the guest ends these boots by itself
        working = [name for name, slot in self.rig.slots.items() if not slot.broken]
        if not working:
            return True
        if self.kind == "run":
            going = self.between("phase open", "go")
            last = max((end for _, end in going.values()), default=now)
            return (
                all(name in going for name in working)
                and now - last > self.luck * self.rig.options.work
            )
        begun = self.seen[PHASES[self.kind][0]]
        if not begun:
            return False
        first = min(begun.values())
        return now - first > self.luck * 1.3 * self.rig.spans[self.kind]
