# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What all tests of whole processes share: the build, a heap of one's own, a clean environment.

Every heap lies below a fresh directory in /dev/shm. That directory is removed when the test ends,
whatever happened to it. The environment holds none of the caller's PMALLOC_ settings and
preloads."""

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import json
import math
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests" / "fuzz"))
import heap_layout  # noqa: E402

BUILD = pathlib.Path(os.environ.get("BUILD") or ROOT / "build").resolve()
CC = os.environ.get("CC") or "gcc"
SHM = pathlib.Path("/dev/shm")
DEFAULT_HEAPS = SHM / f"pmalloc-{os.geteuid()}"
API = "libpmalloc.so"
# Both are seconds of a machine that does nothing else; see busy().
TIMEOUT = 100  # that a process may take
DEADLINE = int(os.environ.get("TEST_SECONDS", "200"))  # a test; long proofs (LIVE_KILLS=300) more


def pytest_configure(config):
    config.addinivalue_line("markers", "check: part of make check")


def environment(preload=True, **settings):
    """The caller's environment without preloads and settings, plus `settings`. HEAP stands for
    PMALLOC_HEAP. `preload` may name the library: API has a default heap, because a program that is
    linked with it may set a root. Most tests throw their heap away, so nothing is said of that."""
    env = {
        k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith("PMALLOC_")
    }
    if preload:
        library = "libpmalloc_preload.so" if preload is True else preload
        env["LD_PRELOAD"] = str(BUILD / library)
    if preload or "HEAP" in settings:
        env["PMALLOC_ROOTLESS"] = "quiet"
    for name, value in settings.items():
        if value is not None:
            env["PMALLOC_" + name if name.isupper() else name] = str(value)
    return env


def busy():
    """How many times as long as alone all takes on this machine, by its load."""
    return max(1, min(10, os.getloadavg()[0] / len(os.sched_getaffinity(0))))


def run(argv, preload=True, timeout=TIMEOUT, stdin=None, cwd=None, **settings):
    """Runs a program to its end. Its output is text."""
    return subprocess.run(
        [str(a) for a in argv],
        env=environment(preload, **settings),
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        cwd=cwd,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout * busy(),
        check=False,
    )


def start(argv, preload=True, **settings):
    """Starts a program with pipes. The caller ends it."""
    return subprocess.Popen(
        [str(a) for a in argv],
        env=environment(preload, **settings),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said(done):
    """Everything that is known of a finished run, for the message of an assertion."""
    return f"{done.args}: status {done.returncode}\n{done.stdout}\n{done.stderr}"


def succeeds(done):
    assert done.returncode == 0, said(done)
    return done.stdout


def refuses(done, *parts):
    """The program ended with status 125 and one line of the library, which has all of `parts`.
    Returns that line."""
    assert done.returncode == 125, said(done)
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("pmalloc: "), said(done)
    for part in parts:
        assert part in lines[0], f"{part!r} is not in: {lines[0]}"
    assert done.stdout == "", said(done)
    return lines[0]


def one_message(done, *parts):
    """The library printed one line, which has all of `parts`. The status may be any."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("pmalloc: ")]
    assert len(lines) == 1, said(done)
    for part in parts:
        assert part in lines[0], f"{part!r} is not in: {lines[0]}"


def lacks(what):
    """Skips the test: a program is missing, which this release may not have (scripts/bootstrap says
    so). Where CI is set all must be there, so that no test is lost unseen."""
    how = pytest.fail if os.environ.get("CI") else pytest.skip
    return how(f"{what} is missing: run scripts/bootstrap --test")


def needs(name):
    """The path of a program that scripts/bootstrap --test installs."""
    return shutil.which(name) or lacks(name)


def app(name):
    path = BUILD / "apps" / name
    assert path.exists(), f"{path} is missing: run make"
    return path


def tool(name):
    path = BUILD / name
    assert path.exists(), f"{path} is missing: run make"
    return path


def recover(heap, *arguments, preload=False, **settings):
    return run([tool("pmalloc-recover"), *arguments, heap], preload, **settings)


def recovered(heap):
    """Recovers a heap offline and returns the tool's figures."""
    done = recover(heap, "--json")
    assert done.returncode == 0, said(done)
    return json.loads(done.stdout)


def fingerprint(directory):
    """A digest of names, modes and contents of everything below a directory. Holes count as
    zeroes."""
    digest = hashlib.sha256()
    for path in sorted(pathlib.Path(directory).rglob("*")):
        info = path.lstat()
        digest.update(f"{path.relative_to(directory)} {info.st_mode} {info.st_size} ".encode())
        if path.is_file() and not path.is_symlink():
            for at, block in blocks_of(path):
                digest.update(b"%d" % at)
                digest.update(block)
    return digest.hexdigest()


def blocks_of(path):
    """The place and the bytes of each block of a file that is not all zeroes. Most of a heap's
    files is holes."""
    size = 1 << 16
    zeroes, at = bytes(size), 0
    with open(path, "rb", buffering=0) as file:
        while (at := next_data(file, at)) is not None:
            at -= at % size
            block = os.pread(file.fileno(), size, at)
            if block and block != zeroes[: len(block)]:
                yield at, block
            at += size


def next_data(file, at):
    try:
        return file.seek(at, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return None


def forget_origin(heap):
    """What a test has copied of a killed heap, at rest, is a heap like any other. (test_copies.py
    says what happens else.)"""
    superblock = pathlib.Path(heap) / "superblock"
    if not superblock.exists():
        return  # what an interruption has left
    with open(superblock, "r+b") as file:
        data = bytearray(file.read())
        heap_layout.forget_origin(data)
        file.seek(0)
        file.write(data)


def copy_heap(source, target):
    """Copies a heap that nobody uses, in whatever state it is."""
    subprocess.run(["cp", "-a", "--sparse=always", source, target], check=True)
    forget_origin(target)
    return target


def on_media(heap):
    """How many bytes the heap takes on the file system."""
    return sum(path.stat().st_blocks * 512 for path in pathlib.Path(heap).iterdir())


@dataclasses.dataclass
class Workload:
    """A structure of tests/apps on a heap of its own."""

    name: str
    heap: pathlib.Path
    root: str

    def argv(self, *arguments):
        return [app(self.name), *arguments]

    def run(self, *arguments, **settings):
        settings.setdefault("ROOTS", self.root)
        return run(self.argv(*arguments), HEAP=self.heap, **settings)

    def start(self, *arguments, **settings):
        settings.setdefault("ROOTS", self.root)
        return start(self.argv(*arguments), HEAP=self.heap, **settings)

    def check(self, *arguments, **settings):
        """Runs the program's own check, or another mode, and returns its figures."""
        done = self.run(*(arguments or ("check",)), **settings)
        assert done.returncode == 0 and done.stderr == "", said(done)
        return figures(done.stdout)


def figures(text):
    """The numbers of the last line, "ok keys=1 ..."."""
    words = text.splitlines()[-1].split()
    assert words[0] == "ok", text
    pairs = dict(word.split("=") for word in words[1:])
    return {k: v if k == "digest" else int(v) for k, v in pairs.items()}


ROOTS = {
    "list": "list_state",
    "skiplist": "skip_state",
    "hashset": "hash_state",
    "tree": "tree_state",
    "kvshell": "store",
}


@pytest.fixture
def shm():
    """A directory in shared memory that is removed afterwards."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="pmalloc-test-", dir=SHM))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def heap(shm):
    """The name of a heap that does not exist yet."""
    return shm / "heap"


@pytest.fixture(params=("tmpfs", "file"))
def place(request, shm):
    """A heap on shared memory, and one of plain files."""
    if request.param == "tmpfs":
        yield shm / "heap"
        return
    folder = pathlib.Path(tempfile.mkdtemp(prefix="pmalloc-test-", dir=BUILD))
    yield folder / "heap"
    shutil.rmtree(folder)


@pytest.fixture
def workload(shm):
    def make(name):
        return Workload(name, shm / name, ROOTS[name])

    return make


@pytest.fixture
def rng(request):
    """Random numbers. The report of a failure has the seed; PMALLOC_SEED sets it."""
    seed = int(os.environ.get("PMALLOC_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"PMALLOC_SEED={seed}")
    return random.Random(f"{seed} {request.node.name}")


@pytest.fixture
def processes():
    """Collects started processes, and kills those that still run at the end."""
    started = []
    yield started
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe:
                pipe.close()


@contextlib.contextmanager
def tmpfs(where, pages):
    """A file system of so many pages, at a directory."""
    where.mkdir(mode=0o700, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={pages * 4096},mode=700", "tmpfs", where]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting a tmpfs needs root: {done.stderr.strip()}")
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", where], check=True)


def room(where):
    """How many bytes a file system has left."""
    info = os.statvfs(where)
    return info.f_bavail * info.f_frsize


# A compiler may take out a call of malloc whose block nobody reads, as in free(malloc(1)) or in
# malloc(1) == NULL, which gcc 16 takes for false. Programs that test malloc mean each of them.
MEANS_CALLS = [
    f"-fno-builtin-{name}"
    for name in ("malloc", "calloc", "realloc", "aligned_alloc", "posix_memalign", "free")
]


def compiled(source, *flags, name=None, compiler=None, libraries=()):
    """Compiles a program or library from sources in tests/integration, unless it is up to date.

    `source` is one file, or several; the first one gives the name."""
    sources = [
        HERE / one for one in ([source] if isinstance(source, (str, pathlib.Path)) else source)
    ]
    newest = max(
        path.stat().st_mtime
        for path in [
            *sources,
            *HERE.glob("*.h"),
            *sources[0].parent.glob("*.h"),
            *ROOT.glob("preload/pmalloc.h*"),
        ]
    )
    folder = BUILD / "integration"
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / (name or sources[0].stem)
    command = [compiler or CC, "-O1", "-g", "-Wall", "-Wextra", "-Werror"]
    command += [*MEANS_CALLS, *flags]
    command += ["-o", str(out), *map(str, sources), *libraries, "-lpthread", "-ldl"]
    stamp = out.with_name(out.name + ".cmd")
    text = " ".join(map(str, command))
    with open(out.with_name(out.name + ".lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # scripts/run-tests runs several of this process
        fresh = (
            out.exists()
            and stamp.exists()
            and stamp.read_text() == text
            and out.stat().st_mtime > newest
        )
        if not fresh:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{text}\n{done.stderr}"
            stamp.write_text(text)
    return out


def linked(source, *flags, **options):
    """The same of a program that is linked with libpmalloc."""
    libraries = [f"-L{BUILD}", f"-Wl,-rpath,{BUILD}", "-lpmalloc"]
    return compiled(source, f"-I{ROOT}", *flags, libraries=libraries, **options)


def counted(line):
    """Blocks and changes that structure.c and pinned.c count in a line of their own."""
    words = line.split()
    assert words[0] == "ok", line
    return int(words[1]), int(words[3])


FORKS = [f"forks{part}.c" for part in ("", "_copying", "_refused", "_clone", "_daemons")]


@pytest.fixture(scope="session")
def forks():
    """The program of forks*.c."""
    return compiled(FORKS)


def data_files(heap):
    """How many of heap.0, heap.1, ... lie in a directory."""
    return sum(re.fullmatch(r"heap\.\d+", path.name) is not None for path in heap.iterdir())


@pytest.fixture(autouse=True)
def deadline():
    """A test that hangs fails. The test's fixtures end the process that it waits for."""
    begun, left = time.monotonic(), DEADLINE

    def late(*_):
        nonlocal begun, left
        now = time.monotonic()
        left -= (now - begun) / busy()
        begun = now
        if left < 1:
            pytest.fail(f"the test has not ended after {DEADLINE} s")
        signal.alarm(math.ceil(left))

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(DEADLINE)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def default_heaps():
    """The default heaps of the programs that are built here."""
    folders = [BUILD / "integration", BUILD / "apps"]
    programs = {path.name for folder in folders if folder.is_dir() for path in folder.iterdir()}
    heaps = DEFAULT_HEAPS.iterdir() if DEFAULT_HEAPS.is_dir() else ()
    return {heap for heap in heaps if heap.name.split(".")[0] in programs}


def remove_unless_busy(heap):
    with contextlib.suppress(OSError):
        folder = os.open(heap, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(heap)
        finally:
            os.close(folder)


@pytest.fixture(scope="session", autouse=True)
def no_default_heaps_left():
    """The suite leaves no default heap that was not there before."""
    before = default_heaps()
    yield
    left = default_heaps() - before
    for heap in left:
        remove_unless_busy(heap)
    assert not left, f"the suite left default heaps: {sorted(map(str, left))}"
