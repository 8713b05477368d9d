# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""A disk that fails for a moment, or a kill; then all is well again, and then comes a power cut.

Linux reports a failed write-back once, and takes the pages for written: a later sync succeeds
without them. lost_writes.c is that disk. Each test fails one sync of a step, each in turn, or kills
the step before it, does the step again, and looks at what a power cut leaves: what the second try
has promised is there.
docs/failing-disks.md lists the syncs; test_syncs.py holds the list complete."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

import pytest
from conftest import BUILD, app, busy, compiled, environment, run, said, tool
from test_fork import end, serving
from tool_heaps import RECOVER

MIB = 1 << 20
JUNK = bytes(range(1, 129)) * 32


class Disk:
    """A tree of files, and what the disk has of it."""

    def __init__(self, folder):
        self.tree, self.has = folder / "tree", folder / "disk"
        self.tree.mkdir(mode=0o700)
        self.has.mkdir()
        flags = ("-D_GNU_SOURCE",)
        self.layer = compiled("lost_writes.c", *flags, "-shared", "-fPIC", name="lost_writes.so")
        self.tool = compiled("lost_cut.c", *flags)
        self.names = {"LOST_ROOT": str(self.tree), "LOST_DISK": str(self.has)}
        self.kills = False  # instead of failures

    def _do(self, what):
        subprocess.run([self.tool, what], env=self.names, check=True)

    def begin(self):
        """All is durable as it is."""
        self._do("begin")

    def cut(self):
        """The power fails."""
        self._do("cut")

    def empty(self):
        for path in list(self.tree.iterdir()):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        self.begin()

    def environment(self, fail, only, library, **settings):
        """That of a process on this disk, whose syncs are counted from 1 on."""
        self._do("count")
        seen = BUILD / "seen" / "libpmalloc_preload.so"
        preload = [str(self.layer)] + ([str(seen)] if library else [])
        env = environment(False, **settings) | self.names | {"LD_PRELOAD": ":".join(preload)}
        return env | {"LOST_FAIL": str(fail), "LOST_ONLY": only, "LOST_KILL": str(int(self.kills))}

    def run(self, argv, fail=0, only="", library=False, stdin="", **settings):
        return subprocess.run(
            [str(a) for a in argv],
            env=self.environment(fail, only, library, **settings),
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=100 * busy(),
            check=False,
        )

    def syncs(self):
        """How many the last process has made."""
        return (self.has / "lock").stat().st_size


@pytest.fixture(params=["fails", "kills"])
def disk(request):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="pmalloc-test-", dir="/var/tmp"))
    kind = subprocess.run(["stat", "-fc", "%T", folder], capture_output=True, text=True, check=True)
    try:
        if kind.stdout.strip() in ("tmpfs", "ramfs"):
            pytest.skip("/var/tmp is no disk")
        made = Disk(folder)
        made.kills = request.param == "kills"
        yield made
    finally:
        shutil.rmtree(folder)


def each_sync(disk, prepare, step, verify):
    """The step with each of its syncs failing, and once more without; then the power fails."""
    fail = 0
    while True:
        fail += 1
        disk.empty()
        prepare()
        disk.begin()
        first = step(fail)
        if disk.syncs() < fail:
            break
        if disk.kills:
            assert first.returncode == -signal.SIGKILL, (fail, said(first))
        else:
            assert first.returncode in (0, 8, 125), (fail, said(first))
            assert not first.returncode or "Input/output error" in first.stderr, said(first)
        if first.returncode == 0:  # it has written all once more
            disk.cut()
            verify(f"sync {fail}: {said(first)}")
            continue
        second = step(0)
        assert second.returncode == 0, (fail, said(first), said(second))
        disk.cut()
        verify(f"sync {fail}: {said(first)}\n{said(second)}")
    assert first.returncode == 0, said(first)
    disk.cut()
    verify(said(first))
    return fail - 1


# ---- a fixed file -------------------------------------------------------------------------------


def allocated(path, size):
    with open(path, "wb", opener=lambda p, f: os.open(p, f, 0o600)) as file:
        os.posix_fallocate(file.fileno(), 0, size)


def written(path, size, block):
    """A file that has this block again and again, not synced."""
    with open(path, "r+b" if path.exists() else "wb") as file:
        path.chmod(0o600)
        file.write(block * (size // len(block)))


def whole(heap, why):
    done = run([RECOVER, "--check", heap], preload=False)
    assert done.returncode in (0, 1), why + said(done)  # 1: nobody has used it yet
    done = run([RECOVER, heap], preload=False)
    assert done.returncode == 0, why + said(done)


def zeroes_from(path, at, why):
    with open(path, "rb") as file:
        file.seek(at)
        while block := file.read(MIB):
            assert not any(block), (why, file.tell())


@pytest.mark.parametrize("how", ["new", "allocated", "written"])
def test_make(disk, how):
    path = disk.tree / "fixed"

    def prepare():
        if how == "allocated":
            allocated(path, 16 * MIB)
        if how == "written":
            written(path, 16 * MIB, bytes(4096))

    def step(fail):
        size = ["--size", "16M"] if how == "new" else []
        if path.exists() and fail == 0 and path.read_bytes()[:MIB].strip(b"\0"):
            size += ["--force", "--yes"]  # what the try has left is not empty, and the tool says so
        return disk.run([RECOVER, "--make", *size, path], fail)

    assert each_sync(disk, prepare, step, lambda why: whole(path, why)) >= 3


def test_zeroes_that_only_the_cache_has(disk):
    """Somebody wrote zeroes over the file, and the disk failed."""
    path = disk.tree / "fixed"
    written(path, 16 * MIB, JUNK)
    disk.begin()
    disk.kills = False
    written(path, 16 * MIB, bytes(4096))
    failed = disk.run(["sync", path], fail=1)
    assert failed.returncode == 1, said(failed)
    done = disk.run([RECOVER, "--make", path])
    assert done.returncode == 0, said(done)
    disk.cut()
    whole(path, said(done))
    zeroes_from(path, 15 * MIB, said(done))


def kvshell(heap, commands):
    done = run([app("kvshell")], HEAP=heap, ROOTS="store", stdin=commands)
    assert done.returncode == 0, said(done)
    return done.stdout


def test_make_from(disk, shm):
    source, path = shm / "source", disk.tree / "fixed"
    kvshell(source, "set colour red\nfill 500 7\n")

    def step(fail):
        force = [] if fail or not path.exists() else ["--force", "--yes"]
        return disk.run([RECOVER, "--make", *force, "--size", "16M", "--from", source, path], fail)

    def verify(why):
        whole(path, why)
        copy = shm / "copy"
        shutil.copy(path, copy)
        assert kvshell(copy, "get colour\n") == "red\n", why

    assert each_sync(disk, lambda: None, step, verify) >= 4


@pytest.mark.parametrize("again", ["force", "look", "use"])
def test_grow(disk, again):
    """The new space has junk, so the first try is with --force. The second one may be without it,
    since that space now looks empty. Or a program uses the heap at once."""
    path = disk.tree / "fixed"

    def prepare():
        done = run([RECOVER, "--make", "--size", "16M", path], preload=False)
        assert done.returncode == 0, said(done)
        with open(path, "ab") as file:
            file.write(JUNK * (4 * MIB // len(JUNK)))

    def step(fail):
        if fail == 0 and again == "use":
            settings = {"HEAP": path, "ROOTS": "store"}
            more = disk.run([app("kvshell")], 0, "", True, stdin="fill 23000 7\n", **settings)
            if "out of memory" not in more.stderr:
                return more  # else the heap has not grown
            return disk.run([app("kvshell")], 0, "", True, stdin="verify\n", **settings)
        force = ["--force"] if fail or again == "force" else []
        return disk.run([RECOVER, "--grow", *force, path], fail)

    def verify(why):
        whole(path, why)
        if "kvshell" in why:
            assert kvshell(path, "verify\n").startswith("ok"), why
            return
        done = run([RECOVER, "--grow", "--json", path], preload=False)
        assert done.returncode == 0, why + said(done)
        assert json.loads(done.stdout)["result"] == "unchanged", why + said(done)
        zeroes_from(path, 16 * MIB, why)

    assert each_sync(disk, prepare, step, verify) >= 2


# ---- a backup -----------------------------------------------------------------------------------


BACKUP = tool("pmalloc-backup")


@pytest.fixture
def rounds(shm):
    """The same heap at four times."""
    folders = []
    for number in range(4):
        if number:
            shutil.copytree(folders[-1], shm / f"source{number}")
        folders.append(shm / f"source{number}")
        kvshell(folders[-1], f"set colour {number}\nfill {200 + 40 * number} {number}\n")
    return folders


def back_up(source, copy):
    done = run([BACKUP, source, copy], preload=False)
    assert done.returncode == 0, said(done)


@pytest.mark.parametrize("before", [0, 1, 2])
def test_backup(disk, rounds, shm, before):
    """A first round, and later ones. The second try may find nothing to do."""
    copy = disk.tree / "copy"

    def prepare():
        for number in range(before):
            back_up(rounds[number], copy)

    def verify(why):
        done = run([BACKUP, "--verify", copy], preload=False)
        assert done.returncode == 0, why + said(done)
        heap = shm / "restored"
        shutil.rmtree(heap, ignore_errors=True)
        shutil.copytree(copy, heap)
        assert kvshell(heap, "get colour\n") == f"{before}\n", why

    def step(fail):
        return disk.run([BACKUP, rounds[before], copy], fail)

    assert each_sync(disk, prepare, step, verify) >= 6


def test_a_round_after_two_that_failed(disk, rounds, shm):
    """Each of the ledger's entries is lost, and the round after them counts."""
    copy = disk.tree / "copy"
    disk.kills = False
    back_up(rounds[0], copy)
    disk.begin()
    for number in (1, 2):
        failed = disk.run([BACKUP, rounds[number], copy], 1, "backup.checksums")
        assert failed.returncode == 8, said(failed)
    done = disk.run([BACKUP, rounds[3], copy])
    assert done.returncode == 0, said(done)
    disk.cut()
    done = run([BACKUP, "--verify", copy], preload=False)
    assert done.returncode == 0, said(done)
    assert kvshell(copy, "get colour\n") == "3\n"


@pytest.mark.parametrize("again", ["look", "use"])
def test_fold(disk, rounds, again):
    """Whoever opens a backup brings its increments into its files."""
    copy = disk.tree / "copy"

    def prepare():
        for source in rounds[:3]:
            back_up(source, copy)

    def verify(why):
        if again == "look":
            done = run([BACKUP, "--verify", copy], preload=False)
            assert done.returncode == 0, why + said(done)
        colour = "red" if again == "use" and "kvshell" in why else "2"
        assert kvshell(copy, "get colour\n") == f"{colour}\n", why

    def step(fail):
        if fail or again == "look":
            return disk.run([RECOVER, "--check", copy], fail)
        settings = {"HEAP": copy, "stdin": "set colour red\n"}
        return disk.run([app("kvshell")], 0, "", True, **settings)

    assert each_sync(disk, prepare, step, verify) >= 4


# ---- directories --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "only", ["tree/first", "tree/second", "second/volume", "superblock.new", "/tree"]
)
def test_a_new_heap_in_two_directories(disk, only):
    """Its names, and what they say, each sync of them."""
    heap = f"{disk.tree}/first:{disk.tree}/second"

    def step(fail):
        commands = "set colour red\n"
        settings = {"HEAP": heap, "ROOTS": "store", "stdin": commands}
        return disk.run([app("kvshell")], fail, only, True, **settings)

    def verify(why):
        assert kvshell(heap, "get colour\n") == "red\n", why
        for name in ("volume", "."):
            assert (disk.tree / "second" / name).exists(), why

    each_sync(disk, lambda: None, step, verify)


BLOCKS = "blocks,generation"


def holds(forks, heap, tag, why):
    done = run([forks, "check", tag], HEAP=heap, ROOTS=BLOCKS)
    assert done.returncode == 0 and done.stdout.endswith(f"blocks of {tag}\n"), why + said(done)


def test_a_heap_of_many_files_is_there_after_its_end(disk, forks):
    heap = f"{disk.tree}/first:{disk.tree}/second"
    settings = {"HEAP": heap, "ROOTS": BLOCKS, "SHARD": "8M"}
    done = disk.run([forks, "isolation", 40], 0, "", True, **settings)
    assert done.returncode == 0, said(done)
    disk.cut()
    assert list((disk.tree / "second").glob("heap.*")), said(done)
    holds(forks, heap, 2, said(done))


def test_copies_of_children_are_there_after_their_end(disk, forks):
    place = disk.tree / "heap"
    settings = {"HEAP": place, "ROOTS": BLOCKS, "FORK": "copy"}
    done = disk.run([forks, "copies", 12], 0, "", True, **settings)
    lines = [line.split() for line in done.stdout.splitlines()]
    ended = [(tag, f"{place}.{pid}") for tag, pid in lines if state(f"{place}.{pid}") == 0]
    assert ended, said(done)
    disk.cut()
    for tag, heap in ended:
        assert state(heap) == 0, said(done)
        holds(forks, heap, tag, said(done))


def state(heap):
    return run([RECOVER, "--check", heap], preload=False).returncode


# The second sync of the directory above them is that of the exchange.
@pytest.mark.parametrize("fail", [0, 2])
def test_a_daemon_that_takes_the_heap_over(disk, forks, fail):
    place, ready, log = disk.tree / "heap", disk.tree.parent / "ready", disk.tree.parent / "log"
    disk.kills = False
    env = disk.environment(fail, "/tree", True, HEAP=place, ROOTS=BLOCKS, FORK="follow")
    with open(log, "w", encoding="utf-8") as out:
        argv = [forks, "daemon_double", "4", ready]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": out}
        process = subprocess.Popen(argv, env=env, **quiet)
        pid = serving(ready, process)
        assert process.wait(20 * busy()) == 0
        end(pid, signal.SIGTERM)
    said_ = log.read_text()
    disk.cut()
    if fail:
        assert "its new name cannot be made durable: Input/output error" in said_
        assert place.exists(), said_
        place = pathlib.Path(f"{place}.{pid}")
    holds(forks, place, 5, said_)
