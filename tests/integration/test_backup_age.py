# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""How old a backup is: pmalloc-info --metrics --backup, and what stands when a round is cut short
or the stamp is damaged. A backup is never younger than it is told to be."""

import json
import shutil
import struct
import time

import pytest
from conftest import fingerprint, run, said, tool
from forge import crc32c
from test_backup import (  # noqa: F401
    BACKUP,
    Killer,
    back_up,
    copied,
    ledger_of,
    shell,
    source_heap,
    verified,
)
from test_metrics import families
from tool_heaps import call, patch

INFO = tool("pmalloc-info")
FIGURE = "pmalloc_backup_timestamp_seconds"
LATER = 1 << 33


def asked(*arguments, status=0):
    """The figures of backups, as {(heap, backup): seconds}, and the lines about them."""
    done = run([INFO, "--metrics", *arguments], preload=False)
    assert done.returncode == status and bool(done.stderr) == bool(status), said(done)
    found = families(done.stdout)
    return {key[1:]: value for key, value in found.items() if key[0] == FIGURE}, done.stderr


def age(heap, folder):
    found, _ = asked("--backup", folder, heap)
    assert list(found) == [(str(heap), str(folder))], found
    return found[str(heap), str(folder)]


def put_stamp(folder, when, rounds=9):
    head = (folder / "backup.checksums").read_bytes()[:64]
    stamp = struct.pack("<8s16sQQ20x", b"MBSTAMP1", head[8:24], rounds, when)
    stamp += struct.pack("<I", crc32c(stamp))
    patch(folder / "backup.checksums", ledger_of(folder) + 1024, stamp)


def zero_stamp(folder):
    patch(folder / "backup.checksums", ledger_of(folder) + 1024, bytes(64))


@pytest.mark.check
def test_each_round_that_succeeds(source, shm):
    """Also one that finds nothing to write, or was the first."""
    folder, before = shm / "backup", fingerprint(source)
    for commands in (None, None, "set more 1\n", None):
        if commands:
            shell(source, commands)
            before = fingerprint(source)
        if folder.exists():
            put_stamp(folder, LATER)
            assert age(source, folder) == LATER
        begun = int(time.time())
        report = back_up(source, folder)
        assert begun <= age(source, folder) == report["time"] <= time.time()
        assert fingerprint(source) == before, "the heap was changed"
    verified(folder)
    text = call(BACKUP, "--verify", folder).stdout
    assert f"round      {report['round']}, at " in text, text
    assert json.loads(call(BACKUP, "--verify", "--json", folder).stdout)["time"] == report["time"]


def test_a_stamp_that_is_not_whole(source, shm):
    """The backup is as old as its checksums then: that is when the first round was."""
    folder = shm / "backup"
    first = back_up(source, folder)["time"]
    for at in (0, 10, 30, 35, 40, 63):
        put_stamp(folder, LATER)
        patch(folder / "backup.checksums", ledger_of(folder) + 1024 + at, b"x")
        assert first <= age(source, folder) <= first + 1
    put_stamp(folder, 1000)
    assert age(source, folder) >= first, "a clock that was wrong"
    zero_stamp(folder)
    assert age(source, folder) >= first
    verified(folder)


def test_a_round_that_fails_makes_it_no_younger(source, shm):
    folder = shm / "backup"
    back_up(source, folder)
    put_stamp(folder, LATER)
    whole = (source / "superblock").read_bytes()
    (source / "superblock").write_bytes(whole[:100])
    assert call(BACKUP, source, folder).returncode == 4
    (source / "superblock").write_bytes(whole)
    assert age(source, folder) == LATER


def test_killed_at_each_step(source, shm):
    """It has the stamp of the round before, or the new one and then that round stands; and the next
    round goes on."""
    back_up(source, shm / "first")
    shell(source, "set more 1\n")
    killer, step, seen, begun = Killer(shm), 0, set(), int(time.time())
    killed = True
    while killed:
        step += 1
        shutil.rmtree(shm / "backup", ignore_errors=True)
        copied(shm / "first", shm / "backup")
        put_stamp(shm / "backup", LATER)
        killed = killer.run([BACKUP, source, shm / "backup"], step)
        now = age(source, shm / "backup")
        assert now == LATER or begun <= now <= time.time(), (step, now)
        seen.add(now == LATER)
        if now != LATER:
            stands = call(BACKUP, "--verify", "--json", shm / "backup")
            assert json.loads(stands.stdout)["round"] == 2, (step, stands)
    assert seen == {True, False} and step > 5
    assert back_up(source, shm / "backup", "--verify")["round"] == 2


def test_what_is_no_backup_of_the_heap(source, shm):
    """0, a line that says why, and the figures of the others."""
    other, folder = shm / "other", shm / "backup"
    shell(other, "set a b\n")
    back_up(source, folder)
    (shm / "empty").mkdir()
    (shm / "file").write_text("")
    for wrong, why in (
        (other, "is no backup"),
        (shm / "empty", "is no backup"),
        (shm / "none", "cannot open the backup: No such file"),
        (shm / "file", "cannot open the backup: Not a directory"),
    ):
        found, line = asked("--backup", wrong, "--backup", folder, source, status=8)
        assert found[str(source), str(wrong)] == 0 and why in line and str(wrong) in line, line
        assert found[str(source), str(folder)] > 0
    found, line = asked("--backup", folder, other, status=8)
    assert found == {(str(other), str(folder)): 0} and "backup of another heap" in line
    shutil.copytree(folder, shm / "cut")
    (shm / "cut" / "superblock").rename(shm / "cut" / "backup.unfinished")
    found, line = asked("--backup", shm / "cut", source, other, status=8)
    assert found == {("", str(shm / "cut")): 0} and "is an unfinished backup" in line
    patch(folder / "backup.checksums", 20, b"xxxx")
    found, line = asked("--backup", folder, source, status=4)
    assert list(found.values()) == [0] and "the header of the checksums is wrong" in line


def test_several_heaps_and_backups(source, shm):
    """Each finds its heap; one that is lost keeps its backup's age, where it can be no other's."""
    other = shm / "other"
    shell(other, "set a b\n")
    folders = [shm / "b1", shm / "b2", shm / "b3"]
    for heap, folder in zip((source, other, source), folders):
        back_up(heap, folder)
    named = [part for folder in folders for part in ("--backup", folder)]
    found, _ = asked(*named, source, other)
    heaps = (source, other, source)
    assert list(found) == [(str(h), str(f)) for h, f in zip(heaps, folders)]
    assert all(found.values())
    shutil.rmtree(other)
    found, _ = asked(*named, source, other, status=8)
    assert ("", str(folders[1])) in found and all(found.values())
    found, _ = asked("--backup", folders[1], other, status=8)
    assert found[str(other), str(folders[1])] > 0


def test_one_of_an_older_version(source, shm):
    """It has no ledger, and gets no stamp behind what is not there."""
    folder = shm / "backup"
    first = back_up(source, folder)["time"]
    checksums = folder / "backup.checksums"
    head = bytearray(checksums.read_bytes()[: ledger_of(folder)])
    head[52:56] = bytes(4)
    head[60:64] = struct.pack("<I", crc32c(bytes(head[:60])))
    checksums.write_bytes(head)
    back_up(source, folder)
    assert checksums.read_bytes() == head and first <= age(source, folder) <= first + 1
    verified(folder)


def test_wrong_lines(heap):
    done = run([INFO, "--backup", "x", heap], preload=False)
    assert done.returncode == 16 and "--backup and --output go with --metrics" in done.stderr
