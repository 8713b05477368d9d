# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Every figure and table of the five papers: what it shows, what the paper found, and which runs of
paper_runs.py are its counterpart here, or why there is none.

The names are those of docs/papers.md. Figures are in the papers' own units; (8.2) is a section. A
figure of NVAlloc that PMAlloc's paper shows again has the same runs as that one.
"""

import dataclasses

# How many figures and tables a paper has.
PAPERS = {
    "pmalloc": (41, 4),
    "nvalloc": (21, 2),
    "makalu": (11, 4),
    "pallocator": (15, 2),
    "munoz": (1, 0),
}


@dataclasses.dataclass(frozen=True)
class Figure:
    name: str  # PAPER:NUMBER, a table with a t
    shows: str
    found: str = ""  # what the paper says
    runs: tuple = ()
    how: str = ""  # of paper_runs.HOW
    view: str = "time"  # of a run of scripts/bench: time, memory, or live (memory over live bytes)
    lacks: str = ""  # what the paper's has and the runs have not
    needs: str = ""  # a machine with this, for the paper's figure
    missing: str = ""  # why there are no runs yet
    never: str = ""  # why there cannot be any

    def state(self):
        if self.never:
            return "not applicable"
        if self.missing:
            return "no counterpart yet"
        return "in part" if self.lacks else "whole"


SMALL = ("threadtest", "prodcon", "shbench", "larson-small")
LARGE = ("larson-large", "dbmstest")
APPLICATIONS = ("vacation", "ackermann", "nqueens", "cfrac-barnes", "kruskal")
FRAGBENCH = tuple(f"fragbench-w{number}" for number in (1, 2, 3, 4))

TWO_NODES = "Two nodes. Lines of another node's memory are counted anywhere."
LARGE_FOUND = "40 times PMDK, 18 nvm_malloc, 55 PAllocator, 57 Makalu, at most (8.2)"
WEAK_FOUND = "70 times Makalu and 6 times Ralloc, at most (8.2)"
EADR_SMALL = "240% better on average; PAllocator takes 27% less time in Threadtest (8.9)"
BREAKDOWN = "51% to 87% of the time is flushing where nothing is done about it (8.2)"
DRAWING = "It shows a structure or a code path, and no measurement."

PMALLOC = (
    Figure(
        "pmalloc:1",
        "shares of time and of flushes that allocators take of FPTree",
        "up to 74.8% of the time, 57% of the flushes (3.1)",
        ("fptree", "flushes-fptree", "shares-fptree"),
    ),
    Figure(
        "pmalloc:2",
        "flushes of a line that was flushed at most three lines before",
        "99.7% PMDK, 94.4% nvm_malloc, 98.8% PAllocator, at most; 55%, 47%, 54% in FPTree (3.2)",
        ("reflush", "flushes-small", "flushes-fptree"),
    ),
    Figure(
        "pmalloc:3",
        "addresses of the first 1,000 metadata flushes of DBMStest",
        "small random writes over the whole heap (3.3)",
        ("flushes-large", "flush-large"),
    ),
    Figure("pmalloc:4", "the same of nvm_malloc by two searches", never="About nvm_malloc alone."),
    Figure(
        "pmalloc:5",
        "peak memory of Fragbench under other allocators",
        "up to 2.8 GB for 1 GB in use (3.4)",
        FRAGBENCH,
        view="live",
    ),
    Figure(
        "pmalloc:6",
        "slowdown of other allocators on two nodes",
        "1.29 to 4.6 times slower (3.5)",
        ("nodes-small", "nodes-one-side", "nodes", "nodes-prodcon"),
        needs=TWO_NODES,
    ),
    Figure(
        "pmalloc:16",
        "small blocks, allocators with strong consistency, over threads",
        "6.4 times PMDK, 3.5 nvm_malloc, 3.9 PAllocator, at most (8.2)",
        SMALL,
    ),
    Figure(
        "pmalloc:17",
        "where the time of small blocks goes, optimisations apart",
        BREAKDOWN,
        ("shares-small", "flush-small", "reflush"),
    ),
    Figure(
        "pmalloc:18", "small blocks, allocators with a collector, over threads", WEAK_FOUND, SMALL
    ),
    Figure(
        "pmalloc:19",
        "misses of the first cache in those programs",
        "fewest of the three (8.2)",
        runs=("misses",),
    ),
    Figure(
        "pmalloc:20",
        "gain by volatile copies of bitmaps",
        "up to 1.57 times (8.2)",
        never="Free bits are volatile here, and there is no other way to compare with.",
    ),
    Figure("pmalloc:21", "large blocks over threads", LARGE_FOUND, LARGE),
    Figure(
        "pmalloc:22",
        "where the time of large blocks goes",
        "the log takes 28% and 45% off the flushing; all of it up to 49% of the time (8.2)",
        ("shares-large", "flushes-logs", "log-cost", "flush-large"),
    ),
    Figure("pmalloc:23", "memory, small blocks", "like the others (8.2)", SMALL, view="memory"),
    Figure("pmalloc:24", "memory, large blocks", "like the others (8.2)", LARGE, view="memory"),
    Figure(
        "pmalloc:25",
        "figure 16 with threads that are not pinned",
        "still faster than the others (8.2)",
        SMALL,
        how="unpinned",
    ),
    Figure(
        "pmalloc:26",
        "figure 18 with threads that are not pinned",
        "still faster than the others (8.2)",
        SMALL,
        how="unpinned",
    ),
    Figure(
        "pmalloc:27",
        "Fragbench: memory, slabs by use, time, with and without morphing",
        "up to 41.9% less memory for 4.5% of the time (8.3)",
        ("frag-course", "morph", *FRAGBENCH),
        view="live",
    ),
    Figure(
        "pmalloc:28",
        "slabs that morph, and those that have ended it",
        "W1 37.2%, W2 14.4%, W3 43.6%, W4 22.2% morph; in the end 95.7% to 98.3% have ended (8.3)",
        ("frag-course", "morph"),
    ),
    Figure(
        "pmalloc:29",
        "16 to 80 threads on two nodes, strong consistency",
        "2.9 times of itself without nodes, 7.3 times others, at most (8.4)",
        ("nodes-small", "nodes", "nodes-prodcon"),
        needs=TWO_NODES,
    ),
    Figure(
        "pmalloc:30",
        "traffic to the memory of both nodes",
        "next to none is remote; without nodes 29% to 82% (8.4)",
        ("nodes", "nodes-prodcon"),
        lacks="Bytes of the memory controllers: lines of another node are counted instead.",
    ),
    Figure(
        "pmalloc:31",
        "16 to 80 threads on two nodes, collectors",
        "1.45 times of itself without nodes, 36 times others, at most (8.4)",
        ("nodes-small", "nodes", "nodes-prodcon"),
        needs=TWO_NODES,
    ),
    Figure(
        "pmalloc:32",
        "FPTree over threads",
        "2.5 times PMDK, 2.7 nvm_malloc, 3.1 PAllocator; collectors 1.6; at most (8.5)",
        ("fptree-filled",),
        needs=TWO_NODES,
    ),
    Figure(
        "pmalloc:33",
        "where the time of FPTree goes",
        "all of it takes 43% off, nodes alone 26.4% (8.5)",
        runs=("shares-fptree",),
    ),
    Figure(
        "pmalloc:34",
        "six applications, strong consistency",
        "PMDK: Vacation 1.7, Ackermann 7.7, N-Queens 8.3, Kruskal 7.6 times; Cfrac 53% less time, "
        "Barnes the same (8.6)",
        APPLICATIONS,
    ),
    Figure(
        "pmalloc:35",
        "six applications, collectors",
        "Makalu: Vacation 2.9, Ackermann 39, N-Queens 278, Kruskal 3.2 times; Ralloc: 1.2, the "
        "same, 1.26, the same (8.6)",
        APPLICATIONS,
    ),
    Figure(
        "pmalloc:36",
        "four parameters: stripes, morphing, length of the deallocation log, remote frees",
        "six stripes; 20%; 400 KB or more; nodes gain 1.06 to 1.54 times (8.7)",
        ("stripes", "morph-percent", "nodes-remote"),
        lacks="The length of deallocation logs, which is fixed.",
        needs=TWO_NODES,
    ),
    Figure(
        "pmalloc:37",
        "length of the log over time",
        "98 fast and 98 slow collections of the log in Larson-large, 38 and 7 in DBMStest (8.8)",
        runs=("log-course",),
    ),
    Figure(
        "pmalloc:38",
        "cost of collecting the log",
        "3% in Larson-large, 8% in DBMStest (8.8)",
        runs=("log-cost",),
    ),
    Figure("pmalloc:39", "stripes on eADR", "no difference (8.9)", ("stripes",), how="cache"),
    Figure("pmalloc:40", "small blocks on eADR", EADR_SMALL, SMALL, how="cache"),
    Figure("pmalloc:41", "large blocks on eADR", "11 times on average (8.9)", LARGE, how="cache"),
    Figure("pmalloc:t1", "workloads of Fragbench", never="Settings: those of tests/bench."),
    Figure(
        "pmalloc:t2",
        "bytes written inside the media",
        "Threadtest 0.5 GiB, without nodes 2.1, PMDK 6.8; prod-con 2.1, 4.9, 11 (8.4)",
        never="Counters of Optane's modules.",
    ),
    Figure(
        "pmalloc:t3",
        "recovery of a list of 10, 50 and 100 million nodes, one thread",
        "GC 0.93, 4.9, 12.4 s; LOG 45, 97, 173 ms; Ralloc 0.55, 2.1, 6.7 s; Makalu 0.91, 8.3, "
        "23.5 s; PMDK 34, 54, 127 ms (8.8)",
        ("recovery-10m", "recovery-50m", "recovery-100m", "recovery-pinned"),
    ),
    Figure(
        "pmalloc:t4",
        "time of threads that synchronize deallocation logs",
        "1.326% in prod-con, next to nothing elsewhere (8.8)",
        never="There are no such threads.",
    ),
)

AGAIN = "FPTree: 1.2 times PMDK, 1.5 nvm_malloc, 3.1 PAllocator; collectors 35.4% (6.3)"
NVALLOC = (
    Figure(
        "nvalloc:1",
        "reflushes of other allocators, and peak memory of Fragbench",
        "99.7%, 94.4%, 98.8%; up to 2.8 GB for 1 GB (3)",
        ("flushes-small", *FRAGBENCH),
        view="live",
    ),
    Figure(
        "nvalloc:2",
        "addresses of metadata flushes of large blocks",
        "small random writes over the whole heap (3)",
        ("flushes-large", "flush-large"),
    ),
    Figure(
        "nvalloc:9",
        "small blocks, strong consistency",
        "6.4 times PMDK, 3.5 nvm_malloc, 3.9 PAllocator, at most (6.2)",
        SMALL,
    ),
    Figure("nvalloc:10", "small blocks, collectors", "70 times Makalu, 6 Ralloc (6.2)", SMALL),
    Figure(
        "nvalloc:11",
        "where the time goes",
        "up to 87% flushing in Threadtest; 48% of it saved (6.2)",
        ("shares-small", "shares-large"),
    ),
    Figure(
        "nvalloc:12",
        "large blocks",
        "40 times PMDK, 18 nvm_malloc, 55 PAllocator, 57 Makalu, at most (6.2)",
        LARGE,
    ),
    Figure(
        "nvalloc:13",
        "memory of Threadtest and DBMStest",
        "like the others or less (6.2)",
        ("threadtest", "dbmstest"),
        view="memory",
    ),
    Figure(
        "nvalloc:14",
        "FPTree over threads",
        AGAIN,
        ("fptree-filled",),
    ),
    Figure(
        "nvalloc:15",
        "Fragbench: memory, slabs by use, time, with and without morphing",
        "up to 41.9% less memory for 4.5% of the time (6.4)",
        ("frag-course", "morph", *FRAGBENCH),
        view="live",
    ),
    Figure(
        "nvalloc:16",
        "two parameters: stripes and morphing",
        "six stripes; 20% (6.5)",
        ("stripes", "morph-percent"),
    ),
    Figure(
        "nvalloc:17",
        "cost of collecting the log",
        "3% in Larson-large, 8% in DBMStest (6.6)",
        runs=("log-cost",),
    ),
    Figure(
        "nvalloc:18",
        "recovery of a list of 10 million nodes",
        "GC 933 ms, LOG 45, Ralloc 552, Makalu 911, PMDK 34 (6.6)",
        ("recovery-10m", "recovery-pinned"),
    ),
    Figure("nvalloc:19", "stripes on eADR", "no difference (6.7)", ("stripes",), how="cache"),
    Figure("nvalloc:20", "small blocks on eADR", "240% better (6.7)", SMALL, how="cache"),
    Figure("nvalloc:21", "large blocks on eADR", "11 times (6.7)", LARGE, how="cache"),
    Figure("nvalloc:t1", "workloads of Fragbench", never="Settings: those of tests/bench."),
    Figure("nvalloc:t2", "techniques of both variants", never="No measurement: docs/papers.md."),
)

INSIDE = "Nobody has put PMAlloc into Atlas or Mnemosyne."
MAKALU = (
    Figure(
        "makalu:7",
        "Larson, Threadtest and prod-con over threads",
        "orders of magnitude over nvm_malloc; close to a collector without persistence (13.1)",
        ("threadtest", "prodcon", "larson-one"),
    ),
    Figure(
        "makalu:8",
        "flushes for each thread",
        "far fewer than nvm_malloc (13.1)",
        ("flushes-small",),
    ),
    Figure("makalu:9", "Atlas and Mnemosyne with Makalu", "faster (13.3)", never=INSIDE),
    Figure(
        "makalu:10",
        "peak memory of figure 7's programs",
        "like Hoard; nvm_malloc somewhat less (A.1)",
        ("threadtest", "prodcon", "larson-small"),
        view="memory",
    ),
    Figure("makalu:11", "the same with consistent data", "faster (A.2)", never=INSIDE),
    Figure("makalu:t1", "functions of the interface", never="No measurement: docs/papers.md."),
    Figure(
        "makalu:t2",
        "recovery of lists that hang from 512 roots",
        "200 MiB: 4.18 ms and 60.98 ms of collection; 3 GiB: 37.96 ms and 1.03 s (13.2)",
        ("recovery-lists",),
    ),
    Figure("makalu:t3", "times of Atlas and Mnemosyne", never=INSIDE),
    Figure("makalu:t4", "times of Atlas with consistent data", never=INSIDE),
)

SIZES = "With --paper fewer blocks of 8 KB and more; blocks are of all threads together."
PALLOCATOR = (
    Figure(
        "pallocator:10",
        "allocation by size, threads and latency of the media",
        "linear to 16 threads; up to 54% less at 650 ns (5)",
        ("alloc", "alloc-more", "alloc-slow"),
        lacks=SIZES,
    ),
    Figure(
        "pallocator:11",
        "deallocation by size, threads and latency of the media",
        "linear to 16 threads; up to 60% less at 650 ns (5)",
        ("free", "free-more", "free-slow"),
        lacks=SIZES,
    ),
    Figure(
        "pallocator:12",
        "random sizes of three distributions",
        "uniform: 7.5 times NVML, 49.7 Makalu, 6.7 nvm_malloc, at most; 47% less at 650 ns "
        "(5)",
        ("randalloc",),
        lacks="Media of higher latency: to trace the stores to its long blocks takes too long.",
    ),
    Figure(
        "pallocator:13",
        "Larson with small, medium and large blocks",
        "4.5 times NVML, 1.6 Makalu, 3.9 nvm_malloc, at most (5)",
        ("larson-small", "larson-medium", "larson-large", "larson-slow"),
    ),
    Figure(
        "pallocator:14",
        "recovery by bytes in use and latency of the media",
        "61 GB: 45 ms; NVML 210 ms, Makalu 23.5 s, nvm_malloc 1.3 s (5)",
        ("recovery-10m", "recovery-50m", "recovery-100m", "recovery-slow"),
    ),
    Figure(
        "pallocator:15",
        "FPTree over threads",
        "NVML: 1.34, 1.26, 1.25 times with one thread, 2.39, 1.52, 1.67 with 44 (5)",
        ("fptree-each",),
    ),
    Figure("pallocator:t1", "memory technologies", never="About the media."),
    Figure(
        "pallocator:t2",
        "every other block freed, blocks of double the size, again and again",
        "256 GB: 2.1 million allocations to blocks of 2 GB; NVML and Makalu end at 128 KB "
        "(5)",
        ("fragstress-full", "fragstress"),
        view="live",
    ),
)

MUNOZ = (
    Figure(
        "munoz:1",
        "additions, and additions with removals, to three sets",
        "Ralloc over PMDK: additions 2.28 list, 1.16 hash, 0.86 skip list (3); frees 4 to 20 (1)",
        ("sets-add", "sets"),
    ),
)


def drawings(paper, first, last):
    """Figures without a measurement."""
    return tuple(
        Figure(f"{paper}:{number}", "a drawing", never=DRAWING) for number in range(first, last + 1)
    )


def order(figure):
    paper, _, number = figure.name.partition(":")
    return list(PAPERS).index(paper), number.startswith("t"), int(number.lstrip("t"))


FIGURES = sorted(
    PMALLOC
    + drawings("pmalloc", 7, 15)
    + NVALLOC
    + drawings("nvalloc", 3, 8)
    + MAKALU
    + drawings("makalu", 1, 6)
    + PALLOCATOR
    + drawings("pallocator", 1, 9)
    + MUNOZ,
    key=order,
)
