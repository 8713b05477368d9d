# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Commits between operations: what a lock protects is whole after a kill, in all commit modes.

SECTION_KILLS=2000 makes that many kills, with 2 to 16 threads, instead of a few."""

import json
import os
import pathlib
import random
import re
import signal
import subprocess
import time

import pytest
from conftest import busy, compiled, environment, lacks, run, said, start, succeeds, tool

KILLS = int(os.environ.get("SECTION_KILLS", "0"))
RUNG = re.compile(
    r"instants of commits: (\d+) between operations, (\d+) after a wait .*?, (\d+) others(.*)"
)


@pytest.fixture(scope="module")
def program():
    return compiled("sections.c")


def rungs(done):
    """How many commits had which instant, and what the line says of the last."""
    found = RUNG.search(done.stderr)
    assert found, said(done)
    return (*(int(n) for n in found.groups()[:3]), found[4])


def killed(program, heap, answers, *arguments, preload=True, **settings):
    """Kills the program after some answers, and returns what its start said of the heap."""
    process = subprocess.Popen(
        [program, *map(str, arguments)],
        env=environment(preload, HEAP=heap, ROOTS="root", **settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for _ in range(answers):
        if not process.stdout.readline():
            break
    process.send_signal(signal.SIGKILL)
    _, told = process.communicate()
    assert process.returncode == -signal.SIGKILL or "torn" in told, told
    return told


def last_commit(heap):
    """Whether the last commit is of an instant between operations, as the tools tell; and what they
    say of those before it."""
    told = json.loads(succeeds(run([tool("pmalloc-info"), "--json", heap], preload=False)))
    return told["commit"]["between_operations"], told["instants"]


def is_between_operations(heap):
    return last_commit(heap)[0]


@pytest.mark.parametrize("mode", ["output", "output:strict", "1ms", "10ms"])
def test_sections_are_whole_after_kills(program, heap, mode):
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    draw = random.Random(seed)
    killed(program, heap, 5 if "output" in mode else 1000, 3, 1, COMMIT=mode)
    most = 60 if "output" in mode else 1000  # of some commits
    for _ in range(KILLS // 4 or 8):
        threads = draw.randint(2, 16 if KILLS else 6)
        instant = last_commit(heap)
        told = killed(
            program, heap, draw.randint(1, most), threads, draw.randrange(1 << 30), COMMIT=mode
        )
        # A start may name words of a robust mutex; a strict answer, a section without an end.
        assert "whole\n" in told and "torn" not in told, (told, instant)


def test_a_refused_unlock_ends_no_section(program, heap):
    for i in range(13):
        told = killed(program, heap, 40, "refuses", 3, COMMIT="output")
        assert ("whole\n" in told or not i) and "torn" not in told, told


def test_the_last_commit_is_whole(program, heap):
    """The program ends by a return from main, while its threads are in sections."""
    for seed in range(6):
        done = run([program, 4, seed, 300 + 37 * seed], HEAP=heap, ROOTS="root", COMMIT="1h")
        succeeds(done)
        assert "torn" not in done.stderr and (not seed or "whole\n" in done.stderr), said(done)


# Without the gate it is torn: the other test checks something.
def test_without_patience_they_are_torn(program, heap):
    for seed in range(200):
        told = killed(program, heap, 60, 4, seed, COMMIT="output", COMMIT_PATIENCE="0")
        if "torn: " in told:
            return
    pytest.fail("200 kills, and no section is torn")


@pytest.mark.parametrize("how", ["cond", "join", "pipe", "barrier", "busy"])
def test_a_section_may_wait_for_a_thread_at_the_gate(program, heap, how):
    """Patience is so long that the test would never end, if it were used up in each round."""
    done = run(
        [program, "waits", how, "100"],
        HEAP=heap,
        ROOTS="root",
        COMMIT="output",
        COMMIT_PATIENCE="10000",
        STATS="1",
    )
    succeeds(done)
    between, waited, others, _ = rungs(done)
    assert between + waited > 0 and others == 0, said(done)


def commits_of(heap):
    told = succeeds(run([tool("pmalloc-info"), "--json", heap], preload=False))
    return json.loads(told).get("pauses", {}).get("count", 0)


def test_a_thread_in_getchar_is_not_waited_for(heap):
    """It is in a call that is not recorded, beside threads that never took a lock. It was taken for
    one in line for a lock of theirs, until patience with starved threads was over: a second."""
    program = compiled("leaks_running.c", "-O2", "-D_GNU_SOURCE")
    with start([program, "busy"], HEAP=heap, COMMIT="10ms", STATS=1) as process:
        assert process.stdout.readline() == "busy\n"
        end = time.monotonic() + 1.5 * busy()  # a starved thread delays a commit, too
        while commits_of(heap) < 8 and time.monotonic() < end:
            time.sleep(0.05)
        out, err = process.communicate("x\n", timeout=60 * busy())
    assert process.returncode == 0, (out, err)
    commits, took = map(int, re.search(r"commits: (\d+) of .*?: (\d+) for one", err).groups())
    assert commits >= 2 and took < 400000 * busy(), err


def test_a_commit_waits_for_no_thread_of_pmallocs(program, heap):
    """Its own thread had made the commit before, and sleeps in a call that is not recorded: it was
    taken for one that never took a lock, by each of the 50 commits."""
    settings = {"COMMIT": "2ms", "COMMIT_PATIENCE": "10000", "STATS": "1"}
    done = run([program, "commits", "50"], HEAP=heap, ROOTS="root", **settings)
    succeeds(done)
    _, waited, others, _ = rungs(done)
    assert waited < 25 and others == 0, said(done)


@pytest.fixture(scope="module")
def starved():
    return compiled("sections_starved.c", "-D_GNU_SOURCE")


STARVED = [
    (how, mode) for how in ("holds", "joined", "again", "gate") for mode in ("output", "10ms")
]


@pytest.mark.parametrize("how, mode", [*STARVED, ("both", "output")])
def test_a_section_without_a_processor_is_waited_for(starved, heap, how, mode):
    """Its own thread has none, or that which it waits for. After a second any instant was taken;
    one that had run for a moment was no more waited for, if yet another one ran; nor was one that
    came to the gate when patience was over."""
    settings = {"COMMIT": mode, "COMMIT_PATIENCE": "50", "STATS": "1"}
    done = run([starved, how], HEAP=heap, ROOTS="root", **settings)
    succeeds(done)
    assert rungs(done)[2] == 0 and "has failed" not in done.stderr, said(done)


def test_the_tools_tell_how_old_the_commit_is_that_waits_for_a_processor(starved, heap):
    ages = [0]
    with start([starved, "holds"], HEAP=heap, ROOTS="root", COMMIT="10ms") as process:
        assert process.stdout.readline()
        while process.poll() is None:
            told = run([tool("pmalloc-info"), "--json", heap], preload=False)
            if told.returncode == 0 and "commit" in json.loads(told.stdout):
                ages.append(json.loads(told.stdout)["commit"]["age"])
            time.sleep(0.05)
    assert max(ages) > 0.5, ages


def test_a_section_is_waited_for_that_waits_for_a_new_thread(starved, heap):
    """Made by a section that was let through the gate: the thread was in no list of the commit's,
    so all seemed to sleep."""
    patient = {"COMMIT": "output", "COMMIT_PATIENCE": "1000", "STATS": "1"}
    done = run([starved, "born"], HEAP=heap, ROOTS="root", **patient)
    succeeds(done)
    assert rungs(done)[2] == 0, said(done)


ENDLESS = {"endless": "holds the lock", "cancelled": "holds the lock", "spins": "never took"}


@pytest.mark.parametrize("how, named", ENDLESS.items())
def test_a_section_without_end_is_named(program, heap, how, named):
    """Each commit would wait for it; patience lasts once, and half a minute of it is too long."""
    done = run(
        [program, how, "50"],
        HEAP=heap,
        ROOTS="root",
        COMMIT="output",
        COMMIT_PATIENCE="300",
        STATS="1",
    )
    succeeds(done)
    _, _, others, named_so = rungs(done)
    assert others >= 50 and named in named_so, said(done)


def test_a_commit_by_time_is_tried_again(program, heap):
    """Sections are longer than patience: each commit that fell into one was of any instant."""
    patient = {"COMMIT": "5ms", "COMMIT_PATIENCE": "1", "STATS": "1"}
    done = run([program, "long", "2"], HEAP=heap, ROOTS="root", **patient)
    succeeds(done)
    between, _, others, _ = rungs(done)
    assert between >= 10 and others == 0, said(done)


def test_commits_by_time_go_on_beside_a_section_without_end(program, heap):
    """For a second they are tried in vain; from then on none waits for that section."""
    arguments = [program, "endless", "1000000000"]
    with start(arguments, HEAP=heap, ROOTS="root", COMMIT="5ms") as process:
        deadline = time.monotonic() + 60 * busy()
        others = 0
        while others < 50 and time.monotonic() < deadline:
            for _ in range(20000):  # each changes something
                process.stdout.readline()
            others = last_commit(heap)[1]["others"]
        assert others >= 50
        process.kill()


def test_a_strict_answer_waits_and_says_so(program, heap):
    done = run(
        [program, "endless", "1"],
        HEAP=heap,
        ROOTS="root",
        COMMIT="output:strict",
        COMMIT_PATIENCE="1",
        STATS="1",
    )
    assert succeeds(done) == "1\n"
    assert "a thread does not leave its critical section" in done.stderr, said(done)
    assert rungs(done)[2] == 0, said(done)


@pytest.mark.parametrize("arguments, between", [([3, 1], True), (["endless", 1000000], False)])
def test_the_tools_tell_of_which_kind_the_instant_is(program, heap, arguments, between):
    killed(program, heap, 20, *arguments, COMMIT="output", COMMIT_PATIENCE="50")
    assert is_between_operations(heap) is between
    text = succeeds(run([tool("pmalloc-info"), heap], preload=False))
    assert ("amid an operation of another thread" in text) is not between, text


@pytest.fixture(scope="module")
def kept():
    return compiled("sections_kept.c")


@pytest.mark.parametrize("mode", ["5ms", "idle", "output"])
def test_one_that_never_leaves_its_section(kept, heap, mode):
    """It worked while patience was spent: whenever it sleeps later is between operations. After
    that all its instants counted as amid one, and a commit by time first waits a second for another
    one. Redis has such a lock."""
    settings = {"HEAP": heap, "ROOTS": "root", "COMMIT": mode, "STATS": 1}
    with start([kept], **settings) as process:
        for i in range(20):
            process.stdin.write(f"{i}\n")
            process.stdin.flush()
            assert process.stdout.readline() == f"{i}\n"
            time.sleep(0.02 * busy())
        out, err = process.communicate(timeout=60 * busy())
    assert process.returncode == 0, (out, err)
    told = RUNG.search(err)
    between, waited, others = (int(n) for n in told.groups()[:3])
    # Others: while it works, and when a look finds it at work. With the fault all but the first.
    assert between + waited >= 10 and others < between + waited, err


# ---- locks of other libraries -------------------------------------------------------------------

FOREIGN = "g_mutex g_cond g_bit omp nest critical transaction own".split()


@pytest.fixture(scope="module")
def foreign():
    if not any(pathlib.Path("/usr/lib").glob("*/libglib-2.0.so.0")):
        lacks("libglib-2.0.so.0")
    glib = "-l:libglib-2.0.so.0"
    return compiled("sections_foreign.c", "-fopenmp", "-fgnu-tm", compiler="gcc", libraries=[glib])


@pytest.mark.parametrize("kind", FOREIGN)
def test_sections_of_other_locks_are_whole(foreign, heap, kind):
    """`own` is a lock that only pmalloc_begin() tells of. A lock that a kill left is free."""
    told = [
        killed(foreign, heap, answers, kind, COMMIT="output", COMMIT_PATIENCE="100")
        for answers in (200, 20, 15, 10)  # first, until a section has changed something
    ]
    assert told[1:] == ["whole\n"] * 3, told


def test_sections_of_semaphores_are_whole(foreign, heap):
    settings = {"COMMIT": "output", "COMMIT_PATIENCE": "100", "COMMIT_SEMAPHORES": "lock"}
    counts = (200, 20, 15, 10)
    told = [killed(foreign, heap, answers, "semaphore", **settings) for answers in counts]
    assert told[1:] == ["whole\n"] * 3, told


@pytest.mark.parametrize("use, told", [("lock", "free\n"), ("wait", "held\n")])
def test_a_semaphore_that_a_kill_left_held(foreign, heap, use, told):
    settings = {"COMMIT": "output", "COMMIT_SEMAPHORES": use}
    killed(foreign, heap, 3, "held", **settings)
    assert killed(foreign, heap, 3, "held", **settings) == told


@pytest.fixture(scope="module")
def abseil():
    if not pathlib.Path("/usr/include/absl/synchronization/mutex.h").exists():
        lacks("libabsl-dev")
    # The headers of 20260526 call more of its libraries, and call some of these names old.
    needed = "-Wl,--copy-dt-needed-entries"
    libraries = [needed, *(f"-labsl_{name}" for name in ("synchronization", "time", "base"))]
    flags = "-std=c++17", "-Wno-format-nonliteral", "-Wno-deprecated-declarations"
    return compiled("sections_absl.cc", *flags, compiler="g++", libraries=libraries)


@pytest.mark.parametrize("kind", ["mutex", "reader", "cond", "await", "when"])
def test_sections_of_abseil_are_whole(abseil, heap, kind):
    told = [
        killed(abseil, heap, answers, kind, COMMIT="output", COMMIT_PATIENCE="100")
        for answers in (200, 20, 15, 10)  # first, until each thread has done something
    ]
    # A thread that waited is named in the lock. The start may say so; its first use forgets it.
    assert all(text.endswith("whole\n") and "torn" not in text for text in told[1:]), told


# ---- backups of a program without commit mode ---------------------------------------------------


def backed_up(heap, copy):
    done = run([tool("pmalloc-backup"), "--json", heap, copy], preload=False)
    return json.loads(succeeds(done))


def found_in(program, copy):
    """What a start of the program says of its backup."""
    done = run([program, 1, 1, 1], HEAP=copy, ROOTS="root")
    succeeds(done)
    return done.stderr


# Without the gate 10 of 60 backups of three threads are torn, and 31 of 60 of six.
@pytest.mark.parametrize("threads", [3, 6])
def test_backups_are_of_an_instant_between_operations(program, heap, tmp_path, threads):
    with start([program, threads, 7], HEAP=heap, ROOTS="root") as process:
        process.stdout.readline()
        between = 0
        for number in range(12):
            copy = tmp_path / str(number)
            if backed_up(heap, copy)["instant"] == "between operations":
                between += 1
                assert found_in(program, copy) == "whole\n"
        process.kill()
    assert between >= 10  # a thread may find no processor


def test_a_backup_amid_an_operation_says_so(program, heap, tmp_path):
    with start([program, "endless", 1000000], HEAP=heap, ROOTS="root") as process:
        process.stdout.readline()
        report = backed_up(heap, tmp_path / "copy")
        assert re.fullmatch(r"within an operation of thread \d+", report["instant"]), report
        process.kill()


def test_a_backup_waits_for_no_thread_that_sleeps(program, heap, tmp_path):
    """Sections that wait for a thread at the gate: the tool leaves it ajar."""
    with start([program, "waits", "cond", 1000000], HEAP=heap, ROOTS="root") as process:
        time.sleep(0.3)
        for number in range(4):
            report = backed_up(heap, tmp_path / str(number))
            assert report["instant"] == "between operations", report
            assert report["pause_us"] < 1000000, report
        process.kill()


def test_a_backup_waits_for_a_section_that_waits(program, heap, tmp_path):
    """For the end of a thread that is awake, and in no section: one that had slept for a
    millisecond counted as one that waits."""
    with start([program, "waits", "busy", 1000000], HEAP=heap, ROOTS="root") as process:
        time.sleep(0.3)
        for number in range(12):
            copy = tmp_path / str(number)
            if backed_up(heap, copy)["instant"] == "between operations":
                assert found_in(program, copy) == "whole\n", number
        process.kill()


def test_a_tool_that_is_killed_leaves_no_gate_closed(program, heap, tmp_path):
    """The program goes on: after a second at most its threads find that the tool is gone."""
    with start([program, 4, 9], HEAP=heap, ROOTS="root") as process:
        process.stdout.readline()
        for number in range(20):
            tried = subprocess.Popen([tool("pmalloc-backup"), heap, tmp_path / "copy"])
            time.sleep(0.01 + 0.002 * number)
            tried.kill()
            tried.wait()
        for _ in range(200):
            assert process.stdout.readline()
        process.kill()
