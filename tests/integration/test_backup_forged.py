# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Forged backups: records and ledgers whose checksums are right, and what they say is not.

For any content no tool crashes or hangs, and a refusal is one line. What --verify calls good can be
folded in, and is as good afterwards. FORGED=N tries so many. BACKUP_TOOL and RECOVER_TOOL name
other tools, such as some with sanitizers. Such runs need TEST_SECONDS=3600 or so."""

import os
import shutil
import struct

import pytest
from forge import crc32c
from test_backup import BACKUP, back_up, copied, ledger_of, shell, source_heap
from tool_heaps import RECOVER, call, patch

assert source_heap  # a fixture
FORGED = int(os.environ.get("FORGED", "60"))
TOOL = os.environ.get("BACKUP_TOOL", BACKUP)
FOLDS = os.environ.get("RECOVER_TOOL", RECOVER)
HEAD = {"magic": (0, 8), "uuid": (8, 8), "round": (24, 8), "when": (32, 8), "entries": (40, 8)}
HEAD |= {"files": (48, 4), "ledger": (52, 4)}
FILE = {"name": (0, 8), "length": (16, 8), "entries": (24, 8)}
LEDGER = {"magic": (0, 8), "round": (24, 8), "end": (32, 8), "head_crc": (40, 4)}
ODD = [0, 1, 2, 3, 7, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 40, 1 << 63, (1 << 64) - 1, 4096]


def odd(rng, was, size):
    value = rng.choice([*ODD, was + 1, was - 1, was * 2, was ^ (1 << rng.randrange(size * 8))])
    return (value % (1 << size * 8)).to_bytes(size, "little")


def change(rng, data, at, size):
    data[at : at + size] = odd(rng, int.from_bytes(data[at : at + size], "little"), size)


def forge_record(rng, data, at):
    """Changes the record that begins there, and puts its checksums right."""
    entries, files = struct.unpack_from("<QI", data, at + 40)
    for _ in range(rng.randint(1, 3)):
        what = rng.choice(["head", "file", "entry", "entry"])
        if what == "head":
            change(rng, data, *shifted(at, rng.choice(list(HEAD.values()))))
        elif what == "file" and files:
            row = at + 64 + rng.randrange(files) * 32
            change(rng, data, *shifted(row, rng.choice(list(FILE.values()))))
        elif entries:
            change(rng, data, at + 64 + files * 32 + rng.randrange(entries) * 12, 4)
    if rng.random() < 0.3:  # as many as before, in other files
        struct.pack_into("<QI", data, at + 40, entries, files)
    index = data[at + 64 : at + 64 + files * 32 + entries * 12]
    struct.pack_into("<I", data, at + 56, crc32c(index))
    struct.pack_into("<I", data, at + 60, crc32c(data[at : at + 60]))


def shifted(at, field):
    return at + field[0], field[1]


def forge_ledger(rng, data, at):
    at += rng.randrange(2) * 512
    change(rng, data, *shifted(at, rng.choice(list(LEDGER.values()))))
    struct.pack_into("<I", data, at + 60, crc32c(data[at : at + 60]))


def forge(rng, folder, ends):
    """One file is changed."""
    name = rng.choice(["backup.checksums", "backup.increments", "backup.increments"])
    path = folder / name
    data = bytearray(path.read_bytes())
    kind = rng.randrange(10)
    if kind == 0:
        del data[rng.randrange(len(data)) :]
    elif kind == 1:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif name == "backup.checksums":
        (forge_ledger if kind < 5 else forge_record)(
            rng, data, ledger_of(folder) if kind < 5 else 0
        )
    else:
        at = rng.choice([0, *ends[:-1]])
        forge_record(rng, data, at)
        if rng.random() < 0.7:  # the ledger agrees
            slot = ledger_of(folder) + 512 * (3 % 2)
            entry = bytearray((folder / "backup.checksums").read_bytes()[slot : slot + 64])
            if at:
                entry[40:44] = data[at + 60 : at + 64]
            struct.pack_into("<I", entry, 60, crc32c(entry[:60]))
            patch(folder / "backup.checksums", slot, bytes(entry))
    path.write_bytes(data)


def asked(tool, *argv):
    done = call(tool, *argv)
    assert done.returncode in (0, 1, 2, 3, 4, 8), done
    assert "Sanitizer" not in done.stderr and len(done.stderr.splitlines()) < 30, done
    return done


@pytest.mark.parametrize("part", range(2))
def test_forged_records(source, shm, rng, part):
    back_up(source, shm / "backup")
    ends = []
    for number in (2, 3):
        shell(source, f"set round {number}\nfill 40 {number}\n")
        back_up(source, shm / "backup")
        ends.append((shm / "backup" / "backup.increments").stat().st_size)
    passed = 0
    for _ in range(FORGED // 2):
        bad = copied(shm / "backup", shm / "bad")
        forge(rng, bad, ends)
        first = asked(TOOL, "--verify", bad)
        assert first.returncode in (0, 4, 8), first
        assert len(first.stderr.splitlines()) == (first.returncode != 0), first
        folded = asked(FOLDS, "--check", bad)
        if first.returncode == 0:
            passed += 1
            assert "backup." not in folded.stderr, folded
            again = asked(TOOL, "--verify", bad)
            assert again.returncode == 0, (folded, again)
        shutil.rmtree(bad)
    print(passed, "of", FORGED // 2, "verified")


def rewritten(folder, at, change_row):
    """Changes the rows of the record there, and puts right its checksums and the newest round's."""
    path = folder / "backup.increments"
    data = bytearray(path.read_bytes())
    entries, files = struct.unpack_from("<QI", data, at + 40)
    for row in range(at + 64, at + 64 + files * 32, 32):
        name = bytes(data[row : row + 16]).rstrip(b"\0").decode()
        length = change_row(name, int.from_bytes(data[row + 16 : row + 24], "little"))
        struct.pack_into("<Q", data, row + 16, length)
    index = data[at + 64 : at + 64 + files * 32 + entries * 12]
    struct.pack_into("<I", data, at + 56, crc32c(index))
    struct.pack_into("<I", data, at + 60, crc32c(data[at : at + 60]))
    path.write_bytes(data)
    slot = ledger_of(folder)  # round 2
    entry = bytearray((folder / "backup.checksums").read_bytes()[slot : slot + 64])
    entry[40:44] = data[at + 60 : at + 64]
    struct.pack_into("<I", entry, 60, crc32c(entry[:60]))
    patch(folder / "backup.checksums", slot, bytes(entry))


@pytest.mark.parametrize("gone", [0, 300, 1700])
def test_a_length_within_a_block(source, shm, gone):
    """Folding cuts the file there. What it then has is what the checksum must be of."""
    back_up(source, shm / "backup")
    shell(source, "set round 2\nfill 400 2\n")
    back_up(source, shm / "backup")
    seen = []

    def shorter(name, length):
        seen.append(length % 4096 > gone)
        return length - gone if name == "bitmaps.0" else length

    rewritten(shm / "backup", 0, shorter)
    assert any(seen)
    status = 4 if gone else 0
    first = call(BACKUP, "--verify", shm / "backup")
    assert first.returncode == status, first
    folded = call(RECOVER, "--check", shm / "backup")
    assert folded.returncode == status and ("backup.incr" in folded.stderr) == bool(gone), folded
    assert (shm / "backup" / "superblock").exists() == (not gone)
    assert call(BACKUP, "--verify", shm / "backup").returncode == status
