# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""How much longer a program would take if loads of its heap took longer: a model.

lackey, a tool of valgrind, writes down each access; tests/bench/study/loads.c lets them go through
one cache, and counts those that miss it, by page. Those of the heap, times the nanoseconds that a
load of the media takes more, are what the model adds, shared by the threads.

What it does not know: accesses that wait at the same time, and prefetching, so a machine takes less
than this; the caches' real way to choose a line, and lines that other programs or the kernel bring
or take; that a flush may evict its line (clwb need not), so a machine may load more. Threads run by
turns under valgrind. Accesses of the kernel for the program are not seen.
"""

import contextlib
import os
import subprocess
import tempfile

import benchlib

PAGE = 4096
# Where a heap of PMAlloc lies: from 64 TiB on, 2 TiB (core/media/format.h).
OURS = (0x400000000000 // PAGE, 0x420000000000 // PAGE)


def add_options(parser):
    parser.add_argument(
        "--load-ns",
        type=benchlib.positive,
        metavar="N",
        help="a load of the heap from media takes N ns more than from memory: a model by traces",
    )
    parser.add_argument(
        "--cache-mb",
        type=benchlib.positive,
        default=20,
        metavar="MB",
        help="the last cache, with --load-ns (default %(default)s)",
    )


@contextlib.contextmanager
def _reader(folder, megabytes):
    """Gives (the name of a trace, {page: misses}); the second is complete afterwards."""
    trace = os.path.join(folder, "trace")
    os.mkfifo(trace)
    found = {}
    reader = str(benchlib.built("study/loads", "make study-built"))
    # The reader must not wait for a program that never starts.
    holder = os.open(trace, os.O_RDWR)
    with open(trace, "rb") as pipe, subprocess.Popen(
        [reader, f"{megabytes}"], stdin=pipe, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield trace, found
        finally:
            os.close(holder)
        for line in process.stdout:
            page, count = line.split()
            found[int(page, 16)] = int(count)
    if process.returncode:
        raise benchlib.Failure(f"{reader}: exit status {process.returncode}")


def _ranges(maps, folder):
    """Pages that files below the folder are mapped to, by the text of /proc/PID/maps."""
    lines = (line.split(None, 5) for line in maps.splitlines())
    files = (words for words in lines if len(words) == 6 and words[5].startswith(f"{folder}/"))
    spans = (words[0].partition("-") for words in files)
    return [OURS, *((int(first, 16) // PAGE, int(end, 16) // PAGE) for first, _, end in spans)]


def traced(program, env, megabytes, folder, timeout=7200):
    """Runs a program: (the result, accesses of its heap that miss the cache, those of the rest).
    The heap is what files below `folder` are mapped to, for a program of tests/bench, and anything
    where PMAlloc's heaps lie."""
    binary, *words = program
    env = {**env, "BENCH_LOADS": os.path.join(folder, "maps")}
    loaded = env.pop("LD_PRELOAD", None)
    env.setdefault("BENCH_POOL_MB", "4096")  # valgrind maps no more
    with tempfile.TemporaryDirectory() as place, _reader(place, megabytes) as (trace, found):
        before = ["valgrind", "--tool=lackey", "--trace-mem=yes", "--basic-counts=no"]
        before += [f"--log-file={trace}", benchlib.loader_of(binary)]
        before += ["--preload", loaded] if loaded else []
        result = benchlib.run([*before, binary, *words], env=env, timeout=timeout, folder=folder)
    maps = ""
    if os.path.exists(env["BENCH_LOADS"]):
        with open(env["BENCH_LOADS"], encoding="utf-8") as text:
            maps = text.read()
    heap = _ranges(maps, folder)
    inside = sum(n for page, n in found.items() if any(a <= page < b for a, b in heap))
    return result, inside, sum(found.values()) - inside


def slower(seconds, misses, load_ns, threads=1):
    """What a recovery of so many seconds would take."""
    slow = seconds + misses * load_ns / threads / 1e9
    return {"misses": misses, "seconds": slow, "times": slow / seconds}


def print_slower(name, row, options):
    if "slower" in row:
        of = row["slower"]
        print(
            f"{name}, if a load takes {options.load_ns} ns more (a model): {of['seconds']:.4f} s, "
            f"{of['times']:.2f} times that, by {of['misses']} misses of {options.cache_mb} MB"
        )
