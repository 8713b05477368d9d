# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""How often words of a heap were led to another build or place of its program: by pmalloc-info and
its metrics. The programs are those of test_moved.py."""

import json
import re
import time

import pytest
from conftest import copy_heap, run, said, succeeds, tool
from test_metrics import metrics
from test_moved import build, modules, place  # noqa: F401

INFO = tool("pmalloc-info")


def told(heap):
    return json.loads(succeeds(run([INFO, "--json", heap], preload=False)))


def figures(heap):
    """Count, words and time of the metrics; they agree with the record."""
    found, at = metrics(heap), str(heap)
    record = told(heap).get("rebased")
    assert found["pmalloc_rebases_total", at] == (record or {"count": 0})["count"]
    if record:
        assert found["pmalloc_rebase_words", at] == record["words"]
        assert found["pmalloc_rebase_timestamp_seconds", at] == pytest.approx(record["time"])
    return record


@pytest.mark.check
@pytest.mark.parametrize("settings", [{}, {"COMMIT": "output"}], ids=["plain", "commits"])
def test_other_builds(place, settings):  # noqa: F811
    """Each one counts, with the words of the start's line; a start of the same build does not."""
    builds, begun, ever = [build(1), build(2, "-O2")], time.time(), 0
    place.runs(builds[0], **settings)
    assert figures(place.heap) is None
    for count, number in enumerate([1, 0, 1], 1):
        done = place.runs(builds[number], **settings)
        words = int(re.search(r"heap: (\d+) words of it led into .*another build", done.stderr)[1])
        ever += words
        for _ in range(2):
            record = figures(place.heap)
            assert record["count"] == count and record["words"] == words, (record, words)
            assert record["words_ever"] == ever and record["other_build"] is True
            assert begun < record["time"] < time.time()
            place.runs(builds[number], **settings)
        begun = record["time"]
    text = succeeds(run([INFO, place.heap], preload=False))
    assert re.search(rf"rebased    3 times, last at .*: {words} words, for another build\n", text)


def test_other_places(place):  # noqa: F811
    built = build(1)
    for count in range(3):
        place.runs(built, RANDOMIZE=1)
        record = figures(place.heap)
        assert (record or {"count": 0})["count"] == count
    assert record["other_build"] is False
    assert "for another place" in succeeds(run([INFO, place.heap], preload=False))


def test_what_changes_nothing_does_not_count(place, shm):  # noqa: F811
    """A refusal, and a look at what would be changed."""
    place.runs(build(1))
    place.put(build(2, "-O2"))
    for settings, status in ({"REBASE": "refuse"}, 125), ({"REBASE": "look"}, 0):
        done = place.run(**settings)
        assert done.returncode == status, said(done)
        assert figures(place.heap) is None
    kept = copy_heap(place.heap, shm / "kept")
    done = place.run(REBASE="only")
    assert done.returncode == 0, said(done)
    assert figures(place.heap)["count"] == 1 and figures(kept) is None


@pytest.mark.parametrize("settings", [{}, {"COMMIT": "output"}], ids=["plain", "commits"])
def test_a_module_that_comes_later(modules, shm, settings):  # noqa: F811
    """Its words are changed while the program runs, which is killed then."""
    heap, expected = shm / "heap", 0
    first, _ = modules(0, 0, **settings)
    assert figures(heap) is None
    taken = (4096, hex(int(first, 16) & ~0xFFF))
    for number in (0, 0, 1):
        _, line = modules(number, *taken, **settings)
        words = re.search(r"heap: (\d+) words? of it led into", line)
        expected += bool(words)
        record = figures(heap)
        assert record["count"] == expected, record
        if words:
            assert record["words"] == int(words[1]), record
    assert expected == 2 and record["other_build"] is True
