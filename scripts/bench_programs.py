# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""The programs that scripts/bench can run.

A row says how a program is called, which part of its output must be the same under every
allocator, and where its figure is. There are three groups: `micro` (tests/bench), `apps`
(tests/apps) and `mimalloc` (an existing build of mimalloc-bench).
"""

import dataclasses
import os
import pathlib
import re

import benchlib

# What a program of tests/bench prints.
LINE = r"seconds=([\d.]+)"
PER_OPERATION = r"ops=(\d+)"
LIVE, OWN = r"live=(\d+)", r"own=(\d+)"

ONE, EACH, PAIRS = "one", "each", "pairs"  # thread counts that make sense


@dataclasses.dataclass(frozen=True)
class Program:
    """One row of the results, or one row for each number of threads."""

    label: str
    group: str
    binary: str
    arguments: str = (
        ""  # {threads}, {twice}: threads, and double; {n}: count, scaled; {bench}: inputs
    )
    count: int = 0
    threads: str = ONE
    stdin: str = ""
    input: str = ""  # a file it needs below the folder of inputs
    drop: str = ""  # lines of its output that differ from run to run
    blank: str = ""  # text that differs within lines that otherwise agree
    unordered: bool = False  # threads print as they come
    rate: str = ""  # the throughput it prints; absent: its time counts
    unit: float = 1.0  # operations a second for 1 of that
    lasts: float = 0.0  # it works for so many seconds, however much it does in them
    check: str = ""  # arguments of one more, untimed run that prints more of the result
    named: bool = False  # it runs only if it is named itself, not with its group

    def words(self, threads, scale, inputs):
        count = max(1, round(self.count * scale))
        return self.arguments.format(
            threads=threads, twice=2 * threads, n=count, bench=inputs or ""
        ).split()

    def normalised(self, output):
        """Output without what differs between two right runs."""
        lines = output.splitlines()
        if self.drop:
            lines = [line for line in lines if not re.search(self.drop, line)]
        if self.blank:
            lines = [re.sub(self.blank, "*", line) for line in lines]
        # Lines of threads may also come glued together, or split.
        return sorted(re.findall(r"\S+", " ".join(lines))) if self.unordered else lines

    def per_operation(self):
        return bool(self.rate) or self.group == "micro"

    def figure(self, result):
        """Nanoseconds an operation, or seconds; None where the program printed none."""
        if self.group == "micro":
            seconds, ops = (re.search(x, result.stdout) for x in (LINE, PER_OPERATION))
            return float(seconds[1]) / int(ops[1]) * 1e9 if seconds and ops else None
        if not self.rate:
            return result.seconds
        match = re.search(self.rate, result.stdout, re.MULTILINE)
        rate = float(match[1]) * self.unit if match else 0.0
        return 1e9 / rate if rate else None

    def cpu(self, result):
        """CPU seconds of the whole run, or CPU nanoseconds an operation if it lasts a fixed time.

        Unlike the figure it says something on a machine that others use, too. A run that others
        made longer counts too much, never too little: so the least of the runs is the right one.
        """
        seconds = result.user + result.system
        return self.figure(result) * seconds / self.lasts if self.lasts else seconds


def of_live(result):
    """Peak memory without the program's own tables, over the most bytes it had in blocks.

    None if the program does not print them.
    """
    live, own = (re.search(x, result.stdout) for x in (LIVE, OWN))
    return (result.peak - int(own[1])) / int(live[1]) if live and own and result.peak else None


def micro(label, binary, arguments, count, threads=EACH, **rest):
    arguments += " -t {threads}" if threads != ONE else ""
    return Program(label, "micro", binary, arguments, count, threads, blank=LINE, **rest)


def app(label, arguments, count=0, binary=None, **rest):
    return Program(label, "apps", binary or label, arguments, count, **rest)


def mimalloc(label, binary, arguments="", **rest):
    return Program(label, "mimalloc", binary, arguments, **rest)


# Blocks of tests/bench/apart by their size.
APART = {128: 500_000, 1024: 64_000, 8192: 10_000, 65536: 2000, 524288: 250}

MICRO = [
    micro("threadtest", "threadtest", "-i {n}", 250),
    *(
        micro(f"apart-{phase}-{size}", "apart", f"{phase} -b {size} -n {{n}}", count)
        for phase in ("alloc", "free")
        for size, count in APART.items()
    ),
    micro("prodcon", "prodcon", "-n {n}", 12_000_000, PAIRS),
    micro("shbench", "shbench", "-i {n}", 300_000),
    *(
        micro(
            f"prodcon-local-{local}",
            "prodcon",
            f"-l {local} -n {{n}}",
            12_000_000,
            PAIRS,
            named=True,
        )
        for local in (25, 50, 75, 100)
    ),
    micro("larson-one", "larson", "one -n {n}", 24_000_000, named=True),
    micro("larson-small", "larson", "small -n {n}", 24_000_000),
    micro("larson-medium", "larson", "medium -n {n}", 16_000_000),
    micro("larson-large", "larson", "large -n {n}", 200_000),
    micro("dbmstest", "dbmstest", "-i {n}", 200),
    micro("randalloc-uniform", "randalloc", "uniform -r {n}", 25),
    micro("randalloc-small", "randalloc", "binomial-small -r {n}", 10),
    micro("randalloc-large", "randalloc", "binomial-large -r {n}", 10),
    micro("set-list", "sets", "list -n {n}", 2_000_000),
    micro("set-skip", "sets", "skip -n {n}", 5_000_000),
    micro("set-hash", "sets", "hash -n {n}", 12_000_000),
    micro("set-list-add", "sets", "list -a 100 -k 4096 -n {n}", 200_000),
    micro("set-skip-add", "sets", "skip -a 100 -k 4096 -n {n}", 2_000_000),
    micro("set-hash-add", "sets", "hash -a 100 -k 4096 -n {n}", 2_000_000),
    micro("fptree", "fptree", "-n {n}", 1_500_000),
    micro("fptree-filled", "fptree", "-w {n} -n {n}", 1_500_000, named=True),
    micro("fptree-insert", "fptree", "-w {n} -n {n} -i 100", 1_500_000, named=True),
    micro("fptree-delete", "fptree", "-w {n} -n {n} -i 0", 1_500_000, named=True),
    micro("fptree-mix", "fptree", "-w {n} -n {n} -f 50", 1_500_000, named=True),
    micro("vacation", "vacation", "-n {n}", 500_000),
    micro("nqueens", "nqueens", "-n {n}", 1_500_000),
    micro("ackermann", "ackermann", "-n {n}", 2_000_000),
    micro("kruskal", "kruskal", "-n {n}", 1_000_000),
    micro("fragbench-w1", "fragbench", "w1 -l {n}", 40 << 20, ONE),
    micro("fragbench-w2", "fragbench", "w2 -l {n}", 56 << 20, ONE),
    micro("fragbench-w3", "fragbench", "w3 -l {n}", 56 << 20, ONE),
    micro("fragbench-w4", "fragbench", "w4 -l {n}", 80 << 20, ONE),
    *(
        micro(
            f"fragbench-long-w{w}", "fragbench", f"w{w} -a 10 -l {{n}}", 40 << 20, ONE, named=True
        )
        for w in (1, 2, 3, 4)
    ),
    micro("fragstress", "fragstress", "-l {n}", 256 << 20, ONE),
    micro("fragstress-full", "fragstress", "-e 1 -l {n}", 256 << 20, ONE, named=True),
]

COMPOSITE = "17545186520507317056371138836327483792789528"

APPS = [
    app("cfrac", "10700879846603300000012520029420525861"),
    app("cfrac-long", COMPOSITE, binary="cfrac", named=True),
    app("barnes", "-n 20000 -s 2"),
    app("barnes-400000", "-n 400000 -s 2", binary="barnes", named=True),
    app("list", "run {n} 1", 40_000),
    app("skiplist", "run {n} 1", 80_000),
    app("hashset", "run {n} 1", 80_000),
    app("tree", "run {n} 1", 80_000),
    app("processes", f"{benchlib.ROOT}/tests/bench/processes.sh {{n}}", 1000, binary="/bin/sh"),
]

LARSON = "1 8 1000 5000 100 4141 {threads}"
LARSON_RATE = r"^Throughput = *(\d+)"
RPTEST_RATE = r"(\d+) memory ops/CPU second"
ESPRESSO = "espresso/largest.espresso"
SCRATCH_1, SCRATCH_N = "1 1000 1 2000000 {threads}", "{threads} 1000 1 2000000 {threads}"

MIMALLOC = [
    mimalloc("cfrac-44", "cfrac", COMPOSITE),
    mimalloc(
        "espresso",
        "espresso",
        f"{{bench}}/{ESPRESSO}",
        input=ESPRESSO,
        blank=r"Time was [\d.]+ sec",
        check=f"-s {{bench}}/{ESPRESSO}",
    ),
    mimalloc(
        "barnes-163840",
        "barnes",
        stdin="barnes/input",
        input="barnes/input",
        drop=r"^[A-Z]+(TIME|START|END) *=",
    ),
    mimalloc("larson", "larson", LARSON, drop=LARSON_RATE, rate=LARSON_RATE, lasts=1),
    mimalloc(
        "larson-sized", "larson-sized", LARSON, drop=LARSON_RATE, rate=LARSON_RATE, lasts=1
    ),
    mimalloc("mstress", "mstress", "{threads} 50 25"),
    mimalloc(
        "rptest",
        "rptest",
        "{threads} 0 1 2 500 1000 100 8 16000",
        blank=RPTEST_RATE + ".*",
        rate=RPTEST_RATE,
    ),
    mimalloc("mleak-5", "mleak", "5"),
    mimalloc("mleak-50", "mleak", "50"),
    mimalloc("alloc-test-1", "alloc-test", "1", blank=r"in \d+ ms.*"),
    mimalloc("alloc-test-n", "alloc-test", "{threads}", blank=r"in \d+ ms.*", unordered=True),
    mimalloc("sh6bench", "sh6bench", "{twice}", blank=r"[\d.]+"),
    mimalloc("sh8bench", "sh8bench", "{twice}", blank=r"[\d.]+"),
    mimalloc(
        "xmalloc-test",
        "xmalloc-test",
        "-w {threads} -t 2 -s 64",
        drop="^rtime",
        rate=r"free/sec: ([\d.]+) M",
        unit=1e6,
        lasts=2,
    ),
    mimalloc("cache-scratch-1", "cache-scratch", SCRATCH_1),
    mimalloc("cache-scratch-n", "cache-scratch", SCRATCH_N),
    mimalloc("cache-thrash-1", "cache-thrash", SCRATCH_1),
    mimalloc("cache-thrash-n", "cache-thrash", SCRATCH_N),
    mimalloc("malloc-large", "malloc-large"),
    mimalloc("glibc-simple", "glibc-simple"),
    # Runs for two seconds and says how far it got.
    mimalloc(
        "glibc-thread",
        "glibc-thread",
        "{threads}",
        drop="iterations",
        rate=r"(\d+) iterations",
        unit=0.5,
        lasts=2,
    ),
]

PROGRAMS = MICRO + APPS + MIMALLOC
GROUPS = ("micro", "apps", "mimalloc")


class Places:
    """Where the programs of each group and their inputs are."""

    def __init__(self, mimalloc_bench=None):
        build = benchlib.build_dir()
        self.folders = {"micro": build / "bench", "apps": build / "apps", "mimalloc": None}
        self.inputs = None
        if mimalloc_bench:
            self._find_mimalloc_bench(mimalloc_bench)

    def _find_mimalloc_bench(self, folder):
        given = pathlib.Path(folder).resolve()
        if not given.is_dir():
            raise benchlib.Failure(f"{folder} is not a directory")
        places = [given / "out" / "bench", given]
        found = [p for p in places if any(_executable(p / x.binary) for x in MIMALLOC)]
        if not found:
            raise benchlib.Failure(
                f"no built program of mimalloc-bench in {places[0]} or {given}; build them with: "
                f"cmake -S {given}/bench -B {places[0]} && make -C {places[0]}"
            )
        roots = [given, found[0], *found[0].parents[:2]]
        inputs = [root / "bench" for root in roots] + [given]
        self.folders["mimalloc"] = found[0]
        self.inputs = next((place for place in inputs if (place / "barnes/input").is_file()), None)

    def path(self, program):
        return self.folders[program.group] / program.binary

    def missing(self, program):
        """What keeps a program from running, or None."""
        if not self.folders[program.group]:
            return "--mimalloc-bench DIR says where mimalloc-bench is built"
        path = self.path(program)
        if not _executable(path):
            return f"{path} is not built" + ("" if program.group == "mimalloc" else ": run make")
        if program.input and not (self.inputs and (self.inputs / program.input).is_file()):
            return f"its input bench/{program.input} is neither beside nor above {path.parent}"
        return None


def _executable(path):
    return path.is_file() and os.access(path, os.X_OK)


def choose(places, wanted):
    """(programs, [what was left out and why]).

    A program of a group is left out if it is not built. A program that was named must be there.
    """
    chosen, left_out = [], []
    for name in wanted.split(","):
        found = [p for p in PROGRAMS if name in (p.label, "" if p.named else p.group)]
        if not found:
            known = " ".join([*GROUPS, *(p.label for p in PROGRAMS)])
            raise benchlib.Failure(f"{name!r} is no program or group known here: {known}")
        for program in found:
            why = places.missing(program)
            if why and name != program.group:
                raise benchlib.Failure(f"{program.label}: {why}")
            if why:
                left_out.append(f"{program.label}: left out, {why}")
            elif program not in chosen:
                chosen.append(program)
        if not any(p in chosen for p in found):
            raise benchlib.Failure(f"{found[0].label}: {places.missing(found[0])}")
    return chosen, left_out
