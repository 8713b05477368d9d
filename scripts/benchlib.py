# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What the benchmark drivers share: finding the build and the allocators, running programs under
several of them in turn, medians, tables. Standard library only.

A variant is an allocator under a name: a library for LD_PRELOAD, or none for libc's own malloc, and
settings. Variants are interleaved and each round starts with another one, so that a machine that gets
slower or faster meanwhile does so for all of them.
"""

import argparse
import collections
import datetime
import glob
import json
import math
import mmap
import os
import pathlib
import platform
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]

# An adapter is a shared object that only the programs of tests/bench know how to use.
Variant = collections.namedtuple("Variant", "name preload settings adapter", defaults=({}, None))
# peak: most memory, of the process and its heap's files; anon: most anonymous memory; in bytes.
Result = collections.namedtuple(
    "Result", "seconds user system faults peak anon status stdout stderr"
)

# Settings of this allocator and of those it is compared with.
FOREIGN_SETTINGS = ("PMALLOC_", "MALLOC_", "MIMALLOC_", "TCMALLOC_", "GLIBC_TUNABLES", "BENCH_")

LIBC = "glibc"
OURS = "pmalloc"
VOLATILE = "volatile"  # ours over anonymous memory
PERSISTENT = (OURS, VOLATILE)
# Debian's, by what their libraries are called.
DEBIAN = {
    "jemalloc": "libjemalloc.so.?",
    "mimalloc": "libmimalloc.so.*",
    "tcmalloc": "libtcmalloc_minimal.so.?",
}
PMEMOBJ = "pmemobj"


class Failure(Exception):
    """Something the caller has to put right; its text is for people."""


# ---- The build and the machine.


def build_dir():
    """Where make puts things; BUILD names another place, as for make."""
    return pathlib.Path(os.environ.get("BUILD", ROOT / "build")).resolve()


def built(name):
    """The path of something make builds; a Failure that says so if it is not there."""
    path = build_dir() / name
    if not path.exists():
        raise Failure(f"{path} is missing: run make (BUILD names another build directory)")
    return path


def _field(path, key):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith(key):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return None


def _first_line(path):
    try:
        return pathlib.Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _output(*argv):
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def version(variant):
    """Of an allocator: Debian's package, the commit, or the file."""
    if variant.name == LIBC:
        return " ".join(platform.libc_ver())
    path = os.path.realpath(variant.adapter or variant.preload)
    if variant.name in PERSISTENT:
        commit = _output("git", "-C", str(ROOT), "describe", "--always", "--dirty")
        return f"commit {commit}" if commit else path
    if variant.name == PMEMOBJ:
        path = "libpmemobj.so.1"
    owner = _output("dpkg-query", "-S", path).partition(":")[0]
    known = owner and _output("dpkg-query", "-W", "-f", "${Package} ${Version}", owner)
    return known or path


def machine():
    """What a figure depends on, beside the code."""
    memory = _field("/proc/meminfo", "MemTotal")
    shm = _output("findmnt", "-n", "-o", "FSTYPE,SIZE", "-T", "/dev/shm").splitlines()
    return {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gb": round(int(memory.split()[0]) / 1e6, 1) if memory else None,
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "dev_shm": " ".join(shm[-1].split()) if shm else None,
        "shmem_huge": _first_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        "anon_huge": _first_line("/sys/kernel/mm/transparent_hugepage/enabled"),
        "load": round(os.getloadavg()[0], 2),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def machine_line():
    m = machine()
    return (
        f"{m['cpu']}, {m['cpus']} CPUs, {m['memory_gb']} GB, Linux {m['kernel']}, {m['libc']}, "
        f"/dev/shm {m['dev_shm']}, load {m['load']}, {m['date']}"
    )


# ---- Variants.


def named_path(text):
    """argparse type of NAME=PATH."""
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=PATH")
    if name in (LIBC, *PERSISTENT, PMEMOBJ, *DEBIAN):
        raise argparse.ArgumentTypeError(f"the name {name!r} is taken")
    if not os.path.isfile(path):
        raise argparse.ArgumentTypeError(f"there is no file {path}")
    return name, os.path.abspath(path)


def setting(text):
    """argparse type of --set NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def positive(text):
    """argparse type of a count."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def size(text):
    """argparse type of a number of bytes, with K, M or G."""
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if not number.isdecimal() or unit not in ("", "K", "M", "G"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 500M or 2G")
    return int(number) << {"": 0, "K": 10, "M": 20, "G": 30}[unit]


def add_variant_options(parser, adapters=False):
    known = [OURS, VOLATILE, LIBC, *DEBIAN] + ([PMEMOBJ] if adapters else [])
    parser.add_argument(
        "--allocators",
        metavar="A,B,...",
        help=f"of {', '.join(known)} (default: {OURS}, {LIBC}, and what is installed of Debian's)",
    )
    parser.add_argument(
        "--lib",
        action="append",
        type=named_path,
        default=[],
        metavar="NAME=PATH",
        help="compare with this preload library too; may be repeated",
    )
    if adapters:
        parser.add_argument(
            "--adapter",
            action="append",
            type=named_path,
            default=[],
            metavar="NAME=PATH",
            help="and with this adapter (tests/bench/README.md), which only the programs there can use",
        )
    parser.add_argument(
        "--set",
        action="append",
        type=setting,
        default=[],
        metavar="NAME=VALUE",
        dest="settings",
        help="a setting for the pmalloc runs only (default: none set)",
    )


def debian_library(name):
    """Where Debian's library of that name is, or None."""
    found = sorted(glob.glob(f"/usr/lib/*/{DEBIAN[name]}"))
    return found[0] if found else None


def variant(name, settings=()):
    """The allocator of that name; a Failure that says what to do when it is not there."""
    if name == LIBC:
        return Variant(LIBC, None)
    if name in PERSISTENT:
        backing = {"PMALLOC_BACKING": "volatile"} if name == VOLATILE else {}
        return Variant(name, str(built("libpmalloc_preload.so")), {**backing, **dict(settings)})
    if name == PMEMOBJ:
        adapter = build_dir() / "bench/adapters/pmemobj.so"
        if not adapter.exists():
            raise Failure(f"{adapter} is missing: run scripts/bootstrap --bench, then make")
        return Variant(name, None, {"PMEM_IS_PMEM_FORCE": "1"}, str(adapter))
    if name not in DEBIAN:
        known = " ".join([OURS, VOLATILE, LIBC, *DEBIAN, PMEMOBJ])
        raise Failure(f"{name!r} is no allocator known here: {known}; for others: --lib NAME=PATH")
    library = debian_library(name)
    if not library:
        raise Failure(f"there is no /usr/lib/*/{DEBIAN[name]}: run scripts/bootstrap --bench")
    return Variant(name, library)


def variants(options):
    """Those chosen, in the order given; then --lib and --adapter."""
    if options.allocators:
        names = options.allocators.split(",")
    else:
        names = [OURS, LIBC] + [name for name in DEBIAN if debian_library(name)]
    chosen = [variant(name, options.settings) for name in names]
    chosen += [Variant(name, path) for name, path in options.lib]
    chosen += [Variant(name, None, {}, path) for name, path in getattr(options, "adapter", [])]
    names = [v.name for v in chosen]
    if len(set(names)) < len(names):
        raise Failure("two allocators have the same name")
    return chosen


def environment(variant, folder=None):
    """The caller's environment less what could colour a run, plus the variant. What is persistent lies in
    `folder`; without one, where the allocator puts it by itself."""
    env = {
        name: value
        for name, value in os.environ.items()
        if name != "LD_PRELOAD" and not name.startswith(FOREIGN_SETTINGS)
    }
    if variant.preload:
        env["LD_PRELOAD"] = variant.preload
    if variant.adapter:
        env["BENCH_ALLOCATOR"] = variant.adapter
    if folder and variant.name == OURS:
        env["PMALLOC_HEAP"] = os.path.join(folder, "heap")
    if folder and variant.adapter:
        env["BENCH_POOL"] = os.path.join(folder, "pool")
    env.update(variant.settings)
    return env


# ---- Running.


class Watch(threading.Thread):
    """Looks at a process every few milliseconds until told to stop: its memory, and that of the files in
    its heap's folder, a block of which is memory even where no page of it is mapped. Ends it after too long."""

    def __init__(self, process, folder, timeout):
        super().__init__(daemon=True)
        self.process, self.folder = process, folder
        self.deadline = time.monotonic() + timeout
        self.peak, self.anon, self.ended = 0, 0, threading.Event()

    def run(self):
        pause = 0.001
        while not self.ended.wait(pause):
            self.look()
            pause = min(1.2 * pause, 0.01)
            if time.monotonic() >= self.deadline:
                self.process.kill()

    def look(self):
        try:
            with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as file:
                lines = dict(line.split(":", 1) for line in file if line.startswith(("Rss", "VmHWM")))
        except OSError:
            return
        size = {name: int(text.split()[0]) * 1024 for name, text in lines.items()}
        if size:
            shared = max(size["RssShmem"], file_blocks(self.folder) if self.folder else 0)
            self.anon = max(self.anon, size["RssAnon"])
            self.peak = max(self.peak, size["VmHWM"], size["RssAnon"] + size["RssFile"] + shared)

    def stop(self):
        self.ended.set()
        self.join()


def file_blocks(folder):
    """Bytes that the files below a folder take."""
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(base, name)).st_blocks * 512
            except OSError:
                pass
    return total


MADV_POPULATE_WRITE = 23  # Linux 5.14; Python has no name for it


def warm(size):
    """Touches `size` bytes of memory and gives them back, so that the run that follows finds pages which a
    hypervisor has already provided. In a process of its own: what it held would pass for the run's peak."""
    if not size:
        return
    available = _field("/proc/meminfo", "MemAvailable")
    available = int(available.split()[0]) * 1024 if available else size
    if size > available:
        raise Failure(f"cannot touch {size >> 20} MB, only {available >> 20} MB are available")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            area = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            try:
                area.madvise(MADV_POPULATE_WRITE)
            except OSError:
                for offset in range(0, size, mmap.PAGESIZE):
                    area[offset] = 1
            status = 0
        finally:
            os._exit(status)
    try:
        _, status = os.waitpid(child, 0)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    if status:
        raise Failure(f"could not touch {size >> 20} MB")


def run(argv, env=None, stdin=None, cwd=None, timeout=600, folder=None):
    """Runs a program to its end and measures it. status is negative for a signal, as in subprocess."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, open(
        stdin or os.devnull, "rb"
    ) as source:
        start = time.perf_counter()
        try:
            process = subprocess.Popen(argv, env=env, stdin=source, stdout=out, stderr=err, cwd=cwd)
        except OSError as error:
            raise Failure(f"cannot run {argv[0]}: {error.strerror}") from error
        watch = Watch(process, folder, timeout)
        watch.start()
        try:
            # The process is reaped only after the watch ended, so its number stays its own.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            seconds = time.perf_counter() - start
        except BaseException:
            process.kill()
            raise
        finally:
            watch.stop()
            _, raw, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(raw)
        # wait4 knows the exact peak of resident memory, but it starts at this interpreter's.
        exact = usage.ru_maxrss > resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        out.seek(0)
        err.seek(0)
        return Result(
            seconds,
            usage.ru_utime,
            usage.ru_stime,
            usage.ru_minflt,
            max(watch.peak, usage.ru_maxrss * 1024 if exact else 0),
            watch.anon,
            process.returncode,
            out.read().decode(errors="replace"),
            err.read().decode(errors="replace"),
        )


def status_text(result, timeout=None):
    """How a process ended and the first line it complained with."""
    how = f"signal {-result.status}" if result.status < 0 else f"exit status {result.status}"
    if timeout and result.seconds >= timeout:
        how += f" after {timeout} s"
    complaint = next((line for line in result.stderr.splitlines() if line.strip()), "")
    return f"{how}: {complaint}" if complaint else how


def interleaved(items, rounds):
    """Yields (round, item), each round over all items, each starting one item later."""
    items = list(items)
    for number in range(rounds):
        shift = number % len(items) if items else 0
        for item in items[shift:] + items[:shift]:
            yield number, item


# ---- Figures.


def median(values):
    return statistics.median(values)


def spread(values):
    """(largest - smallest) / median, 0 for a single value."""
    middle = median(values)
    return (max(values) - min(values)) / middle if middle else 0.0


def summary(values):
    return {
        "median": median(values),
        "min": min(values),
        "max": max(values),
        "spread": spread(values),
        "values": list(values),
    }


def geometric_mean(values):
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values)) if values else float("nan")


# ---- Output.


def table(header, rows):
    """Text columns; one whose cells start with a number, or are empty or "-", is aligned right."""
    rows = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(header)] + rows) for i in range(len(header))]

    def numeric(i):
        cells = [row[i] for row in rows if row[i] not in ("", "-")]
        return bool(cells) and all(_is_number(cell.split()[0].rstrip("%x")) for cell in cells)

    right = [numeric(i) for i in range(len(header))]
    lines = [list(header), ["-" * width for width in widths]] + rows
    return "\n".join(
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right)
        ).rstrip()
        for line in lines
    )


def _is_number(text):
    try:
        float(text)
        return True
    except ValueError:
        return False


class Progress:
    """One line on standard error that overwrites itself; nothing unless that is a terminal."""

    def __init__(self, total):
        self.total, self.done = total, 0
        self.shown = sys.stderr.isatty()

    def step(self, text):
        self.done += 1
        if self.shown:
            width = shutil.get_terminal_size().columns - 1
            line = f"[{self.done}/{self.total}] {text}"[:width]
            sys.stderr.write("\r" + line.ljust(width))
            sys.stderr.flush()

    def end(self):
        if self.shown:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write("\r" + " " * width + "\r")
            sys.stderr.flush()


def add_json_option(parser):
    parser.add_argument("--json", metavar="FILE", help="write every figure to FILE as well")


def write_json(path, data):
    if not path:
        return
    try:
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"machine": machine(), **data}, file, indent=2)
            file.write("\n")
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror}") from error


def main(function):
    """Exit status: what function returns (0 or 1: something came out wrong), 2 on a Failure."""
    name = os.path.basename(sys.argv[0])
    # As for Ctrl-C: programs are ended and heaps removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        sys.exit(function())
    except Failure as failure:
        print(f"{name}: {failure}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
