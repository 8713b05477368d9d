# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""The fields of a heap's files, read from format.h and its parts in core/media, so that no second
list can drift.

Every constant and struct there is parsed. Offsets follow from C's rules and are compared with the
header's own assertions. fields() names what a given heap directory holds:

    superblock.base   state.root_epoch   slots.slot[3]   roots.table[0].root[1].length
    booklog.header.epoch   booklog.chunk[3].entry[5]   slabs[7].size_class
    bitmaps.header.crc   bitmaps.record[2].word[0]   images.word[0]   morph.word[8]
    FILE.size
"""

import os
import pathlib
import re
import shutil

CORE = pathlib.Path(__file__).resolve().parents[2] / "core"
LAYOUT = (
    CORE / "base" / "geometry.h",
    CORE / "media" / "origin_format.h",
    CORE / "media" / "dealloc_format.h",
    CORE / "media" / "format.h",
    CORE / "media" / "bitmaps_format.h",
    CORE / "media" / "lane_format.h",
    CORE / "media" / "outside_format.h",
    CORE / "media" / "objects_format.h",
    CORE / "media" / "journal" / "instants_format.h",
    CORE / "media" / "types_format.h",
    CORE / "media" / "recovered_format.h",
    CORE / "media" / "rebased_format.h",
    CORE / "media" / "typed_words_format.h",
)
SIMPLE = {"char": 1, "uint8_t": 1, "uint16_t": 2, "uint32_t": 4, "uint64_t": 8}
TABLE = CORE / "media" / "heap_files.h"


class File:
    """A row of the table of the heap's files; its columns are those of core/media/heap_files.h."""

    def __init__(self, member, name, holds, held, empty, feature, share):
        self.member, self.name, self.holds = member, name, holds
        self.held, self.empty, self.feature = held == "true", empty == "true", feature
        self.share = int(share)
        self.lasts = holds != "PM_FILE_NOTHING"




def rows():
    """The rows of the heap's files, with those of shard 0 in their place."""
    text = TABLE.read_text(encoding="utf-8")
    shard = re.findall(r"^    X\(n, (.*)\)", text, re.MULTILINE)
    whole = r"^    (?:X\((?!n,)|PM_SHARD_FILE(?=_TABLE\(SHARD, 0))(.*)\)"
    for row in re.findall(whole, text, re.MULTILINE):
        for each in shard if row.startswith("_TABLE") else [row]:
            yield File(*re.split(r",\s*", re.sub(r'" #n( ")?', "0", each).replace('"', "")))


ROWS = list(rows())
FILES = tuple(row.name for row in ROWS if row.lasts)


class Struct:
    def __init__(self, name):
        self.name, self.members, self.size, self.align = name, [], 0, 1


class Layout:
    """Constants and structs of geometry.h, format.h and its parts.

    A member is (name, type, offset, element size, count or None).
    """

    def __init__(self, paths=LAYOUT):
        text = "".join(path.read_text(encoding="utf-8") for path in paths)
        text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
        self.constants, self.structs = {}, {}
        for name, value in re.findall(r"^#define (\w+) (.+)$", text, re.MULTILINE):
            self.constants[name] = value
        for name, body in re.findall(r"^struct (\w+) \{(.*?)^\};", text, re.MULTILINE | re.DOTALL):
            self._struct(name, body)
        self._compare(text)

    def value(self, expression):
        """The value of an integer expression in the header."""
        text = re.sub(r"\(size_t\)", "", expression)
        text = re.sub(r"\b(0x[0-9a-fA-F]+|\d+)(?:ull|u)\b", r"\1", text)
        text = re.sub(r"\b[A-Za-z_]\w*", lambda m: f"({self.value(self.constants[m[0]])})", text)
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
        for name, member, at in re.findall(
            r"_Static_assert\(offsetof\(struct (\w+), (\w+)\) == ([^,]+),", text
        ):
            assert self.offset(name, member) == self.value(at), (name, member)
        assert checks > 8

    def offset(self, struct, member):
        return next(
            offset for name, _, offset, _, _ in self.structs[struct].members if name == member
        )

    def leaves(self, struct, prefix, at, counts):
        """(name, offset, bytes, is a number) of all members, also of members' members.

        `counts` says how many elements of an array are listed.
        """
        for member, kind, offset, size, count in self.structs[struct].members:
            name = f"{prefix}.{member}" if prefix else member
            if kind in self.structs:
                for i in range(min(count or 1, counts.get(member, count or 1))):
                    yield from self.leaves(
                        kind, f"{name}[{i}]" if count else name, at + offset + i * size, counts
                    )
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
    return {
        n: bytearray((pathlib.Path(heap) / n).read_bytes())
        for n in FILES
        if os.path.exists(f"{heap}/{n}")
    }


def forget_origin(data, at=0):
    """Takes away the record of which file the superblock in `data` is: what is written to another
    file would be refused as a copy of a heap that was in use."""
    layout = Layout()
    at += layout.offset("pm_super_file", "state") + layout.offset("pm_state", "origin")
    data[at : at + layout.structs["pm_origin"].size] = bytes(layout.structs["pm_origin"].size)


def read_to_write(heap):
    """As read(), for files that are written elsewhere."""
    files = read(heap)
    forget_origin(files["superblock"])
    return files


HOLE = bytes(65536)


def write(heap, files):
    """Makes the directory anew, of these files. Where they are zero they have holes."""
    shutil.rmtree(heap, ignore_errors=True)
    heap.mkdir(mode=0o700)
    for name, data in files.items():
        with open(heap / name, "wb") as out:
            for at in range(0, len(data), len(HOLE)):
                chunk = data[at : at + len(HOLE)]
                if chunk != HOLE[: len(chunk)]:
                    out.seek(at)
                    out.write(chunk)
            out.truncate(len(data))
        (heap / name).chmod(0o600)


def number(data, offset, size=8):
    return int.from_bytes(data[offset : offset + size], "little")


def _bitmaps(layout, data):
    yield from (
        (f"bitmaps.{n}", o, s, k)
        for n, o, s, k in layout.leaves("pm_bitmaps_header", "header", 0, {})
    )
    at, i, size = (
        layout.structs["pm_bitmaps_header"].size,
        0,
        layout.structs["pm_bitmap_record"].size,
    )
    words = layout.offset("pm_bitmap_record", "words")
    while at + size <= len(data):
        yield from layout.leaves("pm_bitmap_record", f"bitmaps.record[{i}]", at, {})
        for word in range(count := number(data, at + words, 2)):
            yield f"bitmaps.record[{i}].word[{word}]", at + size + word * 8, 8, True
        at, i = at + size + count * 8, i + 1


def _superblock(layout, data):
    for member, kind, offset, size, count in layout.structs["pm_super_file"].members:
        for i in range(count or 1):
            name = f"roots.table[{i}]" if count else "superblock" if member == "super" else member
            yield from layout.leaves(kind, name, offset + i * size, {})
    at = layout.offset("pm_super_file", "state") + layout.offset("pm_state", "reserved")
    at += layout.structs["pm_shard_state"].size
    yield from layout.leaves("pm_outside", "outside", at, {"range": 2})
    at += layout.structs["pm_outside"].size
    yield from layout.leaves("pm_objects_state", "objects", at, {})
    at += layout.structs["pm_objects_state"].size
    yield from layout.leaves("pm_instants_state", "instants", at, {})
    at += layout.structs["pm_instants_state"].size
    yield from layout.leaves("pm_recovered", "recovered", at, {})
    at += layout.structs["pm_recovered"].size
    yield from layout.leaves("pm_rebased", "rebased", at, {})
    at += layout.structs["pm_rebased"].size
    yield from layout.leaves("pm_typed_words", "typed", at, {"line": 2})
    lane, at = layout.structs["pm_lane"].size, layout.structs["pm_super_file"].size
    for i in range((len(data) - at) // lane):
        yield from layout.leaves("pm_lane", f"lane[{i}]", at + i * lane, {"store": 4})


def _booklog(layout, data):
    yield from layout.leaves("pm_log_header", "booklog.header", 0, {"dealloc": 2, "entry": 2})
    chunk, at = layout.structs["pm_log_chunk"].size, layout.structs["pm_log_header"].size
    for i in range((len(data) - at) // chunk):
        yield from layout.leaves("pm_log_chunk", f"booklog.chunk[{i}]", at + i * chunk, {})


def _objects(layout, name):
    yield from layout.leaves("pm_objects_head", f"{name}.head", 0, {})
    entry = layout.structs["pm_objects_entry"].size
    for i in range(2):
        yield from layout.leaves("pm_objects_entry", f"{name}.entry[{i}]", (i + 1) * entry, {})


def _types(layout, data):
    yield from layout.leaves("pm_types_head", "types.head", 0, {})
    at = layout.structs["pm_types_head"].size
    for member, struct in (("roots", "root"), ("types", "type"), ("members", "member")):
        count = number(data, layout.offset("pm_types_head", member), 4)
        size = layout.structs[f"pm_types_{struct}"].size
        for i in range(count):
            yield from layout.leaves(f"pm_types_{struct}", f"types.{struct}[{i}]", at, {})
            at += size


def fields(files, layout=None):
    """Every field of the files that read() returned, in order, except FILE.size."""
    layout = layout or Layout()
    slab = layout.structs["pm_slab_header"].size
    found = {
        "superblock": _superblock(layout, files["superblock"]),
        "booklog.0": _booklog(layout, files["booklog.0"]),
        "slabs.0": (
            leaf
            for i in range(len(files["slabs.0"]) // slab)
            for leaf in layout.leaves("pm_slab_header", f"slabs[{i}]", i * slab, {})
        ),
        **{
            name: _objects(layout, name)
            for name in ("objects.a", "objects.b")
            if name in files
        },
        "types": _types(layout, files["types"]) if "types" in files else (),
        "roots": ((f"images.word[{i}]", i * 8, 8, True) for i in range(len(files["roots"]) // 8)),
        "bitmaps.0": _bitmaps(layout, files["bitmaps.0"]) if "bitmaps.0" in files else (),
        "morph.0": (
            (f"morph.word[{i}]", i * 8, 8, True) for i in range(len(files.get("morph.0", b"")) // 8)
        ),
    }
    return [
        Field(name, file, offset, size, is_number)
        for file, leaves in found.items()
        for name, offset, size, is_number in leaves
        if offset + size <= len(files[file])
    ]
