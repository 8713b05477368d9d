# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""A heap on a fixed medium is spoiled: each word of its layout and of its lengths, and some fields
of each part. As in test_damage.py the heap is refused with one line and not changed, or the program
finds the data it had. Forged layouts are in tests/fuzz/corpus-medium."""

import random
import struct

import pytest
from conftest import run, succeeds, tool
from test_damage import LOOKS, healthy, look, originals, program, write  # noqa: F401

PARTS = {
    "superblock": 1,
    "roots": 2,
    "heap.0": 3,
    "slabs.0": 4,
    "booklog.0": 5,
    "morph.0": 6,
    "bitmaps.0": 7,
}
LENGTHS = 4096  # struct pm_lengths: a word for each of 16 parts, then `grown`


def medium_of(case, path):
    """The case's heap on a medium of 16 MiB. Returns its bytes and where each part lies."""
    heap = path.with_name("source")
    write(heap, case.media)  # the case has used its own since
    argv = [tool("pmalloc-recover"), "--make", "--size", "16M", "--from", heap, path]
    succeeds(run(argv, preload=False))
    data = bytearray(path.read_bytes())
    ranges = {name: struct.unpack_from("<QQ", data, 48 + 16 * n) for name, n in PARTS.items()}
    return data, ranges


def put(path, at, value):
    with open(path, "r+b") as medium:
        medium.seek(at)
        medium.write(value)


def tried(case, path, data, what, everything):
    """Whether the tools and the program accept the medium, which holds `data`."""
    check = [tool("pmalloc-recover"), "--check"]
    verdict = healthy(look(check, path), (0, 1, 4), f"{what}: --check")
    others = LOOKS if everything else [random.Random(what).choice(LOOKS)]
    for argv in others:
        done = look([tool(argv[0]), *argv[1:]], path)
        healthy(done, (4,) if verdict == 4 else (0,), f"{what}: {argv}")
    done = program(case, path) if verdict == 4 or everything else None
    if verdict == 4:
        healthy(done, (125,), f"{what}: program")
    if verdict == 4 or not done:
        assert path.read_bytes() == data, f"{what}: it was changed"
    done = done or program(case, path)
    if verdict != 4:
        healthy(done, (0,), f"{what}: program")
        assert done[1] == case.expected, f"{what}: other data"
        assert healthy(look(check, path), (0,), f"{what}: afterwards") == 0
    return verdict != 4


def spoil(case, path, jobs):
    """The names of the jobs (name, place, value) that were accepted."""
    data, ranges = medium_of(case, path)
    accepted = set()
    for number, (name, part, offset, value) in enumerate(jobs):
        at = ranges[part][0] + offset if part else offset
        assert not part or offset + len(value) <= ranges[part][1]
        spoilt = data[:]
        spoilt[at : at + len(value)] = value
        put(path, at, value)
        if tried(case, path, spoilt, f"{name}={value.hex()}", number % 8 == 0):
            accepted.add(name)
            path.write_bytes(data)
        else:
            put(path, at, data[at : at + len(value)])
    return accepted


@pytest.mark.parametrize("state", ["clean", "dirty"])
def test_layout_and_lengths(originals, state, shm, rng):  # noqa: F811
    """A bit of each word. The lengths of parts that do not exist say nothing."""
    data, _ = medium_of(originals[state], shm / "first")
    lengths = [LENGTHS + 8 * n for n in range(17)]
    jobs = []
    for at in [*range(8, 48 + 256, 8), 1000, 4088, *lengths]:
        value = int.from_bytes(data[at : at + 8], "little") ^ 1 << rng.randrange(64)
        jobs.append((at, None, at, value.to_bytes(8, "little")))
    accepted = spoil(originals[state], shm / "medium", rng.sample(jobs, 28))
    assert accepted <= {lengths[0], *lengths[8:16]}, accepted


def test_no_magic(originals, shm):  # noqa: F811
    """It is no heap then, and the message says what to do."""
    path = shm / "medium"
    medium_of(originals["clean"], path)
    put(path, 0, b"m")
    for argv in [["pmalloc-recover", "--check"], *LOOKS]:
        status, _, errors, _ = look([tool(argv[0]), *argv[1:]], path)
        assert status != 0 and "holds no heap" in errors and len(errors.splitlines()) == 1


@pytest.mark.parametrize("state", ["clean", "dirty"])
def test_some_fields_of_each_part(originals, state, shm, rng):  # noqa: F811
    case = originals[state]
    by_part = {}
    for field in case.chosen(rng):
        for value in case.values(field, rng):
            if field.file in PARTS and not case.unprotected(field, value):
                job = (field.name, field.file, field.offset, value)
                by_part.setdefault(field.file, []).append(job)
    jobs = [job for some in by_part.values() for job in rng.sample(some, min(len(some), 5))]
    accepted = {name for name in spoil(case, shm / "medium", jobs) if not case.may_change(name)}
    assert not accepted, f"no reader noticed changes of: {sorted(accepted)}"
