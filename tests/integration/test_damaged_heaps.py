# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Heaps that the tools refuse: one line, a status, and no change."""

import json
import os
import pathlib
import struct
import sys

import pytest
from tool_heaps import (
    BUILD,
    INFO,
    RECOVER,
    ROOT,
    RUN,
    SHELL,
    call,
    clean_heap,
    fingerprint,
    one_line,
    originals,
    patch,
    start_shell,
)  # noqa: F401

sys.path.insert(0, str(ROOT / "tests" / "fuzz"))
from forge import LAYOUT, crc32c  # noqa: E402

LOOKS = [
    [RECOVER, "--check"],
    [RECOVER, "--dry-run"],
    [RECOVER],
    [RECOVER, "--drop-root", "store"],
    [INFO],
]


def refused(heap, status, part):
    """Every tool that looks at the heap or recovers it prints one line and returns the status.
    Nothing is changed."""
    watched = heap.parent
    before = fingerprint(watched)
    for argv in LOOKS:
        one_line(call(*argv, heap), pathlib.Path(argv[0]).name, status, part)
    for tool in (RECOVER, INFO):
        done = call(tool, "--json", heap)
        answer = json.loads(done.stdout)
        assert done.returncode == status
        assert set(answer) == {"heap", "result", "error"}
        assert answer["heap"] == str(heap)
        assert answer["result"] == ("damaged" if status == 4 else "error")
        assert part in answer["error"]
    assert fingerprint(watched) == before


@pytest.mark.check
def test_missing(shm):
    refused(shm / "none", 8, "No such file")


def test_no_directory(shm):
    (shm / "file").write_text("x")
    refused(shm / "file", 8, "Not a directory")


def test_empty_and_foreign_directories(shm):
    heap = shm / "other"
    heap.mkdir(mode=0o700)
    refused(heap, 8, "not a PMAlloc heap")
    (heap / "letter.txt").write_text("dear reader")
    refused(heap, 8, "not a PMAlloc heap")


@pytest.mark.parametrize("end", ["", "/", "///"])
def test_symbolic_links(clean, end):
    link = clean.parent / "link"
    link.symlink_to(clean)
    for argv in LOOKS:
        name = pathlib.Path(argv[0]).name
        one_line(call(*argv, f"{link}{end}"), name, 8, "symbolic link")


def test_linked_files(clean):
    (clean / "heap.0").rename(clean.parent / "elsewhere")
    (clean / "heap.0").symlink_to(clean.parent / "elsewhere")
    refused(clean, 8, "heap.0")


def test_writable_by_others(clean):
    clean.chmod(0o777)
    refused(clean, 8, "chmod 700")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_of_another_user(clean):
    os.chown(clean, 12345, 12345)
    refused(clean, 8, "12345")


STATE, EPOCH, TABLES = 4096, 4104, 3 * 4096  # offsets in the superblock
CHUNK = 4096  # offset of the log's first chunk


@pytest.mark.parametrize("name", ["heap.0", "slabs.0", "booklog.0", "roots", "morph.0"])
def test_missing_files(clean, name):
    (clean / name).unlink()
    refused(clean, 4, name)


@pytest.mark.check
@pytest.mark.parametrize(
    "name, size",
    [
        ("superblock", 0),
        ("superblock", 4096),
        ("superblock", 184319),
        ("booklog.0", 0),
        ("booklog.0", 100),
        ("heap.0", 4096),
        ("heap.0", 5000),
        ("slabs.0", 0),
        ("roots", 0),
    ],
)
def test_short_files(clean, name, size):
    os.truncate(clean / name, size)
    refused(clean, 4, str(clean))


@pytest.mark.parametrize(
    "name, offset, data, part",
    [
        ("superblock", 0, b"NOTMINE!", "not PMAlloc's"),
        ("superblock", 8, struct.pack("<I", 2), "checksum"),
        ("superblock", 60, b"\xaa", "checksum"),
        ("superblock", STATE, b"\x00", "neither clean nor dirty"),
        ("superblock", EPOCH, struct.pack("<Q", 77), "root table"),
        ("superblock", STATE + 16, b"\x77", "close record"),
        ("superblock", 8192, struct.pack("<Q", 0), "root slot 0"),
        ("superblock", EPOCH, struct.pack("<Q", 0), "root table"),
        ("booklog.0", 0, b"\x00", "bookkeeping log"),
        ("booklog.0", 16, struct.pack("<Q", 5), "epoch"),
        ("booklog.0", CHUNK + 7, b"\x01", "epoch"),
        ("booklog.0", CHUNK + 8, struct.pack("<I", 9), "chunk"),
        ("booklog.0", CHUNK + 16, struct.pack("<Q", 1 << 40), "entry"),
        ("booklog.0", CHUNK + 16, struct.pack("<Q", (1 << 60) | 1), "entry"),
        ("slabs.0", 0, b"\x00", "slab 0"),
        ("slabs.0", 2, b"\x25", "slab 0"),
        ("slabs.0", 8, b"\x01", "slab 0"),
    ],
)
def test_damage(clean, name, offset, data, part):
    if (clean / name).read_bytes()[offset : offset + len(data)] == data:
        data = bytes(byte ^ 0x80 for byte in data)  # it must differ
    patch(clean / name, offset, data)
    refused(clean, 4, part)


@pytest.mark.parametrize(
    "field, value, part",
    [
        ("version", 2, "its format version is 0x2, this one has 0x1"),
        ("incompat", 1 << 63 | 1, "its set of features is 0x8000000000000001, this one has 0x1"),
        ("range", 2 << 40, "its range is 2 TiB, this one has 1 TiB"),
        ("node_count", 2, "its number of nodes is 0x2, this one has 0x1"),
    ],
)
def test_another_build_s_heap_is_not_damaged(clean, field, value, part):
    """The checksum says that such a heap is whole. A tool that refuses it says what differs, and
    leaves it alone."""
    data = bytearray((clean / "superblock").read_bytes()[:4096])
    at, size = LAYOUT.offset("pm_superblock", field), 8 if field in ("incompat", "range") else 4
    data[at : at + size] = value.to_bytes(size, "little")
    patch(clean / "superblock", 0, bytes(data[:4092]) + struct.pack("<I", crc32c(data[:4092])))
    refused(clean, 8, part)
    before = (clean / "superblock").read_bytes()
    done = call(RUN, "-H", clean, "-r", "store", SHELL, stdin="get a\n")
    assert done.returncode == 125 and done.stdout == "" and done.stderr.count("\n") == 1, done
    assert (
        part in done.stderr and "nothing was changed: use the PMAlloc that made it" in done.stderr
    ), done
    assert (clean / "superblock").read_bytes() == before


@pytest.mark.check
def test_root_table_damage(clean):
    with open(clean / "superblock", "rb") as file:
        epoch = struct.unpack_from("<Q", file.read(), EPOCH)[0]
    table = TABLES + 86016 * (epoch & 1)
    patch(clean / "superblock", table + 64 + 20, b"\x55")
    refused(clean, 4, "root table")


def test_busy(shm):
    heap = shm / "heap"
    shell = start_shell(heap, "set a b\n")
    try:
        for argv in LOOKS:
            name = pathlib.Path(argv[0]).name
            done = call(*argv, heap)
            if argv == [INFO]:  # it shows what the files say now
                assert done.returncode == 0 and f"process {shell.pid} " in done.stdout, done
            else:
                one_line(done, name, 8, f"process {shell.pid};")
    finally:
        shell.communicate("quit\n", timeout=60)
    assert call(RECOVER, "--check", heap).returncode == 0


def test_tools_do_not_run_on_a_heap_of_their_own(clean):
    before = fingerprint(clean)
    for tool in (RECOVER, INFO):
        done = call(
            tool, clean, LD_PRELOAD=f"{BUILD}/libpmalloc_preload.so", PMALLOC_BACKING="volatile"
        )
        one_line(done, os.path.basename(tool), 8, "LD_PRELOAD")
    assert fingerprint(clean) == before
