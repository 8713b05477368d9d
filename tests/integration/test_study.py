# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""scripts/study: what it sees of a program's flushes, misses and time, and of the log and slabs.
What adapters may have, and what makes flushes slow."""

import json
import re
import shutil
import subprocess
import sys

import pytest
from conftest import BUILD, ROOT, environment, said

LINE = "--set=PMALLOC_PERSIST=line"


def study(*words):
    argv = [sys.executable, ROOT / "scripts/study", *words]
    env = environment(preload=False) | {"BUILD": str(BUILD)}
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


def figures(tmp_path, *words):
    """{program: {allocator: figures}}"""
    done = study(*words, f"--json={tmp_path}/study.json")
    assert done.returncode == 0 and not done.stderr, said(done)
    return json.loads((tmp_path / "study.json").read_text())["programs"]


def test_flushes_of_blocks_that_are_durable_and_of_those_that_are_not(tmp_path):
    words = ["flushes", "--programs=threadtest", "--scale=0.004", "--threads=2", "--first=100"]
    of = figures(tmp_path, *words, LINE, "--allocators=pmalloc,pinned,glibc")["threadtest"]
    assert of["pmalloc"]["flushes"] < 0.01 and of["glibc"]["flushes"] == 0
    pinned = of["pinned"]
    assert 1 <= pinned["flushes"] < 1.1 and 1 <= pinned["fences"] < 1.1
    assert pinned["reflushes"] < 0.05
    assert pinned["of_a_thread"] == pytest.approx(pinned["flushes"] * 200000 / 2)
    assert 1 < pinned["distinct"] <= 100 and pinned["span_mib"] > 0


def test_the_course_of_log_and_slabs(tmp_path):
    words = ["course", "--programs=fragbench-long-w1,larson-large", "--scale=0.2"]
    of = figures(tmp_path, *words, LINE, "--allocators=pmalloc")
    slabs, log = of["fragbench-long-w1"]["pmalloc"], of["larson-large"]["pmalloc"]
    assert slabs["low_slabs"] + slabs["middle_slabs"] + slabs["high_slabs"] > 0
    assert max(point["live"] for point in log["points"]) > 0 and log["most_chunks"] > 0
    assert len(log["points"]) > 1 and slabs["changed"] >= slabs["ended"]
    # W1 ends with blocks in nearly all slabs, and frees them; slabs stay. The looks afterwards, of
    # which a slow machine has many, are not what is shown.
    assert slabs["high_slabs"] > slabs["low_slabs"]


def test_misses_and_shares(tmp_path):
    words = ["--programs=nqueens", "--scale=0.0005", "--allocators=pmalloc"]
    of = figures(tmp_path, "misses", *words)["nqueens"]["pmalloc"]
    assert of["misses"] > 0 and of["how"] in ("cachegrind", "L1-dcache-load-misses")
    if not shutil.which("perf"):
        pytest.skip("there is no perf")
    words = ["shares", "--programs=threadtest", "--scale=0.01", LINE, "--flush-ns=1000"]
    of = figures(tmp_path, *words, "--allocators=pinned")["threadtest"]
    assert of["pinned"]["flushes"] > 0.5 and of["pinned"]["samples"] > 10


def test_which_accesses_go_to_memory():
    """One megabyte of 16 ways: lines so far apart share a set. What is read while nothing counts is
    in the cache all the same."""
    line = lambda what, at, size=8: f" {what} {at:x},{size}\n"
    off, on, zero = (line("S", 0x3FF000000000 + 64 * mark, 1) for mark in range(3))
    apart, first = 1024 * 64, 0x10000000
    trace = "==1== Lackey\nI  04000000,3\n" + line("L", first) + off + line("L", first + 64) + on
    trace += line("L", first + 64) + line("M", first + 120, 16)  # two lines, of which one is there
    trace += "".join(line("S", 2 * first + i * apart) for i in range(16)) + line("L", first)

    def misses(text):
        argv = [BUILD / "study/loads", "1"]
        done = subprocess.run(argv, input=text, capture_output=True, text=True, check=True)
        return dict(words.split() for words in done.stdout.splitlines())

    assert misses(trace) == {"10000": "3"} | {f"{0x20000 + 16 * i:x}": "1" for i in range(16)}
    assert misses(trace + zero + line("L", first)) == {}


def test_loads_of_slower_media(tmp_path):
    """Each allocation of 8 KiB stores to a line of its own."""
    words = ["loads", "--programs=apart-alloc-8192", "--scale=0.02", "--allocators=pmalloc"]
    of = figures(tmp_path, *words, "--load-ns=490", "--cache-mb=1")["apart-alloc-8192"]
    found = of["pmalloc"]
    assert 0.5 < found["heap"] < 10
    assert found["slow_ns"] == pytest.approx(found["ns"] + 490 * found["heap"])
    done = study("loads", "--programs=nqueens")
    assert done.returncode == 2 and "--load-ns" in done.stderr, said(done)


def test_a_full_memory(tmp_path):
    """Holes are of use, so PMAlloc gets to the longest blocks, which glibc does not."""
    bounds = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", str(tmp_path)]
    if subprocess.run(bounds, capture_output=True, check=False).returncode:
        pytest.skip("there are no mounts for a run alone")
    words = ["full", "--programs=fragstress-full", "--scale=0.25", "--allocators=pmalloc,glibc"]
    of = figures(tmp_path, *words, LINE)["fragstress-full"]
    assert (of["pmalloc"]["full"], of["pmalloc"]["longest_kb"]) == (0, 4096)
    assert of["glibc"]["full"] == 1 and of["glibc"]["longest_kb"] < 1024
    assert of["pmalloc"]["allocations"] > of["glibc"]["allocations"]


def test_other_allocators_open_what_a_kill_has_left(tmp_path):
    argv = [sys.executable, ROOT / "scripts/recovery-bench", "--nodes=2000", "--threads=1"]
    argv += ["--runs=2", f"--heap-in={tmp_path}", f"--json={tmp_path}/found.json"]
    env = environment(preload=False) | {"BUILD": str(BUILD)}
    start = lambda *more: subprocess.run(
        [*argv, *more], env=env, capture_output=True, text=True, check=False
    )
    done = start("--allocators=pmalloc,glibc")
    assert done.returncode == 2 and "'glibc' cannot be compared with" in done.stderr, said(done)
    done = start("--allocators=pmalloc,pmemobj", "--lanes=2")
    if not (BUILD / "bench/adapters/pmemobj.so").exists():
        pytest.skip("there is no libpmemobj")
    assert done.returncode == 2 and "other allocators have one list" in done.stderr, said(done)
    done = start("--allocators=pmalloc,pmemobj")
    assert done.returncode == 0 and "pmemobj" in done.stdout, said(done)
    seconds = json.loads((tmp_path / "found.json").read_text())["others"]["pmemobj"]["seconds"]
    assert len(seconds["values"]) == 2 and 0 < seconds["min"] < 10
    assert not list(tmp_path.glob("pmalloc-recovery-*"))


def test_a_failed_run_is_a_line_and_the_others_go_on(tmp_path):
    words = ["course", "--programs=larson-large", "--scale=0.002", "--allocators=glibc,pmalloc"]
    done = study(*words, LINE, f"--json={tmp_path}/study.json")
    assert done.returncode == 1, said(done)
    assert "glibc is not PMAlloc on a heap" in done.stderr, said(done)
    assert list(json.loads((tmp_path / "study.json").read_text())["programs"]["larson-large"]) == [
        "pmalloc"
    ]


def test_a_program_has_the_same_answer_with_every_allocator(tmp_path):
    for name in ("libpmalloc_preload.so", "study/watch.so", "study/libpmalloc_study.so"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    program = tmp_path / "bench/threadtest"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho answer=${PMALLOC_HEAP:+1} ops=10 seconds=1\n")
    program.chmod(0o755)
    argv = [sys.executable, ROOT / "scripts/study", "flushes", "--programs=threadtest"]
    env = environment(preload=False) | {"BUILD": str(tmp_path)}
    done = subprocess.run(
        [*argv, "--allocators=pmalloc,glibc"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, said(done)
    assert done.stderr == "study: threadtest, glibc: another answer= than before\n", said(done)


def test_what_is_not_built_is_said(tmp_path):
    """stripes-1 needs `make study`."""
    (tmp_path / "libpmalloc_preload.so").write_bytes(b"")
    (tmp_path / "bench").mkdir()
    shutil.copy(BUILD / "bench/threadtest", tmp_path / "bench")
    argv = [sys.executable, ROOT / "scripts/study", "misses", "--programs=threadtest"]
    env = environment(preload=False) | {"BUILD": str(tmp_path)}
    done = subprocess.run(
        [*argv, "--allocators=stripes-1"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "run make study" in done.stderr, said(done)


def test_flushes_take_as_long_as_they_should(shm):
    """2,000 flushes, of 50 µs each: the program cannot be faster."""
    env = environment(preload=False, HEAP=shm / "heap", PERSIST="line") | {
        "LD_PRELOAD": f"{BUILD}/study/watch.so:{BUILD}/study/libpmalloc_study.so",
        "BENCH_ALLOCATOR": str(BUILD / "bench/adapters/pinned.so"),
        "BENCH_FLUSH_NS": "50000",
    }
    argv = [BUILD / "bench/threadtest", "-i", "1", "-n", "1000"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, said(done)
    assert float(re.search(r"seconds=([\d.]+)", done.stdout)[1]) >= 0.1


# The public functions of allocators that the user builds, over malloc, which say what is wrong.
FOREIGN = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static int ready;
static __thread int known;
static void need(int good, const char *what) {
    if (good)
        return;
    fprintf(stderr, "wrong: %s\\n", what);
    abort();
}
int RP_init(const char *id, uint64_t size) {
    need(!strncmp(id, "../../", 6) && size >> 30 == 64, "id or size");
    return 0;
}
int RP_recover(void) { return 0; }
void *RP_set_root(void *p, uint64_t i) { return 0; }
void *_Z13RP_get_root_cm(uint64_t i) { return 0; }
void *nvm_reserve_id(const char *id, uint64_t size) { return 0; }
void *nvm_get_id(const char *id) { return 0; }
void nvm_activate_id(const char *id) {}
void MAK_start_off(char *at, int (*more)(void **, size_t, size_t)) {}
void MAK_restart(char *at, int (*more)(void **, size_t, size_t)) {}
int MAK_collect_off(void) { return 1; }
void MAK_close(void) {}
void **MAK_persistent_root_addr(unsigned id) { return 0; }
void *RP_malloc(size_t size) { return malloc(size); }
void RP_free(void *p) { free(p); }
void *nvm_initialize(const char *directory, int recover) {
    need(!recover && directory, "directory");
    ready = 1;
    return &ready;
}
void *nvm_reserve(uint64_t size) {
    need(ready && (size <= 1984 || size > 2048), "room for a header");
    return malloc(size);
}
void nvm_activate(void *p, void **l, void *t, void **m, void *u) { need(p && !l && !m, "links"); }
void nvm_free(void *p, void **l, void *t, void **m, void *u) { free(p); }
void *MAK_start(int (*more)(void **, size_t, size_t)) {
    void *a, *b;
    need(!more(&a, 8, 100) && !more(&b, 4096, 1 << 20), "more");
    memset(b, 1, 1 << 20);
    need((uintptr_t)b % 4096 == 0 && (char *)b >= (char *)a + 100, "place");
    need(more(&b, 8, (size_t)1 << 40) != 0, "more than there is");
    known = 1;
    return a;
}
void MAK_init_thread(void) { need(!known, "once"), known = 1; }
void MAK_teardown_main_thread_local(void) { need(known, "end"), known = 0; }
void *MAK_malloc(size_t size) { need(known, "thread"); return malloc(size); }
void MAK_free(void *p) { need(known, "thread"); free(p); }
"""


@pytest.mark.parametrize("name", ["ralloc", "makalu", "nvm_malloc"])
def test_the_adapter_of_an_allocator_that_the_user_builds(tmp_path, shm, name):
    (tmp_path / "foreign.c").write_text(FOREIGN)
    library = tmp_path / "libforeign.so"
    command = ["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "foreign.c"]
    subprocess.run(command, check=True)
    env = environment(preload=False) | {
        "BENCH_ALLOCATOR": str(BUILD / f"bench/adapters/{name}.so"),
        "BENCH_LIBRARY": str(library),
        "BENCH_POOL": str(shm / "pool"),
    }
    argv = [BUILD / "bench/larson", "medium", "-t", "2", "-r", "3", "-n", "50"]
    answers = set()
    for settings in (env, environment(preload=False)):
        done = subprocess.run(argv, env=settings, capture_output=True, text=True, check=False)
        assert done.returncode == 0, said(done)
        answers.add(done.stdout.split()[0])
    assert len(answers) == 1
    env["BENCH_LIBRARY"] = str(BUILD / "bench/adapters/pinned.so")
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "undefined symbol" in done.stderr, said(done)


HOOKS = """
#include <stdio.h>
#include <stdlib.h>
static int ended;
int bench_setup(const char *pool) { return !pool; }
void *bench_malloc(size_t size) { return malloc(size); }
void bench_free(void *p) { free(p); }
void bench_thread_end(void) { __atomic_fetch_add(&ended, 1, __ATOMIC_RELAXED); }
void bench_teardown(void) { fprintf(stderr, "%d threads ended\\n", ended); }
"""


@pytest.mark.parametrize(
    "line, ended",
    [
        ("threadtest -i 2 -t 3", 3),
        ("larson small -t 2 -r 5 -n 100", 2 * (5 + 1)),
        ("nqueens -n 100", 0),
    ],
)
def test_an_adapter_hears_of_each_thread_that_ends(tmp_path, line, ended):
    (tmp_path / "hooks.c").write_text(HOOKS)
    library = tmp_path / "hooks.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "hooks.c"], check=True)
    name, *words = line.split()
    env = environment(preload=False) | {"BENCH_ALLOCATOR": str(library)}
    argv = [BUILD / "bench" / name, *words]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == f"{ended} threads ended\n", said(done)
