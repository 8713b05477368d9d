# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""pmalloc-backup and simulated power failures: which fsync comes before what.

stop.c notes each change that the tool makes to the backup. From that this test makes what a power
failure may leave after any of the changes. A file has what it had at its last fsync, and any
choice of the later changes, block by block. The directory has its names at its last fsync, and the
first few of the later changes: file systems keep their order."""

import dataclasses
import os
import shutil

import pytest
from conftest import compiled
from test_backup import BACKUP, BLOCK, back_up, copied, shell, source_heap, stands  # noqa: F401
from tool_heaps import RECOVER, call

IMAGES = 30  # for each run, beside the sure ones


@dataclasses.dataclass
class Op:
    call: str
    inode: int
    a: int
    b: int
    names: list
    data: bytes


def read_ops(path):
    ops, text, at = [], path.read_bytes(), 0
    while at < len(text):
        end = text.index(b"\n", at)
        what, inode, a, b, *names = text[at:end].decode().split()
        at = end + 1
        data = text[at : at + int(b)] if what == "write" else b""
        at += len(data)
        ops.append(Op(what, int(inode), int(a), int(b), names, data))
    return ops


def pieces(op):
    """A write, block by block: each may become durable or not."""
    if op.call != "write":
        return [op]
    cuts = [op.a, *range((op.a // BLOCK + 1) * BLOCK, op.a + op.b, BLOCK), op.a + op.b]
    return [
        Op("write", op.inode, low, high - low, [], op.data[low - op.a : high - op.a])
        for low, high in zip(cuts, cuts[1:])
    ]


def change(data, op):
    """A file's bytes after the change."""
    if op.call == "length":
        del data[op.a :]
        data.extend(bytes(op.a - len(data)))
    elif op.call == "make" and op.a:
        data.clear()
    elif op.call in ("write", "hole"):
        end = op.a + op.b if op.call == "write" else min(op.a + op.b, len(data))
        data.extend(bytes(max(0, end - len(data))))
        data[op.a : end] = op.data if op.call == "write" else bytes(max(0, end - op.a))


class Disk:
    """A backup's directory: what is durable, and what has changed since."""

    def __init__(self, folder):
        self.inode = folder.stat().st_ino
        self.names = {path.name: path.stat().st_ino for path in folder.iterdir()}
        self.files = {path.stat().st_ino: bytearray(path.read_bytes()) for path in folder.iterdir()}
        self.later = []  # changes of files
        self.renames = []

    def rename(self, op, names):
        if op.call == "make":
            names[op.names[0]] = op.inode
        elif op.call == "unlink":
            names.pop(op.names[0], None)
        else:
            names[op.names[1]] = names.pop(op.names[0])

    def do(self, op):
        if op.call == "fsync" and op.inode == self.inode:
            for change_ in self.renames:
                self.rename(change_, self.names)
            self.renames = []
        elif op.call == "fsync":
            for piece in [p for p in self.later if p.inode == op.inode]:
                change(self.files.setdefault(op.inode, bytearray()), piece)
            self.later = [p for p in self.later if p.inode != op.inode]
        else:
            if op.call in ("make", "unlink", "rename"):
                self.renames.append(op)
            if op.call not in ("unlink", "rename"):
                self.later += pieces(op)

    def image(self, folder, keep, renames):
        """Writes what a power failure leaves. `keep` says it for each change."""
        names, files = dict(self.names), {n: bytearray(d) for n, d in self.files.items()}
        for op in self.renames[:renames]:
            self.rename(op, names)
        for piece in self.later:
            if keep(piece):
                change(files.setdefault(piece.inode, bytearray()), piece)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        for name, inode in names.items():
            with open(folder / name, "wb", opener=lambda p, f: os.open(p, f, 0o600)) as out:
                out.write(files.get(inode, b""))


def cuts(shm, rng, state, argv, check):
    """Runs the command on a copy of `state`, and looks at what power failures leave."""
    backup, log = shm / "backup", shm / "ops"
    shutil.rmtree(backup, ignore_errors=True)
    if state:
        copied(state, backup)
    else:
        backup.mkdir(mode=0o700)
    disk = Disk(backup)
    stop = compiled("stop.c", "-D_GNU_SOURCE", "-shared", "-fPIC", name="stop.so")
    done = call(*argv, LD_PRELOAD=str(stop), STOP_OPS=str(log))
    assert done.returncode == 0, done
    ops = read_ops(log)
    known = set(disk.files) | {op.inode for op in ops if op.call == "make"} | {disk.inode}
    ops = [op for op in ops if op.inode in known]  # not the parent directory
    chosen = set(rng.sample(range(len(ops)), min(IMAGES, len(ops))))
    for number, op in enumerate(ops):
        disk.do(op)
        if op.call in ("rename", "write") and op.b <= 8:
            # The commits: with all changes before them, with none, and with no name.
            disk.image(backup, lambda piece: True, len(disk.renames))
            check(number)
            commit = disk.later[-1:] if op.call == "write" else []
            disk.image(backup, lambda piece, only=commit: piece in only, len(disk.renames))
            check(number)
            disk.image(backup, lambda piece: True, 0)
            check(number)
        if number in chosen:
            share = rng.random()
            renames = rng.randint(0, len(disk.renames))
            disk.image(backup, lambda piece, most=share: rng.random() < most, renames)
            check(number)
    disk.image(backup, lambda piece: False, 0)


@pytest.mark.parametrize("what", ["first", "plain", "layered", "fold"])
def test_after_a_power_failure_a_backup_stands(source, shm, rng, what):
    backup = shm / "backup"
    rounds = {"first": 0, "plain": 1, "layered": 2, "fold": 2}[what]
    old = None
    for number in range(rounds):
        old = shell(source, f"set round {number}\nfill 200 {number}\nget round\nverify\n")[2:]
        back_up(source, backup)
    state = copied(backup, shm / "state") if rounds else None
    if what != "fold":
        new = shell(source, "set round new\nfill 200 99\nget round\nverify\n")[2:]
    else:
        new = old

    def check(_):
        names = {path.name for path in backup.iterdir()}
        if what == "first" and not names & {"superblock", "backup.superblock"}:
            done = call(BACKUP, "--verify", backup)
            assert done.returncode == 8, done  # unfinished, or empty
        else:
            stands(shm, *filter(None, (old, new)))

    argv = [RECOVER, "--check", backup] if what == "fold" else [BACKUP, source, backup]
    cuts(shm, rng, state, argv, check)
    stands(shm, new)
