# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""The runs that scripts/papers knows: commands of this repository, with a small size and with that
of a paper. Figures of several papers may ask for the same run, which is made once.

A run is made in one of these ways (HOW): as it is, which for scripts/bench means that stores become
durable by flushes of cache lines, and on the CPUs of --pin if there are some; `unpinned`, without
them; `cache`, as on a machine whose caches survive a power failure.
"""

import dataclasses
import glob
import os

import benchlib

HOW = {
    "": ("--set", "PMALLOC_PERSIST=line"),
    "unpinned": ("--set", "PMALLOC_PERSIST=line"),
    "cache": ("--set", "PMALLOC_PERSIST=cache"),
}
# The numbers of threads of the papers together; sets and recoveries have axes of their own.
THREADS = {False: "1,2", True: "1,2,4,8,16,32,64,80"}


@dataclasses.dataclass(frozen=True)
class Run:
    """A command. Its figures are in results.json of a folder, in a JSON file, or in its output."""

    script: str
    small: tuple
    paper: tuple
    threads: bool = False  # the axis is the number of threads
    figures: str = "json"  # or "folder", "text"
    comparators: tuple = ()  # of COMPARATORS: what the script can compare with
    always: tuple = ()  # allocators of scripts/bench that are compared in any case
    without: tuple = ()  # those of which there is nothing to see
    only: tuple = ()  # not empty: those alone of which there is something
    one_side: bool = False  # on the CPUs of one node of the machine


# The options that name other allocators. Flushes of those in folders are not seen, and no slower.
SEEN = ("allocators", "lib", "adapter")
COMPARATORS = (*SEEN, "folder")


def bench(program, small, paper, threads=True, always=(), more=(), paper_program=None):
    """small, paper: shares of the work that scripts/bench does without options."""
    options = ("--no-plots", *more, "--scale")
    large = paper_program or program
    return Run(
        "bench",
        ("--programs", program, *options, f"{small}", "--runs", "3"),
        ("--programs", large, *options, f"{paper}", "--runs", "5", "--timeout", "7200"),
        threads,
        "folder",
        COMPARATORS,
        always,
    )


def study(what, programs, small, paper, always=(), more=(), without=()):
    """The same of scripts/study."""
    options = (what, "--programs", programs, *more, "--scale")
    return Run(
        "study",
        (*options, f"{small}", "--threads", "2"),
        (*options, f"{paper}", "--threads", "32", "--timeout", "36000"),
        comparators={"course": (), "misses": COMPARATORS, "full": COMPARATORS}.get(what, SEEN),
        always=always,
        without=without,
    )


def counters(*names):
    return Run("counters", ("--only", ",".join(names)), ("--only", ",".join(names)))


def recovery(small, paper, *more, plain=False):
    """Other allocators make the plain list alone: `more` is of another one, but for `plain`."""
    return Run(
        "recovery-bench",
        ("--nodes", f"{small}", "--threads", "1", "--runs", "3", *more),
        ("--nodes", f"{paper}", "--threads", "1", "--runs", "5", *more),
        comparators=() if more and not plain else ("allocators", "folder"),
        only=(benchlib.OURS, benchlib.PMEMOBJ),
    )


# PAllocator's media from their shortest latency to their longest, in nanoseconds: what a load takes
# more, what the flush of a line takes, and the last cache of that machine.
LATENCY = ("--load-ns", "490", "--flush-ns", "650", "--cache-mb", "20")


def slow(programs, small, paper):
    """On such media, beside memory. A run is traced, so it takes some hundred times as long."""
    return study("loads", programs, small, paper, more=LATENCY, without=("glibc",))


def one_side(run):
    """The same on one node, for what the way to another one costs."""
    return dataclasses.replace(run, one_side=True)


def longer_than_128(phase):
    return ",".join(f"apart-{phase}-{size}" for size in (1024, 8192, 65536, 524288))


SMALL = "threadtest,prodcon,shbench,larson-small"
LARGE = "larson-large,dbmstest"
FRAG = ",".join(f"fragbench-long-w{w}" for w in (1, 2, 3, 4))
EACH_SIZE = "apart-{0}-128,apart-{0}-8192,apart-{0}-524288"
LOCAL = ",".join(f"prodcon-local-{local}" for local in (25, 50, 75, 100))
RANDOM = "randalloc-uniform,randalloc-small,randalloc-large"
LARSON = "larson-small,larson-medium,larson-large"
STRIPES = ("pinned", "stripes-1", "stripes-2", "stripes-4", "stripes-8")
# Blocks whose bits and whose caches have stripes; whose bits alone have them; neither.
APART = ("pinned", "freed-first", "stripes-1")
# Words of extents in place; entries of a log, side by side. The usual one is in turn.
LOGS = ("no-log", "log-in-order")
# A flush into memory costs next to nothing; on Optane it takes some 100 ns.
FLUSH = ("--flush-ns", "300")

# A comment is what the paper sets, where a share does not show it.
RUNS = {
    "threadtest": bench("threadtest", 0.02, 40),  # 10,000 iterations
    "prodcon": bench("prodcon", 0.01, 0.83),  # 10 million objects, by pairs of threads
    # 500,000 blocks for each of 16 threads, with 1 KB at most; fewer of the longer ones.
    "alloc": bench("apart-alloc-128", 0.1, 16),
    "alloc-more": bench(longer_than_128("alloc"), 0.1, 125),
    "free": bench("apart-free-128", 0.1, 16),
    "free-more": bench(longer_than_128("free"), 0.1, 125),
    "shbench": bench("shbench", 0.01, 0.33),  # 100,000 iterations
    "larson-small": bench("larson-small", 0.01, 10),  # 30 seconds
    "larson-medium": bench("larson-medium", 0.01, 10),
    "larson-large": bench("larson-large", 0.02, 10),
    "dbmstest": bench("dbmstest", 0.02, 0.5),  # 50 iterations to warm up, and 50
    "randalloc": bench(RANDOM, 0.05, 1),
    "sets": bench("set-list,set-skip,set-hash", 0.05, 5),  # 10 seconds
    "sets-add": bench("set-list-add,set-skip-add,set-hash-add", 0.5, 5),
    "fptree": bench("fptree", 0.01, 33.3),  # 50 million operations
    "vacation": bench("vacation", 0.02, 2),  # a million transactions
    "ackermann": bench("ackermann", 0.02, 5),  # 10 million evaluations
    "nqueens": bench("nqueens", 0.02, 0.067),  # 100,000 boards
    "kruskal": bench("kruskal", 0.02, 10),  # 10 million graphs
    # A number of 44 digits, 400,000 particles.
    "cfrac-barnes": bench(
        "cfrac,barnes", 1, 1, threads=False, paper_program="cfrac-long,barnes-400000"
    ),
    # As many pairs at the start as operations. An operation allocates or frees 128 bytes, as with
    # PAllocator's keys.
    "fptree-filled": bench("fptree-filled", 0.01, 33.3, always=("one-node",)),
    "fptree-each": bench("fptree-insert,fptree-delete,fptree-mix", 0.01, 33.3),
    "larson-one": bench("larson-one", 0.01, 10),
    "nodes-small": bench(SMALL, 0.01, 1, always=("one-node",)),
    "nodes-one-side": one_side(bench(SMALL, 0.01, 1)),
    "nodes-remote": bench(LOCAL + ",prodcon", 0.01, 0.83, threads=False, always=("one-node",)),
    "stripes": bench(SMALL, 0.005, 1, always=STRIPES),
    "log-cost": bench(LARGE, 0.05, 10, always=("log-grows",)),
    "alloc-slow": slow(EACH_SIZE.format("alloc"), 0.02, 16),
    "free-slow": slow(EACH_SIZE.format("free"), 0.02, 16),
    "larson-slow": slow(LARSON, 0.0005, 10),
    "flushes-small": study(
        "flushes", SMALL, 0.01, 1, ("freed-first", "stripes-1"), without=("glibc",)
    ),
    "flushes-large": study(
        "flushes", LARGE, 0.02, 1, more=("--first", "1000"), without=("glibc", "pinned")
    ),
    "flushes-logs": study("flushes", LARGE, 0.02, 1, LOGS, without=("glibc", "pinned")),
    "flushes-fptree": study("flushes", "fptree-filled", 0.01, 1, without=("glibc",)),
    "misses": study("misses", SMALL, 0.002, 1),
    "shares-small": study("shares", SMALL, 0.05, 1, APART, FLUSH),
    "shares-large": study("shares", LARGE, 0.02, 1, LOGS, FLUSH),
    "shares-fptree": study(
        "shares", "fptree-filled", 0.05, 33.3, (*APART, "one-node"), FLUSH
    ),
    # The same by the paper's 10,000 iterations, and 500 of DBMStest.
    "log-course": study("course", LARGE, 0.2, 2.5, ("log-grows",)),
    "frag-course": study("course", FRAG, 0.2, 25.6, ("no-morph",)),
    "fragbench-w1": bench("fragbench-w1", 0.2, 25.6, threads=False),  # 1 GiB in use
    "fragbench-w2": bench("fragbench-w2", 0.2, 18.3, threads=False),
    "fragbench-w3": bench("fragbench-w3", 0.2, 18.3, threads=False),
    "fragbench-w4": bench("fragbench-w4", 0.2, 12.8, threads=False),
    "fragstress": bench("fragstress", 0.1, 1024, threads=False),  # 256 GiB in use
    # The paper ends at blocks of 2 GB. Ralloc's pools have a gigabyte at least.
    "fragstress-full": study("full", "fragstress-full", 3, 1024),
    "morph": Run(
        "morph-study",
        ("--percent", "0,20", "--live", "8"),
        ("--percent", "0,20", "--live", "1024"),
    ),
    "morph-percent": Run(
        "morph-study",
        ("--percent", "0,10,20,30", "--live", "8"),
        ("--percent", "0,5,10,20,30,40,50", "--live", "1024"),
    ),
    "flush-small": counters("flush-cached", "flush-small", "flush-growing"),
    "flush-large": counters("flush-large", "fence-large", "reflush-large"),
    "reflush": counters("flush-pinned", "reflush-pinned", "reflush-changed", "reflush-publish"),
    "nodes": counters("nodes-pair", "nodes-batch", "nodes-shbench", "nodes-larson"),
    "nodes-prodcon": counters("nodes-prodcon", "nodes-handed"),
    "recovery-10m": recovery(100_000, 10_000_000),
    "recovery-50m": recovery(200_000, 50_000_000),
    "recovery-100m": recovery(400_000, 100_000_000),
    "recovery-slow": recovery(50_000, 100_000_000, *LATENCY[:2], plain=True),
    # As much as is kept is leaked; as many lists as the paper has roots.
    "recovery-lists": recovery(
        50_000, 1_500_000, "--lanes", "512", "--leak-every", "1", "--longest", "2048"
    ),
    "recovery-pinned": Run(
        "publish-bench", ("--pinned", "100000"), ("--pinned", "10000000"), figures="text"
    ),
}


@dataclasses.dataclass(frozen=True)
class Choice:
    """What the user of scripts/papers has chosen for all runs."""

    paper: bool = False
    threads: str = ""
    allocators: str = ""
    lib: tuple = ()
    adapter: tuple = ()
    folder: tuple = ()
    pin: str = ""


def allocators():
    """What scripts/bench compares with if nobody says it."""
    adapters = benchlib.build_dir() / "bench/adapters"
    built = [n for n in (benchlib.PINNED, benchlib.PMEMOBJ) if (adapters / f"{n}.so").exists()]
    return [benchlib.OURS, benchlib.LIBC, *built]


def compared(run, choice):
    chosen = choice.allocators.split(",") if choice.allocators else allocators()
    if "allocators" not in run.comparators:
        chosen = [benchlib.OURS]
    chosen = [name for name in chosen if name not in run.without]
    chosen = [name for name in chosen if not run.only or name in run.only]
    return ",".join(chosen + [name for name in run.always if name not in chosen])


def cpus_of(text):
    """The set of a list such as 0-3,8-15:2."""
    ranges = [word.partition("-")[::2] for word in text.split(",") if word]
    found = set()
    for first, rest in ranges:
        last, _, step = rest.partition(":")
        found.update(range(int(first), int(last or first) + 1, int(step or 1)))
    return found


def node_cpus(pin):
    """Those of the CPUs `pin` (none: all) that are of the first node of theirs."""
    wanted = cpus_of(pin) or os.sched_getaffinity(0)
    for node in sorted(glob.glob("/sys/devices/system/node/node[0-9]*/cpulist")):
        with open(node, encoding="ascii") as text:
            here = cpus_of(text.read().strip()) & wanted
        if here:
            return ",".join(str(n) for n in sorted(here))
    return pin


def result_option(run, folder):
    """The option that says where the figures go, and that file."""
    if run.figures == "folder":
        return ["--output", folder], os.path.join(folder, "results.json")
    if run.figures == "json":
        file = os.path.join(folder, "results.json")
        return ["--json", file], file
    return [], os.path.join(folder, "output.txt")


def words(name, how, choice):
    """The command of a run, without where its figures go."""
    run = RUNS[name]
    command = [f"scripts/{run.script}", *(run.paper if choice.paper else run.small)]
    if run.script in ("bench", "study"):
        command += HOW[how]
    if run.threads:
        command += ["--threads", choice.threads or THREADS[choice.paper]]
    if run.comparators or run.always:
        command += ["--allocators", compared(run, choice)]
    for option in COMPARATORS[1:]:
        if option in run.comparators:
            for label, path in getattr(choice, option):
                command += [f"--{option}", f"{label}={path}"]
    cpus = node_cpus(choice.pin) if run.one_side else "" if how == "unpinned" else choice.pin
    return ["taskset", "-c", cpus, *command] if cpus else command
