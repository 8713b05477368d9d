# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""A heap whose fields are spoiled one at a time. Says which fields there are, which of them may
change unnoticed, and which values to put there."""

import os
import re
import sys

from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests" / "fuzz"))
from heap_layout import FILES, Layout, fields  # noqa: E402

SAMPLES = 1  # random elements of an array, beside the first one and the last one in use
VALUES = int(os.environ.get("DAMAGE_VALUES", "3"))  # of a field, at most; each run draws others

# Fields that may change without a refusal: pattern, states of the heap, reason. The data must still
# be the same.
ALL, DIRTY = {"clean", "recovered", "dirty"}, {"dirty"}
INFORMATIVE = [
    (r"state\.(owner_pid|owner_start|kept|live|program.*|reserved.*)", ALL, "for messages only"),
    (r"state\.doubt", ALL, "who finds it set writes the heap once more"),
    (r"state\.(applied|lap)", ALL, "of a heap in commit mode"),
    (r"state\.(opens|bitmaps_tag)|state\.clean\..*", DIRTY, "mean something after a clean close"),
    (r"state\.state", ALL - DIRTY, "clean read as dirty is recovered as after a crash"),
    (r"state\.origin\..*", ALL, "the case is a copy, which has none (test_copies.py)"),
    (r"booklog\.header\.reserved", ALL, "not used"),
    (r"booklog\.header\.dealloc.*", ALL, "of a heap without frees on another node"),
    (r"objects\.reserved", ALL, "not used"),
    (r"objects\.generation", ALL, "0: a heap without a record"),
    (r"objects\.[ab]\.size", ALL, "bytes after the last packed object"),
    (r"outside\..*", ALL, "a hint, of which a line is made"),
    (r"rebased\..*", ALL, "for people; not told where it is not whole"),
    (r"recovered\..*", ALL, "for people; not told where it is not whole"),
    (r"instants\..*", ALL, "for people; not told where it is not whole"),
    (r"types\..*", ALL, "only tools read it (test_types.py)"),
    (r"booklog\.chunk\[FREE\].*", ALL, "not in the log"),
    (r"slabs\[FREE\].*", ALL, "of no slab"),
    (r"morph\.word\[FREE\]", ALL, "of no slab's index table"),
    (r"lane\[\d+\]\..*", ALL, "of no publish that was cut short"),
    (r"bitmaps\..*", ALL, "rebuilt by marking"),
    (r"roots\.table\[OTHER\].*|roots\.table\[\d\]\.pad", ALL, "the table that is not in force"),
    (r"roots\.table\[\d\]\.root\[FREE\].*", ALL, "after the last root"),
    (r"images\.word\[OTHER\]", ALL, "no root's bytes"),
    (r"superblock\.incompat", ALL, "may name a feature that is known and not used"),
    (r"superblock\.size", ALL, "bytes after the last field"),
    (r"(slabs\.0|morph\.0|booklog\.0|roots|bitmaps\.0)\.size", ALL, "longer than it needs to be"),
    (r"heap\.0\.size", DIRTY, "free pages come and go at its end"),
]
# Slots of a chunk in the order of appending: one cache line after the other. Line 0 has six slots.
ORDER = [6 + (line - 1) * 8 + row if line else row for row in range(6) for line in range(16)]
ORDER += [6 + line * 8 + row for row in (6, 7) for line in range(15)]


# Of core/media/kind_format.h.
PINNED_KIND, PINNED_MAGIC, STRIPES = 4, 0x4E50, 6


class Case:
    """`media` are all files of the heap. `files` are those of one shard, under the names that shard
    0 has for them, and those of the whole heap: so fields have the same names in every shard."""

    def __init__(self, heap, media, expected, shard=0):
        self.heap, self.media, self.expected, self.shard = heap, media, expected, shard
        self.argv = None  # of a program that checks the heap; else one of tests/apps does
        names = {name: self.on_media(name) for name in FILES}
        self.files = files = {name: media[real] for name, real in names.items() if real in media}
        self.state = heap.name
        layout = Layout()
        number = lambda file, at, size: int.from_bytes(files[file][at : at + size], "little")
        self.epoch = number("superblock", 4096 + layout.offset("pm_state", "root_epoch"), 4)
        self.log_epoch = number("booklog.0", layout.offset("pm_log_header", "epoch"), 4)
        table = layout.offset("pm_super_file", "roots") + layout.structs["pm_root_table"].size * (
            self.epoch & 1
        )
        self.roots = number("superblock", table + layout.offset("pm_root_table", "count"), 4)
        self.fields = fields(files, layout)
        self.by_name = {f.name: f for f in self.fields}
        self.slabs = self.slabs_in_use()
        self.tables = {word for slab in self.slabs for word in self.index_table(slab)}
        self.captured = set()
        for i in range(self.roots):
            root = f"roots.table[{self.epoch & 1}].root[{i}]"
            first, length = (self.get(f"{root}.{name}") for name in ("image", "length"))
            self.captured |= set(range(first // 8, (first + length - 1) // 8 + 1))

    def on_media(self, name):
        """The name of the shard's file that is NAME.0 in shard 0."""
        return re.sub(r"\.0$", f".{self.shard}", name)

    def get(self, name):
        field = self.by_name[name]
        return int.from_bytes(field.get(self.files[field.file]), "little")

    def slabs_in_use(self):
        """Replays the log: the slabs whose entry no tombstone ends."""
        entries, ended = {}, set()
        for chunk in range(len(self.files["booklog.0"]) // 1024 - 4):
            if self.get(f"booklog.chunk[{chunk}].epoch") & 0xFFFFFFFF != self.log_epoch:
                continue
            generation = self.get(f"booklog.chunk[{chunk}].generation") & 0x3FFFFFF
            for slot in range(126):
                entry = self.get(f"booklog.chunk[{chunk}].entry[{slot}]")
                entries[chunk * 128 + slot, generation] = entry
                if entry & 3 == 3:
                    ended.add((entry >> 2 & 0xFFFFFFF, entry >> 38))
        return {e >> 6 & 0xFFFFFF for at, e in entries.items() if e & 3 == 2 and at not in ended}

    def index_table(self, slab):
        """The words of morph.0 that a slab's header names: the head of the index table, then one
        word per 32 old blocks."""
        first = (self.get(f"slabs[{slab}].current") & 0x3FFFFFF) * 8
        if not first or self.get(f"slabs[{slab}].magic") == PINNED_MAGIC:
            return range(0)
        if self.get(f"slabs[{slab}].kind") & PINNED_KIND:
            return self.pinned_table(first)
        old_class = self.files["morph.0"][first * 8 + 4]
        doubling, quarter = divmod(old_class - 17, 4)  # after 256 bytes, of four classes each
        size = 16 * old_class if old_class <= 16 else 64 * (5 + quarter) << doubling
        return range(first, first + 2 + -(-(65536 // size) // 32))

    def pinned_table(self, first):
        """The same of a slab of pinned blocks: a line for the head, and six stripes of lines."""
        blocks = int.from_bytes(self.files["morph.0"][first * 8 + 2 : first * 8 + 4], "little")
        lines = 1 + STRIPES * -(-(-(-blocks // STRIPES)) // 256)
        return range(first, first + lines * 8)

    def shape(self, name):
        """The name of a field, with the meaning of its indices in their place."""
        if match := re.match(r"booklog\.chunk\[(\d+)\]", name):
            epoch = self.get(f"booklog.chunk[{match[1]}].epoch") & 0xFFFFFFFF
            return name if epoch == self.log_epoch else re.sub(r"chunk\[\d+\]", "chunk[FREE]", name)
        if match := re.match(r"slabs\[(\d+)\]", name):
            return name if int(match[1]) in self.slabs else re.sub(r"\[\d+\]", "[FREE]", name)
        if match := re.match(r"morph\.word\[(\d+)\]", name):
            return name if int(match[1]) in self.tables else "morph.word[FREE]"
        if match := re.match(r"images\.word\[(\d+)\]", name):
            return name if int(match[1]) in self.captured else "images.word[OTHER]"
        if match := re.match(r"roots\.table\[(\d)\]", name):
            if int(match[1]) != self.epoch & 1:
                return name.replace(match[0], "roots.table[OTHER]", 1)
            root = re.search(r"root\[(\d+)\]", name)
            if root and int(root[1]) >= self.roots:
                return name.replace(root[0], "root[FREE]", 1)
        return name

    def may_change(self, name):
        shape = self.shape(name)
        return any(re.fullmatch(p, shape) and self.state in states for p, states, _ in INFORMATIVE)

    def newest_entry(self):
        """The newest entry of the log. Without it the log is still a log, so nothing notices in a
        dirty heap. In a clean heap the close record does."""
        for i in range(len(self.files["booklog.0"]) // 1024 - 4):
            chunk = f"booklog.chunk[{i}]"
            used = [slot for slot in ORDER if self.get(f"{chunk}.entry[{slot}]")]
            if self.shape(chunk) == chunk and 0 < len(used) < 126:
                return f"{chunk}.entry[{used[-1]}]"
        return None

    def unprotected(self, field, value):
        if field.name.startswith("images.") and self.state == "dirty":
            return True  # the program's own variables; it stored to them until its very end
        return self.state == "dirty" and not any(value) and field.name == self.newest_entry()

    def chosen(self, rng):
        """Some fields of every shape, and every entry of the log that is in use."""
        groups = {}
        for field in self.fields:
            shape = re.sub(r"\[\d+\]", "[]", self.shape(field.name))
            if (
                ".entry[" in field.name
                and any(field.get(self.files[field.file]))
                and "FREE" not in shape
            ):
                shape = field.name
            groups.setdefault(shape, []).append(field)
        for group in groups.values():
            some = {group[0].name: group[0], group[-1].name: group[-1]}
            some |= {f.name: f for f in rng.sample(group, min(SAMPLES, len(group)))}
            yield from some.values()

    def values(self, field, rng):
        """Values to put there, all different from the present one. Each run draws others."""
        now = field.get(self.files[field.file])
        all_ones = b"\xff" * field.size
        flip = lambda bit: bytes(
            b ^ (1 << bit % 8 if i == bit // 8 else 0) for i, b in enumerate(now)
        )
        data = self.files[field.file]
        neighbours = [
            data[field.offset + field.size :][: field.size],
            data[: field.offset][-field.size :],
        ]
        found = [
            bytes(field.size),
            all_ones,
            flip(0),
            flip(field.size * 8 - 1),
            flip(rng.randrange(field.size * 8)),
        ]
        wild = rng.randbytes(field.size)
        if ".entry[" in field.name:
            # Eight check bits notice every change of up to three bits. They miss one in 256 of all
            # other changes, by design.
            bits = sum(1 << bit for bit in rng.sample(range(field.size * 8), 3))
            wild = (int.from_bytes(now, "little") ^ bits).to_bytes(field.size, "little")
        found += [wild] + [bytes(n) for n in neighbours if len(n) == field.size]
        found = [v for v in dict.fromkeys(found) if v != now]
        most = min(VALUES, 3) if ".entry[" in field.name else VALUES  # one of many entries
        if self.state == "recovered" or self.may_change(field.name):
            most = min(VALUES, 2)  # as "clean" but for the closing; or nothing reads it
        return rng.sample(found, min(len(found), most))
