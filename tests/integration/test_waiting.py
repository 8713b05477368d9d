# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""A program whose heap nothing could find again gets none before it asks for more than a little."""

import re
import shutil
import subprocess

import pytest
from conftest import API, BUILD, DEFAULT_HEAPS, ROOT
from conftest import compiled, environment, run, said, start, succeeds

RUNS = 20


@pytest.fixture(scope="module")
def waiting():
    return compiled("waiting.c", "-pthread", name="pmtest_waiting")


@pytest.mark.parametrize("how", ["threads", "signals", "forks", "large", "strict"])
def test_the_heap_comes_while_others_ask_for_memory(waiting, how):
    for _ in range(RUNS):
        assert succeeds(run([waiting, how])) == "ok\n"


def calls_at_start(**settings):
    """The system calls of `true` that plain `true` does not make."""
    if not shutil.which("strace"):
        pytest.skip("there is no strace here")
    true = shutil.which("true")
    counts = []
    for env in (environment(preload=False), environment(**settings)):
        given = [f"-E{k}={env[k]}" for k in env if k.startswith(("LD_", "PMALLOC_"))]
        done = subprocess.run(
            ["strace", "-f", *given, true], capture_output=True, text=True, check=False
        )
        if "ptrace" in done.stderr and "ermitted" in done.stderr:
            pytest.skip("no ptrace here")
        counts.append(re.findall(r"^(\w+)\(", done.stderr, re.MULTILINE))
    plain, ours = counts
    return len(ours) - len(plain), ours


def test_a_small_program_pays_for_no_heap():
    """The library itself takes ten calls to load."""
    more, calls = calls_at_start()
    assert more <= 20, calls
    assert "mkdir" not in calls and "flock" not in calls
    eager, _ = calls_at_start(BACKING="volatile", TOPOLOGY="1x1")
    assert eager > more


@pytest.mark.check
def test_what_names_a_heap_makes_one(heap):
    """So does the library that a program is linked with to set roots."""
    copy = heap.parent / "pmtest_true"
    shutil.copy(shutil.which("true"), copy)
    made = DEFAULT_HEAPS / copy.name
    for settings in ({}, {"BACKING": "volatile"}, {"PROGRAM": "other"}):
        said_so = run([copy], VERBOSE=1, **settings)
        assert "volatile memory: nothing is kept" in said_so.stderr, said(said_so)
    for preload, settings in (
        (API, {}),
        (API, {"FORK": "copy"}),
        (True, {"HEAP": heap}),
        (True, {"COMMIT": "1s"}),
    ):
        done = run([copy], preload=preload, VERBOSE=1, **settings)
        assert str(settings.get("HEAP", made)) in done.stderr, said(done)
        assert (" (unnamed)" in done.stderr) == (settings == {}), said(done)
    assert not made.exists()


def test_a_default_heap_that_is_there_is_found_without_a_setting():
    shell = compiled("../apps/kvshell.c", name="pmtest_kvshell")
    try:
        assert succeeds(run([shell], stdin="set a 1\n", ROOTS="store")) == "ok\n"
        assert succeeds(run([shell], stdin="get a\n")) == "1\n"
    finally:
        shutil.rmtree(DEFAULT_HEAPS / "pmtest_kvshell")


def test_linked_with_the_library(heap, processes):
    """A root may be set at any time, so the first block must be in a heap already."""
    source = heap.parent / "linked.c"
    source.write_text(
        """
        #include <stdio.h>
        #include <string.h>
        #include <pmalloc.h>
        int main(void) {
            char *kept = strdup("kept"), *old = pmalloc_get_root(0);
            if (pmalloc_set_root(0, kept)) return 1;
            printf("%s\\n", old ? old : "new");
            fflush(stdout);
            return getchar() == 'x';
        }
    """
    )
    program = heap.parent / "pmtest_linked"
    library = ["-L", BUILD, "-lpmalloc", f"-Wl,-rpath,{BUILD}"]
    subprocess.run(
        ["cc", "-I", ROOT / "preload", "-o", program, source, *library],
        check=True,
    )
    try:
        for preload in (False, True):
            process = start([program], preload)
            processes.append(process)
            assert process.stdout.readline() == ("kept\n" if preload else "new\n")
            process.kill()
            process.wait()
    finally:
        shutil.rmtree(DEFAULT_HEAPS / program.name)
