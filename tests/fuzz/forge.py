# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Forges fields of a heap: changes them and corrects every checksum that covers them.

So the checksums do not notice the change, and the reader of the heap has to judge the value itself.
core/media/format.h describes the checksums; heap_layout.py finds the fields.
"""

import re

from heap_layout import Layout, fields, number

LAYOUT = Layout()
TABLE = []
for byte in range(256):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    TABLE.append(byte)


def crc32c(data, crc=0):
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def crc8(crc, word):
    for byte in word.to_bytes(8, "big"):
        crc ^= byte
        for _ in range(8):
            crc = (crc << 1 ^ (7 if crc & 0x80 else 0)) & 0xFF
    return crc


def seal(value, salt):
    crc = crc32c((salt & 0xFFFFFFFF).to_bytes(4, "little") + value.to_bytes(4, "little"))
    return (crc or 1) << 32 | value


def _put(data, at, value, size=8):
    data[at : at + size] = value.to_bytes(size, "little")


def _sealed(data, at, salt):
    _put(data, at, seal(number(data, at, 4), salt))


def _record(data, at, struct):
    """Writes the checksum at the end of a struct. It covers all bytes before it."""
    crc = LAYOUT.offset(struct, "crc")
    _put(data, at + crc, crc32c(data[at : at + crc]), 4)


def _offset(member, below, field):
    return LAYOUT.offset("pm_super_file", member) + LAYOUT.offset(below, field)


def _superblock(data, name):
    state = LAYOUT.offset("pm_super_file", "state")
    if name.startswith("superblock."):
        _record(data, 0, "pm_superblock")
    elif name == "state.root_epoch":
        _sealed(
            data, _offset("state", "pm_state", "root_epoch"), LAYOUT.value("PM_SALT_ROOT_EPOCH")
        )
    elif name.startswith("state.clean"):
        _record(data, state + LAYOUT.offset("pm_state", "clean"), "pm_clean")
    elif name.startswith("state.origin"):
        at = state + LAYOUT.offset("pm_state", "origin")
        seal_at = LAYOUT.offset("pm_origin", "seal")
        sealed = seal(crc32c(data[at : at + seal_at]), LAYOUT.value("PM_SALT_ORIGIN"))
        _put(data, at + seal_at, sealed)
    elif name.startswith("state.program"):
        at, size = state + LAYOUT.offset("pm_state", "program"), LAYOUT.structs["pm_program"].size
        _put(
            data, state + LAYOUT.offset("pm_state", "program_crc"), crc32c(data[at : at + size]), 4
        )
    elif match := re.match(r"slots\.slot\[(\d+)\]", name):
        slot, at = int(match[1]), LAYOUT.offset("pm_super_file", "slots") + int(match[1]) * 8
        pointer = number(data, at) & (1 << 48) - 1
        both = (slot << 48 | pointer).to_bytes(8, "little")
        _put(data, at, (0x8000 | crc32c(both) >> 17) << 48 | pointer)
    elif match := re.match(r"roots\.table\[(\d)\]", name):
        at = (
            LAYOUT.offset("pm_super_file", "roots")
            + int(match[1]) * LAYOUT.structs["pm_root_table"].size
        )
        count = number(data, at + LAYOUT.offset("pm_root_table", "count"), 4)
        end = LAYOUT.offset("pm_root_table", "root") + count * LAYOUT.structs["pm_root"].size
        if end <= LAYOUT.structs["pm_root_table"].size and name != f"roots.table[{match[1]}].crc":
            _put(data, at, crc32c(data[at + LAYOUT.offset("pm_root_table", "count") : at + end]), 4)


def _booklog(data, name):
    if name in ("booklog.header.epoch", "booklog.header.chunks"):
        salt = "PM_SALT_LOG_EPOCH" if name.endswith("epoch") else "PM_SALT_LOG_CHUNKS"
        _sealed(data, LAYOUT.offset("pm_log_header", name.rpartition(".")[2]), LAYOUT.value(salt))
    if not (match := re.match(r"booklog\.chunk\[(\d+)\]\.(\w+)(?:\[(\d+)\])?", name)):
        return
    chunk, what = int(match[1]), match[2]
    at = LAYOUT.structs["pm_log_header"].size + chunk * LAYOUT.structs["pm_log_chunk"].size
    if what != "entry":
        _sealed(data, at + LAYOUT.offset("pm_log_chunk", what), chunk << 1 | (what == "generation"))
    # The check of every entry covers the generation of the chunk.
    for slot in [int(match[3])] if match[3] else range(126) if what == "generation" else ():
        here = at + 16 + slot * 8
        entry = number(data, here) & ~(0xFF << 30)
        where = number(data, at + 8, 4) << 32 | chunk << 7 | slot
        if entry:
            _put(data, here, entry | crc8(crc8(0, where), entry) << 30)


def _slabs(data, name):
    slab = int(re.match(r"slabs\[(\d+)\]", name)[1])
    at, current = slab * 64, LAYOUT.offset("pm_slab_header", "current")
    if name.endswith(".current"):
        _sealed(data, at + current, 0x80000000 | slab)
    header = bytearray(data[at : at + 60])
    header[current : current + 8] = bytes(8)
    _put(data, at + 60, crc32c(slab.to_bytes(4, "little") + header), 4)


def _bitmaps(data, name):
    header = LAYOUT.structs["pm_bitmaps_header"].size
    if not name.endswith(".crc"):
        _put(data, LAYOUT.offset("pm_bitmaps_header", "crc"), crc32c(data[header:]), 4)
    at = LAYOUT.offset("pm_bitmaps_header", "header_crc")
    _put(data, at, crc32c(data[:at]), 4)


def _pinned(data, word):
    """The same in a table of pinned blocks (core/media/kind_format.h): a head of one line, then
    lines of sealed words. Returns whether the word is in one."""
    for line in range(word // 8, -1, -1):
        at = line * 64
        blocks = number(data, at + 2, 2)
        lines = 1 + 6 * -(-(-(-blocks // 6)) // 256)
        if number(data, at, 2) != 0x4E50 or word // 8 >= line + lines:
            continue
        if word // 8 == line:
            _put(data, at + 60, crc32c(data[at : at + 60]), 4)
            return True
        if number(data, at + 60, 4) == crc32c(data[at : at + 60]):
            _sealed(data, word * 8, 0x60000000 | word)
            return True
    return False


def _morph(data, name):
    """A word is half of a table's head, or one of its sealed words. The slab headers say which."""
    word = int(re.match(r"morph\.word\[(\d+)\]", name)[1])
    if _pinned(data, word):
        return
    for first in range(word, max(word - 130, -1), -1):
        at = first * 8
        if (
            first % 8 == 0
            and crc32c(data[at : at + 12]) == number(data, at + 12, 4)
            and any(data[at : at + 12])
        ):
            slab = number(data, at, 4)
            _sealed(data, word * 8, (slab << 7 | word - first - 2) & 0xFFFFFFFF)
            return
    at = word // 2 * 16
    _put(data, at + 12, crc32c(data[at : at + 12]), 4)


MEND = {
    "superblock": _superblock,
    "booklog.0": _booklog,
    "slabs.0": _slabs,
    "bitmaps.0": _bitmaps,
    "morph.0": _morph,
}
WORDS = (
    0,
    1,
    2,
    3,
    7,
    0xFF,
    0xFFFF,
    1 << 31,
    0xFFFFFFFF,
    1 << 40,
    (1 << 40) - 4096,
    0x400000000000,
    (1 << 64) - 1,
)


def value(field, data, rng):
    """Another number for a field: near the old one, a notable number, or any."""
    now, top = number(data, field.offset, field.size), 1 << 8 * field.size
    near = [
        now + rng.choice((1, 2, 16, 64, 4096)),
        now - rng.choice((1, 2, 16, 64, 4096)),
        now ^ 1 << rng.randrange(8 * field.size),
    ]
    if field.size == 8:  # changes the value of a sealed word, or the parts of a log entry
        near += [
            now ^ 1 << rng.randrange(34),
            now + (1 << 38),
            now - (1 << 38),
            now + 4,
            now ^ rng.randrange(1, 4),
        ]
    return rng.choice(near + [rng.choice(WORDS), rng.randrange(top)]) % top


# Fields that say how much is mapped, truncated or added up. A small error in such a field may pass
# one reader, while another refuses it.
MEASURE = re.compile(
    r"length|offset|image$|size|pages|count|words|chunks|used|frontier|bytes|base|range"
)


def near_misses(files, known):
    """(field, value): each measure in use, one more, one less, and with one bit flipped."""
    for name in sorted(known):
        some = (
            [f for f in known[name] if f.number and in_use(f, files[f.file])]
            if MEASURE.search(name)
            else []
        )
        for field in {some[0], some[-1]} if some else ():
            now = number(files[field.file], field.offset, field.size)
            for new in (now + 1, now - 1, now ^ 8, now ^ 0x800):
                yield field, new % (1 << 8 * field.size)


def put_right(files, field, new):
    """Changes one field in place and corrects its checksums. Returns the change as text."""
    _put(files[field.file], field.offset, new, field.size)
    MEND[field.file](files[field.file], field.name)
    return f"{field.name}={new:#x}"


def groups(files):
    """The fields by names without indices, so that each name is as likely as any other."""
    found = {}
    for field in fields(files, LAYOUT):
        if field.file in MEND and "reserved" not in field.name and ".pad" not in field.name:
            found.setdefault(re.sub(r"\[\d+\]", "[]", field.name), []).append(field)
    return found


def in_use(field, data):
    return any(field.get(data))


def forge(files, known, rng):
    """Changes one to three fields of `files` in place. Returns the changes as text."""
    text = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        names = sorted(known)
        names = [n for n in names if MEASURE.search(n)] if rng.random() < 0.3 else names
        some = known[rng.choice(names)]
        some = [f for f in some if in_use(f, files[f.file])] if rng.random() < 0.8 else some
        if not some:
            continue
        field = rng.choice(some)
        text.append(put_right(files, field, value(field, files[field.file], rng)))
    return " ".join(text)
