# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""A heap that was copied while it was in use, or after a kill, by other means than pmalloc-backup:
it is refused, and stays as it is, unless pmalloc-recover --copy takes it. What only looks like such
a copy opens as ever: a heap that was moved, a file system that was mounted again, a copy of a clean
heap, a backup and its copies, the heaps of children."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest
from conftest import (
    BUILD,
    ROOT,
    app,
    busy,
    compiled,
    fingerprint,
    recover,
    refuses,
    run,
    said,
    start,
    succeeds,
    tool,
)

sys.path.insert(0, str(ROOT / "tests" / "fuzz"))
from forge import crc32c, seal  # noqa: E402
from heap_layout import Layout  # noqa: E402

LAYOUT = Layout()
ORIGIN = LAYOUT.offset("pm_super_file", "state") + LAYOUT.offset("pm_state", "origin")
ORIGIN_BYTES = LAYOUT.structs["pm_origin"].size
WHAT = "is a copy of a heap that was in use, or whose program was killed"
COMMITS = (None, "output")
PATH = os.environ["PATH"] + ":/sbin:/usr/sbin"


# ---- what was laid over other files


@pytest.mark.parametrize("over", ["killed", "backup"])
def test_a_layered_backup_over_other_files(shm, over):
    """The rounds that it has in its increments must not be missing silently."""
    heap, backup, target = shm / "heap", shm / "backup", shm / "target"
    settings = {"HEAP": heap, "ROOTS": "store"}
    shell = [app("kvshell")]
    succeeds(run(shell, stdin="set a one\n", **settings))
    succeeds(run([tool("pmalloc-backup"), heap, backup], False))
    if over == "backup":
        shutil.copytree(backup, target)
    else:
        process = start(shell, **settings | {"HEAP": target})
        process.stdin.write("set b two\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ok\n"
        process.kill()
        process.communicate()
    succeeds(run(shell, stdin="set a two\n", **settings))
    succeeds(run([tool("pmalloc-backup"), heap, backup], False))
    for file in backup.iterdir():
        shutil.copy(file, target / file.name)
    before = fingerprint(target)
    done = run(shell, stdin="", HEAP=target, ROOTS="store")
    refuses(done, "a backup's backup.superblock beside a superblock", "remove")
    assert recover(target).returncode == 8 and fingerprint(target) == before
    (target / "superblock").unlink()
    assert succeeds(run(shell, stdin="get a\n", HEAP=target, ROOTS="store")) == "two\n"


# ---- file systems


def must(*argv):
    done = subprocess.run(
        [str(a) for a in argv],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": PATH},
    )
    if done.returncode:
        pytest.skip(f"{argv[0]}: {done.stderr.strip()}")


class FileSystem:
    """One that the test may mount again. `at`: where a heap may lie."""

    def __init__(self, kind, folder):
        self.kind, self.folder, self.at = kind, folder, folder / "mount"
        self.at.mkdir()
        if kind in ("ext4", "xfs", "btrfs"):
            if not shutil.which(f"mkfs.{kind}", path=PATH):
                pytest.skip(f"needs mkfs.{kind}")
            with open(folder / "image", "wb") as image:
                image.truncate(400 << 20)
            must(f"mkfs.{kind}", "-q", folder / "image")
        for name in ("lower", "upper", "work"):
            (folder / name).mkdir()
        self.mount()

    def mount(self):
        layers = ",".join(f"{n}dir={self.folder / n}" for n in ("lower", "upper", "work"))
        options = {
            "tmpfs": ("-t", "tmpfs", "tmpfs"),
            "overlay": ("-t", "overlay", "-o", layers, "overlay"),
        }.get(self.kind, ("-o", "loop", self.folder / "image"))
        must("mount", *options, self.at)
        self.at.chmod(0o700)

    def unmount(self):
        subprocess.run(["umount", self.at], check=True)

    def again(self):
        """As after a reboot."""
        self.unmount()
        self.mount()


KINDS = ("tmpfs", "ext4", "xfs", "btrfs", "overlay")
LASTING = tuple(kind for kind in KINDS if kind != "tmpfs")


@contextlib.contextmanager
def file_system(kind, shm):
    system = FileSystem(kind, shm)
    try:
        yield system
    finally:
        system.unmount()


# ---- heaps


def shell(heap, commands="get a\n", **settings):
    settings.setdefault("ROOTS", "store")
    return run([app("kvshell")], stdin=commands, HEAP=heap, **settings)


def in_use(heap, commit=None, word="old"):
    """A program that uses the heap. It has answered."""
    process = start([app("kvshell")], HEAP=heap, ROOTS="store", COMMIT=commit)
    process.stdin.write(f"fill 300 7\nset a {word}\n")
    process.stdin.flush()
    assert [process.stdout.readline() for _ in range(2)][1] == "ok\n"
    return process


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.communicate()


def killed(heap, commit=None, word="old"):
    kill(in_use(heap, commit, word))
    return heap


def copied(source, target):
    subprocess.run(["cp", "-a", "--sparse=always", source, target], check=True)
    return target


def origin(heap):
    with open(heap / "superblock", "rb") as file:
        file.seek(ORIGIN)
        return file.read(ORIGIN_BYTES)


def takes(done, status, *parts):
    assert done.returncode == status and done.stderr == "", said(done)
    for part in parts:
        assert part in done.stdout, said(done)
    return done.stdout


def refused(copy, commit=None):
    """Every door is closed, and nothing is changed."""
    before = fingerprint(copy)
    line = refuses(shell(copy), f"{copy} {WHAT}", "pmalloc-backup", "pmalloc-recover --copy")
    assert "nothing was changed" in line
    refuses(shell(copy, COMMIT=commit or "output"), WHAT)
    refuses(shell(copy, OPEN="private"), WHAT)
    for options in ((), ("--check",), ("--dry-run",), ("--drop-root", "store")):
        done = recover(copy, *options, "--json")
        assert done.returncode == 8 and WHAT in done.stderr, said(done)
        assert done.stderr.count("\n") == 1, said(done)
        assert json.loads(done.stdout)["result"] == "error"
    done = run([tool("pmalloc-backup"), copy, copy.parent / "no"], preload=False)
    assert done.returncode == 8 and WHAT in done.stderr, said(done)
    assert not (copy.parent / "no").exists()
    assert fingerprint(copy) == before


def shown(copy):
    """pmalloc-info shows it and says what it is."""
    before = fingerprint(copy)
    text = takes(run([tool("pmalloc-info"), copy], preload=False), 0, "pmalloc-recover --copy")
    assert "guarantee  a copy: not one instant" in text
    done = run([tool("pmalloc-info"), "--json", copy], preload=False)
    assert json.loads(takes(done, 0))["copy"] is True
    assert fingerprint(copy) == before


def taken(copy):
    """pmalloc-recover --copy looks at it, and takes it."""
    before = fingerprint(copy)
    takes(recover(copy, "--copy", "--check"), 1, "a copy, not cleanly", "a copy: not one instant")
    takes(recover(copy, "--copy", "--dry-run"), 0, "a copy: not one instant")
    assert fingerprint(copy) == before
    report = json.loads(takes(recover(copy, "--copy", "--json"), 0))
    assert report["result"] == "recovered" and report["copy"] is True
    assert report["guarantee"].startswith("a copy: not one instant, unless no program")
    report = json.loads(takes(recover(copy, "--check", "--json"), 0))
    assert report["copy"] is False and "a copy" not in report["guarantee"]


def opens(heap, word="old", **settings):
    assert succeeds(shell(heap, **settings)) == f"{word}\n"


# ---- what is refused


@pytest.mark.check
@pytest.mark.parametrize("commit", COMMITS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_of_a_killed_heap(shm, kind, commit):
    with file_system(kind, shm) as system:
        heap = killed(system.at / "heap", commit)
        copy = copied(heap, system.at / "copy")
        assert any(origin(copy))
        if commit:
            assert (copy / "journal").stat().st_size
        refused(copy, commit)
        shown(copy)
        taken(copy)
        opens(copy)
        opens(heap)
        # It is a heap of its own now.
        killed(copy, commit, "new")
        refused(copied(copy, system.at / "copy of the copy"))
        opens(copy, "new")


@pytest.mark.parametrize("commit", COMMITS)
def test_a_copy_of_a_heap_in_use(heap, shm, commit):
    process = in_use(heap, commit)
    copy = copied(heap, shm / "copy")
    kill(process)
    refused(copy, commit)
    opens(heap)


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_that_is_put_back(shm, kind):
    """The number of the inode may be the same; when the file was made is not."""
    with file_system(kind, shm) as system:
        heap = killed(system.at / "heap")
        copied(heap, system.at / "copy")
        shutil.rmtree(heap)
        copied(system.at / "copy", heap)
        refused(heap)
        taken(heap)
        opens(heap)


def test_a_copy_on_another_file_system(shm, tmp_path):
    for kind in ("tmpfs", "overlay"):
        folder = shm / kind
        folder.mkdir()
        with file_system(kind, folder) as system:
            copy = copied(killed(system.at / "heap"), tmp_path / kind)
            copy.chmod(0o700)
            refused(copy)
            back = copied(killed(tmp_path / f"{kind}.here"), system.at / "back")
            refused(back)


def test_a_journal_beside_a_superblock_that_says_clean(heap, shm):
    """cp took the journal first, then the program ended, then cp took the superblock. The journal
    would bring old pages into newer files."""
    process = in_use(heap, "output")
    copy = copied(heap, shm / "copy")
    assert (copy / "journal").stat().st_size
    process.stdin.write("set a new\n")
    process.stdin.close()
    assert process.wait(20 * busy()) == 0
    assert recover(heap, "--check").returncode == 0
    shutil.copy2(heap / "superblock", copy / "superblock")
    refused(copy)
    opens(heap, "new")


def test_a_damaged_copy_says_that_it_is_one(heap, shm):
    copy = copied(killed(heap), shm / "copy")
    with open(copy / "slabs.0", "r+b") as file:
        file.write(bytes(4096))
    refused(copy)
    before = fingerprint(copy)
    for done in (
        recover(copy, "--copy"),
        recover(copy, "--copy", "--check"),
        run([tool("pmalloc-info"), copy], preload=False),
    ):
        assert done.returncode == 4, said(done)
        assert done.stderr.count("\n") == 1 and "this is a copy of a heap" in done.stderr
    assert fingerprint(copy) == before


def test_listed_beside_default_heaps(shm):
    """Its line says why it is no heap, and --purge=all lets it be."""
    folder = pathlib.Path(f"/dev/shm/pmalloc-{os.geteuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    copy = copied(killed(shm / "heap"), folder / "pmtest-a-copy")
    try:
        before = fingerprint(copy)
        done = run([tool("pmalloc-recover"), "--json"], preload=False)
        mine = next(
            h for h in json.loads(succeeds(done))["heaps"] if h["heap"].endswith(copy.name)
        )
        assert mine["state"] == "error" and WHAT in mine["error"], mine
        assert fingerprint(copy) == before
    finally:
        shutil.rmtree(copy)


# ---- what is none


@pytest.mark.parametrize("commit", COMMITS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_heap_that_was_moved(shm, kind, commit):
    with file_system(kind, shm) as system:
        heap = killed(system.at / "heap", commit)
        heap.rename(system.at / "moved")
        takes(recover(system.at / "moved", "--check"), 1)
        (system.at / "folder").mkdir()
        subprocess.run(["mv", system.at / "moved", system.at / "folder" / "heap"], check=True)
        (system.at / "folder").rename(system.at / "renamed")
        opens(system.at / "renamed" / "heap", OPEN="private")
        opens(system.at / "renamed" / "heap")


@pytest.mark.parametrize("commit", COMMITS)
@pytest.mark.parametrize("kind", LASTING)
def test_a_file_system_that_is_mounted_again(shm, kind, commit):
    with file_system(kind, shm) as system:
        heap = killed(system.at / "heap", commit)
        copied(heap, system.at / "copy")
        system.again()
        takes(recover(heap, "--check"), 1)
        refused(system.at / "copy")
        opens(heap)


def test_an_image_of_a_file_system(shm):
    """All of it at one instant, as an LVM snapshot is."""
    with file_system("ext4", shm) as system:
        killed(system.at / "heap")
        subprocess.run(["sync", "-f", system.at], check=True)
        system.unmount()
        try:
            copied(shm / "image", shm / "second")
            (shm / "second").replace(shm / "image")
        finally:
            system.mount()
        opens(system.at / "heap")


def test_a_snapshot(shm):
    with file_system("btrfs", shm) as system:
        subprocess.run(["btrfs", "-q", "subvolume", "create", system.at / "a"], check=True)
        killed(system.at / "a" / "heap")
        subprocess.run(
            ["btrfs", "-q", "subvolume", "snapshot", system.at / "a", system.at / "b"], check=True
        )
        opens(system.at / "b" / "heap")
        opens(system.at / "a" / "heap")


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_of_a_clean_heap(shm, kind):
    with file_system(kind, shm) as system:
        heap = killed(system.at / "heap")
        opens(heap)
        copy = copied(heap, system.at / "copy")
        takes(recover(copy, "--check"), 0, "cleanly closed")
        takes(recover(copy, "--copy", "--check"), 0, "cleanly closed")
        opens(copy, OPEN="private")
        killed(copy, word="new")  # at its own place
        opens(copy, "new")
        opens(heap)


@pytest.mark.parametrize("commit", COMMITS)
@pytest.mark.parametrize("state", ("killed", "in use"))
def test_backups_and_their_copies(heap, shm, state, commit):
    """A backup is one instant, and at rest. So it may be copied until a program uses it."""

    def back_up(source, target):
        return succeeds(run([tool("pmalloc-backup"), source, target], preload=False))

    process = in_use(heap, commit)
    if state == "killed":
        kill(process)
        if commit:
            recover(heap)
            killed(heap)
    back_up(heap, shm / "backup")
    for name in ("second", "third"):
        copied(shm / "backup", shm / name)
        assert not any(origin(shm / name))
    opens(shm / "second", OPEN="private")
    if state == "in use":
        process.stdin.write("set a newer\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ok\n"
        kill(process)
        if commit:
            recover(heap)
    else:
        killed(heap, word="newer")
    back_up(heap, shm / "backup")  # an increment
    copied(shm / "backup", shm / "layered")
    assert (shm / "layered" / "backup.superblock").exists()
    back_up(shm / "backup", shm / "of a backup")
    opens(shm / "layered", "newer")
    opens(shm / "of a backup", "newer")
    opens(shm / "third")
    killed(shm / "second", word="used")
    refused(copied(shm / "second", shm / "copy"))
    opens(shm / "second", "used")


def test_children_have_heaps_of_their_own(heap, shm):
    program = compiled("copies.c")
    process = start([program, "wait"], HEAP=heap, ROOTS="kept", FORK="copy")
    pids = [int(process.stdout.readline()) for _ in range(2)]
    child = next(pid for pid in pids if pid != process.pid)
    copies = {heap: 1, shm / f"heap.{child}": 2}
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    for place, number in copies.items():
        refuses(run([program, "show"], HEAP=copied(place, shm / f"copy of {number}")), WHAT)
        done = run([program, "show"], HEAP=place, BUSY="wait")
        assert succeeds(done) == f"{number}\n"


# ---- one file


MIB = 1 << 20


def made(*paths, options=()):
    argv = [tool("pmalloc-recover"), "--make", "--size", "48M", *options, *paths]
    succeeds(run(argv, preload=False))


@pytest.mark.parametrize("commit", COMMITS)
def test_a_heap_in_a_file(shm, commit):
    heap, copy = shm / "file", shm / "folder" / "copy"
    copy.parent.mkdir(mode=0o700)
    made(heap, options=["--journal", "4M"] if commit else [])
    killed(heap, commit)
    shutil.copy2(heap, copy)
    before = copy.read_bytes()
    refuses(shell(copy), WHAT)
    for options in ((), ("--check",), ("--dry-run",)):
        done = recover(copy, *options)
        assert done.returncode == 8 and WHAT in done.stderr, said(done)
    assert copy.read_bytes() == before
    takes(recover(copy, "--copy"), 0, "a copy: not one instant")
    opens(copy)
    heap.rename(shm / "moved")
    opens(shm / "moved")


def test_a_heap_in_several_files(shm):
    made(shm / "a", shm / "b")
    both = f"{shm}/a:{shm}/b"
    killed(both)
    for name in "ab":
        shutil.copy2(shm / name, shm / f"{name}.copy")
    copy = f"{shm}/a.copy:{shm}/b.copy"
    refuses(shell(copy), WHAT)
    takes(recover(copy, "--copy"), 0)
    opens(copy)
    opens(both)


def test_the_heap_of_a_directory_in_a_file(heap, shm):
    """pmalloc-recover --make --from copies a heap that nobody uses, so it may be dirty."""
    killed(heap)
    refused_copy = copied(heap, shm / "copy")
    argv = [tool("pmalloc-recover"), "--make", "--size", "48M", "--from"]
    done = run([*argv, refused_copy, shm / "no"], preload=False)
    assert done.returncode == 8 and WHAT in done.stderr, said(done)
    succeeds(run([*argv, heap, shm / "file"], preload=False))
    takes(recover(shm / "file", "--check"), 1)
    killed(shm / "file", word="new")
    opens(shm / "file", "new")


# ---- the record


def with_origin(heap, record):
    with open(heap / "superblock", "r+b") as file:
        file.seek(ORIGIN)
        file.write(record)


def test_each_bit_of_the_record(heap):
    killed(heap)
    right = origin(heap)
    for bit in range(ORIGIN_BYTES * 8):
        wrong = bytearray(right)
        wrong[bit // 8] ^= 1 << bit % 8
        with_origin(heap, wrong)
        done = recover(heap, "--check")
        assert done.returncode == 4, f"{bit}: {said(done)}"
        assert "the record of which file it is" in done.stderr, f"{bit}: {said(done)}"
        if bit % 64 == 3:
            before = fingerprint(heap)
            refuses(shell(heap), "the record of which file it is", "nothing was changed")
            assert recover(heap).returncode == 4 and recover(heap, "--copy").returncode == 4
            assert fingerprint(heap) == before
    with_origin(heap, bytes(ORIGIN_BYTES))  # as in a heap of an earlier build
    takes(recover(heap, "--check"), 1)
    opens(heap)
    assert origin(heap) == right


def record(ino, birth, birth_ns):
    data = b"".join(n.to_bytes(8, "little") for n in (ino, birth, birth_ns))
    return data + seal(crc32c(data), LAYOUT.value("PM_SALT_ORIGIN")).to_bytes(8, "little")


def test_what_is_compared(heap):
    """What either side does not know is not compared."""
    killed(heap)
    right = origin(heap)
    ino, birth, ns = (int.from_bytes(right[at : at + 8], "little") for at in (0, 8, 16))
    assert ino == (heap / "superblock").stat().st_ino and right == record(ino, birth, ns)
    if not birth:
        pytest.skip("this kernel's tmpfs does not say when a file was made")
    assert abs(birth - time.time()) < 3600
    for other, same in (
        ((ino, 0, 0), True),
        ((0, birth, ns), True),
        ((ino + 1, 0, 0), False),
        ((ino + 1, birth, ns), False),
        ((0, birth, ns + 1), False),
        ((0, birth + 1, ns), False),
        ((ino, birth + 1, ns), False),
    ):
        with_origin(heap, record(*other))
        assert recover(heap, "--check").returncode == (1 if same else 8), other


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
def test_a_question_that_fails(heap, shm):
    """An error is no answer. A copy was taken for the heap itself where it had the same number, and
    only the time when it was made tells them apart."""
    killed(heap)
    ino, birth, ns = (int.from_bytes(origin(heap)[at : at + 8], "little") for at in (0, 8, 16))
    with_origin(heap, record(ino, birth, ns + 1))
    before = fingerprint(heap)
    watch = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=statx"]
    watch += ["-e", "inject=statx:error=EIO"]
    done = run([*watch, tool("pmalloc-recover"), heap], preload=False)
    assert done.returncode == 8 and "which file it is cannot be read" in done.stderr, said(done)
    assert fingerprint(heap) == before
    with_origin(heap, record(ino, birth, ns))
    opens(heap)
    done = run([*watch, tool("pmalloc-recover"), heap], preload=False)
    takes(done, 0, "cleanly closed")


def test_a_sandbox_that_forbids_the_question(heap, monkeypatch):
    """The number of the inode is known even so."""
    monkeypatch.setenv("FORBID_PRELOAD", os.fspath(BUILD / "libpmalloc_preload.so"))
    argv = [compiled("forbid.c"), "start", "EPERM", "statx", 20]
    assert succeeds(run(argv, preload=False, HEAP=heap, ROOTS="kept")) == "ok 0\n"
    found = (heap / "superblock").stat()
    assert origin(heap) == record(found.st_ino, 0, 0)
    succeeds(run([argv[0], "later", "EPERM", "statx", 20], HEAP=heap))
    assert any(origin(heap)[8:16]) == any(origin(killed(heap.parent / "other"))[8:16])
