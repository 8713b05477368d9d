# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Every system call of the library and the tools fails in turn, and nothing is lost.

faults.c, preloaded first, numbers the calls that the library (or a tool) makes and fails one. A scenario
is run once to see what it calls; then it is run again and again, each time on a fresh copy of its heap and
with another call failing in another way. Afterwards, without the fault, the heap must open and be whole,
and hold what the program had.

A sample with a fixed seed, each call site at least once, unless FAULTS=all or FAULTS=N (`make faults`). Which site
failed how often is written to build/faults.txt.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import errno
import fcntl
import itertools
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import tempfile

import pytest
from conftest import BUILD, DEFAULT_HEAPS, compiled, environment, fingerprint, said, tool

# Faults over all scenarios, beside one for each call site: FAULTS=all, or a number.
SAMPLE = os.environ.get("FAULTS") or "250"
SEED = 20
SHORT = -1  # faults.c: half of a read or write is done
LIBRARY = "libpmalloc_preload.so"
LIMIT = 60  # seconds that nothing may take

E = errno
ERRORS = {
    "access": [E.EIO],
    "close": [E.EIO, E.EINTR],
    "faccessat": [E.EIO],
    "fallocate": [E.EIO, E.ENOSPC, E.ENOMEM, E.EINTR, E.EOPNOTSUPP],
    "fcntl": [E.EMFILE, E.EINTR],
    "flock": [E.EINTR, E.ENOMEM, E.EIO],
    "fork": [E.EAGAIN, E.ENOMEM],
    "fstat": [E.EIO, E.ENOMEM],
    "fstatat": [E.EIO, E.ENOMEM],
    "fstatfs": [E.EIO, E.ENOMEM, E.EINTR],
    "fstatvfs": [E.EIO, E.ENOMEM, E.EINTR],
    "fdatasync": [E.EIO, E.ENOSPC, E.EINTR],
    "fsync": [E.EIO, E.ENOSPC, E.EINTR],
    "ftruncate": [E.EIO, E.ENOSPC, E.ENOMEM, E.EINTR],
    "getdents64": [E.EIO, E.ENOMEM, E.EINTR],
    "getrandom": [E.EIO, E.EINTR],
    "lseek": [E.EIO],
    "lstat": [E.EIO, E.ENOMEM],
    "madvise": [E.EIO, E.ENOMEM, E.EINTR],
    "mkdir": [E.EIO, E.ENOSPC, E.ENOMEM],
    "mmap": [E.ENOMEM],
    "mmap+file": [E.EIO, E.ENOMEM],
    "mprotect": [E.ENOMEM],
    "mremap": [E.ENOMEM],
    "msync": [E.EIO, E.ENOMEM],
    "munmap": [E.ENOMEM],
    "open": [E.EIO, E.ENOMEM, E.EINTR, E.EMFILE],
    "openat": [E.EIO, E.ENOMEM, E.EINTR, E.EMFILE],
    "openat+creat": [E.EIO, E.ENOSPC, E.ENOMEM, E.EINTR, E.EMFILE],
    "personality": [E.EPERM, E.ENOMEM],
    "pipe2": [E.EMFILE, E.ENOMEM],
    "pread": [E.EIO, E.EINTR, SHORT],
    "process_vm_readv": [E.EPERM],
    "process_vm_writev": [E.EPERM],
    "pthread_create": [E.EAGAIN, E.ENOMEM],
    "pthread_key_create": [E.EAGAIN, E.ENOMEM],
    "pwrite": [E.EIO, E.ENOSPC, E.EINTR, SHORT],
    "read": [E.EIO, E.EINTR, SHORT],
    "readlink": [E.EIO, E.ENOMEM],
    "rename": [E.EIO, E.ENOSPC],
    "renameat": [E.EIO, E.ENOSPC, E.ENOMEM],
    "rmdir": [E.EIO],
    "stat": [E.EIO, E.ENOMEM],
    "statvfs": [E.EIO, E.ENOMEM, E.EINTR],
    "syncfs": [E.EIO, E.ENOSPC],
    "unlinkat": [E.EIO, E.ENOMEM],
    "waitpid": [E.EINTR],
    "write": [E.EIO, E.ENOSPC, E.EINTR, SHORT],
}
KEPT = ["", ", this function's calls from then on", ", all calls from then on"]
LASTING = {"fallocate", "ftruncate", "openat+creat", "pwrite", "write", "mmap"}  # a full disk stays full


@dataclasses.dataclass(frozen=True)
class Scenario:
    """What is run on which heap. `before` makes the heap that every run gets a copy of."""

    name: str
    argv: tuple
    before: tuple = ()  # argument lists of faults_app, the last of which leaves the heap as wanted
    settings: tuple = ()
    objects: str = LIBRARY
    root: str = "state"
    reads: bool = False  # a tool that changes nothing
    held: bool = False  # another process has the heap
    default: bool = False  # no heap is named
    disk: bool = False  # a plain file on a disk: what must be durable is
    strange: bool = False  # the directory holds somebody else's file
    status: int = 0


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
RECOVER, INFO = "pmalloc-recover", "pmalloc-info"
PROGRAM = "faults_app"


def scenarios():
    def of(name, *argv, **more):
        more["settings"] = tuple({"DECAY_MS": 0, "MARKERS": 1, **more.pop("settings", {})}.items())
        return Scenario(name, argv, **more)

    def with_tool(name, *argv, **more):
        return of(name, *argv, objects=argv[0], settings={}, **more)

    return [
        of("new heap", PROGRAM, *RUN),
        of("dirty heap", PROGRAM, *RUN, before=DIRTY, settings={"MARKERS": 3}),
        of("clean heap", PROGRAM, *RUN, before=CLEAN, settings={"COLLECT": "crash", "RESERVE": "strict"}),
        of("pages", PROGRAM, *RUN, before=DIRTY, settings={"PERSIST": "page"}),
        of("new, pages", PROGRAM, "run", "8", settings={"PERSIST": "page", "STATS": 1, "VERBOSE": 1}),
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
        with_tool("recover", RECOVER, "--json", "--threads", "2", before=DIRTY),
        with_tool("recover clean", RECOVER, "--threads", "1", before=CLEAN),
        with_tool("recover --check", RECOVER, "--check", before=DIRTY, reads=True, status=1),
        with_tool("recover --dry-run", RECOVER, "--dry-run", before=CLEAN, reads=True),
        with_tool("drop root", RECOVER, "--drop-root", "nulls", before=CLEAN, root="state,nulls"),
        with_tool("held, recover", RECOVER, before=DIRTY, held=True, status=8),
        with_tool("info", INFO, before=DIRTY, reads=True),
        with_tool("info --json", INFO, "--json", "--map", before=CLEAN, reads=True),
        with_tool("run", "pmalloc-run", before=CLEAN),
    ]


# ---- one run


class Bench:
    """A scenario, its heap before, and what it calls when nothing fails."""

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
        if scenario.strange:
            self.pristine.mkdir()
            (self.pristine / "letter").write_text("dear reader")
        for arguments in scenario.before:
            self.app(self.pristine, *arguments)
        self.held = None
        self.known = self.contents(self.pristine) if scenario.before else None
        if scenario.before and scenario.before[-1] == KILL:  # looking has closed it cleanly
            self.app(self.pristine, "kill", "4")
            self.copy(self.pristine, folder / "look")
            self.known = self.contents(folder / "look")
        self.calls = self.observe()

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
            subprocess.run(["cp", "-a", "--sparse=always", source, target], check=True)

    def contents(self, heap):
        """What the program finds there, without the fault: a line, or None."""
        found = self.app(heap, "check")
        if found.returncode == 3 and found.stdout == "" and found.stderr == "":
            return None
        assert found.returncode == 0 and found.stdout.startswith("done nulls=0"), said(found)
        return found.stdout.split(" ", 2)[2].strip()

    def argv(self, heap):
        name, *arguments = self.scenario.argv
        if self.scenario.default:  # which is named after the program
            return [shutil.copy(self.program, self.folder / heap.name), *arguments]
        if name == PROGRAM:
            return [self.program, *arguments]
        if name == "pmalloc-run":
            return [tool(name), "-H", heap, "-r", "state", "--", self.program, *RUN]
        return [tool(name), *arguments, heap]

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
            heap = DEFAULT_HEAPS / f"faults_{os.getpid()}_{self.folder.name}_{number}"
        try:
            self.copy(self.pristine, heap)
            yield heap, folder / "log"
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            if self.scenario.default:
                shutil.rmtree(heap, ignore_errors=True)
            if self.scenario.disk:
                shutil.rmtree(heap.parent, ignore_errors=True)

    def observe(self):
        """(number, function, site) of each call of a run in which nothing fails."""
        with self.fresh() as (heap, log):
            done = self.run(heap, log)
            assert done.returncode == self.scenario.status, said(done)
            lines = [line.split() for line in log.read_text().splitlines()]
        return sorted({(int(number), function, site) for number, function, site, _ in lines})

    # ---- verdict

    def inject(self, fault):
        """Runs with the fault; (call sites it met, what was wrong or None)."""
        with self.fresh() as (heap, log):
            before = fingerprint(heap) if self.scenario.reads or self.scenario.strange else None
            try:
                done = self.run(heap, log, fault)
                met = [line.split()[1:3] for line in log.read_text().splitlines() if line.split()[3] != "0"]
                expected = self.judge(done, {function for function, _ in met})
                if before and fingerprint(heap) != before:
                    raise AssertionError("the heap was changed by looking")
                if not self.scenario.strange:
                    self.look_after(heap, expected)
            except (AssertionError, subprocess.TimeoutExpired) as failure:
                return [], f"{self.scenario.name}: {fault}: {str(failure).partition(chr(10) + 'assert')[0]}"
            return met, None

    def judge(self, done, failed):
        """Whether this is a way to end; what the heap must hold afterwards ("?": something whole)."""
        status, first = done.returncode, self.scenario.argv[0]
        prefixes = [f"{name}: " for name in ("pmalloc", first) if name != PROGRAM and first not in (RECOVER, INFO)]
        prefixes = tuple(prefixes or [f"{first}: "])
        assert all(line.startswith(prefixes) for line in done.stderr.splitlines()), said(done)
        told = done.stderr or "write" in failed
        if first in (RECOVER, INFO):
            assert status in (self.scenario.status, 8) and (status != 8 or told), said(done)
            return self.known
        if status == 125 or first == "pmalloc-run" and status == 126:
            assert done.stdout == "" and told, said(done)
            return self.known
        if status == -6 and "end apart from its heap" in done.stderr:
            # Not one mapping more was to be had, so that the first half of the parting could not be undone either.
            assert {"mmap", "mremap"} & {function.split("+")[0] for function in failed}, said(done)
            return "?"
        if status == -6:
            assert "msync" in failed and "writing heap metadata back failed" in done.stderr, said(done)
            return "?"
        if status == 4:  # not even the first block
            return self.known
        assert status == 0 and re.match(r"done nulls=\d+ blocks=", done.stdout), said(done)
        return done.stdout.split(" ", 2)[2].strip() if self.kept() else None

    def kept(self):
        return self.scenario.root and "BACKING" not in self.settings

    def look_after(self, heap, expected):
        """The fault is gone: the heap is a heap, whole, and holds what it must."""
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


# ---- all of them


def faults_of(bench):
    """Every fault that makes sense, by call site; of sites called very often a part of the calls."""
    by_site = collections.defaultdict(list)
    for number, function, site in bench.calls:
        by_site[function, site].append(number)
    rng = random.Random(f"{SEED} {bench.scenario.name}")
    for (function, site), numbers in by_site.items():
        most = 12
        if len(numbers) > most:
            numbers = numbers[:5] + numbers[-3:] + sorted(rng.sample(numbers[5:-3], most - 8))
        for number in numbers:
            for error in ERRORS.get(function, [E.EIO]):
                yield Fault(number, function, site, error)
            if function in LASTING:
                yield Fault(number, function, site, E.ENOMEM if function == "mmap" else E.ENOSPC, 1)
            if function == "fallocate":  # a file system that has none
                yield Fault(number, function, site, E.EOPNOTSUPP, 1)
            yield Fault(number, function, site, E.EIO, 2)


def chosen(benches):
    """(bench, fault) pairs: all, or one for each call site and a sample of the others."""
    rng = random.Random(SEED)
    sure, rest = {}, []
    for bench in benches:
        for fault in faults_of(bench):
            key = (bench.scenario.objects, fault.function, fault.site)
            if key not in sure:
                sure[key] = (bench, fault)
            else:
                rest.append((bench, fault))
    if SAMPLE != "all":
        rest = rng.sample(rest, min(int(SAMPLE), len(rest)))
    return [*sure.values(), *rest]


def source_of(objects, sites):
    """Where in the source each site is, as far as addr2line knows."""
    path = BUILD / objects
    done = subprocess.run(["addr2line", "-f", "-s", "-e", path, *sites], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    return {site: f"{lines[2 * i]} ({lines[2 * i + 1]})" for i, site in enumerate(sites) if 2 * i + 1 < len(lines)}


# Imports that make no system call, or none that can fail; futexes, signals and messages of the way out.
HARMLESS = set(
    """
    __cxa_finalize __environ environ __errno_location __gmon_start__ __register_atfork __sched_cpucount _exit abort
    clock_gettime dl_iterate_phdr dladdr dladdr1 dlsym ferror fnmatch fprintf fwrite getauxval geteuid getpid getppid getrlimit
    getsid kill
    memchr memcmp memcpy memmove memset pthread_join pthread_setspecific sched_getaffinity snprintf strchr strchrnul strcmp
    pthread_setcancelstate pthread_setcanceltype
    strerror strerrordesc_np strlen strncasecmp strncmp strnlen strrchr strspn strstr strtol strtoull time vsnprintf
    _ITM_deregisterTMCloneTable _ITM_registerTMCloneTable getcwd strcpy stpcpy strtoul bcmp pthread_self sched_yield
    nanosleep secure_getenv getenv __asan_init __tsan_init
    __cxa_atexit __cxa_at_quick_exit __libc_single_threaded munlockall sigfillset sigprocmask strcspn memmem __x86_get_cpuid_feature_leaf
    """.split()
)


def test_every_import_can_fail():
    """A call that faults.c does not know would never fail."""
    done = subprocess.run(["nm", "-D", "--undefined-only", BUILD / LIBRARY], capture_output=True, text=True, check=True)
    imports = {line.split()[-1].split("@")[0] for line in done.stdout.splitlines()}
    layer = compiled("faults.c", "-D_GNU_SOURCE", "-shared", "-fPIC", name="faults.so")
    done = subprocess.run(["nm", "-D", "--defined-only", layer], capture_output=True, text=True, check=True)
    known = {line.split()[-1].split("@")[0] for line in done.stdout.splitlines()}
    assert not imports - known - HARMLESS, "teach faults.c these, or name them in HARMLESS"


def all_sites(objects, functions):
    """Where the code calls one of the functions, as faults.c names the places."""
    path, slots, sites, call = BUILD / objects, {}, set(), None
    done = subprocess.run(["readelf", "-rW", path], capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        match = re.match(r"([0-9a-f]+) +\S+ +R_X86_64_(?:GLOB_DAT|JUMP_SLO\S*) +\S+ +(\w+)@", line)
        if match:
            slots[int(match[1], 16)] = match[2]
    done = subprocess.run(["objdump", "-d", "--no-show-raw-insn", path], capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        match = re.match(r" *([0-9a-f]+):\t(.*)", line)
        if not match:
            continue
        if call:
            sites.add((call, f"{int(match[1], 16) - 1:x}"))
        target = re.match(r"call +\*.*# ([0-9a-f]+)", match[2])
        call = slots.get(int(target[1], 16)) if target else None
        call = call if call in functions else None
    return sites


def report(benches, met, wrong):
    """Writes what was reached how often; the sum, and what never failed."""
    called, counted = collections.defaultdict(collections.Counter), collections.Counter(met)
    for bench in benches:
        for _, function, site in bench.calls:
            called[bench.scenario.objects][function, site] += 1
    lines = []
    there = all_sites(LIBRARY, {name.split("+")[0] for name in ERRORS})
    reached = {site for _, site in called[LIBRARY]} | {site for objects, _, site in counted if objects == LIBRARY}
    where = source_of(LIBRARY, sorted(site for _, site in there))
    for function, site in sorted(there):
        if site not in reached:
            lines.append(f"{LIBRARY:22} {function:18} {where[site]:58}      not reached")
    for objects, calls in sorted(called.items()):
        where = source_of(objects, sorted({site for _, site in calls}))
        for (function, site), times in sorted(calls.items()):
            failed = counted[objects, function, site]
            lines.append(f"{objects:22} {function:18} {where.get(site, site):58} {times:6} calls {failed:6} failed")
    missing = sum(line.endswith("not reached") for line in lines)
    total = f"{len(lines) - missing} call sites, {sum(counted.values())} calls failed; "
    total += f"of {len(there)} sites in {LIBRARY} {missing} were not reached"
    (BUILD / "faults.txt").write_text("\n".join([*lines, total, *wrong]) + "\n")
    return total, [line for line in lines if line.endswith(" 0 failed")]


@pytest.mark.slow
def test_every_call_fails_in_turn(shm):
    signal.alarm(0)  # each run has a limit of its own
    benches = []
    for number, scenario in enumerate(scenarios()):
        folder = shm / str(number)
        folder.mkdir()
        benches.append(Bench(scenario, folder))
    pairs = chosen(benches)
    met, wrong = [], []
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        for (bench, _), (sites, failure) in zip(pairs, pool.map(lambda pair: pair[0].inject(pair[1]), pairs)):
            met += [(bench.scenario.objects, function, site) for function, site in sites]
            wrong += [failure] if failure else []
    total, missed = report(benches, met, wrong)
    print(f"{len(pairs)} runs; {total}")
    assert not wrong, f"{len(wrong)} of {len(pairs)}:\n" + "\n".join(wrong[:40])
    assert not missed, "call sites that never failed:\n" + "\n".join(missed)
