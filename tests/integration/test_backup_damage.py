# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Damaged backups: whoever reads one notices, says where, and changes nothing."""

import shutil
import struct
import subprocess

import pytest
from conftest import fingerprint
from forge import crc32c
from test_backup import (
    BACKUP,
    BLOCK,
    Killer,
    back_up,
    copied,
    ledger_of,
    shell,
    source_heap,  # noqa: F401
    verified,
)
from tool_heaps import RECOVER, RUN, SHELL, call, one_line, patch

ROUNDS = 3


@pytest.fixture(name="ends")
def three_rounds(source, shm):
    """Three rounds, of which the last two are increments. Where each of these ends, and a copy of
    the backup as of round 2."""
    back_up(source, shm / "backup")
    ends = []
    for number in range(2, ROUNDS + 1):
        shell(source, f"set round {number}\nfill 300 {number}\n")
        back_up(source, shm / "backup", "--verify")
        ends.append((shm / "backup" / "backup.increments").stat().st_size)
        copied(shm / "backup", shm / f"round{number}")
    return ends


def zero(path, at, length):
    patch(path, at, bytes(length))


def cut(path, at):
    with open(path, "r+b") as file:
        file.truncate(at)


DAMAGE = {
    "no first head": lambda shm, path, ends: zero(path, 0, 64),
    "no last head": lambda shm, path, ends: zero(path, ends[0], 64),
    "no last magic": lambda shm, path, ends: zero(path, ends[0], 8),
    "all zero": lambda shm, path, ends: zero(path, 0, ends[1]),
    "empty": lambda shm, path, ends: cut(path, 0),
    "without the last round": lambda shm, path, ends: cut(path, ends[0]),
    "short": lambda shm, path, ends: cut(path, ends[1] - 1),
    "gone": lambda shm, path, ends: path.unlink(),
    "of the round before": lambda shm, path, ends: shutil.copy(
        shm / "round2" / "backup.increments", path
    ),
}


@pytest.mark.parametrize("folded", [False, True], ids=["layered", "folded"])
@pytest.mark.parametrize("how", DAMAGE)
def test_lost_rounds_are_noticed(source, shm, ends, how, folded):
    backup = shm / "backup"
    if folded:
        assert call(RECOVER, "--check", backup).returncode == 0
    DAMAGE[how](shm, backup / "backup.increments", ends)
    before = fingerprint(backup)
    where = ("backup.increments, byte", "this backup is damaged", "another")
    one_line(call(BACKUP, "--verify", backup), "pmalloc-backup", 4, *where)
    one_line(call(BACKUP, source, backup), "pmalloc-backup", 4, *where)
    if not folded:
        one_line(call(RECOVER, "--check", backup), "pmalloc-recover", 4, *where)
        done = call(RUN, "-H", backup, "-r", "store", SHELL)
        assert done.returncode == 125 and "backup.increments, byte" in done.stderr, done
    assert fingerprint(backup) == before
    if folded:  # all of it is in the files
        assert shell(backup, "get round\n") == [str(ROUNDS)]


def test_increments_of_another_backup_are_noticed(source, shm, ends):
    """Of the same heap, and of as many rounds."""
    backup = shm / "backup"
    back_up(source, shm / "other")
    for number in range(2, ROUNDS + 1):
        shell(source, f"set round x{number}\n")
        back_up(source, shm / "other")
    shutil.copy(shm / "other" / "backup.increments", backup)
    for tool, *argv in ((BACKUP, "--verify", backup), (RECOVER, "--check", backup)):
        done = call(tool, *argv)
        assert done.returncode == 4 and "does not belong there" in done.stderr, done


def test_a_damaged_block_is_not_folded_in(source, shm, ends):
    """Nothing is written, although the round before it is whole."""
    backup = shm / "backup"
    increments = backup / "backup.increments"
    at = ends[1] - BLOCK
    byte = increments.read_bytes()[at + 99]
    patch(increments, at + 99, bytes([byte ^ 4]))
    before = fingerprint(backup)
    where = (f"backup.increments, byte {at}: the checksum of a block is wrong", "another")
    one_line(call(RECOVER, "--check", backup), "pmalloc-recover", 4, *where)
    done = call(RUN, "-H", backup, "-r", "store", "-s", "OPEN=private", SHELL)
    assert done.returncode == 125 and where[0] in done.stderr, done
    assert fingerprint(backup) == before
    patch(increments, at + 99, bytes([byte]))
    assert shell(backup, "get round\n") == [str(ROUNDS)]


BASE = {
    "gone": (lambda path: path.unlink(), "the file is missing"),
    "short": (lambda path: cut(path, 0), "the file is too short"),
    "changed": (lambda path: flip(path), "the checksum of a block is wrong"),
}


def flip(path):
    """Changes every block that holds data, also those that later rounds have replaced."""
    data = path.read_bytes()
    blocks = [at for at in range(0, len(data), BLOCK) if data[at : at + BLOCK].strip(b"\0")]
    for at in blocks:
        patch(path, at + 7, bytes([data[at + 7] ^ 1]))


@pytest.mark.parametrize("how", BASE)
def test_what_the_first_round_copied_is_looked_at(source, shm, ends, how):
    """Also by those who open the backup, before they write to it."""
    backup = shm / "backup"
    damage, why = BASE[how]
    damage(backup / "heap.0")
    before = fingerprint(backup)
    one_line(call(RECOVER, "--check", backup), "pmalloc-recover", 4, "heap.0, byte ", why)
    done = call(RUN, "-H", backup, "-r", "store", "-s", "OPEN=private", SHELL)
    assert done.returncode == 125 and why in done.stderr, done
    assert fingerprint(backup) == before


def data_blocks(path):
    data = path.read_bytes()
    return [at for at in range(0, len(data), BLOCK) if data[at : at + BLOCK].strip(b"\0")]


def hole(path, at):
    subprocess.run(["fallocate", "-p", "-o", str(at), "-l", str(BLOCK), path], check=True)


def grow(path, length, data=b""):
    size = path.stat().st_size
    cut(path, size + length)
    patch(path, size, data)


def data_in_a_hole(path):
    blocks = set(data_blocks(path))
    holes = [at for at in range(0, path.stat().st_size - BLOCK, BLOCK) if at not in blocks]
    if holes:
        patch(path, holes[len(holes) // 2] + 100, b"x")


SPOILED = {
    "cut by a byte": lambda path: cut(path, path.stat().st_size - 1),
    "cut by a page": lambda path: cut(path, max(path.stat().st_size - BLOCK, 0)),
    "cut to its data": lambda path: cut(path, data_blocks(path)[-1] + BLOCK),
    "cut in half": lambda path: cut(path, path.stat().st_size // 2),
    "longer": lambda path: grow(path, BLOCK),
    "longer by data": lambda path: grow(path, 100, b"x" * 100),
    "hole": lambda path: hole(path, data_blocks(path)[-1]),
    "zeroes": lambda path: zero(path, data_blocks(path)[-1], BLOCK),
    "data in a hole": data_in_a_hole,
}


@pytest.mark.parametrize("how", SPOILED)
def test_lengths_and_holes_of_every_file(source, shm, ends, how):
    """Before the increments are folded in, and after it. Damage that folding undoes may pass."""
    for folded in (False, True):
        good = copied(shm / "backup", shm / f"good{folded}")
        if folded:
            assert call(RECOVER, "--check", good).returncode == 0
        seen = []
        for path in sorted(good.iterdir()):
            if path.name.startswith("backup.") and path.name != "backup.superblock":
                continue
            if not data_blocks(path) and how != "longer":
                continue
            bad = copied(good, shm / "bad")
            SPOILED[how](bad / path.name)
            if (bad / path.name).read_bytes() != path.read_bytes():
                done = call(BACKUP, "--verify", bad)
                if done.returncode == 8 and path.name == "superblock":
                    seen.append(path.name)  # a heap's superblock looks otherwise, too
                elif done.returncode:
                    one_line(done, "pmalloc-backup", 4, f"{path.name}, byte ", "damaged")
                    seen.append(path.name)
                else:
                    assert not folded, path.name
                    assert call(RECOVER, "--check", bad).returncode == 0
                    once = copied(good, shm / "once")
                    assert call(RECOVER, "--check", once).returncode == 0
                    assert fingerprint(once) == fingerprint(bad), path.name
                    shutil.rmtree(once)
            shutil.rmtree(bad)
        assert "heap.0" in seen or (how in ("hole", "zeroes") and not folded), seen


def test_a_damaged_ledger(source, shm, ends):
    """One slot may be torn: then the other counts. Without both the backup is refused."""
    backup = shm / "backup"
    checksums, at = backup / "backup.checksums", ledger_of(backup)
    patch(checksums, at + ROUNDS % 2 * 512 + 30, b"x")
    verified(backup)
    assert call(RECOVER, "--check", copied(backup, shm / "copy")).returncode == 0
    patch(checksums, at + (ROUNDS + 1) % 2 * 512 + 30, b"x")
    for tool, *argv in ((BACKUP, "--verify", backup), (RECOVER, "--check", backup)):
        done = call(tool, *argv)
        assert done.returncode == 4 and f"backup.checksums, byte {at}" in done.stderr, done
    cut(checksums, at)
    assert call(BACKUP, "--verify", backup).returncode == 4


def test_killed_before_the_ledger(source, shm, ends):
    """The round counts, and the next one enters both."""
    backup = shm / "round2"
    zero(backup / "backup.checksums", ledger_of(backup), 64)
    verified(backup)
    assert back_up(source, backup, "--verify")["round"] == ROUNDS
    for slot in (0, 1):
        one = copied(backup, shm / f"one{slot}")
        zero(one / "backup.checksums", ledger_of(one) + slot * 512, 64)
        cut(one / "backup.increments", 0)
        assert call(BACKUP, "--verify", one).returncode == 4


def test_a_backup_of_an_older_version(source, shm):
    """It has no ledger. It can be read, used and continued."""
    backup = shm / "backup"
    back_up(source, backup)
    head = (backup / "backup.checksums").read_bytes()[:64]
    at = ledger_of(backup)
    head = head[:52] + struct.pack("<I", 0) + head[56:60]
    patch(backup / "backup.checksums", 0, head + struct.pack("<I", crc32c(head)))
    cut(backup / "backup.checksums", at)
    for number in (2, 3):
        shell(source, f"set round {number}\n")
        assert back_up(source, backup, "--verify")["round"] == number
    assert shell(backup, "get round\n") == ["3"]


def test_folding_killed_at_each_step(source, shm, ends):
    """Two killed foldings in a row, at any steps, and the next one has it all."""
    killer, step = Killer(shm), 0
    backup, state = shm / "backup", copied(shm / "backup", shm / "state")
    while True:
        step += 1
        shutil.rmtree(backup)
        copied(state, backup)
        if not killer.run([RECOVER, "--check", backup], step):
            break
        if killer.run([RECOVER, "--check", backup], max(step // 2, 1)) or step % 4 == 0:
            verified(backup)
        if step % 5 == 0:
            assert shell(backup, "get round\n") == [str(ROUNDS)]
    assert step > 20
