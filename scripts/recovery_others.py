# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""How fast other allocators recover: build/bench/kept makes a list in a pool and ends by SIGKILL,
and another process opens the pool. Each run has a pool of its own, for an allocator that has
recovered once finds less to do the second time.

The figure begins with the opening of the pool and ends with the first block that is given out. It
is made by one thread.
"""

import os
import re
import signal
import tempfile

import benchlib
import load_model

LINE = re.compile(r"^answer=(\w+) ops=(\d+) seconds=([\d.]+)", re.MULTILINE)
# Ralloc's own figure, which leaves out that all of the pool is flushed.
COLLECTION = re.compile(r"Time elapsed = (\d+) ms on GC")
# Those of benchlib.FOLDERS that keep their heaps.
RECOVER = ("ralloc", "makalu", "nvm_malloc")


def chosen(options):
    """The variants beside PMAlloc."""
    names = [name for name in options.allocators.split(",") if name != benchlib.OURS]
    strange = [name for name in names if name != benchlib.PMEMOBJ]
    if strange:
        raise benchlib.Failure(f"{strange[0]!r} cannot be compared with: it keeps no heap")
    variants = [benchlib.variant(name) for name in names]
    return variants + [benchlib.of_folder(*pair) for pair in options.folder if pair[0] in RECOVER]


def pool_megabytes(nodes):
    """Room for the nodes with what an allocator has beside each. Ralloc flushes all of a pool, and
    its pools have a gigabyte at least."""
    return 1536 + (nodes * 256 >> 20)


def kept(what, variant, nodes, folder, megabytes=None):
    """(answer, {what: seconds}) of a run of build/bench/kept. With `megabytes` of a cache it is
    traced, and its misses are there in place of the seconds."""
    env = benchlib.environment(variant, folder)
    env["BENCH_POOL_MB"] = f"{pool_megabytes(nodes)}"
    program = str(benchlib.built("bench/kept"))
    command = [program, what, "-n", str(nodes)]
    if megabytes:
        result, misses, _ = load_model.traced(command, env, megabytes, folder)
    else:
        result = benchlib.run(command, env=env, timeout=7200)
    line = LINE.search(result.stdout)
    if result.status != -signal.SIGKILL or not line or int(line[2]) != nodes:
        text = benchlib.status_text(result)
        raise benchlib.Failure(f"kept {what}, {variant.name}: {text}, expected signal 9")
    if megabytes:
        return line[1], misses
    collection = COLLECTION.search(result.stdout)
    more = {"collection": int(collection[1]) / 1e3} if collection else {}
    return line[1], {"seconds": float(line[3])} | more


def recover(variant, nodes, place, megabytes=None):
    with tempfile.TemporaryDirectory(prefix="pmalloc-recovery-", dir=place) as folder:
        made, _ = kept("make", variant, nodes, folder)
        found, seconds = kept("open", variant, nodes, folder, megabytes)
    if made != found:
        raise benchlib.Failure(f"kept, {variant.name}: another list than before the kill")
    return seconds


def measure(options, variants):
    """{name: {what: summary of seconds}}, in turns."""
    found = {variant.name: [] for variant in variants}
    place = os.path.abspath(options.heap_in)
    for _, variant in benchlib.interleaved(variants, options.runs):
        found[variant.name].append(recover(variant, options.nodes, place))
    figures = {
        name: {what: benchlib.summary([run[what] for run in runs]) for what in runs[0]}
        for name, runs in found.items()
    }
    for variant in variants if options.load_ns else ():
        misses = recover(variant, options.nodes, place, options.cache_mb)
        seconds = figures[variant.name]["seconds"]["median"]
        figures[variant.name]["slower"] = load_model.slower(seconds, misses, options.load_ns)
    return figures


def print_table(options, others):
    if not others:
        return
    nodes = f"{options.nodes} nodes of 64 to 128 bytes"
    print(f"\nOther allocators, a list of {nodes}, to the first block:")
    rows = [
        [
            name,
            f"{of['seconds']['median']:.4f}",
            f"{of['seconds']['spread']:.1%}",
            f"{of['collection']['median']:.3f}" if "collection" in of else "",
        ]
        for name, of in others.items()
    ]
    print(benchlib.table(["allocator", "seconds", "spread", "its own figure"], rows))
    for name, of in others.items():
        load_model.print_slower(name, of, options)
