# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""How long threads stood still for commits, and how many pages were found meanwhile: by
pmalloc-info of a heap in use or killed, by its metrics, and by PMALLOC_STATS=1."""

import json
import re
import signal
import time

import pytest
from conftest import compiled, run, said, start, succeeds, tool
from test_metrics import metrics

ANSWERS = 30
BOUNDS = [n * 10**i for i in range(4, 10) for n in (1, 2, 5)] + [10**10]


def told(heap, *options):
    argv = [tool("pmalloc-info"), *options, "--json", heap]
    return json.loads(succeeds(run(argv, preload=False)))


def text(heap, *options):
    return succeeds(run([tool("pmalloc-info"), *options, heap], preload=False))


def fits(pauses):
    """The parts agree with each other."""
    lengths = [(row.get("at_most_ns"), row["count"]) for row in pauses["lengths"]]
    assert sum(count for _, count in lengths) == pauses["count"] > 0, pauses
    bounds = [bound for bound, _ in lengths]
    assert set(bounds) <= {*BOUNDS, None} and all(count for _, count in lengths), pauses
    known = [bound for bound in bounds if bound]
    assert known == sorted(known) and None not in bounds[:-1], pauses
    assert 0 < pauses["median_at_most_ns"] <= pauses["p99_at_most_ns"] <= pauses["longest_ns"]
    assert pauses["longest_ns"] <= pauses["held_ns"] <= pauses["longest_ns"] * pauses["count"]
    return pauses


@pytest.mark.check
def test_in_use_killed_and_recovered(heap):
    argv = [compiled("instants.c"), "none", ANSWERS]
    settings = {"HEAP": heap, "ROOTS": "root", "COMMIT": "output", "COMMIT_PATIENCE": "20"}
    with start([str(a) for a in argv], **settings) as process:
        for _ in range(ANSWERS):
            assert process.stdout.readline(), process.communicate()
        now = fits(told(heap)["pauses"])
        assert now["count"] >= ANSWERS and now["pages_at_instants"] >= ANSWERS, now
        assert now["pages_in_rounds"] == [0, 0, 0, 0] and now["failed_commits"] == 0, now
        assert told(heap, "--follow", "--count", "1")["pauses"] == now
        figures, followed = metrics(heap), text(heap, "--follow", "--count", "1")
        process.send_signal(signal.SIGKILL)
    at = str(heap)
    counts = [figures["pmalloc_pause_seconds_bucket", at, f"{b / 1e9:g}"] for b in BOUNDS]
    counts.append(figures["pmalloc_pause_seconds_bucket", at, "+Inf"])
    assert counts == sorted(counts) and counts[-1] == now["count"]
    steps = [after - before for before, after in zip([0, *counts], counts)]
    assert [s for s in steps if s] == [row["count"] for row in now["lengths"]]
    assert figures["pmalloc_pause_seconds_count", at] == now["count"]
    assert figures["pmalloc_pause_seconds_sum", at] == pytest.approx(now["held_ns"] / 1e9)
    assert figures["pmalloc_pause_longest_seconds", at] == now["longest_ns"] / 1e9
    assert figures["pmalloc_pages_at_instants_total", at] == now["pages_at_instants"]
    assert figures["pmalloc_pages_before_instants_total", at] == 0
    assert told(heap)["pauses"] == now, "killed"
    line = rf"threads stood still {now['count']} times, half of them for at most [0-9.]+ ms, "
    line += r"99 of 100 for at most [0-9.]+ ms, the longest for [0-9.]+ ms"
    assert re.search(line, followed) and re.search(line, text(heap)), (followed, text(heap))
    succeeds(run([tool("pmalloc-recover"), heap], preload=False))
    assert "pauses" not in told(heap) and "stood still" not in text(heap)


def killed_after_rounds(heap):
    """A program killed after a commit with rounds; what was found before the kill."""
    argv = [compiled("rounds.c", "-D_GNU_SOURCE", libraries=["-lpthread"]), "0"]
    settings = {"HEAP": heap, "ROOTS": "areas", "COMMIT": "5ms", "COMMIT_WATCH": "1"}
    with start([str(a) for a in argv], **settings) as process:
        process.stdout.readline()
        until = time.monotonic() + 10
        while time.monotonic() < until:
            rounds = told(heap).get("pauses", {}).get("pages_in_rounds", [0])
            if rounds[0]:
                break
        process.send_signal(signal.SIGKILL)
    return rounds


def test_pages_by_rounds(heap):
    """Where the kernel keeps a record of stores, most are found in rounds. Between the end of a lap
    and the next commit the journal has none, and so no pauses: some kills come then."""
    for _ in range(20):
        rounds = killed_after_rounds(heap)
        if not rounds[0]:
            pytest.skip("this kernel keeps no record of stores here")
        if "pauses" in told(heap):
            break
    now = fits(told(heap)["pauses"])
    assert now["pages_in_rounds"][0] >= rounds[0] and now["pages_at_instants"] > 0, now
    found = sum(now["pages_in_rounds"])
    assert metrics(heap)["pmalloc_pages_before_instants_total", str(heap)] == found
    assert re.search(r"pages: \S+ found meanwhile, \S+ in round 1, \S+ in round 2", text(heap))


def test_statistics(heap):
    settings = {"HEAP": heap, "ROOTS": "root", "COMMIT": "output", "STATS": "1"}
    done = run([compiled("sections.c"), 1, 1, ANSWERS], **settings)
    succeeds(done)
    found = re.search(
        r"stats: threads stood still for commits: half of the times for at most (\d+) "
        r"microseconds, 99 of 100 for at most (\d+); pages found meanwhile (\d+), in a first round "
        r"(\d+), in later ones \d+, \d+, \d+",
        done.stderr,
    )
    assert found, said(done)
    half, most, at_instants, first = map(int, found.groups())
    longest = int(re.search(r"with the threads held, at most (\d+)", done.stderr)[1])
    pages = int(re.search(r"stats: commits: \d+ of (\d+) pages in all", done.stderr)[1])
    assert 0 < half <= most <= longest and 0 < at_instants <= pages, said(done)
    assert first == 0, said(done)


def test_without_commits_there_are_none(heap):
    succeeds(run([compiled("sections.c"), 1, 1, 3], HEAP=heap, ROOTS="root"))
    assert "pauses" not in told(heap)
    assert not [key for key in metrics(heap) if "pause" in key[0]]
