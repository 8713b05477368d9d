# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What people ask of a running allocator: statistics, mallinfo, malloc_info."""

import json
import re
import xml.etree.ElementTree

import pytest
from conftest import run, succeeds
from figures_program import Figures, INFO, program  # noqa: F401


def look(heap, *arguments):
    return json.loads(
        succeeds(run([INFO, "--follow", "--count", 1, "--json", *arguments, heap], preload=False))
    )


# ---- mallinfo, malloc_info -----------------------------------------------------------------------


@pytest.mark.parametrize("backing", ["file", "volatile"])
def test_mallinfo_moves_by_what_is_allocated(program, processes, heap, backing):
    figures = Figures(program, processes, HEAP=heap, ROOTS="held", BACKING=backing)
    first = figures.info()
    figures.ask("small 1000 100")  # blocks of 112 bytes
    second = figures.info()
    assert second["uordblks"] - first["uordblks"] == 112 * 1000
    assert (second["hblks"], second["hblkhd"]) == (first["hblks"], first["hblkhd"])
    figures.ask("large 10 100000")
    third = figures.info()
    assert third["uordblks"] == second["uordblks"]
    assert third["hblks"] - second["hblks"] == 10
    assert 10 * 100000 <= third["hblkhd"] - second["hblkhd"] <= 10 * 115000
    figures.ask("free")
    last = figures.info()
    for field in ("uordblks", "hblks", "hblkhd"):
        assert last[field] == first[field], field
    figures.end()


def test_mallinfo_with_threads(program, processes, heap):
    figures = Figures(program, processes, HEAP=heap, ROOTS="held")
    before = figures.info()
    figures.ask("threads 8")
    amid = figures.info()
    least = 8 * sum(i * 7 % 3000 for i in range(1, 500, 2))
    assert least <= amid["uordblks"] - before["uordblks"] <= least * 1.3 + 8 * 4096
    assert amid["fsmblks"] > before["fsmblks"]
    stats = figures.ask("xml")
    assert int(re.search(r'caches count="(\d+)"', stats)[1]) == 9
    figures.ask("join")
    after = figures.info()
    assert after["fsmblks"] <= before["fsmblks"] + 32768
    # glibc keeps the stacks of ended threads, and with them the threads' thread-local tables.
    assert after["uordblks"] <= before["uordblks"] + 8 * 4096
    figures.end()


def test_mallinfo_agrees_with_what_is_on_media(program, processes, heap):
    figures = Figures(program, processes, HEAP=heap, ROOTS="held")
    for order in ("small 3000 700", "large 5 50000", "large 2 9000000", "trim"):
        figures.ask(order)
        m, seen = figures.info(), look(heap)
        assert seen["settled"] and seen["owner_pid"] == figures.process.pid
        assert seen["slab_bytes"] + m["keepcost"] == m["arena"]
        assert seen["extents"] == m["hblks"] and seen["extent_bytes"] == m["hblkhd"]
        assert seen["slab_bytes"] + seen["extent_bytes"] + seen["free_bytes"] == seen["heap_bytes"]
        assert seen["slabs"] == sum(c["slabs"] for c in seen["classes"])
        assert seen["log_live_entries"] == seen["slabs"] + seen["extents"]
        assert seen["heap_bytes"] == (heap / "heap.0").stat().st_size
    used, large = m["uordblks"], m["hblkhd"]
    figures.process.kill()
    figures.process.wait()
    info = json.loads(succeeds(run([INFO, "--json", heap], preload=False)))
    assert info["slab_bytes"] == seen["slab_bytes"] and info["extent_bytes"] == large
    live = sum(c["live"] * c["size"] for c in info["classes"])
    assert (
        0.9 * used <= live <= used
    ), "only a few blocks of the process may be out of reach of its roots"


def test_malloc_info_is_xml_that_adds_up(program, processes, heap):
    figures = Figures(program, processes, HEAP=heap, ROOTS="held")
    figures.ask("small 5000 48")
    figures.ask("large 3 70000")
    m = figures.info()
    root = xml.etree.ElementTree.fromstring(figures.ask("xml"))
    assert root.tag == "malloc"
    sizes = [{k: int(v) for k, v in size.attrib.items()} for size in root.iter("size")]
    assert sum(size["bytes"] * size["used"] for size in sizes) == m["uordblks"]
    assert all(size["used"] <= size["total"] for size in sizes)
    assert next(size for size in sizes if size["bytes"] == 48)["used"] >= 5000
    totals = {total.attrib["type"]: total.attrib for total in root.iter("total")}
    assert (
        int(totals["large"]["size"]) == m["hblkhd"] and int(totals["large"]["count"]) == m["hblks"]
    )
    figures.end()


# ---- statistics ----------------------------------------------------------------------------------


def check_statistics(text):
    """Every sum in the lines adds up, and so do the columns of the table."""
    lines = text.splitlines()
    assert lines and all(line.startswith("pmalloc: stats: ") for line in lines), text
    used = [
        int(n)
        for n in re.search(
            r"in use (\d+) bytes = (\d+) in (\d+) small.* \+ (\d+) in (\d+) large", text
        ).groups()
    ]
    assert used[0] == used[1] + used[3]
    heap = [
        int(n)
        for n in re.search(r"heap (\d+) bytes = (.*)", text)[0].replace("heap ", "", 1).split()
        if n.isdigit()
    ]
    assert heap[0] == sum(heap[1:])
    slabs = re.search(
        r"slabs (\d+) bytes = in use (\d+) \+ cached by (\d+) threads (\d+) "
        r"\+ free (\d+) \+ .* (\d+)",
        text,
    )
    total, in_use, _, cached, free, ends = (int(n) for n in slabs.groups())
    assert total == in_use + cached + free + ends == heap[1]
    assert in_use == used[1]
    rows = [
        [int(n) for n in line.split()[2:]]
        for line in lines
        if re.fullmatch(r"pmalloc: stats: [ \d]+", line)
    ]
    assert rows
    for _, _, blocks, row_used, row_cached, row_free in rows:
        assert blocks == row_used + row_cached + row_free
    for column, sum_of in ((3, in_use), (4, cached), (5, free)):
        assert sum(row[0] * row[column] for row in rows) == sum_of
    assert sum(row[1] for row in rows) * 65536 == total
    assert sum(row[3] for row in rows) == used[2]
    arenas = re.findall(r"arena \d+: \d+ threads, (\d+) slabs", text)
    assert sum(map(int, arenas)) == sum(row[1] for row in rows)
    return {"small": used[1], "large": used[3], "slabs": total}


@pytest.mark.parametrize("backing", ["file", "volatile"])
def test_statistics_add_up(program, processes, heap, backing):
    figures = Figures(program, processes, HEAP=heap, ROOTS="held", BACKING=backing, STATS=1)
    figures.ask("small 20000 33")
    figures.ask("threads 6")
    figures.ask("large 7 123456")
    figures.ask("join")
    m = figures.info()
    stats = check_statistics(text := figures.end())
    assert stats["small"] >= 20000 * 48 and stats["large"] == m["hblkhd"]
    assert ("log" in text and "flushes" in text) == (backing == "file")


def test_malloc_stats_says_the_same(program, processes, heap):
    figures = Figures(program, processes, HEAP=heap, ROOTS="held")
    figures.ask("small 100 5000")
    m = figures.info()
    figures.ask("stats")
    stats = check_statistics(figures.end())
    assert stats["small"] == m["uordblks"] and stats["large"] == m["hblkhd"]


def test_entries_that_stand_and_write_backs_are_counted(program, heap):
    done = run(
        [program], stdin="large 50 20000\n", HEAP=heap, ROOTS="held", STATS=1, PERSIST="cache"
    )
    succeeds(done)
    assert int(re.search(r"(\d+) entries stand", done.stderr)[1]) >= 50
    assert int(re.search(r"(\d+) flushes", done.stderr)[1]) >= 50
