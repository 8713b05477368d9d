# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What the benchmark drivers share: finding the build, running programs under several allocators in
turn, medians, tables. Standard library only.

A variant is a (name, preload) pair: what LD_PRELOAD holds, or None for libc's own malloc. Variants
are interleaved and each round starts with another one, so that a machine that gets slower or faster
meanwhile does so for all of them.
"""

import argparse
import collections
import datetime
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]

Variant = collections.namedtuple("Variant", "name preload settings", defaults=({},))
Result = collections.namedtuple("Result", "seconds user system rss status stdout stderr")

# Settings of this allocator and of those it is compared with.
FOREIGN_SETTINGS = ("PMALLOC_", "MALLOC_", "MIMALLOC_", "TCMALLOC_", "GLIBC_TUNABLES")

LIBC = "glibc"
OURS = "pmalloc"


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


def machine():
    """What a figure depends on, beside the code."""
    memory = _field("/proc/meminfo", "MemTotal")
    return {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gb": round(int(memory.split()[0]) / 1e6, 1) if memory else None,
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "shmem_huge": _first_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        "anon_huge": _first_line("/sys/kernel/mm/transparent_hugepage/enabled"),
        "load": round(os.getloadavg()[0], 2),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def machine_line():
    m = machine()
    return (
        f"{m['cpu']}, {m['cpus']} CPUs, {m['memory_gb']} GB, Linux {m['kernel']}, {m['libc']}, "
        f"load {m['load']}, {m['date']}"
    )


# ---- Variants.


def named_path(text):
    """argparse type of --lib NAME=PATH."""
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=PATH")
    if name in (LIBC, OURS):
        raise argparse.ArgumentTypeError(f"the name {name!r} is taken")
    if not os.path.isfile(path):
        raise argparse.ArgumentTypeError(f"there is no file {path}")
    return Variant(name, os.path.abspath(path))


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


def add_variant_options(parser):
    parser.add_argument(
        "--lib",
        action="append",
        type=named_path,
        default=[],
        metavar="NAME=PATH",
        help="compare with this preload library too; may be repeated",
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
    parser.add_argument(
        "--without-pmalloc", action="store_true", help="only glibc and the --lib libraries"
    )


def variants(options):
    """glibc first, then pmalloc, then the others in the order given."""
    names = [library.name for library in options.lib]
    if len(set(names)) < len(names):
        raise Failure("two --lib options have the same name")
    chosen = [Variant(LIBC, None)]
    if not options.without_pmalloc:
        library = str(built("libpmalloc_preload.so"))
        chosen.append(Variant(OURS, library, dict(options.settings)))
    return chosen + options.lib


def environment(variant):
    """The caller's environment less what could colour a run, plus the variant's preload."""
    env = {
        name: value
        for name, value in os.environ.items()
        if name != "LD_PRELOAD" and not name.startswith(FOREIGN_SETTINGS)
    }
    if variant.preload:
        env["LD_PRELOAD"] = variant.preload
    env.update(variant.settings)
    return env


# ---- Running.


class Watch(threading.Thread):
    """Follows a process until told to stop: its peak resident memory, and its end after too long.
    (The peak that wait4 reports starts at the parent's, which here is a Python interpreter.)"""

    def __init__(self, process, timeout):
        super().__init__(daemon=True)
        self.process, self.deadline = process, time.monotonic() + timeout
        self.peak, self.ended = None, threading.Event()

    def run(self):
        pause = 0.005
        while not self.ended.wait(pause):
            peak = _field(f"/proc/{self.process.pid}/status", "VmHWM")
            self.peak = int(peak.split()[0]) * 1024 if peak else self.peak
            if time.monotonic() >= self.deadline:
                self.process.kill()
            pause = min(2 * pause, 0.1)

    def stop(self):
        self.ended.set()
        self.join()


def run(argv, env=None, stdin=None, cwd=None, timeout=600):
    """Runs a program to its end and measures it. status is negative for a signal, as in subprocess;
    rss is None for a program too short to have been looked at."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, open(
        stdin or os.devnull, "rb"
    ) as source:
        start = time.perf_counter()
        try:
            process = subprocess.Popen(argv, env=env, stdin=source, stdout=out, stderr=err, cwd=cwd)
        except OSError as error:
            raise Failure(f"cannot run {argv[0]}: {error.strerror}") from error
        watch = Watch(process, timeout)
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
        out.seek(0)
        err.seek(0)
        return Result(
            seconds,
            usage.ru_utime,
            usage.ru_stime,
            watch.peak,
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


def ratio(value, base):
    return value / base if base else float("nan")


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
    try:
        sys.exit(function())
    except Failure as failure:
        print(f"{name}: {failure}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
