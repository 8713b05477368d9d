# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""The counters of scripts/counters stay within their bounds. No test is timed, so this holds on a
loaded machine, too."""

import json
import subprocess
import sys

import pytest
from conftest import BUILD, ROOT, environment, said


def counters(*arguments, **settings):
    argv = [sys.executable, ROOT / "scripts/counters", *arguments]
    env = environment(preload=False) | {"BUILD": str(BUILD)} | settings
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def all_counted(tmp_path_factory):
    file = tmp_path_factory.mktemp("counters") / "counted.json"
    return counters("--json", file), file


def test_no_counter_passes_its_bound(all_counted):
    done, _ = all_counted
    # What is above its bound comes last. A long message may be cut.
    assert done.returncode == 0, done.stdout.partition("Above the bound")[2] or said(done)


def make_tables(*arguments):
    argv = [sys.executable, ROOT / "scripts/make-tables", "--check", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_pages_show_what_is_counted(all_counted, tmp_path):
    _, file = all_counted
    done = make_tables(file)
    assert done.returncode == 0, said(done)
    figures = json.loads(file.read_text())
    figures["counters"]["batch"]["pmalloc"] = 92
    figures["counters"]["shared-handed"]["pmalloc"] *= 2
    (tmp_path / "other").write_text(json.dumps(figures))
    done = make_tables(tmp_path / "other")
    assert done.returncode == 1, said(done)
    assert "`batch` | 92 |" in done.stderr and "scale.md: | `handed`" in done.stderr, said(done)


def test_a_bound_that_is_passed_is_said():
    # Without decay every large block goes back to the file system as soon as it is freed.
    done = counters("--only=steady-large-calls,steady-calls", "--set=PMALLOC_DECAY_MS=0")
    assert done.returncode == 1, said(done)
    assert "steady-large-calls: " in done.stdout and "the bound is 0" in done.stdout, said(done)
    assert "  steady-calls: " not in done.stdout and "raise the bound" in done.stdout


def test_what_is_missing_is_said(tmp_path):
    done = counters("--only=pair-16", BUILD=str(tmp_path))
    assert done.returncode == 2 and "run make" in done.stderr, said(done)
    done = counters("--only=nonsense")
    assert done.returncode == 2 and "there is no counter nonsense" in done.stderr, said(done)
    done = counters("--only=pair-16", PATH="/nowhere")
    assert (
        done.returncode == 2 and "valgrind is missing: run scripts/bootstrap --test" in done.stderr
    )


def contention(*arguments):
    argv = [BUILD / "bench/contention", *arguments]
    env = environment(preload=False)
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


def contention_figures(workload, threads):
    done = contention(workload, str(threads))
    assert done.returncode == 0, said(done)
    lines = (line.split() for line in done.stdout.splitlines())
    return {kind: {k: int(v) for k, v in (p.split("=") for p in pairs)} for kind, *pairs in lines}


def test_lines_and_locks_are_counted_the_same_each_time():
    for workload in "handed", "larson-large":
        first, second = contention(workload, "8"), contention(workload, "8")
        assert first.returncode == 0 and first.stdout == second.stdout, said(first)


def test_a_large_block_is_sought_in_the_caches_of_the_node():
    seen = contention_figures("larson-large", 64)
    operations = sum(seen[kind]["ops"] for kind in ("malloc", "local", "remote"))
    assert operations > 0
    # Of all arenas of its node. With the caches of four arenas: 0.26 times an operation.
    assert sum(seen[kind]["extent"] for kind in seen) < operations / 40


def test_who_shares_lines_and_locks():
    seen = contention_figures("prodcon", 4)
    malloc, remote = seen["malloc"], seen["remote"]
    # Two producers on the first node, two consumers on the second: each frees what it did not make.
    assert seen["local"]["ops"] == 0 and remote["ops"] > 0
    assert malloc["own"] > 0 and malloc["other"] == 0
    # A free of the other node's block takes no lock. The producers drain the remote sets.
    assert remote["own"] == remote["other"] == remote["extent"] == remote["handed"] == 0
    assert 0 < remote["writes"] == remote["writes_far"] <= remote["ops"]
    assert 0 < malloc["bin_moved"] == malloc["bin_moved_far"]
    seen = contention_figures("large", 2)
    # Each keeps what it frees in the extent cache of its arena.
    for kind in "malloc", "local":
        figures = seen[kind]
        assert figures["ops"] > 0
        assert figures["extent"] == figures["handed"] == figures["drains"] == 0


def test_what_is_no_workload_is_said():
    for arguments in ("nonsense", "2"), ("pair", "0"), ("pair", "257"), ():
        done = contention(*arguments)
        assert done.returncode == 2 and "usage: contention" in done.stderr, said(done)
