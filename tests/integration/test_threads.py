# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Threads that start and end in every way there is, and signal handlers that ask for memory."""

import json
import os
import re
import shutil

import pytest

from conftest import compiled, on_media, recover, recovered, run, said, succeeds, tool

MEGABYTE = 1 << 20
CXX = os.environ.get("CXX") or "g++"


@pytest.fixture(scope="module")
def threads():
    return compiled("threads.c", name="pmtest_threads")


@pytest.fixture(scope="module")
def signals():
    return compiled("signals.c", name="pmtest_signals")


def grown(done):
    """The figures of the lines "before" and "after", and the number of thread caches at the end."""
    text = succeeds(done)
    lines = {
        line.split()[0]: line for line in text.splitlines() if line.startswith(("before", "after"))
    }
    before, after = (
        {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", lines[when])}
        for when in ("before", "after")
    )
    return before, after, int(re.search(r'<caches count="(\d+)"', text)[1])


def clean(heap, leaked=100_000):
    """The heap was closed cleanly. It holds nothing but what stdio and the C library never free."""
    assert recover(heap, "--check").returncode == 0
    info = json.loads(succeeds(run([tool("pmalloc-info"), "--json", heap], preload=False)))
    assert info["leaks_exact"] and info["leaked_bytes"] < leaked, info
    for _ in range(20):  # each end and each recovery gives space back for a quarter of a second
        if on_media(heap) < 8 * MEGABYTE:
            break
        assert recover(heap).returncode == 0
    assert on_media(heap) < 8 * MEGABYTE


@pytest.mark.parametrize(
    "mode, count", [("waves", 5000), ("sequence", 5000), ("keys", 2000), ("cancel", 150)]
)
def test_threads_leave_nothing_behind(threads, heap, mode, count):
    before, after, caches = grown(run([threads, mode, count], HEAP=heap, ROOTS="keep"))
    assert after["used"] == before["used"]
    assert after["maps"] <= before["maps"] + 4
    assert after["rss"] <= before["rss"] + 2048
    assert caches == 1
    clean(heap)


@pytest.mark.parametrize("persist", ["none", "page"])
def test_asynchronous_cancellation_leaves_no_lock_and_no_cache(threads, heap, persist):
    """The program loses what the cancelled threads held themselves, as with any malloc."""
    done = run([threads, "cancel-async", 150], HEAP=heap, ROOTS="keep", PERSIST=persist)
    before, after, caches = grown(done)
    assert caches == 1
    assert after["maps"] <= before["maps"] + 4
    assert recover(heap, "--check").returncode == 0


def test_exit_while_others_allocate(threads, heap):
    for i in range(60):
        done = run([threads, "exit", i * 100], HEAP=heap, ROOTS="keep")
        assert (done.returncode, done.stdout, done.stderr) == (0, "the end\n", ""), said(done)
        if i % 10 == 0:
            assert recovered(heap)["result"] in ("recovered", "clean")
    assert recovered(heap)


def test_threads_that_end_without_a_word(threads, heap):
    """The caches of such threads stay, so the close is not clean. Nothing is lost."""
    for _ in range(3):
        assert succeeds(run([threads, "raw", 300], HEAP=heap, ROOTS="keep")) == "raw\n"
    assert recovered(heap)


@pytest.mark.parametrize("backing", ["file", "volatile"])
@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("sizes", ["small", "large"])
def test_malloc_in_signal_handlers(signals, heap, sizes, count, backing):
    done = run([signals, sizes, 2, count], HEAP=heap, ROOTS="keep", BACKING=backing)
    figures = dict(re.findall(r"(\w+)=(\d+)", succeeds(done)))
    assert int(figures["handled"]) > 100
    if sizes == "small":
        assert int(figures["refused"]) == 0
    if backing == "file":
        clean(heap, 400_000)  # a handler that finds no room leaves its blocks to the next recovery


@pytest.mark.parametrize("mode", ["none", "heap", "20ms"])
def test_fork_beside_threads_that_read_and_flush_streams(heap, mode):
    """libc's fork waits for its list of streams; who has it may wait for one that allocates."""
    more = {"HEAP": heap, "ROOTS": "keep"} if mode != "none" else {}
    more |= {"COMMIT": mode} if mode == "20ms" else {}
    done = run([compiled("streams.c", name="pmtest_streams"), 30], timeout=60, **more)
    assert (done.returncode, done.stdout, done.stderr) == (0, "right\n", ""), said(done)


# ---- libraries that come and go ------------------------------------------------------------------


@pytest.fixture(scope="module")
def modules():
    """The program, and six libraries with thread-local data."""
    flags = ("-DLIBRARY", "-shared", "-fPIC")
    library = compiled("modules.cc", *flags, name="libmodule.so", compiler=CXX)
    libraries = [library.with_name(f"libmodule{i}.so") for i in range(6)]
    for copy in libraries:
        shutil.copyfile(library, copy)
    return compiled("modules.cc", name="pmtest_modules", compiler=CXX), libraries


@pytest.mark.parametrize(
    "mode, rounds, count", [("plain", 1000, 1), ("rounds", 200, 6), ("threads", 300, 6)]
)
def test_libraries_with_thread_local_data(modules, heap, mode, rounds, count):
    program, libraries = modules
    before, after, caches = grown(
        run([program, mode, rounds, *libraries[:count]], HEAP=heap, ROOTS="keep")
    )
    assert after["used"] <= before["used"] + 4096
    assert after["maps"] <= before["maps"] + 4
    assert after["rss"] <= before["rss"] + 2048
    assert caches == 1
    assert recover(heap, "--check").returncode == 0


# ---- handlers of fork ----------------------------------------------------------------------------


@pytest.mark.parametrize("backing", ["file", "volatile"])
@pytest.mark.parametrize("count", [0, 3])
def test_fork_handlers_that_allocate(heap, count, backing):
    """Some handlers are registered after ours. Others would come before ours but for the flag that
    makes the loader start our library first."""
    library = compiled("atfork.c", "-DLIBRARY", "-shared", "-fPIC", name="libatfork.so")
    program = compiled(
        "atfork.c", f"-Wl,-rpath,{library.parent}", name="pmtest_atfork", libraries=(library,)
    )
    done = run([program, 15, count], HEAP=heap, ROOTS="late", BACKING=backing)
    assert succeeds(done) == "15 forks\n"
    if backing == "file":
        assert recover(heap, "--check").returncode == 0
        assert recovered(heap)
