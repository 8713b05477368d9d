# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""scripts/bench on made-up programs, and the programs of tests/bench under the preload."""

import importlib.machinery
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
import types

import pytest
from conftest import BUILD, ROOT, environment, run, said

ANSWER = "echo answer=12 ops=1000000 seconds=$seconds live=1000 own=10\n"


def bench(*arguments, build=BUILD, plots=False):
    argv = [sys.executable, ROOT / "scripts/bench", *([] if plots else ["--no-plots"]), *arguments]
    env = environment(preload=False) | {"BUILD": str(build)}
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)


@pytest.fixture
def fake(tmp_path):
    """Runs the driver on an nqueens that is a shell script. The allocators are glibc and a library
    that is none."""
    (tmp_path / "other.so").write_bytes(b"")

    def start(text, *arguments):
        script(tmp_path / "build/bench/nqueens", text)
        more = ["--programs=nqueens", f"--lib=other={tmp_path}/other.so", *arguments]
        more += [] if any("--runs" in a for a in arguments) else ["--runs=1"]
        more += [] if any("--allocators" in a for a in arguments) else ["--allocators=glibc"]
        return bench(*more, f"--output={tmp_path}/results", "--threads=1", build=tmp_path / "build")

    start.report = lambda: json.loads((tmp_path / "results/results.json").read_text())
    return start


def test_figures_ratios_and_the_best(fake):
    done = fake('seconds=0.002; [ -z "$LD_PRELOAD" ] || seconds=0.001\n' + ANSWER, "--runs=3")
    assert done.returncode == 0, said(done)
    report = fake.report()
    data = report["programs"]["nqueens/1"]["allocators"]
    assert [data[name]["figure"]["median"] for name in ("glibc", "other")] == [2.0, 1.0]
    assert data["other"]["figure"]["values"] == [1.0] * 3
    assert data["other"]["figure"]["spread"] == 0
    assert report["geometric_means"]["time"] == {"glibc": 1.0, "other": pytest.approx(0.5)}
    assert report["machine"]["cpus"] >= 1 and "dev_shm" in report["machine"]
    line = next(line for line in done.stdout.splitlines() if line.startswith("nqueens/1"))
    assert line.split() == ["nqueens/1", "2.000", "ns", "0.50", "other"]


def standing(monkeypatch, runs):
    """The words of each allocator's line. runs: {program: {allocator: [(CPU seconds, peak)]}}."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import bench_programs
    import bench_report
    import bench_run
    import benchlib

    libraries = {"glibc": None, "pmalloc": "ours", "fast": "theirs", "small": "theirs"}
    variants = [benchlib.Variant(name, path) for name, path in libraries.items()]
    cases = []
    for label, results in runs.items():
        program = bench_programs.mimalloc(label, label)
        case = types.SimpleNamespace(name=label, program=program, failures={}, results={})
        for name, values in results.items():
            case.results[name] = [
                bench_run.Result(1.0, cpu, 0.0, 0, peak, 0, 0, "", "") for cpu, peak in values
            ]
        cases.append(case)
    lines = bench_report.standing(bench_report.Comparison(variants, cases)).splitlines()
    return {line.split()[0]: line.split()[1:] for line in lines}


def test_all_programs_together(monkeypatch):
    lines = standing(
        monkeypatch,
        {
            "one": {
                "glibc": [(2.0, 100), (4.0, 100)],
                "pmalloc": [(9.0, 120), (1.2, 120)],
                "fast": [(1.0, 200)],
                "small": [(2.0, 50)],
            },
            "two": {
                "glibc": [(1.0, 100)],
                "pmalloc": [(0.3, 120)],
                "fast": [(1.0, 200)],
                "small": [(0.5, 50)],
            },
        },
    )
    # The least CPU time of the runs; over the best of the others in each program, and by the mean.
    assert lines["pmalloc"] == ["0.424", "0.600", "1.20", "one", "1", "1.200", "1.20", "two"]
    assert lines["fast"] == ["0.707", "1.000", "2.00", "two", "1", "2.000", "2.00", "two"]
    assert lines["small"] == ["0.707", "1.000", "2.00", "one", "1", "0.500", "0.50", "two"]


def test_cpu_time_of_an_operation(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import bench_programs
    import bench_run

    result = bench_run.Result(3.5, 2.5, 0.5, 0, 1, 0, 0, "Throughput = 1000000 of it", "")
    by_name = {program.label: program for program in bench_programs.MIMALLOC}
    # A million operations in the one second for which it counts them.
    assert by_name["larson"].cpu(result) == pytest.approx(3000)
    assert by_name["cfrac-44"].cpu(result) == 3.0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_of_a_run_that_is_ended(number, tmp_path):
    script(
        tmp_path / "build/bench/nqueens",
        "echo $$ > {0}.new; mv {0}.new {0}; exec sleep 60\n".format(tmp_path / "pid"),
    )
    argv = [
        sys.executable,
        ROOT / "scripts/bench",
        "--programs=nqueens",
        "--allocators=glibc",
        "--threads=1",
    ]
    argv += [f"--heap-in={tmp_path}", f"--output={tmp_path}/results"]
    reset = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)
    env = environment(preload=False) | {"BUILD": str(tmp_path / "build")}
    process = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, preexec_fn=reset)
    while not (tmp_path / "pid").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    assert process.wait() == 128 + number
    assert not list(tmp_path.glob("pmalloc-bench-*"))
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_warming_is_reported(fake):
    done = fake("seconds=1;" + ANSWER, "--warm=8M")
    assert done.returncode == 0 and "8 MB touched before each" in done.stdout, said(done)
    assert fake.report()["warm_bytes"] == 8 << 20
    done = fake("seconds=1;" + ANSWER)
    assert "touched" not in done.stdout and fake.report()["warm_bytes"] == 0
    done = fake("seconds=1;" + ANSWER, "--warm=9999999G")
    assert done.returncode == 2 and "MB are available" in done.stderr, said(done)


def test_plots(tmp_path):
    pytest.importorskip("matplotlib", reason="scripts/bootstrap --bench installs matplotlib")
    script(tmp_path / "build/bench/nqueens", "seconds=1; sleep 0.05; " + ANSWER)
    options = [
        "--programs=nqueens",
        "--allocators=glibc",
        "--runs=1",
        f"--output={tmp_path}/results",
    ]
    done = bench(*options, build=tmp_path / "build", plots=True)
    assert done.returncode == 0, said(done)
    page = (tmp_path / "results/README.md").read_text()
    for what in ("time", "memory"):
        assert (tmp_path / f"results/{what}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (tmp_path / f"results/{what}.svg").read_text()
        assert f"({what}.svg)" in page


def test_the_page_describes_the_machine(fake, tmp_path):
    done = fake('seconds=1; [ -z "$LD_PRELOAD" ] || exit 3;' + ANSWER)
    assert done.returncode == 1, said(done)
    page, machine = (tmp_path / "results/README.md").read_text(), fake.report()["machine"]
    assert "Made by `scripts/bench --no-plots --programs=nqueens" in page
    for name in ("cpu", "kernel", "libc", "dev_shm"):
        assert machine[name] in page
    assert "nqueens/1: other: FAILED: exit status 3" in page and "svg" not in page


def test_all_writes_docs_benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    loader = importlib.machinery.SourceFileLoader("bench_driver", str(ROOT / "scripts/bench"))
    driver = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(driver)
    chosen = lambda *words: driver.parse_arguments(words).output
    assert chosen("--all") == str(ROOT / "docs/benchmarks")
    assert chosen("--all", "--output=/tmp/x") == "/tmp/x" and chosen() is None


@pytest.mark.parametrize(
    "text, complaint",
    [
        ('echo "answer=$LD_PRELOAD ops=1 seconds=1"\n', "answer differs from that with glibc"),
        ('[ -z "$LD_PRELOAD" ] || exit 5\nseconds=1;' + ANSWER, "exit status 5"),
        ('[ -z "$LD_PRELOAD" ] || kill -11 $$\nseconds=1;' + ANSWER, "signal 11"),
        ("echo answer=1\n", "printed no figure"),
    ],
)
def test_a_wrong_run_is_a_failure(fake, text, complaint):
    done = fake(text)
    assert done.returncode == 1, said(done)
    assert "nqueens/1: other: FAILED: " in done.stdout and complaint in done.stdout
    assert complaint in fake.report()["programs"]["nqueens/1"]["failures"]["other"]


def test_an_answer_that_changes_is_a_failure(fake, tmp_path):
    count = f"{tmp_path}/count"
    done = fake(f"echo x >> {count}; echo answer=$(wc -l < {count}) ops=1 seconds=1\n", "--runs=2")
    assert done.returncode == 1 and "glibc: FAILED: its answer differs" in done.stdout, said(done)


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["--allocators=nonsense"], "'nonsense' is no allocator known here"),
        (["--allocators=pmalloc"], "run make"),
        (["--allocators=pmemobj"], "run scripts/bootstrap --bench"),
        (["--lib=x=/nowhere/x.so"], "there is no file /nowhere/x.so"),
        (["--lib=glibc=/bin/sh"], "the name 'glibc' is taken"),
        (["--programs=nonsense"], "'nonsense' is no program or group known here"),
        (["--programs=sets"], "no program"),
        (["--programs=threadtest"], "is not built: run make"),
        (["--programs=espresso"], "--mimalloc-bench DIR"),
        (["--programs=mimalloc"], "--mimalloc-bench DIR"),
        (["--mimalloc-bench=/nowhere"], "/nowhere is not a directory"),
        (["--output=/proc/results"], "cannot make /proc/results"),
        (["--warm=1.5G"], "'1.5G' is not a size"),
        (["--scale=0"], "is not a positive number"),
        (["--threads=1,x"], "'x' is not a positive number"),
    ],
)
def test_what_cannot_start_is_said(fake, tmp_path, arguments, complaint):
    script(tmp_path / "build/bench/nqueens", "seconds=1; " + ANSWER)
    base = ["--allocators=glibc", "--programs=nqueens", f"--output={tmp_path}/results"]
    done = bench(*base, *arguments, build=tmp_path / "build")
    assert done.returncode == 2 and complaint in done.stderr, said(done)


def test_mimalloc_bench(tmp_path):
    folder = tmp_path / "mimalloc-bench"
    (folder / "out/bench").mkdir(parents=True)
    options = [f"--mimalloc-bench={folder}", "--allocators=glibc", "--runs=1"]
    options += [f"--output={tmp_path}/results"]
    done = bench(*options)
    assert done.returncode == 2 and "no built program" in done.stderr, said(done)
    script(folder / "out/bench/cfrac", 'echo "$1"\n')
    done = bench(*options, "--programs=espresso")
    assert done.returncode == 2 and "espresso is not built" in done.stderr, said(done)
    done = bench(*options, "--programs=mimalloc")
    assert done.returncode == 0 and "espresso: left out" in done.stderr, said(done)
    assert any(line.startswith("cfrac-44 ") for line in done.stdout.splitlines())


@pytest.mark.skipif("MIMALLOC_BENCH" not in os.environ, reason="MIMALLOC_BENCH names no build")
@pytest.mark.parametrize("program", ["cfrac-44", "espresso", "barnes-163840"])
def test_real_programs_of_mimalloc_bench(program, tmp_path):
    folder = os.environ["MIMALLOC_BENCH"]
    done = bench(
        f"--mimalloc-bench={folder}",
        f"--programs={program}",
        "--allocators=glibc,pmalloc",
        "--runs=1",
        f"--output={tmp_path}",
    )
    assert done.returncode == 0, said(done)


def test_starts_of_what_has_moved(tmp_path):
    """It checks each time that words were changed, and lead where they should."""
    out = tmp_path / "out"
    argv = [ROOT / "scripts/moved-bench", "--objects=3000", "--runs=1", f"--json={out}"]
    done = run([sys.executable, *argv], preload=False)
    assert done.returncode == 0, said(done)
    times = json.loads(out.read_text())["seconds"]
    assert set(times) == {"nothing has moved", "all has moved", "another build"}


# ---- The programs.


@pytest.mark.parametrize("threads", [1, 3])
def test_every_program_answers_alike(threads, tmp_path):
    done = bench(
        "--programs=micro,apps" if threads == 1 else "--programs=micro",
        "--allocators=glibc,pmalloc",
        "--runs=1",
        "--scale=0.01",
        f"--threads={threads}",
        f"--output={tmp_path}",
    )
    assert done.returncode == 0, said(done)
    programs = json.loads((tmp_path / "results.json").read_text())["programs"]
    expected = {path.stem for path in (ROOT / "tests/bench").glob("*.c")} - {
        "pair",
        "objects",
        "flushes",
        "contention",
        "lines",
        "commitcost",
        "pauses",
        "forkcost",
        "gatecost",
        "kept",
        "life",
        "lockcost",
        "moved",
        "pages",
        "precision",
    }
    binaries = {name.split("/")[0].split("-")[0] for name in programs}
    assert expected - {"sets"} <= binaries and {"set"} <= binaries


MASK = 2**64 - 1


def mix(x):
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK
    return x ^ x >> 31


class Stream:
    def __init__(self, state):
        self.state = state

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        return mix(self.state)

    def below(self, limit):
        return self.next() * limit >> 64


def answer(program, *arguments, **settings):
    done = run([BUILD / "bench" / program, *arguments], **settings)
    assert done.returncode == 0 and not done.stderr, said(done)
    return int(done.stdout.split()[0].removeprefix("answer="), 16)


@pytest.mark.parametrize("inserts, finds", [(50, 0), (100, 0), (0, 0), (30, 40)])
def test_the_tree_loses_no_pair(inserts, finds):
    """fptree must return each inserted pair exactly once, and find what is there."""
    warm, operations, seed = 500, 3000, mix((0x9E3779B97F4A7C15 + 1) & MASK)
    keys = 2 * warm + 1
    first, second = Stream(~seed & MASK), Stream(seed)
    inserted = [first.below(keys) for _ in range(warm)]
    there, found = set(inserted), 0
    for _ in range(operations):
        key, choice = second.below(keys), second.below(100)
        if choice < finds:
            found += 128 * (key in there)
        elif choice >= 100 - inserts:
            inserted.append(key)
            there.add(key)
        else:
            there.discard(key)
    expected = (found + sum(1 + mix(128 << 32 | key) for key in inserted)) & MASK
    words = ["-w", warm, "-n", operations, "-i", inserts, "-f", finds]
    assert answer("fptree", *words) == expected


TWICE = """
#include <stddef.h>
static char block[1 << 20];
int bench_setup(const char *pool) { return !pool; }
void *bench_malloc(size_t size) { return block + 16 * (size % 3); }
void bench_free(void *p) { (void)p; }
"""


def test_an_allocator_that_hands_out_a_block_twice_is_noticed(tmp_path):
    source, library = tmp_path / "twice.c", tmp_path / "twice.so"
    source.write_text(TWICE)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    for line in ("threadtest -i 2", "shbench -i 99", "larson small -n 9999", "fragbench w2 -l 1M"):
        name, *arguments = line.split()
        argv = [BUILD / "bench" / name, *arguments]
        env = environment(preload=False) | {"BENCH_ALLOCATOR": str(library)}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
        right = answer(name, *arguments, preload=False)
        assert done.returncode != 0 or f"answer={right:016x}" not in done.stdout, said(done)


def test_an_adapter_that_lacks_a_function():
    done = subprocess.run(
        [BUILD / "bench/nqueens"],
        env=environment(preload=False) | {"BENCH_ALLOCATOR": str(BUILD / "libpmalloc.so")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "does not export bench_setup" in done.stderr, said(done)


def test_modes_take_turns_and_keep_the_data(shm):
    argv = [sys.executable, ROOT / "scripts/mode-bench", "--requests", "20", "--operations", "100"]
    done = run([*argv, "--runs", "1", "--modes", "output", "--on", shm], preload=False)
    assert done.returncode == 0 and not done.stderr, said(done)
    server, batch = done.stdout.splitlines()
    figures = r"without commits [\d.]+ {}; output [\d.]+"
    assert re.fullmatch(f"server on {shm}: " + figures.format("µs an answer"), server), server
    assert re.fullmatch(f"batch on {shm}: " + figures.format("s"), batch), batch
    assert not any(shm.iterdir())


def test_servers_are_asked_and_killed(shm, tmp_path):
    """What is durable when it is answered is there after the kill, and nothing of what is plain."""
    argv = [sys.executable, ROOT / "scripts/output-bench", "--servers", "--clients", "1,5"]
    argv += ["--servers", "loop,workers,threads", "--modes", "output,output:0", "--runs", "1"]
    argv += ["--seconds", "0.05", "--on", shm, "--json", tmp_path / "figures"]
    done = run(argv, preload=False)
    assert done.returncode == 0 and not done.stderr, said(done)
    figures = json.loads((tmp_path / "figures").read_text())["results"]
    modes = ("plain", "output", "output:0")
    servers = ("loop", "workers", "threads")
    assert {f"{server}, {mode}" for server in servers for mode in modes} <= set(figures)
    for case, of in figures.items():
        assert of["kept"] == [0 if case.endswith("plain") else 1], case
        assert all(of[f"({clients}, {way})"][0][0] > 0 for clients in (1, 5) for way in (1, 16))
    assert not any(shm.iterdir())


@pytest.mark.parametrize("arguments", [["-n"], ["-x", "1"], ["-n", "1x"], ["-t", "0"], ["w5"]])
def test_usage(arguments):
    done = run([BUILD / "bench/nqueens", *arguments], preload=False)
    assert done.returncode == 2 and done.stdout == "", said(done)
