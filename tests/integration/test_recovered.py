# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What is on record of the last recovery: by pmalloc-info, its metrics, and by who recovered."""

import json
import re
import signal
import time

import pytest
from conftest import recover, run, said, succeeds
from figures_program import Figures, INFO, program  # noqa: F401
from test_metrics import metrics

LARGE, BYTES = 7, 100000


def told(heap):
    return json.loads(succeeds(run([INFO, "--json", heap], preload=False)))


def text(heap):
    return succeeds(run([INFO, heap], preload=False))


def killed(program, processes, heap, **settings):  # noqa: F811
    """It had large blocks, which its root reaches."""
    figures = Figures(program, processes, HEAP=heap, ROOTS="held", **settings)
    figures.ask(f"large {LARGE} {BYTES}")
    figures.process.send_signal(signal.SIGKILL)
    figures.process.wait()


@pytest.mark.check
@pytest.mark.parametrize("who", ["tool", "start"])
@pytest.mark.parametrize("commit", [None, "20ms"])
def test_each_recovery_is_counted(program, processes, heap, who, commit):  # noqa: F811
    at, before = str(heap), time.time()
    for count in range(1, 4):
        settings = {"COMMIT": commit} if commit else {}
        killed(program, processes, heap, **settings)
        known = told(heap).get("recovered", {"count": 0})
        if who == "tool":
            succeeds(recover(heap))
        else:
            Figures(program, processes, HEAP=heap, **settings).end()
        now = told(heap)["recovered"]
        assert now["count"] == known["count"] + 1 == count and not now["kept_all"], (known, now)
        assert before < now["time"] < time.time() and 0 < now["seconds"] < 60
        found = metrics(heap)
        assert found["pmalloc_recoveries_total", at] == now["count"]
        assert found["pmalloc_recovery_timestamp_seconds", at] == pytest.approx(now["time"])
        assert found["pmalloc_recovery_seconds", at] == pytest.approx(now["seconds"])
        assert found["pmalloc_recovery_reached_bytes", at] == now["live_bytes"]
        assert found["pmalloc_recovery_freed_bytes", at] == now["freed_bytes"]
    assert re.search(rf"recovered  {now['count']} times, last at .* reached; freed", text(heap))


def test_what_it_freed(program, processes, heap):  # noqa: F811
    """Large blocks that no root reaches, and what a root reaches."""
    killed(program, processes, heap)
    succeeds(recover(heap))
    kept = told(heap)["recovered"]
    assert kept["live_bytes"] >= LARGE * BYTES and kept["freed_extents"] == 0, kept
    assert kept["freed_bytes"] == 0, kept
    figures = Figures(program, processes, HEAP=heap, ROOTS="held")
    figures.ask("threads 4")  # what these have stands on their stacks alone
    figures.process.kill()
    figures.process.wait()
    succeeds(recover(heap))
    now = told(heap)["recovered"]
    assert now["count"] == 2 and now["freed_slabs"] > 0, now
    assert now["freed_bytes"] >= 65536 * now["freed_slabs"], now


def test_a_heap_that_was_never_recovered(program, processes, heap):  # noqa: F811
    Figures(program, processes, HEAP=heap, ROOTS="held").end()
    Figures(program, processes, HEAP=heap, ROOTS="held").end()
    assert "recovered" not in told(heap) and "recovered  " not in text(heap)
    assert not [key for key in metrics(heap) if "recover" in key[0]]


def test_a_start_that_keeps_all(program, processes, heap):  # noqa: F811
    killed(program, processes, heap)
    Figures(program, processes, HEAP=heap, COLLECT="later").end()
    now, found = told(heap)["recovered"], metrics(heap)
    assert now["count"] == 1 and now["kept_all"], now
    assert ("pmalloc_recovery_freed_bytes", str(heap)) not in found
    assert "everything was kept" in text(heap)


def test_a_look_is_no_recovery(program, processes, heap):  # noqa: F811
    killed(program, processes, heap)
    for option in ("--check", "--dry-run"):
        done = recover(heap, option)
        assert done.returncode in (0, 1, 2), said(done)
    assert "recovered" not in told(heap)
