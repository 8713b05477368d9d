# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""The fields of a heap's files, read from core/layout.h itself, so that no second list can drift from it.

Every constant and struct there is parsed; offsets follow from C's rules and are compared with the header's own
assertions. fields() names what a given heap directory holds:

    superblock.base   state.root_epoch   slots.slot[3]   roots.table[0].root[1].length   booklog.header.epoch
    booklog.chunk[3].entry[5]   slabs[7].size_class   bitmaps.header.crc   bitmaps.record[2].word[0]
    images.word[0]   morph.word[8]   FILE.size
"""

import os
import pathlib
import re

LAYOUT = pathlib.Path(__file__).resolve().parents[2] / "core" / "layout.h"
SIMPLE = {"char": 1, "uint8_t": 1, "uint16_t": 2, "uint32_t": 4, "uint64_t": 8}
FILES = ("superblock", "heap.0", "slabs.0", "booklog.0", "roots", "bitmaps.0", "morph.0")


class Struct:
    def __init__(self, name):
        self.name, self.members, self.size, self.align = name, [], 0, 1


class Layout:
    """Constants and structs of layout.h. A member is (name, type, offset, element size, count or None)."""

    def __init__(self, path=LAYOUT):
        text = re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        self.constants, self.structs = {}, {}
        for name, value in re.findall(r"^#define (\w+) (.+)$", text, re.MULTILINE):
            self.constants[name] = value
        for name, body in re.findall(r"^struct (\w+) \{(.*?)^\};", text, re.MULTILINE | re.DOTALL):
            self._struct(name, body)
        self._compare(text)

    def value(self, expression):
        """An integer expression of the header."""
        text = re.sub(r"\(size_t\)", "", expression)
        text = re.sub(r"\b(0x[0-9a-fA-F]+|\d+)(?:ull|u)\b", r"\1", text)
        text = re.sub(r"[A-Za-z_]\w*", lambda m: f"({self.value(self.constants[m[0]])})", text)
        return eval(text.replace("/", "//"), {"__builtins__": {}})  # the project's own header

    def _struct(self, name, body):
        s = Struct(name)
        for declaration in " ".join(body.split()).split(";"):
            if not declaration.strip():
                continue
            match = re.fullmatch(r"(struct )?(\w+) (\w+)(?:\[(.+)\])?", declaration.strip())
            assert match, f"struct {name}: {declaration!r} is not understood"
            of, kind, member, count = match.groups()
            size = self.structs[kind].size if of else SIMPLE[kind]
            align = self.structs[kind].align if of else size
            count = self.value(count) if count else None
            offset = -(-s.size // align) * align
            assert offset == s.size, f"struct {name} has a gap before {member}"
            s.members.append((member, kind, offset, size, count))
            s.size, s.align = offset + size * (count or 1), max(s.align, align)
        assert s.size % s.align == 0, f"struct {name} has a gap at its end"
        self.structs[name] = s

    def _compare(self, text):
        checks = 0
        for name, size in re.findall(r"_Static_assert\(sizeof\(struct (\w+)\) == ([^,]+),", text):
            assert self.structs[name].size == self.value(size), name
            checks += 1
        for name, member, at in re.findall(r"_Static_assert\(offsetof\(struct (\w+), (\w+)\) == ([^,]+),", text):
            assert self.offset(name, member) == self.value(at), (name, member)
        assert checks > 8

    def offset(self, struct, member):
        return next(offset for name, _, offset, _, _ in self.structs[struct].members if name == member)

    def leaves(self, struct, prefix, at, counts):
        """(name, offset, bytes, is a number) of all below; `counts` bounds arrays of structs and of words."""
        for member, kind, offset, size, count in self.structs[struct].members:
            name = f"{prefix}.{member}" if prefix else member
            if kind in self.structs:
                for i in range(min(count or 1, counts.get(member, count or 1))):
                    yield from self.leaves(kind, f"{name}[{i}]" if count else name, at + offset + i * size, counts)
            elif count and size > 1:
                for i in range(min(count, counts.get(member, count))):
                    yield f"{name}[{i}]", at + offset + i * size, size, True
            else:
                yield name, at + offset, size * (count or 1), not count


class Field:
    def __init__(self, name, file, offset, size, number):
        self.name, self.file, self.offset, self.size, self.number = name, file, offset, size, number

    def get(self, data):
        return bytes(data[self.offset : self.offset + self.size])

    def put(self, data, value):
        data[self.offset : self.offset + self.size] = value


def read(heap):
    """The files of a heap, by name."""
    return {n: bytearray((pathlib.Path(heap) / n).read_bytes()) for n in FILES if os.path.exists(f"{heap}/{n}")}


def number(data, offset, size=8):
    return int.from_bytes(data[offset : offset + size], "little")


def _bitmaps(layout, data):
    yield from ((f"bitmaps.{n}", o, s, k) for n, o, s, k in layout.leaves("pm_bitmaps_header", "header", 0, {}))
    at, i, size = layout.structs["pm_bitmaps_header"].size, 0, layout.structs["pm_bitmap_record"].size
    words = layout.offset("pm_bitmap_record", "words")
    while at + size <= len(data):
        yield from layout.leaves("pm_bitmap_record", f"bitmaps.record[{i}]", at, {})
        for word in range(count := number(data, at + words, 2)):
            yield f"bitmaps.record[{i}].word[{word}]", at + size + word * 8, 8, True
        at, i = at + size + count * 8, i + 1


def _superblock(layout):
    for member, kind, offset, size, count in layout.structs["pm_super_file"].members:
        for i in range(count or 1):
            name = f"roots.table[{i}]" if count else "superblock" if member == "super" else member
            yield from layout.leaves(kind, name, offset + i * size, {})


def _booklog(layout, data):
    yield from layout.leaves("pm_log_header", "booklog.header", 0, {})
    chunk, at = layout.structs["pm_log_chunk"].size, layout.structs["pm_log_header"].size
    for i in range((len(data) - at) // chunk):
        yield from layout.leaves("pm_log_chunk", f"booklog.chunk[{i}]", at + i * chunk, {})


def fields(files, layout=None):
    """Every field of the files that read() gave, in order; FILE.size apart."""
    layout = layout or Layout()
    slab = layout.structs["pm_slab_header"].size
    found = {
        "superblock": _superblock(layout),
        "booklog.0": _booklog(layout, files["booklog.0"]),
        "slabs.0": (
            leaf
            for i in range(len(files["slabs.0"]) // slab)
            for leaf in layout.leaves("pm_slab_header", f"slabs[{i}]", i * slab, {})
        ),
        "roots": ((f"images.word[{i}]", i * 8, 8, True) for i in range(len(files["roots"]) // 8)),
        "bitmaps.0": _bitmaps(layout, files["bitmaps.0"]) if "bitmaps.0" in files else (),
        "morph.0": ((f"morph.word[{i}]", i * 8, 8, True) for i in range(len(files.get("morph.0", b"")) // 8)),
    }
    return [
        Field(name, file, offset, size, is_number)
        for file, leaves in found.items()
        for name, offset, size, is_number in leaves
        if offset + size <= len(files[file])
    ]
