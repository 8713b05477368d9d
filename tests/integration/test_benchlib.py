# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""The part that all benchmark drivers share. Needs no build."""

import argparse
import pathlib
import subprocess
import sys

import pytest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import benchlib  # noqa: E402


def test_every_round_starts_with_another_variant():
    order = list(benchlib.interleaved("abc", 4))
    assert "".join(item for _, item in order) == "abcbcacababc"
    assert [number for number, _ in order] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3


def test_summary():
    figures = benchlib.summary([4.0, 2.0, 3.0])
    assert (figures["median"], figures["min"], figures["max"]) == (3.0, 2.0, 4.0)
    assert figures["spread"] == pytest.approx(2 / 3)
    assert benchlib.spread([5.0]) == 0


def test_table_aligns_numbers_right_and_names_left():
    text = benchlib.table(["name", "s"], [["a", "1.5"], ["long name", "12.25 (3%)"], ["b", "-"]])
    assert text.splitlines() == [
        "name                s",
        "---------  ----------",
        "a                 1.5",
        "long name  12.25 (3%)",
        "b                   -",
    ]


def test_environment_holds_the_variants_settings_only(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "other.so")
    monkeypatch.setenv("PMALLOC_HEAP", "/nowhere")
    monkeypatch.setenv("BENCH_ALLOCATOR", "other.so")
    monkeypatch.setenv("KEPT", "1")
    plain = benchlib.environment(benchlib.Variant("glibc", None), "/f")
    assert plain["KEPT"] == "1" and not plain.keys() & {
        "LD_PRELOAD",
        "PMALLOC_HEAP",
        "BENCH_ALLOCATOR",
    }
    ours = benchlib.Variant("pmalloc", "/x.so", {"PMALLOC_MARKERS": "1"})
    env = benchlib.environment(ours, "/f")
    assert env["LD_PRELOAD"] == "/x.so" and env["PMALLOC_MARKERS"] == "1"
    assert env["PMALLOC_HEAP"] == "/f/heap" and "PMALLOC_HEAP" not in benchlib.environment(ours)
    env = benchlib.environment(benchlib.Variant("theirs", None, {}, "/a.so"), "/f")
    assert (env["BENCH_ALLOCATOR"], env["BENCH_POOL"]) == ("/a.so", "/f/pool")


def test_run_reports_how_a_program_ended(tmp_path):
    source = tmp_path / "in"
    source.write_text("hello\n")
    result = benchlib.run(["sh", "-c", "cat; echo oh no >&2; exit 3"], stdin=source)
    assert (result.status, result.stdout, result.stderr) == (3, "hello\n", "oh no\n")
    assert benchlib.status_text(result) == "exit status 3: oh no"
    assert benchlib.run(["sh", "-c", "kill -9 $$"]).status == -9
    slow = benchlib.run(["sleep", "60"], timeout=0.2)
    assert slow.status == -9 and slow.seconds < 30
    with pytest.raises(benchlib.Failure, match="cannot run"):
        benchlib.run([str(tmp_path / "missing")])


def test_what_warms_the_machine_touches_memory_and_gives_it_back():
    script = (
        "import resource, benchlib\n"
        "benchlib.warm(0)\n"
        "before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss\n"
        "benchlib.warm(benchlib.size('300M'))\n"
        "own, after = (resource.getrusage(w).ru_maxrss "
        "for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))\n"
        "print(before, own >> 10 < 200, after >> 10 >= 300, "
        "benchlib.run(['sleep', '0.1']).peak < 100e6)\n"
    )
    argv = [sys.executable, "-c", script]
    done = subprocess.run(
        argv, env={"PYTHONPATH": str(SCRIPTS)}, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["0", "True", "True", "True"], done.stderr
    with pytest.raises(benchlib.Failure, match="available"):
        benchlib.warm(1 << 60)


@pytest.mark.parametrize(
    "text, bytes_", [("0", 0), ("4096", 4096), ("64k", 65536), ("2G", 2 << 30)]
)
def test_sizes(text, bytes_):
    assert benchlib.size(text) == bytes_


@pytest.mark.parametrize("text", ["", "M", "-1", "1.5G", "2T", "1MB"])
def test_what_is_no_size(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is not a size"):
        benchlib.size(text)


def test_peak_memory_is_the_programs_own():
    hold = "import time; block = bytearray(100_000_000); time.sleep(0.3)"
    result = benchlib.run([sys.executable, "-c", hold])
    assert 100e6 < result.peak < 200e6 and 100e6 < result.anon < 200e6


def test_peak_memory_counts_the_files_of_the_heap(tmp_path):
    # 50 MB of a file that the process does not map, and 30 MB of its own memory.
    script = (
        "import time; open('f', 'wb').write(bytes(50_000_000)); b = bytearray(30_000_000); "
        "time.sleep(0.3)"
    )
    result = benchlib.run([sys.executable, "-c", script], cwd=tmp_path, folder=tmp_path)
    assert 80e6 < result.peak < 150e6
    assert benchlib.file_blocks(tmp_path) >= 50e6


def test_geometric_mean():
    assert benchlib.geometric_mean([1, 4]) == pytest.approx(2)
    assert benchlib.geometric_mean(x for x in [0.5, 2, 8]) == pytest.approx(2)
