# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What must be on a medium, and what was found there.

churn.c says on its medium's port what it has done. The ledger keeps the truth outside the guest. It
repeats the arithmetic of churn.c for slot and kind of each operation.
"""

import collections
import dataclasses
import json
import re

SLOTS = 256
MASK = (1 << 64) - 1
CUT_OFF = "\x18"  # a line that ends so was cut short by a kill (guest.sh)


def mix(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


class Operations:
    """What operation N of churn does under a seed."""

    def __init__(self, seed):
        self.seed = seed

    def dice(self, n):
        return mix(self.seed ^ mix(n))

    def slot(self, n):
        r = self.dice(n)
        group = 0
        while group < 7 and (r >> 56 + group) & 1:
            group += 1
        return group * 32 + r % 32

    def deletes(self, n):
        return (self.dice(n) >> 8) % 8 == 0

    def apply(self, objects, n):
        """Applies operation n to a table {slot: serial}."""
        if self.deletes(n):
            objects.pop(self.slot(n), None)
        else:
            objects[self.slot(n)] = n


class Wrong(Exception):
    """A promise is broken. The message says which."""


@dataclasses.dataclass
class Walk:
    """What `churn walk` found in a heap."""

    kind: str  # state, none, unreadable
    done: int
    found: dict = dataclasses.field(default_factory=dict)  # slot: (serial, condition)


def after(objects, operations, numbers):
    table = dict(objects)
    for n in numbers:
        operations.apply(table, n)
    return table


def check_strictly(objects, acked, walk, operations):
    """Checks that no acknowledged operation is lost. Returns the number of the last complete one.

    The heap must be in the state after that operation. The operation after it may be half done.
    """
    if walk.kind != "state":
        if objects:
            raise Wrong(f"the root is {walk.kind}, and {len(objects)} acknowledged objects with it")
        return acked
    damaged = [
        f"slot {s}: {word} ({n})" for s, (n, word) in sorted(walk.found.items()) if word != "whole"
    ]
    if damaged:
        raise Wrong(f"{len(damaged)} objects are damaged: {', '.join(damaged[:4])}")
    done = walk.done
    if done == 0 and not objects:
        done = acked  # a new table: no operation is complete in it
    if done < acked:
        raise Wrong(f"operation {acked} was acknowledged, and the heap is at {done}")
    expected = after(objects, operations, range(acked + 1, done + 1))
    pending = after(expected, operations, [done + 1])
    found = {slot: serial for slot, (serial, _) in walk.found.items()}
    wrong = [
        f"slot {slot}: {found.get(slot)}, not {expected.get(slot)}"
        for slot in sorted(expected.keys() | found.keys())
        if found.get(slot) not in (expected.get(slot), pending.get(slot))
    ]
    if wrong:
        raise Wrong(f"{len(wrong)} slots differ from what was acknowledged: {', '.join(wrong[:4])}")
    return done


CONDITIONS = ("whole", "stale", "gone", "zeroes", "other", "undead")


def classify(objects, acked, walk):
    """How each acknowledged object came back: {slot: condition}. For media that promise no data.

    whole: as it was. stale: an older object is in its slot. gone: the slot is empty. zeroes: some
    or all of it is zero. other: pages of different times, or of another object. undead: the object
    had been deleted. An object that a later operation has overwritten does not count.
    """
    verdict = {}
    for slot in objects.keys() | walk.found.keys():
        serial, word = walk.found.get(slot, (0, "gone"))
        if word == "whole" and serial > acked:
            continue
        if slot not in objects:
            verdict[slot] = "undead" if word == "whole" else "other"
        elif word == "whole":
            verdict[slot] = "whole" if serial == objects[slot] else "stale"
        else:
            verdict[slot] = word if word in ("gone", "zeroes") else "other"
    return verdict


class Census:
    """Counts conditions by the age of objects at the power cut.

    Ages are multiples of the write-back time.
    "closed" objects were stored before the heap was last closed or recovered.
    """

    AGES = ("younger", "1 to 2", "older", "closed")

    def __init__(self, interval):
        self.interval = interval
        self.counts = {age: collections.Counter() for age in self.AGES}
        self.cuts = 0

    def add(self, verdict, ages):
        """`ages` maps slots to seconds. A slot without an age was stored before the last close."""
        self.cuts += 1
        for slot, condition in verdict.items():
            age = ages.get(slot)
            place = 3 if age is None else (age >= self.interval) + (age >= 2 * self.interval)
            self.counts[self.AGES[place]][condition] += 1

    def merge(self, other):
        self.cuts += other.cuts
        for age in self.AGES:
            self.counts[age].update(other.counts[age])

    def rows(self):
        """A row for each age: name, number of objects, percent of each condition."""
        for age in self.AGES:
            counts = self.counts[age]
            total = sum(counts.values())
            if total:
                yield age, total, [100 * counts[c] / total for c in CONDITIONS]


class Ledger:
    """One medium: reads its port, knows what must be there, raises Wrong when it is not there."""

    def __init__(self, seed, promised, interval, guarantee=""):
        self.operations = Operations(seed)
        self.promised = promised  # whether every acknowledged object survives a power cut
        self.guarantee = guarantee  # how the guarantee that the tools print must begin
        self.census = {"power": Census(interval), "reboot": Census(interval)}
        self.heap_number = 0
        self.objects = {}
        self.times = {}  # slot: when its object was acknowledged
        self.number = 0  # number of the last acknowledged operation
        self.event = None  # a kill or cut since the last walk
        self.cut_at, self.cut_kind = 0.0, "power"
        # Nothing can be said of the data: the heap is new, or nothing is acknowledged yet.
        self.unknown = True
        self.walk = None
        self.live = None
        self.text = ""
        self.tally = collections.Counter()
        self.app_operations = {}  # program of tests/apps: number of its operations
        self.noise = []

    # ---- what the driver says

    def forget(self):
        """The heap holds nothing, or the medium has lost everything."""
        self.objects, self.times, self.event, self.unknown = {}, {}, None, True

    def start_over(self):
        """The next boot finds no heap."""
        self.heap_number += 1
        self.forget()

    def power_cut(self, now, kind):
        """A reboot writes back dirty pages; no other cut does."""
        self.event, self.cut_at, self.text = "cut", now, ""
        self.cut_kind = "reboot" if kind == "reboot" else "power"

    def next_number(self):
        """FROM of the next run. Where operations may be lost, it is above all earlier numbers."""
        return self.number if self.promised else self.number + 1_000_000

    # ---- what the guest says

    def feed(self, text, now):
        """Reads what the guest has said. Returns the first word of each line."""
        lines = (self.text + text).split("\n")
        self.text = lines.pop()
        words = []
        for line in lines:
            if line.endswith(CUT_OFF):
                continue
            word, _, rest = line.partition(" ")
            reader = getattr(self, "on_" + word, None)
            if reader:
                reader(rest, now)
            else:
                self.noise.append(line)
            words.append(line if word == "phase" else word)
        return words

    def on_phase(self, rest, _now):
        if rest == "create":
            self.start_over()

    def on_ack(self, rest, now):
        self.number = int(rest)
        self.operations.apply(self.objects, self.number)
        self.times[self.operations.slot(self.number)] = now
        self.tally["acknowledged"] += 1

    def on_clearing(self, _rest, _now):
        """The program drops its table. A power cut may come before or after that."""
        self.forget()
        self.unknown = True

    def on_new(self, _rest, _now):
        """The program has found no table and makes one."""
        if self.objects and (self.promised or self.event == "kill"):
            raise Wrong(
                f"the root came back empty, and {len(self.objects)} acknowledged objects with it"
            )

    def on_go(self, rest, _now):
        """The program goes on after the last operation in its heap, acknowledged or not."""
        if self.promised:
            self.objects = after(
                self.objects, self.operations, range(self.number + 1, int(rest) + 1)
            )
        self.number = int(rest)
        self.unknown = False

    def on_killed(self, _rest, _now):
        self.event = "kill"
        self.tally["kills"] += 1

    def on_check(self, rest, _now):
        self.tally["checks"] += 1
        self.usable("pmalloc-recover --check", rest, (0, 1))

    def on_recover(self, rest, _now):
        status, _, text = rest.partition(" ")
        self.usable("pmalloc-recover", rest, (0,))
        self.live = None
        if status == "0":
            report = json.loads(text)
            self.live = report["live_objects"]
            if not report.get("guarantee", "").startswith(self.guarantee):
                raise Wrong(f"the tools say {report['guarantee']!r}, not {self.guarantee!r}")

    def usable(self, tool, rest, good):
        """Status 8 is allowed while no object is acknowledged: the heap may be incomplete."""
        if int(rest.split()[0]) not in (good if self.objects else (*good, 8)):
            raise Wrong(f"{tool}: status {rest}")

    def on_walk(self, rest, _now):
        kind, done = rest.split()
        self.walk = Walk(kind, int(done))

    def on_at(self, rest, _now):
        slot, serial, condition = rest.split()
        self.walk.found[int(slot)] = (int(serial), condition)

    def on_walked(self, rest, _now):
        if rest != "0" or not self.walk:
            raise Wrong(
                f"the program that reads the heap ended with status {rest}: {self.last_noise()}"
            )
        walk, self.walk = self.walk, None
        if self.event == "kill" or self.promised:
            self.number = check_strictly(self.objects, self.number, walk, self.operations)
            self.nothing_leaked(walk)
            self.objects = {slot: serial for slot, (serial, _) in walk.found.items()}
        elif self.event == "cut" and not self.unknown:
            ages = {slot: self.cut_at - then for slot, then in self.times.items()}
            self.census[self.cut_kind].add(classify(self.objects, self.number, walk), ages)
        self.tally[f"verified after {self.event}"] += self.event is not None
        self.event, self.live, self.times = None, None, {}

    def nothing_leaked(self, walk):
        if self.live is not None and walk.kind == "state" and self.live != len(walk.found) + 1:
            raise Wrong(
                f"recovery kept {self.live} blocks, and the program reaches {len(walk.found) + 1}"
            )

    def on_end(self, _rest, _now):
        pass

    def on_absent(self, _rest, _now):
        if self.objects and self.promised:
            raise Wrong(f"the heap is gone, and {len(self.objects)} acknowledged objects with it")

    def on_ended(self, rest, _now):
        raise Wrong(f"the program ended by itself with status {rest}: {self.last_noise()}")

    def on_app(self, rest, _now):
        """A program of tests/apps has checked itself. 0: good. 3: it has no state yet."""
        name, round_, status, text = (rest + " ").split(" ", 3)
        self.tally["kills"] += 1
        done = re.search(r" ops=(\d+) ", text)
        number = int(done[1]) if done else 0
        before = self.app_operations.get(name, 0) if int(round_) > 1 else 0
        if status not in ("0", "3") or "wrong" in text or number < before:
            raise Wrong(
                f"{name}, round {round_}, {before} operations before: status {status}: {text}"
            )
        self.app_operations[name] = number

    def last_noise(self):
        return " | ".join(self.noise[-3:]) or "it said nothing"
