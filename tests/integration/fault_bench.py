# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Scenarios and faults of test_faults.py: what runs on which heap, which call fails how, and
whether the run ended as it may."""

import contextlib
import dataclasses
import errno
import fcntl
import itertools
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

from conftest import (
    BUILD,
    DEFAULT_HEAPS,
    compiled,
    copy_heap,
    environment,
    fingerprint,
    said,
    tool,
)

SHORT = -1  # faults.c: half of a read or write is done
LIBRARY = "libpmalloc_preload.so"
LIMIT = 60  # seconds that no run may exceed

E = errno
# What looks at files.
READS = set(
    """access faccessat fstat fstatat fstatfs fstatvfs getdents64 lseek lstat mmap+file open openat
    pread read readlink readlinkat stat statvfs""".split()
)
KEPT = ["", ", this function's calls from then on", ", all calls from then on"]


@dataclasses.dataclass(frozen=True)
class Scenario:
    """What runs, on which heap. `before` makes the heap; every run gets a copy of it."""

    name: str
    argv: tuple
    # Arguments of faults_app, run by run; the last run leaves the heap as wanted.
    before: tuple = ()
    settings: tuple = ()
    objects: str = LIBRARY
    root: str = "state"
    reads: bool = False  # a tool that changes nothing
    held: bool = False  # another process has the heap
    default: bool = False  # no heap is named
    disk: bool = False  # the heap is of plain files on a disk, so what must be durable is made so
    strange: bool = False  # the directory holds somebody else's file
    volumes: bool = False  # the heap lies in two directories
    backups: int = 0  # rounds of a backup that were made before
    folds: bool = False  # it runs on the backup, whose increments are not folded in
    status: int = 0

    @property
    def where(self):
        """What kind of heap is read: a call site of each fails."""
        kinds = {"commits": "COMMIT" in dict(self.settings), "volumes": self.volumes}
        kinds["backup"] = self.backups or self.objects == BACKUP
        return " ".join(kind for kind, so in kinds.items() if so)


@dataclasses.dataclass(frozen=True)
class Fault:
    at: int
    function: str
    site: str
    error: int
    keep: int = 0

    def __str__(self):
        name = "SHORT" if self.error == SHORT else errno.errorcode[self.error]
        return f"{self.function} no. {self.at} at {self.site}: {name}{KEPT[self.keep]}"


RUN, KILL, CHECK = ("run", "5"), ("kill", "6"), ("check",)
DIRTY, CLEAN = (RUN, KILL), (KILL, RUN)
RECOVER, INFO, BACKUP = "pmalloc-recover", "pmalloc-info", "pmalloc-backup"
TOOLS = (RECOVER, INFO, BACKUP)
PROGRAM = "faults_app"


def of(name, *argv, **more):
    more["settings"] = tuple({"DECAY_MS": 0, "MARKERS": 1, **more.pop("settings", {})}.items())
    return Scenario(name, argv, **more)


def with_tool(name, *argv, **more):
    return of(name, *argv, objects=argv[0], **more)


def scenarios():
    return [*starts(), *tools(), *other_heaps()]


def starts():
    return [
        of("new heap", PROGRAM, *RUN),
        of("dirty heap", PROGRAM, *RUN, before=DIRTY, settings={"MARKERS": 3}),
        of(
            "clean heap",
            PROGRAM,
            *RUN,
            before=CLEAN,
            settings={"COLLECT": "crash", "RESERVE": "strict"},
        ),
        of("pages", PROGRAM, *RUN, before=DIRTY, settings={"PERSIST": "page"}),
        of(
            "new, pages",
            PROGRAM,
            "run",
            "8",
            settings={"PERSIST": "page", "STATS": 1, "VERBOSE": 1},
        ),
        of("disk", PROGRAM, *RUN, before=DIRTY, disk=True),
        of("new on disk", PROGRAM, "run", "3", disk=True),
        of("lines", PROGRAM, *CHECK, before=DIRTY, settings={"PERSIST": "line"}),
        of("default heap", PROGRAM, *RUN, default=True),
        of("default heap, no roots", PROGRAM, *RUN, default=True, root=None),
        of("daemon", PROGRAM, "daemon", "7", before=CLEAN),
        of("heap of the child's own", PROGRAM, *RUN, before=DIRTY, settings={"FORK": "copy"}),
        of("roots of a file", PROGRAM, *RUN, before=DIRTY, root="@"),
        of("no roots", PROGRAM, "run", "9", root=None),
        of("volatile", PROGRAM, "run", "9", root=None, settings={"BACKING": "volatile"}),
        of("stranger", PROGRAM, *RUN, strange=True, status=125),
        of("held", PROGRAM, *RUN, before=DIRTY, held=True, status=125),
    ]


def tools():
    return [
        with_tool("recover", RECOVER, "--json", "--threads", "2", before=DIRTY),
        with_tool("recover clean", RECOVER, "--threads", "1", before=CLEAN),
        with_tool("recover --check", RECOVER, "--check", before=DIRTY, reads=True, status=1),
        with_tool("recover --dry-run", RECOVER, "--dry-run", before=CLEAN, reads=True),
        with_tool("drop root", RECOVER, "--drop-root", "nulls", before=CLEAN, root="state,nulls"),
        with_tool("held, recover", RECOVER, before=DIRTY, held=True, status=8),
        with_tool("info", INFO, before=DIRTY, reads=True),
        with_tool("info --json", INFO, "--json", "--map", before=CLEAN, reads=True),
        with_tool("info --leaks", INFO, "--leaks", before=CLEAN, reads=True),
        with_tool("info --medium", INFO, "--medium", before=CLEAN, reads=True),
        with_tool("run", "pmalloc-run", before=CLEAN),
    ]


def other_heaps():
    """Heaps of which more files are read than those of every heap."""
    commits = {"settings": {"COMMIT": "output"}}
    return [
        of("commits", PROGRAM, *RUN, before=DIRTY, **commits),
        with_tool("commits, recover", RECOVER, before=DIRTY, **commits),
        with_tool(
            "commits, --check",
            RECOVER,
            "--check",
            before=DIRTY,
            reads=True,
            status=1,
            **commits,
        ),
        with_tool("commits, info", INFO, before=DIRTY, reads=True, **commits),
        of("volumes", PROGRAM, *RUN, before=DIRTY, volumes=True),
        with_tool("volumes, recover", RECOVER, before=DIRTY, volumes=True),
        with_tool("volumes, info", INFO, before=DIRTY, volumes=True, reads=True),
        with_tool("backup", BACKUP, before=DIRTY, reads=True),
        with_tool("backup again", BACKUP, "--verify", before=CLEAN, backups=1, reads=True),
        with_tool("backup, third", BACKUP, before=CLEAN, backups=2, reads=True),
        with_tool("backup, look", BACKUP, "--verify", before=CLEAN, backups=2, reads=True),
        with_tool("backup, recover", RECOVER, before=CLEAN, backups=2, folds=True),
        of("backup, start", PROGRAM, *RUN, before=CLEAN, backups=2, folds=True),
    ]


# ---- one run


class Bench:
    """A scenario, the heap it starts from, and the calls it makes when nothing fails."""

    def __init__(self, scenario, folder):
        self.scenario = scenario
        self.folder = folder
        self.program = compiled("faults_app.c", "-D_GNU_SOURCE")
        self.layer = compiled("faults.c", "-D_GNU_SOURCE", "-shared", "-fPIC", name="faults.so")
        self.pristine = folder / "pristine"
        self.settings = dict(scenario.settings)
        if scenario.root == "@":
            (folder / "roots").write_text("# all there is\nstate\n*\nlibc.so.6:environ\n")
            self.settings["ROOTS"] = f"@{folder}/roots"
        elif scenario.root:
            self.settings["ROOTS"] = scenario.root
        self.numbers = itertools.count()
        if scenario.default:  # else only the first run would make it, and no later one could fail
            DEFAULT_HEAPS.mkdir(mode=0o700, exist_ok=True)
        if scenario.strange:
            self.pristine.mkdir()
            (self.pristine / "letter").write_text("dear reader")
        self.backup = folder / "backup"
        for arguments in scenario.before:
            self.make(*arguments)
        if scenario.folds:
            self.pristine = self.backup
        self.held = None
        self.known = self.contents(self.pristine) if scenario.before else None
        if scenario.before and scenario.before[-1] == KILL:  # a check would have closed it cleanly
            self.app(self.pristine, "kill", "4")
            self.copy(self.pristine, folder / "look")
            self.known = self.contents(folder / "look")
        self.calls = self.observe()

    def make(self, *arguments):
        """A run of the program that makes the heap, or changes it; the first rounds of a backup
        come after earlier runs."""
        scenario, heap = self.scenario, self.pristine
        if scenario.volumes and not heap.exists():
            self.app(f"{heap}:{heap}/more", *arguments)
            (heap / "volume.1").unlink()
            (heap / "volume.1").symlink_to("more")
        else:
            self.app(heap, *arguments)
        left = len(scenario.before) - scenario.before.index(arguments) - 1
        for number in range(scenario.backups if left == 0 else 0):
            if number:
                self.app(heap, "run", str(number))
            done = self.plain([tool(BACKUP), heap, self.backup], environment(False))
            assert done.returncode == 0, said(done)
        if scenario.backups and left == 0 and not scenario.folds:
            self.app(heap, "run", "12")  # which the last round has not got

    def app(self, heap, *arguments):
        quiet = {k: v for k, v in self.settings.items() if k not in ("PERSIST", "STATS", "VERBOSE")}
        env = environment(HEAP=heap, **quiet)
        return self.plain([self.program, *arguments], env)

    @staticmethod
    def plain(argv, env):
        return subprocess.run(
            [str(a) for a in argv],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT,
            check=False,
        )

    @staticmethod
    def copy(source, target):
        if source.exists():
            copy_heap(source, target)

    def contents(self, heap):
        """What the program finds there when no call fails: a line, or None."""
        found = self.app(heap, "check")
        doubt = "all pages are written once more" in found.stderr
        if found.returncode == 3 and found.stdout == "" and (doubt or found.stderr == ""):
            return None
        assert found.returncode == 0 and found.stdout.startswith("done nulls=0"), said(found)
        return found.stdout.split(" ", 2)[2].strip()

    def argv(self, heap):
        name, *arguments = self.scenario.argv
        where = heap
        if self.scenario.default:  # a default heap is named after the program
            return [shutil.copy(self.program, self.folder / heap.name), *arguments]
        if name == PROGRAM:
            return [self.program, *arguments]
        if name == "pmalloc-run":
            return [tool(name), "-H", heap, "-r", "state", "--", self.program, *RUN]
        if name == BACKUP:
            heap = [] if "look" in self.scenario.name else [heap]
            return [tool(name), *arguments, *heap, self.backup_of(where)]
        return [tool(name), *arguments, heap]

    @staticmethod
    def backup_of(heap):
        return heap.parent / "backup"

    def read_only(self, heap):
        """A digest of what the run must not change."""
        if not (self.scenario.reads or self.scenario.strange):
            return None
        look = "look" in self.scenario.name
        return fingerprint(heap), fingerprint(self.backup_of(heap)) if look else ""

    def run(self, heap, log, fault=None):
        settings = {"FAULT_OBJECTS": self.scenario.objects, "FAULT_LOG": str(log)}
        if fault:
            settings.update(FAULT_SITE=fault.site, FAULT_AT=str(fault.at))
            settings.update(FAULT_ERRNO=str(fault.error), FAULT_KEEP=str(fault.keep))
        if self.scenario.argv[0] == PROGRAM:
            env = environment(HEAP=None if self.scenario.default else heap, **self.settings)
        else:
            env = environment(False)
        env.update(settings)
        env["LD_PRELOAD"] = ":".join(filter(None, [str(self.layer), env.get("LD_PRELOAD")]))
        with self.other_owner(heap):
            return self.plain(self.argv(heap), env)

    @contextlib.contextmanager
    def other_owner(self, heap):
        if not self.scenario.held:
            yield
            return
        fd = os.open(heap, os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            # A child that another thread has just forked has the descriptor, too, until its exec.
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    @contextlib.contextmanager
    def fresh(self):
        """A copy of the heap, and the name of a log."""
        number = next(self.numbers)
        folder = self.folder / str(number)
        folder.mkdir()
        heap = folder / "heap"
        if self.scenario.disk:
            heap = pathlib.Path(tempfile.mkdtemp(prefix="faults-", dir=BUILD)) / "heap"
        if self.scenario.default:
            DEFAULT_HEAPS.mkdir(mode=0o700, exist_ok=True)  # a fresh /dev/shm lacks it
            heap = DEFAULT_HEAPS / f"faults_{os.getpid()}_{self.folder.name}_{number}"
        try:
            self.copy(self.pristine, heap)
            if self.scenario.backups and not self.scenario.folds:
                self.copy(self.backup, self.backup_of(heap))
            yield heap, folder / "log"
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            if self.scenario.default:
                shutil.rmtree(heap, ignore_errors=True)
            if self.scenario.disk:
                shutil.rmtree(heap.parent, ignore_errors=True)

    def observe(self):
        """(number, function, site) of each call of a run in which no call fails."""
        with self.fresh() as (heap, log):
            done = self.run(heap, log)
            assert done.returncode == self.scenario.status, said(done)
            self.printed = self.without_times(done.stdout, heap)
            lines = [line.split() for line in log.read_text().splitlines()]
        return sorted({(int(number), function, site) for number, function, site, _ in lines})

    @staticmethod
    def without_times(text, heap):
        """What a tool prints, without what differs from run to run. Without lseek a hole of the
        file counts as data, and to read it takes space on tmpfs."""
        text = text.replace(str(heap.parent), "")
        text = re.sub(r"; live bytes are [0-9.]+% of the data on the file system", "", text)
        text = re.sub(r'"(mark_)?seconds": *[0-9.e-]+', "", text)
        text = re.sub(r", [0-9]+ [a-z]+ ago", "", text)
        return re.sub(r"(?m)^time .*$", "", text)

    # ---- verdict

    def inject(self, fault):
        """Runs with the fault. Returns the call sites that failed, and what was wrong or None."""
        with self.fresh() as (heap, log):
            before = self.read_only(heap)
            first = self.scenario.argv[0]
            try:
                done = self.run(heap, log, fault)
                met = [
                    line.split()[1:3]
                    for line in log.read_text().splitlines()
                    if line.split()[3] != "0"
                ]
                expected = self.judge(done, {function for function, _ in met}, heap)
                if before and self.read_only(heap) != before:
                    raise AssertionError("a tool that only looks has changed the heap")
                if first == BACKUP:
                    self.look_at_backup(done, heap)
                if not before:  # else it has each byte that it had
                    self.look_after(heap, expected)
            except (AssertionError, subprocess.TimeoutExpired) as failure:
                return (
                    [],
                    f"{self.scenario.name}: {fault}: "
                    f"{str(failure).partition(chr(10) + 'assert')[0]}",
                )
            return met, None

    def judge(self, done, failed, heap):
        """Asserts that a program may end like this. Returns what the heap must hold afterwards; "?"
        stands for anything whole."""
        status, first = done.returncode, self.scenario.argv[0]
        prefixes = [
            f"{name}: "
            for name in ("pmalloc", first)
            if name != PROGRAM and first not in TOOLS
        ]
        prefixes = tuple(prefixes or [f"{first}: "])
        assert all(line.startswith(prefixes) for line in done.stderr.splitlines()), said(done)
        told = done.stderr or "write" in failed
        if first in TOOLS:
            assert status in (self.scenario.status, 8) and (status != 8 or told), said(done)
            # All of it is right, or a line says what could not be read.
            if status != 8 and not done.stderr:
                printed, wanted = self.without_times(done.stdout, heap), self.printed
                pairs = itertools.zip_longest(printed.splitlines(), wanted.splitlines())
                same = failed - READS or all(a == b or " not known: " in str(a) for a, b in pairs)
                assert same, f"{said(done)}\nnot {wanted}"
            return self.known
        if status == 125 or first == "pmalloc-run" and status == 126:
            assert done.stdout == "" and told, said(done)
            return self.known
        if status == -6 and "so the program ends here" in done.stderr:
            # The process could get no further mapping, or no file, so it could not even undo the
            # first half of parting from the heap.
            assert {"mmap", "mremap", "fstat"} & {
                function.split("+")[0] for function in failed
            }, said(done)
            return "?"
        if status == -6:
            assert "msync" in failed and "writing its metadata back failed" in done.stderr, said(
                done
            )
            return "?"
        if status == 4:  # the program did not even get its first block
            return self.known
        assert status == 0 and re.match(r"done nulls=\d+ blocks=", done.stdout), said(done)
        if done.stderr and "COMMIT" in self.settings:  # it has said that a commit failed
            return "?"
        return done.stdout.split(" ", 2)[2].strip() if self.kept() else None

    def kept(self):
        return self.scenario.root and "BACKING" not in self.settings

    def look_at_backup(self, done, heap):
        """The backup is the new one, or the one before, or can be made again."""
        backup, quiet = self.backup_of(heap), environment(False)
        if done.returncode != 0 and not self.scenario.backups:
            done = self.plain([tool(BACKUP), heap, backup], quiet)
            assert done.returncode == 0, f"the next round: {said(done)}"
        verified = self.plain([tool(BACKUP), "--verify", backup], quiet)
        assert verified.returncode == 0, f"--verify: {said(verified)}"
        found = self.contents(backup)
        new = done.returncode == 0 and "look" not in self.scenario.name
        assert found and (found == self.known) >= new, f"the backup has {found!r}"

    def look_after(self, heap, expected):
        """After the fault the heap must be a heap, be whole, and hold what it must hold."""
        if (heap / "superblock").exists():
            done = self.plain([tool(RECOVER), "--check", "--json", heap], environment(False))
            assert done.returncode in (0, 1), f"--check: {said(done)}"
        else:
            assert expected is None, "the heap is gone"
        if self.settings.get("BACKING") == "volatile":
            return
        found = self.contents(heap)
        assert expected == "?" or found == expected, f"found {found!r}, not {expected!r}"
        if self.scenario.root:
            done = self.plain([tool(RECOVER), "--check", heap], environment(False))
            assert done.returncode == 0, f"--check at the end: {said(done)}"
