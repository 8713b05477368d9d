# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""scripts/run-tests, in a small tree of its own: what it runs first, what it leaves out, and that a
test which passes only the second time fails the run."""

import json
import os
import re
import shutil
import subprocess

import pytest
from conftest import HERE, ROOT, environment

ONCE = """
import pathlib
def test_steady(): pass
def test_once():
    seen = pathlib.Path({seen!r})
    if not seen.exists():
        seen.touch()
        raise AssertionError("the first time")
"""
MAKEFILE = """all:
\t@scripts/run-tests --beside good --workers 2
good:
\t@echo all is well, $(COLOUR), $(WORKERS)
bad:
\t@echo "ok   one"; echo broken; exit 3
"""


@pytest.fixture
def tree(tmp_path):
    for folder in ("scripts", "tests/integration"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / "scripts/run-tests", tmp_path / "scripts")
    for name in ("measured.py", "flaky.py"):
        shutil.copy(HERE / name, tmp_path / "tests/integration")
    (tmp_path / "Makefile").write_text(MAKEFILE)
    return tmp_path


def write(tree, name, text):
    (tree / "tests/integration" / f"test_{name}.py").write_text(text)


def run_tests(tree, *arguments):
    """Exit status, and the lines of the output."""
    env = environment(preload=False) | {"BUILD": str(tree / "build")}
    argv = [tree / "scripts/run-tests", *arguments]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout.splitlines()


def test_what_passes_the_second_time_fails_the_run(tree):
    write(tree, "a", ONCE.format(seen=str(tree / "seen")))
    write(tree, "b", "def test_good(): pass\n")
    status, lines = run_tests(tree)
    assert status == 1 and re.match("2 passed, 1 failed in ", lines[-1]), lines
    assert lines[-2].startswith("FLAKY: test_a::test_once failed, and passed the second time")
    assert any("the first time" in line for line in lines), "the first try is not shown"
    status, lines = run_tests(tree)
    assert status == 0 and re.match("3 passed in ", lines[-1]), lines


def test_unless_a_reason_is_known(tree):
    write(tree, "a", ONCE.format(seen=str(tree / "seen")))
    flaky = tree / "tests/integration/flaky.py"
    known = 'KNOWN = {"test_a::test_once": "a stub"}'
    flaky.write_text(re.sub(r"(?ms)^KNOWN = \{.*?\}$", known, flaky.read_text()))
    status, lines = run_tests(tree)
    assert status == 0 and re.match("2 passed in ", lines[-1]), lines
    assert lines[-2] == "flaky, as flaky.py says: test_a::test_once: a stub"


def test_what_fails_twice_is_no_flake(tree):
    write(tree, "a", "def test_bad(): assert 0\ndef test_worse(): assert 0\n")
    write(tree, "b", "import nothing_of_this_name\n")
    status, lines = run_tests(tree, "--beside", "good", "--beside", "bad")
    assert status == 1 and not [line for line in lines if line.startswith("FLAKY")], lines
    failed = {line for line in lines if line.startswith("FAILED: ")}
    names = ("make bad", "test_a::test_bad", "test_a::test_worse", "test_b")
    assert failed == {f"FAILED: {name}" for name in names}
    assert "all is well, , 1" in lines
    # What failed there is said again at the end, where somebody looks first.
    assert lines.count("broken") == 2 and lines.count("ok   one") == 1
    assert lines.index("broken", lines.index("ok   one") + 2) < lines.index("FAILED: make bad")


def test_targets_have_the_variables_of_the_make_that_runs_them(tree):
    env = environment(preload=False) | {"BUILD": str(tree / "build")}
    env = {k: v for k, v in env.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    argv = ["make", "-s", "-j2", "-C", tree, "COLOUR=dark blue", "WORKERS=2"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr, done
    assert "all is well, dark blue, 1" in done.stdout.splitlines(), done


def test_a_file_that_dies_fails_the_run(tree):
    write(tree, "a", "import os\ndef test_end(): os._exit(0)\n")
    status, lines = run_tests(tree)
    assert status == 1 and "FAILED: test_a" in lines, lines


def test_the_longest_begin_first_and_are_left_out_first(tree):
    took = {"quick": 1, "long": 9, "middle": 4}
    for name in took:
        write(tree, name, "def test_it(): pass\n")
    names = {f"test_{name}{end}": [s, s] for name, s in took.items() for end in ("", "::test_it")}
    table = json.dumps(names)
    (tree / "build").mkdir()
    (tree / "build/test-times.json").write_text(table)
    assert run_tests(tree, "--record")[0] == 0
    status, lines = run_tests(tree, "--workers", "1")
    order = [line.split()[1] for line in lines if line.startswith("ok ")]
    assert status == 0 and order == ["test_long:", "test_middle:", "test_quick:"]
    times = json.loads((tree / "build/test-times.json").read_text())
    assert times.keys() == names.keys() and times["test_long::test_it"][0] < 9
    (tree / "build/test-times.json").write_text(table)
    for _ in range(2):  # the second time by times.txt
        status, lines = run_tests(tree, "--workers", "1", "--seconds", "5.5")
        assert status == 0 and re.match("2 passed, 1 deselected in ", lines[-1]), lines
        assert any(re.match("ok +test_long: 1 deselected", line) for line in lines), lines
        os.remove(tree / "build/test-times.json")


# The table of a fresh clone may be older than the tests.
def test_times_of_other_tests(tree):
    write(tree, "new", "def test_one(): pass\ndef test_two(): pass\n")
    write(tree, "old", "def test_it(): pass\ndef test_later(): pass\n")
    known = {"test_old": 6, "test_old::test_it": 5, "test_old::test_gone": 90, "test_gone": 90}
    (tree / "build").mkdir()
    table = json.dumps({name: [took, took] for name, took in known.items()})
    (tree / "build/test-times.json").write_text(table)
    assert run_tests(tree, "--record")[0] == 0
    written = (tree / "tests/integration/times.txt").read_text()
    assert "test_it " in written and "gone" not in written
    # Two tests took 6 s, so the two others are taken for as long.
    status, lines = run_tests(tree, "--workers", "1", "--seconds", "12.5")
    assert status == 0 and re.match("4 passed in ", lines[-1]), lines
    assert lines[0].startswith("run-tests: no time is known of 1 of 2 files (test_new): ")
    (tree / "build/test-times.json").write_text(table)
    status, lines = run_tests(tree, "--workers", "1", "--seconds", "11.5")
    assert status == 0 and re.match("3 passed, 1 deselected in ", lines[-1]), lines
    status, lines = run_tests(tree, "--workers", "1", "--seconds", "11.5")
    assert status == 0 and "no time is known" not in lines[0], lines


def test_times_choose_among_marked_ones(tree):
    tests = "".join(f"@pytest.mark.check\ndef test_{n}(): pass\n" for n in "abc")
    write(tree, "a", f"import pytest\n{tests}def test_no(): assert 0\n")
    known = {"test_a": 90, "test_a::test_a": 2, "test_a::test_b": 9, "test_a::test_no": 70}
    (tree / "build").mkdir()
    table = {name: [took, took] for name, took in known.items()}
    (tree / "build/test-times.json").write_text(json.dumps(table))
    for room, end in ((13, "3 passed, 1 deselected"), (6, "2 passed, 2 deselected")):
        argv = ("--workers", "1", "--marked", "check", "--seconds", str(room))
        status, lines = run_tests(tree, *argv)
        assert status == 0 and re.match(f"{end} in ", lines[-1]), lines
        (tree / "build/test-times.json").write_text(json.dumps(table))


def test_a_mark_chooses(tree):
    write(tree, "a", "import pytest\n@pytest.mark.check\ndef test_a(): pass\ndef test_b(): pass\n")
    write(tree, "b", "def test_c(): assert 0\n")
    status, lines = run_tests(tree, "--marked", "check")
    assert status == 0 and re.match("1 passed, 1 deselected in ", lines[-1]), lines
