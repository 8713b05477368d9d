# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""scripts/papers: its list is complete and its commands exist; what it writes of good runs and bad
ones. Most runs are on made-up programs."""

import collections
import importlib.machinery
import importlib.util
import json
import re
import signal
import subprocess
import sys
import time

import pytest
from conftest import BUILD, ROOT, environment, said

SETS = "echo answer=12 ops=1000000 seconds={} live=1000 own=10\n"


def papers(*words, build=BUILD):
    argv = [sys.executable, ROOT / "scripts/papers", *words]
    env = environment(preload=False) | {"BUILD": str(build)}
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


@pytest.fixture
def module(monkeypatch):
    """Imports a module or a script of scripts/."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))

    def get(name):
        path = str(ROOT / "scripts" / name)
        loader = importlib.machinery.SourceFileLoader(name.removesuffix(".py"), path)
        spec = importlib.util.spec_from_loader(loader.name, loader)
        found = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, loader.name, found)
        loader.exec_module(found)
        return found

    return get


@pytest.fixture
def fake(tmp_path):
    """A build whose `sets` is a shell script. PMAlloc's library is one that changes nothing."""

    def make(text):
        program = tmp_path / "build/bench/sets"
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\n" + text)
        program.chmod(0o755)
        (tmp_path / "build/libpmalloc_preload.so").write_bytes(b"")
        return tmp_path / "build"

    return make


def test_each_figure_is_named_once(module):
    figures = module("paper_figures.py")
    names = [figure.name for figure in figures.FIGURES]
    expected = []
    for paper, (drawn, tables) in figures.PAPERS.items():
        expected += [f"{paper}:{n}" for n in range(1, drawn + 1)]
        expected += [f"{paper}:t{n}" for n in range(1, tables + 1)]
    assert names == expected
    for figure in figures.FIGURES:
        # Runs, or one reason why there are none.
        assert sum(map(bool, (figure.runs, figure.missing, figure.never))) == 1, figure.name
        assert figure.found or not figure.runs, figure.name
        assert figure.runs or not figure.lacks, figure.name


def test_the_readme_has_the_numbers(module):
    figures = module("paper_figures.py").FIGURES
    states = collections.Counter(figure.state() for figure in figures)
    text = " ".join((ROOT / "scripts/README.md").read_text().split())
    assert (
        f"Of {len(figures)} rows {states['whole']} have a whole counterpart and "
        f"{states['in part']} one in part, with what it lacks. "
        f"{states['no counterpart yet']} have none yet, and {states['not applicable']} are"
    ) in text


def test_each_command_exists_and_knows_its_options(module):
    runs, figures = module("paper_runs.py"), module("paper_figures.py")
    programs = {program.label for program in module("bench_programs.py").PROGRAMS}
    counters = {counter.name for counter in module("counters").COUNTERS}
    used = {(name, figure.how) for figure in figures.FIGURES for name in figure.runs}
    assert {name for name, _ in used} == set(runs.RUNS)
    options = {}
    for name, how in used:
        for paper in (False, True):
            words = runs.words(name, how, runs.Choice(paper, lib=(("x", "y"),), pin="0"))
            words = words[words.index("0") + 1 :] if words[0] == "taskset" else words
            words += runs.result_option(runs.RUNS[name], "folder")[0]
            options.setdefault(words[0], set()).update(w for w in words if w.startswith("--"))
            if words[0] == "scripts/bench":
                assert set(words[words.index("--programs") + 1].split(",")) <= programs
            if words[0] == "scripts/counters":
                assert set(words[words.index("--only") + 1].split(",")) <= counters
    for script, wanted in options.items():
        done = subprocess.run(
            [sys.executable, ROOT / script, "--help"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, said(done)
        assert wanted <= set(re.findall(r"--[a-z-]+", done.stdout)), script


def test_the_list_has_commands_or_a_reason():
    done = papers("--list", "--only=pmalloc:30,pmalloc:t3,munoz", "--paper")
    assert done.returncode == 0, said(done)
    assert re.findall(r"^(\S+:\S+)  .*\[(.+)\]$", done.stdout, re.MULTILINE) == [
        ("pmalloc:30", "in part"),
        ("pmalloc:t3", "whole"),
        ("munoz:1", "whole"),
    ]
    assert "    scripts/recovery-bench --nodes 10000000 --threads 1" in done.stdout
    assert "    lacks: Bytes of the memory controllers" in done.stdout
    assert "--programs set-list,set-skip,set-hash" in done.stdout


def test_a_folder_is_compared_where_its_work_is_seen(module):
    """Its flushes are inside it: they cannot be counted, nor made to take longer."""
    runs = module("paper_runs.py")
    choice = runs.Choice(folder=(("ralloc", "/x"),), pin="0")
    named = lambda name: runs.words(name, "", choice)[-2:] == ["--folder", "ralloc=/x"]
    assert all(named(name) for name in ("threadtest", "misses", "fragbench-w1"))
    assert not any(named(name) for name in ("flushes-small", "shares-small", "alloc-slow", "nodes"))
    # Recovered are allocators that keep a heap, from the list that build/bench/kept makes.
    assert named("recovery-10m") and not named("recovery-lists")
    words = runs.words("recovery-10m", "", runs.Choice(allocators="glibc,pmalloc,pmemobj"))
    assert words[-2:] == ["--allocators", "pmalloc,pmemobj"]


def test_one_side_is_one_node(module):
    runs = module("paper_runs.py")
    assert runs.cpus_of("0-2,8,10-14:2") == {0, 1, 2, 8, 10, 12, 14}
    assert runs.node_cpus("0") == "0"
    assert runs.words("nodes-one-side", "", runs.Choice(pin="0"))[:3] == ["taskset", "-c", "0"]
    assert runs.words("nodes-one-side", "", runs.Choice())[:2] == ["taskset", "-c"]


def of_bench(run):
    row = {"threads": 2, "allocators": {"pmalloc": {"figure": {"median": 3}}, "glibc": None}}
    return {"run": run, "script": "bench", "data": {"programs": {"threadtest/2": row}}}


def of_recovery(nodes):
    others = {"pmemobj": {"seconds": {"median": nodes / 1e2}, "collection": {"median": 0.001}}}
    ours = {"1": {"seconds": {"median": nodes / 1e3}}}
    data = {"nodes": nodes, "others": others, "recovery": ours}
    return {"run": f"recovery-{nodes}", "script": "recovery-bench", "data": data}


def test_runs_of_the_same_program_have_plots_of_their_own(module):
    report, figures = module("paper_report.py"), module("paper_figures.py").FIGURES
    figure = next(figure for figure in figures if figure.name == "pallocator:14")
    results = [of_bench("threadtest"), of_bench("slow"), of_recovery(10), of_recovery(20)]
    assert {title: lines for (title, _, _), lines in report.panels_of(figure, results).items()} == {
        "threadtest": {"pmalloc": [(2, 3)]},
        "threadtest (slow)": {"pmalloc": [(2, 3)]},
        "recovery": {"pmalloc": [(10, 10), (20, 20)], "pmemobj": [(10, 100), (20, 200)]},
    }
    line = "10 nodes: pmalloc 10 ms, pmemobj 100 ms, pmemobj collection 1 ms"
    assert report.seen_of_recovery(results[2]["data"]) == line
    assert not report.panels_of(figure, [of_bench("slow") | {"data": None}])


def test_a_run_and_its_page(fake, tmp_path):
    # PMAlloc takes half of the others' time.
    build = fake(f'if [ "$PMALLOC_HEAP" ]; then {SETS.format(1)} else {SETS.format(2)} fi')
    (tmp_path / "other.so").write_bytes(b"")
    words = [f"--output={tmp_path}/out", f"--lib=other={tmp_path}/other.so", "--threads=1"]
    done = papers("--only=munoz:1,pmalloc:20", *words, "--pin=0", build=build)
    assert done.returncode == 0, said(done)
    page = (tmp_path / "out/README.md").read_text()
    assert "## munoz:1: additions" in page and "- The paper: Ralloc over PMDK" in page
    assert "- Here, sets: time of glibc 2, other 2 times PMAlloc's" in page
    assert "`taskset -c 0 scripts/bench --programs set-list,set-skip,set-hash" in page
    assert "- Not applicable: Free bits are volatile here" in page
    data = json.loads((tmp_path / "out/results.json").read_text())
    runs = data["figures"]["munoz:1"]["runs"]
    assert [(run["run"], run["status"]) for run in runs] == [("sets-add", 0), ("sets", 0)]
    assert set(runs[0]["data"]["programs"]) == {f"set-{k}-add/1" for k in ("list", "skip", "hash")}
    shown = papers("--claims", f"--output={tmp_path}/out", build=build)
    assert shown.stdout == (tmp_path / "out/claims.md").read_text()
    assert "| munoz:1 | additions" in shown.stdout and "other 2 times" in shown.stdout


def test_a_failure_is_a_line_and_the_others_go_on(fake, tmp_path):
    build = fake(f'case "$*" in *-a*) exit 3;; esac\n{SETS.format(1)}')
    done = papers("--only=munoz", f"--output={tmp_path}/out", "--threads=1", build=build)
    assert done.returncode == 1, said(done)
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("papers: sets-add: failed: set-"), said(done)
    page = (tmp_path / "out/README.md").read_text()
    assert "- Here, sets-add: FAILED (" in page
    assert "- Here, sets: time of glibc 1 times PMAlloc's" in page


def test_an_interrupt_leaves_what_was_measured(fake, tmp_path):
    build = fake(f'case "$*" in *-a*) {SETS.format(1)};; *) exec sleep 60;; esac')
    argv = [sys.executable, ROOT / "scripts/papers", "--only=munoz", f"--output={tmp_path}/out"]
    env = environment(preload=False) | {"BUILD": str(build)}
    command = [*argv, "--threads=1", "--allocators=glibc,pmalloc"]
    process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (tmp_path / "out/sets").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, errors
    page = (tmp_path / "out/README.md").read_text()
    assert "- Here, sets-add: time of glibc 1 times" in page and "- Here, sets:" not in page


def test_counters_of_the_build(tmp_path):
    done = papers("--only=pmalloc:3", f"--output={tmp_path}/out")
    assert done.returncode == 0, said(done)
    page = (tmp_path / "out/README.md").read_text()
    assert re.search(r"Here, flush-large: flush-large 0\.0\d+", page)


@pytest.mark.parametrize(
    "words, expected",
    [
        (["--only=pmalloc:42"], "no figure 'pmalloc:42': that paper has 1 to 41, t1 to t4"),
        (["--only=munoz:t1"], "there is no figure 'munoz:t1': that paper has 1 to 1"),
        (["--only=nobody:1"], "papers are pmalloc, nvalloc, makalu, pallocator, munoz"),
        (["--lib=mine=/nowhere.so"], "there is no file /nowhere.so"),
        (["--adapter=mine"], "'mine' is not NAME=PATH"),
        (["--folder=mine=/"], "'mine=/' is not NAME=DIR, of ralloc, makalu, nvm_malloc, lrmalloc"),
        (["--folder=lrmalloc=/nowhere"], "there is no file /nowhere/liblrmalloc.so"),
        (["--threads=0"], "'0' is not a positive number"),
        (["--pin=none", "--only=munoz"], "taskset refuses 'none'"),
        (["--allocators=none", "--only=munoz"], "'none' is no allocator known here"),
        (["--claims", "--output=/nowhere"], "/nowhere has no claims.md"),
        (["--output=/dev/null/x", "--only=munoz"], "cannot make /dev/null/x"),
    ],
)
def test_what_cannot_start_is_said(words, expected):
    done = papers(*words)
    assert done.returncode == 2 and expected in done.stderr, said(done)
    assert len(done.stderr.strip().splitlines()[-1:]) == 1
