# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Debian's programs. Each one does the same work twice: plain, and with the preload on itself and
all its descendants.

Output, status and the files it makes must be equal. The start line must have said that PMAlloc
served the program's memory. So a test fails when it runs without the preload by mistake."""

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import pathlib
import re
import signal
import socket
import stat
import subprocess
import time

import pytest

from conftest import API, DEFAULT_HEAPS, ROOT, busy, environment, lacks, run, said

UNPACKED = ROOT / "build-programs"  # made by scripts/bootstrap --test
PLACES = (pathlib.Path("/"), UNPACKED)
START_LINE = re.compile(
    r"pmalloc: (?:heap (\S+) \(.*|volatile memory: nothing is kept.*)$\n?", re.MULTILINE
)
PATIENCE = 60  # seconds that a server may take to be ready, and to end
# The same for both runs, and nothing of the user's: no start-up files, no colours, no locale.
FIXED = {"LC_ALL": "C.UTF-8", "TZ": "UTC", "TERM": "dumb", "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}


def program(*names):
    """Debian's binary of one of the names. Another one may come earlier on PATH; it is not used."""
    for name in names:
        for place in PLACES:
            for folder in ("usr/bin", "bin", "usr/sbin"):
                path = place / folder / name
                if path.exists():
                    return path
    return lacks(" or ".join(names))


def postgres_folder():
    for place in PLACES:
        for path in sorted(place.glob("usr/lib/postgresql/*/bin"), reverse=True):
            if (path / "postgres").exists():
                return path
    return lacks("postgres")


def surroundings(preload, home, **settings):
    """The environment of a run. Capitals name PMALLOC_ settings, other names are variables."""
    variables = settings.pop("variables", {})
    # Without PMALLOC_HEAP a program would run on volatile memory.
    library = API if preload is True and "HEAP" not in settings else preload
    env = environment(library, **({} if preload is False else settings))
    for name in [
        n for n in env if n.startswith(("GIT_", "LC_", "PYTHON", "NODE_", "JAVA", "JDK_"))
    ]:
        del env[name]
    return env | FIXED | {"HOME": str(home)} | variables


def contents(folder):
    """Names, kinds, modes and digests of everything below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        value = ""
        if stat.S_ISREG(mode):
            value = hashlib.sha256(path.read_bytes()).hexdigest()
        elif stat.S_ISLNK(mode):
            value = os.readlink(path)
        found[str(path.relative_to(folder))] = (stat.filemode(mode), value)
    return found


def without_start_lines(text):
    """The text without start lines, and the names of the heaps that those lines tell."""
    heaps = [pathlib.Path(m[1]).name if m[1] else "volatile" for m in START_LINE.finditer(text)]
    return START_LINE.sub("", text), heaps


@dataclasses.dataclass
class Result:
    status: int
    out: str
    err: str
    files: dict
    heaps: list = dataclasses.field(default_factory=list)


def once(folder, argv, preload, prepare=None, stdin=None, timeout=120, **settings):
    """Runs argv once in a fresh folder of a fixed name, and leaves the folder as `plain` or `ours`
    beside it.

    With `preload` None it runs in that folder as it is, with the settings and variables given."""
    work = folder / "work"
    if preload is not None:
        work.mkdir()
    if prepare:
        prepare(work)
    done = subprocess.run(
        [str(a) for a in argv],
        env=surroundings(preload, work, **settings),
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        cwd=work,
        capture_output=True,
        text=True,
        errors="backslashreplace",
        timeout=timeout * busy(),
        check=False,
    )
    files = contents(work)
    if preload is not None:
        work.rename(folder / ("ours" if preload else "plain"))
    err, heaps = without_start_lines(done.stderr)
    return Result(done.returncode, done.stdout, err, files, heaps)


def runs_on_our_heap(name, argv):
    """Asserts the start line of a short run. It is for programs whose parents read their standard
    error."""
    done = run(argv, API, VERBOSE=1)
    assert name in without_start_lines(done.stderr)[1], said(done)


def same(
    folder,
    argv,
    on=None,
    status=0,
    meaning=lambda text: text,
    ignore=None,
    compare_err=True,
    quiet=False,
    **how,
):
    """Runs argv without and with the preload, and compares.

    on        the heap that must have been used; else the program's default heap
    meaning   takes from the output what must be equal
    ignore    a pattern of files that differ by nature
    quiet     for programs that must not find start lines, see runs_on_our_heap()"""
    plain = once(folder, argv, False, **how)
    ours = once(folder, argv, True, **({} if quiet else {"VERBOSE": 1}), **how)
    shown = f"{argv}\n--- plain: {plain.status}\n{plain.out[-2000:]}{plain.err[-3000:]}"
    shown += f"\n--- preloaded: {ours.status}\n{ours.out[-2000:]}{ours.err[-3000:]}"
    assert plain.status == status, shown
    assert ours.status == plain.status, shown
    assert meaning(ours.out) == meaning(plain.out), shown
    if compare_err:
        assert meaning(ours.err) == meaning(plain.err), shown
    for files in (plain.files, ours.files):
        for name in [n for n in files if ignore and re.search(ignore, n)]:
            del files[name]
    assert ours.files == plain.files, shown
    if quiet:
        return ours
    SEEN.update(re.sub(r"\.\d+$", "", heap) for heap in ours.heaps)
    name = on or pathlib.Path(argv[0]).resolve().name
    # NAME.2 and so on, while NAME is busy.
    assert any(re.fullmatch(re.escape(name) + r"(\.\d+)?", heap) for heap in ours.heaps), (
        ours.heaps,
        shown,
    )
    return ours


def bash(folder, script, **how):
    return same(folder, [program("bash"), "-c", script], **how)


# ---- servers -------------------------------------------------------------------------------------


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(ready, what, process=None, log=None, patience=PATIENCE):
    """Asks again and again. Fails with the log when the process ends first, or after `patience`."""
    patience *= busy()
    end = time.monotonic() + patience
    while True:
        with contextlib.suppress(OSError):
            if ready():
                return
        text = log.read_text(errors="replace")[-4000:] if log and log.exists() else ""
        assert (
            process is None or process.poll() is None
        ), f"{what}: ended, {process.returncode}\n{text}"
        assert time.monotonic() < end, f"{what}: not within {patience} s\n{text}"
        time.sleep(0.02)


def answers(port):
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        return True


def on_our_heap(pid, heap=None):
    """Whether a running process has one of our heaps mapped, `heap` if given, else one without a
    name. The copy of a forked child is private memory, so it does not count."""
    text = pathlib.Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    wanted = rf"{re.escape(str(heap))}/heap\." if heap else r"rw-s .* /dev/shm/#\d+ \(deleted\)"
    return any(re.search(wanted, line) for line in text.splitlines())


def has_our_copy(pid):
    """Whether a forked child has private memory at the heap's addresses."""
    text = pathlib.Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    return any(line.startswith("4000") and " rw-p " in line for line in text.splitlines())


def children(pid):
    return [int(n) for n in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Server:
    """A process with a log, in a session of its own. All of the session ends, whatever happens to
    the test."""

    def __init__(self, name, argv, folder, env, user=None):
        self.name = name
        self.log = folder / f"{name}.log"
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [str(a) for a in argv],
                env=env,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=user,
                group=user,
                extra_groups=None if user is None else (),
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def text(self):
        return self.log.read_text(errors="replace")

    def wait_until(self, ready):
        wait_until(ready, self.name, self.process, self.log)

    def ends(self, status=0):
        try:
            self.process.wait(PATIENCE * busy())
        except subprocess.TimeoutExpired:
            pytest.fail(f"{self.name} has not ended\n{self.text()}")
        assert (
            self.process.returncode == status
        ), f"{self.name}: {self.process.returncode}\n{self.text()}"


# ---- default heaps -------------------------------------------------------------------------------


def is_dead(heap):
    """Whether no process has the heap open."""
    try:
        fd = os.open(heap, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return heap.exists()
    except OSError:
        return False
    finally:
        os.close(fd)


def dead_heaps():
    heaps = list(DEFAULT_HEAPS.iterdir()) if DEFAULT_HEAPS.is_dir() else []
    return {heap for heap in heaps if is_dead(heap)}


SEEN = set()  # names of the heaps that programs said they use


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left():
    """Programs that are killed, or that execute others, may leave heaps that had to have a name.
    Later starts remove them."""
    yield

    def left():
        return {heap.name for heap in dead_heaps() if re.sub(r"\.\d+$", "", heap.name) in SEEN}

    for _ in range(3000):
        if not left():
            return
        run([program("true")], preload=API, FORK="copy")  # its heap has a name: it tidies up
    pytest.fail(f"programs left default heaps: {sorted(left())}")
