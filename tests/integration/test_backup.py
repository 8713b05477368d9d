# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""pmalloc-backup: what a backup holds, what a round writes, what stands when the tool is killed."""

import json
import os
import shutil
import struct
import subprocess

import heap_layout
import pytest
from conftest import compiled, fingerprint
from forge import crc32c
from tool_heaps import (
    BUILD,
    RECOVER,
    RUN,
    SHELL,
    call,
    clean_environment,
    killed_shell,
    one_line,
    patch,
    start_shell,
)

BACKUP = str(BUILD / "pmalloc-backup")
BLOCK = 4096


def shell(heap, commands):
    done = call(RUN, "-H", heap, "-r", "store", SHELL, stdin=commands)
    assert done.returncode == 0, done
    return done.stdout.splitlines()


def content(path):
    """What a backup has of a file of a clean heap: all but the record of which file it is."""
    data = bytearray(path.read_bytes())
    if path.name == "superblock":
        heap_layout.forget_origin(data)
    return data


def back_up(heap, folder, *options, **env):
    done = call(BACKUP, "--json", *options, heap, folder, **env)
    assert done.returncode == 0, done
    return json.loads(done.stdout)


def verified(folder):
    done = call(BACKUP, "--verify", folder)
    assert done.returncode == 0, done


def copied(folder, to):
    subprocess.run(["cp", "-a", "--sparse=always", folder, to], check=True)
    return to


@pytest.fixture(name="source")
def source_heap(shm):
    shell(shm / "source", "fill 300 7\n")
    return shm / "source"


# ---- rounds


@pytest.mark.check
def test_rounds_of_clean_and_killed_heaps(source, shm):
    before = fingerprint(source)
    first = back_up(source, shm / "backup", "--verify")
    assert first["round"] == 1 and first["state"] == "clean"
    assert first["verified_bytes"] == first["changed_bytes"]
    assert fingerprint(source) == before
    # After a clean round the backup is the heap, file by file.
    for path in source.iterdir():
        assert content(shm / "backup" / path.name) == content(path)
    assert back_up(source, shm / "backup")["round"] == 1  # nothing has changed
    killed_shell(source, "set more 1\n")
    before = fingerprint(source)
    second = back_up(source, shm / "backup", "--verify")
    assert second["round"] == 2 and second["state"] == "dirty"
    shell(source, "set more 2\nfill 500 8\n")
    third = back_up(source, shm / "backup", "--verify")
    assert third["round"] == 3
    assert shell(shm / "backup", "get more\nverify\n") == ["2", "ok 501 keys"]
    assert shell(source, "get more\nverify\n") == ["2", "ok 501 keys"]


def changed_blocks(old, new):
    """Blocks that differ between two copies of a heap."""
    count = 0
    for path in new.iterdir():
        now = path.read_bytes()
        was = (old / path.name).read_bytes() if (old / path.name).exists() else b""
        for at in range(0, len(now), BLOCK):
            block = now[at : at + BLOCK].ljust(BLOCK, b"\0")
            count += block != was[at : at + BLOCK].ljust(BLOCK, b"\0") and any(block)
    return count


def test_a_round_writes_what_has_changed_and_one_percent(source, shm):
    stop = compiled("stop.c", "-D_GNU_SOURCE", "-shared", "-fPIC", name="stop.so")
    shell(source, "fill 5000 7\n")
    back_up(source, shm / "backup")
    for number, commands in enumerate(("fill 5000 8\n", "fill 200 9\n", "fill 5000 3\n")):
        old = copied(source, shm / f"old{number}")
        shell(source, commands)
        log = shm / "log"
        report = back_up(source, shm / "backup", LD_PRELOAD=str(stop), STOP_LOG=str(log))
        written = int(log.read_text().split()[1])
        changed = changed_blocks(old, source) * BLOCK
        assert report["changed_bytes"] == changed > 0
        assert written == report["written_bytes"]
        assert written <= changed * 1.01 + 300, (written, changed)
    verified(shm / "backup")


def test_holes_stay_holes_and_replaced_blocks_go(source, shm):
    shell(source, "fill 20000 7\n")
    back_up(source, shm / "backup")
    blocks = (shm / "backup" / "heap.0").stat().st_blocks
    assert blocks <= (source / "heap.0").stat().st_blocks < 16 << 11
    for seed in range(4):  # the same blocks change each time
        shell(source, f"fill 20000 {seed}\n")
        back_up(source, shm / "backup")
    increments = (shm / "backup" / "backup.increments").stat()
    assert increments.st_size > 3 * blocks * 512
    assert increments.st_blocks < 1.2 * blocks
    verified(shm / "backup")


def test_a_freed_block_is_a_hole_after_folding(source, shm):
    shell(source, "fill 20000 7\n")
    back_up(source, shm / "backup")
    shell(source, "fill 10 7\n" + "".join(f"del key{i}\n" for i in range(20000)))
    call(RECOVER, source)
    back_up(source, shm / "backup", "--verify")
    assert call(RECOVER, "--check", shm / "backup").returncode == 0  # folds
    verified(shm / "backup")
    for path in source.iterdir():
        assert content(shm / "backup" / path.name) == content(path)


def test_several_volumes_become_one_directory(shm):
    heap = f"{shm}/one:{shm}/two"
    done = call(
        RUN, "-H", heap, "-r", "store", "-s", "SHARD=4M", SHELL, stdin="fill 20000 7\nverify\n"
    )
    assert done.stdout.splitlines()[-1] == "ok 20000 keys", done
    assert (shm / "two" / "heap.1").exists()
    back_up(shm / "one", shm / "backup", "--verify")
    shutil.rmtree(shm / "two")
    assert shell(shm / "backup", "verify\n") == ["ok 20000 keys"]


def test_private_processes_share_a_layered_backup(source, shm):
    back_up(source, shm / "backup")
    shell(source, "set more 1\n")
    back_up(source, shm / "backup")
    assert not (shm / "backup" / "superblock").exists()
    done = call(RUN, "-H", shm / "backup", "-s", "OPEN=private", SHELL, stdin="get more\nset x y\n")
    assert done.returncode == 0 and done.stdout.split() == ["1", "ok"], done
    shell(source, "set more 2\n")
    assert back_up(source, shm / "backup", "--verify")["round"] == 3
    assert shell(shm / "backup", "get more\n") == ["2"]


# ---- refusals


def test_refusals(source, shm):
    back_up(source, shm / "backup")
    shell(shm / "other", "set a b\n")
    (shm / "strange").mkdir()
    (shm / "strange" / "letter").write_text("x")
    before = {folder: fingerprint(folder) for folder in shm.iterdir()}

    def refused(heap, folder, *parts):
        one_line(call(BACKUP, heap, folder), "pmalloc-backup", 8, *parts)

    refused(shm / "other", shm / "backup", "another heap")
    refused(source, source, "lies in the heap")
    refused(source, source / "backup", "lies in the heap")
    refused(source, shm / "other", "is a heap, not a backup")
    refused(source, shm / "strange", "letter")
    refused(source, shm / "none" / "backup", "No such file")
    refused(shm / "none", shm / "backup", "none")
    (shm / "link").symlink_to(shm / "backup")
    refused(source, shm / "link", "link")
    (shm / "link").unlink()
    assert {folder: fingerprint(folder) for folder in before} == before
    shell(shm / "backup", "set a b\n")
    refused(source, shm / "backup", "has been used as a heap")
    one_line(call(BACKUP, source), "pmalloc-backup", 16, "HEAP DIR")


def test_a_backup_in_use_is_left_alone(source, shm):
    back_up(source, shm / "backup")
    owner = start_shell(shm / "backup", "get a\n")
    one_line(call(BACKUP, source, shm / "backup"), "pmalloc-backup", 8, "in use")
    one_line(call(BACKUP, "--verify", shm / "backup"), "pmalloc-backup", 8, "in use")
    owner.kill()
    owner.communicate()


@pytest.mark.check
def test_a_damaged_heap_does_not_replace_a_good_backup(source, shm):
    back_up(source, shm / "backup")
    before = fingerprint(shm / "backup")
    patch(source / "booklog.0", 4096 + 16, b"\xff" * 8)
    one_line(call(BACKUP, source, shm / "backup"), "pmalloc-backup", 4, "booklog.0")
    assert fingerprint(shm / "backup") == before


@pytest.mark.check
@pytest.mark.parametrize("where", ["file", "increment", "index", "checksums", "header"])
def test_verify_finds_a_flipped_bit(source, shm, where):
    back_up(source, shm / "backup")
    shell(source, "set more 1\n")
    back_up(source, shm / "backup")
    increments = (shm / "backup" / "backup.increments").stat().st_size
    now, then = ((folder / "heap.0").read_bytes() for folder in (source, shm / "backup"))
    blocks = [slice(at, at + BLOCK) for at in range(0, len(then), BLOCK)]
    same = next(b.start for b in blocks if now[b] == then[b] and any(now[b]))
    name, at = {
        "file": ("heap.0", same + 7),
        "increment": ("backup.increments", increments - 100),
        "index": ("backup.increments", 100),
        "checksums": ("backup.checksums", 300),
        "header": ("backup.increments", 30),
    }[where]
    path = shm / "backup" / name
    data = path.read_bytes()
    patch(path, at, bytes([data[at] ^ 4]))
    one_line(call(BACKUP, "--verify", shm / "backup"), "pmalloc-backup", 4, "damaged")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts a small file system")
def test_too_little_space_is_said_before_writing(source, shm):
    shell(source, "fill 20000 7\n")
    script = f"""
        mkdir {shm}/mnt && mount -t tmpfs -o size=4m none {shm}/mnt || exit 99
        {BACKUP} {source} {shm}/mnt/backup; echo $? $(ls {shm}/mnt)
        mount -o remount,size=15m {shm}/mnt
        {BACKUP} {source} {shm}/mnt/backup > /dev/null || exit 98
        printf 'fill 20000 8\\n' | {RUN} -H {source} -r store {SHELL} > /dev/null
        {BACKUP} {source} {shm}/mnt/backup; echo $?
        {BACKUP} --verify {shm}/mnt/backup > /dev/null; echo $?
    """
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 99:
        pytest.skip("mounting is forbidden")
    assert done.stdout.split("\n")[:3] == ["8", "8", "0"], done
    assert done.stderr.count("this round needs") == 2, done


# ---- what is on media (core/media/backup/backup_format.h)


def ledger_of(folder):
    """Where the ledger begins in backup.checksums."""
    head = (folder / "backup.checksums").read_bytes()[:64]
    entries, files = struct.unpack("<QI", head[40:52])
    return -(-(64 + files * 32 + entries * 12) // BLOCK) * BLOCK


def enter(folder, uuid, number, end, head):
    """Enters a round in the ledger. `head` is the header of its increment."""
    slot = struct.pack("<8s16sQQ4s16x", b"MLEDGER1", uuid, number, end, head[60:64])
    slot += struct.pack("<I", crc32c(slot))
    patch(folder / "backup.checksums", ledger_of(folder) + number % 2 * 512, slot)


# ---- killed at each step


class Killer:
    """Runs a command again and again, killed one step later each time."""

    def __init__(self, shm):
        self.stop = str(compiled("stop.c", "-D_GNU_SOURCE", "-shared", "-fPIC", name="stop.so"))
        self.log = shm / "steps"

    def run(self, argv, step):
        """False: the command has come to its end before that step."""
        done = call(*argv, LD_PRELOAD=self.stop, STOP_AT=str(step), STOP_LOG=str(self.log))
        assert done.returncode in (0, -9), done
        return done.returncode == -9


def names(folder):
    return sorted((path.name, path.stat().st_size) for path in folder.iterdir())


def kill_at_each_step(shm, source, state, argv, check):
    """`state` is copied to shm/backup before each run. check() sees what stands afterwards, where
    the names or lengths are others than at the step before. Else every third is verified."""
    killer, before, step, seen = Killer(shm), fingerprint(source), 0, None
    while True:
        step += 1
        shutil.rmtree(shm / "backup", ignore_errors=True)
        if state:
            copied(state, shm / "backup")
        if not killer.run(argv, step):
            break
        now = names(shm / "backup") if (shm / "backup").exists() else []
        if now != seen:
            assert fingerprint(source) == before, step
            check(step)
        elif "superblock" in str(now) and step % 3 == 0:
            verified(shm / "backup")
        seen = now
    assert step > 5
    return step


def stands(shm, *allowed):
    """The backup is one of the allowed states, as it stands and when it is used."""
    verified(shm / "backup")
    copied(shm / "backup", shm / "used")
    now = shell(shm / "used", "get round\nverify\n")
    shutil.rmtree(shm / "used")
    assert now in allowed, now


def empty_increments(folder, count):
    """Appends so many increments without a change."""
    path = folder / "backup.increments"
    data = path.read_bytes()
    magic, uuid, number, when = struct.unpack("<Q16sQQ", data[:40])
    with open(path, "r+b") as file:
        for i in range(1, count + 1):
            head = struct.pack("<Q16sQQQIII", magic, uuid, number + i, when, 0, 0, 0, 0)
            head += struct.pack("<I", crc32c(head))
            file.seek(len(data) + (i - 1) * BLOCK)
            file.write(head)
        file.truncate(len(data) + count * BLOCK)
    enter(folder, uuid, number + count, len(data) + count * BLOCK, head)


def test_killed_at_each_step_a_backup_stands(source, shm):
    backup, command = shm / "backup", [BACKUP, source, shm / "backup"]

    def set_round(n):
        shell(source, f"set round {n}\nfill 300 {n}\n")
        return [str(n), "ok 301 keys"]

    def again(newest):
        back_up(source, backup)
        stands(shm, newest)

    one = set_round(1)

    def after_first(step):
        state = call(BACKUP, "--verify", backup)
        if state.returncode == 0:
            stands(shm, one)
        elif backup.exists() and any(backup.iterdir()):
            assert "unfinished" in state.stderr, state
            done = call(RUN, "-H", backup, "-r", "store", SHELL)
            assert done.returncode == 125 and "unfinished backup" in done.stderr, done
        again(one)

    kill_at_each_step(shm, source, None, command, after_first)
    stands(shm, one)
    plain = copied(backup, shm / "plain")

    two = set_round(2)
    killed_shell(source, "get a\n")  # a killed heap, and one without bitmaps.0

    def after_second(step):
        stands(shm, one, two)
        again(two)

    kill_at_each_step(shm, source, plain, command, after_second)
    stands(shm, two)
    layered = copied(backup, shm / "layered")

    three = set_round(3)

    def after_third(step):
        stands(shm, two, three)
        again(three)

    kill_at_each_step(shm, source, layered, command, after_third)
    stands(shm, three)
    layered = copied(backup, shm / "layered3")
    kill_at_each_step(
        shm, source, layered, [RECOVER, "--check", backup], lambda step: stands(shm, three)
    )
    stands(shm, three)
    assert (backup / "superblock").exists()


def test_killed_while_many_increments_are_folded(source, shm):
    backup = shm / "backup"
    back_up(source, backup)
    old = shell(source, "set round 1\nget round\nverify\n")[1:]
    back_up(source, backup)
    empty_increments(backup, 999)
    verified(backup)
    many = copied(backup, shm / "many")
    new = shell(source, "set round 2\nget round\nverify\n")[1:]
    seen = []

    def after(step):
        stands(shm, old, new)
        seen.append((backup / "backup.increments").exists())

    kill_at_each_step(shm, source, many, [BACKUP, source, backup], after)
    assert False in seen
    stands(shm, new)
