# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What the benchmark drivers share. Standard library only.

It finds the build and the allocators, and makes medians and tables. bench_run.py runs programs.

A variant is an allocator with a name: a library for LD_PRELOAD (none for libc's own malloc) and
settings. The variants take turns, and each round starts with another variant. So a machine that
becomes slower or faster meanwhile does so for all of them.
"""

import argparse
import collections
import datetime
import glob
import json
import math
import os
import pathlib
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys

# The drivers need to import this module alone.
from bench_run import Failure, Result, field, file_blocks, interleaved, run, status_text, warm

ROOT = pathlib.Path(__file__).resolve().parents[1]

# An adapter is a shared object that only the programs of tests/bench can use.
# heap: it has one of ours. watch: a library that flushes in its place (tests/bench/study/watch.c).
Variant = collections.namedtuple(
    "Variant", "name preload settings adapter heap watch", defaults=({}, None, False, None)
)
# The settings of PMAlloc and of the allocators that it is compared with.
FOREIGN_SETTINGS = ("PMALLOC_", "MALLOC_", "MIMALLOC_", "TCMALLOC_", "GLIBC_TUNABLES", "BENCH_")

LIBC = "glibc"
OURS = "pmalloc"
VOLATILE = "volatile"  # ours over anonymous memory
DISK = "disk"  # ours on plain files, where temporary files are (TMPDIR)
PERSISTENT = (OURS, VOLATILE, DISK)
# Debian's allocators, by the names of their libraries.
DEBIAN = {
    "jemalloc": "libjemalloc.so.?",
    "mimalloc": "libmimalloc.so.*",
    "tcmalloc": "libtcmalloc_minimal.so.?",
}
PMEMOBJ = "pmemobj"
PINNED = "pinned"  # ours, with blocks that are durable on return; an adapter
# Ours with other settings.
SETTINGS = {"one-node": {"PMALLOC_NUMA": "off"}, "no-morph": {"PMALLOC_MORPH": "0"}}
# Ours with other constants (scripts/study.mk). True: the constant is of pinned blocks.
STUDIES = {f"stripes-{n}": True for n in (1, 2, 4, 8)}
STUDIES |= {"freed-first": True, "log-in-order": False, "log-grows": False, "no-log": False}
# Allocators that the user builds: the shared object, and whether it needs tests/bench/adapters.
FOLDERS = {
    "ralloc": ("libralloc.so", True),
    "makalu": ("libmakalu.so", True),
    "nvm_malloc": ("libnvmmalloc.so", True),
    "lrmalloc": ("liblrmalloc.so", False),
}
KNOWN = (LIBC, *PERSISTENT, PINNED, *SETTINGS, *STUDIES, *DEBIAN, PMEMOBJ)


# ---- The build and the machine.


def build_dir():
    """The build directory of make; BUILD names another one, as for make."""
    return pathlib.Path(os.environ.get("BUILD", ROOT / "build")).resolve()


def built(name, how="make"):
    """The path of a file that make builds; a Failure if it is missing."""
    path = build_dir() / name
    if not path.exists():
        raise Failure(f"{path} is missing: run {how} (BUILD names another build directory)")
    return path


def compiled(name, program, *flags):
    """Compiles tests/bench/NAME.c, which needs a library that may be missing; then None."""
    source = ROOT / "tests" / "bench" / f"{name}.c"
    command = [os.environ.get("CC", "gcc"), "-O2", "-o", str(program), str(source), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return str(program) if done.returncode == 0 else None


def loader_of(program):
    """The dynamic loader that a program names, to run it under valgrind.

    The loader gets the preload as an option. In the environment the preload would reach valgrind's
    own wrappers too, and the first wrapper would take the heap.
    """
    with open(program, "rb") as file:
        match = re.search(rb"/lib[0-9a-z]*/ld-[-\w.]+", file.read())
    if not match:
        raise Failure(f"{program} is not a dynamically linked program")
    return match.group().decode()


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
    """The version of an allocator: Debian's package, the commit, or the file."""
    if variant.name == LIBC:
        return " ".join(platform.libc_ver())
    library = variant.settings.get("BENCH_LIBRARY", variant.adapter or variant.preload)
    path = os.path.realpath(library)
    if variant.heap or variant.name in PERSISTENT:
        commit = _output("git", "-C", str(ROOT), "describe", "--always", "--dirty")
        return f"commit {commit}" if commit else path
    if variant.name == PMEMOBJ:
        path = "libpmemobj.so.1"
    owner = _output("dpkg-query", "-S", path).partition(":")[0]
    known = owner and _output("dpkg-query", "-W", "-f", "${Package} ${Version}", owner)
    return known or path


def machine():
    """What a figure depends on besides the code."""
    memory = field("/proc/meminfo", "MemTotal")
    shm = _output("findmnt", "-n", "-o", "FSTYPE,SIZE", "-T", "/dev/shm").splitlines()
    return {
        "cpu": field("/proc/cpuinfo", "model name") or platform.machine(),
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
    """The argparse type of NAME=PATH."""
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=PATH")
    if name in KNOWN:
        raise argparse.ArgumentTypeError(f"the name {name!r} is taken")
    if not os.path.isfile(path):
        raise argparse.ArgumentTypeError(f"there is no file {path}")
    return name, os.path.abspath(path)


def folder(text):
    """The argparse type of NAME=DIR, with an allocator of FOLDERS."""
    name, _, path = text.partition("=")
    if not (name in FOLDERS and path):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=DIR, of {', '.join(FOLDERS)}")
    library = os.path.join(os.path.abspath(path), FOLDERS[name][0])
    if not os.path.isfile(library):
        raise argparse.ArgumentTypeError(f"there is no file {library}")
    return name, os.path.abspath(path)


def add_folder_option(parser):
    parser.add_argument(
        "--folder",
        action="append",
        type=folder,
        default=[],
        metavar="NAME=DIR",
        help="also compare with the library of ralloc, makalu, nvm_malloc or lrmalloc in DIR",
    )


def setting(text):
    """The argparse type of --set NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def positive(text):
    """The argparse type of a count."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def size(text):
    """The argparse type of a number of bytes, with K, M or G."""
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if not number.isdecimal() or unit not in ("", "K", "M", "G"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 500M or 2G")
    return int(number) << {"": 0, "K": 10, "M": 20, "G": 30}[unit]


def add_variant_options(parser, adapters=False, default=f"{OURS}, {LIBC}, and Debian's"):
    only = (PMEMOBJ, PINNED, *(name for name, pinned in STUDIES.items() if pinned))
    known = [name for name in KNOWN if adapters or name not in only]
    parser.add_argument(
        "--allocators",
        metavar="A,B,...",
        help=f"some of {', '.join(known)} (default: {default})",
    )
    parser.add_argument(
        "--lib",
        action="append",
        type=named_path,
        default=[],
        metavar="NAME=PATH",
        help="also compare with this preload library; may be repeated",
    )
    if adapters:
        parser.add_argument(
            "--adapter",
            action="append",
            type=named_path,
            default=[],
            metavar="NAME=PATH",
            help="also compare with this adapter, for programs of tests/bench (README there)",
        )
        add_folder_option(parser)
        parser.add_argument(
            "--flush-ns",
            type=positive,
            metavar="N",
            help="each flush of a line takes N ns more, as on slower media (make study-built)",
        )
    parser.add_argument(
        "--set",
        action="append",
        type=setting,
        default=[],
        metavar="NAME=VALUE",
        dest="settings",
        help="a setting for the runs of pmalloc only (default: none)",
    )


def debian_library(name):
    """The path of Debian's library of that name, or None."""
    found = sorted(glob.glob(f"/usr/lib/*/{DEBIAN[name]}"))
    return found[0] if found else None


def variant(name, settings=()):
    """The allocator of that name; a Failure that says what to do if it is missing."""
    if name == LIBC:
        return Variant(LIBC, None)
    if name in PERSISTENT:
        backing = {"PMALLOC_BACKING": "volatile"} if name == VOLATILE else {}
        preload = str(built("libpmalloc_preload.so"))
        return Variant(name, preload, {**backing, **dict(settings)}, heap=name != VOLATILE)
    if name in SETTINGS:
        return variant(OURS, {**dict(settings), **SETTINGS[name]}.items())._replace(name=name)
    if name == PINNED or name in STUDIES:
        return study(name, settings)
    if name == PMEMOBJ:
        adapter = build_dir() / "bench/adapters/pmemobj.so"
        if not adapter.exists():
            raise Failure(f"{adapter} is missing: run scripts/bootstrap --bench, then make")
        return Variant(name, None, {"PMEM_IS_PMEM_FORCE": "1"}, str(adapter))
    if name not in DEBIAN:
        known = " ".join(KNOWN)
        raise Failure(f"{name!r} is no allocator known here: {known}; for others: --lib NAME=PATH")
    library = debian_library(name)
    if not library:
        raise Failure(f"there is no /usr/lib/*/{DEBIAN[name]}: run scripts/bootstrap --bench")
    return Variant(name, library)


def study(name, settings=()):
    """Ours with pinned blocks, or with other constants."""
    ours = variant(OURS, settings)._replace(name=name)
    if name in STUDIES:
        library = build_dir() / "study" / name / "study/libpmalloc_study.so"
        if not library.exists():
            raise Failure(f"{library} is missing: run make study")
        ours = ours._replace(preload=str(library))
    pinned = name == PINNED or STUDIES[name]
    return ours._replace(adapter=str(built("bench/adapters/pinned.so"))) if pinned else ours


def of_folder(name, path):
    """An allocator that the user has built."""
    file, adapted = FOLDERS[name]
    library = os.path.join(path, file)
    if not adapted:
        return Variant(name, library)
    return Variant(name, None, {"BENCH_LIBRARY": library}, str(built(f"bench/adapters/{name}.so")))


def watched(variant, settings):
    """The same, with its flushes seen or delayed, if it makes any by libpmem's functions."""
    if not (variant.heap or variant.adapter):
        return variant
    watch, library = (build_dir() / "study" / name for name in ("watch.so", "libpmalloc_study.so"))
    if not (watch.exists() and library.exists()):
        raise Failure(f"{watch} is missing: run make study-built, or make study")
    if variant.heap and variant.name not in STUDIES:
        variant = variant._replace(preload=str(library))
    return variant._replace(watch=str(watch), settings={**variant.settings, **settings})


def variants(options):
    """The chosen allocators in the order given, then --lib, --adapter and --folder."""
    if options.allocators:
        names = options.allocators.split(",")
    else:
        names = [OURS, LIBC] + [name for name in DEBIAN if debian_library(name)]
    chosen = [variant(name, options.settings) for name in names]
    chosen += [Variant(name, path) for name, path in options.lib]
    chosen += [Variant(name, None, {}, path) for name, path in getattr(options, "adapter", [])]
    chosen += [of_folder(name, path) for name, path in getattr(options, "folder", [])]
    names = [v.name for v in chosen]
    if len(set(names)) < len(names):
        raise Failure("two allocators have the same name")
    if getattr(options, "flush_ns", None):
        chosen = [watched(v, {"BENCH_FLUSH_NS": str(options.flush_ns)}) for v in chosen]
    return chosen


def environment(variant, folder=None):
    """The caller's environment for a variant, without what could influence a run.

    The heap lies in `folder`. Without a folder the allocator chooses the place.
    """
    env = {
        name: value
        for name, value in os.environ.items()
        if name != "LD_PRELOAD" and not name.startswith(FOREIGN_SETTINGS)
    }
    preload = [library for library in (variant.watch, variant.preload) if library]
    if preload:
        env["LD_PRELOAD"] = ":".join(preload)
    if variant.adapter:
        env["BENCH_ALLOCATOR"] = variant.adapter
    if folder and (variant.heap or variant.name in (OURS, DISK)):
        env["PMALLOC_HEAP"] = os.path.join(folder, "heap")
        env["PMALLOC_ROOTLESS"] = "quiet"
    if folder and variant.adapter and not variant.heap:
        env["BENCH_POOL"] = os.path.join(folder, "pool")
    env.update(variant.settings)
    return env


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
    """Text in columns. A column of numbers (or "-", or nothing) is aligned right."""
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
    """A line on standard error that overwrites itself. Nothing if that is no terminal."""

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


def add_plot_option(parser, what):
    parser.add_argument("--plot", metavar="FILE", help=f"draw {what} (FILE.svg, FILE.png)")


def pyplot():
    """Of matplotlib, without a screen. To be asked for before anything is measured."""
    try:
        import matplotlib
    except ImportError as error:
        raise Failure(
            "no plot: python3-matplotlib is missing, scripts/bootstrap --bench installs it"
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save_plot(figure, path):
    figure.suptitle(machine_line(), fontsize=6)
    for kind in ("svg", "png"):
        figure.savefig(f"{path}.{kind}", dpi=150)


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
    """Exits with what `function` returns (0 good, 1 wrong), or with 2 after a Failure."""
    name = os.path.basename(sys.argv[0])
    # As after Ctrl-C: programs are ended, and heaps are removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        sys.exit(function())
    except Failure as failure:
        print(f"{name}: {failure}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
