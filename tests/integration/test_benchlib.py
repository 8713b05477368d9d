# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""The benchmark drivers' common half, and mimalloc-bench on made-up programs. Needs no build."""

import json
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
    monkeypatch.setenv("KEPT", "1")
    plain = benchlib.environment(benchlib.Variant("glibc", None))
    assert "LD_PRELOAD" not in plain and "PMALLOC_HEAP" not in plain and plain["KEPT"] == "1"
    ours = benchlib.environment(benchlib.Variant("pmalloc", "/x.so", {"PMALLOC_MARKERS": "1"}))
    assert ours["LD_PRELOAD"] == "/x.so" and ours["PMALLOC_MARKERS"] == "1"


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


def test_peak_memory_is_the_programs_own():
    hold = "import time; block = bytearray(100_000_000); time.sleep(0.3)"
    result = benchlib.run([sys.executable, "-c", hold])
    assert 100e6 < result.rss < 200e6


# ---- mimalloc-bench


@pytest.fixture
def fake_build(tmp_path):
    """A build whose cfrac is a shell script of the test's choice."""

    def make(script):
        programs = tmp_path / "out/bench"
        programs.mkdir(parents=True, exist_ok=True)
        cfrac = programs / "cfrac"
        cfrac.write_text("#!/bin/sh\n" + script)
        cfrac.chmod(0o755)
        library = tmp_path / "other.so"
        library.write_bytes(b"")
        return tmp_path

    return make


def bench(folder, *arguments):
    argv = [sys.executable, SCRIPTS / "mimalloc-bench", folder, "--without-pmalloc", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_same_output_gives_a_table(fake_build, tmp_path):
    folder = fake_build('echo "$1"\n')
    report = tmp_path / "report.json"
    other = f"--lib=other={folder}/other.so"
    done = bench(folder, "--programs=cfrac", "--runs=2", other, f"--json={report}")
    assert done.returncode == 0, done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()[-2:]] == [
        ["cfrac", "glibc"],
        ["cfrac", "other"],
    ]
    data = json.loads(report.read_text())
    assert len(data["programs"]["cfrac"]["allocators"]["other"]["seconds"]["values"]) == 2
    assert data["machine"]["cpus"] >= 1


@pytest.mark.parametrize(
    "script, complaint",
    [
        ('echo "$LD_PRELOAD"\n', "output differs"),
        ('[ -z "$LD_PRELOAD" ] || exit 5\n', "exit status 5"),
        ('[ -z "$LD_PRELOAD" ] || kill -11 $$\n', "signal 11"),
    ],
)
def test_a_wrong_run_is_a_failure(fake_build, script, complaint):
    folder = fake_build(script)
    done = bench(folder, "--programs=cfrac", "--runs=1", f"--lib=other={folder}/other.so")
    assert done.returncode == 1
    assert "other: FAILED" in done.stdout and complaint in done.stdout


def test_what_is_missing_is_said(fake_build, tmp_path):
    done = bench(tmp_path / "nowhere")
    assert done.returncode == 2 and "is not a directory" in done.stderr
    done = bench(tmp_path)
    assert done.returncode == 2 and "no built program" in done.stderr
    folder = fake_build("true\n")
    done = bench(folder, "--programs=espresso")
    assert done.returncode == 2 and "espresso is not built" in done.stderr
    done = bench(folder, "--programs=nonsense")
    assert done.returncode == 2 and "known here" in done.stderr
    assert bench(folder, "--programs=all", "--runs=1").returncode == 0
