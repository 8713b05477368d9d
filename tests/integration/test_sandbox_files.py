# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""seccomp filters and plain files: what cannot be made durable is said, once, and the program goes
on. Filters and limits that a program in commit mode was started with."""

import os
import pathlib
import shutil
import tempfile

import pytest
from conftest import BUILD, app, compiled, one_message, recovered, refuses, run, said, succeeds

# What is called, and where: on a plain file msync also makes the length of heap.0 durable.
SYNCS = (("msync", "page"), ("fdatasync", "line"))


@pytest.fixture(scope="module")
def forbid():
    return compiled("forbid.c")


@pytest.fixture
def files():
    """The place of a heap of plain files."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="pmalloc-test-", dir=BUILD))
    yield folder / "heap"
    shutil.rmtree(folder)


def sandboxed(forbid, when, how, calls, heap, **settings):
    return run([forbid, when, how, calls, 600], HEAP=heap, ROOTS="kept", DECAY_MS=1, **settings)


def inherited(forbid, calls, heap, monkeypatch, **settings):
    """The filter is there before the program has PMAlloc."""
    monkeypatch.setenv("FORBID_PRELOAD", os.fspath(BUILD / "libpmalloc_preload.so"))
    argv = [forbid, "start", "EPERM", calls, 600]
    return run(argv, preload=False, HEAP=heap, ROOTS="kept", **settings)


@pytest.mark.parametrize("when", ("start", "later"))
@pytest.mark.parametrize("how", ("EPERM", "ENOSYS"))
@pytest.mark.parametrize("calls, persist", SYNCS)
def test_files_that_cannot_be_synced(forbid, files, when, how, calls, persist):
    done = sandboxed(forbid, when, how, calls, files, PERSIST=persist)
    assert succeeds(done) == "ok 0\n", said(done)
    one_message(done, "a sandbox forbids", "sync", str(files), "power failure", "allow")
    assert recovered(files)["roots"] == 1


@pytest.mark.parametrize("commit", ("5ms", "api", "idle", "output"))
def test_commits_without_msync(forbid, files, commit):
    """They need none."""
    done = sandboxed(forbid, "start", "EPERM", "msync", files, COMMIT=commit)
    assert succeeds(done) == "ok 0\n", said(done)
    one_message(done, "a sandbox forbids msync", str(files), "being opened or closed")
    assert recovered(files)["roots"] == 1
    done = sandboxed(forbid, "start", "EPERM", "msync", files, COMMIT=commit, VERBOSE=1)
    assert "commit mode: a kill or power loss goes back" in done.stderr, said(done)


def test_the_start_line_says_it(forbid, files):
    done = sandboxed(forbid, "start", "EPERM", "msync", files, VERBOSE=1)
    assert "plain file, and a sandbox forbids to sync it" in done.stderr, said(done)


def test_a_start_that_could_never_commit(forbid, files, monkeypatch):
    done = inherited(forbid, "fdatasync", files, monkeypatch, COMMIT="api")
    refuses(done, "PMALLOC_COMMIT", "not permitted", "seccomp", str(files), "allow it")
    assert recovered(files)["result"] != "damaged"


@pytest.mark.parametrize("calls, persist", SYNCS)
def test_a_filter_that_is_older_than_pmalloc(forbid, files, calls, persist, monkeypatch):
    """The first program that opens the heap has it."""
    done = inherited(forbid, calls, files, monkeypatch, PERSIST=persist)
    assert succeeds(done) == "ok 0\n", said(done)
    one_message(done, "a sandbox forbids", str(files))
    assert recovered(files)["roots"] == 1


LIMITS = [(f"-n {n}", "ulimit -n") for n in (9, 10, 11, 12, 13, 14)]
LIMITS += [("-f 1", "ulimit -f"), ("-d 100000", "ulimit -d"), ("-v 60000", "ulimit -v")]


@pytest.mark.parametrize("limit, hint", LIMITS)
def test_commit_mode_under_limits(files, limit, hint):
    """It works, or the line says what to do."""
    settings = {"HEAP": files, "ROOTS": "store", "COMMIT": "output", "PROGRAM": "kvshell"}
    succeeds(run([app("kvshell")], stdin="set a 1\n", **settings))
    script = f"ulimit {limit}; exec {app('kvshell')}"
    done = run(["bash", "-c", script], stdin="get a\n", **settings)
    if done.returncode == 0:
        assert (done.stdout, done.stderr) == ("1\n", ""), said(done)
    else:
        refuses(done, str(files) if hint != "ulimit -n" else "", hint)
    assert succeeds(run([app("kvshell")], stdin="get a\n", **settings)) == "1\n"


@pytest.mark.parametrize("commit", [None, "output"])
def test_whatever_address_space_lacks(files, commit):
    """From where nothing works to where all does: each start works, or its line names the heap and
    the limit."""
    settings = {"HEAP": files, "ROOTS": "store", "COMMIT": commit, "PROGRAM": "kvshell"}
    succeeds(run([app("kvshell")], stdin="set a 1\n", **settings))
    worked, limit = 0, 50000
    while worked < 10:
        limit = limit * 51 // 50
        script = f"ulimit -v {limit}; exec {app('kvshell')}"
        done = run(["bash", "-c", script], stdin="get a\n", **settings)
        if done.returncode == 0:
            assert done.stdout == "1\n", (limit, said(done))
            worked += 1
        elif "pmalloc:" in done.stderr:  # else bash or the loader could not begin
            last = done.stderr.splitlines()[-1]
            assert done.returncode == 125 and str(files) in last and "ulimit -v" in last, said(done)
        assert limit < 2000000, said(done)
